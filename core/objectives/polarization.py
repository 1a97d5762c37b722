"""Regularizers of the batch's similarities: distance polarization and spread-out."""

from typing import Literal, get_args

from torch import Tensor

from ..base import Objective
from ..batch.scores import Negatives, Scores
from ..hyper import Choice, Flag, Real
from ..values import bounds, text

Reduction = Literal["sum", "mean", "mean_full", "batch_sum"]


class DistancePolarization(Objective, name="dp"):
    """Penalize pairs whose distance ``D = (1 - cos) / 2`` lies in the margin ``(low, high)``.

    ``sum_{j != i} max(0, (D_ij - low)(high - D_ij)),  D = (1 - cos) / 2``. The pairs are those of the batch's samples
    (the first view) or, of scores, each anchor's negatives. LMCL is ``InfoNCE() + 0.1 * DistancePolarization()``.

    Paper: Chen et al. 2021, https://proceedings.mlr.press/v139/chen21n.html.

    >>> cp.DistancePolarization(0.2, 0.6)(torch.eye(4))
    tensor(0.0900)
    """

    use = "no margin between similar and dissimilar pairs; a regularizer: infonce + 0.1*dp"
    tune_first = "reduction, then its weight (.01 to 5)"
    cost = "one pass over the similarities"
    pairing = "single"
    on_cosines = True

    low: Real = Real(low=0, high=1, default=0.1, doc="``d+``, below which a pair counts as similar, in ``[0, 1]``.")
    high: Real = Real(low=0, high=1, default=0.5, doc="``d-``, above which a pair is dissimilar, in ``(low, 1]``.")
    reduction: Choice[Reduction] = Choice(
        *get_args(Reduction), default="sum", doc="It decides whether the regularizer has an effect, as a pair adds "
        "at most ``((high - low) / 2)^2`` = 0.04: ``sum`` over an anchor's pairs, averaged over anchors (Eq. 10); "
        "``mean`` over all pairs; ``mean_full`` over all ``B^2``; ``batch_sum`` over all ordered pairs (Eq. 6 and 9).",
    )  # fmt: skip

    def __post_init__(self) -> None:
        low, high = self._hyper["low"], self._hyper["high"]
        if bounds(low)[1] >= bounds(high)[0]:
            raise ValueError(f"DistancePolarization: expected low < high, got low={text(low)}, high={text(high)}.")

    @property
    def couples_anchors(self) -> bool:
        return self.reduction == "batch_sum"

    def losses(self, scores: Scores) -> Tensor:
        per_anchor = self.per_anchor(scores.pos, scores.neg)
        if self.reduction != "batch_sum":
            return per_anchor
        # undo the final average, which is over all anchors, those of loss zero included
        share, factor = scores.share, scores.anchor_factor
        counted = scores.neg.across(per_anchor.new_ones(len(per_anchor)).sum() if factor is None else factor.sum())
        return per_anchor * (counted / share.clamp(min=1e-30) if isinstance(share, Tensor) else counted)

    def per_anchor(self, pos: Tensor, neg: Negatives) -> Tensor:
        low, high = self.low, self.high

        def inside(s: Tensor) -> Tensor:
            d = (1 - s) / 2
            return ((d - low) * (high - d)).clamp(min=0)

        mean: Tensor = neg.mean(inside)
        if self.reduction == "mean":
            return mean
        return mean * neg.count if self.reduction != "mean_full" else mean / (neg.count + 1) * neg.count


class SpreadOut(Objective, name="gor"):
    """Global orthogonal regularization: similarities of different samples as of random directions.

    ``M1^2 + max(0, M2 - 1/d),  M_k = mean over pairs of s^k``, those of the batch's samples (the first view; add
    ``cp.SpreadOut()(z2)`` for the second). ``d`` is the width of the embeddings (infinite for scores and logits).

    Paper: Zhang et al. 2017, https://arxiv.org/abs/1708.06320.

    >>> cp.SpreadOut()(torch.ones(4, 2))
    tensor(1.5000)
    """

    use = "embeddings that fill the space, also when quantized; a regularizer: infonce + 0.1*gor"
    tune_first = "its weight (.1 to 10)"
    cost = "one pass over the similarities"
    pairing = "single"
    on_cosines = True
    couples_anchors = True  # pyright: ignore[reportAssignmentType]

    mean: Flag = Flag(default=True, doc="Keep ``M1^2``; False leaves the second moment alone, as EmbeddingGemma.")

    def losses(self, scores: Scores) -> Tensor:
        first, second = scores.neg.mean(lambda s: (s, s * s))
        excess = second - (1 / scores.width if scores.width else 0.0)
        losses: Tensor = excess * (scores.anchors_mean(excess.detach().squeeze(1)) > 0)
        if not self.mean:
            return losses
        m1 = scores.anchors_mean(first.squeeze(1), share=1.0)  # of all anchors, the others' without a gradient
        m1 = m1 if scores.neg.group is None else m1.detach()
        return losses + m1 * (2 * first - m1)  # type: ignore[no-any-return]  # whose mean is the square of m1
