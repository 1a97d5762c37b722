"""The arguments of runs. Building them needs no PyG, so that a grid whose runs are done starts without it."""

from __future__ import annotations

from typing import Any

from ..domain import check, defaults
from ..store.cell import check_names
from .settings import Settings

UNTRAINED, BAG = "untrained encoder", "bag of nodes"


def cell(dataset: str, objective: str | None, seed: int, **changes: Any) -> dict[str, Any]:
    """The arguments of one run: the defaults of :class:`Settings`, changed as given, and perhaps a ``label``."""
    settings = defaults(Settings)
    check_names(changes, (*settings, "label"))
    settings |= changes
    check(Settings, settings)
    return {"domain": "graph", "dataset": dataset, "objective": objective, "seed": seed, **settings}


def untrained(dataset: str, seed: int, **changes: Any) -> dict[str, Any]:
    """The cell of the encoder before training."""
    return cell(dataset, None, seed, **{**changes, "label": UNTRAINED, "epochs": 0})


def bag(dataset: str, seed: int, **changes: Any) -> dict[str, Any]:
    """The cell without an encoder, see :func:`.data.bag_of_nodes`."""
    return cell(dataset, None, seed, **{**changes, "label": BAG, "encoder": "none", "epochs": 0})
