"""One run: the script in a process of its own, and the numbers that it leaves."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from ..store.files import atomic
from ..store.run import Run
from . import child
from .cells import words
from .metrics import SCORES, Metric, Written, curves, printed, read
from .settings import HOST

PATIENCE = 10.0  # seconds that a script has to end when it is interrupted
POLL = 0.2  # seconds between two looks at what a script has printed
SHOWN = 10  # lines of the output of a script that failed
NO_SEED = (
    "does the script set a seed itself, such as TrainingArguments(seed=12)? Make it a flag, named by --seed-flag. Or "
    "is the training too short to move the number?"
)
LOG, ENDED, OUT, WORK, SEAM, REPORT = "log.txt", "ended.json", "out", "work", "seam.json", "report.jsonl"
# in a run's details, and what stands there if the seam has written nothing
SEAM_SAYS: dict[str, object] = {"calls": 0, "first_gradient": 0.0, "step_seconds": None, "training_seconds": None}
SEAM_SAYS |= {"own": HOST, "excluded": None, "notes": {}}
UNREACHED = "at its first step: "  # so with every seed
SKIPPED = (".git", "__pycache__")


class ScriptError(RuntimeError):
    """The script failed, or its loss was not replaced."""


def train(run: Run, script: Sequence[str], metrics: Sequence[Metric], jobs: int) -> None:
    """Run the script, as it was typed, unless it has ended well already, and read its numbers.

    A run's own arguments have the script without its secrets. ``jobs`` says how many runs there are at a time.
    """
    if not (run.path / ENDED).exists():
        _execute(run, script, metrics, jobs)
    finish(run, metrics)
    shutil.rmtree(run.path / WORK, ignore_errors=True)


def finish(run: Run, metrics: Sequence[Metric]) -> None:
    """Read the numbers of a script that has ended, and mark the run as done."""
    path = run.path.resolve()
    ended = json.loads((path / ENDED).read_text(encoding="utf-8"))
    folder, times = Path(ended["folder"]), (ended.pop("began"), ended.pop("ended"))
    shared = ended["jobs"] > 1 and not run.arguments["copy"]
    written = Written(path / OUT, folder, path / LOG, *times, shared, run.arguments.get("lines"))
    result = read(metrics, written)
    lines = curves(metrics, written)
    for line in (path / REPORT).read_text(encoding="utf-8").splitlines() if (path / REPORT).exists() else ():
        numbers = json.loads(line)
        lines.setdefault(numbers.pop("step"), {}).update({f"report/{name}": x for name, x in numbers.items()})
    for step in sorted(lines):
        run.log(step, **lines[step])
    run.finish(result, metrics=[metric.text for metric in metrics], **ended)


def read_again(runs: Iterable[Run], metrics: Sequence[Metric]) -> None:
    """Read the numbers of runs that were done with other metrics."""
    for run in runs:
        if run.done and run.details["metrics"] != [metric.text for metric in metrics]:
            with run.lock():
                finish(run, metrics)


def check_metrics(runs: Iterable[Run], chosen_by: Metric, others: Iterable[Metric]) -> None:
    """Raise ``ValueError`` if runs that were read by one metric lack another, which their process need not compute."""
    if others := [metric for metric in others if metric is not chosen_by and metric.kind != "script"]:
        read_again(runs := [*runs], others)
        read_again(runs, [chosen_by])


def last_lines(run: Run) -> list[str]:
    """Return the end of a script's output."""
    with suppress(OSError):
        return run.file(LOG).read_text(encoding="utf-8", errors="replace").splitlines()[-SHOWN:]
    return []


def _execute(run: Run, script: Sequence[str], metrics: Sequence[Metric], jobs: int) -> None:
    arguments, path, here, root = run.arguments, run.path.resolve(), Path.cwd(), run.folder.root.resolve()
    for name in (OUT, WORK):
        shutil.rmtree(path / name, ignore_errors=True)
    for name in (SEAM, SCORES, REPORT):
        (path / name).unlink(missing_ok=True)
    (path / OUT).mkdir()
    folder = here
    if arguments["copy"]:
        copy_folder(here, folder := path / WORK, arguments["link"], without=root)
    request = {
        "parent": os.getpid(),
        "seed": arguments["seed"] if arguments["set_seed"] else None,
        "measure": [metric for metric in metrics if metric.kind == "script"],
        "scores": str(path / SCORES),
    }
    command = [sys.executable, "-m", child.__name__, json.dumps(request), arguments["host"]]
    command += [f"--objective={arguments['objective']}", *arguments["seam"], f"--counts={path / SEAM}"]
    command += [f"--report={path / REPORT}"] if arguments.get("report") else []
    command += ["--", *words(arguments, script, path / OUT)]
    environment = {"PYTHONHASHSEED": str(arguments["seed"]), "PYTHONUNBUFFERED": "1", **os.environ}
    with (path / LOG).open("wb") as log:
        began = (path / LOG).stat().st_mtime_ns  # the file system's time, which may lag
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **streams)
        stopped = partial(_printed, metrics, path / LOG, most) if (most := arguments.get("lines")) else None
        code = _wait_for(process, stopped)
    seam = json.loads((path / SEAM).read_text(encoding="utf-8")) if (path / SEAM).exists() else {}
    if code or not (seam or (stopped and stopped())):
        lines = last_lines(run)
        own = [line for line in lines if line.strip() and not line.startswith(("counterpoint: ", " "))]
        said = (own or lines or ["it printed nothing"])[-1]
        reason = UNREACHED * (code == 2 and seam["calls"] < 2) + seam["error"] if seam.get("error") else said
        how = f"ended with exit code {code}" if code >= 0 else f"died of signal {-code}"
        raise ScriptError("\n".join([f"the script {how}: {reason}", f"last lines of {path / LOG}:", *lines]))
    os.utime(path / LOG)
    ended = {"folder": str(folder), "began": began, "ended": (path / LOG).stat().st_mtime_ns, "jobs": jobs}
    ended |= {key: seam.get(key, without) for key, without in SEAM_SAYS.items()}
    with atomic(path / ENDED) as file:
        file.write(json.dumps(ended).encode())


def copy_folder(source: Path, target: Path, links: Sequence[str], without: Path) -> None:
    """Copy a folder but for version control and caches, and ``without`` the store; link the names in ``links``."""
    linked = [source / link for link in links]

    def ignored(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if name in SKIPPED or Path(folder, name) in (without, *linked)]

    shutil.copytree(source, target, symlinks=True, ignore=ignored)
    for path in linked:
        (target / path.relative_to(source)).symlink_to(path)


def _printed(metrics: Sequence[Metric], log: Path, most: int) -> bool:
    """Return whether a script has printed so many numbers, each in a whole line."""
    return len(printed(metrics[0].what, log, whole=True)) >= most


def _wait_for(process: subprocess.Popen[Any], stopped: Callable[[], bool] | None = None) -> int:
    """Return the exit code of a process, 0 if it was ``stopped``; if this one is interrupted, end all it started."""
    try:
        while stopped is None or not stopped():
            with suppress(subprocess.TimeoutExpired):
                return process.wait(None if stopped is None else POLL)
    except BaseException:
        _end(process)
        raise
    _end(process)
    return 0


def _end(process: subprocess.Popen[Any]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
