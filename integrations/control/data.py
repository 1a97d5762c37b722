"""The data of a control run: the environments in which it acts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .environment import vector


def prepare(arguments: Mapping[str, Any]) -> Any:
    """Start the environments of a cell; close them after use."""
    options = {name: arguments["settings"][name] for name in ("size", "stack")}
    pixels, repeat = arguments["observe"] == "pixels", arguments["repeat"]
    return vector(arguments["dataset"], arguments["envs"], pixels=pixels, repeat=repeat, **options)
