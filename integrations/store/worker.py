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
from collections import deque
from collections.abc import Callable, Generator
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

Replies: TypeAlias = "SimpleQueue[tuple[Worker, Outcome | None]]"
Cells: TypeAlias = "SimpleQueue[tuple[Path, dict[str, Any]] | None]"

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
    replies: Replies = SimpleQueue()
    waiting, training, idle = deque(runs), dict[Worker, Run](), list[Worker]()
    try:
        while waiting or training:
            while waiting and len(training) < jobs:
                worker = idle.pop() if idle else Worker(setup, environment, replies)
                training[worker] = waiting.popleft()
                worker.send(training[worker])
            worker, outcome = replies.get()
            if worker not in training:  # it died while it had nothing to do
                idle.remove(worker)
                worker.wait()
                continue
            run = training.pop(worker)
            if outcome is None:
                yield run, record_error(run, death(worker.wait()))
            else:
                idle.append(worker)
                yield run, outcome
    finally:
        for worker in training:
            worker.process.terminate()
        for worker in idle:
            worker.send(None)
        for worker in (*training, *idle):
            worker.wait()


def pack(train: Callable[[Run], None], resume: bool, progress: bool) -> bytes:
    """Return what a :class:`Worker` needs to import this process's script, and to train its runs."""
    try:
        return pickle.dumps(_preparation()) + pickle.dumps((train, resume, progress))
    except Exception as error:
        raise ValueError(f"train: other processes cannot import the training function: {error}") from None


class Worker:
    """A process that trains runs; ``replies`` receives it with the outcome of each run, and with None if it dies."""

    def __init__(self, setup: bytes, environment: dict[str, str], replies: Replies) -> None:
        command, pipe = [sys.executable, "-c", _START], subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, start_new_session=True)
        self._write(setup)
        threading.Thread(target=self._receive, args=(replies,), daemon=True).start()

    def send(self, run: Run | None) -> None:
        """Ask for a run to be trained; None ends the process."""
        self._write(pickle.dumps(run and (run.store, run.arguments)))

    def wait(self) -> int:
        """Wait until the process has ended, kill it if that takes too long, and return its exit code."""
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the process may have died before it read everything
            self.process.stdin.close()
        return self.process.wait()

    def _write(self, message: bytes) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has died, which _receive reports
            self.process.stdin.write(message)
            self.process.stdin.flush()

    def _receive(self, replies: Replies) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as pipe, suppress(EOFError, pickle.UnpicklingError):
            while True:
                replies.put((self, pickle.load(pipe)))
        replies.put((self, None))


def _preparation() -> dict[str, Any]:
    data = spawn.get_preparation_data("worker")
    data.pop("authkey", None)  # only multiprocessing may pickle it
    return data


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
