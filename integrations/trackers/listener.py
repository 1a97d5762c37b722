"""What a run does with trackers: it says which files to follow, and a process of its own sends them."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..store.cell import dataset_name
from ..store.mirror import working_folder
from ..store.run import Run
from .available import check_installed
from .backends import BACKENDS, Subject
from .relay import tell, wait

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
    """Tells the process that sends which runs to follow, from their first line on, and how they end.

    At the first line it is known at which step a resumed run continues.

    Args:
        names: of the trackers.
        run: the run, which must have begun.
    """

    def __init__(self, names: Sequence[str], run: Run) -> None:
        self.names, self.run = names, run
        self._subject: Subject | None = None
        self._ended = False

    def log(self, step: int) -> None:
        """Follow the run, which has stored a line of this step."""
        if self._subject is None:
            self._subject = subject_of(self.run)
            about = {"names": [*self.names], "step": step, "metrics": str(self.run.path / "metrics.jsonl")}
            tell(do="start", subject=self._subject.plain(), **about)

    def finish(self, result: Mapping[str, float]) -> None:
        """Send the result, and end the trackers' runs."""
        if self._subject is None:
            lines = self.run.metrics()
            self.log(int(lines[-1]["step"]) + 1 if lines else 0)
        self._end("done", result)

    def close(self, status: str) -> None:
        """End the trackers' runs as ``interrupted`` or ``failed``, unless the run has finished."""
        self._end(status, None)

    def _end(self, status: str, result: Mapping[str, float] | None) -> None:
        if self._subject is not None and not self._ended:
            self._ended = True
            tell(do="end", subject=self._subject.plain(), status=status, result=result)
            if self.run.mirror is not None:  # what they have written to its folder is sent with it
                wait()


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
    """Send the report of a grid to trackers, as a run of its own with the page as a file, and wait for all of it.

    The same runs have the same identifier, so that a page that is sent again replaces the one before.
    """
    done = [run for run in runs if run.done and not run.tuning]
    if not names or not done:
        wait()
        return
    from .. import report

    root = working_folder(root)
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
        tell(do="attach", subject=subject.plain(), names=[*names], files=[str(file) for file in files])
        wait()
