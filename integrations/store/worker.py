"""Processes that train runs: several runs each, one after the other.

A fresh process for every run would be simpler, but importing a framework takes longer than a short run. The parent
sends each run as a pickle to the standard input of a worker, which answers with the outcome on its standard output.
A worker runs in a session of its own, where Ctrl-C does not reach it; the parent ends it. When the parent dies, the
worker's input ends, and so does the worker.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from multiprocessing import spawn
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO, TypeAlias

import torch

from .attempt import Outcome, attempt
from .errors import BusyError
from .progress import hide_bars, plain_warnings
from .run import Run

Cells: TypeAlias = "SimpleQueue[tuple[str | Path, dict[str, Any]] | None]"

PATIENCE = 20.0  # seconds that a worker has to save its work when it is interrupted

# What a worker starts with. Its input and output are the parent's; what training prints goes to stderr. ``prepare``
# sets sys.path and sys.argv and imports the parent's script, where the training function may be defined.
_START = """
import os, pickle
from multiprocessing import spawn
requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(2, 1)
spawn.prepare(pickle.load(requests))
from counterpoint.integrations.store import worker
worker.main(requests, replies)
"""


# ---- in the parent -----------------------------------------------------------------------------


def train_in_processes(
    train: Callable[[Run], None], runs: list[Run], jobs: int, resume: bool, progress: bool
) -> Generator[tuple[Run, Outcome], None, None]:
    """Train runs in ``jobs`` processes; yield each run with its outcome, in the order in which they end.

    A process that dies fails the run that it was training, and a new one takes its place. Closing the generator
    interrupts the runs in progress.
    """
    setup = pack(train, resume, progress)
    environment = {"OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // jobs)), **os.environ}
    workers, own, closing = list[Worker](), threading.local(), threading.Event()

    def train_one(run: Run) -> Outcome:
        """Train a run in the process of this thread."""
        worker: Worker | None = getattr(own, "worker", None)
        if worker is None or worker.process.poll() is not None:  # it may have died while it had nothing to do
            worker = own.worker = Worker(setup, environment)
            workers.append(worker)
        outcome = None if closing.is_set() else worker.train(run.store, run.arguments)
        if outcome is not None or closing.is_set():
            return outcome or Outcome()
        return record_error(run, death(worker.wait()))

    with ThreadPoolExecutor(jobs) as threads:
        tasks = {threads.submit(train_one, run): run for run in runs}
        try:
            for task in as_completed(tasks):
                yield tasks[task], task.result()
        finally:
            closing.set()
            interrupted = [task for task in tasks if not task.cancel() and not task.done()]
            alive = [worker for worker in workers if worker.process.poll() is None]
            for worker in alive:
                worker.end(interrupt=bool(interrupted))
            for worker in alive:
                worker.wait()


def pack(train: Callable[[Run], None], resume: bool, progress: bool) -> bytes:
    """Return what a :class:`Worker` needs to import this process's script, and to train its runs."""
    preparation = spawn.get_preparation_data("worker")
    preparation.pop("authkey", None)  # only multiprocessing may pickle it
    try:
        return pickle.dumps(preparation) + pickle.dumps((train, resume, progress))
    except Exception as error:
        raise ValueError(f"train: other processes cannot import the training function: {error}") from None


class Worker:
    """A process that trains runs.

    Args:
        setup: what :func:`pack` returned.
        environment: its environment variables.
    """

    def __init__(self, setup: bytes, environment: dict[str, str]) -> None:
        command, pipe = [sys.executable, "-c", _START], subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, start_new_session=True)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.requests, self.replies = self.process.stdin, self.process.stdout
        self._write(setup)

    def train(self, store: str | Path, arguments: dict[str, Any]) -> Outcome | None:
        """Train a run and return its outcome, or None if the process dies."""
        self._write(pickle.dumps((store, arguments)))
        try:
            return pickle.load(self.replies)  # type: ignore[no-any-return]
        except (EOFError, pickle.UnpicklingError, ValueError):  # the last one if it is closed meanwhile
            return None

    def end(self, interrupt: bool) -> None:
        """Ask the process to end, now or when it has nothing to do."""
        if interrupt:
            self.process.terminate()
        else:
            self._write(pickle.dumps(None))

    def wait(self) -> int:
        """Wait until the process has ended, kill it if that takes too long, and return its exit code."""
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
        with suppress(BrokenPipeError):  # the process may have died before it read everything
            self.requests.close()
        code = self.process.wait()
        self.replies.close()
        return code

    def _write(self, message: bytes) -> None:
        with suppress(BrokenPipeError):  # it has died, which train finds
            self.requests.write(message)
            self.requests.flush()


def death(code: int) -> str:
    """Say how a process ended that should have gone on."""
    return f"its process died of signal {-code}" if code < 0 else f"its process ended with exit code {code}"


def record_error(run: Run, error: str) -> Outcome:
    """Record the failure of a run that nothing trains any more."""
    with suppress(BusyError, OSError), run.lock():
        run.fail(error, f"{error}\n")
    return Outcome(error=error)


# ---- in the worker -----------------------------------------------------------------------------


def main(requests: BinaryIO, replies: BinaryIO) -> None:
    """Train the runs that the parent sends, until it sends None."""
    train, resume, progress = pickle.load(requests)  # imports frameworks; SIGTERM still ends the process at once
    hide_bars()
    cells: Cells = SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests, cells), daemon=True).start()
    with plain_warnings(), suppress(BrokenPipeError, KeyboardInterrupt):
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # from now on training cleans up
        while (cell := cells.get()) is not None:
            pickle.dump(attempt(train, Run(*cell), resume, progress), replies)
            replies.flush()


def _read_requests(requests: BinaryIO, cells: Cells) -> None:
    try:
        while (cell := pickle.load(requests)) is not None:
            cells.put(cell)
        cells.put(None)
    except EOFError:  # the parent has died
        os._exit(1)
