"""Grids of runs: train every cell that is not done yet, in this process, in several, or on a cluster."""

import os
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from functools import partial
from pathlib import Path

import torch

from . import executors
from .errors import BusyError, GridError
from .executors import LOCAL, Submits
from .folder import at_once, plain
from .progress import format_numbers, left, print_line
from .run import Run
from .worker import Outcome, attempt, pack

POLL = 2.0  # seconds between two looks at the runs of other processes

SHOWN = 4  # failures named in an error message


def run_grid(
    train: Callable[[Run], None],
    cells: Iterable[Mapping[str, object]],
    root: str | Path,
    *,
    jobs: int = 1,
    executor: Submits | str | None = None,
    resume: bool = True,
    progress: bool | Callable[[str], object] = True,
    prepare: Callable[[], object] = lambda: None,
    before: int = 0,
    total: int = 0,
    after: float = 0,
) -> list[Run]:
    """Train every cell that is not done yet, and return the runs of all cells.

    :func:`seed_everything` is called with the seed of each run before it is trained. A run that fails does not stop the
    others; at the end a :class:`GridError` lists the failures. Runs that another process is training are left to it and
    waited for. Whatever ends this process, the same call resumes from the last checkpoints.

    Args:
        train: trains one run and calls its ``finish``. For ``jobs`` above 1, other processes must be able to import it.
        cells: see :mod:`counterpoint.integrations.store`; equal cells are one run.
        root: the folder of all runs, or its URL (``s3://bucket/runs``), which several machines may share.
        jobs: processes at a time. They share the threads of this one, unless ``OMP_NUM_THREADS`` is set; with another
            number of threads, sums may be rounded differently.
        executor: where to train instead: any :class:`concurrent.futures.Executor`, executor of submitit, or place of
            ``--on`` (``slurm:partition=gpu``), whose workers see ``root`` under the same path.
        resume: if False, first delete the runs of all cells, except those that another process is training.
        progress: show progress on stderr, or call this with each line about an ended run.
        prepare: called before the first run is trained, and not if all are done; may raise errors of the data.
        before, total: of a larger grid that these cells are a part of: runs that have ended, and all runs. The caller
            says how many were done already.
        after: runs that follow these, also of other grids, for the time that is left.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}.")
    root = plain(root)
    requested = at_once(partial(Run, root), cells)
    runs = {run.path: run for run in requested}
    pending = [run for run in runs.values() if not (resume and run.done)]
    count, part, total, began = before + len(runs) - len(pending), total > 0, total or len(runs), time.monotonic()
    first, ends = count, max(total, before + len(runs) + after)
    failures: dict[Path, str] = {}
    report = progress if callable(progress) else print_line if progress else lambda _: None
    if count and not part:
        report(f"{count} of {total} runs are done already")
    try:
        if pending:
            prepare()
            writable(root)
        while pending:
            busy = []
            with closing(_train(train, pending, jobs, executor, resume, progress is True)) as outcomes:
                for run, outcome in outcomes:
                    if outcome.busy:
                        busy.append(run)
                        continue
                    run.refresh()
                    count += 1
                    if outcome.error:
                        failures[run.path] = outcome.error
                    ending = f"failed: {outcome.error}" if outcome.error else format_numbers(run.result or {})
                    report(f"[{count}/{total}] {run.title}: {ending}{left(began, count - first, ends - first, jobs)}")
            if busy:
                report(f"waiting for another process: {busy[0].title}" + (" and others" if len(busy) > 1 else ""))
            while busy and all(run.folder.busy for run in busy):
                time.sleep(POLL)
            pending, resume = busy, True
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped; {count} of {total} runs have ended; the same command resumes") from None
    for run in requested:
        run.record = runs[run.path].record
    if failures:
        named = [f"{runs[path].title} ({error})" for path, error in failures.items()][:SHOWN]
        more = f" and {len(failures) - SHOWN} more" if len(failures) > SHOWN else ""
        message = f"{len(failures)} of {len(runs)} runs failed, see error.txt in their folders: {'; '.join(named)}"
        raise GridError(message + more, requested)
    return requested


def writable(place: str | Path) -> str | Path:
    """Make the folder of all runs, or check that the store can be written to; return its plain name."""
    place = plain(place)
    if isinstance(place, Path):
        place.mkdir(parents=True, exist_ok=True)
    else:
        from .transport import connect

        connect(place).check()
    return place


def _train(
    train: Callable[[Run], None], runs: list[Run], jobs: int, executor: Submits | str | None, resume: bool, bars: bool
) -> Generator[tuple[Run, Outcome], None, None]:
    """Yield each run with its outcome; unless ``resume``, delete the runs as soon as they can be trained."""

    def empty() -> None:
        for run in () if resume else runs:
            with suppress(BusyError), run.lock(fresh=True):  # else another process is training it
                pass

    if executor in (None, LOCAL) and (jobs == 1 or len(runs) == 1):
        empty()
        yield from ((run, attempt(train, run, bars)) for run in runs)
        return
    from .remote import train_on

    setup = pack(train, bars)
    opened: AbstractContextManager[Submits]
    variables = {}
    if executor is None or executor == LOCAL:
        opened = ThreadPoolExecutor(min(jobs, len(runs)))
        variables["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS") or str(max(1, torch.get_num_threads() // jobs))
    elif isinstance(executor, str):
        opened = executors.opened(executor, runs[0].folder.root)
    else:
        opened = nullcontext(executor)
    with opened as there:
        empty()
        yield from train_on(there, setup, runs, bars, **variables)
