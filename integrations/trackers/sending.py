"""Send runs to trackers by a thread, so that a training waits for nothing but a queue of this process."""

from __future__ import annotations

import hashlib
import json
import math
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from ..store.cell import dataset_name
from ..store.reproduce import rng_state, set_rng_state
from ..store.run import Run
from .available import check_installed
from .backends import BACKENDS, Subject, Tracker

FOLDER = "tensorboard"
PAUSE = 0.5  # seconds between two looks at what there is to send
SAID_AFTER, GIVEN_UP_AFTER = 2.0, 120.0  # seconds at the end of a run
INTERRUPTED = 5.0  # the same after Ctrl-C


def check(names: Iterable[str]) -> None:
    """Raise before any training if a tracker cannot be used: it is missing, or its server does not answer."""
    for name in names:
        check_installed(name)
        try:
            BACKENDS[name].check()
        except Exception as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise ValueError(f"--track {name}: {reason}") from error


def tracked(train: Callable[[Run], None], names: Collection[str]) -> Callable[[Run], None]:
    """Wrap a training function so that its runs are sent to these trackers; without names, return it unchanged."""
    return Tracked(train, tuple(dict.fromkeys(names))) if names else train


class Tracked:
    """A training function whose runs are sent to trackers. It can be pickled if the function can."""

    def __init__(self, train: Callable[[Run], None], names: Sequence[str]) -> None:
        self.train, self.names = train, names

    def __call__(self, run: Run) -> None:
        state = rng_state()
        for name in self.names:  # not in the thread: a fork during an import would leave its lock behind
            with suppress(Exception):  # which the thread reports
                import_module("torch.utils.tensorboard" if name == "tensorboard" else name)
        set_rng_state(state)
        run.listener = sender = Sender(self.names, subject_of(run), run)
        try:
            self.train(run)
        except BaseException as error:
            sender.end("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
            raise
        finally:
            run.listener = None


class Sender:
    """A thread that sends a run, or a report, to trackers; one that fails is left out with one warning.

    Args:
        names: of the trackers.
        subject: what they are told of it.
        run: from whose first line on lines are sent. A tracker gets those of earlier starts that it does not have.
    """

    def __init__(self, names: Sequence[str], subject: Subject, run: Run | None = None) -> None:
        self.names, self.subject, self.run = names, subject, run
        self.lines = deque[Mapping[str, float | None]]()
        self.trackers: dict[str, Tracker] = {}
        self.status, self.result, self.files = "", dict[str, float](), list[Path]()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def log(self, line: Mapping[str, float | None]) -> None:
        """Send a line that the run has stored."""
        if self.run is not None:  # now it is known at which step a resumed run continues
            self.lines.extend(self.run.metrics())
            self.run = None
        else:
            self.lines.append(line)

    def finish(self, result: Mapping[str, float]) -> None:
        """Send the result, and end the trackers' runs."""
        self.log({})
        self.result = {f"result/{name}": value for name, value in result.items()}
        self.end("done")

    def end(self, status: str) -> None:
        """Send the rest, end the trackers' runs as ``done``, ``interrupted`` or ``failed``, and wait for that."""
        if self.status:
            return
        self.status = status
        self._ended.set()
        self._thread.join(SAID_AFTER)
        if self._thread.is_alive():
            print("sending the rest to the trackers; the store has everything", file=sys.stderr, flush=True)
            self._thread.join(INTERRUPTED if status == "interrupted" else GIVEN_UP_AFTER)
        if self._thread.is_alive():
            print("the trackers may not have everything; the store has", file=sys.stderr, flush=True)

    def _send(self) -> None:
        self._each(self.names, lambda name: self.trackers.update({name: BACKENDS[name](self.subject)}))
        while not self._ended.wait(PAUSE):
            self._send_lines()
        self._send_lines()
        self._each([*self.trackers], lambda name: self._finish(self.trackers[name]))

    def _send_lines(self) -> None:
        lines = [self.lines.popleft() for _ in range(len(self.lines))]
        self._each([*self.trackers], lambda name: send(self.trackers[name], lines))

    def _finish(self, tracker: Tracker) -> None:
        if self.result:
            tracker.finish(self.result)
        if self.files:
            tracker.attach(self.files)
        tracker.close(self.status)

    def _each(self, names: Iterable[str], call: Callable[[str], object]) -> None:
        for name in names:
            try:
                call(name)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}".partition("\n")[0]
                about = f"{name} has failed and is left out; the store has everything ({reason})"
                print(f"warning: {self.subject.name}: {about}", file=sys.stderr, flush=True)
                with suppress(Exception):
                    self.trackers.pop(name).close("failed")


def send(tracker: Tracker, lines: Iterable[Mapping[str, float | None]]) -> None:
    """Send lines, except those that a tracker has of an earlier start; None stands for NaN and infinity."""
    for line in lines:
        numbers = {name: math.nan if value is None else float(value) for name, value in line.items()}
        step = int(numbers.pop("step", -1))
        if numbers and step > tracker.last:
            tracker.log(step, numbers)
    tracker.flush()


def subject_of(run: Run) -> Subject:
    """Return what trackers are told of a run. A resumed run has the same identifier, a run begun anew another one."""
    arguments = run.arguments
    return Subject(
        identifier=_digest(run.folder.name, run.record["started"]),
        name=f"{run.name}, seed {arguments['seed']}",
        group=f"{arguments['domain']}/{dataset_name(arguments)}",
        config=flat(arguments),
        tags={name: str(arguments[name]) for name in ("domain", "objective", "seed") if arguments[name] is not None},
        root=run.root,
        folder=run.path / FOLDER,
    )


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Replace dicts within a dict by their items, as ``settings.lr``."""
    items: dict[str, Any] = {}
    for key, value in nested.items():
        items |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return items


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def publish(names: Collection[str], runs: Sequence[Run], root: str | Path) -> None:
    """Send the report of a grid to trackers, as a run of its own with the page as a file.

    The same runs have the same identifier, so that a page that is sent again replaces the one before.
    """
    done = [run for run in runs if run.done and not run.tuning]
    if not names or not done:
        return
    from .. import report
    from ..store.mirror import upload
    from ..store.transport import local

    datasets = list(dict.fromkeys(dataset_name(run.arguments) for run in done))
    domain, here = done[0].arguments["domain"], local(root)
    about = {"rows": [*dict.fromkeys(run.name for run in done)], "runs": len(done)}
    sender = Sender(
        [*names],
        Subject(
            identifier=_digest(sorted((run.address, run.record.get("started")) for run in done)),
            name=f"report of {', '.join(datasets)}",
            group=f"{domain}/{datasets[0]}",
            config={**about, "seeds": sorted({run.arguments["seed"] for run in done})},
            tags={"domain": domain, "report": "page"},
            root=here,
            folder=here / FOLDER / "report",
        ),
    )
    summary = report.summarise(done, metrics=list(dict.fromkeys(name for run in done for name in run.record["result"])))
    with tempfile.TemporaryDirectory() as folder:
        sender.files = list(report.write(summary, folder, formats=("html", "markdown"), pictures=False))
        sender.end("done")
    if "tensorboard" in names:
        upload(root, FOLDER)
