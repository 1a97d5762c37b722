"""Grids in several processes, of this machine or of a cluster: each run is a task of an executor.

A task is plain data: the pickled reference to the training function, the folder of runs, and the cell. It trains in a
process of its own (:mod:`.worker`), so that workers with several threads do not share one random stream.
"""

import platform
import threading
import time
import uuid
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path

from .errors import BusyError, StoreError
from .executors import Submits
from .progress import print_line
from .run import Run
from .transport import connect
from .worker import Outcome, Worker

ATTEMPTS = 3  # how often in a row a run may be lost without a new checkpoint
POLL = 0.2  # seconds between two looks at the tasks

_of_thread = threading.local()  # the worker of each thread that trains


def train_on(
    executor: Submits, setup: bytes, runs: list[Run], progress: bool, **variables: str
) -> Generator[tuple[Run, Outcome], None, None]:
    """Train each run as a task; yield each run with its outcome, in the order in which they end.

    ``setup`` is of :func:`.worker.pack`.
    A task that is lost, with its worker or to pre-emption, is submitted again and resumes from the last checkpoint.
    Closing the generator cancels the tasks; those in progress notice it within seconds, and save their work.
    ``variables`` are of the environment in which tasks train, beside those of their worker.
    """
    losses = {run.address: 0 for run in runs}
    pending, tasks = runs, list[tuple[Run, Future[Outcome], float]]()
    store = runs[0].folder.store
    root = str(store.resolve()) if isinstance(store, Path) else store  # as every machine finds it
    token = f".grid-{uuid.uuid4().hex[:12]}"  # a file that is there as long as the tasks are wanted

    def submit(run: Run) -> tuple[Run, Future[Outcome], float]:
        return run, executor.submit(train_here, setup, variables, token, root, run.arguments), _saved(run)

    try:
        connect(root).create(token, b"")
        while tasks or pending:
            with getattr(executor, "batch", nullcontext)() if pending else nullcontext():
                tasks += map(submit, pending)
            pending = []
            for entry in [entry for entry in tasks if entry[1].done()]:
                tasks.remove(entry)
                run, task, saved = entry
                outcome = _reply(run, task)
                if isinstance(outcome, Outcome):
                    yield run, outcome
                    continue
                losses[run.address] = losses[run.address] + 1 if saved == _saved(run) else 1
                if losses[run.address] < ATTEMPTS:
                    with suppress(Exception):  # Slurm may have put the job into its queue again
                        task.cancel()
                    if progress:
                        print_line(f"{run.title}: submitted again: {outcome}")
                    pending.append(run)
                else:
                    error = f"lost {ATTEMPTS} times in a row: {outcome}"
                    with suppress(BusyError, OSError), run.lock():
                        run.fail(error, f"{error}\n")
                    yield run, Outcome(error=error)
            time.sleep(POLL if tasks else 0)
    finally:
        for _, task, _ in tasks:
            with suppress(Exception):  # of any library; without the token, they end
                task.cancel()
        connect(root).write(token, None)


def _saved(run: Run) -> float:
    """Return when the last checkpoint was written."""
    return connect(run.folder.store).written(f"{run.folder.name}/checkpoint.pt")


def _reply(run: Run, task: Future[Outcome]) -> Outcome | str:
    """Return how a task ended, or why it is lost. The store decides: a worker may die after its run has finished."""
    try:
        return task.result()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # CancelledError among them; each library has exceptions of its own
        run.refresh()
        lines = str(error).strip().splitlines()
        return Outcome() if run.done else f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"


def train_here(setup: bytes, variables: dict[str, str], token: str, root: str, arguments: dict[str, object]) -> Outcome:
    """Train one run in the process of this thread, as long as the token exists."""
    if not _wanted(root, token):
        raise FileNotFoundError(f"{platform.node()}, a worker, does not see the folder of runs {root}.")
    grid, worker = getattr(_of_thread, "worker", ("", None))
    if worker is None or grid != token or worker.process.poll() is not None:
        worker = Worker(setup, variables, partial(_wanted, root, token))
        _of_thread.worker = token, worker
    return worker.train(root, arguments)


def _wanted(root: str, token: str) -> bool:
    """Return whether the token is there, or may be in a store that cannot be asked just now."""
    with suppress(StoreError):
        return connect(root).written(token) > 0
    return True
