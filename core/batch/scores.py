"""The scores of a batch: positive similarities, and negatives that an objective can reduce."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .. import checks
from ..engine.matrix import Negatives as Negatives  # for objectives, which do not import the engine
from ..engine.pairs import PairNegatives
from ..values import Value


@dataclass
class Scores:
    """The positive similarities and the negatives of a batch, as an objective reads them.

    Shapes are ``(anchors, P)`` for values of positives, ``(anchors, 1)`` for values of anchors; None if not given.

    >>> scores = cp.Scores(torch.tensor([[0.8]]), cp.MatrixNegatives(torch.tensor([[0.1, 0.4]])))
    >>> cp.InfoNCE(0.5).losses(scores)
    tensor([[0.5282]])
    """

    pos: Tensor  # similarities; entries that pos_mask rules out are finite
    neg: Negatives
    pos_mask: Tensor | None = None  # True where there is a positive; None: P for each anchor
    pairing: str = "scores"  # its name; "logits" or "scores" for similarities computed elsewhere
    denominator_pos: Tensor | None = None  # in the denominator in place of the positive (ArCL's Algorithm 1)
    negatives_only: bool = False  # whether the denominator has no positive (ArCL's Algorithm 2)
    v: Tensor | None = None  # (anchors, P') positives that enter the estimators g1 and g2; None: pos
    prior: Tensor | None = None  # class prior that replaces the objective's own
    index: Tensor | None = None  # (anchors, 2), the sample's position in the data set and the number of the view
    positive_factor: Tensor | None = None  # factor of p / t in the numerator of the family of InfoNCE
    anchor_factor: Tensor | None = None  # (anchors,) factors of the losses in the final average
    rows: Tensor | None = None  # (rows,), True for those of a matrix that are anchors; the others' loss is zero
    share: Value = 1.0  # of the averaged rows that have negatives; the others enter the average with loss zero
    adversarial: Scores | None = None  # similarities to the adversarial view, with their own negatives
    mixed: list[Scores] = field(default_factory=list)  # to each mixed view
    views: int | None = None  # of a sample, if known
    unfiltered: Negatives | None = None  # before false_negatives=, for reports
    removed: dict[str, Tensor] = field(default_factory=dict)  # the largest similarity of a negative, by rule
    emptied: Tensor | None = None  # whether the rules exclude all negatives, so that the least similar one stays
    judge: Negatives | None = None  # as a guide model sees them, which decides instead of unfiltered
    guide_pos: Tensor | None = None  # similarities by the guide
    bound: float | None = None  # of the absolute similarities, if known
    exempt: int = 0  # number of keys, the last, to which false_negatives= does not apply
    hard: int | None = None  # number of keys, the last, that are hard negatives, if the batch alone does not say
    times: float = 1.0  # how often the positive counts in the denominator of the family of InfoNCE
    width: int | None = None  # of the embeddings, if known

    def class_positives(self) -> tuple[Tensor, Tensor | None]:
        """Return the positives that enter g1 and g2, and their mask."""
        return (self.pos, self.pos_mask) if self.v is None else (self.v, None)

    def first_positive(self) -> Tensor:
        """Return each anchor's first positive, ``(anchors, 1)``."""
        if self.pos_mask is None:
            return self.pos[:, :1]
        return self.pos.gather(1, self.pos_mask.to(torch.uint8).argmax(1, keepdim=True))

    @property
    def uniform(self) -> bool:
        """Whether all anchors, and all positives of an anchor, count the same, and none are in other processes."""
        parts = (self.pos_mask, self.anchor_factor, self.rows, self.neg.group)
        return all(x is None for x in parts) and isinstance(self.share, float)

    def mark_invalid(self, losses: Tensor) -> Tensor:
        """Check the shape of losses; return them, NaN for anchors without negatives where no error can be raised."""
        if not isinstance(losses, Tensor) or losses.dim() != 2:
            got = f"shape {checks.shape(losses)}" if isinstance(losses, Tensor) else type(losses).__name__
            raise TypeError(f"per_anchor: expected a loss per anchor, (anchors, 1) or the shape of pos, got {got}.")
        for part in (self, self.adversarial):
            if part is not None and isinstance(part.neg.valid, Tensor):
                losses = losses * part.neg.valid
        return losses

    def anchors_mean(self, x: Tensor, share: Value | None = None) -> Tensor:
        """Average ``(anchors,)`` values over all processes; with ``share=1.0`` over the anchors that have negatives."""
        factor, share = self.anchor_factor, self.share if share is None else share
        if self.neg.group is not None:
            return self.neg.group.mean(x, factor) * share
        mean = x.mean() if factor is None else (x * factor).sum() / factor.sum().clamp(min=1)
        return mean * share

    def by_row(self, x: Tensor) -> Tensor:
        """Return ``(anchors,)`` values as ``(rows,)``, with zeros where a row is not an anchor or does not count."""
        x = x if self.anchor_factor is None else x * self.anchor_factor
        return x if self.rows is None else x.new_zeros(len(self.rows)).masked_scatter(self.rows, x)

    def positives_mean(self, x: Tensor) -> Tensor:
        """Average over the positives of each anchor, ``(anchors, 1)``."""
        if self.pos_mask is None:
            return x.mean(1, keepdim=True)
        return x.masked_fill(~self.pos_mask, 0.0).sum(1, keepdim=True) / self.pos_mask.sum(1, keepdim=True).clamp(min=1)

    def positives_logsumexp(self, x: Tensor) -> Tensor:
        """Compute the log-sum-exp over the positives of each anchor, ``(anchors, 1)``."""
        return logsumexp_over(x, self.pos_mask)

    def positives_min(self, x: Tensor) -> Tensor:
        """Return the smallest value over each anchor's positives; the first of several equal ones gets the gradient."""
        if self.pos_mask is not None:
            x = x.masked_fill(~self.pos_mask, math.inf)
        return x.gather(1, x.argmin(1, keepdim=True))

    def positives_count(self) -> Value:
        """Count the positives: a float if it is the same for all anchors, else ``(anchors, 1)``."""
        if self.pos_mask is None:
            return float(self.pos.shape[1])
        return self.pos_mask.sum(1, keepdim=True).clamp(min=1).to(self.pos.dtype)


class PairScores(Scores):
    """Scores whose positives are computed with the negatives."""

    pairs: PairNegatives  # of which ``neg`` may exclude some

    def __getattr__(self, name: str) -> Tensor:
        if name != "pos":
            raise AttributeError(f"{type(self).__name__} has no {name!r}.")
        self.pos = self.pairs.pos
        return self.pos

    @classmethod
    def of(cls, pairs: PairNegatives) -> PairScores:
        scores = cls(pairs.left, pairs)
        scores.pairs = pairs
        del scores.pos  # until it is asked for
        return scores


def logsumexp_over(x: Tensor, mask: Tensor | None) -> Tensor:
    """Compute the row-wise log-sum-exp of the entries that ``mask`` (None: all) allows."""
    if x.shape[1] == 1 and mask is None:
        return x
    return (x if mask is None else x.masked_fill(~mask, -math.inf)).logsumexp(1, keepdim=True)


def counted_positives(
    pos_mask: Tensor, dtype: torch.dtype, error: str, any_positive: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the mask and a weight per anchor.

    Anchors without positives get weight zero and placeholder positives, since ``inf * 0`` is NaN. A batch without any,
    of all processes by ``any_positive``, raises ``error`` if not empty, or gets weights of NaN if values are not read.
    """
    has_positives = pos_mask.any(1)
    weights = has_positives.to(dtype)
    if error:
        any_positive = has_positives.any() if any_positive is None else any_positive
        if checks.wanted(any_positive) and not bool(any_positive):
            raise ValueError(error)
        weights = weights.where(any_positive, math.nan)
    return pos_mask | ~has_positives.unsqueeze(1), weights
