"""Let runs be sent to trackers by a process of their own, so that a training waits for none before its end."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from counterpoint.install import install
from counterpoint.names import check_known

from ..store.cell import dataset_name
from ..store.run import Run
from .backends import BACKENDS, Subject

FOLDER = "tensorboard"
SAID_AFTER, GIVEN_UP_AFTER = 2.0, 120.0  # seconds at the end of a run
INTERRUPTED = 5.0  # the same after Ctrl-C


def check(names: Iterable[str]) -> None:
    """Raise before any training if a tracker cannot be used: it is missing, or its server does not answer."""
    for name in names:
        check_known("--track: unknown tracker", name, BACKENDS)
        try:
            missing = find_spec(name) is None
        except ValueError:  # a module without a spec, or None in its place
            missing = True
        if missing:
            raise ImportError(f"--track {name}: {name} is not installed: {install('track')}")
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
        run.listener = sending = Sending(self.names, subject_of(run), run.path / "metrics.jsonl")
        try:
            self.train(run)
        except BaseException as error:
            sending.end("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
            raise
        finally:
            run.listener = None


class Sending:
    """The process that sends a run or a report (:mod:`.sender`), which trackers cannot disturb from there.

    It starts with the first line, since then it is known at which step a resumed run continues, and ends with this
    process. Messages to it are lines of JSON.

    Args:
        names: of the trackers.
        subject: what they are told of the run.
        metrics: the file of its lines.
    """

    def __init__(self, names: Sequence[str], subject: Subject, metrics: Path | None = None) -> None:
        self.names, self.subject, self.metrics = names, subject, metrics
        self.process: subprocess.Popen[str] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Sending, (self.names, self.subject, self.metrics)  # for a process that trains while this one waits

    def log(self) -> None:
        """Follow the run, which has stored a line."""
        if self.process is None:
            # A session of its own keeps Ctrl-C away. Its output is discarded: that of a command may be JSON.
            command, pipe = [sys.executable, "-m", f"{__package__}.sender"], subprocess.PIPE
            self.process = subprocess.Popen(
                command, stdin=pipe, stdout=subprocess.DEVNULL, text=True, start_new_session=True
            )
            self._tell(names=self.names, subject=vars(self.subject), metrics=self.metrics)

    def finish(self, result: Mapping[str, float]) -> None:
        """Send the result, and end the trackers' runs."""
        self.log()
        self.end("done", result={f"result/{name}": value for name, value in result.items()})

    def end(self, status: str, **last: Any) -> None:
        """Send the rest, end the trackers' runs as ``done``, ``interrupted`` or ``failed``, and wait for that."""
        process = self.process
        if process is None or process.stdin is None or process.stdin.closed:
            return
        self._tell(status=status, **last)
        with suppress(OSError):
            process.stdin.close()
        code: int | None
        try:
            code = process.wait(SAID_AFTER)
        except subprocess.TimeoutExpired:
            print("sending the rest to the trackers; the store has everything", file=sys.stderr, flush=True)
            with suppress(subprocess.TimeoutExpired):
                process.wait(INTERRUPTED if status == "interrupted" else GIVEN_UP_AFTER)
            if (code := process.poll()) is None and status != "interrupted":
                process.kill()
        if code != 0:
            print("the trackers may not have everything; the store has", file=sys.stderr, flush=True)

    def _tell(self, **message: Any) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        with suppress(OSError):  # it has died, which its exit code says
            self.process.stdin.write(json.dumps(message, default=str) + "\n")
            self.process.stdin.flush()


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
    sending = Sending(
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
    sending.log()
    summary = report.summarise(done, metrics=list(dict.fromkeys(name for run in done for name in run.record["result"])))
    with tempfile.TemporaryDirectory() as folder:
        files = report.write(summary, folder, formats=("html", "markdown"), pictures=False)
        sending.end("done", files=[*files])
    if "tensorboard" in names:
        upload(root, FOLDER)
