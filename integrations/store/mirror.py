"""Runs whose store is a URL, such as ``s3://bucket/runs``: trained in a folder of this machine, and kept in step.

The folder is below ``$COUNTERPOINT_CACHE``, by default ``~/.cache/counterpoint``, for as long as this process needs it.
The store is what counts. A process that trains a run holds a lease on it (:mod:`.lease`).

Files are written in an order in which one that is there needs none that is not: the rest, then ``metrics.jsonl``,
``checkpoint.pt``, and ``run.json`` last.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from .errors import BusyError
from .folder import RunFolder, local
from .lease import Lease
from .transport import connect, local_path

UNSENT = "work"  # folder of a run
LAST = ("metrics.jsonl", "checkpoint.pt", "run.json")  # sent last, in this order


def _temporary(store: str | Path) -> TemporaryDirectory[str]:
    local(store).mkdir(parents=True, exist_ok=True)
    return TemporaryDirectory(dir=local(store))


_read = cache(_temporary)  # what this process reads of a store


class Mirror(RunFolder):
    """A run's folder in a store that is a URL, and its copy on this machine."""

    def __init__(self, store: str, name: str) -> None:
        self.store, self.name, self.address = store, name, f"{store}/{name}"
        self.root = Path(_read(store).name)
        self.path = local_path(self.root, name)
        self._lease: Lease | None = None  # while this process trains the run
        self._sent: dict[str, tuple[int, int, int]] = {}

    def record(self) -> bytes | None:
        with suppress(FileNotFoundError):
            return connect(self.store).read(f"{self.name}/run.json")
        return None

    def file(self, name: str) -> Path:
        if self._lease is None:
            (self.path / name).unlink(missing_ok=True)
            transport = connect(self.store)
            for file in transport.list(f"{self.name}/{name}"):
                transport.download(file, local_path(self.root, file))
        return self.path / name

    def push(self) -> None:
        """Upload changed files; raise :class:`BusyError` if another process has taken the lease."""
        transport = connect(self.store)
        tops = [top for top in self.path.iterdir() if top.name != UNSENT]
        files = [path for top in tops for path in (top, *top.rglob("*")) if path.is_file() and path.suffix != ".tmp"]
        now = {path.relative_to(self.path).as_posix(): _state(path) for path in files}
        if self._lease is not None and not self._lease.held():
            raise BusyError(f"{self.address}: another process has taken over this run")
        changed = [name for name, state in now.items() if self._sent.get(name) != state]
        for name in sorted(changed, key=lambda name: (LAST.index(name) if name in LAST else -1, name)):
            transport.write(f"{self.name}/{name}", self.path / name)
        for name in self._sent.keys() - now:
            transport.write(f"{self.name}/{name}", None)
        self._sent = now

    @property
    def busy(self) -> bool:
        return Lease(connect(self.store), self.name).taken()

    @contextmanager
    def held(self, fresh: bool = False) -> Iterator[None]:
        """Hold the lease, with the files of the store in a folder in which this machine trains."""
        lease, reading = Lease(connect(self.store), self.name), (self.root, self.path)
        with lease.kept(), _temporary(self.store) as folder:
            try:
                self.root, self.path = Path(folder), Path(folder, self.name)
                self._load(fresh)
                self._lease = lease
                yield
            finally:
                self._lease = None
                self.root, self.path = reading

    def _load(self, fresh: bool) -> None:
        """Download the run's files into the folder, or delete them in the store."""
        transport, self._sent = connect(self.store), {}
        self.path.mkdir(parents=True)
        for file in transport.list(self.name):
            name = file[len(self.name) + 1 :]
            if fresh and not name.startswith(".lease/"):
                transport.write(file, None)
            elif not name.startswith(".lease/"):
                transport.download(file, local_path(self.path, name))
                self._sent[name] = _state(self.path / name)


def _state(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino
