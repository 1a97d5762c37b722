"""What a run does with trackers: a listener that sends its lines to each of them."""

from __future__ import annotations

import hashlib
import json
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..store.cell import dataset_name
from ..store.mirror import local_folder
from ..store.run import Run
from .available import check_installed
from .backends import BACKENDS, Subject, Tracker

FOLDER = "tensorboard"


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
        run.listener = listener = Listener(self.names, run)
        status = "failed"
        try:
            self.train(run)
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        finally:
            run.listener = None
            listener.close(status)  # does nothing after the run has finished


class Listener:
    """Sends the lines of a run to trackers, from the first line on.

    The trackers start with the first line, when it is known at which step a resumed run continues. What they do not
    have of the lines before is sent then: lines of an earlier process that were still on the way when it died.

    Args:
        names: of the trackers.
        run: the run, which must have begun.
    """

    def __init__(self, names: Sequence[str], run: Run) -> None:
        self.names, self.run = names, run
        self._trackers: list[Tracker] | None = None

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Send a line, which the run has already stored."""
        if self._trackers is None:
            self._start(step)
        else:
            self._each(lambda tracker: tracker.log(step, numbers))

    def flush(self) -> None:
        """Wait until everything so far is sent; called before a checkpoint is written."""
        self._each(lambda tracker: tracker.flush())

    def finish(self, result: Mapping[str, float]) -> None:
        """Send the result, and end the trackers' runs."""
        if self._trackers is None:
            lines = self.run.metrics()
            self._start(int(lines[-1]["step"]) + 1 if lines else 0)
        self._each(lambda tracker: tracker.finish(result))
        self.close("done")

    def close(self, status: str) -> None:
        """End the trackers' runs: ``done``, ``interrupted`` or ``failed``."""
        self._each(lambda tracker: tracker.close(status))
        self._trackers = []

    def __getstate__(self) -> dict[str, Any]:
        """Pickle for a process that trains the run; the trackers start there."""
        return {**vars(self), "_trackers": None}

    def _start(self, step: int) -> None:
        """Start the trackers at a step, and send them the lines that they do not have."""
        subject = subject_of(self.run)
        self._trackers = []
        for name in self.names:
            try:
                self._trackers.append(BACKENDS[name](subject, step))
            except Exception as error:
                self._leave_out(name, error)
        lines = self.run.metrics() if self._trackers else []

        def send(tracker: Tracker) -> None:
            for line in lines:
                numbers = {k: v for k, v in line.items() if k != "step" and not tracker.has(int(line["step"]), k)}
                if numbers:
                    tracker.log(int(line["step"]), numbers)

        self._each(send)

    def _each(self, call: Callable[[Tracker], object]) -> None:
        for tracker in list(self._trackers or ()):
            try:
                call(tracker)
            except Exception as error:
                assert self._trackers is not None
                self._trackers.remove(tracker)
                self._leave_out(tracker.name, error)

    def _leave_out(self, name: str, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        message = f"{self.run.title}: {name} has failed and is left out; the store has everything ({reason})"
        warnings.warn(message, RuntimeWarning, stacklevel=2)


def subject_of(run: Run) -> Subject:
    """What trackers are told of a run. A resumed run has the same identifier, a run begun anew another one."""
    arguments = run.arguments
    place = run.path.relative_to(run.root).as_posix()
    tags = {name: str(arguments[name]) for name in ("domain", "objective", "seed") if arguments[name] is not None}
    return Subject(
        identifier=_digest(place, run.record["started"]),
        name=f"{run.name}, seed {arguments['seed']}",
        group=f"{arguments['domain']}/{dataset_name(arguments)}",
        config=flat(arguments),
        tags=tags,
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

    root = local_folder(root)
    objectives = list(dict.fromkeys(run.name for run in done))
    datasets = list(dict.fromkeys(dataset_name(run.arguments) for run in done))
    subject = Subject(
        identifier=_digest(sorted((str(run.path), run.record.get("started")) for run in done)),
        name=f"report of {', '.join(datasets)}",
        group=f"{done[0].arguments['domain']}/{datasets[0]}",
        config={"rows": objectives, "seeds": sorted({run.arguments["seed"] for run in done}), "runs": len(done)},
        tags={"domain": done[0].arguments["domain"], "report": "page"},
        root=root,
        folder=root / FOLDER / "report",
    )
    metrics = list(dict.fromkeys(name for run in done for name in run.record["result"]))
    with tempfile.TemporaryDirectory() as folder:
        summary = report.summarise(done, metrics=metrics)
        files = list(report.write(summary, folder, formats=("html", "markdown"), pictures=False))
        for name in names:
            try:
                tracker = BACKENDS[name](subject, 0)
                tracker.attach(files)
                tracker.close("done")
            except Exception as error:
                reason = f"{type(error).__name__}: {error}".partition("\n")[0]
                warnings.warn(f"{name} did not take the report ({reason})", RuntimeWarning, stacklevel=2)
