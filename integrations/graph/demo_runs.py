"""The part of graphs in ``counterpoint demo``: GraphCL on six kinds of random graphs, scored by nearest neighbors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..store.run import Run
from . import training

COMMON = {"t": "0.2", "denominator": ",denominator=negatives"}
SETTINGS: dict[str, Any] = {"epochs": 12, "folds": 3, "probe": "knn"}
QUICK: dict[str, Any] = {"epochs": 1}


def cell(objective: str | None, seed: int, **settings: Any) -> dict[str, Any]:
    """The cell of an objective; None for the encoder before training."""
    if objective is None:
        return training.untrained("demo", seed, **settings)
    return training.cell("demo", objective, seed, **settings)


def train(run: Run, cache: Path) -> None:
    """Train one cell."""
    training.train(run)
