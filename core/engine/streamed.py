"""Negatives that are never materialized: similarities are computed tile by tile, and recomputed for the gradient.

Memory is ``O(anchors x width + tile^2)`` instead of ``O(anchors x keys)``, and a tile stays in the cache while it is
reduced. Where the keys are anchors too, a tile is computed once and reduced along its rows and its columns.

Gradients are exact, and cannot be differentiated again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .accumulators import Accumulator
from .negatives import DenseNegatives
from .passes import Functions, ReduceTiles, TilePass
from .quadratic import rows_of
from .tiled import TiledNegatives
from .tiles import Mask

# Stream at least this many pairs: on the CPU it is faster, elsewhere it saves memory.
STREAMED_CPU, STREAMED = 2**17, 2**26

# Where anchors and keys are different embeddings: a matrix of at most this many pairs is faster on the CPU.
SEPARATE_CPU = 2**18

# Materialize at most this many pairs (64 MB) when several reductions need autograd.
CACHED = 2**24


def pays_to_stream(pairs: int, device: torch.device, separate: bool = False) -> bool:
    """Return whether to compute so many similarities in tiles or chunks rather than as a matrix.

    Args:
        pairs: number of pairs of an anchor and a key.
        device: where they are.
        separate: whether anchors and keys are different embeddings, all of which may need a gradient.
    """
    if separate and device.type == "cpu":
        return pairs > SEPARATE_CPU
    if device.type == "cpu":
        return pairs >= STREAMED_CPU
    return pairs >= STREAMED


class StreamedNegatives(TiledNegatives):
    """Negatives of which only the embeddings are stored.

    Args:
        blocks: anchors ``(n, width)`` and their keys ``(N, width)``; several of equal shape follow each other. Where
            both are the same tensor, each pair is computed once.
        both: the keys of each block are anchors as well, with the block's anchors as their keys, and follow them.
        mask: which keys are excluded.
        tile: edge of the tiles. By default what suits the device, and a small matrix may be materialized once a second
            reduction needs autograd.
        bound: bound of the absolute similarities; by default computed, on the CPU.
        forced: never materialize a matrix.

    >>> import torch, counterpoint as cp
    >>> cp.StreamedNegatives([(torch.eye(2), torch.eye(2))]).mean(lambda s: s).T
    tensor([[0.5000, 0.5000]])
    """

    engine = "tiles"

    def __init__(
        self,
        blocks: Sequence[tuple[Tensor, Tensor]],
        both: bool = False,
        mask: Mask | None = None,
        tile: int | None = None,
        bound: float | None = None,
        forced: bool = False,
    ) -> None:
        left, right = blocks[0]
        anchors = len(blocks) * (left.shape[0] + both * right.shape[0])
        cacheable = tile is None and not forced and anchors * right.shape[0] <= CACHED
        super().__init__(left, anchors, mask or Mask(), tile, bound, cacheable)
        self.blocks, self.both = blocks, both
        counts = [self.mask.count(left.shape[0], right.shape[0], left.dtype)]
        if both:
            counts.append(self.mask.transposed().count(right.shape[0], left.shape[0], left.dtype))
        per_anchor = [c for c in counts if isinstance(c, Tensor)]
        self.structural = torch.cat(per_anchor).repeat(len(blocks), 1) if per_anchor else counts[0]

    def _first_exempt(self, exempt: int) -> int | None:
        return len(self.blocks[0][1]) - exempt if exempt else None

    def bound(self) -> float:
        if self._bound is None and self.like.device.type == "cpu":
            norms = [[torch.linalg.vector_norm(x.detach(), dim=1).amax() for x in block] for block in self.blocks]
            self._bound = max(float(a * b) for a, b in norms)
        return super().bound()

    def edge(self, functions: Functions) -> int:
        edge, (left, right) = super().edge(functions), self.blocks[0]
        if self.tile is None and left.device.type == "cpu" and left is right:
            return min(edge, math.ceil(len(left) / 2))  # a single tile would compute every pair twice
        return edge

    def reduce(self, accumulator: type[Accumulator], functions: Functions, uniform: bool) -> tuple[Tensor, ...]:
        parts, start, edge = [], 0, self.edge(functions)
        for (left, right), guide in zip(self.blocks, self.guides(), strict=True):
            directions = [(left, right, self.mask, guide)]
            if self.both and not uniform:
                directions.append((right, left, self.mask.transposed(), guide and (guide[1], guide[0])))
            for a, b, mask, compared in directions:
                same = a is b and not self.both
                stop = start + len(a) + (len(b) if self.both and uniform else 0)
                rows = slice(start, stop)
                own, count = functions.for_rows(rows), rows_of(self.count, rows) if accumulator.averages else 1.0
                if mask.limits is not None:
                    mask = replace(mask, limits=mask.limits.for_block(rows, compared, own.scale, own.offset))
                tile_pass = TilePass(own, accumulator, mask, count, uniform and (self.both or same), same, edge)
                parts.append(ReduceTiles.apply(tile_pass, a, None if same else b, *own.tensors))
                start = stop
        return tuple(map(torch.cat, zip(*parts, strict=True))) if len(parts) > 1 else parts[0]

    def guides(self) -> Sequence[tuple[Tensor, Tensor] | None]:
        """Return the guide's embeddings of each block, if a guide decides which keys count."""
        if self.guide is None:
            return [None] * len(self.blocks)
        return self.guide.blocks  # type: ignore[no-any-return]

    def dense(self) -> DenseNegatives:
        dense = DenseNegatives.of(self.blocks, self.mask, self.both)
        limits = self.mask.limits
        if limits is None:
            return dense
        guide = None if self.guide is None else DenseNegatives.of(self.guide.blocks, Mask(), self.both)
        return dense.excluding(limits.most, guide, limits.exempting(len(self.blocks[0][1])))
