"""Files that are either complete or absent, and plain JSON."""

import hashlib
import json
import math
import os
import pickle
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO

import torch

from .errors import DamagedError


@contextmanager
def atomic(path: str | Path) -> Iterator[BinaryIO]:
    """Open a binary file that replaces ``path`` only when all of it is on the disk."""
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
    if os.name == "posix":  # the new name must be on the disk too
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def load_checked(path: Path, keys: Iterable[str]) -> dict[str, Any] | None:
    """Load a dict with these keys that ``torch.save`` wrote; return None if the file does not exist.

    Raises :class:`DamagedError` if any byte has changed, which ``torch.load`` alone does not notice.
    """
    try:
        with path.open("rb") as file:
            with zipfile.ZipFile(file) as archive:
                if (damaged := archive.testzip()) is not None:
                    raise zipfile.BadZipFile(f"{damaged} does not match its checksum")
            file.seek(0)
            content = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        return None
    except MemoryError:
        raise
    except pickle.UnpicklingError as error:  # whose text advises to load it all the same
        raise DamagedError(f"{path}: damaged (it contains more than tensors and plain values)") from error
    except Exception as error:
        raise DamagedError(f"{path}: damaged ({str(error).partition(chr(10))[0]})") from error
    if not isinstance(content, dict) or not set(keys) <= set(content):
        raise DamagedError(f"{path}: damaged (it does not contain {', '.join(keys)})")
    return content


def as_json(value: object, *, nan: bool = True) -> Any:
    """Return a copy as plain JSON; arrays and tensors become lists and numbers, NaN stays if ``nan``."""

    def to_list(value: object) -> object:
        if hasattr(value, "tolist"):
            return value.tolist()
        raise TypeError(f"expected plain JSON, arrays or tensors, got {value!r}.")

    return json.loads(json.dumps(value, default=to_list, allow_nan=nan))


def signature(value: object) -> str:
    """Return a checksum of plain JSON, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def signed(record: Mapping[str, object]) -> dict[str, object]:
    """Return a record, plain JSON, with the checksum of all its other values."""
    content = {key: value for key, value in record.items() if key != "checksum"}
    return {**content, "checksum": signature(content)}


def finite(value: object) -> Any:
    """Replace NaN and infinity, which JSON cannot express, by None."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def is_metrics(line: object) -> bool:
    """Return whether this is a line of metrics.jsonl: a step and finite numbers, or None in place of other ones.

    Raises ``OverflowError`` for an integer beyond the range of floats.
    """
    numbers = [*line.values()] if isinstance(line, dict) and line.get("step") is not None else [""]
    return {*map(type, numbers)} <= {float, int, type(None)} and all(map(math.isfinite, filter(None, numbers)))


def now() -> str:
    """Return the current time in UTC, as ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
