"""One run: a cell, its folder, and everything a training function reads and writes there."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import torch

from .cell import canonical, folder_of
from .errors import DamagedError
from .files import as_json, atomic, finite, load_checked, now, plain_numbers, set_aside, signature, signed
from .folder import RunFolder
from .place import plain
from .progress import Item, track
from .reading import TUNING, Embeddings, StoredRun
from .reproduce import devices, versions
from .secrets import redacted

__all__ = ["TUNING", "Embeddings", "Listener", "Run", "find_runs"]

Reader = Callable[[], "bytes | None"]


class Listener(Protocol):
    """Hears that a run has stored a line, and its result; see :mod:`counterpoint.integrations.trackers`."""

    def log(self) -> None: ...
    def finish(self, result: Mapping[str, float]) -> None: ...


class Run(StoredRun):
    """One cell of a grid and its folder.

    Reading is always possible. Acquire :meth:`lock` before writing to a run; :func:`run_grid` does so before it calls
    the training function.

    Args:
        root: the folder of all runs, or its URL (``s3://bucket/runs``).
        cell: see :mod:`counterpoint.integrations.store`.
        records: the content of each run.json in the store, by folder, if all were read at once.
    """

    def __init__(self, root: str | Path, cell: Mapping[str, Any], records: Mapping[str, bytes] | None = None) -> None:
        self.arguments = canonical(cell)
        name = folder_of(self.arguments)
        self.folder = _folder(root, name)
        try:
            self._reset(None if records is None else lambda: records.get(name))
        except DamagedError as error:  # the cell says what the run is
            warnings.warn(f"{error}; not used", RuntimeWarning, stacklevel=2)
        if self.record and self.record["arguments"] != self.arguments:
            raise ValueError(f"{self.path}: holds a run with other arguments; move that folder away.")

    @classmethod
    def read(cls, path: str | Path | Run) -> Run:
        """Open the run in a folder or at a URL for reading; a run is returned as it is."""
        return path if isinstance(path, Run) else cls._open(_folder_at(path))

    @classmethod
    def _open(cls, folder: RunFolder, read: Reader | None = None) -> Run:
        run = cls.__new__(cls)
        run.folder = folder
        run._reset(read)
        if not run.record:
            raise ValueError(f"{run.address}: no run there (it has no run.json).")
        run.arguments = run.record["arguments"]
        return run

    def _reset(self, read: Reader | None = None) -> None:
        self.progress = False
        self.listener: Listener | None = None
        self._writable = False
        self._metrics: BinaryIO | None = None
        self._metrics_size = 0  # bytes of metrics.jsonl to keep when it is opened
        self._save_tested = False
        self._begun_at: float | None = None
        self._seconds_before = 0.0
        self.refresh(read)

    # ---- training ------------------------------------------------------------------------------

    def load(self, restore: Callable[[dict[str, Any]], object] = lambda state: None) -> dict[str, Any] | None:
        """Return the state of the last good checkpoint, on the CPU, and drop later log lines; None without one.

        Args:
            restore: gets the state first, and raises :class:`DamagedError` where a file beside the checkpoint is
                damaged, without which it is of no use.
        """
        damaged = False
        self.file("checkpoint.pt")
        for path in self.checkpoints:
            try:
                if (content := load_checked(path, ("state", "metrics", "run"))) is None:
                    continue
                if content["run"] != signature(self.arguments):
                    raise DamagedError(f"{path}: the checkpoint of another run")
                restore(content["state"])
            except DamagedError as error:
                damaged = True
                warnings.warn(f"{error}; not used", RuntimeWarning, stacklevel=2)
                if self._writable:  # move it, or the next save would replace the last good checkpoint by it
                    set_aside(path)
                continue
            if damaged:
                where = f"continues from the checkpoint at step {content['state'].get('step')}"
                warnings.warn(f"{self.path}: {where}", RuntimeWarning, stacklevel=2)
            if self._writable:
                os.replace(path, self.checkpoints[0])
                self._open_metrics(content["metrics"])
            return content["state"]  # type: ignore[no-any-return]
        if self._writable:
            if damaged:
                warnings.warn(f"{self.path}: begins anew, without a checkpoint", RuntimeWarning, stacklevel=2)
            self._open_metrics(0)
        elif damaged:
            raise DamagedError(f"{self.path}: each of its checkpoints is damaged")
        return None

    def log(self, step: int, **numbers: float) -> None:
        """Append a line to metrics.jsonl, where it survives the death of this process."""
        metrics = self._metrics or self._open_metrics(self._metrics_size)
        line = json.dumps({"step": int(step), **plain_numbers(numbers)})
        metrics.write(line.encode() + b"\n")
        metrics.flush()
        if self.listener is not None:
            self.listener.log()

    def save(self, state: Mapping[str, Any], step: int) -> None:
        """Write ``{**state, "step": step}`` to checkpoint.pt; the old one stays until the new one is on the disk.

        Args:
            state: tensors, numbers, strings, and lists, tuples and dicts of them; see :func:`rng_state`.
            step: the number of steps behind this state.
        """
        metrics = self._metrics or self._open_metrics(self._metrics_size)
        os.fsync(metrics.fileno())
        run = signature(self.arguments)
        content = {"state": {**state, "step": int(step)}, "metrics": metrics.tell(), "run": run}
        current, previous = self.checkpoints
        with atomic(current) as file:
            try:
                torch.save(content, file)
            except RuntimeError as error:  # torch complains about its position in the file when the disk is full
                raise error.__context__ if isinstance(error.__context__, OSError) else error from None
            if not self._save_tested:  # once: report a state that cannot be loaded now, not after an interruption
                file.seek(0)
                try:
                    torch.load(file, map_location="cpu", weights_only=True)
                except Exception as error:
                    reason = str(error).partition("\n")[0]
                    raise TypeError(f"save: state contains what cannot be loaded safely: {reason}") from None
                self._save_tested = True
            if current.exists():
                file.flush()
                os.fsync(file.fileno())
                os.replace(current, previous)
        self.folder.push()

    def keep(self, z: Any, labels: Any, names: Iterable[str], about: str = "class") -> None:
        """Store embeddings of a few hundred samples, for the plots of a report.

        Args:
            z: ``(n, d)``, tensor or array.
            labels: ``(n,)`` integers, the index of each sample's class in ``names``.
            names: of the classes.
            about: what the classes are.
        """
        self._check_writable()
        z, labels, names = torch.as_tensor(z).detach().cpu().float(), torch.as_tensor(labels).cpu().long(), list(names)
        if z.dim() != 2 or labels.shape != (len(z),) or not ((labels >= 0) & (labels < len(names))).all():
            shapes = f"{tuple(z.shape)} and {tuple(labels.shape)}"
            raise ValueError(f"keep: expected (n, d) embeddings and n classes among {len(names)} names, got {shapes}.")
        with atomic(self.path / "embeddings.pt") as file:
            torch.save({"z": z, "labels": labels, "names": names, "about": about}, file)

    def export(self, encoder: torch.nn.Module) -> None:
        """Write the weights of the trained encoder to encoder.safetensors, which needs no other part of this run."""
        from safetensors.torch import save

        self._check_writable()
        weights = {
            name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, tensor in encoder.state_dict().items()
        }
        with atomic(self.path / "encoder.safetensors") as file:
            file.write(save(weights, {key: json.dumps(value) for key, value in self.arguments.items()}))

    def counts(self, unit: str) -> None:
        """Record what the steps of :meth:`log` and :meth:`save` count, such as ``epoch``, for the plots of a report."""
        self._write(axis=unit)

    def data(self, checksum: str) -> None:
        """Record the :func:`checksum` of the data; raise if the run began with other data."""
        if (recorded := self.record.get("data")) not in (None, checksum):
            raise ValueError(f"{self.path}: began with data of checksum {recorded}, now it is {checksum}; use --fresh.")
        self._write(data=checksum)

    def finish(self, result: Mapping[str, float], **details: Any) -> None:
        """Mark the run as done.

        Args:
            result: the headline numbers, which tables show.
            details: plain JSON, arrays and tensors to store beside them, such as the numbers per fold.
        """
        if not result:
            raise ValueError("finish: result must hold at least one number, got none.")
        if self._metrics is None:
            self._open_metrics(self._metrics_size)
        self.checkpoints[1].unlink(missing_ok=True)
        self._write(status="done", result=plain_numbers(result), details=details, **self._ending())
        if self.listener is not None:
            self.listener.finish({name: float(value) for name, value in result.items()})
            self.folder.push()  # what trackers have written to the folder

    def track(self, items: Iterable[Item], total: int | None = None) -> Iterator[Item]:
        """Yield the items and show progress; ``total`` includes the steps before a resume."""
        rest = len(items) if isinstance(items, Sized) else None
        before = 0 if total is None or rest is None else total - rest
        return track(items, self.title, total or rest, before) if self.progress else iter(items)

    # ---- around training: what run_grid calls --------------------------------------------------

    @contextmanager
    def lock(self, fresh: bool = False) -> Iterator[None]:
        """Make the run writable for this process, or raise :class:`BusyError`.

        The operating system releases the lock of a process that dies; where the store is a URL, it is a lease, which
        expires. The run is then trained in a folder of this machine.

        Args:
            fresh: empty the folder first.
        """
        with self.folder.held(fresh):
            try:
                try:
                    self._reset()
                except DamagedError:  # replaced by the first record that is written
                    set_aside(self.path / "run.json")
                self._writable = True
                yield
            finally:
                self._writable = False
                if self._metrics is not None:
                    self._metrics.close()
                    self._metrics = None

    @property
    def busy(self) -> bool:
        """Whether another process holds the lock; not in a folder that cannot be written."""
        return self.folder.busy

    def begin(self) -> None:
        """Record that training starts or resumes, and in which environment."""
        self._begun_at, self._seconds_before = time.monotonic(), self.record.get("seconds", 0.0)
        (self.path / "error.txt").unlink(missing_ok=True)
        self._write(
            arguments=self.arguments,
            status="running",
            result=None,
            details=None,
            error=None,
            data=self.record.get("data"),
            versions=versions(),
            host={"system": platform.platform(), "threads": torch.get_num_threads(), "devices": devices()},
            command=shlex.join(redacted(sys.argv)),
            started=self.record.get("started", now()),
            seconds=self._seconds_before,
        )

    def interrupt(self) -> None:
        """Record that training was interrupted."""
        self._write(status="interrupted", **self._ending())

    def fail(self, error: str, traceback: str) -> None:
        """Record that training failed: one line in run.json, the traceback in error.txt."""
        (self.path / "error.txt").write_text(traceback, encoding="utf-8")
        cleared = {"arguments": self.arguments, "status": "failed", "result": None, "details": None, "error": error}
        self._write(**cleared, **self._ending())

    # ---- private -------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Pickle for a process that trains while this one waits and holds the lock."""
        size = self._metrics.tell() if self._metrics else self._metrics_size
        return {**vars(self), "_metrics": None, "_metrics_size": size}

    @property
    def checkpoints(self) -> tuple[Path, Path]:
        """The files of the last checkpoint and of the one before."""
        return self.path / "checkpoint.pt", self.path / "checkpoint.previous.pt"

    def _open_metrics(self, size: int) -> BinaryIO:
        """Open metrics.jsonl to append after its first ``size`` bytes, or after the last whole line before that."""
        self._check_writable()
        if self._metrics is not None:
            self._metrics.close()
        path = self.path / "metrics.jsonl"
        if path.is_dir():
            set_aside(path)
        start = path.read_bytes()[:size] if size and path.exists() else b""
        self._metrics = path.open("r+b" if path.exists() else "xb")
        self._metrics.truncate(start.rfind(b"\n") + 1)
        self._metrics.seek(0, os.SEEK_END)
        return self._metrics

    def _ending(self) -> dict[str, Any]:
        """Return what is recorded when training ends; versions again, since frameworks are imported late."""
        if self._begun_at is None:
            return {}
        seconds = self._seconds_before + time.monotonic() - self._begun_at
        return {"versions": versions(), "finished": now(), "seconds": round(seconds, 3)}

    def _write(self, **changes: Any) -> None:
        self._check_writable()
        text = json.dumps(signed(finite(as_json({**self.record, **changes}))), indent=1, allow_nan=False)
        with atomic(self.path / "run.json") as file:
            file.write(text.encode() + b"\n")
        self.record = json.loads(text)
        self.folder.push()

    def _check_writable(self) -> None:
        if not self._writable:
            raise RuntimeError(f"{self.path}: acquire run.lock() before writing to a run, as run_grid does.")


def _folder(store: str | Path, name: str) -> RunFolder:
    """Return the folder of a run in a store, which is a folder or a URL."""
    store = plain(store)
    if isinstance(store, Path):
        return RunFolder(store, name)
    from .mirror import Mirror

    return Mirror(store, name)


def _folder_at(place: str | Path) -> RunFolder:
    """Return the folder of a run from its own path or URL."""
    place = plain(place)
    if isinstance(place, Path):
        root = (place / "../../../..").resolve()
        folder = RunFolder(root, place.resolve().relative_to(root).as_posix())
        folder.path = place
        return folder
    from .mirror import mirror_at

    return mirror_at(place)


def find_runs(folders: str | Path | Iterable[str | Path]) -> list[Run]:
    """Return the runs in and below these folders or URLs, finished or not, sorted by path."""
    found: dict[object, tuple[RunFolder, Reader | None]] = {}
    for folder in map(plain, [folders] if isinstance(folders, (str, Path)) else folders):
        if isinstance(folder, str):
            from .mirror import find

            found |= find(folder)
        elif not folder.is_dir():
            raise ValueError(f"{folder}: no such folder.")
        else:
            found |= {p.resolve(): (_folder_at(p.parent), None) for p in sorted(folder.rglob("run.json"))}
    runs = []
    for place, read in found.values():
        try:
            runs.append(Run._open(place, read))
        except DamagedError as error:
            warnings.warn(f"{error}; left out", RuntimeWarning, stacklevel=2)
    return runs
