"""Write an object only if it is still the one that was last seen, where the store checks that: on S3.

A process that was stopped between looking at its lease and the upload may continue after another one has taken the
lease. A plain upload would then replace what the new holder has written; a conditional one fails.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import objects

LARGEST = 2 * 2**30  # bytes of a file that is sent in one request; a larger one is sent in parts, without a condition


class ChangedError(Exception):
    """Another process has written or deleted the object since it was seen."""


def version(files: Any, about: Mapping[str, Any]) -> str | None:
    """Return what identifies the content of an object, from its entry in a listing; None where nothing is checked."""
    return about.get("ETag") if _checks(files) else None


def current(files: Any, path: str) -> str | None:
    """Return the version of an object as it is now; None if it is not there, or where nothing is checked."""
    if not _checks(files):
        return None
    files.invalidate_cache()
    try:
        return version(files, files.info(path))
    except FileNotFoundError:
        return None


def write(files: Any, path: str, file: Path, seen: str | None) -> str | None:
    """Write a file to an object, and return its version.

    Args:
        files: a file system of fsspec.
        path: of the object.
        file: what it shall contain.
        seen: the version that it replaces; None if there was no object.

    Raises:
        ChangedError: if there is another object than ``seen``, in a store that checks it.
    """
    if not _checks(files) or file.stat().st_size >= LARGEST:
        objects.put(files, path, file)
        return current(files, path)
    condition = {"IfNoneMatch": "*"} if seen is None else {"IfMatch": seen}
    try:
        return _put(files, path, file, **condition)
    except FileNotFoundError as error:
        if seen is None:  # no such bucket
            raise
        raise ChangedError(path) from error
    except OSError as error:
        code = _code(error)
        if code in ("PreconditionFailed", "ConditionalRequestConflict", "412", "409"):
            raise ChangedError(path) from error
        if code in ("NotImplemented", "501") or error.errno == errno.ENOSYS:  # a server that is not Amazon's
            return _put(files, path, file)
        raise


def _checks(files: Any) -> bool:
    """Whether the store is S3, through s3fs."""
    return hasattr(files, "call_s3")


def _put(files: Any, path: str, file: Path, **condition: str) -> str | None:
    bucket, key, _ = files.split_path(path)
    reply = files.call_s3("put_object", Bucket=bucket, Key=key, Body=file.read_bytes(), **condition)
    files.invalidate_cache(path)
    return reply.get("ETag")  # type: ignore[no-any-return]


def _code(error: OSError) -> str:
    """The code of the error of S3 that s3fs has translated."""
    response = getattr(error.__cause__, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))
