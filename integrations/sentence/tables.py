"""Tables of scores, as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def number(value: float | None) -> str:
    """Format a score: two decimals, ``undef.`` for None, a dash for NaN, which marks a score that was not computed."""
    return "undef." if value is None else "-" if math.isnan(value) else f"{value:.2f}"


def grid(header: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """Draw a table with centered cells."""
    table = [list(header), *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    drawn = ["|" + "|".join(c.center(w + 2) for c, w in zip(row, widths, strict=True)) + "|" for row in table]
    return "\n".join([rule, drawn[0], rule, *drawn[1:], rule])
