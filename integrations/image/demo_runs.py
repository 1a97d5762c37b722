"""The part of images in ``counterpoint demo``: SimCLR on scikit-learn's digits, scored by nearest neighbors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..store.run import Run
from . import training

COMMON = {"t": "0.2", "denominator": ""}
SETTINGS: dict[str, Any] = {"backbone": "conv4", "channels": 8, "epochs": 9, "batch": 128, "probe": ["knn"]}
QUICK: dict[str, Any] = {"epochs": 1}


def cell(objective: str | None, seed: int, **settings: Any) -> dict[str, Any]:
    """The cell of an objective; None for the encoder before training."""
    if objective is None:
        return training.untrained("digits", seed, **settings)
    return training.cell("digits", objective, seed, **settings)


def train(run: Run, cache: Path) -> None:
    """Train one cell."""
    training.train(run)
