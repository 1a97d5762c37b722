"""Reports: tables, tests, plain sentences and plots from folders of runs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .output import RENDER, html, show, write
    from .summary import Cell, Column, Difference, Report, summarise
    from .tables import markdown, plain, terminal

_MODULES = {
    "output": ("RENDER", "html", "show", "write"),
    "summary": ("Cell", "Column", "Difference", "Report", "summarise"),
    "tables": ("markdown", "plain", "terminal"),
}

__all__ = [
    "RENDER", "Cell", "Column", "Difference", "Report", "html", "markdown", "plain", "show", "summarise", "terminal",
    "write",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name on first use: these modules import torch."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
