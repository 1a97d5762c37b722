"""Train runs: in this process, or in a process that trains several, one after the other.

A fresh process for every run would be simpler, but importing a framework takes longer than a short run. The parent
sends each run as a pickle to the standard input of a worker, which answers with the outcome on its standard output.
A worker runs in a session of its own, where Ctrl-C does not reach it; the parent ends it. When the parent dies, the
worker's input ends, and so does the worker.
"""

import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import spawn
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO, NamedTuple

from .errors import BusyError
from .progress import plain_warnings, print_line
from .reproduce import seed_everything, versions
from .run import Run

PATIENCE = 20.0  # seconds that a worker has to save its work when it is interrupted
WATCH = 1.0  # seconds between two looks at whether a worker is still wanted

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


class Outcome(NamedTuple):
    """How an attempt ended: busy (another process is training the run), a one-line error, or success (neither)."""

    busy: bool = False
    error: str = ""


def attempt(train: Callable[[Run], None], run: Run, progress: bool) -> Outcome:
    """Train a run in this process, unless it is done or another process trains it, and record how that ended."""
    try:
        with run.lock():
            try:
                if not run.done:  # by another process, since the grid was read
                    _train(train, run, progress)
            except BusyError as error:  # the lease of this run has expired, and another process trains it
                print_line(str(error))
                raise
            except (Exception, KeyboardInterrupt, SystemExit) as error:
                # Python before 3.12 wraps a Ctrl-C where a class is created
                interrupt = error if isinstance(error, KeyboardInterrupt) else error.__cause__
                line = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                with suppress(OSError, BusyError):  # on a full disk, the error counts, not that it is unrecorded
                    if isinstance(interrupt, KeyboardInterrupt):
                        run.interrupt()
                    else:
                        run.fail(line, traceback.format_exc())
                if isinstance(interrupt, KeyboardInterrupt):
                    raise interrupt from None
                return Outcome(error=line)
            return Outcome()
    except BusyError:
        return Outcome(busy=True)


def _train(train: Callable[[Run], None], run: Run, progress: bool) -> None:
    recorded, current = run.record.get("versions", {}), versions()
    if changed := [name for name, version in recorded.items() if current.get(name, version) != version]:
        print_line(f"{run.title}: resumes with another version of {', '.join(changed)} than it began with")
    run.progress = progress
    run.begin()
    seed_everything(run.arguments["seed"])
    train(run)
    if not run.done:
        raise RuntimeError("the training function returned without run.finish(result)")


def pack(train: Callable[[Run], None], progress: bool) -> bytes:
    """Return the setup with which a :class:`Worker` imports this process's script and trains its runs."""
    preparation = spawn.get_preparation_data("worker")
    preparation.pop("authkey", None)  # only multiprocessing may pickle it
    try:
        return pickle.dumps(preparation) + pickle.dumps((train, progress))
    except Exception as error:
        raise ValueError(f"train: other processes cannot import the training function: {error}") from None


class Worker:
    """A process that trains runs, set up by :func:`pack`, and is interrupted once ``wanted`` returns False."""

    def __init__(self, setup: bytes, environment: dict[str, str], wanted: Callable[[], bool]) -> None:
        command, pipe = [sys.executable, "-c", _START], subprocess.PIPE
        variables = {**os.environ, **environment, "TQDM_DISABLE": "1"}  # bars of several processes would overlap
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=variables, start_new_session=True)
        self._write(setup)
        threading.Thread(target=self._watch, args=(wanted,), daemon=True).start()

    def train(self, store: str | Path, arguments: dict[str, object]) -> Outcome:
        """Train a run; raises ``ConnectionError`` if the process dies."""
        assert self.process.stdout is not None
        self._write(pickle.dumps((store, arguments)))
        try:
            return pickle.load(self.process.stdout)  # type: ignore[no-any-return]
        except (EOFError, pickle.UnpicklingError, ValueError):  # the last one if it is closed meanwhile
            code = self.process.wait()
            how = f"died of signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise ConnectionError(f"its process {how}") from None

    def _watch(self, wanted: Callable[[], bool]) -> None:
        while self.process.poll() is None and wanted():
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(WATCH)
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
        with suppress(BrokenPipeError):
            self.process.communicate()  # closes its pipes

    def _write(self, message: bytes) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has died, which train finds
            self.process.stdin.write(message)
            self.process.stdin.flush()


def main(requests: BinaryIO, replies: BinaryIO) -> None:
    """Train the runs that the parent sends."""
    train, progress = pickle.load(requests)  # imports frameworks; SIGTERM still ends the process at once
    cells: SimpleQueue[tuple[str | Path, dict[str, object]]] = SimpleQueue()

    def read() -> None:
        with suppress(EOFError):
            while True:
                cells.put(pickle.load(requests))
        os._exit(1)  # the parent has died

    threading.Thread(target=read, daemon=True).start()
    with plain_warnings(), suppress(BrokenPipeError, KeyboardInterrupt):
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # from now on training cleans up
        while True:
            pickle.dump(attempt(train, Run(*cells.get()), progress), replies)
            replies.flush()
