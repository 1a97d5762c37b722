"""Passes over tiles: a reduction of one block of anchors and keys, and its gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..hyper import Value
from .accumulators import Reduction, SumExp, limited
from .functions import Traced
from .quadratic import Quadratics
from .tiles import Mask, Scratch, Tile

EDGES_CPU = (512, 256)

ONCE = (
    "streamed negatives have no second derivative (create_graph=True): call the objective with tile=0, which keeps "
    "the matrix of similarities."
)


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
