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
import random
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from .errors import BusyError
from .objects import names_in, put

SECONDS = 60.0  # without renewal, after which another process may take a lease
TRIES = 4  # where several processes take a lease at the same time


def seconds() -> float:
    """The length of a lease, ``$COUNTERPOINT_LEASE`` or a minute."""
    text = os.environ.get("COUNTERPOINT_LEASE") or str(SECONDS)
    try:
        if (length := float(text)) >= 1:
            return length
    except ValueError:
        pass
    raise ValueError(f"COUNTERPOINT_LEASE: expected a number of seconds, at least 1, got {text!r}.")


class _CollisionError(BusyError):
    """Another process has put an object of the same generation."""


class Lease:
    """The right to write to a folder.

    Args:
        files: a file system of fsspec, without a cache of listings.
        folder: on this file system.
        seconds: how long it lasts without :meth:`renew`.
        watched: a file of this machine that says since when the lease of another process has not changed, so that
            processes that try one after the other see it expire.
    """

    def __init__(self, files: Any, folder: str, seconds: float = SECONDS, watched: Path | None = None) -> None:
        self.files, self.folder, self.seconds, self.watched = files, f"{folder}/.lease", seconds, watched
        self._seen: tuple[str, float] | None = None
        self.name: str | None = None
        self._renewals = 0

    def acquire(self, last: str | None = None) -> None:
        """Take the lease, or raise :class:`BusyError`.

        Args:
            last: the object of a holder that is known to have ended.
        """
        for left in reversed(range(TRIES)):
            try:
                return self._acquire(last)
            except _CollisionError:
                if not left:
                    raise
                time.sleep(random.Random().uniform(0.0, 0.2))  # not torch's or the caller's stream
        return None

    def taken(self) -> bool:
        """Whether a process holds the lease."""
        names = self._names()
        top = max(map(_generation, names), default=0)
        return any(_generation(name) == top and not self._is_free(name) for name in names)

    def _acquire(self, last: str | None) -> None:
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
            raise _CollisionError(f"{self.folder}: another process takes it at the same time")
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
        put(self.files, f"{self.folder}/{self.name}", json.dumps(content).encode())

    def _names(self) -> list[str]:
        return [name for name in names_in(self.files, self.folder) if _generation(name)]

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
        seen, now = f"{platform.node()} {path} {content.decode()}", time.monotonic()
        before, since = self._read_seen()
        if before != seen or since > now:  # time.monotonic() is that of the machine since it was started
            self._write_seen(seen, now)
            return False
        return now - since >= float(lease["seconds"])

    def _read_seen(self) -> tuple[str, float]:
        if self.watched is not None:
            with suppress(OSError, ValueError):
                seen, since = json.loads(self.watched.read_text(encoding="utf-8"))
                return str(seen), float(since)
            return "", 0.0
        return self._seen or ("", 0.0)

    def _write_seen(self, seen: str, since: float) -> None:
        self._seen = seen, since
        if self.watched is not None:
            self.watched.parent.mkdir(parents=True, exist_ok=True)
            temporary = self.watched.with_name(f"{self.watched.name}.{uuid.uuid4().hex[:8]}.tmp")
            temporary.write_text(json.dumps([seen, since]), encoding="utf-8")
            os.replace(temporary, self.watched)

    def _owner(self, name: str) -> str:
        try:
            return str(json.loads(self.files.cat_file(f"{self.folder}/{name}"))["owner"])
        except FileNotFoundError:
            return "another process"


def _generation(name: str) -> int:
    number = name.partition("-")[0]
    return int(number) if number.isdecimal() else 0
