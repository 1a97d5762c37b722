"""The part of control in ``counterpoint demo``: CURL's contrastive term on a cart-pole, scored by R^2 of its state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..store.run import Run
from . import representation
from .environment import check_frames as check  # noqa: F401  (raises where frames cannot be rendered)

TASK = "cartpole-swingup"
COMMON = {"t": "0.2", "denominator": ""}
SETTINGS: dict[str, Any] = {"episodes": 40, "length": 20, "updates": 40, "scores": "cosine"}
QUICK: dict[str, Any] = {"episodes": 8, "length": 6, "updates": 4, "batch": 8}


def cell(objective: str | None, seed: int, **settings: Any) -> dict[str, Any]:
    """The cell of an objective; None for the encoder before training."""
    label = {"label": representation.UNTRAINED} if objective is None else {}
    return representation.cell(TASK, objective, seed, **settings, **label)


def train(run: Run, cache: Path, count: int) -> None:
    """Train one cell, and keep features of the first held-out frames, labeled by quarters of the first quantity."""
    data, stack, x, x_new = representation.learn(run, cache)
    result, details = representation.score(data, stack, x, x_new)
    position = data.targets(stack, data.held_out)[:count, 0].contiguous()
    quarter = torch.bucketize(position, position.quantile(torch.tensor([0.25, 0.5, 0.75])))
    run.keep(x_new[:count], quarter, "1234", f"quarter of {data.names[0]}, from the lowest")
    run.finish(result, **details)
