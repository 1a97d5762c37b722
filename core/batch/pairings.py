"""Pair a batch: from embeddings to the scores of each anchor's positives and negatives.

=============  ==================================================================================================
pairing        anchors, positives and negatives, for ``m`` views of ``B`` samples
=============  ==================================================================================================
``views``      every view of every sample (``m B``); the other views of the sample; all views of the others. For
               two views this is SimCLR's NT-Xent with ``2 B - 2`` negatives.
``one_way``    the first view; the sample's other views; the other views of the others (SimCSE, GraphCL)
``symmetric``  ``one_way`` in both directions (CLIP)
``first_two``  views 1 and 2; all other views of the sample; views 1 and 2 of the others (debiased positives)
``pairs``      ``views`` for each pair of views, averaged (debiased positives, loss combination)
``arcl``       the first view; all pairs of views of the sample; views 1 and 2 of the others (ArCL, Algorithm 1)
``single``     the first view; none; the first view of the others (regularizers)
``joint``      the first view; the second; the keys of ``directions=``, beside one another. By default those of all four
               directions, as in GTE (:mod:`counterpoint.batch.joint`)
``queue``      the query; the key; the queue (MoCo). With documents: the query; any of the documents; the others. Chosen
               by ``queue=`` or by documents: :mod:`counterpoint.batch.bank`
=============  ==================================================================================================
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, cast

import torch
from torch import Tensor

from .. import checks
from ..engine.matrix import MatrixNegatives, matrix_of
from ..engine.tiles import LIMITED
from ..names import check_known
from ..vectors import widen
from .bank import queue
from .batch import Batch
from .joint import joint
from .rules import limits, rounded_up
from .scores import Part, Scores, counted_positives, negatives_of, own_negatives, pair_scores


def scores_of(batch: Batch, pairing: str) -> Scores:
    """Return the scores of a batch for an objective that asks for ``pairing``, computing those of each pairing once."""
    name = pairing_in_force(batch, pairing)
    scores: Scores | None = batch.paired.get(name)
    if scores is None:
        _check_views(batch, name)
        scores = PAIRINGS[name](batch)
        scores.pairing = batch.bank if batch.bank == "documents" else name
        scores.view_count, scores.width, scores.bound = scores.view_count or len(batch.raw), batch.width, batch.bound
        _apply_options(batch, name, scores)
        scores.neg.group = batch.group
        batch.paired[name] = scores
    return scores


def _apply_options(batch: Batch, name: str, scores: Scores) -> None:
    """Exclude false negatives, and add the guide, prior, factor and index of each anchor, if the call has them."""
    judge = scores
    if batch.guide is not None:
        with torch.no_grad():
            judge = PAIRINGS[name](batch.guide)
        scores.guide_pos = judge.pos
    if batch.rules:
        _exclude_false_negatives(batch, name, scores, judge)
    if batch.guide is not None:
        scores.neg.set_guide(judge.neg)
    if batch.prior is not None:
        scores.prior = _per_anchor(batch.prior, scores.pos)
    if batch.positive_factor is not None and name != "single":
        scores.positive_factor = _per_anchor(batch.positive_factor, scores.pos)
    if batch.index is not None:
        which = torch.arange(len(scores.pos) // batch.size, device=batch.device).repeat_interleave(batch.size)
        scores.index = torch.stack([batch.index.repeat(len(which) // batch.size), which], 1)
    if scores.adversarial is not None:
        scores.adversarial.bound, scores.adversarial.neg.group = batch.bound, batch.group
    for part in scores.mixed:
        part.bound = batch.bound


def check_guide(batch: Batch, objective: Any) -> None:
    """Raise if nothing uses the guide, or if the objective uses one that has not seen all keys."""
    if batch.guide is None:
        return
    if not batch.rules:
        check_use(batch.guide, objective)
    if uses_guide(objective) and batch.negatives is not None and batch.negatives.guide is None:
        raise ValueError("guide= with negatives: needs the guide's embeddings of these: cp.Keys(..., guide=...).")


def uses_guide(objective: Any) -> bool:
    """Return whether an objective reduces with ``guided=True``; those that do have this attribute."""
    return any(getattr(part, "uses_guide", False) for part in objective.modules())


def guide_of_targets(objective: Any, targets: Tensor) -> Tensor:
    """Return the guide's similarities whose softmax is soft targets."""
    if any(getattr(part, "weight", "") == "linear" for part in objective.modules()):
        raise ValueError(f"targets=: {objective} reads cosines of a guide; weight=softmax,tau=1 reads targets.")
    return widen(targets).log()


def check_use(guide: Any, objective: Any) -> None:
    """Raise if the objective does not use a guide."""
    if guide is not None and not uses_guide(objective):
        raise ValueError("guide=: needs false_negatives= beside it, or cp.SoftTargets; cp.margin(0) is GISTEmbed's.")


def _exclude_false_negatives(batch: Batch, name: str, scores: Scores, judge: Scores) -> None:
    """Exclude the negatives that the batch's rules call false, by the similarities of ``judge``."""
    if batch.negatives is not None and name != "single" and not batch.rules[0].hard:
        every = batch.negatives.embeddings.shape[1] * (batch.total if batch.in_batch else 1)
        scores.exempt = every if scores.hard is None else scores.hard
    margins = any(rule.kind != "threshold" for rule in batch.rules)
    pos = _own_positives(batch.guide or batch) if name == "single" and margins else judge.pos
    scores.removed = dict(zip(map(str, batch.rules), limits(batch.rules, pos, judge.pos_mask), strict=True))
    scores.unfiltered, scores.judge = scores.neg, None if judge is scores else judge.neg
    most = torch.cat([*scores.removed.values()], 1).amin(1, keepdim=True)
    if scores.anchor_factor is not None:  # anchors without positives have no limit, and do not count
        most = most.masked_fill(scores.anchor_factor.unsqueeze(1) == 0, torch.inf)
    kept = _filter(batch, scores, most)
    for part in scores.mixed:
        part.neg = scores.neg
    if scores.adversarial is not None:
        least = torch.cat(limits(batch.rules, scores.adversarial.pos, None), 1).amin(1, keepdim=True)
        kept = _filter(batch, scores.adversarial, least) & kept
    if batch.empty == "zero":
        counted = kept.new_ones(len(kept)) if scores.anchor_factor is None else scores.anchor_factor
        scores.anchor_factor = counted * kept.squeeze(1).to(most.dtype)
        across = scores.neg.across
        scores.share = across(scores.anchor_factor.sum()) / across(counted.to(most.dtype).sum()).clamp(min=1)


def _filter(batch: Batch, scores: Scores, most: Tensor) -> Tensor:
    """Exclude negatives that are more similar than ``most``; return which anchors have any.

    Anchors that lose all keep the least similar one or, if their loss is to be zero, all: reductions stay finite.
    """
    before, how = scores.neg, (scores.judge, scores.exempt)
    before.group = batch.group
    scores.neg = before.excluding(most, *how)
    if batch.empty != "error":
        kept = cast(Tensor, scores.neg.count) > 0
        if checks.wanted(kept) and bool(kept.all()):
            return kept
        least = most.new_full((), torch.inf)
        if batch.empty == "keep":
            with torch.no_grad():
                least = rounded_up((before if scores.judge is None else scores.judge).min().detach())
            scores.emptied = ~kept
        scores.neg = before.excluding(most.where(kept, least), *how)
        scores.neg.valid = before.valid
        return kept
    if isinstance(scores.neg, MatrixNegatives):
        scores.neg.valid = before.valid * checks.require_negatives(scores.neg.count, LIMITED)
    return torch.ones_like(most, dtype=torch.bool)


def _own_positives(batch: Batch) -> Tensor:
    """Return the similarities of the first view to the sample's others, for a pairing without positives."""
    if len(batch.raw) < 2:
        raise ValueError("false_negatives: a margin needs positives, at least 2 views; cp.threshold() does not.")
    first, *others = (batch.normalized_view(i).detach() for i in range(len(batch.raw)))
    first, *others = (z[:, 0] if z.dim() == 3 else z for z in (first, *others))
    return torch.stack([(first * z).sum(-1) for z in others], 1)


def pairing_in_force(batch: Batch, default: str) -> str:
    """Return the pairing that the call has chosen, else ``default``."""
    chosen = batch.pairing
    used = default if chosen is None else chosen
    # a text first: a mapping takes longer to recognize
    for name in (used,) if isinstance(used, str) or not isinstance(used, Mapping) else (*used.keys(), *used.values()):
        check_known("unknown pairing", name, PAIRINGS)
    if batch.queue is not None and isinstance(chosen, str) and chosen != "queue":
        given = "queue= is a pairing of its own (MoCo's)" if batch.bank == "queue" else "documents are a pairing"
        raise ValueError(f"{given}, and so is {chosen!r}: give one.")
    if default == "single":  # regularizers use the samples, whatever the pairing
        return "single"
    if "single" in (chosen, *(chosen.values() if isinstance(chosen, Mapping) else ())):
        raise ValueError("the pairing single has no positives: it is that of regularizers, dp and gor.")
    if batch.directions:
        return "joint"
    if batch.queue is not None:
        return "queue"
    if isinstance(chosen, str):
        return chosen
    if batch.negatives is not None:
        return "one_way"
    return default if chosen is None else chosen.get(default, default)


def _all_views(batch: Batch) -> Scores:
    views = batch.normalized()
    if batch.labels is not None:
        return _labeled(batch, [(views, views)])
    number = range(len(views))
    products = {(i, j): (views[i] * views[j]).sum(-1) for i, j in combinations(number, 2)}
    pos = torch.cat([torch.stack([products[min(i, j), max(i, j)] for j in number if j != i], 1) for i in number])
    return _unlabeled(batch, [(views, views)], pos)


def _one_way(batch: Batch) -> Scores:
    if (scores := pair_scores(batch)) is not None:
        return scores
    hard = None if batch.negatives is None else batch.negatives.embeddings
    anchors, *others = batch.normalized()
    if batch.labels is not None:
        return _labeled(batch, [([anchors], others)], hard)
    pos = torch.stack([(anchors * x).sum(-1) for x in others], 1)
    if not batch.in_batch:
        return Scores(pos, own_negatives(batch, anchors))
    # SimCSE, supervised: hard negatives are further keys
    return _unlabeled(batch, [([anchors], others)], pos, hard=hard)


def _symmetric(batch: Batch) -> Scores:
    if (scores := pair_scores(batch, both=True)) is not None:
        return scores
    a, b = batch.normalized()
    if batch.labels is not None:
        return _labeled(batch, [([a], [b]), ([b], [a])])
    return _unlabeled(batch, [([a], [b])], (a * b).sum(-1, keepdim=True).repeat(2, 1), both=True)


def _first_two(batch: Batch) -> Scores:
    a, b, *rest = batch.normalized()
    pos = torch.cat([torch.stack([(x * o).sum(-1) for o in (y, *rest)], 1) for x, y in ((a, b), (b, a))])
    two = [a, b] if rest else batch.normalized()  # the same list: each similarity is computed once
    return _unlabeled(batch, [(two, two)], pos)


def _pairs(batch: Batch) -> Scores:
    pairs = list(combinations(batch.normalized(), 2))
    pos = torch.cat([(x * y).sum(-1).repeat(2) for x, y in pairs]).unsqueeze(1)
    return _unlabeled(batch, [(pair, pair) for pair in pairs], pos)


def _arcl(batch: Batch) -> Scores:
    views = batch.normalized()
    pos = torch.stack([(x * y).sum(-1) for x, y in combinations(views, 2)], 1)
    scores = _unlabeled(batch, [(views[:1], views[:2])], pos)
    scores.denominator_pos = pos[:, :1]
    return scores


def _single(batch: Batch) -> Scores:
    z = batch.normalized_view(0)
    first = [z[:, 0] if z.dim() == 3 else z]
    return _unlabeled(batch, [(first, first)], z.new_zeros(len(z), 1))


PAIRINGS: dict[str, Callable[[Batch], Scores]] = {
    "views": _all_views, "one_way": _one_way, "symmetric": _symmetric, "first_two": _first_two, "pairs": _pairs,
    "arcl": _arcl, "single": _single, "joint": joint, "queue": queue,
}  # fmt: skip


def _check_views(batch: Batch, name: str) -> None:
    """Raise if the pairing ``name`` cannot be computed from this batch."""
    if name == "queue":
        return
    views = 1 if name == "single" or (name == "views" and batch.labels is not None) else 2
    exactly = name in ("symmetric", "joint")
    if batch.negatives is not None and name not in ("one_way", "single", "joint"):
        raise ValueError(f"negatives= goes with the pairings one_way and joint, not {name}.")
    if batch.labels is not None and name not in ("views", "one_way", "symmetric", "single"):
        raise ValueError(f"labels= goes with the pairings views, one_way, symmetric and queue, not {name}.")
    if len(batch.raw) < views or (exactly and len(batch.raw) > views):
        wanted = f"{'exactly' if exactly else 'at least'} {views} views"
        hint = f"{checks.hint_of_logits(batch.raw[0])} If the tensor holds both views: loss_fn(*z.chunk(2))."
        raise ValueError(f"the pairing {name} needs {wanted}, got {len(batch.raw)}.{hint * (len(batch.raw) == 1)}")
    if batch.total < 2 and (batch.negatives is None or name in ("single", "joint")):
        hint = "batches need at least 2 samples; a loader's drop_last=True leaves out a last, smaller one"
        raise ValueError(f"a batch of one sample has no negatives: {hint}.")


def _unlabeled(
    batch: Batch, parts: Sequence[Part], pos: Tensor, *, both: bool = False, hard: Tensor | None = None
) -> Scores:
    """Compute the scores of anchors and keys, with adversarial and mixed views."""
    neg = negatives_of(batch, parts, both=both, hard=hard)
    scores = Scores(pos, neg)
    if batch.adversarial is None and batch.mixed is None:
        return scores
    views = [view for anchors, keys in parts for view in (*anchors, *(keys if both else ()))]
    anchors, times = batch.stack(views), len(pos) // batch.size
    if batch.adversarial is not None:
        # the adversarial view as the positive; the others, clean and adversarial, as negatives (IntNaCl, Eq. 5)
        clean, attacked = parts[0][1][0], batch.adversarial[:, 0]
        positive = (anchors * attacked.repeat(times, 1)).sum(-1, keepdim=True)
        scores.adversarial = Scores(positive, negatives_of(batch, [(views, [clean, attacked])]))
    if batch.mixed is not None:
        similar = (anchors.unsqueeze(1) * batch.mixed.repeat(times, 1, 1)).sum(-1)
        scores.mixed = [Scores(s, neg) for s in similar.split(1, dim=1)]
    return scores


def _labeled(batch: Batch, parts: Sequence[Part], hard: Tensor | None = None) -> Scores:
    """Score supervised: all views of an anchor's class are positives, except itself; all others are negatives."""
    assert batch.labels is not None
    neg = negatives_of(batch, parts, hard=hard, engine="matrix")
    matrix, (anchors, keys) = matrix_of(neg), parts[0]
    same = batch.labels.repeat(len(anchors)).unsqueeze(1) == batch.everyone(batch.labels).repeat(len(keys))
    if keys is anchors:
        view = torch.arange(len(anchors), device=matrix.device).repeat_interleave(batch.size)
        itself = torch.arange(batch.size, device=matrix.device).repeat(len(anchors)) + batch.total * view
        same = same.scatter(1, itself.unsqueeze(1), False)
    pos_mask = torch.nn.functional.pad(same, (0, matrix.shape[1] - same.shape[1])).repeat(len(parts), 1)
    anchors_weight = None
    if len(batch.raw) == 1:  # a sample may be the only one of its class
        every = batch.everyone(batch.labels).sort().values
        error = f"labels: expected a label that at least 2 samples share, got {len(every)} different ones."
        error += checks.hint_of_logits(batch.raw[0])
        repeated = (every[1:] == every[:-1]).any()
        pos_mask, anchors_weight = counted_positives(pos_mask, matrix.dtype, error, repeated)
    # entries that are not positives are finite, and every mean excludes them
    return Scores(matrix, neg, pos_mask, anchor_factor=anchors_weight)


def _per_anchor(x: Tensor, pos: Tensor) -> Tensor:
    """Return the number of each anchor, ``(anchors, 1)``, given one per sample, or one per view and sample."""
    flat = x.to(pos.dtype).flatten()
    if len(flat) not in (x.shape[-1], len(pos)):
        but = f"the pairing has {len(pos)} anchors: give one per sample, shape ({x.shape[-1]})"
        raise ValueError(f"positive_factor: {checks.shape(x)} is a number per view, but {but}.")
    return flat.repeat(len(pos) // len(flat)).unsqueeze(1)
