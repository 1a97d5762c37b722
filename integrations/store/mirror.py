"""Runs whose store is a URL, such as ``s3://bucket/runs``: trained in a folder of this machine, and kept in step.

The folder is below ``$COUNTERPOINT_CACHE``, by default ``~/.cache/counterpoint``: ``work`` for the runs that this
machine trains, ``read`` for what is read of others. The store is what counts; both may be deleted when nothing is
trained. A process that trains a run holds a lease on it (:mod:`.lease`), and a thread of it renews that.

Files are written in an order in which one that is there needs none that is not: the rest, then ``metrics.jsonl``,
``checkpoint.pt``, and ``run.json`` last.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from .errors import BusyError
from .folder import RunFolder
from .lease import Lease, seconds
from .transport import connect, local, local_path

HERE = (".lock", ".lease", "work", "checkpoint.previous.pt")  # of a run's folder, never sent
LAST = ("metrics.jsonl", "checkpoint.pt", "run.json")  # sent last, in this order
DEPTH = 4  # of a run's folder in its store
AT_ONCE = 32  # records that are read at the same time


class Mirror(RunFolder):
    """A run's folder in a store that is a URL, and its copy on this machine.

    Args:
        store: the URL of the folder of all runs.
        name: the run's folder in it.
    """

    def __init__(self, store: str, name: str) -> None:
        self.store, self.name = store, name
        self.root = local(store, "read")
        self.path = local_path(self.root, name)
        self._training = False  # in the folder for that, with its files
        self._lease: Lease | None = None
        self._sent: dict[str, tuple[int, int, int]] = {}
        self._fetched: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_lease": None}  # only the process that took it renews it

    @property
    def address(self) -> str:
        return f"{self.store}/{self.name}"

    def record(self) -> bytes | None:
        self._fetched.clear()
        self.file("run.json")
        return super().record()

    def file(self, name: str) -> Path:
        if not self._training and name not in self._fetched:
            self._fetched.add(name)
            target = local_path(self.path, name)
            transport = connect(self.store)
            try:
                transport.read(f"{self.name}/{name}", target)
            except FileNotFoundError:
                if target.is_file():
                    target.unlink()
                for other in transport.list(f"{self.name}/{name}"):  # if it is a folder
                    transport.read(other, local_path(self.root, other))
        return self.path / name

    def push(self) -> None:
        """Send what has changed; raise :class:`BusyError` if another process has taken the lease."""
        transport = connect(self.store)
        now = {name: _state(self.path / name) for name in _files(self.path)}
        changed = [name for name, state in now.items() if self._sent.get(name) != state]
        if self._lease is not None and not self._lease.held():
            raise BusyError(f"{self.address}: another process has taken over this run")
        for name in sorted(changed, key=lambda name: (LAST.index(name) if name in LAST else -1, name)):
            transport.write(f"{self.name}/{name}", self.path / name)
            self._sent[name] = now[name]
        for name in self._sent.keys() - now:
            transport.write(f"{self.name}/{name}", None)
            del self._sent[name]

    @property
    def busy(self) -> bool:
        return Lease(connect(self.store), self.name).taken()

    @contextmanager
    def held(self, fresh: bool = False) -> Iterator[None]:
        """Hold the folder in which this machine trains, and the lease, with the files of the store in the folder."""
        reading = self.root, self.path
        self.root = local(self.store)
        self.path = local_path(self.root, self.name)
        try:
            with super().held(fresh=True), self._leased():
                self._load(fresh)
                self._training = True
                yield
        finally:
            self._training = False
            self.root, self.path = reading

    @contextmanager
    def _leased(self) -> Iterator[None]:
        lease, note = Lease(connect(self.store), self.name, seconds()), self.path / ".lease"
        node, _, last = note.read_text().partition(" ") if note.is_file() else ("", "", "")
        # the last holder on this machine has ended, since this process holds its lock
        lease.acquire(last if node == platform.node() else "")
        note.write_text(f"{platform.node()} {lease.content['id']}")
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(lease.seconds / 4):
                with suppress(Exception):  # the next attempt may find the store again
                    lease.renew()

        thread = threading.Thread(target=renew, daemon=True)
        thread.start()
        self._lease = lease
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self._lease = None
            with suppress(Exception):  # it expires
                lease.release()

    def _load(self, fresh: bool) -> None:
        """Download the run's files into the folder, or delete them in the store."""
        transport, self._sent = connect(self.store), {}
        for other in transport.list(self.name):
            name = other[len(self.name) + 1 :]
            if fresh and not name.startswith(".lease/"):
                transport.write(other, None)
            elif not name.startswith((".lease/", *HERE)):
                with suppress(FileNotFoundError):
                    transport.read(other, local_path(self.path, name))
                    self._sent[name] = _state(self.path / name)


def _files(folder: Path) -> list[str]:
    """Return the files below a run's folder that belong into the store."""
    paths = (path for top in folder.iterdir() if top.name not in HERE for path in (top, *top.rglob("*")))
    return [path.relative_to(folder).as_posix() for path in paths if path.is_file() and path.suffix != ".tmp"]


def _state(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


def mirror_at(url: str) -> Mirror:
    """Return the folder of the run at a URL."""
    parts = url.rsplit("/", DEPTH)
    if len(parts) <= DEPTH or parts[0].endswith("/"):
        raise ValueError(f"{url}: no run there; expected STORE/DOMAIN/DATASET/NAME/SEED.")
    return Mirror(parts[0], "/".join(parts[1:]))


def records(url: str) -> dict[str, bytes]:
    """Return the run.json of all runs at and below a URL, by the names of their folders; no other file is read."""
    transport = connect(url)
    names = sorted(name for name in transport.list() if f"/{name}".endswith("/run.json"))

    def read(name: str) -> bytes | None:
        with suppress(FileNotFoundError):  # deleted just now
            return transport.read(name)
        return None

    with ThreadPoolExecutor(AT_ONCE) as pool:
        contents = zip(names, pool.map(read, names), strict=True)
        return {name.rpartition("/")[0]: content for name, content in contents if content is not None}


def find(url: str) -> dict[object, tuple[RunFolder, Callable[[], bytes | None] | None]]:
    """Return the folders of the runs at and below a URL, and what returns their records, which are read at once."""
    url = url.removesuffix("/run.json")
    if not (found := records(url)):
        raise ValueError(f"no runs in {url}: no folder there has a run.json.")
    mirrors = ((mirror_at(f"{url}/{name}".rstrip("/")), content) for name, content in found.items())
    return {mirror.address: (mirror, partial(bytes, content)) for mirror, content in mirrors}


def upload(store: str | Path, folder: str) -> None:
    """Upload a folder of this machine to a store that is a URL; in a store that is a folder, it is there already."""
    root, transport = local(store), connect(store)
    for file in sorted((root / folder).rglob("*")) if local(store, "read") != root else ():
        if file.is_file():
            transport.write(file.relative_to(root).as_posix(), file)
