"""Choose which keys are negatives, and the engine that reduces them; ``core/engine/README.md`` shows the engines."""

import math
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..engine.chunks import Chunk, loss_in_chunks
from ..engine.joined import JoinedNegatives
from ..engine.mask import Mask, Pair
from ..engine.matrix import MatrixNegatives, Negatives, own_columns
from ..engine.pairs import PairNegatives
from ..engine.tiles import TileNegatives
from ..values import given_by_host, host_values, learned_values, with_host_values
from .batch import Batch
from .options import Keys
from .scores import Scores

# A matrix of fewer pairs is faster on the CPU; elsewhere tiles save memory from so many pairs on.
PAIRS_CPU, PAIRS = 2**17, 2**26

# Where anchors and keys are different embeddings: a matrix of at most this many pairs is faster on the CPU.
SEPARATE_CPU = 2**18

# What scores say of each anchor, beside its negatives.
PER_ANCHOR = (
    "pos", "pos_mask", "denominator_pos", "v", "prior", "positive_factor", "anchor_factor", "index", "guide_pos",
)  # fmt: skip

# views that are anchors, and the views that they are compared with
Part = tuple[Sequence[Tensor], Sequence[Tensor]]


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


def pairs_of(batch: Batch, both: bool = False) -> PairNegatives | None:
    """Return the pairs of the first view with the others, in ``both`` directions if asked, if a matrix suits them."""
    apart = (batch.group, batch.negatives, batch.ids, batch.log_q, batch.adversarial, batch.mixed)
    if batch.device.type != "cpu" or any(x is not None for x in apart) or checks.traced():
        return None
    separate = any(x.requires_grad for x in batch.raw[1:])
    pairs, engine = batch.size**2 * (len(batch.raw) - 1) * (1 + both), batch.engine
    if (fastest_engine(batch.device, pairs, separate, both) if engine == "auto" else engine) != "matrix":
        return None
    anchors, *others = batch.views
    keys = batch.stack(others)
    own = own_columns(batch.size * (1 + both), keys.shape[0], batch.size, batch.device)
    return PairNegatives(anchors, keys, own, batch.bound or batch.largest_norm**2, both)


def mask_of(batch: Batch, times: int, views: int, hard: int, owned: bool) -> Mask:
    """Return which keys count: views of all samples, for ``times`` views as anchors, and ``hard`` negatives of each."""

    def pair(x: Tensor | None, of_hard: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """Return a value for each anchor and for each key; hard negatives without an id get one that no sample has."""
        if x is None:
            return None
        keys = batch.everyone(x).repeat(views)
        if hard:  # all samples' first ones, then their second: like views
            of_hard = (keys.amin() - 1).expand(batch.total * hard) if of_hard is None else batch.everyone(of_hard)
            keys = torch.cat([keys, of_hard.view(-1, hard).T.flatten()])
        return x.repeat(times), keys

    of_hard = batch.negatives or Keys(batch.raw[0])
    ids, log_q = pair(batch.ids, of_hard.ids), pair(batch.log_q, of_hard.log_q)
    log_weight = None if log_q is None else (-log_q[0], -log_q[1])
    mask = Mask(batch.total, ids, log_weight=log_weight, zeros=has_zeros(log_weight))
    if not hard or (not owned and ids is None and of_hard.shared):  # an anchor's own are excluded like views
        return mask
    own = of_hard.own_log_weight if owned else -math.inf
    return replace(mask, hard=batch.total * views, own_log_weight=own, others=of_hard.shared)


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
    """Return the keys ``(N, d)`` of each block's anchors ``(n, d)``, without those that ``mask`` excludes."""
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


def chunked_loss(objective: Any, scores: Scores, reduction: str) -> Tensor | None:
    """Return the mean loss, with its gradients, or None to compute it from all anchors at once."""
    neg = scores.neg
    if not isinstance(neg, TileNegatives) or not _suits_chunks(objective, neg) or not torch.is_grad_enabled():
        return None
    names = [name for name in PER_ANCHOR if getattr(scores, name) is not None]
    tensors, (learned, others) = [getattr(scores, name) for name in names], learned_values(objective)
    parameters = [*learned.values(), *others, *given_by_host(objective)]
    embeddings = (x for pair in neg.pairs for x in pair)
    if not any(x.requires_grad for x in (*embeddings, *tensors, *parameters)):
        return None
    refusal = _refusal(objective, scores, reduction)
    if refusal is None and (neg.forced or _says_that_anchors_are_separate(objective)):
        total = len(scores.pos) if scores.anchor_factor is None else scores.anchor_factor.sum().clamp(min=1)

        def part(rows: slice, chunk: Chunk, known: Sequence[Tensor]) -> Tensor:
            values: dict[str, Any] = dict(zip(names, known, strict=True))
            of_chunk = replace(scores, neg=chunk, **values)
            each = of_chunk.positives_mean(of_chunk.mark_invalid(objective.losses(of_chunk))).squeeze(1)
            each = each if of_chunk.anchor_factor is None else each * of_chunk.anchor_factor
            return each.sum() * (scores.share / total)

        with with_host_values({**host_values(), **learned}):
            loss = loss_in_chunks(neg, part, tensors, parameters)
        if loss is not None:
            return loss
        refusal = "the objective depends on tensors with a gradient that are not its parameters"
    if neg.forced and refusal is not None:
        raise ValueError(f"engine='chunks': {refusal}; use engine='tiles' or 'auto'.")
    return None


def engine_of_training(objective: Any, scores: Scores) -> str:
    """Return how a training step on these scores reduces its negatives: one of ``ENGINES``."""
    neg = scores.neg
    if isinstance(neg, TileNegatives) and _suits_chunks(objective, neg):
        separate = _refusal(objective, scores, "mean") is None and _says_that_anchors_are_separate(objective)
        return "chunks" if separate else "tiles"
    return (neg.parts[0] if isinstance(neg, JoinedNegatives) else neg).engine  # by the largest part


def _suits_chunks(objective: Any, neg: TileNegatives) -> bool:
    """Return whether chunks are asked for, or fastest for these negatives or for this objective."""
    solved = any(getattr(part, "in_chunks", False) for part in objective.modules())
    return neg.engine == "chunks" or (solved and not neg.forced)


def _refusal(objective: Any, scores: Scores, reduction: str) -> str | None:
    """Return why a loss cannot be computed in chunks, if so."""
    if reduction != "mean":
        return "each anchor's loss can have a gradient of its own with reduction='none'"
    if objective.couples_anchors:
        return f"{objective} depends on statistics of all anchors"
    if scores.adversarial is not None or scores.mixed:
        return "adversarial= and mixed= have negatives of their own"
    return None if scores.neg.group is None else "the anchors are in several processes"


def _says_that_anchors_are_separate(objective: Any) -> bool:
    """Return whether ``couples_anchors`` of each part is its own or a built-in's: nobody may have checked others."""
    parts = [type(part) for part in objective.modules() if hasattr(part, "couples_anchors")]
    return all(kind.__module__.startswith("counterpoint.") or "couples_anchors" in vars(kind) for kind in parts)
