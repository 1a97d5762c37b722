"""The data of a control run: the environments in which it acts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from .environment import vector


def prepare(arguments: Mapping[str, Any], envs: int | None = None) -> Any:
    """Start the environments of a cell, by default as many as it trains in; close them after use."""
    options = {name: arguments["settings"][name] for name in ("size", "stack")}
    options |= {"pixels": arguments["observe"] == "pixels", "repeat": arguments["repeat"]}
    return vector(arguments["dataset"], envs or arguments["envs"], **options)


def seconds_per_step(arguments: Mapping[str, Any]) -> float:
    """Simulated time between two observations of a cell."""
    with closing(prepare({**arguments, "observe": "state"}, 1)) as env:
        return float(arguments["repeat"] * env.get_attr("timestep")[0])
