"""Reports: tables, tests, plain sentences and pictures from folders of runs."""

from .summary import Cell, Column, Difference, Report, summarise
from .tables import markdown, plain, terminal
from .write import RENDER, html, show, write

__all__ = [
    "RENDER",
    "Cell",
    "Column",
    "Difference",
    "Report",
    "html",
    "markdown",
    "plain",
    "show",
    "summarise",
    "terminal",
    "write",
]
