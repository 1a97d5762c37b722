"""The store of runs that all domains share: a grid of cells becomes folders that outlive every interruption.

    ROOT/<domain>/<dataset>/<name>-<hash>/seed<k>/
        run.json                  arguments, versions, data checksum, command, status, result; replaced as a whole
        metrics.jsonl             a line of numbers per logged step
        checkpoint.pt             the last checkpoint, and checkpoint.previous.pt until the run is done
        embeddings.pt             of some samples, where the run has kept them, for pictures
        error.txt                 the traceback of a run that failed

A cell is a dict of plain JSON: ``domain``, ``dataset``, ``objective``, ``seed`` and whatever else changes the result.
Cells that differ in more than their seed have different folders. ``objective`` is a spec, or ``None`` for rows that no
objective trains (an untrained encoder); ``label`` names a row in tables, and must be given where there is no spec.

    def train(run):
        model, optimizer, start = ..., ..., 0
        if state := run.load():                          # None in a run that begins
            model.load_state_dict(state["model"]), ...
            runs.set_rng_state(state["rng"])
            start = state["step"]
        for epoch in run.track(range(start, epochs), total=epochs):
            ...
            run.log(epoch + 1, loss=loss)                # before save: what is logged after it, a resume logs again
            run.save({"model": model.state_dict(), "rng": runs.rng_state()}, epoch + 1)
        run.finish({"accuracy": accuracy}, folds=folds)

    done = runs.run_grid(train, cells, "runs", jobs=2)
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import multiprocessing
import os
import platform
import random
import re
import shlex
import shutil
import signal
import sys
import threading
import time
import traceback
import warnings
import zipfile
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sized
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timezone
from importlib import metadata
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import torch
from filelock import FileLock, Timeout  # torch itself requires it

import counterpoint as cp
from counterpoint.hyper import is_number, nearest

try:
    from tqdm import tqdm
except ImportError:  # lines instead of bars
    tqdm = None

Item = TypeVar("Item")

REQUIRED = ("domain", "dataset", "objective", "seed")
# whose versions run.json names, if the run has loaded them: module -> distribution
FRAMEWORKS = {
    "numpy": "numpy",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
    "torch_geometric": "torch_geometric",
    "torchvision": "torchvision",
    "lightly": "lightly",
    "lightning": "lightning",
    "transformers": "transformers",
    "sentence_transformers": "sentence-transformers",
    "datasets": "datasets",
    "gymnasium": "gymnasium",
    "dm_control": "dm-control",
    "mujoco": "mujoco",
}
LINE_EVERY = 30.0  # seconds between two lines about one run's steps, where there is no terminal for a bar
POLL = 1.0
PATIENCE = 20.0  # seconds that a process has to put away its work
SHOWN = 5


class BusyError(Exception):
    """Another process works on the run."""


class GridError(RuntimeError):
    """Some runs of a grid have failed; :attr:`runs` holds all of them, with what the others found."""

    def __init__(self, message: str, runs: list[Run]) -> None:
        super().__init__(message)
        self.runs = runs


class Embeddings(NamedTuple):
    """``(n, d)`` embeddings of samples, the class of each, the classes' names, and what they are classes of."""

    z: torch.Tensor
    labels: torch.Tensor
    names: list[str]
    about: str


class Run:
    """One cell of a grid and its folder. Writing needs the run's lock, which :func:`run_grid` holds for ``train``.

    Args:
        root: the folder of all runs.
        cell: see this module's documentation.
    """

    def __init__(self, root: str | Path, cell: Mapping[str, Any]) -> None:
        self.arguments = canonical(cell)
        rest = {k: v for k, v in self.arguments.items() if k != "seed"}
        hashed = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:8]
        folder = Path(_slug(rest["domain"]), _slug(rest["dataset"]), f"{_slug(self.name)}-{hashed}")
        self.root, self.path = Path(root), Path(root) / folder / f"seed{self.arguments['seed']}"
        self._prepare()
        if self.record and self.record["arguments"] != self.arguments:
            raise ValueError(f"{self.path}: holds a run with other arguments; move that folder away.")

    @classmethod
    def read(cls, path: str | Path) -> Run:
        """The run in a folder, to look at."""
        run = cls.__new__(cls)
        run.path = Path(path)
        run.root = (run.path / "../../../..").resolve()
        run._prepare()
        if not run.record:
            raise ValueError(f"{run.path}: no run there (it has no run.json).")
        run.arguments = run.record["arguments"]
        return run

    def _prepare(self) -> None:
        self.progress = False
        self.record = self._read_record()
        self._writing = False
        self._metrics: BinaryIO | None = None
        self._logged = 0  # bytes that are in metrics.jsonl before it is opened
        self._saved = False
        self._clock, self._spent = time.monotonic(), 0.0

    def _read_record(self) -> dict[str, Any]:
        try:
            record = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise ValueError(f"{self.path / 'run.json'}: not readable as JSON: {error}") from None
        parts = ("arguments", "status", "result")
        arguments, status, result = (record.get(key) if isinstance(record, dict) else None for key in parts)
        begun = isinstance(arguments, dict) and isinstance(status, str) and set(REQUIRED) <= set(arguments)
        if not begun or (status == "done" and not (isinstance(result, dict) and result and _are_numbers(result))):
            raise ValueError(f"{self.path / 'run.json'}: not the record of a run.")
        return record  # type: ignore[no-any-return]

    # ---- looking -------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The row that the run belongs to: its label, or else its objective's spec."""
        return str(self.arguments.get("label") or self.arguments["objective"])

    def flat(self) -> dict[str, Any]:
        """Name, arguments, results and the folder side by side, for machines to read."""
        return {"name": self.name, **self.arguments, **(self.result or {}), "folder": str(self.path)}

    @property
    def title(self) -> str:
        return f"{self.arguments['dataset']}, {self.name}, seed {self.arguments['seed']}"

    @property
    def done(self) -> bool:
        return self.record.get("status") == "done"

    @property
    def result(self) -> dict[str, float] | None:
        """The headline numbers; NaN where one could not be computed."""
        if not self.done:
            return None
        return {k: math.nan if v is None else v for k, v in self.record["result"].items()}

    @property
    def details(self) -> dict[str, Any]:
        """What :meth:`finish` was given beside the headline numbers."""
        return self.record.get("details") or {}

    def metrics(self) -> list[dict[str, float]]:
        """The lines of metrics.jsonl. The last one may be half written, then it is left out."""
        try:
            *lines, _ = (self.path / "metrics.jsonl").read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        found = []
        for number, line in enumerate(lines, 1):
            try:
                numbers = json.loads(line)
            except ValueError:
                numbers = None
            if not isinstance(numbers, dict) or not is_number(numbers.get("step")) or not _are_numbers(numbers):
                raise ValueError(f"{self.path / 'metrics.jsonl'}: line {number} is not readable.")
            found.append({k: math.nan if v is None else v for k, v in numbers.items()})
        return found

    def embeddings(self) -> Embeddings | None:
        """What :meth:`keep` was given, if it was."""
        path = self.path / "embeddings.pt"
        if not path.exists():
            return None
        with path.open("rb") as file:
            try:
                return Embeddings(**_checked(file))
            except Exception as error:
                said = str(error).partition("\n")[0]
                raise ValueError(f"{path}: damaged ({said}); without this file there are no such pictures.") from None

    # ---- working -------------------------------------------------------------------------------

    def keep(self, z: Any, labels: Any, names: Iterable[str], about: str = "class") -> None:
        """Keeps embeddings of a few hundred samples, for the pictures of a report.

        Args:
            z: ``(n, d)``, tensor or array.
            labels: ``(n,)`` integers, each the place of the sample's class in ``names``.
            names: of the classes.
            about: what they are classes of.
        """
        self._must_hold()
        z, labels, names = torch.as_tensor(z).detach().cpu().float(), torch.as_tensor(labels).cpu().long(), list(names)
        if z.dim() != 2 or labels.shape != (len(z),) or not ((labels >= 0) & (labels < len(names))).all():
            shapes = f"{tuple(z.shape)} and {tuple(labels.shape)}"
            raise ValueError(f"keep: expected (n, d) embeddings and n classes among {len(names)} names, got {shapes}.")
        with atomic(self.path / "embeddings.pt") as file:
            torch.save({"z": z, "labels": labels, "names": names, "about": about}, file)

    def log(self, step: int, **numbers: float) -> None:
        """Appends a line to metrics.jsonl, where it is safe from what happens to this process."""
        if self._metrics is None:
            self._metrics_from(self._logged)
        line = json.dumps({"step": int(step), **_plain(numbers)})
        self._metrics.write(line.encode() + b"\n")  # type: ignore[union-attr]
        self._metrics.flush()  # type: ignore[union-attr]

    def save(self, state: Mapping[str, Any], step: int) -> None:
        """Puts ``{**state, "step": step}`` into checkpoint.pt; until it is whole on the disk, the old one stays.

        Args:
            state: tensors, numbers, strings, and lists, tuples and dicts of them; see :func:`rng_state`.
            step: the steps that lie behind this state.
        """
        if self._metrics is None:
            self._metrics_from(self._logged)
        os.fsync(self._metrics.fileno())  # type: ignore[union-attr]
        content = {"state": {**state, "step": int(step)}, "metrics": self._metrics.tell()}  # type: ignore[union-attr]
        current, previous = self._checkpoints()
        with atomic(current) as file:
            try:
                torch.save(content, file)
            except RuntimeError as error:  # about its position in the file, while the disk was full
                raise error.__context__ if isinstance(error.__context__, OSError) else error from None
            if not self._saved:  # once, so that what could not be loaded is known now and not after an interruption
                file.seek(0)
                try:
                    torch.load(file, map_location="cpu", weights_only=True)
                except Exception as error:
                    said = str(error).partition("\n")[0]
                    raise TypeError(f"save: state holds what cannot be loaded safely again: {said}") from None
                self._saved = True
            if current.exists():
                file.flush()
                os.fsync(file.fileno())
                os.replace(current, previous)

    def load(self) -> dict[str, Any] | None:
        """The last good checkpoint's state, on the CPU; ``None`` if there is none. Later log lines are dropped."""
        for path in self._checkpoints():
            try:
                file = path.open("rb")
            except FileNotFoundError:
                continue
            with file:
                try:
                    content = _checked(file)
                except MemoryError:
                    raise
                except Exception as error:
                    warnings.warn(f"{path}: damaged, not used ({error})", RuntimeWarning, stacklevel=2)
                    content = None
            if content is not None:
                if self._writing:
                    os.replace(path, self._checkpoints()[0])
                    self._metrics_from(content["metrics"])
                return content["state"]  # type: ignore[no-any-return]
            if self._writing:  # aside, or the next save would put it in the place of the last good one
                os.replace(path, self.path / "checkpoint.damaged.pt")
        if self._writing:
            self._metrics_from(0)
        return None

    @property
    def axis(self) -> str:
        """What the steps of metrics.jsonl count; see :meth:`counts`."""
        return str(self.record.get("axis", "step"))

    def counts(self, what: str) -> None:
        """Notes what the steps of :meth:`log` and :meth:`save` are, such as ``epoch``, for the pictures of a report."""
        self._write(axis=what)

    def data(self, checksum: str) -> None:
        """Notes the :func:`checksum` of the data, and refuses to go on with other data than the run began with."""
        if (known := self.record.get("data")) not in (None, checksum):
            raise ValueError(f"{self.path}: began with data of checksum {known}, now it is {checksum}; use --fresh.")
        self._write(data=checksum)

    def finish(self, result: Mapping[str, float], **details: Any) -> None:
        """Marks the run as done.

        Args:
            result: the headline numbers that tables are made of.
            details: plain JSON, arrays and tensors kept beside them, such as the numbers per fold.
        """
        if not result:
            raise ValueError("finish: result must hold at least one number, got none.")
        if self._metrics is None:
            self._metrics_from(self._logged)
        self._checkpoints()[1].unlink(missing_ok=True)
        self._write(status="done", result=_plain(result), details=details, **self._ending())

    def track(self, items: Iterable[Item], total: int | None = None) -> Iterator[Item]:
        """The items, with a bar on a terminal, and elsewhere a line now and then. ``total`` counts those before too."""
        rest = len(items) if isinstance(items, Sized) else None
        before = 0 if total is None or rest is None else total - rest
        return track(items, self.title, total or rest, before) if self.progress else iter(items)

    @contextmanager
    def lock(self, fresh: bool = False) -> Iterator[None]:
        """Makes the run this process's own, or raises :class:`BusyError`. The system frees the lock of a dead process.

        Args:
            fresh: empty the folder.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise BusyError(self.title) from None
        try:
            for path in list(self.path.iterdir()) if fresh else ():
                if path.name != ".lock":
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            self._prepare()
            self._writing = True
            yield
        finally:
            self._writing = False
            if self._metrics is not None:
                self._metrics.close()
                self._metrics = None
            lock.release()

    def __getstate__(self) -> dict[str, Any]:
        """For a process that works on the run while this one waits and keeps the lock."""
        return {**vars(self), "_metrics": None, "_logged": self._metrics.tell() if self._metrics else self._logged}

    def _checkpoints(self) -> tuple[Path, Path]:
        return self.path / "checkpoint.pt", self.path / "checkpoint.previous.pt"

    def _metrics_from(self, size: int) -> None:
        """Opens metrics.jsonl to go on behind its first ``size`` bytes, or behind the last whole line before that."""
        self._must_hold()
        if self._metrics is not None:
            self._metrics.close()
        path = self.path / "metrics.jsonl"
        kept = path.read_bytes()[:size] if size and path.exists() else b""
        self._metrics = path.open("r+b" if path.exists() else "xb")
        self._metrics.truncate(kept.rfind(b"\n") + 1)
        self._metrics.seek(0, os.SEEK_END)

    def _begin(self) -> None:
        self._clock, self._spent = time.monotonic(), self.record.get("seconds", 0.0)
        self._write(
            arguments=self.arguments,
            status="running",
            result=None,
            details=None,
            error=None,
            data=self.record.get("data"),
            versions=versions(),
            host={"system": platform.platform(), "threads": torch.get_num_threads(), "devices": _devices()},
            command=shlex.join(sys.argv),
            started=self.record.get("started", _now()),
            seconds=self._spent,
        )

    def _ending(self) -> dict[str, Any]:
        # versions once more: frameworks are loaded late
        seconds = self._spent + time.monotonic() - self._clock
        return {"versions": versions(), "finished": _now(), "seconds": round(seconds, 3)}

    def _write(self, **changes: Any) -> None:
        self._must_hold()
        text = json.dumps(finite(as_json({**self.record, **changes})), indent=1, allow_nan=False)
        with atomic(self.path / "run.json") as file:
            file.write(text.encode() + b"\n")
        self.record = json.loads(text)

    def _must_hold(self) -> None:
        if not self._writing:
            raise RuntimeError(f"{self.path}: only who holds run.lock(), as run_grid does, writes into a run.")


def canonical(cell: Mapping[str, Any]) -> dict[str, Any]:
    """A cell as plain JSON with its objective's canonical spec; raises if something is missing or not plain."""
    for key in REQUIRED:
        if key not in cell:
            raise ValueError(f"cell: expected {', '.join(REQUIRED)}, got {', '.join(map(str, cell)) or 'nothing'}.")
    plain: dict[str, Any] = {}
    for key, value in cell.items():
        try:
            plain[key] = as_json(value)
            json.dumps(plain[key], allow_nan=False)
        except (TypeError, ValueError):
            raise ValueError(f"cell: {key} must be plain JSON, got {value!r}.") from None
    for key in ("domain", "dataset"):
        if not isinstance(plain[key], str) or not plain[key]:
            raise ValueError(f"cell: {key} must be a name, got {plain[key]!r}.")
    seed = plain["seed"]
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**32:
        raise ValueError(f"cell: seed must be a whole number with 0 <= seed < 2**32, got {seed!r}.")
    if plain["objective"] is not None:
        plain["objective"] = str(cp.objective(plain["objective"]))
    elif not plain.get("label"):
        raise ValueError("cell: a row without an objective needs a label.")
    return plain


def find_runs(folders: str | Path | Iterable[str | Path]) -> list[Run]:
    """The runs in and below these folders, finished or not, in the order of their paths."""
    given = [folders] if isinstance(folders, (str, Path)) else list(folders)
    found: dict[Path, Path] = {}
    for folder in map(Path, given):
        if not folder.is_dir():
            raise ValueError(f"{folder}: no such folder.")
        found |= {path.resolve(): path.parent for path in sorted(folder.rglob("run.json"))}
    return [Run.read(path) for path in found.values()]


# ---- grids -------------------------------------------------------------------------------------


def run_grid(
    train: Callable[[Run], None],
    cells: Iterable[Mapping[str, Any]],
    root: str | Path,
    *,
    jobs: int = 1,
    resume: bool = True,
    progress: bool = True,
    before: int = 0,
    total: int | None = None,
) -> list[Run]:
    """Trains every cell that is not done yet, and returns the runs of all.

    Each run begins with :func:`seed_everything` of its seed. One that fails does not stop the others; at the end a
    :class:`GridError` says which did. Cells that another process works on are left to it, and waited for. Whatever
    ends this process, the same call goes on from the last checkpoints.

    Args:
        train: trains one run and calls its ``finish``; for ``jobs`` above 1 a function that other processes can import.
        cells: see this module's documentation; equal ones are one run.
        root: the folder of all runs.
        jobs: processes at a time, at least 1. They share the threads of this one, unless ``OMP_NUM_THREADS`` is set;
            sums over another number of threads may round differently.
        resume: if false, every cell is done anew, and what its folder holds is deleted.
        progress: whether to say on stderr how far it is.
        before, total: of a grid that is a part of something longer, the runs before it, and those there may be at most.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}.")
    Path(root).mkdir(parents=True, exist_ok=True)
    asked = [Run(root, cell) for cell in cells]
    runs = {run.path: run for run in asked}
    todo = [run for run in runs.values() if not (resume and run.done)]
    count, total = before + len(runs) - len(todo), total or len(runs)
    failed: dict[Path, str] = {}
    say = _say if progress else lambda _: None
    if count > before:
        say(f"{count} of {total} runs are done already")
    bar = _bar("runs", total, count) if progress else None
    try:
        while todo:
            busy = []
            with closing(_outcomes(train, todo, jobs, resume, progress)) as outcomes:
                for run, outcome in outcomes:
                    if outcome == BUSY:
                        busy.append(run)
                        continue
                    run.record = run._read_record()
                    count += 1
                    if outcome:
                        failed[run.path] = outcome
                    said = f"failed: {outcome}" if outcome else _numbers(run.result or {})
                    say(f"[{count}/{total}] {run.title}: {said}")
                    if bar is not None:
                        bar.update()
            if busy:
                say(f"waiting for another process: {busy[0].title}" + (" and others" if len(busy) > 1 else ""))
            while busy and all(map(_is_busy, busy)):
                time.sleep(POLL)
            todo = busy
    except KeyboardInterrupt:
        said = f"stopped; {count} of {total} runs are over, and the same command goes on from here"
        raise KeyboardInterrupt(said) from None
    finally:
        if bar is not None:
            bar.close()
    for run in asked:
        run.record = runs[run.path].record
    if failed:
        named = [f"{runs[path].title} ({why})" for path, why in failed.items()]
        more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
        said = f"{len(failed)} of {len(runs)} runs failed, see error.txt in their folders: {'; '.join(named[:SHOWN])}"
        raise GridError(said + more, asked)
    return asked


BUSY = "busy"


def _outcomes(
    train: Callable[[Run], None], todo: list[Run], jobs: int, resume: bool, progress: bool
) -> Generator[tuple[Run, str], None, None]:
    """Each run with BUSY, what went wrong, or nothing."""
    if jobs > 1 and len(todo) > 1:
        return _spread(train, todo, min(jobs, len(todo)), resume, progress)
    return ((run, _attempt(train, run, resume, progress)) for run in todo)


def _attempt(train: Callable[[Run], None], run: Run, resume: bool, progress: bool) -> str:
    try:
        with run.lock(fresh=not resume):
            # another process may have done it, since this one looked
            return "" if run.done else _train(train, run, progress)
    except BusyError:
        return BUSY


def _train(train: Callable[[Run], None], run: Run, progress: bool) -> str:
    """Trains one run, and keeps what went wrong in its folder."""
    error_file, began, now = run.path / "error.txt", run.record.get("versions", {}), versions()
    changed = [name for name, version in began.items() if now.get(name, version) != version]
    try:
        if changed:
            _say(f"{run.title}: goes on with another version of {', '.join(changed)} than it began with")
        error_file.unlink(missing_ok=True)
        run.progress = progress
        run._begin()
        seed_everything(run.arguments["seed"])
        train(run)
        if not run.done:
            raise RuntimeError("the training function returned without run.finish(result)")
    except KeyboardInterrupt:
        with suppress(OSError):
            run._write(status="interrupted", **run._ending())
        raise
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        with suppress(OSError):  # a full disk, which then is the error that is told
            error_file.write_text(traceback.format_exc(), encoding="utf-8")
            run._write(status="failed", result=None, details=None, error=said, **run._ending())
        return said
    return ""


def _spread(
    train: Callable[[Run], None], todo: list[Run], jobs: int, resume: bool, progress: bool
) -> Generator[tuple[Run, str], None, None]:
    """The outcomes from ``jobs`` processes. One that dies fails its run, and another takes its place."""
    try:
        ForkingPickler.dumps(train)
    except Exception as error:
        raise ValueError(f"jobs={jobs}: other processes cannot import the training function: {error}") from None
    context = multiprocessing.get_context("spawn")
    waiting = deque(todo)
    workers: dict[Any, SpawnProcess] = {}
    working: dict[Any, Run] = {}
    try:
        while waiting or working:
            while waiting and len(working) < jobs:
                idle = [connection for connection in workers if connection not in working]
                if not idle:
                    ours, theirs = context.Pipe()
                    process = context.Process(target=_work, args=(theirs, train, resume, progress))
                    with _threads(max(1, torch.get_num_threads() // jobs)), _deaf():
                        process.start()
                    theirs.close()
                    workers[ours] = process
                    idle = [ours]
                run = working[idle[0]] = waiting.popleft()
                with suppress(OSError):  # it died at once, as the next lines will find
                    idle[0].send((run.root, run.arguments))
            ready: list[Any] = wait(list(working))
            for connection in ready:
                run = working.pop(connection)
                try:
                    outcome = connection.recv()
                except (EOFError, ConnectionResetError):
                    outcome = _died(run, workers.pop(connection))
                yield run, outcome
    finally:
        for connection, process in workers.items():
            if connection in working:
                process.terminate()
            else:  # it returns
                connection.close()
        for process in workers.values():
            process.join(PATIENCE)
            process.kill()
            process.join()


def _died(run: Run, process: SpawnProcess) -> str:
    process.join()
    code = process.exitcode or 0
    said = f"its process died of signal {-code}" if code < 0 else f"its process ended with exit code {code}"
    with suppress(BusyError, OSError), run.lock():
        (run.path / "error.txt").write_text(said + "\n", encoding="utf-8")
        run._write(arguments=run.arguments, status="failed", error=said)
    return said


def _work(connection: Any, train: Callable[[Run], None], resume: bool, progress: bool) -> None:
    """A process that trains what it is sent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends this process
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so, with all that an interruption cleans up
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with plain_warnings(), suppress(EOFError, KeyboardInterrupt):
        while True:
            root, cell = connection.recv()
            connection.send(_attempt(train, Run(root, cell), resume, progress))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes started here do not hear Ctrl-C, not even while they import what they need."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # which otherwise starts with the first process, and then lets signals through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """The number of threads that a process started here will use, unless the user has chosen one."""
    if "OMP_NUM_THREADS" in os.environ:
        yield
        return
    os.environ["OMP_NUM_THREADS"] = str(count)
    try:
        yield
    finally:
        del os.environ["OMP_NUM_THREADS"]


def _is_busy(run: Run) -> bool:
    try:
        with run.lock():
            return False
    except BusyError:
        return True


# ---- progress ----------------------------------------------------------------------------------


def track(items: Iterable[Item], what: str, total: int | None = None, before: int = 0) -> Iterator[Item]:
    """The items, with a bar on a terminal, and elsewhere a line every half minute.

    Args:
        what: the words before the numbers.
        total: how many there are, those before the first included.
        before: how many lie before the first, in a run that goes on.
    """
    if (bar := _bar(what, total, before)) is not None:
        with bar:
            for item in items:
                yield item
                bar.update()
        return
    said = time.monotonic()
    for done, item in enumerate(items, before + 1):
        yield item
        if time.monotonic() - said >= LINE_EVERY:
            said = time.monotonic()
            _say(f"{what}: {done}" + (f"/{total}" if total else ""))


def _bar(what: str, total: int | None, before: int) -> Any:
    # bars of several processes would write over each other
    if tqdm is None or not sys.stderr.isatty() or multiprocessing.parent_process() is not None:
        return None
    return tqdm(total=total, initial=before, desc=what, leave=False, dynamic_ncols=True)


def _say(line: str) -> None:
    if tqdm is None:
        print(line, file=sys.stderr, flush=True)
    else:
        tqdm.write(line, file=sys.stderr)
        sys.stderr.flush()


@contextmanager
def plain_warnings() -> Iterator[None]:
    """What is warned of here is said in lines like all others: for commands, whose users have not called this code."""
    shown, ours = warnings.showwarning, Path(__file__).parent

    def show(message: Any, category: type[Warning], filename: str, *where: Any, **how: Any) -> None:
        if issubclass(category, RuntimeWarning) and ours in Path(filename).parents:
            _say(str(message))
        else:
            shown(message, category, filename, *where, **how)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = shown


def _numbers(result: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.5g}" for name, value in result.items())


# ---- random numbers ----------------------------------------------------------------------------


def seed_everything(seed: int) -> None:
    """Seeds torch (all devices), numpy if it is installed, and Python; ``0 <= seed < 2**32``."""
    random.seed(seed)
    torch.manual_seed(seed)
    if (numpy := _numpy()) is not None:
        numpy.random.seed(seed)


def rng_state() -> dict[str, Any]:
    """The state of all that :func:`seed_everything` seeds, for :meth:`Run.save`.

    Generators of one's own have states that can be saved beside it: ``generator.get_state()`` of torch's,
    ``generator.bit_generator.state`` of numpy's.
    """
    state = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    if (numpy := _numpy()) is not None:
        kind, keys, *rest = numpy.random.get_state()
        state["numpy"] = (kind, keys.tolist(), *rest)
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Goes back to what :func:`rng_state` returned, for those devices and packages that are here."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    for device, one in zip(range(torch.cuda.device_count()), state.get("cuda", ()), strict=False):
        torch.cuda.set_rng_state(one, device)
    if "numpy" in state and (numpy := _numpy()) is not None:
        numpy.random.set_state(state["numpy"])


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        return None
    return numpy


# ---- files and facts ---------------------------------------------------------------------------


@contextmanager
def atomic(path: str | Path) -> Iterator[BinaryIO]:
    """A binary file that appears at ``path``, in the place of an older one, only when it is whole on the disk."""
    path = Path(path)
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # the new name too
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def checksum(*parts: Path | str | bytes | memoryview) -> str:
    """SHA-256 of data, in hexadecimal: of the content of a file, of all files in a folder, of a text, of bytes.

    >>> checksum("a", b"b") == checksum("a", b"b") != checksum("ab")
    True
    """
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            files = sorted(path for path in part.rglob("*") if path.is_file()) if part.is_dir() else [part]
            for path in files:
                total.update(path.relative_to(part).as_posix().encode())
                with path.open("rb") as file:
                    total.update(_digest(iter(lambda: file.read(1 << 20), b"")))
        else:
            total.update(_digest([part.encode() if isinstance(part, str) else part]))
    return total.hexdigest()


def _digest(blocks: Iterable[bytes | memoryview]) -> bytes:
    one = hashlib.sha256()
    for block in blocks:
        one.update(block)
    return one.digest()


def versions() -> dict[str, str]:
    """Versions of Python, this package, torch and the frameworks that are loaded."""
    found = {"python": platform.python_version(), "counterpoint": cp.__version__, "torch": str(torch.__version__)}
    for module, distribution in FRAMEWORKS.items():
        if module in sys.modules:
            with suppress(metadata.PackageNotFoundError):
                found[distribution] = metadata.version(distribution)
    return found


def _checked(file: BinaryIO) -> Any:
    """What a checkpoint holds; raises if a byte of it has changed, which torch.load alone does not see."""
    with zipfile.ZipFile(file) as archive:
        if (damaged := archive.testzip()) is not None:
            raise zipfile.BadZipFile(f"{damaged} does not match its checksum")
    file.seek(0)
    return torch.load(file, map_location="cpu", weights_only=True)


def as_json(value: Any) -> Any:
    """A copy in plain JSON, arrays and tensors as lists and numbers."""

    def listed(one: Any) -> Any:
        if hasattr(one, "tolist"):
            return one.tolist()
        raise TypeError(f"expected plain JSON, arrays or tensors, got {one!r}.")

    return json.loads(json.dumps(value, default=listed))


def finite(value: Any) -> Any:
    """Plain data with None for NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _are_numbers(found: Mapping[str, Any]) -> bool:
    """Whether these are what :func:`_plain` writes."""
    return all(value is None or is_number(value) for value in found.values())


def _plain(numbers: Mapping[str, Any]) -> dict[str, float | None]:
    return {name: finite(float(value)) for name, value in numbers.items()}


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.=]+", "-", name)[:60].strip("-.") or "-"


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _devices() -> list[str]:
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


# ---- the command line that all domains share ---------------------------------------------------


def run_asked(
    train: Callable[[Run], None], cells: Iterable[dict[str, Any]], given: argparse.Namespace, domain: str
) -> tuple[list[Run], int]:
    """Runs what a ``train`` command was asked for: what is finished, and the exit code. Failures are said."""
    try:
        return run_grid(train, cells, given.out, jobs=given.jobs, resume=given.resume, progress=not given.json), 0
    except GridError as error:
        print(f"counterpoint train {domain}: {error}", file=sys.stderr)
        return [run for run in error.runs if run.done], 1


def use_data(flag: str, folder: str | Path | None) -> None:
    """Sets the folder of data sets that a flag names, for the processes that train too; ``hub`` is none."""
    if folder is not None:
        if str(folder) != "hub" and not Path(folder).is_dir():
            raise ValueError(f"--{flag}: {folder} is no folder")
        os.environ["COUNTERPOINT_DATA"] = str(folder)


def check_names(changes: Iterable[str], known: Iterable[str]) -> None:
    """Refuses what is no argument of a cell."""
    known = list(known)
    for name in changes:
        if name not in known:
            raise TypeError(f"cell: unknown argument {name!r}.{nearest(name, known)}")


def add_arguments(parser: argparse.ArgumentParser, length: str | None = "epochs", presets: Iterable[str] = ()) -> None:
    """Adds the flags that every domain has. ``parser.set_defaults(...)`` afterwards sets a domain's own defaults.

    Args:
        length: what training is measured in, ``epochs`` or ``steps``; None where that is not to be chosen.
        presets: names of the recipes to choose from.
    """
    add = parser.add_argument
    say = "one or more (the preset's, else infonce)"
    add("--objective", nargs="+", type=_spec, metavar="SPEC", default=["infonce"], help=say)
    add("--seed", type=whole(0), default=0, metavar="K", help="of the first run (%(default)s)")
    add("--seeds", type=whole(1), default=1, metavar="N", help="runs per objective, seeds K to K+N-1 (%(default)s)")
    if length:
        add(f"--{length}", type=whole(0), metavar="N", help=f"{length} of training")
    if names := list(presets):
        add("--preset", choices=names, help="settings of a paper; flags that are given win over it")
    add("--out", type=Path, default=Path("runs"), metavar="FOLDER", help="where the runs are kept (%(default)s)")
    data = os.environ.get("COUNTERPOINT_DATA")
    add("--data", type=Path, default=data and Path(data), metavar="FOLDER", help="data sets ($COUNTERPOINT_DATA)")
    add("--device", type=device, default="cpu", help="cpu, cuda, cuda:1, ... or auto (%(default)s)")
    add("--jobs", type=whole(1), default=1, metavar="N", help="runs at a time (%(default)s)")
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", default=True, help="go on where runs stopped (the default)")
    again.add_argument("--fresh", dest="resume", action="store_false", help="delete these runs first")
    add("--json", action="store_true", help="print JSON")


def _spec(text: str) -> str:
    try:
        return str(cp.objective(text))
    except (TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def whole(low: int) -> Callable[[str], int]:
    """What reads a whole number of at least ``low`` from a command line."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < low:
            raise argparse.ArgumentTypeError(f"expected a whole number of at least {low}, got {text!r}")
        return int(text)

    return read


def device(text: str) -> str:
    """The device that a command line names."""
    if text == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=text)
    except (AssertionError, RuntimeError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be used: {str(error).partition(chr(10))[0]}") from None
    return text
