"""The data of a control run: the environments in which it acts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from .environment import vector


def prepare(arguments: Mapping[str, Any], envs: int | None = None) -> Any:
    """Start the environments of a cell; close them after use.

    Args:
        arguments: of the cell.
        envs: how many; by default as many as the cell trains in.
    """
    return vector(
        arguments["dataset"],
        arguments["envs"] if envs is None else envs,
        size=arguments["settings"]["size"],
        stack=arguments["settings"]["stack"],
        pixels=arguments["observe"] == "pixels",
        repeat=arguments["repeat"],
    )


def seconds_per_step(arguments: Mapping[str, Any]) -> float:
    """Simulated time between two observations of a cell."""
    with closing(prepare({**arguments, "observe": "state"}, 1)) as env:
        return float(arguments["repeat"] * env.get_attr("timestep")[0])
