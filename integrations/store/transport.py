"""The files of a store, through fsspec: of an object store behind a URL, or of a folder.

A :class:`Transport` reads, writes, lists and exclusively creates whole files by names such as ``a/b/run.json``.
Everything about stores that are URLs stands on these methods: leases (:mod:`.lease`) and copies (:mod:`.mirror`).
"""

import logging
import re
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

import fsspec

from counterpoint.install import install

from .errors import StoreError
from .folder import plain

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}  # of this package, by scheme


class Transport:
    """The files of a store at an address. Keys and addresses of servers come from fsspec's own configuration."""

    def __init__(self, address: str, files: fsspec.AbstractFileSystem, path: str) -> None:
        self.address, self.files, self.path = address, files, path.rstrip("/")

    def read(self, name: str) -> bytes:
        """Return the content of a file; raise ``FileNotFoundError`` if there is none."""
        with self._one_line(FileNotFoundError):
            return self.files.cat_file(f"{self.path}/{name}")  # type: ignore[no-any-return]

    def download(self, name: str, to: Path) -> None:
        """Copy a file to this machine."""
        to.parent.mkdir(parents=True, exist_ok=True)
        with self._one_line():
            self.files.get_file(f"{self.path}/{name}", str(to))

    def write(self, name: str, content: bytes | Path | None) -> None:
        """Write a file from bytes or from a local file; None deletes it."""
        path = f"{self.path}/{name}"
        with self._one_line():
            if isinstance(content, bytes):
                self.files.pipe_file(path, content)
            elif content is not None:
                self.files.put_file(str(content), path)
            else:
                with suppress(FileNotFoundError):
                    self.files.rm_file(path)

    def list(self, folder: str = "") -> list[str]:
        """Return all files below a folder, or the file of this name, by their names in the store."""
        self.files.invalidate_cache()
        with self._one_line():
            return [str(path)[len(self.path) + 1 :] for path in self.files.find(f"{self.path}/{folder}".rstrip("/"))]

    def written(self, name: str) -> float:
        """Return when a file was written, in seconds of the store's clock; 0 if there is none."""
        with self._one_line(), suppress(FileNotFoundError):
            return float(self.files.modified(f"{self.path}/{name}").timestamp())
        return 0.0

    def create(self, name: str, content: bytes) -> bool:
        """Write a file unless there is one; return False if there is, or if another process has created it first."""
        path = f"{self.path}/{name}"
        with self._one_line():
            try:
                self.files.pipe_file(path, content, mode="create")
            except Exception:
                if self.files.exists(path):
                    return False
                raise
        return True

    def check(self) -> None:
        """Raise in one line unless files can be written here; warn where a lease may have two holders."""
        probe = f".probe-{uuid.uuid4().hex[:12]}"
        once, twice = self.create(probe, b""), self.create(probe, b"")
        self.write(probe, None)
        if not once or twice:
            message = f"{self.address}: no exclusive lease here: let one process at a time train in this store"
            warnings.warn(message, RuntimeWarning, stacklevel=2)

    @contextmanager
    def _one_line(self, passed: type[Exception] = StoreError) -> Iterator[None]:
        """Turn the exceptions of any library into :class:`StoreError`, except for some."""
        try:
            yield
        except (StoreError, passed):
            raise
        except Exception as error:
            line = str(error).strip().partition("\n")[0]
            kind = "no such bucket" if isinstance(error, FileNotFoundError) else type(error).__name__
            raise StoreError(f"{self.address}: {kind}: {line}") from error


def connect(place: str | Path) -> Transport:
    """Open the store at a folder or a URL."""
    place = plain(place)
    return _connect(str(place), str(place.absolute()) if isinstance(place, Path) else None)


@lru_cache(maxsize=64)
def _connect(place: str, path: str | None) -> Transport:
    if path is not None:  # of a folder, which another working directory would change
        return Transport(place, fsspec.filesystem("file", auto_mkdir=True), path)
    scheme, _, rest = place.partition("://")
    if not rest:
        raise ValueError(f"{place}: expected {scheme}://BUCKET/FOLDER.")
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # which prints the tracebacks of what it raises, too
    try:
        return Transport(place, *fsspec.core.url_to_fs(place, use_listings_cache=False))
    except ImportError as error:
        raise ImportError(f"{place}: {install(EXTRAS[scheme]) if scheme in EXTRAS else error}") from error
    except Exception as error:  # the scheme is unknown
        raise ValueError(f"{place}: {str(error).partition(chr(10))[0]}") from error


def local_path(folder: Path, name: str) -> Path:
    """Return where a file of a store is kept below ``folder``; the only way from a remote name to a local path.

    Raises :class:`StoreError` for a name that leads elsewhere on any system: ``..``, absolute names, drive letters,
    backslashes and control characters.
    """
    if not {"", ".", ".."}.isdisjoint(name.split("/")) or re.search(r"[\\\x00-\x1f\x7f]|(^|/)[A-Za-z]:", name):
        raise StoreError(f"{name!r}: refused: a store's name must stay below its folder; expected names such as a/b.")
    return folder / name
