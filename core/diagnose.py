"""Numbers and pictures of a batch as an objective weights it.

The *training weight* of a negative is ``dL/ds``, the derivative of the loss by its similarity; for InfoNCE it is
proportional to ``e^{s/t}``. Positive weights push a pair apart. Negative ones pull it together: ``dp`` does so with
pairs below the middle of its margin, and objectives that compare a negative with the mean (``hcl``, ``mv``, ``dro``
with ``nonneg=false``) with easy ones. If all weights are zero (a clamped estimate), there is nothing to learn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import deepcopy
from functools import partial
from io import BytesIO
from itertools import count, cycle
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from . import checks
from .base import Objective, as_objective
from .batch.report import derivative
from .batch.report import report as report
from .batch.scores import Scores
from .engine.matrix import MatrixNegatives
from .install import install
from .vectors import unit, widen

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colors, apart for color-blind readers too; the dashes tell lines apart without any color.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 1.5, 2)), (0, (1, 1)))
WIDTH = 66


def weight_curve(
    objective: Objective | str,
    similarities: Tensor | None = None,
    positive: float = 0.8,
    negatives: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return similarities and the training weights ``dL/ds`` of negatives there, ``(K,)`` each (ADNCE's Figure 3).

    Args:
        objective: an objective or a spec. All terms of a sum see the same pairs, and adversarial views are clean.
        similarities: ``(K,)`` where to look; by default 201 points from -1 to 1.
        positive: similarity of the anchor's positive.
        negatives: ``(N,)`` similarities of the anchor's negatives, of mean absolute weight 1; by default the same.

    >>> _, weights = cp.weight_curve("infonce:t=0.5", torch.tensor([0.0, 0.5, 1.0]))
    >>> weights
    tensor([0.2701, 0.7342, 1.9957], dtype=torch.float64)
    """
    grid = torch.linspace(-1, 1, 201, dtype=torch.float64) if similarities is None else similarities
    grid, own = (s.detach().cpu().double().flatten() for s in (grid, grid if negatives is None else negatives))
    with torch.inference_mode(False), torch.enable_grad():
        # points of the curve that are not negatives weigh too little to change any statistic of the negatives
        points = grid[:0] if negatives is None else grid
        row = torch.cat([own, points]).unsqueeze(0).requires_grad_()
        mass = torch.cat([torch.ones_like(own), torch.full_like(points, 1e-12)])
        neg, pos = MatrixNegatives(row, log_weight=mass.log().unsqueeze(0)), row.new_full((1, 1), positive)
        scores = Scores(pos, neg, adversarial=Scores(pos, neg), index=torch.zeros(1, 2, dtype=torch.long))
        loss = deepcopy(as_objective(objective)).eval().cpu().compute_loss(lambda _: scores, row.device)
        weight = derivative(loss, row)[0] / mass
    scale = weight[: len(own)].abs().mean()
    return grid, weight[-len(grid) :] / torch.where(scale > 0, scale, 1.0)


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
        similarities, positive, negatives: as in :func:`counterpoint.weight_curve`.

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
    """Create an empty figure of this size in inches, without pyplot, hence without global state."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"plots need matplotlib: {install('plots')}") from error
    drawing = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(drawing)
    # notebooks show it, although pyplot, which they would ask, has not made it; a class could not be pickled
    vars(drawing).update(_repr_png_=partial(_png, drawing), draw=partial(_draw, drawing))
    return drawing


def _draw(figure: Figure, renderer: Any) -> None:
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)  # names as they are: a $ of a label does not begin a formula
    type(figure).draw(figure, renderer)


def _png(figure: Figure) -> bytes:
    figure.savefig(file := BytesIO(), format="png")
    return file.getvalue()


def tidy(axes: Axes, grid: Any = "both") -> None:
    """Draw a faint grid in the background, and no box."""
    axes.grid(axis=grid, color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def log_reports(model: nn.Module, log: Callable[[dict[str, float]], object], every: int = 50) -> ExitStack:
    """Pass :meth:`Objective.report` of training batches to ``log`` until the returned context manager closes.

    Args:
        model: an objective, or a module with one inside that it calls with embeddings, such as a criterion.
        log: gets ``{"report/loss": ...}``: ``wandb.log``, ``trackio.log``, ``trainer.log`` of transformers.
        every: batches from one report to the next; a report computes the whole matrix of similarities.

    >>> loss_fn, logged = cp.InfoNCE(0.5), {}
    >>> with cp.log_reports(loss_fn, logged.update):
    ...     loss = loss_fn(torch.eye(4, requires_grad=True), torch.eye(4))
    >>> logged["report/negatives"]
    6.0
    """
    if not isinstance(every, int) or every < 1:
        raise ValueError(f"log_reports: every: expected a whole number of at least 1, got {every!r}.")
    batches = count()

    def report(loss_fn: Any, views: Any, options: Any, loss: Any) -> None:
        is_training = loss_fn.training and torch.is_grad_enabled() and not checks.compiling()
        if is_training and next(batches) % every == 0:
            log({f"report/{name}": value for name, value in loss_fn.report(*views, **options).items()})

    objectives = [part for part in model.modules() if isinstance(part, Objective)]
    if not objectives:
        raise ValueError(f"log_reports: {type(model).__name__} contains no objective of counterpoint.")
    hooks = ExitStack()
    for part in objectives:  # terms of sums and wrapped objectives are not called themselves, and report nothing
        hooks.callback(part.register_forward_hook(report, with_kwargs=True).remove)
    return hooks


def distances(*views: Tensor) -> Tensor:
    """Compute ``(1 - cos) / 2`` of the pairs ``j > i`` of samples within each view, ``(B, d)``.

    >>> cp.distances(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]))
    tensor([1.0000, 0.5000, 0.5000])
    """
    if not views:
        raise ValueError("distances: call with the views of a batch, distances(z1, z2).")
    return torch.cat([_distances(view, "distances") for view in views])


def pairs_in_margin(embeddings: Tensor, low: float = 0.1, high: float = 0.5) -> Tensor:
    """Count the ordered pairs of samples whose distance is inside the margin (``R0`` of distance polarization).

    >>> cp.pairs_in_margin(torch.eye(4), high=0.6)
    tensor(12.)
    """
    if not low < high:
        raise ValueError(f"pairs_in_margin: expected low < high, got low={low!r}, high={high!r}.")
    d = _distances(embeddings, "pairs_in_margin")
    return 2 * ((d > low) & (d < high)).to(d.dtype).sum()


def _distances(view: Tensor, what: str) -> Tensor:
    z = _normalized(view, what, "(batch, width)")
    above = torch.ones(len(z), len(z), dtype=torch.bool, device=z.device).triu(1)
    return ((1 - z @ z.T) / 2).clamp(0, 1)[above]


def _normalized(z: Tensor, what: str, expected: str) -> Tensor:
    return unit(widen(checks.require_finite(checks.require_matrix(z, what, expected), what).detach()))


def alignment(first: Tensor, second: Tensor) -> float:
    """Compute ``mean ||x - y||^2`` of positive pairs, the normalized rows of ``first`` and ``second``.

    From 0 (all pairs coincide) to 4. Paper: Wang and Isola 2020, https://arxiv.org/abs/2005.10242.

    >>> cp.diagnose.alignment(torch.eye(3), torch.eye(3)), cp.diagnose.alignment(torch.eye(2), -torch.eye(2))
    (0.0, 4.0)
    """
    x, y = (_normalized(z, "alignment", "(pairs, width)") for z in (first, second))
    if x.shape != y.shape:
        raise ValueError(f"alignment: expected equal shapes, got {checks.shape(first)} and {checks.shape(second)}.")
    return (x - y).square().sum(1).mean().item()


def uniformity(z: Tensor, t: float = 2.0) -> float:
    """Compute ``log mean e^{-t ||x - y||^2}`` over all pairs of different rows, normalized.

    From ``-4 t`` for two opposite points up to 0 (all rows coincide); lower is more uniform. Paper: Wang and Isola
    2020, https://arxiv.org/abs/2005.10242.

    >>> round(cp.diagnose.uniformity(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])), 4)
    -8.0
    """
    d = distances(z)
    if len(d) == 0:
        raise ValueError("uniformity: expected at least 2 rows.")
    return (-4 * t * d).logsumexp(0).sub(math.log(len(d))).item()  # ||x - y||^2 = 4 D
