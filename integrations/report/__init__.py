"""Reports: tables, tests, plain sentences and plots from folders of runs."""

from .items import over_items
from .output import RENDER, html, show, write
from .summary import Cell, Column, Pooled, Report, summarise
from .tables import markdown, plain, terminal

__all__ = [
    "RENDER", "Cell", "Column", "Pooled", "Report", "html", "markdown", "over_items", "plain", "show", "summarise",
    "terminal", "write",
]  # fmt: skip
