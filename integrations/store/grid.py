"""Grids of runs: train every cell that is not done yet, in this process, in several, or on a cluster."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from . import executors
from .array import cell_number
from .attempt import Outcome, attempt
from .errors import GridError
from .executors import LOCAL
from .place import is_url, plain
from .progress import format_numbers, print_line, progress_bar
from .run import Run
from .worker import train_in_processes

if TYPE_CHECKING:
    from .remote import Submits

__all__ = ["GridError", "Later", "run_grid"]

POLL = 1.0  # seconds between two looks at the runs of other processes
REMOTE_POLL = 2.0  # where the store is a URL and each look is a request

SHOWN = 4  # failures named in an error message


class Later(NamedTuple):
    """A training function whose frameworks are imported when the first run is to be trained, and not if all are done.

    ``load`` returns the function, or raises what is wrong with its data.
    """

    load: Callable[[], Callable[[Run], None]]


def run_grid(
    train: Callable[[Run], None] | Later,
    cells: Iterable[Mapping[str, Any]],
    root: str | Path,
    *,
    jobs: int = 1,
    executor: Submits | str | None = None,
    resume: bool = True,
    progress: bool = True,
    before: int = 0,
    total: int | None = None,
) -> list[Run]:
    """Train every cell that is not done yet, and return the runs of all cells.

    :func:`seed_everything` is called with the seed of each run before it is trained. A run that fails does not stop the
    others; at the end a :class:`GridError` lists the failures. Runs that another process is training are left to it and
    waited for. Whatever ends this process, the same call resumes from the last checkpoints.

    Args:
        train: trains one run and calls its ``finish``. For ``jobs`` above 1, other processes must be able to import it.
            As :class:`Later`, it is imported only if there is a run to train.
        cells: see :mod:`counterpoint.integrations.store`; equal cells are one run.
        root: the folder of all runs, or its URL (``s3://bucket/runs``), which several machines may share.
        jobs: processes at a time, at least 1. They share the threads of this one, unless ``OMP_NUM_THREADS`` is set;
            with another number of threads, sums may be rounded differently.
        executor: where to train instead: any :class:`concurrent.futures.Executor` or executor of submitit, each run
            being a task, or a place as ``--on`` names it (``slurm:partition=gpu``). Its workers must see ``root`` under
            the same path. A task whose worker is lost is submitted again, and resumes from the last checkpoint.
        resume: if False, train every cell again and delete what its folder contains.
        progress: show progress on stderr.
        before, total: if the grid is part of a longer sequence, the runs before it and the most there can be in all.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}.")
    root = prepare(root)
    requested = _open(root, cells)
    runs = {run.path: run for run in requested}
    pending = [run for run in runs.values() if not (resume and run.done)]
    count, total = before + len(runs) - len(pending), total or len(runs)
    failures: dict[Path, str] = {}
    report = print_line if progress else lambda _: None
    if count > before:
        report(f"{count} of {total} runs are done already")
    bar = progress_bar("runs", total, count) if progress else None
    try:
        while pending:
            if isinstance(train, Later):
                train = train.load()
            busy = []
            with closing(_train(train, pending, jobs, executor, resume, progress)) as outcomes:
                for run, outcome in outcomes:
                    if outcome.busy:
                        busy.append(run)
                        continue
                    run.refresh()
                    count += 1
                    if outcome.error:
                        failures[run.path] = outcome.error
                    ending = f"failed: {outcome.error}" if outcome.error else format_numbers(run.result or {})
                    report(f"[{count}/{total}] {run.title}: {ending}")
                    if bar is not None:
                        bar.update()
            if busy:
                report(f"waiting for another process: {busy[0].title}" + (" and others" if len(busy) > 1 else ""))
            while busy and all(run.busy for run in busy):
                time.sleep(REMOTE_POLL if is_url(root) else POLL)
            pending = busy
    except KeyboardInterrupt:
        message = f"stopped; {count} of {total} runs have ended; the same command resumes"
        raise KeyboardInterrupt(message) from None
    finally:
        if bar is not None:
            bar.close()
    for run in requested:
        run.record = runs[run.path].record
    if failures:
        named = [f"{runs[path].title} ({error})" for path, error in failures.items()][:SHOWN]
        more = f" and {len(failures) - SHOWN} more" if len(failures) > SHOWN else ""
        message = f"{len(failures)} of {len(runs)} runs failed, see error.txt in their folders: {'; '.join(named)}"
        raise GridError(message + more, requested)
    return requested


def prepare(place: str | Path) -> str | Path:
    """Make the folder of all runs, or check that the store can be written to; return its plain name."""
    place = plain(place)
    if isinstance(place, Path):
        place.mkdir(parents=True, exist_ok=True)
    else:
        from .transport import connect

        connect(place).check()
    return place


def distinct(root: str | Path, cells: Iterable[Mapping[str, Any]]) -> list[Run]:
    """Return the runs of a grid in the order in which ``--cell`` numbers them; equal cells are one run."""
    return list({run.address: run for run in _open(root, cells)}.values())


def grid_options(arguments: Namespace) -> dict[str, Any]:
    """Return what the flags of a command tell :func:`run_grid`."""
    options = {"jobs": arguments.jobs, "executor": arguments.on, "resume": arguments.resume}
    return {**options, "progress": not arguments.json}


def chosen(cells: Sequence[Mapping[str, Any]], arguments: Namespace) -> Sequence[Mapping[str, Any]]:
    """Return the cell that ``--cell`` chooses, or all; with ``--list-cells``, print them and exit."""
    number, listed = cell_number(arguments), getattr(arguments, "list_cells", False)
    if number is None and not listed:
        return cells
    runs = distinct(arguments.out, cells)
    if listed:
        rows = [{"cell": i, "run": run.title, "folder": run.address} for i, run in enumerate(runs)]
        lines = [f"{row['cell']}  {row['run']}" for row in rows]
        print(json.dumps(rows, indent=1) if arguments.json else "\n".join(lines))
        raise SystemExit(0)
    assert number is not None
    if number >= len(runs):
        raise ValueError(f"--cell: expected a number from 0 to {len(runs) - 1}, got {number}.")
    return [runs[number].arguments]


def _open(root: str | Path, cells: Iterable[Mapping[str, Any]]) -> list[Run]:
    """Return the run of each cell; the records of a store that is a URL are read at once."""
    root, known = plain(root), None
    if isinstance(root, str):
        from .mirror import records

        known = records(root)
    return [Run(root, cell, known) for cell in cells]


def _train(
    train: Callable[[Run], None],
    runs: list[Run],
    jobs: int,
    executor: Submits | str | None,
    resume: bool,
    progress: bool,
) -> Generator[tuple[Run, Outcome], None, None]:
    """Yield each run with its outcome."""
    if executor not in (None, LOCAL):
        from .remote import train_on

        with executors.opened(executor, runs[0].root) if isinstance(executor, str) else nullcontext(executor) as there:
            yield from train_on(there, train, runs, resume, progress)
    elif jobs > 1 and len(runs) > 1:
        yield from train_in_processes(train, runs, min(jobs, len(runs)), resume, progress)
    else:
        for run in runs:
            yield run, attempt(train, run, resume, progress)
