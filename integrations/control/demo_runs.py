"""The part of control in ``counterpoint demo``: CURL's contrastive term on a cart-pole, scored by R^2 of its state."""

from typing import Any

from . import environment, representation

COMMON = {"t": "0.2", "denominator": ""}
SETTINGS: dict[str, Any] = {"episodes": 40, "length": 14, "updates": 26, "scores": "cosine"}
QUICK: dict[str, Any] = {"episodes": 8, "length": 6, "updates": 4, "batch": 8}

check, train = environment.check_frames, representation.train  # check raises where frames cannot be rendered


def cell(objective: str | None, seed: int, **settings: Any) -> dict[str, Any]:
    """The cell of an objective; None for the encoder before training."""
    label = {"label": representation.UNTRAINED} if objective is None else {}
    return representation.cell("cartpole-swingup", objective, seed, **settings, **label)
