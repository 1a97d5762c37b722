"""The folder of a run: where its files are, and who may write to them.

:class:`RunFolder` is a folder of this machine; where the store is a URL, :class:`.mirror.Mirror` takes its place.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout  # torch itself requires it

from .errors import BusyError

KEPT = (".lock", ".lease")  # in a folder that is emptied


class RunFolder:
    """A run's folder on this machine.

    Args:
        store: the folder of all runs.
        name: the run's folder in it, such as ``graph/MUTAG/infonce-1a2b3c4d/seed0``.
    """

    store: str | Path
    name: str
    root: Path  # of all runs, on this machine
    path: Path  # of this run, on this machine

    def __init__(self, store: Path, name: str) -> None:
        self.store = self.root = store
        self.name, self.path = name, store / name

    @property
    def address(self) -> str:
        """The path or the URL of the folder."""
        return str(self.path)

    def record(self) -> bytes | None:
        """Return the content of run.json, None if there is none."""
        try:
            return (self.path / "run.json").read_bytes()
        except FileNotFoundError:
            return None

    def file(self, name: str) -> Path:
        """Return the path of a file or a folder of the run, which need not exist."""
        return self.path / name

    def push(self) -> None:
        """Let others see what was written."""

    @property
    def busy(self) -> bool:
        """Whether another process holds the folder; False if it cannot be written to."""
        try:
            with self.held():
                return False
        except BusyError:
            return True
        except OSError:
            return False

    @contextmanager
    def held(self, fresh: bool = False) -> Iterator[None]:
        """Hold the folder, or raise :class:`BusyError`; the operating system frees that of a process that dies.

        Args:
            fresh: empty it first.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise BusyError(f"{self.path}: held by another process") from None
        try:
            for path in [*self.path.iterdir()] if fresh else ():
                if path.name not in KEPT:
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            yield
        finally:
            lock.release()
