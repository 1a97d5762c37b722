"""Pictures of a report: every seed, the differences with their intervals, the papers' numbers, and learning curves."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from statistics import fmean, pstdev
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

import counterpoint as cp
from counterpoint.diagnose.plots import COLOURS, DASHES, draw_distances, draw_weights, figure, tidy

from ..store.files import atomic
from ..store.run import Embeddings
from .summary import Column, Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = 3  # learning curves beside each other
LETTER = 0.078  # inches, of the names in a plane
POINTS = 60  # of a curve; longer ones are averaged in bins


class Style(NamedTuple):
    """How a row looks wherever it appears."""

    number: int
    colour: str
    dash: Any


def styles(rows: Iterable[str]) -> dict[str, Style]:
    """A look for each row; colours and dashes go round in different lengths, so that thirty are apart."""
    named = enumerate(dict.fromkeys(rows), 1)
    return {row: Style(i, colour, dash) for (i, row), colour, dash in zip(named, cycle(COLOURS), cycle(DASHES))}


def draw(report: Report, folder: Path) -> Iterator[Path]:
    """The pictures of each column, as PNG."""
    drawn = set()
    for column in report.columns:
        name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{column.domain}-{column.dataset}")
        path = folder / re.sub(r"[^A-Za-z0-9.]+", "-", f"{name}-{column.metric}.png")
        save(plot_column(column), path)
        yield path
        curves = folder / f"{name}-curves.png"
        if curves not in drawn and (made := plot_curves(column)) is not None:
            drawn.add(curves)
            save(made, curves)
            yield curves


def save(made: Figure, path: str | Path) -> None:
    """The picture appears at its path when it is whole; the name's ending says of what kind it is, PNG without one."""
    with atomic(path) as file:
        made.savefig(file, dpi=150, format=Path(path).suffix[1:] or "png")


# ---- whole figures -----------------------------------------------------------------------------


def plot_column(column: Column) -> Figure:
    """A column's rows: each seed, the mean and the paper's number; beside them the differences to the baseline."""
    compared, looks = column.baseline is not None, styles(column.cells)
    made = figure(9.5 if compared else 6.8, 1.6 + 0.42 * len(looks))
    left, *right = made.subplots(1, 1 + compared, sharey=True, squeeze=False)[0]
    draw_values(left, column, looks)
    left.set_title(column.dataset, fontsize=10)
    for axes in right:
        draw_differences(axes, column, looks)
        axes.tick_params(left=False)
        axes.set_title(fill(f"baseline: {column.baseline}".replace(",", ", "), 50), fontsize=9)
    left.set_yticks(range(len(looks)), [fill(row.replace(",", ", "), 38) for row in looks], fontsize=8)
    made.legend(handles=keys(column), loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    return made


def plot_curves(column: Column) -> Figure | None:
    """What the column's runs have logged over training, beside each other."""
    looks, shown = styles(column.cells), curves(column)
    if not shown:
        return None
    made = figure(min(6.8, 4.6 * len(shown)) if len(shown) == 1 else 4.4 * len(shown), 3.6 + 0.2 * len(looks))
    for axes, key in zip(made.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        draw_curve(axes, column, key, looks)
    made.suptitle(
        f"{column.dataset} (bands: one standard deviation over seeds; thin dotted lines: papers)", fontsize=10
    )
    handles: dict[str, Any] = {}
    for axes in made.axes:
        handles |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    made.legend(handles.values(), handles.keys(), loc="outside lower center", frameon=False, fontsize=8, handlelength=4)
    return made


# ---- in axes of one's own ----------------------------------------------------------------------


def draw_values(axes: Axes, column: Column, looks: dict[str, Style]) -> None:
    """Each row's seeds, their mean, and the paper's number."""
    for y, (row, cell) in enumerate(column.cells.items()):
        values, colour = list(cell.values.values()), looks[row].colour
        axes.plot(values, [y] * len(values), "o", color=colour, alpha=0.45, markersize=5, markeredgewidth=0)
        axes.plot(cell.mean, y, "|", color=colour, markersize=20, markeredgewidth=2.5)
        if cell.paper is not None:
            axes.plot(cell.paper.value, y, "D", mfc="none", mec="0.25", markersize=6)
    _rows(axes, column, looks, column.metric)


def draw_differences(axes: Axes, column: Column, looks: dict[str, Style]) -> None:
    """Each row's difference to the baseline, filled where one was found, and its interval."""
    for y, (row, cell) in enumerate(column.cells.items()):
        if (one := cell.difference) is None:
            continue
        colour = looks[row].colour
        axes.barh(y, one.mean, 0.55, color=colour if one.found else "none", edgecolor=colour, linewidth=1.4)
        if not math.isnan(one.low):
            axes.plot([one.low, one.high], [y, y], color="0.2", linewidth=1.4)
    axes.axvline(0, color="0.5", linewidth=0.8)
    _rows(axes, column, looks, f"{column.metric}, minus the baseline")


def _rows(axes: Axes, column: Column, looks: dict[str, Style], what: str) -> None:
    axes.set_yticks(range(len(column.cells)), [str(looks[row].number) for row in column.cells])
    axes.set_ylim(len(column.cells) - 0.5, -0.5)
    axes.set_xlabel(what)
    tidy(axes, "x")


def keys(column: Column) -> list[Any]:
    """What the marks of :func:`draw_values` and :func:`draw_differences` mean, for a legend."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def mark(sign: str, label: str, **how: Any) -> Line2D:
        return Line2D([], [], linestyle="", marker=sign, color="0.35", label=label, **how)

    shown: list[Any] = [mark("o", "a seed", alpha=0.6), mark("|", "mean", markersize=12, markeredgewidth=2.5)]
    if any(cell.paper for cell in column.cells.values()):
        shown.append(mark("D", "the paper's number", mfc="none"))
    if column.baseline is not None:
        shown.append(Line2D([], [], color="0.2", linewidth=1.4, label="95% interval"))
        shown.append(Patch(facecolor="0.6", edgecolor="0.35", label="difference found"))
        shown.append(Patch(facecolor="none", edgecolor="0.35", label="none found"))
    return shown


def curves(column: Column) -> list[str]:
    """The names of some numbers that runs have logged more than once, the column's own first; not those of folds."""
    lines = {row: [run.metrics() for run in found] for row, found in column.runs.items()}
    logged = dict.fromkeys(key for of in lines.values() for one in of for line in one for key in line)
    named = (key for key in logged if key != "step" and not re.fullmatch(r"fold\d+", key))
    drawn = (key for key in named if any(len(_band(of, key)[0]) > 1 for of in lines.values()))
    return sorted(drawn, key=lambda key: key not in column.metric.split())[:PANELS]


def draw_curve(axes: Axes, column: Column, key: str, looks: dict[str, Style]) -> None:
    """One logged number over epochs or steps: the mean over seeds, a standard deviation around it, a paper's number."""
    over: list[str] = []
    for row, cell in column.cells.items():
        steps, mean, spread = _band([run.metrics() for run in column.runs[row]], key)
        if not steps:
            continue
        over += [run.axis for run in column.runs[row]]
        _, colour, dash = looks[row]
        low, high = ([m + sign * s for m, s in zip(mean, spread, strict=True)] for sign in (-1, 1))
        axes.plot(steps, mean, color=colour, linestyle=dash, linewidth=1.8, label=fill(row, 66))
        axes.fill_between(steps, low, high, color=colour, alpha=0.1, linewidth=0)
        if key == column.metric and cell.paper is not None:
            axes.axhline(cell.paper.value, color=colour, linestyle=":", linewidth=1)
    axes.set_xlabel(" or ".join(dict.fromkeys(over)))
    axes.set_title(key + (" (each objective's own)" if key == "loss" else ""), fontsize=10)
    tidy(axes)


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


def draw_training_weights(axes: Axes, rows: Sequence[tuple[str, str]], looks: dict[str, Style]) -> None:
    """The weights that rows with a spec give to negatives, see :func:`counterpoint.diagnose.plots.plot_weights`."""
    draw_weights(axes, [(cp.objective(spec), looks[row].colour, looks[row].dash) for row, spec in rows])
    tidy(axes)


def draw_histogram(axes: Axes, found: Embeddings) -> None:
    """Distances between samples, within and between classes, see :func:`counterpoint.diagnose.plots.plot_distances`."""
    draw_distances(axes, [found.z], labels=found.labels)
    tidy(axes)


def draw_plane(axes: Axes, found: Embeddings) -> None:
    """The two first principal components of embeddings of unit length, coloured by class; names at the medians."""
    from matplotlib import colormaps

    z = torch.nn.functional.normalize(found.z.double())
    z = z - z.mean(0)
    _, _, v = torch.linalg.svd(z, full_matrices=False)
    v = v * v.gather(1, v.abs().argmax(1, keepdim=True)).sign()  # or the signs would be the machine's choice
    points = z @ v[:2].T
    low, high = points.amin(0), points.amax(0)
    side = 1.1 * max(float((high - low).max()), 1e-9)
    points = (points - (low + high) / 2) / side + 0.5  # within the unit square
    names = {}
    for label, name in enumerate(found.names):
        own = points[found.labels == label]
        if len(own):
            axes.plot(*own.T.tolist(), ".", color=colormaps["tab10"](label % 10), markersize=3.5, alpha=0.8)
            names[name] = own.median(0).values.tolist()
    figure: Any = axes.figure  # not a part of one, which is what its type allows for
    for name, x, y in apart(names, *(LETTER / side for side in figure.get_size_inches())):
        text = axes.text(x, y, name, ha="center", va="center", fontsize=8, fontweight="bold", parse_math=False)
        text.set_in_layout(False)  # however long it is
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_box_aspect(1)
    axes.spines[:].set_color("0.8")


def apart(names: dict[str, list[float]], width: float, height: float) -> Iterator[tuple[str, float, float]]:
    """Names in the unit square where each is wholly in it and over no other, near where it should be.

    Args:
        names: the middle of each.
        width, height: of a letter, and half of that of a line.
    """
    placed: list[tuple[float, float, float]] = []
    for name, (x, y) in sorted(names.items(), key=lambda item: -abs(item[1][1] - 0.5)):
        half = min(0.5, width * len(name) / 2)
        x, y = min(max(x, half), 1 - half), min(max(y, height), 1 - height)
        step = 0.01 if y < 0.5 else -0.01  # inwards, where there is room
        while any(abs(x - x2) < half + half2 and abs(y - y2) < 2 * height for x2, y2, half2 in placed):
            y += step
        placed.append((x, y, half))
        yield name, x, y
