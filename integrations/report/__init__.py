"""Reports: tables, tests, plain sentences and plots from folders of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from counterpoint import names

if TYPE_CHECKING:
    from .output import RENDER, html, show, write
    from .summary import Cell, Column, Pooled, Report, summarise
    from .tables import markdown, plain, terminal

_MODULES = {
    "output": ("RENDER", "html", "show", "write"),
    "summary": ("Cell", "Column", "Pooled", "Report", "summarise"),
    "tables": ("markdown", "plain", "terminal"),
}

__all__ = [
    "RENDER", "Cell", "Column", "Pooled", "Report", "html", "markdown", "plain", "show", "summarise", "terminal",
    "write",
]  # fmt: skip

__getattr__ = names.lazy(__name__, _MODULES)
