"""The picture of a study: differences to a baseline with their intervals, the margin, and a placebo's band."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib
import numpy as np

from counterpoint.integrations.report.statistics import Verdict

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HIGHER, LOWER, UNCLEAR = "#0072b2", "#d55e00", "#777777"


def draw(
    panels: Mapping[str, Mapping[str, Verdict]], path: Path, placebo: str = "", limit: float = 0.0, title: str = ""
) -> None:
    """Draw a panel for each data set or metric, the rows from the best to the worst of the first one.

    Args:
        panels: the verdicts of each row by data set or metric.
        path: of the picture.
        placebo: the row that is the baseline tuned again: its interval is a band.
        limit: differences beyond are drawn at the edge, 0 for none.
        title: above the picture.
    """
    rows = {row for one in panels.values() for row in one}
    mean = {row: np.mean([one[row].difference for one in panels.values() if row in one]) for row in rows}
    order = sorted(rows, key=lambda row: mean[row])
    figure, axes = plt.subplots(
        1, len(panels), figsize=(3.4 + 2.7 * len(panels), 1.2 + 0.3 * len(order)), sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for axis, (name, verdicts) in zip(axes[0], panels.items(), strict=True):
        margin = max(one.margin for one in verdicts.values())
        axis.axvspan(-margin, margin, color="#e8e8e8", zorder=0)
        if placebo in verdicts:
            axis.axvspan(verdicts[placebo].low, verdicts[placebo].high, color="#f0c75e", alpha=0.5, zorder=0)
        axis.axvline(0, color="k", linewidth=0.8)
        for y, row in enumerate(order):
            if (one := verdicts.get(row)) is None:
                continue
            colour = (HIGHER if one.difference > 0 else LOWER) if one.different else UNCLEAR
            x = max(min(one.difference, limit), -limit) if limit else one.difference
            if x == one.difference:
                axis.plot([one.low, one.high], [y, y], color=colour, linewidth=1.6)
            axis.plot(x, y, "o" if x == one.difference else "<" if x < 0 else ">", color=colour, markersize=5)
        axis.set_title(name, fontsize=10)
        axis.set_yticks(range(len(order)), order, fontsize=9)
        axis.grid(axis="x", color="#eeeeee")
        axis.set_axisbelow(True)
        axis.tick_params(axis="x", labelsize=8)
    note = "points against the baseline; shaded: the margin" + ("; yellow: the placebo" if placebo else "")
    figure.supxlabel(note, fontsize=9)
    figure.suptitle(title, fontsize=10) if title else None
    figure.savefig(path, dpi=100)
    plt.close(figure)
