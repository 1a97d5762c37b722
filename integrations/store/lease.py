"""Lock a folder of a store that has no locks, by files that are created exclusively and renewed by their owner.

The holder of a lease is who created the file ``.lease/N`` with the largest N. Whoever finds it released or expired
creates N + 1, which the store lets one process do. The files stay, so that no slow process can create an old one again.
A lease has expired if it was not written for its length. Both times are of the store's clock: whoever asks writes a
file, whose time is now.
"""

from __future__ import annotations

import json
import os
import platform
import uuid
from typing import Any

from .errors import BusyError
from .transport import Transport

SECONDS = 60.0  # without renewal, after which another process may take a lease


def seconds() -> float:
    """Return the length of a lease, ``$COUNTERPOINT_LEASE`` or a minute."""
    text = os.environ.get("COUNTERPOINT_LEASE") or str(SECONDS)
    try:
        if (length := float(text)) >= 1:
            return length
    except ValueError:
        pass
    raise ValueError(f"COUNTERPOINT_LEASE: expected a number of seconds, at least 1, got {text!r}.")


class Lease:
    """The right to write to a folder.

    Args:
        transport: the store.
        folder: in it.
        seconds: how long it lasts without :meth:`renew`.
    """

    def __init__(self, transport: Transport, folder: str, seconds: float = SECONDS) -> None:
        self.transport, self.folder, self.seconds = transport, f"{folder}/.lease", seconds
        self.number = 0  # 0 for a lease that is not held
        owner = f"process {os.getpid()} on {platform.node()}"
        self.content = {"owner": owner, "id": uuid.uuid4().hex, "seconds": seconds, "released": False}

    def acquire(self, ended: str = "") -> None:
        """Take the lease, or raise :class:`BusyError`.

        Args:
            ended: the ``id`` of a holder that is known to have ended.
        """
        last, holder = self._holder()
        if holder is not None and holder["id"] != ended:
            raise BusyError(f"{self.folder}: held by {holder['owner']}")
        if not self.transport.create(self._name(last + 1), json.dumps(self.content).encode()):
            raise BusyError(f"{self.folder}: another process takes it at the same time")
        self.number = last + 1

    def taken(self) -> bool:
        """Return whether a process holds the lease."""
        return self._holder()[1] is not None

    def held(self) -> bool:
        """Return whether this process holds the lease, and no other one has taken it."""
        return bool(self.number) and self._last() == self.number

    def renew(self) -> None:
        """Prolong the lease."""
        self.transport.write(self._name(self.number), json.dumps(self.content).encode())

    def release(self) -> None:
        """Let others take the lease at once."""
        self.content["released"] = True
        self.renew()
        self.number = 0

    def _name(self, number: int) -> str:
        return f"{self.folder}/{number:08}"

    def _last(self) -> int:
        """Return the largest number, 0 if nobody has ever held the lease."""
        names = (name.rpartition("/")[2] for name in self.transport.list(self.folder))
        return max((int(name) for name in names if name.isdecimal()), default=0)

    def _holder(self) -> tuple[int, dict[str, Any] | None]:
        """Return the largest number, and what its holder wrote; None if it was released or has expired."""
        if not (last := self._last()):
            return 0, None
        # it may be created but not written yet where that takes two steps
        holder: dict[str, Any] = json.loads(self.transport.read(self._name(last)) or json.dumps(self.content))
        if holder["released"]:
            return last, None
        now = f"{self.folder}/now-{uuid.uuid4().hex[:12]}"
        self.transport.write(now, b"")
        entries = self.transport.list(self.folder)
        self.transport.write(now, None)
        age = entries[now].modified - entries[self._name(last)].modified
        return last, None if age > holder["seconds"] + 1 else holder  # some clocks count whole seconds
