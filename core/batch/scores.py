"""The scores of a batch: positive similarities, and negatives, which one of the engines reduces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module

import torch
from torch import Tensor

from .. import checks
from ..engine.mask import Mask, Pair
from ..engine.matrix import MatrixNegatives, own_columns
from ..engine.matrix import Negatives as Negatives  # for objectives, which do not import the engine
from ..engine.pairs import PairNegatives
from ..engine.tiles import TileNegatives
from ..values import Value
from .batch import Batch

# A matrix of fewer pairs is faster on the CPU; elsewhere tiles save memory from so many pairs on.
PAIRS_CPU, PAIRS = 2**17, 2**26

# Where anchors and keys are different embeddings: a matrix of at most this many pairs is faster on the CPU.
SEPARATE_CPU = 2**18

# views that are anchors, and the views that they are compared with
Part = tuple[Sequence[Tensor], Sequence[Tensor]]


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
    view_count: int | None = None  # of a sample, if known
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


def negatives_of(
    batch: Batch,
    parts: Sequence[Part],
    *,
    both: bool = False,
    hard: Tensor | None = None,
    owned: bool = True,
    optional: bool = False,
    engine: str = "",
) -> Negatives:
    """Return the views of all other samples, and the hard negatives ``(B, n, d)`` of all samples, as negatives.

    With ``both``, the keys are further anchors, listed last, whose keys are the first ones. An anchor's own hard
    negatives count if ``owned``. ``optional``: others are joined to these, so that an anchor may have none.
    """
    if batch.group is not None and both:
        parts, both = [part for anchors, keys in parts for part in ((anchors, keys), (keys, anchors))], False
    # the samples' first hard negatives, then their second: like views, in the samples' order
    batch.gather_together(*(key for _, keys in parts for key in keys), hard)
    further = [] if hard is None else [*batch.everyone(hard).unbind(1)]
    blocks = []
    for anchors, keys in parts:
        left = batch.stack(anchors)
        if batch.group is None:
            blocks.append((left, left if keys is anchors else batch.stack([*keys, *further])))
        else:  # a block for each view, since a view has other rows than a block of keys
            right = batch.stack([*map(batch.everyone, keys), *further])
            blocks += [(view, right) for view in anchors]
    mask = mask_of(batch, len(blocks[0][0]) // batch.size, len(parts[0][1]), len(further), owned)
    return masked_negatives(batch, blocks, mask, both, optional, engine)


def pair_scores(batch: Batch, both: bool = False) -> PairScores | None:
    """Score the first view with the others, in ``both`` directions if asked; None if a matrix does not suit them."""
    apart = (batch.group, batch.negatives, batch.ids, batch.log_q, batch.adversarial, batch.mixed)
    if batch.device.type != "cpu" or any(x is not None for x in apart) or checks.traced():
        return None
    separate = any(x.requires_grad for x in batch.raw[1:])
    pairs, engine = batch.size**2 * (len(batch.raw) - 1) * (1 + both), batch.engine
    if (fastest_engine(batch.device, pairs, separate, both) if engine == "auto" else engine) != "matrix":
        return None
    anchors, *others = batch.normalized()
    keys = batch.stack(others)
    own = own_columns(batch.size * (1 + both), keys.shape[0], batch.size, batch.device)
    return PairScores.of(PairNegatives(anchors, keys, own, batch.bound or batch.largest_norm**2, both))


def mask_of(batch: Batch, anchor_views: int, key_views: int, hard: int, owned: bool) -> Mask:
    """Return which keys, views of all samples and ``hard`` negatives of each, count: not those of the anchor's own."""

    def pair(x: Tensor | None, of_hard: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """Return a value for each anchor and for each key; hard negatives without an id get one that no sample has."""
        if x is None:
            return None
        keys = batch.everyone(x).repeat(key_views)
        if hard:  # all samples' first ones, then their second: like views
            of_hard = (keys.amin() - 1).expand(batch.total * hard) if of_hard is None else batch.everyone(of_hard)
            keys = torch.cat([keys, of_hard.view(-1, hard).T.flatten()])
        return x.repeat(anchor_views), keys

    mined = batch.negatives
    ids, log_q = pair(batch.ids, mined and mined.ids), pair(batch.log_q, mined and mined.log_q)
    log_weight = None if log_q is None else (-log_q[0], -log_q[1])
    mask = Mask(period=batch.total, ids=ids, log_weight=log_weight, zeros=has_zeros(log_weight))
    # without these, an anchor's own hard negatives are excluded like views
    if mined is None or not hard or (not owned and ids is None and mined.shared):
        return mask
    own = mined.own_log_weight if owned else -math.inf
    return replace(mask, hard=batch.total * key_views, own_log_weight=own, others=mined.shared)


def own_negatives(batch: Batch, anchors: Tensor, optional: bool = False) -> MatrixNegatives:
    """Return each sample's own hard negatives, ``(B, n)``."""
    hard = batch.negatives
    assert hard is not None
    matrix = (hard.embeddings @ anchors.unsqueeze(2)).squeeze(2)
    drop = None if batch.ids is None or hard.ids is None else batch.ids.unsqueeze(1) == hard.ids.view_as(matrix)
    weight = torch.full_like(matrix, hard.own_log_weight) if hard.own_log_weight else None
    if hard.log_q is not None:
        weight = hard.own_log_weight - hard.log_q.view_as(matrix)
        zero = weight == -math.inf
        weight, drop = weight.masked_fill(zero, 0.0), zero if drop is None else drop | zero
    neg = MatrixNegatives(matrix, None, drop, weight)
    neg.optional, neg.valid = optional, 1.0 if optional else checks.require_negatives(neg.count)
    return neg


def has_zeros(log_weight: Pair | None) -> bool:
    """Return whether keys may have a weight of zero."""
    keys = None if log_weight is None else log_weight[1]
    return keys is not None and (not checks.wanted(keys) or bool((keys == -math.inf).any()))


def masked_negatives(
    batch: Batch, blocks: Sequence[Pair], mask: Mask, both: bool = False, optional: bool = False, engine: str = ""
) -> Negatives:
    """Return the keys ``(N, d)`` of each block's anchors ``(n, d)``, but those that ``mask`` excludes, by engine."""
    engine = engine or batch.engine
    if engine == "auto":
        pairs = sum(left.shape[0] * right.shape[0] for left, right in blocks) * (1 + both)
        separate = batch.group is None and all(left is not right and right.requires_grad for left, right in blocks)
        engine = fastest_engine(batch.device, pairs, separate, both)
    if optional and engine == "chunks":
        if batch.engine == "chunks":
            raise ValueError("engine='chunks': several directions= are reduced one by one; use 'tiles' or 'auto'.")
        engine = "tiles"
    neg: Negatives
    if engine == "matrix":
        neg = MatrixNegatives.of(blocks, mask, both)
    elif engine == "fused":
        fused = import_module("counterpoint.experimental.fused")  # imports Triton
        half = batch.normalize and batch.raw[0].dtype == torch.bfloat16  # then it can be multiplied in it
        neg = fused.FusedNegatives(blocks, both, mask, batch.bound, torch.bfloat16 if half else None)
    else:
        neg = TileNegatives(blocks, both, mask, batch.edge, batch.bound, engine, batch.engine == engine)
    neg.optional = optional
    if (mask.ids is not None or mask.positives is not None or mask.zeros) and not optional:
        neg.valid = checks.require_negatives(neg.count)
    return neg


def fastest_engine(device: torch.device, pairs: int, separate: bool = False, both: bool = False) -> str:
    """Return the engine of so many pairs for which none is asked: ``matrix``, ``chunks`` or ``tiles``.

    ``separate``: the keys are other embeddings than the anchors, and have a gradient; ``both``: they are anchors, too.
    """
    fewest = PAIRS if device.type != "cpu" else SEPARATE_CPU + 1 if separate else PAIRS_CPU
    if pairs < fewest:
        return "matrix"
    # keys that are anchors too share the similarities of both directions: four products instead of six
    return "chunks" if separate and not both else "tiles"
