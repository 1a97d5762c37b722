"""What a batch looks like to an objective: which negatives it trains on, and how spread out they are.

The *training weight* of a negative is ``dL/ds``, the derivative of the loss by its similarity; for InfoNCE it is
proportional to ``e^{s/t}``. Positive weights push a pair apart. Negative ones pull it together: ``dp`` does so with
pairs below the middle of its margin, and objectives that compare a negative with the mean (``hcl``, ``mv``, ``dro``
with ``nonneg=false``) with easy ones. :func:`weight_curve` keeps the sign; ``effective_negatives`` goes by absolute
values, as either direction moves embeddings. All zero (a clamped estimate, no pair in the margin): nothing to learn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from .. import checks
from ..batch.scores import Scores
from ..engine import distributed
from ..engine.negatives import DenseNegatives
from ..objective import Objective, Sum, as_objective, current
from ..objectives.dro import dense_scores
from ..vectors import unit, widen


class _Arguments(Objective):
    """Takes what any objective takes, and hands back the batch's scores by pairing instead of a loss."""

    def from_pairings(self, scores: Callable[[str], Scores], device: torch.device, *, reduction: str = "mean") -> Any:
        return scores, device


def report(objective: Objective, *given: Tensor, call: str = "forward", **how: Any) -> dict[str, float]:
    """Averages over a batch's anchors; the arguments are those of ``call``, for instance ``from_logits``.

    Works on copies, in evaluation mode: no gradient is kept; no schedule, tracked value or training mode changes.
    With ``gather=`` it is called in all processes, and tells all of them the same.

    * ``loss``; for a sum also ``term[<spec>]``, what each weighted term adds to it
    * ``positive_mean``, ``negative_mean``, ``negative_variance`` (of an anchor's negatives): of the similarities
    * ``negatives``: how many; ``effective_negatives``: ``e^H`` of an anchor's training weights ``|dL/ds_j|``, which is
      ``negatives`` if they are equal, 1 if one dominates, 0 if all are zero
    * ``negatives_above_positive``: share of (positive, negative) pairs in which the negative is more similar
    * what the objective's own :meth:`Objective.diagnostics` says, such as ``clamp_rate``

    The pairs are those of a sum's first term that has positives. What compares others, as regularisers and
    adversarial terms do, counts in ``loss`` only. Where there are no positives, what is said of them is NaN.

    >>> import torch, counterpoint as cp
    >>> found = cp.InfoNCE(0.5).report(torch.eye(4), torch.eye(4))
    >>> found["negatives"], round(found["effective_negatives"], 4), found["negatives_above_positive"]
    (6.0, 6.0, 0.0)
    """
    with torch.inference_mode(False), torch.no_grad():
        if "gather" in how:
            how["gather"] = distributed.without_ring(how["gather"])
        probe = deepcopy(objective).eval()
        if call == "forward":
            how = {**how, "tile": 0}  # the weight of every single negative needs a matrix
        batch, device = getattr(_Arguments(), call)(*map(_copy, given), **{k: _copy(v) for k, v in how.items()})

        def scores(pairing: str) -> Scores:
            with torch.no_grad():
                made: Scores = batch(pairing)
            dense_scores(made.neg).requires_grad_()
            return made

        with torch.autocast(device.type, enabled=False):
            parts = _parts(probe)
            main = scores(next((p for p in parts if p.pairing != "single"), parts[0]).pairing)
            neg: Any = main.neg
            with torch.enable_grad():
                loss = probe.from_pairings(scores, device)
                weights = _derivative(loss, neg.scores)
            allowed = neg._fill(torch.ones_like(weights), slice(None), 0.0)
            share = normalize(weights * allowed, p=1, eps=torch.finfo(weights.dtype).tiny).abs()
            order = neg._fill(neg.scores, slice(None), float("-inf")).sort(1).values
            above = order.shape[1] - torch.searchsorted(order, main.pos.contiguous(), right=True)
            found = {
                "loss": loss,
                "positive_mean": main.positives_mean(main.pos),
                "negative_mean": neg.mean(lambda s: s),
                "negative_variance": neg.variance(),
                "negatives": allowed.sum(1),
                "effective_negatives": torch.special.entr(share).sum(1).exp() * share.any(1),
                "negatives_above_positive": main.positives_mean(above / allowed.sum(1, keepdim=True)),
            }
            if main.layout == "single":
                found |= dict.fromkeys(("positive_mean", "negatives_above_positive"), torch.tensor(float("nan")))
            if main.anchors is not None:  # rows that the loss leaves out
                found = {key: value[main.anchors > 0] if value.dim() else value for key, value in found.items()}
            for weight, part in probe.terms() if isinstance(probe, Sum) else []:
                found[f"term[{Sum([(weight, part)])}]"] = current(weight) * part.from_pairings(scores, device)
            for part in parts:
                for key, value in part.diagnostics(scores(part.pairing)).items():
                    found[f"{key}[{part}]" if key in found else key] = value
        means = torch.stack([value.detach().mean().to(loss.dtype) for value in found.values()])
        if main.neg.peers is not None:  # over the anchors of all processes
            mine = torch.tensor(len(main.pos), device=device)
            means = main.neg.across(means * mine) / main.neg.across(mine)
        return dict(zip(found, means.tolist(), strict=True))


def weight_curve(
    objective: Objective | str,
    similarities: Tensor | None = None,
    positive: float = 0.8,
    negatives: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``similarities`` and the training weights ``dL/ds`` of negatives there (ADNCE's Figure 3), both in float64.

    Args:
        objective: or a spec. Here all terms of a sum see the same pairs, and attacked views are like clean ones.
        similarities: ``(K,)`` where to look; by default 201 points from -1 to 1.
        positive: similarity of the anchor's positive.
        negatives: ``(N,)`` similarities of the anchor's negatives, of mean absolute weight 1; by default the same.
    """
    grid = torch.linspace(-1, 1, 201, dtype=torch.float64) if similarities is None else similarities
    grid, own = (s.detach().cpu().double().flatten() for s in (grid, grid if negatives is None else negatives))
    with torch.inference_mode(False), torch.enable_grad():
        # beside the negatives, what is only looked at counts too little to move any statistic of theirs
        beside = grid[:0] if negatives is None else grid
        row = torch.cat([own, beside]).unsqueeze(0).requires_grad_()
        mass = torch.cat([torch.ones_like(own), torch.full_like(beside, 1e-12)])
        neg, pos = DenseNegatives(row, log_weight=mass.log().unsqueeze(0)), row.new_full((1, 1), positive)
        scores = Scores(pos, neg, adversarial=Scores(pos, neg))
        loss = deepcopy(as_objective(objective)).eval().cpu().from_pairings(lambda _: scores, row.device)
        weight = _derivative(loss, row)[0] / mass
    scale = weight[: len(own)].abs().mean()
    return grid, weight[-len(grid) :] / torch.where(scale > 0, scale, 1.0)


def distances(*views: Tensor) -> Tensor:
    """``(1 - cos) / 2`` of the pairs ``j > i`` of samples within each view ``(B, d)``, or each of one ``(B, m, d)``."""
    if not views:
        raise ValueError("distances: call with the views of a batch, distances(z1, z2).")
    found = []
    for view in views[0].unbind(1) if views[0].dim() == 3 else views:
        z = unit(widen(checks.is_finite(checks.is_matrix(view, "distances", "(batch, width)"), "distances").detach()))
        above = torch.ones(len(z), len(z), dtype=torch.bool, device=z.device).triu(1)
        found.append(((1 - z @ z.T) / 2).clamp(0, 1)[above])
    return torch.cat(found)


def alignment(first: Tensor, second: Tensor) -> float:
    """``mean ||x - y||^2`` of positive pairs, rows of ``first`` and ``second`` at length one (Wang and Isola 2020).

    From 0, all pairs coincide, to 4.

    >>> alignment(torch.eye(3), torch.eye(3)), alignment(torch.eye(2), -torch.eye(2))
    (0.0, 4.0)
    """
    x, y = (
        unit(widen(checks.is_finite(checks.is_matrix(z, "alignment", "(pairs, width)"), "alignment").detach()))
        for z in (first, second)
    )
    if x.shape != y.shape:
        raise ValueError(f"alignment: expected equal shapes, got {checks.shape(first)} and {checks.shape(second)}.")
    return (x - y).square().sum(1).mean().item()


def uniformity(z: Tensor, t: float = 2.0) -> float:
    """``log mean e^{-t ||x - y||^2}`` over all pairs of different rows at length one (Wang and Isola 2020).

    From ``-4 t`` for two opposite points up to 0, all rows coincide; lower is more uniform.

    >>> round(uniformity(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])), 4)
    -8.0
    """
    found = distances(z)
    if len(found) == 0:
        raise ValueError("uniformity: expected at least 2 rows.")
    return (-4 * t * found).logsumexp(0).sub(math.log(len(found))).item()  # ||x - y||^2 = 4 D


def _parts(objective: Objective) -> list[Objective]:
    """The objectives that a sum, or a sum of sums, adds up."""
    return [p for _, part in objective.terms() for p in _parts(part)] if isinstance(objective, Sum) else [objective]


def _copy(given: Any) -> Any:
    """Scores of its own, so that asking for their gradient leaves no trace on the caller's."""
    if isinstance(given, DenseNegatives):
        return DenseNegatives(given.scores.clone(), given.skip, given.drop, given.log_weight)
    return given.clone() if isinstance(given, Tensor) else given


def _derivative(loss: Tensor, by: Tensor) -> Tensor:
    # the sum makes it exist, as zero, where a loss does not depend on these negatives
    return torch.autograd.grad(loss + 0 * by.sum(), by)[0]
