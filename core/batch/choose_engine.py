"""Choose how the negatives of a batch are reduced: as a matrix, in tiles, in chunks or by GPU kernels.

``core/engine/README.md`` shows the engines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module

import torch
from torch import Tensor

from .. import checks
from ..engine.mask import Mask
from ..engine.matrix import MatrixNegatives
from ..engine.negatives import Negatives
from ..engine.tiles import TileNegatives, pays_to_tile
from .batch import Batch

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
) -> Negatives:
    """Return the views of all other samples, and the hard negatives of all samples, as negatives.

    Args:
        batch: the batch.
        parts: anchors and keys, each a list of views ``(B, d)``.
        both: compare in both directions: the keys are further anchors, listed last, whose keys are the first ones.
        hard: ``(B, n, d)`` hard negatives.
        owned: whether an anchor's own hard negatives count.
        optional: whether others are joined to these, so that an anchor may have none.
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
    return masked_negatives(batch, blocks, mask, both, optional)


def mask_of(batch: Batch, times: int, views: int, hard: int, owned: bool = True) -> Mask:
    """Return which keys count: views of all samples, for ``times`` views as anchors, and ``hard`` negatives of each."""

    def pair(x: Tensor | None, of_hard: Tensor | None, missing: Tensor | float) -> tuple[Tensor, Tensor] | None:
        """Return a value for each anchor and for each key; hard negatives without one get ``missing``."""
        if x is None:
            return None
        keys = batch.everyone(x).repeat(views)
        if hard and of_hard is None:
            keys = torch.cat([keys, (keys[:1] * 0 + missing).expand(batch.total * hard)])
        elif hard and of_hard is not None:  # all samples' first ones, then their second: like views
            keys = torch.cat([keys, batch.everyone(of_hard).view(-1, hard).T.flatten()])
        return x.repeat(times), keys

    ids = pair(batch.ids, batch.negative_ids, 0 if batch.ids is None else batch.everyone(batch.ids).amin() - 1)
    log_weight = pair(batch.log_weight, batch.negative_log_weight, 0.0)
    mask = Mask(batch.total, ids, log_weight=log_weight, zeros=log_weight is not None and has_zeros(log_weight[1]))
    if not hard or (not owned and ids is None and batch.shared):  # an anchor's own are excluded like views
        return mask
    own = batch.negative_weight if owned else -math.inf
    return replace(mask, hard=batch.total * views, own_log_weight=own, others=batch.shared)


def has_zeros(log_weight: Tensor) -> bool:
    """Return whether keys may have a weight of zero."""
    return not checks.wanted(log_weight) or bool((log_weight == -math.inf).any())


def masked_negatives(
    batch: Batch, pairs: Sequence[tuple[Tensor, Tensor]], mask: Mask, both: bool = False, optional: bool = False
) -> Negatives:
    """Return the keys ``(N, d)`` of each pair of anchors ``(n, d)`` and keys that ``mask`` leaves as negatives."""
    engine = chosen_engine(batch, pairs, both)
    if optional and engine == "chunks":
        if batch.engine == "chunks":
            raise ValueError("engine='chunks': several directions= are reduced one by one; use 'tiles' or 'auto'.")
        engine = "tiles"
    neg: Negatives
    if engine == "matrix":
        neg = MatrixNegatives.of(pairs, mask, both)
    elif engine == "fused":
        fused = import_module("counterpoint.experimental.fused")  # imports Triton
        neg = fused.FusedNegatives(pairs, both, mask, batch.bound, batch.half)
    else:
        neg = TileNegatives(pairs, both, mask, batch.edge, batch.bound, engine, batch.engine == engine)
    neg.optional = optional
    if (mask.ids is not None or mask.zeros) and not optional:
        neg.valid = checks.has_negatives(neg.count)
    return neg


def chosen_engine(batch: Batch, blocks: Sequence[tuple[Tensor, Tensor]], both: bool) -> str:
    """Return the engine of these blocks: the batch's own or, for ``auto``, the fastest."""
    if batch.engine != "auto":
        return batch.engine
    pairs = sum(len(left) * len(right) for left, right in blocks) * (1 + both)
    separate = batch.group is None and all(left is not right and right.requires_grad for left, right in blocks)
    return fastest_engine(batch.device, pairs, separate, both)


def fastest_engine(device: torch.device, pairs: int, separate: bool, both: bool) -> str:
    """Return the engine of a batch for which none is asked: ``matrix``, ``chunks`` or ``tiles``.

    Args:
        device: where the embeddings are.
        pairs: number of pairs of an anchor and a key.
        separate: whether the keys are other embeddings than the anchors, which have a gradient.
        both: whether the keys are anchors too, after the others.
    """
    if not pays_to_tile(pairs, device, separate):
        return "matrix"
    # keys that are anchors too share the similarities of both directions: four products instead of six
    return "chunks" if separate and not both else "tiles"
