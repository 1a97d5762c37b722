"""Negatives that are never held: similarities are made tile by tile, reduced, and made again for the gradient.

Memory is ``O(anchors x width + tile^2)`` instead of ``O(anchors x keys)``, and a tile stays in the cache while it is
worked on. Where the keys are anchors too, a tile is made once and reduced along its rows and its columns.

Gradients are exact, and cannot be differentiated again. On a GPU, quadratics go to
:mod:`counterpoint.engine.triton`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..hyper import Value
from .accumulators import LogSumExp, Max, Mean, Reduction, SumExp
from .functions import Traced
from .negatives import DenseNegatives, Negatives
from .passes import EDGES_CPU, Pass, Reduce
from .quadratic import SAFE, Quadratics, is_zero, rows_of
from .tiles import Mask

# Where autograd is needed anyway, and more than once, up to so many pairs are kept: a matrix of 64 MB.
KEPT = 2**24

EDGES_THREADS = (1024, 512)

EDGES = (4096, 2048)

FUSED = {"cuda"}  # devices that have kernels in which no similarity leaves the chip


def _with(constants: Sequence[Value], reduced: Sequence[Tensor]) -> Any:
    """Results with their constant terms; the only one, or a tuple."""
    found = [x if is_zero(c) else x + c for x, c in zip(reduced, constants, strict=True)]
    return found[0] if len(found) == 1 else tuple(found)


@cache
def _kernels() -> Any:
    """:mod:`counterpoint.engine.triton`, or None where Triton is not installed or is not for this kind of GPU."""
    if torch.version.hip is not None:
        return None
    try:
        return importlib.import_module("counterpoint.engine.triton")
    except ImportError:
        return None


class StreamedNegatives(Negatives):
    """Negatives of which only the embeddings are kept.

    Args:
        blocks: anchors ``(n, width)`` and their keys ``(N, width)``; several of equal shape follow each other. Where
            both are the same tensor, each pair is looked at once.
        both: the keys of each block are anchors as well, with the block's anchors as their keys, and come after them.
        mask: which keys are no negatives.
        tile: edge of the tiles. By default what suits the device; then a GPU uses :mod:`counterpoint.engine.triton`
            where that can be, and a small matrix may be kept as well, once a second reduction needs autograd.
        reach: no similarity is larger in absolute value; by default it is looked up, on the CPU.
        half: the type in which the fused kernels multiply the embeddings, if not in their own.
    """

    def __init__(
        self,
        blocks: Sequence[tuple[Tensor, Tensor]],
        both: bool = False,
        mask: Mask | None = None,
        tile: int | None = None,
        reach: float | None = None,
        half: torch.dtype | None = None,
    ) -> None:
        self.blocks, self.both, self.mask = blocks, both, mask or Mask()
        left, right = blocks[0]
        self.anchors = len(blocks) * (left.shape[0] + both * right.shape[0])
        self.tile, self.half = tile, half
        self._reach = reach
        self.pairs = self.anchors * right.shape[0]
        self._keepable = tile is None and self.pairs <= KEPT
        self._visited = False
        self._kept: DenseNegatives | None = None
        counts = [self.mask.count(left.shape[0], right.shape[0], left.dtype)]
        if both:
            counts.append(self.mask.turned().count(right.shape[0], left.shape[0], left.dtype))
        each = [c for c in counts if isinstance(c, Tensor)]
        self._count = torch.cat(each).repeat(len(blocks), 1) if each else counts[0]

    @property
    def count(self) -> Value:
        return self._count

    def reach(self) -> float:
        """A bound of the absolute similarities; infinite where the host would have to wait for it."""
        if self._reach is None and self.blocks[0][0].device.type == "cpu":
            lengths = [[torch.linalg.vector_norm(x.detach(), dim=1).amax() for x in block] for block in self.blocks]
            self._reach = max(float(a * b) for a, b in lengths)
        return math.inf if self._reach is None else self._reach

    def logsumexp(self, f: Callable[..., Any], *per_anchor: Tensor) -> Any:
        quadratic = Quadratics.of(f, per_anchor, self.anchors, self.blocks[0][0].dtype)
        if quadratic is None or quadratic[0].hill is not None:
            return self._traced(LogSumExp, f, per_anchor, lambda dense: dense.logsumexp(f, *per_anchor))
        terms, constants = quadratic
        if self._fusable(terms):
            return _with(constants, self._fused(terms))
        safe = terms.bounded(self.reach(), SAFE - abs(self.mask.own_weight))
        return _with(constants, self._reduce(SumExp if safe else LogSumExp, terms, terms.uniform))

    def mean(self, f: Callable[..., Any], *per_anchor: Tensor) -> Any:
        quadratic = Quadratics.of(f, per_anchor, self.anchors, self.blocks[0][0].dtype)
        if quadratic is not None:
            terms, constants = quadratic
            if self._fusable(terms):  # with their constants: squares must stay whole
                inside = constants if terms.hill is None else [terms.hill]
                return _with([0.0] * terms.functions, [x / self.count for x in self._fused(terms, inside)])
            if terms.hill is not None:
                return _with(constants, self._reduce(Mean, terms, terms.uniform))
        return self._traced(Mean, f, per_anchor, lambda dense: dense.mean(f, *per_anchor))

    def max(self) -> Tensor:
        return self._traced(Max, lambda s: s, (), lambda dense: dense.max())  # type: ignore[no-any-return]

    def min(self) -> Tensor:
        return -self._traced(Max, lambda s: -s, (), lambda dense: -dense.min())  # type: ignore[no-any-return]

    def _traced(
        self,
        reduction: type[Reduction],
        f: Callable[..., Any],
        per_anchor: tuple[Tensor, ...],
        otherwise: Callable[[DenseNegatives], Any],
    ) -> Any:
        # a maximum announces an inner solve; besides, what is compared with it has to be rounded as it was
        if self._keepable and (self._visited or reduction is Max):
            if self._kept is None:
                with torch.enable_grad():
                    self._kept = self.dense()
            return otherwise(self._kept)
        self._visited = True
        terms = Traced.of(f, per_anchor, self.blocks[0][0], reduction.unit)
        if terms is None:  # no tile can stand for the whole
            return otherwise(self.dense())
        found = self._reduce(reduction, terms, terms.uniform and reduction is not Max)
        return found if terms.several else found[0]

    def _fusable(self, terms: Quadratics) -> bool:
        left = self.blocks[0][0]
        if left.device.type not in FUSED or self.tile is not None or self.mask.own_weight:
            return False
        kernels = _kernels()
        return kernels is not None and kernels.takes(left, terms.functions)

    def _fused(self, terms: Quadratics, summed: Sequence[Value] = ()) -> Sequence[Tensor]:
        """Log-sum-exps by :mod:`counterpoint.engine.triton`, or, if there are constant terms to be ``summed``, sums."""
        parts, start = [], 0
        for left, right in self.blocks:
            turns = [(left, right, self.mask), (right, left, self.mask.turned())]
            for a, b, mask in turns[: 1 + self.both]:
                rows = slice(start, start + len(a))
                numbers = mask.keyed(len(a), len(b), a.device)
                kept = a, b
                if self.half is not None:
                    kept = a.to(self.half), b.to(self.half)
                inside = [rows_of(c, rows) for c in summed] or [0.0] * terms.functions
                packed = terms.cut(rows).packed(inside, a)
                parts.append(_kernels().reduce(*kept, *packed, numbers, bool(summed), terms.hill is not None))
                start = rows.stop
        return torch.cat(parts, 1).unsqueeze(2).unbind()

    def edge(self, terms: Quadratics | Traced) -> int:
        """The length of a tile's sides."""
        left, right = self.blocks[0]
        if self.tile is not None or left.device.type != "cpu":
            return self.tile or EDGES[isinstance(terms, Traced)]
        edge = (EDGES_CPU if torch.get_num_threads() == 1 else EDGES_THREADS)[isinstance(terms, Traced)]
        return min(edge, -(-len(left) // 2)) if left is right else edge  # one tile would have every pair twice

    def _reduce(self, reduction: type[Reduction], terms: Quadratics | Traced, uniform: bool) -> tuple[Tensor, ...]:
        parts, start, edge = [], 0, self.edge(terms)
        for left, right in self.blocks:
            turns = [(left, right, self.mask)]
            if self.both and not uniform:
                turns.append((right, left, self.mask.turned()))
            for a, b, mask in turns:
                same = a is b and not self.both
                stop = start + len(a) + (len(b) if self.both and uniform else 0)
                rows = slice(start, stop)
                mine, count = terms.cut(rows), self.count
                job = Pass(mine, reduction, mask, rows_of(count, rows), uniform and (self.both or same), same, edge)
                parts.append(Reduce.apply(job, a, None if same else b, *mine.tensors))
                start = stop
        return tuple(torch.cat(p) if len(p) > 1 else p[0] for p in zip(*parts, strict=True))

    def dense(self) -> DenseNegatives:
        """The same negatives, kept as a matrix."""
        matrices, masks = [], []
        for left, right in self.blocks:
            matrix = left @ right.T
            matrices += [matrix, matrix.T] if self.both else [matrix]
            masks += [self.mask, self.mask.turned()] if self.both else [self.mask]
        found = zip(*(mask.dense(matrix) for mask, matrix in zip(masks, matrices, strict=True)), strict=True)
        skip, drop, weight = (None if x[0] is None else torch.cat(x) if len(x) > 1 else x[0] for x in found)
        return DenseNegatives(torch.cat(matrices) if len(matrices) > 1 else matrices[0], skip, drop, weight)
