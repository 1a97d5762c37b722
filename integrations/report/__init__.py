"""Reports: tables, tests, plain sentences and plots from folders of runs."""

from .output import RENDER, html, show, write
from .summary import Cell, Column, Pooled, Report, summarise
from .tables import markdown, plain, terminal

__all__ = [
    "RENDER", "Cell", "Column", "Pooled", "Report", "html", "markdown", "plain", "show", "summarise", "terminal",
    "write",
]  # fmt: skip
