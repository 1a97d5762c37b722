"""Reports: tables, tests, plain sentences and plots from folders of runs."""

from typing import TYPE_CHECKING

from counterpoint.names import lazy

from .output import RENDER, html, show, write
from .summary import Cell, Column, Pooled, Report, summarise
from .tables import markdown, plain, terminal

if TYPE_CHECKING:
    from .items import over_items

__all__ = [
    "RENDER", "Cell", "Column", "Pooled", "Report", "html", "markdown", "over_items", "plain", "show", "summarise",
    "terminal", "write",
]  # fmt: skip

__getattr__ = lazy(__name__, ("items",), __all__)  # needs numpy
