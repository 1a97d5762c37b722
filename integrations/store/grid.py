"""Grids of runs: train every cell that is not done yet, in one or several processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch

from .progress import _bar, _numbers, _say, plain_warnings
from .reproduce import seed_everything, versions
from .run import BusyError, Run

POLL = 1.0

PATIENCE = 20.0  # seconds that a process has to put away its work

SHOWN = 5


class GridError(RuntimeError):
    """Some runs of a grid have failed; :attr:`runs` holds all of them, with what the others found."""

    def __init__(self, message: str, runs: list[Run]) -> None:
        super().__init__(message)
        self.runs = runs


def run_grid(
    train: Callable[[Run], None],
    cells: Iterable[Mapping[str, Any]],
    root: str | Path,
    *,
    jobs: int = 1,
    resume: bool = True,
    progress: bool = True,
    before: int = 0,
    total: int | None = None,
) -> list[Run]:
    """Trains every cell that is not done yet, and returns the runs of all.

    Each run begins with :func:`seed_everything` of its seed. One that fails does not stop the others; at the end a
    :class:`GridError` says which did. Cells that another process works on are left to it, and waited for. Whatever
    ends this process, the same call goes on from the last checkpoints.

    Args:
        train: trains one run and calls its ``finish``; for ``jobs`` above 1 a function that other processes can import.
        cells: see this module's documentation; equal ones are one run.
        root: the folder of all runs.
        jobs: processes at a time, at least 1. They share the threads of this one, unless ``OMP_NUM_THREADS`` is set;
            sums over another number of threads may round differently.
        resume: if false, every cell is done anew, and what its folder holds is deleted.
        progress: whether to say on stderr how far it is.
        before, total: of a grid that is a part of something longer, the runs before it, and those there may be at most.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}.")
    Path(root).mkdir(parents=True, exist_ok=True)
    asked = [Run(root, cell) for cell in cells]
    runs = {run.path: run for run in asked}
    todo = [run for run in runs.values() if not (resume and run.done)]
    count, total = before + len(runs) - len(todo), total or len(runs)
    failed: dict[Path, str] = {}
    say = _say if progress else lambda _: None
    if count > before:
        say(f"{count} of {total} runs are done already")
    bar = _bar("runs", total, count) if progress else None
    try:
        while todo:
            busy = []
            with closing(_outcomes(train, todo, jobs, resume, progress)) as outcomes:
                for run, outcome in outcomes:
                    if outcome == BUSY:
                        busy.append(run)
                        continue
                    run.record = run._read_record()
                    count += 1
                    if outcome:
                        failed[run.path] = outcome
                    said = f"failed: {outcome}" if outcome else _numbers(run.result or {})
                    say(f"[{count}/{total}] {run.title}: {said}")
                    if bar is not None:
                        bar.update()
            if busy:
                say(f"waiting for another process: {busy[0].title}" + (" and others" if len(busy) > 1 else ""))
            while busy and all(map(_is_busy, busy)):
                time.sleep(POLL)
            todo = busy
    except KeyboardInterrupt:
        said = f"stopped; {count} of {total} runs are over, and the same command goes on from here"
        raise KeyboardInterrupt(said) from None
    finally:
        if bar is not None:
            bar.close()
    for run in asked:
        run.record = runs[run.path].record
    if failed:
        named = [f"{runs[path].title} ({why})" for path, why in failed.items()]
        more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
        said = f"{len(failed)} of {len(runs)} runs failed, see error.txt in their folders: {'; '.join(named[:SHOWN])}"
        raise GridError(said + more, asked)
    return asked


BUSY = "busy"


def _outcomes(
    train: Callable[[Run], None], todo: list[Run], jobs: int, resume: bool, progress: bool
) -> Generator[tuple[Run, str], None, None]:
    """Each run with BUSY, what went wrong, or nothing."""
    if jobs > 1 and len(todo) > 1:
        return _spread(train, todo, min(jobs, len(todo)), resume, progress)
    return ((run, _attempt(train, run, resume, progress)) for run in todo)


def _attempt(train: Callable[[Run], None], run: Run, resume: bool, progress: bool) -> str:
    try:
        with run.lock(fresh=not resume):
            # another process may have done it, since this one looked
            return "" if run.done else _train(train, run, progress)
    except BusyError:
        return BUSY


def _train(train: Callable[[Run], None], run: Run, progress: bool) -> str:
    """Trains one run, and keeps what went wrong in its folder."""
    error_file, began, now = run.path / "error.txt", run.record.get("versions", {}), versions()
    changed = [name for name, version in began.items() if now.get(name, version) != version]
    try:
        if changed:
            _say(f"{run.title}: goes on with another version of {', '.join(changed)} than it began with")
        error_file.unlink(missing_ok=True)
        run.progress = progress
        run._begin()
        seed_everything(run.arguments["seed"])
        train(run)
        if not run.done:
            raise RuntimeError("the training function returned without run.finish(result)")
    except KeyboardInterrupt:
        with suppress(OSError):
            run._write(status="interrupted", **run._ending())
        raise
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        with suppress(OSError):  # a full disk, which then is the error that is told
            error_file.write_text(traceback.format_exc(), encoding="utf-8")
            run._write(status="failed", result=None, details=None, error=said, **run._ending())
        return said
    return ""


def _spread(
    train: Callable[[Run], None], todo: list[Run], jobs: int, resume: bool, progress: bool
) -> Generator[tuple[Run, str], None, None]:
    """The outcomes from ``jobs`` processes. One that dies fails its run, and another takes its place."""
    try:
        ForkingPickler.dumps(train)
    except Exception as error:
        raise ValueError(f"jobs={jobs}: other processes cannot import the training function: {error}") from None
    context = multiprocessing.get_context("spawn")
    waiting = deque(todo)
    workers: dict[Any, SpawnProcess] = {}
    working: dict[Any, Run] = {}
    try:
        while waiting or working:
            while waiting and len(working) < jobs:
                idle = [connection for connection in workers if connection not in working]
                if not idle:
                    ours, theirs = context.Pipe()
                    process = context.Process(target=_work, args=(theirs, train, resume, progress))
                    with _threads(max(1, torch.get_num_threads() // jobs)), _deaf():
                        process.start()
                    theirs.close()
                    workers[ours] = process
                    idle = [ours]
                run = working[idle[0]] = waiting.popleft()
                with suppress(OSError):  # it died at once, as the next lines will find
                    idle[0].send((run.root, run.arguments))
            ready: list[Any] = wait(list(working))
            for connection in ready:
                run = working.pop(connection)
                try:
                    outcome = connection.recv()
                except (EOFError, ConnectionResetError):
                    outcome = _died(run, workers.pop(connection))
                yield run, outcome
    finally:
        for connection, process in workers.items():
            if connection in working:
                process.terminate()
            else:  # it returns
                connection.close()
        for process in workers.values():
            process.join(PATIENCE)
            process.kill()
            process.join()


def _died(run: Run, process: SpawnProcess) -> str:
    process.join()
    code = process.exitcode or 0
    said = f"its process died of signal {-code}" if code < 0 else f"its process ended with exit code {code}"
    with suppress(BusyError, OSError), run.lock():
        (run.path / "error.txt").write_text(said + "\n", encoding="utf-8")
        run._write(arguments=run.arguments, status="failed", error=said)
    return said


def _work(connection: Any, train: Callable[[Run], None], resume: bool, progress: bool) -> None:
    """A process that trains what it is sent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends this process
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so, with all that an interruption cleans up
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with plain_warnings(), suppress(EOFError, KeyboardInterrupt):
        while True:
            root, cell = connection.recv()
            connection.send(_attempt(train, Run(root, cell), resume, progress))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes started here do not hear Ctrl-C, not even while they import what they need."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # which otherwise starts with the first process, and then lets signals through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """The number of threads that a process started here will use, unless the user has chosen one."""
    if "OMP_NUM_THREADS" in os.environ:
        yield
        return
    os.environ["OMP_NUM_THREADS"] = str(count)
    try:
        yield
    finally:
        del os.environ["OMP_NUM_THREADS"]


def _is_busy(run: Run) -> bool:
    try:
        with run.lock():
            return False
    except BusyError:
        return True
