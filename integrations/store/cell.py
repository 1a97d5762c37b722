"""Cells: the arguments that identify a run."""

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import counterpoint as cp
from counterpoint.names import check_known

from .files import as_json

HOST = "host"  # the objective of a run that trains with the loss of a code base, as in counterpoint inject
REQUIRED = ("domain", "dataset", "objective", "seed")


def canonical(cell: Mapping[str, object]) -> dict[str, Any]:
    """Return the cell as plain JSON; raise if it is incomplete.

    Its objective becomes canonical unless the cell is ``like`` a host, which gives the text its defaults.
    """
    if not set(REQUIRED) <= set(cell):
        raise ValueError(f"cell: expected {', '.join(REQUIRED)}, got {', '.join(map(str, cell)) or 'nothing'}.")
    plain = {}
    for key, value in cell.items():
        try:
            plain[key] = as_json(value, nan=False)
        except (TypeError, ValueError):
            raise ValueError(f"cell: {key} must be plain JSON, got {value!r}.") from None
    for key in ("domain", "dataset"):
        if not isinstance(plain[key], str) or not plain[key]:
            raise ValueError(f"cell: {key} must be a name, got {plain[key]!r}.")
    if type(seed := plain["seed"]) is not int or not 0 <= seed < 2**32:
        raise ValueError(f"cell: seed must be a whole number with 0 <= seed < 2**32, got {seed!r}.")
    if plain["objective"] is None and not plain.get("label"):
        raise ValueError("cell: a row without an objective needs a label.")
    if plain["objective"] not in (None, HOST):
        loss_fn = cp.objective(plain["objective"], "infonce" if plain.get("like") else None)
        plain["objective"] = plain["objective"] if plain.get("like") else str(loss_fn)
    return plain


def row_name(cell: Mapping[str, object]) -> str:
    """Return the row of a table that the cell belongs to: its label, its text as typed, or its shortest spec."""
    return str(cell.get("label") or (cell["objective"] if cell.get("like") else _short(str(cell["objective"]))))


@cache
def _short(spec: str) -> str:
    try:
        return cp.objective(spec).label
    except ValueError:  # of an objective that is not defined here
        return spec


def dataset_name(cell: Mapping[str, object]) -> str:
    """Return the name of the cell's data set; for a folder of the user's own, that of the folder without its path."""
    name = str(cell["dataset"])
    return Path(name).name if Path(name).is_absolute() else name


def folder_of(cell: Mapping[str, object]) -> str:
    """Return the folder of a canonical cell in its store: the hash identifies it, the rest is for readers."""
    shared = {key: value for key, value in cell.items() if key != "seed"}
    digest = hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()[:8]
    name = f"{_slug(str(cell.get('label') or cell['objective']))}-{digest}"
    return "/".join((_slug(str(cell["domain"])), _slug(dataset_name(cell)), name, f"seed{cell['seed']}"))


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.=]+", "-", name)[:60].strip("-.") or "-"


def check_names(changes: Iterable[str], known: Collection[str]) -> None:
    """Raise ``TypeError`` if a name is not an argument of the domain's cells."""
    for name in changes:
        check_known("cell: unknown argument", name, known, TypeError)
