"""Where stores are: a folder of this machine, or a URL of any file system that fsspec opens, such as S3.

A :class:`Transport` reads, writes, lists and exclusively creates whole files by names such as ``a/b/run.json``.
Everything about stores that are URLs stands on these methods: leases (:mod:`.lease`) and copies (:mod:`.mirror`).
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from counterpoint.install import install
from counterpoint.names import nearest

from .errors import BusyError, StoreError
from .place import plain

# the library and the extra for each scheme whose library is not fsspec's own
LIBRARIES = {"s3": ("s3fs", "s3"), "s3a": ("s3fs", "s3"), "gs": ("gcsfs", "gcs"), "gcs": ("gcsfs", "gcs")}
OBJECTS = {*LIBRARIES, "az", "abfs", "abfss", "memory"}  # without folders; a write is atomic


class Entry(NamedTuple):
    """A file in a listing: its bytes, and the time of writing on the store's clock."""

    size: int
    modified: float


class Transport:
    """The files of a store, each whole or absent. Keys and addresses come from fsspec's own configuration.

    Args:
        address: of the store, for errors.
        files: a file system of fsspec, without a cache of listings.
        path: of the store there.
    """

    def __init__(self, address: str, files: Any, path: str) -> None:
        self.address, self.files, self.path = address, files, path.rstrip("/")
        protocols = (files.protocol,) if isinstance(files.protocol, str) else files.protocol
        self.has_folders = not OBJECTS.intersection(protocols)
        self.exclusive = not self.has_folders or "local" in protocols

    def read(self, name: str, to: Path | None = None) -> bytes:
        """Return the content of a file, or write it to a local one; raise ``FileNotFoundError`` if there is none."""
        with one_line(self.address):
            if to is None:
                return self.files.cat_file(f"{self.path}/{name}")  # type: ignore[no-any-return]
            to.parent.mkdir(parents=True, exist_ok=True)
            temporary = Path(_temporary(to))
            try:
                self.files.get_file(f"{self.path}/{name}", str(temporary))
                if temporary.is_dir():  # as some file systems copy a folder
                    temporary.rmdir()
                os.replace(temporary, to)
            finally:
                temporary.unlink(missing_ok=True)
            return b""

    def write(self, name: str, content: bytes | Path | None) -> None:
        """Write a file from bytes or from a local file; None deletes it."""
        path = target = f"{self.path}/{name}"
        with self._writing():
            if content is None:
                with suppress(FileNotFoundError):
                    self.files.rm_file(path)
                return
            if self.has_folders:
                self.files.makedirs(path.rpartition("/")[0], exist_ok=True)
                target = _temporary(path)
            if isinstance(content, bytes):
                self.files.pipe_file(target, content)
            else:
                self.files.put_file(str(content), target)
            if target != path:
                self.files.mv(target, path)

    def list(self, folder: str = "") -> dict[str, Entry]:
        """Return all files below a folder, by their names in the store."""
        self.files.invalidate_cache()
        with self._writing():
            found = self.files.find(f"{self.path}/{folder}".rstrip("/"), detail=True)
            return {str(path)[len(self.path) + 1 :]: _entry(about) for path, about in found.items()}

    def create(self, name: str, content: bytes) -> bool:
        """Write a file unless there is one; return False if there is, or if another process has created it first."""
        path = f"{self.path}/{name}"
        with self._writing():
            try:
                if self.has_folders:
                    self.files.makedirs(path.rpartition("/")[0], exist_ok=True)
                    with self.files.open(path, "xb") as file:
                        file.write(content)
                else:
                    self.files.pipe_file(path, content, mode="create")
            except FileExistsError:
                return False
            except OSError as error:
                reply = getattr(error.__cause__, "response", None) or {}  # of S3
                if reply.get("Error", {}).get("Code") in ("PreconditionFailed", "ConditionalRequestConflict"):
                    return False
                if error.errno != errno.ENOSYS:
                    raise
                if self.files.exists(path):  # a server that is not Amazon's and cannot create exclusively
                    return False
                self.files.pipe_file(path, content)
        return True

    def check(self) -> None:
        """Raise in one line unless files can be written here; warn where a lease may have two holders."""
        probe = f".probe-{uuid.uuid4().hex[:12]}"
        once, twice = self.create(probe, b""), self.create(probe, b"")
        self.write(probe, None)
        if not once or twice or not self.exclusive:
            message = f"{self.address}: no exclusive lease here: let one process at a time train in this store"
            warnings.warn(message, RuntimeWarning, stacklevel=2)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn errors into one line, for calls that fail for a missing file only if the bucket is missing."""
        try:
            with one_line(self.address):
                yield
        except FileNotFoundError as error:
            raise StoreError(f"{self.address}: no such bucket: {_first_line(error)}") from error


@lru_cache(maxsize=64)
def connect(place: str | Path) -> Transport:
    """Open the store at a folder or a URL."""
    import fsspec

    place = plain(place)
    if isinstance(place, Path):
        return Transport(str(place), *fsspec.core.url_to_fs(str(place.absolute())))
    check_url(place)
    if "GCSFS_DEBUG" not in os.environ:  # which prints the tracebacks of what it raises, too
        logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    with one_line(place):
        return Transport(place, *fsspec.core.url_to_fs(place, use_listings_cache=False))


def check_url(url: str) -> None:
    """Raise unless the scheme is known, its library is installed, and there is a bucket's name; connects to nothing."""
    import fsspec

    scheme, _, rest = url.partition("://")
    if not rest.strip("/"):
        raise ValueError(f"{url}: expected {scheme}://BUCKET/FOLDER.")
    try:
        fsspec.get_filesystem_class(scheme)
    except ValueError:
        raise ValueError(f"{url}: unknown scheme {scheme!r}.{nearest(scheme, LIBRARIES)}") from None
    except ImportError as error:
        if scheme in LIBRARIES:
            library, extra = LIBRARIES[scheme]
            raise ImportError(f"{url} needs {library}: {install(extra)}") from error
        raise ImportError(f"{url}: {_first_line(error)}") from error


def local(place: str | Path, kind: str = "work") -> Path:
    """Return the folder of this machine for a store, ``work`` to train in or ``read``; a folder is its own."""
    place = plain(place)
    if isinstance(place, Path):
        return place
    root = os.environ.get("COUNTERPOINT_CACHE") or Path.home() / ".cache" / "counterpoint"
    return Path(root).absolute() / "stores" / hashlib.sha256(place.encode()).hexdigest()[:16] / kind


def local_path(folder: Path, name: str) -> Path:
    """Return where a file of a store is kept below ``folder``; the only way from a remote name to a local path.

    Raises :class:`StoreError` for a name that leads elsewhere on any system, or to the file of another name: ``..``,
    absolute names, drive letters, backslashes, control characters, and names that differ by case alone where the file
    system does not.
    """
    parts = name.split("/")
    if not {"", ".", ".."}.isdisjoint(parts) or re.search(r"[\\\x00-\x1f\x7f]|(^|/)[A-Za-z]:", name):
        raise StoreError(f"{name!r}: refused: a store's name must stay below its folder; expected names such as a/b.")
    path = folder
    for part in parts:
        if (path / part).exists() and part not in (others := os.listdir(path)):
            same = next((other for other in others if other.casefold() == part.casefold()), part)
            raise StoreError(f"{name!r}: refused: this file system cannot tell it from {same!r}, which is there.")
        path = path / part
    return path


def _temporary(path: str | Path) -> str:
    return f"{path}.{uuid.uuid4().hex[:8]}.tmp"


def _entry(about: dict[str, Any]) -> Entry:
    """Read what a file system says about a file, each with names of its own."""
    times = (about.get(name) for name in ("LastModified", "mtime", "last_modified", "created"))
    time = next(filter(None, times), 0.0)
    return Entry(int(about.get("size") or 0), time.timestamp() if hasattr(time, "timestamp") else float(time))


@contextmanager
def one_line(url: str) -> Iterator[None]:
    """Turn the exceptions of any library into :class:`StoreError`; ``FileNotFoundError`` and ours pass."""
    try:
        yield
    except (FileNotFoundError, StoreError, ImportError, BusyError):
        raise
    except Exception as error:
        raise StoreError(f"{url}: {type(error).__name__}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
