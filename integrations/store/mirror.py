"""Runs whose store is a URL, such as ``s3://bucket/runs``: trained in a folder of this machine, and kept in step.

The folder is below ``$COUNTERPOINT_CACHE``, by default ``~/.cache/counterpoint``: ``work`` for the runs that this
machine trains, ``read`` for what is read of others. The store is what counts; both may be deleted when nothing is
trained. A process that trains a run holds a lease on it (:mod:`.lease`), and a thread of it renews that.

Objects are written in an order in which one that is there needs none that is not: the rest, then ``metrics.jsonl``,
``checkpoint.pt``, and ``run.json`` last.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from . import conditional, objects
from .errors import BusyError
from .lease import Lease, seconds
from .objects import StoreError, connect, is_url, local_path, one_line

HERE = (".lock", ".lease", ".watched", "work", "checkpoint.previous.pt")  # of a run's folder, never sent
LAST = ("metrics.jsonl", "checkpoint.pt", "run.json")  # sent last, in this order
DEPTH = 4  # of a run's folder in its store

_synced: set[str] = set()  # stores whose records are read all at once just now


def cache_folder(store: str, kind: str) -> Path:
    """The folder of this machine for a store: ``work`` or ``read``."""
    root = os.environ.get("COUNTERPOINT_CACHE") or Path.home() / ".cache" / "counterpoint"
    return Path(root).absolute() / "stores" / hashlib.sha256(store.encode()).hexdigest()[:16] / kind


def local_folder(root: str | Path) -> Path:
    """The folder of this machine where the runs of a store are read; a folder is its own."""
    root = objects.plain(root)
    return cache_folder(root, "read") if isinstance(root, str) else root


def working_folder(root: str | Path) -> Path:
    """The folder of this machine where the runs of a store are written; a folder is its own."""
    root = objects.plain(root)
    return cache_folder(root, "work") if isinstance(root, str) else root


class Mirror:
    """A run's folder in a store, and its copy on this machine.

    Args:
        store: the URL of the folder of all runs.
        relative: the run's folder in it.
    """

    def __init__(self, store: str, relative: str) -> None:
        self.store, self.relative = store, relative
        self.address = f"{store}/{relative}"
        self.root = cache_folder(store, "read")
        self.folder = local_path(self.root, relative)
        self._lease: Lease | None = None
        self._guard = threading.Lock()
        self._sent: dict[str, tuple[int, int, int]] = {}
        self._versions: dict[str, str | None] = {}  # of the objects that this process has read or written
        self._fetched: set[str] = set()

    @classmethod
    def at(cls, url: str) -> Mirror:
        """The mirror of the run whose folder is at a URL."""
        parts = url.rsplit("/", DEPTH)
        if len(parts) <= DEPTH or parts[0].endswith("/"):
            raise ValueError(f"{url}: no run there; expected STORE/DOMAIN/DATASET/NAME/SEED.")
        return cls(parts[0], "/".join(parts[1:]))

    def __getstate__(self) -> tuple[str, str]:
        return self.store, self.relative

    def __setstate__(self, state: tuple[str, str]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    # ---- reading -------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Read run.json again."""
        self._fetched.clear()
        if self.store not in _synced:
            self.fetch("run.json")

    def fetch_once(self, name: str) -> None:
        """Get a file of the run, unless that was done since the record was read."""
        if name not in self._fetched:
            self.fetch(name)
            self._fetched.add(name)

    def fetch(self, name: str) -> None:
        """Get a file of the run, or forget the copy of one that is not there."""
        files, path = self._place()
        target = local_path(self.folder, name)
        with one_line(self.address):
            try:
                _get(files, f"{path}/{name}", target)
            except FileNotFoundError:
                target.unlink(missing_ok=True)

    def fetch_folder(self, name: str) -> None:
        """Get all files in a folder of the run."""
        for other in self.names():
            if other.startswith(f"{name}/"):
                self.fetch(other)

    def names(self) -> list[str]:
        """The files of the run, without those of its lease."""
        return list(self._list())

    def saved(self) -> object:
        """What changes with each checkpoint."""
        files, path = self._place()
        files.invalidate_cache()
        with one_line(self.address):
            try:
                about = files.info(f"{path}/checkpoint.pt")
            except FileNotFoundError:
                return None
        return tuple(str(about.get(key)) for key in ("size", "ETag", "LastModified", "mtime", "created"))

    # ---- training ------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether another process holds the lease."""
        with one_line(self.address):
            return self._new_lease().taken()

    def work(self) -> tuple[Path, Path]:
        """The folders of all runs and of this one, to train in."""
        root = cache_folder(self.store, "work")
        return root, local_path(root, self.relative)

    @contextmanager
    def held(self, folder: Path, fresh: bool) -> Iterator[None]:
        """Hold the lease, with the files of the store in this folder; raise :class:`BusyError` if another process does.

        Args:
            folder: whose lock on this machine this process holds.
            fresh: delete the files of the store, too.
        """
        lease, note = self._new_lease(), folder / ".lease"
        with one_line(self.address):
            _acquire(lease, note)
            note.write_text(json.dumps([platform.node(), lease.name]))
        self._lease, ended = lease, threading.Event()
        thread = threading.Thread(target=self._renew, args=(lease, ended), daemon=True)
        thread.start()
        try:
            self._load(folder, fresh)
            yield
        finally:
            ended.set()
            thread.join()
            self._lease = None
            with suppress(Exception):  # it expires
                lease.release()

    def push(self, folder: Path) -> None:
        """Send what has changed; raise :class:`BusyError` if another process has taken the lease."""
        files, path = self._place()
        now = {name: _state(folder / name) for name in _files(folder)}
        changed = [name for name, state in now.items() if self._sent.get(name) != state]
        with one_line(self.address):
            self._check_held()
            for name in sorted(changed, key=lambda name: (LAST.index(name) if name in LAST else -1, name)):
                self._put(files, f"{path}/{name}", folder, name)
                self._sent[name] = now[name]
            for name in [name for name in self._sent if name not in now]:
                with suppress(FileNotFoundError):
                    files.rm_file(f"{path}/{name}")
                del self._sent[name]
                self._versions.pop(name, None)

    # ---- private -------------------------------------------------------------------------------

    def _place(self) -> tuple[Any, str]:
        files, path = connect(self.store)
        return files, f"{path}/{self.relative}"

    def _new_lease(self) -> Lease:
        return Lease(*self._place(), seconds(), self.work()[1] / ".watched")

    def _list(self) -> dict[str, Any]:
        """The files of the run, without those of its lease, and what a listing says about each."""
        files, path = self._place()
        files.invalidate_cache()
        with one_line(self.address):
            found = {str(other)[len(path) + 1 :]: about for other, about in files.find(path, detail=True).items()}
        return {name: about for name, about in found.items() if not name.startswith((".lease/", *HERE))}

    def _check_held(self) -> None:
        """Renew the lease, or raise :class:`BusyError` if another process now holds it."""
        if self._lease is not None:
            with self._guard:
                if not self._lease.renew():
                    raise BusyError(f"{self.address}: another process has taken over this run")

    def _put(self, files: Any, path: str, folder: Path, name: str) -> None:
        """Send a file, unless another process holds the lease by now.

        If the object is not the one that this process has seen, either that process has lost the lease, or one that
        had lost it wrote last, which is replaced.
        """
        while True:
            try:
                self._versions[name] = conditional.write(files, path, folder / name, self._versions.get(name))
                return
            except conditional.ChangedError:
                self._versions[name] = conditional.current(files, path)
                self._check_held()  # after the look: what a later holder writes is another version

    def _load(self, folder: Path, fresh: bool) -> None:
        """Download the run's files into a local folder, which is empty but for its lock."""
        listed, self._sent, self._versions = self._list(), {}, {}
        files, path = self._place()
        with one_line(self.address):
            for name, about in listed.items():
                with suppress(FileNotFoundError):
                    if fresh:
                        files.rm_file(f"{path}/{name}")
                    else:
                        _get(files, f"{path}/{name}", local_path(folder, name))
                        self._sent[name] = _state(folder / name)
                        self._versions[name] = conditional.version(files, about)

    def _renew(self, lease: Lease, ended: threading.Event) -> None:
        while not ended.wait(lease.seconds / 4):
            with suppress(Exception), self._guard:  # the next attempt, or the next push, may find the store again
                if not lease.renew():
                    return


def _acquire(lease: Lease, note: Path) -> None:
    """Take a lease, at once if its holder was a process of this machine, which the lock says has ended."""
    node, last = platform.node(), None
    with suppress(OSError, ValueError):
        before, name = json.loads(note.read_text())
        last = name if before == node else None
    lease.acquire(last)


def _files(folder: Path) -> list[str]:
    """The files below a run's folder that belong into the store."""
    paths = (path for top in folder.iterdir() if top.name not in HERE for path in (top, *top.rglob("*")))
    return [path.relative_to(folder).as_posix() for path in paths if path.is_file() and path.suffix != ".tmp"]


def _state(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


def _get(files: Any, path: str, target: Path) -> None:
    """Get a file as a whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f"{target.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        files.get_file(path, str(temporary))
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


# ---- whole stores ------------------------------------------------------------------------------


def prepare(root: str | Path) -> str | Path:
    """Make the folder of all runs, or check that the store can be written to."""
    root = objects.plain(root)
    if isinstance(root, str):
        objects.check(root)
    else:
        root.mkdir(parents=True, exist_ok=True)
    return root


@contextmanager
def synced(root: str | Path) -> Iterator[None]:
    """Read the records of all runs of a store at once; runs that are opened meanwhile do not ask for theirs."""
    if not isinstance(root, str) or not is_url(root):
        yield
        return
    known = {mirror.relative for mirror in _pull(root, root)}
    folder = cache_folder(root, "read")
    for path in folder.rglob("run.json"):
        if path.parent.relative_to(folder).as_posix() not in known:
            path.unlink()
    with read_at_once({root}):
        yield


@contextmanager
def read_at_once(stores: set[str]) -> Iterator[None]:
    """Let runs of these stores not ask for their records, which have just been read."""
    added = stores - _synced
    _synced.update(added)
    try:
        yield
    finally:
        _synced.difference_update(added)


def find(url: str) -> list[Mirror]:
    """The runs at and below a URL, whose records are read at once; raise ``ValueError`` if there are none."""
    url = url.removesuffix("/run.json")
    runs = _pull(url)
    if not runs:
        raise ValueError(f"no runs in {url}: no folder there has a run.json.")
    return runs


def _pull(url: str, store: str | None = None) -> list[Mirror]:
    """Get each run.json below a URL, and no other file."""
    files, path = connect(url)
    files.invalidate_cache()
    with one_line(url):
        try:
            found = sorted(str(other) for other in files.find(path) if str(other).endswith("/run.json"))
            contents = files.cat(found, on_error="omit") if found else {}
        except FileNotFoundError:
            if store is None:
                raise StoreError(f"{url}: no such bucket or folder.") from None
            return []
    return list(_write(url, path, found, contents, store))


def _write(
    url: str, path: str, found: Iterable[str], contents: dict[str, bytes], store: str | None
) -> Iterator[Mirror]:
    for name in found:
        relative = name[len(path) + 1 :].rpartition("/")[0]
        if name not in contents:
            continue
        if store is not None and relative.count("/") != DEPTH - 1:
            continue
        mirror = Mirror.at(f"{url}/{relative}".rstrip("/"))
        mirror.folder.mkdir(parents=True, exist_ok=True)
        temporary = mirror.folder / f"run.json.{uuid.uuid4().hex[:8]}.tmp"
        temporary.write_bytes(contents[name])
        os.replace(temporary, mirror.folder / "run.json")
        yield mirror


# ---- marks that the machines of a cluster look at ------------------------------------------------


def touch(address: str | Path, content: bytes = b"") -> None:
    """Make a file or an object."""
    if isinstance(address, Path):
        address.write_bytes(content)
        return
    store, _, name = address.rpartition("/")
    files, path = connect(store)
    with one_line(address):
        objects.put(files, f"{path}/{name}", content)


def send(folder: Path, url: str) -> None:
    """Write the files of a folder below a URL."""
    files, path = connect(url)
    with one_line(url):
        for file in sorted(file for file in folder.rglob("*") if file.is_file()):
            objects.put(files, f"{path}/{file.relative_to(folder).as_posix()}", file)


def remove(address: str | Path) -> None:
    """Delete a file or an object, if it is there."""
    if isinstance(address, Path):
        address.unlink(missing_ok=True)
        return
    store, _, name = address.rpartition("/")
    files, path = connect(store)
    with one_line(address), suppress(FileNotFoundError):
        files.rm_file(f"{path}/{name}")


def exists(address: str) -> bool:
    """Whether a file or an object is there, or may be there in a store that cannot be asked just now."""
    if not is_url(address):
        return Path(address).exists()
    store, _, name = address.rpartition("/")
    files, path = connect(store)
    try:
        with one_line(address):
            files.invalidate_cache()
            return bool(files.exists(f"{path}/{name}"))
    except StoreError:
        return True
