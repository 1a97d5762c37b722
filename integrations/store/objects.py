"""Object stores and other file systems of fsspec, which torch requires: addresses, errors in a line, whole objects."""

from __future__ import annotations

import logging
import os
import re
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from counterpoint.install import install
from counterpoint.names import nearest

from .errors import BusyError

# the extra for each scheme whose library is not fsspec's own
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
# where a single write is atomic and a listing shows every object at once: there a lease has one holder
CONSISTENT = (*EXTRAS, "az", "abfs", "abfss", "memory", "local")
FOLDERS = ("local",)  # have folders, which must exist before a file is written, and files that are replaced by renaming


class StoreError(OSError):
    """A store cannot be reached, read or written; the message is one line."""


def is_url(place: object) -> bool:
    """Return whether this names a store that is not a folder of this machine, such as ``s3://bucket/runs``."""
    return isinstance(place, str) and "://" in place and not place.startswith(("hf://", "file://"))


def plain(place: str | Path) -> str | Path:
    """Return a URL without a slash at its end, and everything else as a path; ``file://`` is a folder as any other."""
    if is_url(place):
        scheme, _, rest = str(place).partition("://")
        return f"{scheme}://{rest.rstrip('/')}"
    if isinstance(place, str) and place.startswith("file://"):
        return Path(url2pathname(urlsplit(place).path))
    return Path(place)


def check_url(url: str) -> None:
    """Raise unless the scheme is known, its library is installed, and there is a bucket's name; connects to nothing."""
    import fsspec

    scheme, _, rest = url.partition("://")
    if not rest.strip("/"):
        raise ValueError(f"{url}: expected {scheme}://BUCKET/FOLDER.")
    try:
        fsspec.get_filesystem_class(scheme)
    except ValueError:
        raise ValueError(f"{url}: unknown scheme {scheme!r}.{nearest(scheme, EXTRAS)}") from None
    except ImportError as error:
        if scheme in EXTRAS:
            library = {"s3": "s3fs", "gcs": "gcsfs"}[EXTRAS[scheme]]
            raise ImportError(f"{url} needs {library}: {install(EXTRAS[scheme])}") from error
        raise ImportError(f"{url}: {str(error).partition(chr(10))[0]}") from error


@lru_cache(maxsize=64)
def connect(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path there. Keys and addresses come from fsspec's configuration."""
    import fsspec

    check_url(url)
    if "GCSFS_DEBUG" not in os.environ:  # which prints the tracebacks of what it raises, too
        logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    with one_line(url):
        files, path = fsspec.core.url_to_fs(url, use_listings_cache=False)
        return files, str(path).rstrip("/")


def check(url: str) -> None:
    """Raise in one line unless objects can be written and listed here; warn where a lease may have two holders."""
    files, path = connect(url)
    probe = f".probe-{uuid.uuid4().hex[:12]}"
    with one_line(url):
        try:
            put(files, f"{path}/{probe}", b"")
            seen = probe in names_in(files, path)
            files.rm_file(f"{path}/{probe}")
        except FileNotFoundError as error:
            raise StoreError(f"{url}: no such bucket: {_first_line(error)}") from error
    scheme = url.partition("://")[0]
    if not seen or scheme not in CONSISTENT:
        reason = "a listing misses what was just written" if not seen else f"{scheme} is not known to list at once"
        message = f"{url}: no exclusive lease here ({reason}): let one process at a time train in this store"
        warnings.warn(message, RuntimeWarning, stacklevel=2)


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


def put(files: Any, path: str, content: bytes | Path) -> None:
    """Write an object as a whole, from bytes or a file: readers see the old one or the new one."""
    target = path
    if _has_folders(files):
        files.makedirs(path.rpartition("/")[0], exist_ok=True)
        target = f"{path}.{uuid.uuid4().hex[:8]}.tmp"
    if isinstance(content, bytes):
        files.pipe_file(target, content)
    else:
        files.put_file(str(content), target)
    if target != path:
        files.mv(target, path)


def read(url: str) -> bytes:
    """Return the content of an object; raise ``FileNotFoundError`` if there is none."""
    folder, _, name = url.rpartition("/")
    files, path = connect(folder)
    with one_line(url):
        return files.cat_file(f"{path}/{name}")  # type: ignore[no-any-return]


def names_in(files: Any, folder: str) -> list[str]:
    """Return the names in a folder; none if it does not exist."""
    files.invalidate_cache()
    try:
        return [str(path).rstrip("/").rsplit("/", 1)[-1] for path in files.ls(folder, detail=False)]
    except FileNotFoundError:
        return []


def _has_folders(files: Any) -> bool:
    schemes = (files.protocol,) if isinstance(files.protocol, str) else files.protocol
    return not set(schemes) & set(CONSISTENT) - set(FOLDERS)
