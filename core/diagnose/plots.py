"""Plot training weights, in figures without pyplot, hence without global state."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from io import BytesIO
from itertools import cycle
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..install import install
from ..objective import Objective, as_objective
from .weights import weight_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colors, apart for color-blind readers too; the dashes tell lines apart without any color.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 1.5, 2)), (0, (1, 1)))
WIDTH = 66


def plot_weights(
    objectives: Objective | str | Sequence[Objective | str],
    path: str | Path | None = None,
    *,
    similarities: Tensor | None = None,
    positive: float = 0.8,
    negatives: Tensor | None = None,
) -> Figure:
    """Plot the training weight of a negative over its similarity, one curve per objective, after ADNCE's Figure 3.

    Args:
        objectives: an objective or a spec, or several of them.
        path: where to save the picture, a PNG unless the name ends otherwise.
        similarities, positive, negatives: as in :func:`counterpoint.diagnose.weight_curve`.

    >>> import counterpoint as cp
    >>> figure = cp.plot_weights(["infonce:t=0.2", "adnce"])
    >>> figure.axes[0].get_title()
    'Which negatives an objective trains on'
    """
    shown = [objectives] if isinstance(objectives, (Objective, str)) else objectives
    drawing = figure()
    axes = drawing.add_subplot()
    axes.axhline(0, color="0.6", linewidth=0.8)
    axes.axvline(positive, color="0.2", linewidth=1.2, linestyle=":", label=f"the positive, s = {positive:g}")
    for objective, colour, dash in zip(map(as_objective, shown), cycle(COLOURS), cycle(DASHES), strict=False):
        s, weight = weight_curve(objective, similarities, positive, negatives)
        x, y = torch.stack([s, weight])[:, s.argsort()].tolist()
        # in lines that fit the figure, broken after commas, where specs allow spaces
        label = objective.label if len(objective.label) <= WIDTH else fill(objective.label.replace(",", ", "), WIDTH)
        axes.plot(x, y, color=colour, linestyle=dash, linewidth=2, label=label)
    axes.margins(x=0.01)
    axes.set_xlabel("similarity s of the negative (cosine)")
    axes.set_ylabel("training weight dL/ds\n(> 0 pushes apart; mean |dL/ds| = 1)")
    axes.set_title("Which negatives an objective trains on")
    tidy(axes)
    legend = drawing.legend(loc="outside lower center", frameon=False)
    drawing.set_figheight(4.0 + 0.21 * sum(1 + line.get_text().count("\n") for line in legend.get_texts()))
    if path is not None:
        drawing.savefig(path, dpi=150)
    return drawing


def figure(width: float = 6.8, height: float = 4.2) -> Figure:
    """Create an empty figure of this size in inches."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"plots need matplotlib: {install('plots')}") from error
    empty = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(empty)
    # notebooks show it, although pyplot, which they would ask, has not made it
    setattr(empty, "_repr_png_", partial(_png, empty))  # noqa: B010  # no type knows this name
    setattr(empty, "draw", partial(_draw, empty))  # noqa: B010
    return empty


def _draw(figure: Figure, renderer: Any) -> None:
    """Draw a figure with names as they are: a ``$`` of a label does not begin a formula."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)
    type(figure).draw(figure, renderer)


def _png(figure: Figure) -> bytes:
    file = BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def tidy(axes: Axes, grid: Any = "both") -> None:
    """Draw a faint grid in the background, and no box."""
    axes.grid(axis=grid, color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
