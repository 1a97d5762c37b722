"""Choose how the negatives of a batch are reduced: as a matrix, in tiles, or in a ring of processes.

``core/engine/README.md`` shows the engines; GPU kernels are part of the tiles.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .. import checks
from ..engine.negatives import DenseNegatives, Negatives
from ..engine.ring import RingNegatives
from ..engine.streamed import StreamedNegatives, pays_to_stream
from ..engine.tiles import Mask
from .batch import Batch

# views that are anchors, and the views that they are compared with
Part = tuple[Sequence[Tensor], Sequence[Tensor]]


def negatives_of(batch: Batch, parts: Sequence[Part], *, both: bool = False, hard: Tensor | None = None) -> Negatives:
    """Return the views of all other samples, and the hard negatives of all samples, as negatives.

    Args:
        batch: the batch.
        parts: anchors and keys, each a list of views ``(B, d)``.
        both: the keys are anchors too, after the others, with the anchors as their keys.
        hard: ``(B, n, d)`` hard negatives.
    """
    if batch.group is not None and both:
        parts, both = [part for anchors, keys in parts for part in ((anchors, keys), (keys, anchors))], False
    if batch.group is not None and batch.group.ring:
        known = batch.negative_weight, batch.ids, batch.negative_ids
        ring = RingNegatives(batch.group, parts, hard, *known, batch.tile or None, batch.bound)
        _check(ring)
        return ring
    # the samples' first hard negatives, then their second: like views, in the samples' order
    further = [] if hard is None else [*batch.everyone(hard).unbind(1)]
    blocks = []
    for anchors, keys in parts:
        left = batch.stack(anchors)
        if batch.group is None:
            blocks.append((left, left if keys is anchors else batch.stack([*keys, *further])))
        else:  # a block for each view, since a view has other rows than a block of keys
            right = batch.stack([*map(batch.everyone, keys), *further])
            blocks += [(view, right) for view in anchors]
    ids = hard_ids = None
    if batch.ids is not None:
        ids = batch.ids.repeat(len(blocks[0][0]) // batch.size), batch.everyone(batch.ids)
        hard_ids = None if batch.negative_ids is None else batch.everyone(batch.negative_ids)
    mask = Mask.of(batch.total, len(parts[0][1]), len(further), batch.negative_weight, ids, hard_ids)
    return masked_negatives(batch, blocks, mask, both)


def masked_negatives(
    batch: Batch, blocks: Sequence[tuple[Tensor, Tensor]], mask: Mask, both: bool = False
) -> Negatives:
    """Return keys ``(N, d)`` of each block of anchors ``(n, d)`` as negatives, except those excluded by ``mask``."""
    pairs = sum(len(left) * len(right) for left, right in blocks) * (1 + both)
    neg: Negatives
    if batch.tile == 0 or (batch.tile is None and not pays_to_stream(pairs, batch.device)):
        neg = DenseNegatives.of(blocks, mask, both)
    else:
        neg = StreamedNegatives(blocks, both, mask, batch.tile, batch.bound, batch.half)
    if mask.ids is not None:
        _check(neg)
    return neg


def _check(neg: Negatives) -> None:
    if isinstance(neg.count, Tensor):
        checks.has_negatives(neg.count)
