"""Tell the process that sends (:mod:`.sender`) what there is to send, without ever waiting for it in a training.

Messages are lines of JSON in a file, which cannot be full; the process finds the numbers in the store. One of them
serves all runs of this process. At the end it is waited for, once.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from multiprocessing.util import Finalize
from typing import Any

SAID_AFTER, GIVEN_UP_AFTER = 2.0, 120.0  # seconds

_relays: dict[int, Relay] = {}


class Relay:
    """Starts the process that sends; it ends once the pipe to it is closed, also by the death of this process."""

    def __init__(self) -> None:
        place, path = tempfile.mkstemp(prefix="counterpoint-", suffix=".jsonl")
        os.close(place)
        self.messages = open(path, "w", encoding="utf-8")  # noqa: SIM115
        command = [sys.executable, "-m", "counterpoint.integrations.trackers.sender", path]
        # A separate session keeps Ctrl-C from stopping the sender. Its output is discarded, because the output of a
        # command may be JSON.
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )
        Finalize(None, wait, exitpriority=0)  # at the exit of this process, of a worker too

    def tell(self, **message: Any) -> None:
        """Leave a message."""
        self.messages.write(json.dumps(message) + "\n")
        self.messages.flush()

    def wait(self) -> None:
        """Return when everything is sent."""
        self.messages.close()
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            code = self.process.wait(SAID_AFTER)
        except subprocess.TimeoutExpired:
            print("sending the rest to the trackers; the store has everything", file=sys.stderr, flush=True)
            try:
                code = self.process.wait(GIVEN_UP_AFTER)
            except subprocess.TimeoutExpired:
                self.process.kill()
                code = self.process.wait()
                with contextlib.suppress(OSError):
                    os.unlink(self.messages.name)
        if code:
            print("the trackers may not have everything; the store has", file=sys.stderr, flush=True)


def tell(**message: Any) -> None:
    """Leave a message for the process that sends for this one, and start it if need be."""
    relay = _relays.get(os.getpid())
    if relay is None:
        _relays.clear()  # a fork has those of its parent
        relay = _relays[os.getpid()] = Relay()
    relay.tell(**message)


def wait() -> None:
    """Return when the trackers have everything that the runs of this process have logged so far."""
    if (relay := _relays.pop(os.getpid(), None)) is not None:
        relay.wait()
