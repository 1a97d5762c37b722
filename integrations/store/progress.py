"""Progress on a terminal and in logs."""

import math
import os
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from counterpoint.plugins.printing import visible

try:
    from tqdm import tqdm
except ImportError:  # lines instead of bars
    tqdm = None

Item = TypeVar("Item")

LINE_AFTER = 30.0  # seconds until a line tells a file or a pipe how fast a stage is


def on_terminal() -> bool:
    """Return whether progress is shown as bars; a file or a pipe would keep each state of a bar."""
    return sys.stderr.isatty() and "TQDM_DISABLE" not in os.environ


def track(items: Iterable[Item], title: str, total: int | None = None, before: int = 0) -> Iterator[Item]:
    """Yield the items and show progress after a title: a bar on a terminal, elsewhere one line after half a minute.

    ``total`` includes the items ``before`` the first, in a run that resumes; by default they are counted.
    """
    if total is None and isinstance(items, Sized):
        total = before + len(items)
    if tqdm is not None and on_terminal():
        yield from tqdm(items, total=total, initial=before, desc=title, leave=False, dynamic_ncols=True)
        return
    start = begin = time.monotonic()
    at, printed = before, False
    for done, item in enumerate(items, before + 1):
        yield item
        now = time.monotonic()
        if done == before + 1 and now - start < 2 * LINE_AFTER:
            begin, at = now, done  # the first item pays for imports and caches, which the others find
        elif not printed and now - begin >= LINE_AFTER:
            printed = True
            rest = left(begin, done - at, total - at) if total else ""
            print_line(f"{title}: {done}{f'/{total}' if total else ''} after {now - start:.0f} s{rest}")


def left(start: float, done: int, total: float, jobs: int = 1) -> str:
    """Say how long the rest takes if it is as fast as what ``jobs`` have done since ``start``; not in first seconds."""
    seconds = time.monotonic() - start
    if seconds < LINE_AFTER or not 0 < done < total < math.inf:
        return ""
    return f", about {duration(seconds / -(-done // jobs) * (total - done) / jobs)} left"  # of each round


def duration(seconds: float) -> str:
    """Say how long something takes."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def print_line(*lines: str) -> None:
    """Print lines to stderr, each in one :func:`visible` line, above the bars if there are any."""
    (print if tqdm is None else tqdm.write)("\n".join(map(visible, lines)), file=sys.stderr)
    sys.stderr.flush()


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print the runtime warnings of this package as plain lines, for commands, whose users did not call this code.

    Each text is printed once, since every run of a grid warns of the same data.
    """
    package, printed = str(Path(__file__).parents[1]), set[str]()
    with warnings.catch_warnings():
        show_default = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], filename: str, *args: Any, **kwargs: Any) -> None:
            if not issubclass(category, RuntimeWarning) or not filename.startswith(package):
                show_default(message, category, filename, *args, **kwargs)
            elif str(message) not in printed:
                printed.add(str(message))
                print_line(str(message))

        warnings.showwarning = show
        yield


def format_numbers(numbers: Mapping[str, float]) -> str:
    """Format named numbers for a line of progress."""
    return ", ".join(f"{name} {value:.5g}" for name, value in numbers.items())
