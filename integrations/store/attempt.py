"""Train one run, and record how it ended."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from .errors import BusyError
from .progress import print_line
from .reproduce import seed_everything, versions
from .run import Run


class Outcome(NamedTuple):
    """How an attempt ended: busy (another process is training the run), a one-line error, or success (neither)."""

    busy: bool = False
    error: str = ""


def attempt(train: Callable[[Run], None], run: Run, resume: bool, progress: bool) -> Outcome:
    """Train a run, unless it is done or another process trains it."""
    try:
        with run.lock(fresh=not resume):
            # another process may have finished it since the grid was read
            return Outcome() if run.done else _train(train, run, progress)
    except BusyError:
        return Outcome(busy=True)


def _train(train: Callable[[Run], None], run: Run, progress: bool) -> Outcome:
    recorded, current = run.record.get("versions", {}), versions()
    changed = [name for name, version in recorded.items() if current.get(name, version) != version]
    try:
        if changed:
            print_line(f"{run.title}: resumes with another version of {', '.join(changed)} than it began with")
        run.progress = progress
        run.begin()
        seed_everything(run.arguments["seed"])
        train(run)
        if not run.done:
            raise RuntimeError("the training function returned without run.finish(result)")
    except KeyboardInterrupt:
        with suppress(OSError, BusyError):
            run.interrupt()
        raise
    except BusyError as error:  # the lease of this run has expired, and another process trains it
        print_line(str(error))
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # as Python before 3.12 wraps it where a class is created
            with suppress(OSError, BusyError):
                run.interrupt()
            raise error.__cause__ from None
        line = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        with suppress(OSError, BusyError):  # on a full disk, report the error and not that it could not be recorded
            run.fail(line, traceback.format_exc())
        return Outcome(error=line)
    return Outcome()
