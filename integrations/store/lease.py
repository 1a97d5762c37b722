"""Lock a folder of a store that has no locks, by files that are created exclusively and renewed by their owner.

The holder of a lease is who created the file ``.lease/N`` with the largest N. Whoever finds it released or expired
creates N + 1, which the store lets one process do. The files stay, so that no slow process can create an old one again.
A lease has expired if it was not written for its length.
"""

import json
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from .errors import BusyError
from .transport import Transport

SECONDS = "60"  # without renewal, after which another process may take a lease


class Lease:
    """The right to write to a folder of a store."""

    def __init__(self, transport: Transport, folder: str) -> None:
        self.transport, self.folder = transport, f"{folder}/.lease"
        self.seconds = float(os.environ.get("COUNTERPOINT_LEASE") or SECONDS)
        self.number = 0  # 0 for a lease that is not held
        self.content = {"owner": f"process {os.getpid()} on {platform.node()}", "seconds": self.seconds}

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Take the lease, or raise :class:`BusyError`; renew it within the block and release it at its end."""
        self.acquire()
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(self.seconds / 4):
                with suppress(Exception):  # the next attempt may find the store again
                    self.renew()

        thread = threading.Thread(target=renew, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            with suppress(Exception):  # it expires
                self.release()

    def acquire(self) -> None:
        """Take the lease, or raise :class:`BusyError`."""
        last = self._last()
        if owner := self._owner(last):
            raise BusyError(f"{self.folder}: held by {owner}")
        if not self.transport.create(self._name(last + 1), json.dumps(self.content).encode()):
            raise BusyError(f"{self.folder}: another process takes it at the same time")
        self.number = last + 1

    def taken(self) -> bool:
        """Return whether a process holds the lease."""
        return bool(self._owner(self._last()))

    def held(self) -> bool:
        """Return whether this process holds the lease, and no other one has taken it."""
        return bool(self.number) and self._last() == self.number

    def renew(self) -> None:
        self.transport.write(self._name(self.number), json.dumps(self.content).encode())

    def release(self) -> None:
        """Let others take the lease at once."""
        self.content["owner"] = ""
        self.renew()
        self.number = 0

    def _name(self, number: int) -> str:
        return f"{self.folder}/{number:08}"

    def _last(self) -> int:
        """Return the largest number, 0 if nobody has ever held the lease."""
        return max((int(name.rpartition("/")[2]) for name in self.transport.list(self.folder)), default=0)

    def _owner(self, last: int) -> str:
        """Return who holds the lease of the largest number; nobody if it was released or has expired."""
        if not last:
            return ""
        holder = json.loads(self.transport.read(self._name(last)))
        age = time.time() - self.transport.written(self._name(last))
        return str(holder["owner"]) if age <= holder["seconds"] + 1 else ""  # some clocks count whole seconds
