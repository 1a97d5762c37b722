"""Reading a run: its record, its numbers and its embeddings. :mod:`.run` adds what writes."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from counterpoint.names import visible

from .cell import dataset_name, is_record, row_name
from .errors import DamagedError, StoreError
from .files import are_metrics, is_signed, load_checked, read_lines
from .folder import RunFolder

TUNING = "tuning"  # ``purpose`` of the cells of ``counterpoint tune``


class Embeddings(NamedTuple):
    """``(n, d)`` embeddings of samples, the class of each, the names of the classes, and what the classes are."""

    z: torch.Tensor
    labels: torch.Tensor
    names: list[str]
    about: str


class StoredRun:
    """One cell of a grid and its folder, for reading; see :class:`~.run.Run`."""

    arguments: dict[str, Any]
    record: dict[str, Any]
    folder: RunFolder

    @property
    def root(self) -> Path:
        """The folder of all runs on this machine."""
        return self.folder.root

    @property
    def path(self) -> Path:
        """The folder of the run on this machine."""
        return self.folder.path

    @property
    def address(self) -> str:
        """The folder or the URL of the run."""
        return self.folder.address

    @property
    def store(self) -> str | Path:
        """The folder or the URL of all runs."""
        return self.folder.store

    def file(self, name: str) -> Path:
        """Return the path of a file or folder of the run, which need not exist; fetched if the store is a URL."""
        return self.folder.file(name)

    def refresh(self, read: Callable[[], bytes | None] | None = None) -> None:
        """Read run.json again, which another process may have written.

        Args:
            read: returns its content, if that was read already.
        """
        self.record = {}
        path = self.path / "run.json"
        try:
            if (content := (read or self.folder.record)()) is None:
                return
            record = json.loads(content.decode())
        except StoreError:
            raise
        except (OSError, ValueError, RecursionError) as error:
            raise DamagedError(f"{path}: not readable as JSON: {error}") from None
        if not is_record(record):
            raise DamagedError(f"{path}: not the record of a run")
        if not is_signed(record):
            raise DamagedError(f"{path}: damaged (it does not match its checksum)")
        self.record = record

    @property
    def name(self) -> str:
        """The row of a table that the run belongs to: its label, or else the shortest spec of its objective."""
        return row_name(self.arguments)

    def flat(self) -> dict[str, Any]:
        """Return name, arguments, results and folder in one dict, for programs."""
        return {"name": self.name, **self.arguments, **(self.result or {}), "folder": self.address}

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
        if not self.done:
            return None
        return {k: math.nan if v is None else v for k, v in self.record["result"].items()}

    @property
    def details(self) -> dict[str, Any]:
        """What :meth:`finish` stored beside the headline numbers."""
        return self.record.get("details") or {}

    @property
    def axis(self) -> str:
        """What the steps of metrics.jsonl count; see :meth:`counts`."""
        return str(self.record.get("axis", "step"))

    def metrics(self) -> list[dict[str, float]]:
        """Return the lines of metrics.jsonl, without damaged ones and a last line that is only half written."""
        path = self.file("metrics.jsonl")
        damaged = []
        try:
            lines = read_lines(path.read_bytes())
        except FileNotFoundError:
            return []
        except OSError as error:
            lines, damaged = [], [str(error)]
        if not are_metrics(lines):
            damaged = [f"line {number}" for number, line in enumerate(lines, 1) if not are_metrics([line])]
            lines = [line for line in lines if are_metrics([line])]
        if damaged:
            warnings.warn(f"{path}: not readable, left out: {', '.join(damaged)}", RuntimeWarning, stacklevel=2)
        for line in lines:
            if None in line.values():
                line.update({k: math.nan for k, v in line.items() if v is None})
        return lines

    def embeddings(self) -> Embeddings | None:
        """Return what :meth:`keep` stored, or None; a damaged file is left out with a warning."""
        try:
            content = load_checked(self.file("embeddings.pt"), Embeddings._fields)
        except DamagedError as error:
            warnings.warn(f"{error}; left out", RuntimeWarning, stacklevel=2)
            return None
        return None if content is None else Embeddings(*(content[name] for name in Embeddings._fields))
