"""A training run of CURL that takes seconds, for the tests and for the processes that they kill."""

from __future__ import annotations

from typing import Any

from counterpoint.integrations.control import training

TASK = "cartpole-swingup"
TINY = {
    "size": 16,
    "crop": 15,
    "filters": 2,
    "features": 4,
    "hidden": 8,
    "batch": 8,
    "random_steps": 16,
    "capacity": 64,
}


def cell(**changes: Any) -> dict[str, Any]:
    """Return the arguments of a run of 40 decisions; ``changes`` replaces some of them."""
    arguments = {"steps": 1600, "repeat": 40, "eval_every": 800, "episodes": 2, **TINY, **changes}
    return training.cell(TASK, "infonce:t=1 + 0.1*dp", 3, **arguments)
