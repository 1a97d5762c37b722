"""Files that are whole or absent, and plain JSON."""

from __future__ import annotations

import json
import math
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO

import torch

from counterpoint.hyper import is_number


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
