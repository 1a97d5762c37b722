"""Plots of a report: every seed, differences with their intervals, the papers' numbers, and learning curves."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import cycle
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from counterpoint.diagnose import COLOURS, DASHES, tidy

from ..store.files import atomic
from ..store.run import Run
from .summary import Column

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = 3  # learning curves side by side
GREY = "#808080"
POINTS = 60  # of a curve; longer curves are averaged in bins


class Style(NamedTuple):
    """The look of a row, the same wherever it appears."""

    number: int
    colour: str
    dash: Any


def styles(rows: Iterable[str], checks: Iterable[str] = ()) -> dict[str, Style]:
    """Return a look for each row: different for 30 of them, and gray for those that train nothing."""
    checks, looks = set(checks), zip(cycle(COLOURS), cycle(DASHES), strict=False)
    numbered = enumerate(dict.fromkeys(rows), 1)
    return {row: Style(i, GREY, "-") if row in checks else Style(i, *next(looks)) for i, row in numbered}


def save(drawing: Figure, path: str | Path) -> None:
    """Save a figure atomically, in the format that the name's ending says; PNG without one."""
    with atomic(path) as file:
        drawing.savefig(file, dpi=150, format=Path(path).suffix[1:] or "png")


def draw_values(axes: Axes, column: Column, looks: dict[str, Style]) -> None:
    """Draw each row's seeds, their mean, and the paper's number.

    Rows that train nothing do not stretch the axis: where they are beyond it, an arrow shows their mean.
    """
    trained = [cell for cell in column.cells.values() if cell.check is None] or list(column.cells.values())
    shown = [x for cell in trained for x in (*cell.values.values(), *([cell.paper.value] if cell.paper else []))]
    margin = 0.08 * (max(shown) - min(shown)) or column.margin
    low, high = min(shown) - margin, max(shown) + margin
    for y, (row, cell) in enumerate(column.cells.items()):
        values, colour = list(cell.values.values()), looks[row].colour
        if not low <= min(values) <= max(values) <= high:
            left = cell.mean < (low + high) / 2
            x, side, text = (low, "left", f" ← {cell.mean:.3g}") if left else (high, "right", f"{cell.mean:.3g} → ")
            axes.text(x, y, text, ha=side, va="center", color="0.35", fontsize=8)
            continue
        dots: dict[str, Any] = {"color": colour, "alpha": 0.45, "markersize": 5, "markeredgewidth": 0}
        axes.plot(values, [y] * len(values), "o", label="a seed", **dots)
        axes.plot(cell.mean, y, "|", color=colour, markersize=20, markeredgewidth=2.5, label="mean")
        if cell.paper is not None:
            axes.plot(cell.paper.value, y, "D", mfc="none", mec="0.25", markersize=6, label="the paper's number")
    if column.majority is not None and low <= column.majority <= high:
        axes.axvline(column.majority, color="0.5", linewidth=0.8, linestyle=":")
    axes.set_xlim(low, high)
    _label_rows(axes, column, looks, column.metric)


def draw_differences(axes: Axes, column: Column, looks: dict[str, Style]) -> None:
    """Draw each row's difference to the baseline, filled where it is different, its interval, and the margin."""
    axes.axvspan(-column.margin, column.margin, color="0.9", linewidth=0, zorder=0, label=f"margin, {column.margin:g}")
    axes.axvline(0, color="0.5", linewidth=0.8)
    for y, row in enumerate(column.cells):
        if (verdict := column.compared.get(row)) is None:
            continue
        colour = looks[row].colour
        if not math.isnan(verdict.low):
            axes.plot([verdict.low, verdict.high], [y, y], color=colour, linewidth=2)
        mark: dict[str, Any] = {"mec": colour, "mfc": colour, "label": "different, with its interval"}
        if not verdict.different:
            mark |= {"mfc": "none", "label": "equivalent or cannot tell"}
        axes.plot(verdict.difference, y, "o", markersize=8, markeredgewidth=1.6, **mark)
    _label_rows(axes, column, looks, f"{column.metric}, minus the baseline")


def draw_opening(axes: Axes, column: Column, looks: dict[str, Style]) -> None:
    """Draw the differences to the baseline with the rows' names, or every seed without a baseline."""
    shown = replace(column, cells={row: column.cells[row] for row in column.compared or column.cells})
    (draw_differences if column.compared else draw_values)(axes, shown, looks)
    names = [fill(row.replace(",", ", "), 18) for row in shown.cells]
    axes.set_yticks(range(len(names)), names, fontsize=8, parse_math=False)


def _label_rows(axes: Axes, column: Column, looks: dict[str, Style], label: str) -> None:
    axes.set_yticks(range(len(column.cells)), [str(looks[row].number) for row in column.cells])
    axes.set_ylim(len(column.cells) - 0.5, -0.5)
    axes.set_xlabel(label)
    axes.locator_params("x", nbins=5)  # numbers of four decimals stay apart
    tidy(axes, "x")


def curves(column: Column) -> list[str]:
    """Return names of numbers that runs logged more than once, the column's metric first; not those of single folds."""
    logged = dict.fromkeys(key for run in column.runs for line in _lines(run) for key in line)
    names = (key for key in logged if not re.fullmatch(r"step|fold\d+", key))
    drawn = [key for key in names if any(len(_band(cell.runs, key)[0]) > 1 for cell in column.cells.values())]
    return sorted(drawn, key=lambda key: key not in column.metric.split())[:PANELS]


def draw_curve(axes: Axes, column: Column, key: str, looks: dict[str, Style]) -> None:
    """Draw a logged number over epochs or steps: mean and standard deviation over seeds, and a paper's number."""
    units: list[str] = []
    for row, cell in column.cells.items():
        steps, mean, spread = _band(cell.runs, key)
        if cell.check is not None or not steps:
            continue  # a row that trains nothing would stretch the axis
        units += [str(run.record.get("axis", "step")) for run in cell.runs]
        _, colour, dash = looks[row]
        low, high = ([m + sign * s for m, s in zip(mean, spread, strict=True)] for sign in (-1, 1))
        axes.plot(steps, mean, color=colour, linestyle=dash, linewidth=1.8, label=fill(row, 66))
        axes.fill_between(steps, low, high, color=colour, alpha=0.1, linewidth=0)
        if key == column.metric and cell.paper is not None:
            axes.axhline(cell.paper.value, color=colour, linestyle=":", linewidth=1)
    axes.set_xlabel(" or ".join(dict.fromkeys(units)))
    axes.set_title(key + (" (each objective's own)" if key == "loss" else ""), fontsize=10)
    tidy(axes)


@lru_cache(maxsize=1024)
def _lines(run: Run) -> list[dict[str, float]]:
    return run.metrics()


def _band(runs: Sequence[Run], key: str) -> tuple[list[float], list[float], list[float]]:
    """Return the steps at which all seeds logged a number, with its mean and standard deviation over seeds."""
    logged = ([line for line in _lines(run) if not math.isnan(line.get(key, math.nan))] for run in runs)
    logs = [{line["step"]: line[key] for line in lines} for lines in logged]
    if not (common := sorted({*logs[0]}.intersection(*logs[1:]))):
        return [], [], []
    values = torch.tensor([[log[step] for log in logs] for step in common], dtype=torch.float64)
    size = math.ceil(len(common) / POINTS)
    each = torch.tensor(common, dtype=torch.float64), values.mean(1), values.std(1, correction=0)
    steps, means, spreads = ([float(x.mean()) for x in part.split(size)] for part in each)
    return steps, means, spreads
