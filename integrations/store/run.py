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

import hashlib
import json
import math
import os
import platform
import shlex
import shutil
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from filelock import FileLock, Timeout  # torch itself requires it

import counterpoint as cp
from counterpoint.hyper import is_number, nearest

from .files import _are_numbers, _checked, _now, _plain, _slug, as_json, atomic, finite
from .progress import Item, track
from .reproduce import _devices, versions

REQUIRED = ("domain", "dataset", "objective", "seed")


class BusyError(Exception):
    """Another process works on the run."""


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


def check_names(changes: Iterable[str], known: Iterable[str]) -> None:
    """Refuses what is no argument of a cell."""
    known = list(known)
    for name in changes:
        if name not in known:
            raise TypeError(f"cell: unknown argument {name!r}.{nearest(name, known)}")
