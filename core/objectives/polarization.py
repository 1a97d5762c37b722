"""Distance polarization: no pair of samples at a middling distance."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..batch.scores import Scores
from ..engine.negatives import Negatives
from ..hyper import Choice, Number, Real, bounds, text
from ..objective import Objective
from ..vectors import unit, widen


class DistancePolarization(Objective, name="dp"):
    """Penalises pairs whose distance ``D = (1 - cos) / 2`` lies in the margin ``(low, high)``.

    ``R1 = sum over j != i of max(0, (D_ij - low) (high - D_ij))``. The pairs are those of the batch's samples (the
    first view), or the anchors' negatives where only scores are at hand. Added to any objective it makes LMCL:
    ``InfoNCE() + 0.1 * DistancePolarization()``.

    Args:
        low: ``d+``, below which a pair counts as similar, in ``[0, 1]``.
        high: ``d-``, above which a pair counts as dissimilar, in ``[0, 1]``, greater than ``low``.
        reduction: a single pair adds at most ``((high - low) / 2)^2`` = 0.04, so this choice decides whether the
            regulariser is felt: ``sum`` over an anchor's pairs, averaged over anchors (Eq. 10, beside InfoNCE's own
            sum over negatives); ``mean`` over all pairs; ``mean_full`` over all ``B^2``; ``batch_sum`` over all ordered
            pairs (Eq. 6 and 9 to the letter).

    Paper: Chen et al. 2021, large-margin contrastive learning with distance polarization regularizer.
    """

    formula = "sum_{j != i} max(0, (D_ij - low)(high - D_ij)),  D = (1 - cos) / 2"
    paper = "Chen et al. 2021, large-margin contrastive learning with distance polarization"
    pairing = "single"

    low = Real("low", 0, 1)
    high = Real("high", 0, 1)
    reduction = Choice("sum", "mean", "mean_full", "batch_sum", short="reduction")

    def __init__(self, low: Number = 0.1, high: Number = 0.5, reduction: str = "sum") -> None:
        super().__init__(low=low, high=high, reduction=reduction)
        if bounds(self._hyper["low"])[1] >= bounds(self._hyper["high"])[0]:
            raise ValueError(
                f"DistancePolarization: low must be smaller than high, got low={text(low)}, high={text(high)}."
            )

    @property
    def couples_anchors(self) -> bool:
        return bool(self.reduction == "batch_sum")

    def losses(self, scores: Scores) -> Tensor:
        per_anchor = self.per_anchor(scores.pos, scores.neg)
        if self.reduction == "batch_sum":
            counted = per_anchor.new_ones(len(per_anchor)) if scores.anchors is None else scores.anchors
            return per_anchor * scores.neg.across(counted.sum())
        return per_anchor

    def per_anchor(self, pos: Tensor, neg: Negatives) -> Tensor:
        low, high = self.low, self.high

        def inside(s: Tensor) -> Tensor:
            d = (1 - s) / 2
            hill: Tensor = (d - low) * (high - d)
            return hill.clamp(min=0)

        mean: Tensor = neg.mean(inside)
        if self.reduction == "mean":
            return mean
        if self.reduction == "mean_full":
            mean = mean / (neg.count + 1)
        return mean * neg.count


def pairs_in_margin(embeddings: Tensor, low: float = 0.1, high: float = 0.5) -> Any:
    """``R0``: how many ordered pairs of samples lie strictly inside the margin. A metric, without gradient."""
    if not low < high:
        raise ValueError(f"pairs_in_margin: low must be smaller than high, got low={low!r}, high={high!r}.")
    checks.is_matrix(embeddings, "pairs_in_margin", "(batch, width)")
    with torch.no_grad():
        z = unit(widen(checks.is_finite(embeddings, "pairs_in_margin")))
        d = (1 - z @ z.T) / 2
        inside = (d > low) & (d < high)
        return (inside.sum() - inside.diagonal().sum()).to(z.dtype)
