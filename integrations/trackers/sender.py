"""The process that sends a run to trackers; :class:`.sending.Sending` starts it.

It follows the store's own file of the run, so that a training waits neither for a tracker's packages nor for its
server. Once its standard input ends, it sends the rest and ends too, also if the training was killed.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout  # torch itself requires it

from .backends import BACKENDS, PATIENCE, Subject, Tracker

PAUSE = 0.5  # seconds between two looks at the file


class Trackers:
    """The trackers that a run is sent to; one that fails is left out with one warning."""

    def __init__(self, names: Iterable[str], subject: Subject) -> None:
        self.subject, self.open = subject, dict[str, Tracker]()
        self._each(names, lambda name: self.open.update({name: BACKENDS[name](subject)}))

    def send(self, lines: Iterable[Mapping[str, float | None]]) -> None:
        """Send lines, except those that a tracker has of an earlier start."""
        lines = [*lines]
        self._each([*self.open], lambda name: send(self.open[name], lines))

    def end(self, status: str, result: Mapping[str, float] | None = None, files: Iterable[str] = ()) -> None:
        """Send the result or a report, and end the trackers' runs."""

        def close(name: str) -> None:
            if result:
                self.open[name].finish(result)
            if files:
                self.open[name].attach([*map(Path, files)])
            self.open[name].close(status)

        self._each([*self.open], close)

    def _each(self, names: Iterable[str], call: Callable[[str], object]) -> None:
        for name in names:
            try:
                call(name)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}".partition("\n")[0]
                about = f"{name} has failed and is left out; the store has everything ({reason})"
                print(f"warning: {self.subject.name}: {about}", file=sys.stderr, flush=True)
                with suppress(Exception):
                    self.open.pop(name).close("failed")


def send(tracker: Tracker, lines: Iterable[Mapping[str, float | None]]) -> None:
    """Send lines that a tracker does not have; None stands for NaN and infinity, as the store has them."""
    for line in lines:
        numbers = {name: math.nan if value is None else float(value) for name, value in line.items()}
        step = int(numbers.pop("step"))
        if numbers and step > tracker.last:
            tracker.log(step, numbers)
    tracker.flush()


def new_lines(path: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield the complete lines of a file that another process writes, each once, whenever they are asked for."""
    at = 0
    while True:
        content = b""
        with suppress(FileNotFoundError), path.open("rb") as file:
            file.seek(at)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        at += len(whole)
        yield [*map(json.loads, whole.splitlines())]


def main() -> None:
    first, over = json.loads(sys.stdin.readline()), threading.Event()
    last: dict[str, Any] = {"status": "interrupted"}

    def listen() -> None:
        with suppress(ValueError):  # the training was killed
            last.update(json.loads(sys.stdin.readline()))
        over.set()

    threading.Thread(target=listen, daemon=True).start()
    subject = Subject(**{**first["subject"], **{name: Path(first["subject"][name]) for name in ("root", "folder")}})
    # the process of a training that was killed may still be sending the same run
    lock = FileLock(Path(tempfile.gettempdir()) / f"counterpoint-{subject.identifier}.lock")
    with suppress(Timeout):
        lock.acquire(timeout=2 * PATIENCE)
    trackers, lines = Trackers(first["names"], subject), new_lines(Path(first["metrics"] or ""))
    while first["metrics"]:
        ended = over.wait(PAUSE)
        trackers.send(next(lines))  # once more at the end, for what came in between
        if ended:
            break
    over.wait()
    trackers.end(**last)
    lock.release()
    Path(lock.lock_file).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
