"""One run: a cell, its folder, and everything a training function reads and writes there."""

import json
import math
import os
import platform
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import torch

from counterpoint.plugins.printing import visible

from ..domain import require
from ..secrets import redacted
from .cell import REQUIRED, canonical, dataset_name, folder_of, row_name
from .errors import DamagedError, StoreError
from .files import as_json, atomic, finite, is_metrics, load_checked, now, signature, signed
from .folder import RunFolder, at_once, plain
from .progress import Item, track
from .reproduce import versions

PUBLISHED = ("run.json", "config.json", "model.safetensors")  # files of a run on the hub
TUNING = "tuning"  # ``purpose`` of the cells of ``counterpoint tune``


class Listener(Protocol):
    """Hears that a run has stored a line, and its result; see :mod:`counterpoint.integrations.trackers`."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None: ...
    def finish(self, result: Mapping[str, float]) -> None: ...


class Run:
    """A cell, and its folder in the folder or URL of all runs; see :mod:`counterpoint.integrations.store`.

    Reading is always possible. Acquire :meth:`lock` before writing to a run; :func:`run_grid` does so before it calls
    the training function.
    """

    arguments: dict[str, Any]
    address: str  # the path or the URL of its folder
    record: dict[str, Any]  # what run.json holds, empty for a new run

    def __init__(self, root: str | Path, cell: Mapping[str, object]) -> None:
        self.arguments = canonical(cell)
        self._reset(_folder(root, folder_of(self.arguments)))
        try:
            self.refresh()
        except DamagedError as error:  # the cell says what the run is
            warnings.warn(f"{error}; not used", RuntimeWarning, stacklevel=1)

    @classmethod
    def read(cls, place: "str | Path | RunFolder | Run") -> "Run":
        """Open the run in a folder or at a URL for reading; a run is returned as it is."""
        if isinstance(place, Run):
            return place
        run = cls.__new__(cls)
        run._reset(place if isinstance(place, RunFolder) else _folder_at(place))
        run.refresh()
        if not run.record:
            raise ValueError(f"{run.address}: no run there (it has no run.json).")
        run.arguments = run.record["arguments"]
        return run

    def _reset(self, folder: RunFolder) -> None:
        self.folder, self.address, self.record = folder, folder.address, {}
        self.progress = False
        self.listener: Listener | None = None
        self._writable = False
        self._metrics: BinaryIO | None = None
        self._begun_at = time.monotonic()

    # ---- reading -------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """The folder of the run on this machine."""
        return self.folder.path

    def file(self, name: str) -> Path:
        """Return the path of a file or folder of the run, which need not exist; fetched if the store is a URL."""
        return self.folder.file(name)

    @property
    def name(self) -> str:
        """The row of a table that the run belongs to: its label, or else the shortest spec of its objective."""
        return row_name(self.arguments)

    @property
    def title(self) -> str:
        """Data set, row and seed."""
        return visible(f"{dataset_name(self.arguments)}, {self.name}, seed {self.arguments['seed']}")

    @property
    def done(self) -> bool:
        """Whether the run has finished."""
        return self.record.get("status") == "done"

    @property
    def tuning(self) -> bool:
        """Whether ``counterpoint tune`` trained the run to select settings, so that its numbers are not results."""
        return bool(self.arguments.get("purpose") == TUNING)

    @property
    def result(self) -> dict[str, float] | None:
        """The headline numbers of a finished run; NaN where one could not be computed."""
        return _with_nan(self.record["result"]) if self.done else None

    @property
    def details(self) -> dict[str, Any]:
        """The details that :meth:`finish` stored beside the headline numbers."""
        return self.record.get("details") or {}

    def flat(self) -> dict[str, object]:
        """Return name, arguments, results and folder in one dict, for programs."""
        return {"name": self.name, **self.arguments, **(self.result or {}), "folder": self.address}

    def refresh(self) -> None:
        """Read run.json again, which another process may have written."""
        self.record, path = {}, self.path / "run.json"
        try:
            if (content := self.folder.record()) is None:
                return
            record = json.loads(content.decode())
        except StoreError:
            raise
        except (OSError, ValueError, RecursionError) as error:
            raise DamagedError(f"{path}: not readable as JSON: {error}") from None
        if not isinstance(record, dict) or record.get("checksum") != signed(record)["checksum"]:
            raise DamagedError(f"{path}: damaged (it does not match its checksum)")
        if not isinstance(arguments := record.get("arguments"), dict) or not set(REQUIRED) <= set(arguments):
            raise DamagedError(f"{path}: not the record of a run")
        self.record = record

    def metrics(self) -> list[dict[str, float]]:
        """Return the lines of metrics.jsonl, without damaged ones and a last line that is only half written."""
        path = self.file("metrics.jsonl")
        try:
            texts = path.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:  # also one that another process removes now
            return []
        lines, damaged = list[dict[str, float]](), list[str]()
        for number, text in enumerate(texts, 1):
            with suppress(OverflowError, RecursionError, ValueError):
                if is_metrics(line := json.loads(text)):
                    lines.append(_with_nan(line))
                    continue
            damaged.append(f"line {number}")
        if damaged:
            warnings.warn(f"{path}: not readable, left out: {', '.join(damaged)}", RuntimeWarning, stacklevel=2)
        return lines

    # ---- training ------------------------------------------------------------------------------

    def load(self, restore: Callable[[dict[str, Any]], object] = lambda state: None) -> dict[str, Any] | None:
        """Return the state of the checkpoint, on the CPU, and drop later log lines; None without one.

        ``restore`` gets the state first, and raises :class:`DamagedError` if a file beside the checkpoint is damaged.
        """
        path, content = self.file("checkpoint.pt"), None
        try:
            if (content := load_checked(path, ("state", "metrics", "run"))) is not None:
                if content["run"] != signature(self.arguments):
                    raise DamagedError(f"{path}: the checkpoint of another run")
                restore(content["state"])
        except DamagedError as error:
            if not self._writable:
                raise
            warnings.warn(f"{error}; not used, the run begins anew", RuntimeWarning, stacklevel=2)
            content = None
        if self._writable:
            self._open_metrics(content["metrics"] if content else 0)
        return content["state"] if content else None

    def log(self, step: int, **numbers: float) -> None:
        """Append a line to metrics.jsonl, where it survives the death of this process."""
        metrics = self._metrics or self._open_metrics()
        plain_numbers = {name: finite(float(value)) for name, value in numbers.items()}
        metrics.write(json.dumps({"step": int(step), **plain_numbers}).encode() + b"\n")
        metrics.flush()
        if self.listener is not None:
            self.listener.log(int(step), _with_nan(plain_numbers))

    def save(self, state: Mapping[str, object], step: int) -> None:
        """Write ``{**state, "step": step}`` to checkpoint.pt; the old one stays until the new one is on the disk.

        ``state`` is of tensors, numbers, strings, and lists, tuples and dicts of them; see :func:`rng_state`.
        """
        metrics = self._metrics or self._open_metrics()
        os.fsync(metrics.fileno())
        content = {"state": {**state, "step": int(step)}, "metrics": metrics.tell(), "run": signature(self.arguments)}
        with atomic(self.path / "checkpoint.pt") as file:
            try:
                torch.save(content, file)
            except RuntimeError as error:  # torch complains about its position in the file when the disk is full
                raise error.__context__ if isinstance(error.__context__, OSError) else error from None
        self.folder.push()

    def export(self, encoder: torch.nn.Module) -> None:
        """Write the weights of the trained encoder to encoder.safetensors, which needs no other part of this run."""
        from safetensors.torch import save

        self._check_writable()
        weights = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in encoder.state_dict().items()}
        with atomic(self.path / "encoder.safetensors") as file:
            file.write(save(weights, {key: json.dumps(value) for key, value in self.arguments.items()}))

    def counts(self, unit: str) -> None:
        """Record the unit of the steps of :meth:`log` and :meth:`save`, such as ``epoch``, for a report's plots."""
        self._write(axis=unit)

    def data(self, checksum: str) -> None:
        """Record the :func:`checksum` of the data; raise if the run began with other data."""
        if (recorded := self.record.get("data")) not in (None, checksum):
            raise ValueError(f"{self.path}: began with data of checksum {recorded}, now it is {checksum}; use --fresh.")
        self._write(data=checksum)

    def finish(self, result: Mapping[str, float], **details: object) -> None:
        """Mark the run as done: ``result`` has the numbers that tables show, ``details`` arrays and plain JSON."""
        if not result:
            raise ValueError("finish: result must hold at least one number, got none.")
        if self._metrics is None:
            self._open_metrics()
        numbers = {name: float(value) for name, value in result.items()}
        self._write(status="done", result=numbers, details=details, **self._ending())
        if self.listener is not None:
            self.listener.finish(numbers)
            self.folder.push()  # what trackers have written to the folder

    def track(self, items: Iterable[Item], total: int | None = None) -> Iterator[Item]:
        """Yield the items and show progress; ``total`` includes the steps before a resume."""
        before = total - len(items) if total is not None and isinstance(items, Sized) else 0
        return track(items, self.title, total, before) if self.progress else iter(items)

    # ---- around training: what run_grid calls --------------------------------------------------

    @contextmanager
    def lock(self, fresh: bool = False) -> Iterator[None]:
        """Make the run writable for this process, or raise :class:`BusyError`.

        The operating system releases the lock of a process that dies; where the store is a URL, it is a lease, which
        expires. The run is then trained in a folder of this machine. ``fresh`` empties the folder first.
        """
        with self.folder.held(fresh):
            self._reset(self.folder)
            with suppress(DamagedError):  # replaced by the first record that is written
                self.refresh()
            self._writable = True
            try:
                yield
            finally:
                self._writable = False
                if self._metrics is not None:
                    self._metrics.close()
                    self._metrics = None

    def begin(self) -> None:
        """Record that training starts or resumes, and in which environment."""
        (self.path / "error.txt").unlink(missing_ok=True)
        devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        self._clear(
            status="running",
            error=None,
            data=self.record.get("data"),
            versions=versions(),
            host={"system": platform.platform(), "threads": torch.get_num_threads(), "devices": devices},
            command=shlex.join(redacted(sys.argv)),
            started=self.record.get("started", now()),
            seconds=self.record.get("seconds", 0.0),
        )

    def interrupt(self) -> None:
        """Record that training was interrupted."""
        self._write(status="interrupted", **self._ending())

    def fail(self, error: str, traceback: str) -> None:
        """Record that training failed: one line in run.json, the traceback in error.txt."""
        (self.path / "error.txt").write_text(traceback, encoding="utf-8")
        self._clear(status="failed", error=error, **self._ending())

    # ---- private -------------------------------------------------------------------------------

    def _open_metrics(self, size: int = 0) -> BinaryIO:
        """Open metrics.jsonl to append after its first ``size`` bytes, or after the last whole line before that."""
        self._check_writable()
        if self._metrics is not None:
            self._metrics.close()
        path = self.path / "metrics.jsonl"
        start = path.read_bytes()[:size] if size and path.exists() else b""
        self._metrics = path.open("r+b" if path.exists() else "xb")
        self._metrics.truncate(start.rfind(b"\n") + 1)
        self._metrics.seek(0, os.SEEK_END)
        return self._metrics

    def _ending(self) -> dict[str, object]:
        """Return the record of the end of training."""
        seconds = self.record.get("seconds", 0.0) + time.monotonic() - self._begun_at
        return {"finished": now(), "seconds": round(seconds, 3)}

    def _write(self, **changes: object) -> None:
        self._check_writable()
        text = json.dumps(signed(finite(as_json({**self.record, **changes}))), indent=1, allow_nan=False)
        with atomic(self.path / "run.json") as file:
            file.write(text.encode() + b"\n")
        self.record = json.loads(text)
        self.folder.push()

    def _clear(self, **changes: object) -> None:
        self._write(arguments=self.arguments, result=None, details=None, **changes)

    def _check_writable(self) -> None:
        if not self._writable:
            raise RuntimeError(f"{self.path}: acquire run.lock() before writing to a run, as run_grid does.")


def _with_nan(numbers: Mapping[str, float | None]) -> dict[str, float]:
    """Replace None, which JSON has in place of NaN and infinity, by NaN."""
    return {name: math.nan if value is None else value for name, value in numbers.items()}


def _folder(store: str | Path, name: str) -> RunFolder:
    """Return the folder of a run in a store."""
    if isinstance(store := plain(store), Path):
        return RunFolder(store, name)
    from .mirror import Mirror

    return Mirror(store, name)


def _folder_at(place: str | Path) -> RunFolder:
    """Return the folder of a run from its own path or URL, which ends with DOMAIN/DATASET/NAME/SEED."""
    if isinstance(place := plain(place), Path):
        root = (place / "../../../..").resolve()
        return RunFolder(root, place.resolve().relative_to(root).as_posix(), place)
    store, *parts = place.rsplit("/", 4)
    if len(parts) < 4 or store.endswith("/"):
        raise ValueError(f"{place}: no run there; expected STORE/DOMAIN/DATASET/NAME/SEED.")
    return _folder(store, "/".join(parts))


def _fetch(reference: str) -> Path:
    """Return the folder of a run that ``counterpoint push`` wrote to the hub: ``hf://owner/name``, or ``...@revision``.

    Only the files that are needed to read it are fetched, so that nothing is unpickled. Without one: ``ValueError``.
    """
    require(f"{reference} needs", "hub", "huggingface_hub")
    from huggingface_hub import snapshot_download

    name, _, revision = reference.removeprefix("hf://").partition("@")
    try:
        folder = Path(snapshot_download(name, revision=revision or None, allow_patterns=list(PUBLISHED)))
    except (OSError, ValueError) as error:  # those of the hub are among these
        raise ValueError(f"{reference}: cannot be fetched ({str(error).strip().partition(chr(10))[0]})") from error
    if missing := [file for file in PUBLISHED if not (folder / file).is_file()]:
        raise ValueError(f"{reference}: no run that counterpoint push wrote; it lacks {', '.join(missing)}")
    return folder


def _folders_in(place: str | Path) -> dict[object, RunFolder]:
    """Return the folders of the runs in and below a folder, at a URL, or on the hub, each by its resolved place."""
    if isinstance(place := _fetch(str(place)) if str(place).startswith("hf://") else plain(place), Path):
        if not place.is_dir():
            raise ValueError(f"{place}: no such folder.")
        return {path.resolve(): _folder_at(path.parent) for path in sorted(place.rglob("run.json"))}
    from .transport import connect

    url = place.removesuffix("/run.json")
    names = sorted(name for name in connect(url).list() if f"/{name}".endswith("/run.json"))
    if not names:
        raise ValueError(f"no runs in {url}: no folder there has a run.json.")
    folders = [_folder_at(f"{url}/{name}".removesuffix("/run.json")) for name in names]
    return {folder.address: folder for folder in folders}


def find_runs(places: str | Path | Iterable[str | Path]) -> list[Run]:
    """Return the runs in and below these folders or URLs, or on the hub, finished or not, sorted by path."""
    folders: dict[object, RunFolder] = {}
    for place in [places] if isinstance(places, (str, Path)) else places:
        folders |= _folders_in(place)

    def read(folder: RunFolder) -> Run | None:
        try:
            return Run.read(folder)
        except DamagedError as error:
            warnings.warn(f"{error}; left out", RuntimeWarning, stacklevel=1)
            return None

    return [run for run in at_once(read, folders.values()) if run is not None]
