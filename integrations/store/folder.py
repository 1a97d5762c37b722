"""Stores and the folders of their runs: where files are, and who may write to them.

A store is a folder of this machine, whose runs have a :class:`RunFolder`, or the URL of an object store, whose runs
have a :class:`.mirror.Mirror`. Nothing here imports fsspec.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit
from urllib.request import url2pathname

from filelock import FileLock, Timeout  # torch itself requires it

from .errors import BusyError

S = TypeVar("S")
T = TypeVar("T")

AT_ONCE = 32  # records that are read at the same time


def plain(place: str | Path) -> str | Path:
    """Return a URL without a slash at its end, and everything else as a path; ``file://`` is a folder as any other."""
    scheme, separator, rest = str(place).partition("://")
    if isinstance(place, Path) or not separator or scheme == "hf":
        return Path(place)
    if scheme == "file":
        return Path(url2pathname(urlsplit(place).path))
    return f"{scheme}://{rest.rstrip('/')}"


def local(place: str | Path) -> Path:
    """Return the folder of this machine for a store that is a URL; a folder is its own."""
    place = plain(place)
    if isinstance(place, Path):
        return place
    root = os.environ.get("COUNTERPOINT_CACHE") or Path.home() / ".cache" / "counterpoint"
    return Path(root).absolute() / "stores" / hashlib.sha256(place.encode()).hexdigest()[:16]


class RunFolder:
    """A run's folder on this machine."""

    store: str | Path  # the folder of all runs, or its URL
    name: str  # the run's folder in it, such as ``graph/MUTAG/infonce-1a2b3c4d/seed0``
    root: Path  # of all runs, on this machine
    path: Path  # of this run, on this machine
    address: str  # the path or the URL of this run

    def __init__(self, store: Path, name: str, path: Path | None = None) -> None:
        self.store = self.root = store
        self.name, self.path = name, path or store / name
        self.address = str(self.path)

    def record(self) -> bytes | None:
        """Return the content of run.json, None if there is none."""
        with suppress(FileNotFoundError):
            return (self.path / "run.json").read_bytes()
        return None

    def file(self, name: str) -> Path:
        """Return the path of a file or a folder of the run, which need not exist."""
        return self.path / name

    def push(self) -> None:
        """Publish the files that were written."""

    @property
    def busy(self) -> bool:
        """Whether another process holds the folder; False if it cannot be written to."""
        try:
            with self.held():
                return False
        except (BusyError, OSError) as error:
            return isinstance(error, BusyError)

    @contextmanager
    def held(self, fresh: bool = False) -> Iterator[None]:
        """Hold the folder, or raise :class:`BusyError`; ``fresh`` empties it first.

        The operating system frees the lock of a process that dies.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            lock = FileLock(self.path / ".lock").acquire(timeout=0)
        except Timeout:
            raise BusyError(f"{self.path}: held by another process") from None
        with lock:
            for path in [*self.path.iterdir()] if fresh else ():
                if path.name != ".lock":
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            yield


def at_once(read: Callable[[S], T], places: Iterable[S]) -> list[T]:
    """Call a function that reads from a store, at several places at the same time."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [*pool.map(read, places)]
