"""Pictures of a report: every seed, the differences with their intervals, the papers' numbers, and learning curves."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from statistics import fmean, pstdev
from textwrap import fill
from typing import TYPE_CHECKING, Any

from counterpoint.integrations.report import Column, Report
from counterpoint.plots import COLOURS, DASHES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = 3  # learning curves beside each other
POINTS = 60  # of a curve; longer ones are averaged in bins


def draw(report: Report, folder: Path) -> Iterator[Path]:
    """The pictures of each column, as PNG."""
    drawn = set()
    for column in report.columns:
        name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{column.domain}-{column.dataset}")
        path = folder / re.sub(r"[^A-Za-z0-9.]+", "-", f"{name}-{column.metric}.png")
        plot_column(column).savefig(path, dpi=150)
        yield path
        curves = folder / f"{name}-curves.png"
        if curves not in drawn and (figure := plot_curves(column)) is not None:
            drawn.add(curves)
            figure.savefig(curves, dpi=150)
            yield curves


def plot_column(column: Column) -> Figure:
    """A column's rows: each seed, the mean and the paper's number; beside them the differences to the baseline."""
    compared = column.baseline is not None
    rows = list(column.cells)
    height = 1.6 + 0.42 * len(rows)
    figure = _figure(9.5 if compared else 6.8, height)
    left, *right = figure.subplots(1, 1 + compared, sharey=True, squeeze=False)[0]
    for y, (row, colour) in enumerate(zip(rows, cycle(COLOURS), strict=False)):
        cell = column.cells[row]
        values = list(cell.values.values())
        left.plot(values, [y] * len(values), "o", color=colour, alpha=0.45, markersize=5, markeredgewidth=0)
        left.plot(cell.mean, y, "|", color=colour, markersize=20, markeredgewidth=2.5)
        if cell.paper is not None:
            left.plot(cell.paper.value, y, "D", mfc="none", mec="0.25", markersize=6)
        if compared and (one := cell.difference) is not None:
            right[0].barh(y, one.mean, 0.55, color=colour if one.found else "none", edgecolor=colour, linewidth=1.4)
            if not math.isnan(one.low):
                right[0].plot([one.low, one.high], [y, y], color="0.2", linewidth=1.4)
    left.set_yticks(range(len(rows)), [fill(row.replace(",", ", "), 38) for row in rows], fontsize=8)
    left.set_ylim(len(rows) - 0.5, -0.5)
    left.set_xlabel(column.metric)
    left.set_title(column.dataset, fontsize=10)
    for axes in right:
        axes.axvline(0, color="0.5", linewidth=0.8)
        axes.tick_params(left=False)
        axes.set_xlabel(f"{column.metric}, minus the baseline")
        axes.set_title(fill(f"baseline: {column.baseline}".replace(",", ", "), 50), fontsize=9)
    for axes in (left, *right):
        _tidy(axes, "x")
    _legend(figure, column, compared)
    return figure


def _legend(figure: Figure, column: Column, compared: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def mark(sign: str, label: str, **how: Any) -> Line2D:
        return Line2D([], [], linestyle="", marker=sign, color="0.35", label=label, **how)

    shown: list[Any] = [mark("o", "a seed", alpha=0.6), mark("|", "mean", markersize=12, markeredgewidth=2.5)]
    if any(cell.paper for cell in column.cells.values()):
        shown.append(mark("D", "the paper's number", mfc="none"))
    if compared:
        shown.append(Line2D([], [], color="0.2", linewidth=1.4, label="95% interval"))
        shown.append(Patch(facecolor="0.6", edgecolor="0.35", label="difference found"))
        shown.append(Patch(facecolor="none", edgecolor="0.35", label="none found"))
    figure.legend(handles=shown, loc="outside lower center", ncols=len(shown), frameon=False, fontsize=8)


def plot_curves(column: Column) -> Figure | None:
    """What the column's runs have logged over their steps: the mean over seeds, and between which values they lie."""
    curves = {row: [run.metrics() for run in found] for row, found in column.runs.items()}
    keys = dict.fromkeys(key for of in curves.values() for lines in of for line in lines for key in line)
    shown = [key for key in keys if key != "step" and _is_drawn(curves, key)][:PANELS]
    if not shown:
        return None
    figure = _figure(min(6.8, 4.6 * len(shown)) if len(shown) == 1 else 4.4 * len(shown), 3.6 + 0.2 * len(curves))
    for axes, key in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        for row, colour, dash in zip(column.cells, cycle(COLOURS), cycle(DASHES), strict=False):
            steps, mean, spread = _band(curves[row], key)
            if steps:
                low, high = ([m + sign * s for m, s in zip(mean, spread, strict=True)] for sign in (-1, 1))
                axes.plot(steps, mean, color=colour, linestyle=dash, linewidth=1.8, label=fill(row, 66))
                axes.fill_between(steps, low, high, color=colour, alpha=0.1, linewidth=0)
                paper = column.cells[row].paper
                if key == column.metric and paper is not None:
                    axes.axhline(paper.value, color=colour, linestyle=":", linewidth=1)
        axes.set_xlabel("step")
        axes.set_title(key + (" (each objective's own)" if key == "loss" else ""), fontsize=10)
        _tidy(axes, "both")
    figure.suptitle(
        f"{column.dataset} (bands: one standard deviation over seeds; thin dotted lines: papers)", fontsize=10
    )
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        handles |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", frameon=False, fontsize=8, handlelength=4
    )
    return figure


def _is_drawn(curves: dict[str, list[list[dict[str, float]]]], key: str) -> bool:
    return any(len(_band(of, key)[0]) > 1 for of in curves.values())


def _band(of: list[list[dict[str, float]]], key: str) -> tuple[list[float], list[float], list[float]]:
    """Steps that all seeds have, with the mean and the standard deviation over the seeds there."""
    at: dict[float, list[float]] = defaultdict(list)
    for lines in of:
        for line in lines:
            if not math.isnan(line.get(key, math.nan)):
                at[line["step"]].append(line[key])
    steps = sorted(step for step, values in at.items() if len(values) >= len(of))
    size = max(1, math.ceil(len(steps) / POINTS))
    bins = [steps[i : i + size] for i in range(0, len(steps), size)]
    means = [fmean(fmean(at[step]) for step in one) for one in bins]
    return [fmean(one) for one in bins], means, [fmean(pstdev(at[step]) for step in one) for one in bins]


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('plots need matplotlib: pip install "counterpoint[plots]"') from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _tidy(axes: Axes, grid: Any) -> None:
    axes.grid(axis=grid, color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
