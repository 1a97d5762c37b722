"""Lock a folder of an object store, which has no locks, by objects with an owner that renews them.

A lease needs nothing of a file system but that its listings show every object at once, as those of S3, Google Cloud
Storage and Azure do. Each holder has a generation, one above the last; the object is ``.lease/GENERATION-NAME``:

1. Whoever finds the last generation released or expired puts an object of the next one, and lists again.
2. It holds the lease if no other object has this generation or a later one. Else it deletes its own: of two that put
   at the same time, at least one sees the other.
3. The last generation is never deleted, so that a slow process cannot take an old one again.

Clocks of two machines are never compared: a lease has expired if it did not change for its length while watched.
"""

from __future__ import annotations

import json
import os
import platform
import time
import uuid
from contextlib import suppress
from typing import Any

from .errors import BusyError

SECONDS = 60.0  # without renewal, after which another process may take a lease

_watched: dict[str, tuple[bytes, float]] = {}  # lease object -> its content, and since when it has not changed


class Lease:
    """The right to write to a folder.

    Args:
        files: a file system of fsspec, without a cache of listings.
        folder: on this file system.
        seconds: how long it lasts without :meth:`renew`.
    """

    def __init__(self, files: Any, folder: str, seconds: float = SECONDS) -> None:
        self.files, self.folder, self.seconds = files, f"{folder}/.lease", seconds
        self.name: str | None = None
        self._renewals = 0

    def acquire(self, last: str | None = None) -> None:
        """Take the lease, or raise :class:`BusyError`.

        Args:
            last: the object of a holder that is known to have ended.
        """
        names = self._names()
        top = max(map(_generation, names), default=0)
        for name in names:
            if _generation(name) == top and name != last and not self._is_free(name):
                raise BusyError(f"{self.folder}: held by {self._owner(name)}")
        self.name, self._renewals = f"{top + 1:08}-{uuid.uuid4().hex[:12]}", 0
        self._put()
        names = self._names()
        if any(name != self.name and _generation(name) > top for name in names):
            name, self.name = self.name, None
            self.files.rm_file(f"{self.folder}/{name}")
            raise BusyError(f"{self.folder}: another process takes it at the same time")
        for name in names:
            if _generation(name) <= top:
                with suppress(FileNotFoundError):
                    self.files.rm_file(f"{self.folder}/{name}")

    def renew(self) -> bool:
        """Prolong the lease; return False if another process has taken it."""
        if not self.held():
            return False
        self._renewals += 1
        self._put()
        return True

    def held(self) -> bool:
        """Whether no other process has taken the lease."""
        if self.name is None:
            return False
        names, mine = self._names(), _generation(self.name)
        return self.name in names and all(_generation(name) <= mine for name in names)

    def release(self) -> None:
        """Let others take the lease at once."""
        if self.held():
            self._put(released=True)
        self.name = None

    def _put(self, released: bool = False) -> None:
        owner = f"process {os.getpid()} on {platform.node()}"
        content = {"owner": owner, "seconds": self.seconds, "renewals": self._renewals, "released": released}
        self.files.pipe_file(f"{self.folder}/{self.name}", json.dumps(content).encode())

    def _names(self) -> list[str]:
        self.files.invalidate_cache()
        try:
            return [str(path).rsplit("/", 1)[-1] for path in self.files.ls(self.folder, detail=False)]
        except FileNotFoundError:
            return []

    def _is_free(self, name: str) -> bool:
        """Whether a lease was released, or has not changed for its length since it was first seen here."""
        path = f"{self.folder}/{name}"
        try:
            content = self.files.cat_file(path)
        except FileNotFoundError:  # withdrawn just now
            return False
        lease = json.loads(content)
        if lease["released"]:
            return True
        before, since = _watched.get(path, (None, 0.0))
        if before != content:
            _watched[path] = content, time.monotonic()
            return False
        return time.monotonic() - since >= float(lease["seconds"])

    def _owner(self, name: str) -> str:
        try:
            return str(json.loads(self.files.cat_file(f"{self.folder}/{name}"))["owner"])
        except FileNotFoundError:
            return "another process"


def _generation(name: str) -> int:
    number = name.partition("-")[0]
    return int(number) if number.isdecimal() else 0
