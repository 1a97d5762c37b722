"""Choose how the negatives of a batch are reduced: as a matrix, in tiles, in chunks or by GPU kernels.

``core/engine/README.md`` shows the engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import torch
from torch import Tensor

from .. import checks
from ..engine.chunks import ChunkedNegatives
from ..engine.joined import JoinedNegatives, TiltedNegatives
from ..engine.negatives import DenseNegatives, Negatives
from ..engine.streamed import StreamedNegatives, pays_to_stream
from ..engine.tiled import TiledNegatives
from ..engine.tiles import Mask
from ..hyper import Value
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
        both: the keys are anchors too, after the others, with the anchors as their keys.
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

    def pair(x: Tensor | None, of_hard: Tensor | None) -> tuple[tuple[Tensor, Tensor] | None, Tensor | None]:
        if x is None:
            return None, None
        return (x.repeat(times), batch.everyone(x)), None if of_hard is None or not hard else batch.everyone(of_hard)

    ids, hard_ids = pair(batch.ids, batch.negative_ids)
    weights, hard_weights = pair(batch.log_weight, batch.negative_log_weight)
    return Mask.of(
        batch.total, views, hard, batch.negative_weight, ids, hard_ids,
        foreign=batch.shared, log_weight=weights, hard_log_weight=hard_weights, owned=owned,
    )  # fmt: skip


def masked_negatives(
    batch: Batch, blocks: Sequence[tuple[Tensor, Tensor]], mask: Mask, both: bool = False, optional: bool = False
) -> Negatives:
    """Return keys ``(N, d)`` of each block of anchors ``(n, d)`` as negatives, except those excluded by ``mask``."""
    engine = chosen_engine(batch, blocks, both)
    if optional and engine == "chunks":
        if batch.engine == "chunks":
            raise ValueError("engine='chunks': several directions= are reduced one by one; use 'tiles' or 'auto'.")
        engine = "tiles"
    neg: Negatives
    forced = batch.engine == engine
    if engine == "matrix":
        neg = DenseNegatives.of(blocks, mask, both)
    elif engine == "chunks":
        neg = ChunkedNegatives(blocks, both, mask, batch.edge, batch.bound, forced=forced)
    elif engine == "fused":
        fused = import_module("counterpoint.experimental.fused")  # imports Triton
        neg = fused.FusedNegatives(blocks, both, mask, batch.bound, batch.half)
    else:
        neg = StreamedNegatives(blocks, both, mask, batch.edge, batch.bound, forced)
    neg.optional = optional
    if mask.ids is not None:
        _check(neg)
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
    if not pays_to_stream(pairs, device, separate):
        return "matrix"
    # keys that are anchors too share the similarities of both directions: four products instead of six
    return "chunks" if separate and not both else "tiles"


def _check(neg: Negatives) -> None:
    if not neg.optional:
        check_any(neg)


def check_any(neg: Negatives) -> None:
    """Raise if ids and positions leave an anchor without negatives."""
    neg.valid = checks.has_negatives(structural(neg))


def structural(neg: Negatives) -> Value:
    """Return the number of negatives that ids and positions leave."""
    if isinstance(neg, JoinedNegatives):
        first, *others = map(structural, neg.parts)
        for other in others:
            first = first + other
        return first
    neg = neg.neg if isinstance(neg, TiltedNegatives) else neg
    return neg.structural if isinstance(neg, TiledNegatives) else neg.count
