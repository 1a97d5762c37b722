"""The process that sends runs to trackers: ``python -m counterpoint.integrations.trackers.sender MESSAGES``.

It follows the store's own files of the runs that it is told of (:mod:`.relay`), so that a training waits neither for a
tracker's packages nor for its server. It ends, and ends what is open as interrupted, once its standard input does.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout  # torch itself requires it

from .backends import BACKENDS, PATIENCE, Subject, Tracker

PAUSE = 0.5  # seconds between two looks at the files


class Lines:
    """The complete lines of a file that others write, each once."""

    def __init__(self, path: str | Path) -> None:
        self.path, self.at = Path(path), 0

    def new(self) -> Iterator[dict[str, Any]]:
        try:
            with open(self.path, "rb") as file:
                file.seek(self.at)
                content = file.read()
        except FileNotFoundError:
            return
        whole = content[: content.rfind(b"\n") + 1]
        self.at += len(whole)
        for line in whole.splitlines():
            yield json.loads(line)


class Following:
    """A run that trains, and the trackers that it is sent to.

    Args:
        subject: what they are told of it.
        names: of the trackers.
        step: of the first line that this training logs; of the lines before, a tracker is sent what it does not have.
        metrics: the file of its lines.
    """

    def __init__(self, subject: Subject, names: list[str], step: int, metrics: str) -> None:
        self.subject, self.lines = subject, Lines(metrics)
        # the process of a training that was killed may still be sending the same run
        self.lock = FileLock(Path(tempfile.gettempdir()) / f"counterpoint-{subject.identifier}.lock")
        try:
            self.lock.acquire(timeout=2 * PATIENCE)
        except Timeout:
            say(f"{subject.name}: another process is still sending it")
        self.trackers: list[Tracker] = []
        for name in names:
            try:
                self.trackers.append(BACKENDS[name](subject, step))
            except Exception as error:
                self._leave_out(name, error)

    def send(self) -> None:
        """Send the lines that are new."""
        lines = [*self.lines.new()]
        if lines:
            self._each(lambda tracker: send(tracker, lines))

    def end(self, status: str, result: Mapping[str, float] | None) -> None:
        """Send the rest, and end the trackers' runs."""
        self.send()
        if result is not None:
            self._each(lambda tracker: tracker.finish(result))
        self._each(lambda tracker: tracker.close(status))
        if self.lock.is_locked:
            self.lock.release()
            Path(self.lock.lock_file).unlink(missing_ok=True)

    def _each(self, call: Callable[[Tracker], object]) -> None:
        for tracker in [*self.trackers]:
            try:
                call(tracker)
            except Exception as error:
                self.trackers.remove(tracker)
                self._leave_out(tracker.name, error)
                with contextlib.suppress(Exception):
                    tracker.close("failed")

    def _leave_out(self, name: str, error: Exception) -> None:
        say(f"{self.subject.name}: {name} has failed and is left out; the store has everything ({reason(error)})")


def send(tracker: Tracker, lines: list[dict[str, Any]]) -> None:
    """Send lines, except what a tracker has of an earlier process."""
    for line in lines:
        step = int(line["step"])
        new = {k: v for k, v in line.items() if k != "step" and not tracker.has(step, k)}
        numbers = {k: math.nan if v is None else float(v) for k, v in new.items()}  # as the store has NaN and infinity
        if numbers:
            tracker.log(step, numbers)
    tracker.flush()


def attach(subject: Subject, names: list[str], files: list[str]) -> None:
    """Send the report of a grid, as a run of its own."""
    for name in names:
        try:
            tracker = BACKENDS[name](subject, 0)
            tracker.attach([*map(Path, files)])
            tracker.close("done")
        except Exception as error:
            say(f"{name} did not take the report ({reason(error)})")


def reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def say(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


def main() -> None:
    messages, runs = Lines(sys.argv[1]), dict[str, Following]()
    over = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=listen, daemon=True).start()
    last = False
    while True:
        for message in messages.new():
            subject = Subject.read(message["subject"])
            if message["do"] == "start":
                if subject.identifier in runs:
                    runs[subject.identifier].end("interrupted", None)
                about = message["names"], message["step"], message["metrics"]
                runs[subject.identifier] = Following(subject, *about)
            elif message["do"] == "attach":
                attach(subject, message["names"], message["files"])
            elif (run := runs.pop(subject.identifier, None)) is not None:
                run.end(message["status"], message["result"])
        for run in runs.values():
            run.send()
        if last:
            break
        last = over.wait(PAUSE)  # then once more, for what came in between
    for run in runs.values():
        run.end("interrupted", None)
    os.unlink(sys.argv[1])


if __name__ == "__main__":
    main()
