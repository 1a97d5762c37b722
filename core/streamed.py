"""Negatives that are never held: similarities are made tile by tile, reduced, and made again for the gradient.

Memory is ``O(anchors x width + tile^2)`` instead of ``O(anchors x keys)``, and a tile stays in the cache while it is
worked on. Where the keys are anchors too, a tile is made once and reduced along its rows and its columns.

Tiles are in :mod:`counterpoint.tiles`, the functions that are summed over them in :mod:`counterpoint.terms`, the sums
in :mod:`counterpoint.reductions`. Gradients are exact, and cannot be differentiated again. On a GPU, quadratics go to
:mod:`counterpoint.fused`.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from counterpoint.hyper import Value
from counterpoint.reductions import LogSumExp, Max, Mean, Reduction, SumExp, limited
from counterpoint.scores import DenseNegatives, Negatives
from counterpoint.terms import SAFE, Quadratics, Traced, is_zero, rows_of
from counterpoint.tiles import Mask, Scratch, Tile

# Where autograd is needed anyway, and more than once, up to so many pairs are kept: a matrix of 64 MB.
KEPT = 2**24
# Edges of tiles, of quadratics and where autograd holds several: 1 MB of float32 fits a core's cache, several threads
# need work to share in every operation, and an accelerator wants more at once.
EDGES_CPU, EDGES_THREADS, EDGES = (512, 256), (1024, 512), (4096, 2048)
BLOCK = 1024  # rows that are normalised together
ONCE = (
    "streamed negatives have no second derivative (create_graph=True): call the objective with tile=0, which keeps "
    "the matrix of similarities."
)
FUSED = {"cuda"}  # devices that have kernels in which no similarity leaves the chip


# ---- passes over the tiles -----------------------------------------------------------------------


@dataclass(frozen=True)
class Pass:
    """One reduction of one block of anchors and keys.

    Args:
        terms: the functions.
        reduction: what is done with them.
        mask: which keys count.
        count: how many, for means.
        mirrored: the keys are anchors too.
        same: anchors and keys are one tensor.
        edge: length of a tile's sides.
    """

    terms: Quadratics | Traced
    reduction: type[Reduction]
    mask: Mask
    count: Value
    mirrored: bool
    same: bool
    edge: int

    def _tile(self, i: int, j: int, rows: int, keys: int) -> Tile:
        mine = slice(i * self.edge, min(rows, (i + 1) * self.edge))
        theirs = slice(j * self.edge, min(keys, (j + 1) * self.edge))
        if not self.mirrored:
            return Tile(mine, theirs, None)
        ahead = 0 if self.same else rows
        return Tile(mine, theirs, slice(theirs.start + ahead, theirs.stop + ahead), self.same and i == j)

    def each(self, work: Callable[[int, Tile], None], rows: int, keys: int, device: torch.device) -> None:
        """Does ``work`` for all tiles, which are numbered."""
        height, width = (-(-n // self.edge) for n in (rows, keys))
        below = self.same and self.mirrored  # tile (j, i) is in tile (i, j)
        # backward may be called inside autocast, which would round products
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            places = ((i, j) for i in range(height) for j in range(i if below else 0, width))
            for number, (i, j) in enumerate(places):
                work(number, self._tile(i, j, rows, keys))

    def product(self, left: Tensor, right: Tensor, tile: Tile, scratch: Scratch, new: bool = False) -> Tensor:
        """Similarities of a tile, in scratch memory unless they shall stay."""
        a, b = left[tile.rows], right[tile.keys]
        shape = a.shape[0], b.shape[0]
        out = a.new_empty(shape) if new else scratch("s", shape)
        if self.terms.scale != 1.0:
            a = torch.mul(a, self.terms.scale, out=scratch("scaled", a.shape))
        return torch.mm(a, b.t(), out=out)


class Reduce(torch.autograd.Function):
    """A :class:`Pass` as a function of embeddings, and of the tensors that its terms hold."""

    @staticmethod
    def forward(ctx: Any, job: Pass, left: Tensor, other: Tensor | None, *tensors: Tensor) -> Any:
        right, terms = left if other is None else other, job.terms.bound(tensors)
        anchors = len(left) + (len(right) if job.mirrored and not job.same else 0)
        scratch, kept = Scratch(left), {}
        # The first tiles are kept for the gradient: as much as one of the usual size takes or, if that is a good part
        # of all, as the embeddings take less one to work in. They hold products or, if that will do, what is summed.
        size = left.numel() + (0 if job.same else right.numel())
        usual = max(EDGES_CPU[0], job.edge) ** 2
        held = max(usual, size - usual if 16 * size >= len(left) * len(right) else 0)
        room = held // job.edge**2 if any(ctx.needs_input_grad) else 0
        summed = job.reduction is SumExp and terms.scale != 1.0
        reduction = job.reduction(job.mask, job.count, job.reduction.start(terms.functions, anchors, left))

        def work(number: int, tile: Tile) -> None:
            s = job.product(left, right, tile, scratch, number < room)
            if number < room:
                kept[number] = s if summed or terms.scale == 1.0 else s.clone()
            for k, x in terms.values_of(s, tile, scratch, pulled=False):
                reduction.add(k, x, tile, scratch)

        job.each(work, left.shape[0], right.shape[0], left.device)
        result = reduction.result()
        ctx.job, ctx.summed = job, summed
        ctx.set_materialize_grads(False)
        ctx.kept = len(kept)
        ctx.save_for_backward(left, other, *(kept[n] for n in range(len(kept))), *tensors, *reduction.state)
        return tuple(row.unsqueeze(1) for row in result.unbind())

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(ONCE)
        job: Pass = ctx.job
        left, other, *rest = ctx.saved_tensors
        right = left if other is None else other
        kept, rest = rest[: ctx.kept], rest[ctx.kept :]
        tensors, state = rest[: len(job.terms.tensors)], rest[len(job.terms.tensors) :]
        terms, scratch, reduction = job.terms.bound(tensors), Scratch(left), job.reduction(job.mask, job.count, state)
        gradients, largest = limited(given)
        folded = [terms.fold(k, g) for k, g in enumerate(reduction.prepare(gradients).unbind())]

        to_left, to_right = (None, None)
        if ctx.needs_input_grad[1]:
            to_left = torch.zeros_like(left)
        if job.same:
            to_right = to_left
        elif ctx.needs_input_grad[2]:
            to_right = torch.zeros_like(right)
        to_tensors = [torch.zeros_like(t) for t in tensors]

        def pulled(number: int, tile: Tile) -> tuple[Tensor | None, list[Tensor]]:
            if number >= len(kept):
                s = job.product(left, right, tile, scratch)
            else:
                x = kept[number]
                s = scratch("s", x.shape)
                if ctx.summed:
                    w = reduction._outer(folded[0], tile, scratch("outer", x.shape))
                    return torch.mul(x, w, out=s), []
                s.copy_(x)
            return terms.pull(s, tile, scratch, lambda k, x: reduction.weigh(k, x, folded[k], tile, scratch))

        def work(number: int, tile: Tile) -> None:
            total, found = pulled(number, tile)
            if total is not None and to_left is not None:
                to_left[tile.rows].addmm_(total, right[tile.keys])
            if total is not None and to_right is not None and not tile.diagonal:
                to_right[tile.keys].addmm_(total.t(), left[tile.rows])
            for mine, part in zip(to_tensors, found, strict=False):
                if mine.numel() > 1:
                    mine[tile.rows] += part
                else:  # a mirrored tile on the diagonal has every pair twice
                    mine += part.reshape(mine.shape) / (1 + tile.diagonal)

        job.each(work, left.shape[0], right.shape[0], left.device)
        for x in {id(x): x for x in (to_left, to_right, *to_tensors) if x is not None}.values():
            x *= largest
        return None, to_left, to_right if other is not None else None, *to_tensors


# ---- the negatives -------------------------------------------------------------------------------


def _with(constants: Sequence[Value], reduced: Sequence[Tensor]) -> Any:
    """Results with their constant terms; the only one, or a tuple."""
    found = [x if is_zero(c) else x + c for x, c in zip(reduced, constants, strict=True)]
    return found[0] if len(found) == 1 else tuple(found)


@cache
def _kernels() -> Any:
    """:mod:`counterpoint.fused`, or None where Triton is not installed or is not for this kind of GPU."""
    if torch.version.hip is not None:
        return None
    try:
        return importlib.import_module("counterpoint.fused")
    except ImportError:
        return None


class StreamedNegatives(Negatives):
    """Negatives of which only the embeddings are kept.

    Args:
        blocks: anchors ``(n, width)`` and their keys ``(N, width)``; several of equal shape follow each other. Where
            both are the same tensor, each pair is looked at once.
        both: the keys of each block are anchors as well, with the block's anchors as their keys, and come after them.
        mask: which keys are no negatives.
        tile: edge of the tiles. By default what suits the device; then a GPU uses :mod:`counterpoint.fused` where that
            can be, and a small matrix may be kept as well, once a second reduction needs autograd.
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
        """Log-sum-exps by :mod:`counterpoint.fused`, or, if there are constant terms to be ``summed``, sums."""
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


# ---- embeddings ----------------------------------------------------------------------------------


class Unit(torch.autograd.Function):
    """:func:`counterpoint.pairing.unit` of several views, under one another, in blocks and with little to remember."""

    @staticmethod
    def forward(ctx: Any, eps: float, dtype: torch.dtype, *views: Tensor) -> Tensor:
        z = torch.cat(views).to(dtype)
        length = torch.linalg.vector_norm(z, dim=1, keepdim=True)
        scale = torch.where(length > eps, 1 / length.clamp(min=eps), torch.zeros_like(length))
        ctx.save_for_backward(z.mul_(scale), scale)
        ctx.dtype, ctx.each = views[0].dtype, views[0].shape[0]
        return z

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(ONCE)
        z, scale = ctx.saved_tensors
        out = torch.empty_like(z, dtype=ctx.dtype)
        for part, g, mine, by in zip(*(x.split(BLOCK) for x in (out, gradient, z, scale)), strict=True):
            along = (g * mine).sum(1, keepdim=True)
            part.copy_(torch.addcmul(g, mine, along, value=-1).mul_(by))
        return None, None, *out.split(ctx.each)


class Others(torch.autograd.Function):
    """``(m n, m - 1)`` similarities of each of ``m`` views of ``n`` samples to the sample's other views."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, m: int) -> Tensor:
        ctx.save_for_backward(z)
        ctx.m = m
        views = z.split(len(z) // m)
        found = z.new_empty(m, views[0].shape[0], m - 1)
        for a, b in itertools.combinations(range(m), 2):
            pairs = zip(views[a].split(BLOCK), views[b].split(BLOCK), strict=True)
            found[a, :, b - 1] = found[b, :, a] = torch.cat([(x * y).sum(1) for x, y in pairs])
        return found.flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(ONCE)
        (z,) = ctx.saved_tensors
        m, out = ctx.m, torch.zeros_like(z)
        views, gradients, outs = (x.split(len(z) // m) for x in (z, gradient, out))
        for a, b in itertools.combinations(range(m), 2):
            weight = (gradients[a][:, b - 1] + gradients[b][:, a]).unsqueeze(1)
            outs[a].addcmul_(views[b], weight)
            outs[b].addcmul_(views[a], weight)
        return out, None
