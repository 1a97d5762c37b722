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
            if run.done:  # by another process, since the grid was read
                return Outcome()
            try:
                _train(train, run, progress)
            except BusyError as error:  # the lease of this run has expired, and another process trains it
                print_line(str(error))
                raise
            except (Exception, KeyboardInterrupt, SystemExit) as error:
                return _record(run, error)
            return Outcome()
    except BusyError:
        return Outcome(busy=True)


def _train(train: Callable[[Run], None], run: Run, progress: bool) -> None:
    recorded, current = run.record.get("versions", {}), versions()
    changed = [name for name, version in recorded.items() if current.get(name, version) != version]
    if changed:
        print_line(f"{run.title}: resumes with another version of {', '.join(changed)} than it began with")
    run.progress = progress
    run.begin()
    seed_everything(run.arguments["seed"])
    train(run)
    if not run.done:
        raise RuntimeError("the training function returned without run.finish(result)")


def _record(run: Run, error: BaseException) -> Outcome:
    """Record how a run was interrupted or has failed; on a full disk, the error counts, not that it is unrecorded."""
    # Python before 3.12 wraps a Ctrl-C where a class is created
    interrupt = error if isinstance(error, KeyboardInterrupt) else error.__cause__
    line = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    with suppress(OSError, BusyError):
        if isinstance(interrupt, KeyboardInterrupt):
            run.interrupt()
        else:
            run.fail(line, traceback.format_exc())
    if isinstance(interrupt, KeyboardInterrupt):
        raise interrupt from None
    return Outcome(error=line)
