"""Progress on a terminal and in logs."""

from __future__ import annotations

import multiprocessing
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

try:
    from tqdm import tqdm
except ImportError:  # lines instead of bars
    tqdm = None

Item = TypeVar("Item")

LINE_EVERY = 30.0  # seconds between two lines about one run's steps, where there is no terminal for a bar


def track(items: Iterable[Item], what: str, total: int | None = None, before: int = 0) -> Iterator[Item]:
    """The items, with a bar on a terminal, and elsewhere a line every half minute.

    Args:
        what: the words before the numbers.
        total: how many there are, those before the first included.
        before: how many lie before the first, in a run that goes on.
    """
    if (bar := _bar(what, total, before)) is not None:
        with bar:
            for item in items:
                yield item
                bar.update()
        return
    said = time.monotonic()
    for done, item in enumerate(items, before + 1):
        yield item
        if time.monotonic() - said >= LINE_EVERY:
            said = time.monotonic()
            _say(f"{what}: {done}" + (f"/{total}" if total else ""))


def _bar(what: str, total: int | None, before: int) -> Any:
    # bars of several processes would write over each other
    if tqdm is None or not sys.stderr.isatty() or multiprocessing.parent_process() is not None:
        return None
    return tqdm(total=total, initial=before, desc=what, leave=False, dynamic_ncols=True)


def _say(line: str) -> None:
    if tqdm is None:
        print(line, file=sys.stderr, flush=True)
    else:
        tqdm.write(line, file=sys.stderr)
        sys.stderr.flush()


@contextmanager
def plain_warnings() -> Iterator[None]:
    """What is warned of here is said in lines like all others: for commands, whose users have not called this code."""
    shown, ours = warnings.showwarning, Path(__file__).parents[1]

    def show(message: Any, category: type[Warning], filename: str, *where: Any, **how: Any) -> None:
        if issubclass(category, RuntimeWarning) and ours in Path(filename).parents:
            _say(str(message))
        else:
            shown(message, category, filename, *where, **how)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = shown


def _numbers(result: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.5g}" for name, value in result.items())
