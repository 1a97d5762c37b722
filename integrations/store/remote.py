"""Grids on a cluster: each run is a task of an executor, and its outcome comes back through the store.

A task is plain data: the pickled reference to the training function, the folder of runs, and the cell. It trains in a
process of its own, as :mod:`.worker` does, so that workers with several threads do not share one random stream.
"""

from __future__ import annotations

import os
import platform
import re
import threading
import time
import uuid
from collections.abc import Callable, Generator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from .attempt import Outcome
from .errors import BusyError, StoreError
from .progress import print_line
from .run import Run
from .transport import connect
from .worker import Worker, death, pack, record_error

ATTEMPTS = 3  # how often in a row a run may be lost without a new checkpoint
POLL = 0.2  # seconds between two looks at the tasks
WATCH = 1.0  # seconds between two looks of a task at whether it is still wanted
# Environment variables that tasks get. Tasks are written where they are queued, so none of these is a secret: keys and
# tokens come from the worker's own environment.
PASSED_ON = (
    "COUNTERPOINT_CACHE", "COUNTERPOINT_DATA", "COUNTERPOINT_LEASE", "MUJOCO_GL",
    "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE",
    "WANDB_MODE", "WANDB_ENTITY", "WANDB_PROJECT", "WANDB_DIR", "WANDB_BASE_URL",
    "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "TRACKIO_PROJECT",
    "AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION",
)  # fmt: skip


class Task(Protocol):
    """What an executor returns: a future of the standard library, or a job of submitit."""

    def done(self) -> bool: ...
    def result(self) -> Any: ...
    def cancel(self) -> Any: ...


class Submits(Protocol):
    """An executor: of :mod:`concurrent.futures`, Dask or submitit. Its ``batch()`` is used if it has one."""

    def submit(self, function: Callable[..., Any], /, *args: Any) -> Any: ...


class Lost(NamedTuple):
    """The reply of a task that could not say how its run ended; ``fatal`` if no other task can do better."""

    error: str
    fatal: bool = False


# ---- where the grid was started ----------------------------------------------------------------


def train_on(
    executor: Submits, train: Callable[[Run], None], runs: list[Run], resume: bool, progress: bool
) -> Generator[tuple[Run, Outcome], None, None]:
    """Train each run as a task; yield each run with its outcome, in the order in which they end.

    A task that is lost, with its worker or to pre-emption, is submitted again and resumes from the last checkpoint.
    Closing the generator cancels the tasks; those in progress notice it within seconds, and save their work.
    """
    setup = pack(train, resume=True, progress=False)
    losses = {run.address: 0 for run in runs}
    tasks: list[tuple[Run, Task, object]] = []
    store = runs[0].store
    root = str(store.resolve()) if isinstance(store, Path) else store  # as every machine finds it
    token = f".grid-{uuid.uuid4().hex[:12]}"  # a file that is there as long as the tasks are wanted

    def submit(run: Run) -> tuple[Run, Task, object]:
        return run, executor.submit(train_here, setup, _environment(), token, root, run.arguments), _saved(run)

    try:
        connect(root).create(token, b"")
        pending = [run for run in runs if resume or _empty(run)]
        yield from ((run, Outcome(busy=True)) for run in runs if run not in pending)
        with getattr(executor, "batch", nullcontext)():
            tasks += map(submit, pending)
        while tasks:
            for entry in [entry for entry in tasks if entry[1].done()]:
                tasks.remove(entry)
                run, task, saved = entry
                outcome = _reply(run, task)
                if isinstance(outcome, Outcome):
                    yield run, outcome
                    continue
                if outcome.fatal:
                    raise ValueError(f"executor: {outcome.error}")
                losses[run.address] = losses[run.address] + 1 if saved == _saved(run) else 1
                if losses[run.address] < ATTEMPTS:
                    with suppress(Exception):  # Slurm may have put the job into its queue again
                        task.cancel()
                    if progress:
                        print_line(f"{run.title}: submitted again: {outcome.error}")
                    tasks.append(submit(run))
                else:
                    yield run, record_error(run, f"lost {ATTEMPTS} times in a row: {outcome.error}")
            time.sleep(POLL if tasks else 0)
    finally:
        for _, task, _ in tasks:
            with suppress(Exception):  # of any library; without the token, they end
                task.cancel()
        connect(root).write(token, None)


def _environment() -> dict[str, str]:
    """The variables of :data:`PASSED_ON`; not a URL with a user's name or password in it."""
    found = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {name: value for name, value in found.items() if not re.search(r"://[^/]*@", value)}


def _empty(run: Run) -> bool:
    """Empty the folder of a run; return False if another process is training it."""
    try:
        with run.lock(fresh=True):
            return True
    except BusyError:
        return False


def _saved(run: Run) -> object:
    """Return what changes with each checkpoint."""
    name = run.folder.name
    return connect(run.store).list(name).get(f"{name}/checkpoint.pt")


def _reply(run: Run, task: Task) -> Outcome | Lost:
    """Return how a task ended. The store decides, since a worker may die after its run has finished."""
    try:
        reply = task.result()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # CancelledError among them; each library has exceptions of its own
        run.refresh()
        lines = str(error).strip().splitlines()
        return Outcome() if run.done else Lost(f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}")
    return reply  # type: ignore[no-any-return]


# ---- on a worker -------------------------------------------------------------------------------


def train_here(
    setup: bytes, environment: dict[str, str], token: str, root: str, arguments: dict[str, Any]
) -> Outcome | Lost:
    """Train one run in a process of its own, as long as the token exists."""
    if not _wanted(root, token):
        return Lost(f"{platform.node()}, a worker, does not see the folder of runs {root}.", fatal=True)
    worker = Worker(setup, {**os.environ, **environment})
    ended, outcome = threading.Event(), None

    def watch() -> None:
        while not ended.wait(WATCH):
            if not _wanted(root, token):
                worker.end(interrupt=True)
                return

    threading.Thread(target=watch, daemon=True).start()
    try:
        outcome = worker.train(root, arguments)
    finally:
        ended.set()
        worker.end(interrupt=outcome is None)
        code = worker.wait()
    return Lost(death(code)) if outcome is None else outcome


def _wanted(root: str, token: str) -> bool:
    """Return whether the token is there, or may be in a store that cannot be asked just now."""
    try:
        connect(root).read(token)
    except FileNotFoundError:
        return False
    except StoreError:
        pass
    return True
