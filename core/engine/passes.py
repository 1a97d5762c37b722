"""Reduce functions of similarities tile by tile, and differentiate the result.

A :class:`TilePass` computes the tiles of a block of anchors and keys; an :class:`Accumulator` adds up what they hold.
The gradient needs every tile once more: the first ones are stored, all of a small batch, and others are recomputed.

*Log-sum-exps* are plain sums of ``2^x`` where ``|x|`` is known to be small (a cosine and a temperature above 1/60).
Otherwise every row carries its running maximum, and exponents below it by more than 58 count as ``2^-58``.
Gradients of anchors that are below ``1e-16`` of the largest are dropped. Both are below rounding, and avoid denormals,
which are a hundred times slower on CPUs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import checks
from ..values import Value
from .functions import Traced
from .mask import LOG2E, Mask, Tile, Workspace
from .quadratic import Quadratics, Softplus

# store all tiles of at most so many pairs: 4 MB of float32
STORED = 2**20

MIN_EXPONENT, NEGLIGIBLE = -58.0, 1e-16

Functions = Quadratics | Traced


@dataclass
class Accumulator:
    """Running statistics of the functions of an anchor's similarities: tensors ``(functions, anchors)``."""

    unit: ClassVar[float] = 1.0  # that exponents are multiplied by before they are added
    averages: ClassVar[bool] = False  # whether sums are divided by the count
    initial: ClassVar[tuple[float, ...]] = (0.0,)  # each statistic, before the first tile

    count: Value
    state: Sequence[Tensor]

    def add(self, k: int, x: Tensor, tile: Tile, workspace: Workspace) -> None:
        """Add the values of function ``k`` in a tile, and overwrite them."""
        raise NotImplementedError

    def result(self) -> Tensor:
        """Return the reduction of each function, ``(functions, anchors)``."""
        return self.state[0]

    def scale_gradients(self, gradients: Tensor) -> Tensor:
        """Multiply ``(functions, anchors)`` gradients of the result by the factors that all tiles have in common."""
        return gradients

    def value_gradient(self, k: int, x: Tensor, gradient: Tensor, tile: Tile, workspace: Workspace) -> Tensor:
        """Compute the gradient of values ``x`` of function ``k`` in a tile, in their place, from one per anchor."""
        return self.from_exponentials(tile.clear(x.exp2_(), 0.0), gradient, tile, workspace)

    def from_exponentials(self, p: Tensor, gradient: Tensor, tile: Tile, workspace: Workspace) -> Tensor:
        """Compute the same from ``2^x``, which tiles may have stored, and overwrite them."""
        raise NotImplementedError

    @staticmethod
    def of_row_and_column(gradient: Tensor, tile: Tile, out: Tensor) -> Tensor:
        """Add the gradients of a pair's anchors, its row and in a mirrored tile its column, as often as keys count."""
        rows, factor = gradient[tile.rows].unsqueeze(1), tile.factor(1)
        pair = rows if factor is None else torch.mul(factor, rows, out=out)
        if tile.mirror is None:
            return pair
        columns, factor = gradient[tile.mirror], tile.factor(0)
        return torch.add(pair, columns, out=out) if factor is None else pair.addcmul_(factor, columns)

    def _add_sums(self, k: int, x: Tensor, tile: Tile, workspace: Workspace) -> None:
        for dim, anchors in self._axes(tile):
            self.state[0][k, anchors] += tile.total(x, dim, workspace)

    @staticmethod
    def _axes(tile: Tile) -> list[tuple[int, slice]]:
        """Return the dimensions to reduce, and the anchors that the results belong to."""
        return [(1, tile.rows)] + ([(0, tile.mirror)] if tile.mirror is not None and not tile.diagonal else [])


class Mean(Accumulator):
    """``mean_j x_j``."""

    averages = True

    def add(self, k: int, x: Tensor, tile: Tile, workspace: Workspace) -> None:
        for dim, anchors in self._axes(tile):
            counted = tile.remove(x.clone() if tile.keep else x, dim, 0.0)
            self.state[0][k, anchors] += tile.total(counted, dim, workspace)

    def result(self) -> Tensor:
        return self.scale_gradients(self.state[0])

    def scale_gradients(self, gradients: Tensor) -> Tensor:
        return gradients / (self.count.squeeze(1) if isinstance(self.count, Tensor) else self.count)

    def value_gradient(self, k: int, x: Tensor, gradient: Tensor, tile: Tile, workspace: Workspace) -> Tensor:
        pair = self.of_row_and_column(gradient, tile, x)
        return tile.clear(pair if pair is x else x.copy_(pair), 0.0)


class SumExp(Accumulator):
    """``log sum_j 2^x_j`` of values that are known to be small."""

    unit = LOG2E

    def add(self, k: int, x: Tensor, tile: Tile, workspace: Workspace) -> None:
        self._add_sums(k, tile.clear(x.exp2_(), 0.0), tile, workspace)

    def result(self) -> Tensor:
        return self.state[0].log()

    def scale_gradients(self, gradients: Tensor) -> Tensor:
        return gradients / self.state[0].clamp(min=torch.finfo(gradients.dtype).tiny)

    def from_exponentials(self, p: Tensor, gradient: Tensor, tile: Tile, workspace: Workspace) -> Tensor:
        return p.mul_(self.of_row_and_column(gradient, tile, workspace("pair", p.shape)))


class MeanSoftplus(Mean):
    """``mean_j log(1 + 2^x_j)`` of values that are known to be small; tiles store ``2^x``."""

    unit = LOG2E
    value_gradient = Accumulator.value_gradient

    def add(self, k: int, x: Tensor, tile: Tile, workspace: Workspace) -> None:
        x = tile.clear(x.exp2_(), 0.0)  # excluded keys become zero, whose log1p and gradient are zero
        self._add_sums(k, torch.log1p(x, out=workspace("values", x.shape)), tile, workspace)

    def from_exponentials(self, p: Tensor, gradient: Tensor, tile: Tile, workspace: Workspace) -> Tensor:
        p.div_(torch.add(p, 1.0, out=workspace("values", p.shape)))
        return p.mul_(self.of_row_and_column(gradient, tile, workspace("values", p.shape)))


class LogSumExp(Accumulator):
    """``log sum_j 2^x_j`` of any values, by online softmax: the running maximum, and the sum relative to it."""

    unit = LOG2E
    initial = (-math.inf, 0.0)

    def add(self, k: int, x: Tensor, tile: Tile, workspace: Workspace) -> None:
        row_max, row_sum = self.state[0][k], self.state[1][k]
        lowest = torch.finfo(x.dtype).min / 4
        x = tile.clear(x, lowest)
        for dim, anchors in self._axes(tile):
            # 1. new row maxima
            y = x
            if tile.log_weights:
                weight = tile.log_weights[1 - dim]
                y = torch.add(x, weight, alpha=self.unit, out=workspace("weighted", x.shape))
            seen = y
            if tile.keep:
                seen = torch.sub(tile.keep[1 - dim], 1.0, out=workspace("p", x.shape)).mul_(-lowest).add_(y)
            new_max = torch.maximum(row_max[anchors], seen.amax(dim))
            # 2. exponentials relative to them
            out = x if tile.mirror is None else workspace("p", x.shape)
            p = self._exponentials(torch.sub(y, new_max.unsqueeze(dim), out=out), tile, dim)
            # 3. rescale the sums so far, and add
            row_sum[anchors] *= (row_max[anchors] - new_max).exp2_()
            row_sum[anchors] += p.sum(dim)
            row_max[anchors] = new_max

    def result(self) -> Tensor:
        lse = self.state[0] + self.state[1].log2()
        return lse.masked_fill(self.state[0] <= torch.finfo(lse.dtype).min / 4, -math.inf) / LOG2E

    def scale_gradients(self, gradients: Tensor) -> Tensor:
        # the log-sum-exp of large exponents has no digits left for their sum, which is at least one
        return gradients / self.state[1].clamp(min=1.0)

    def value_gradient(self, k: int, x: Tensor, gradient: Tensor, tile: Tile, workspace: Workspace) -> Tensor:
        row_max, columns = self.state[0][k], None
        if tile.mirror is not None:
            columns = torch.sub(x, row_max[tile.mirror], out=workspace("p", x.shape))
            columns = self._share(columns, tile, 0).mul_(gradient[tile.mirror])
        x = self._share(x.sub_(row_max[tile.rows].unsqueeze(1)), tile, 1).mul_(gradient[tile.rows].unsqueeze(1))
        return x if columns is None else x.add_(columns)

    def from_exponentials(self, p: Tensor, gradient: Tensor, tile: Tile, workspace: Workspace) -> Tensor:
        return p.mul_(gradient[tile.rows].unsqueeze(1))

    def _share(self, x: Tensor, tile: Tile, dim: int) -> Tensor:
        """Compute the exponential of each key's exponent less the largest one, in place."""
        if tile.log_weights:
            x.add_(tile.log_weights[1 - dim], alpha=self.unit)
        return self._exponentials(x, tile, dim)

    @staticmethod
    def _exponentials(x: Tensor, tile: Tile, dim: int) -> Tensor:
        """Compute ``2^x``, zero for keys that do not count, in place; ``x`` must be finite."""
        p = x.clamp_(min=MIN_EXPONENT, max=0.0 if tile.keep else None).exp2_()
        return tile.clear(p.mul_(tile.keep[1 - dim]) if tile.keep else p, 0.0)


class Max(Accumulator):
    """The largest value; ties share its gradient. Tiles are not mirrored."""

    initial = (-math.inf, 0.0)

    def add(self, k: int, x: Tensor, tile: Tile, workspace: Workspace) -> None:
        row_max, ties = self.state[0][k], self.state[1][k]
        x = tile.remove(x, 1, -math.inf)
        new_max = torch.maximum(row_max[tile.rows], x.amax(1))
        ties[tile.rows] *= row_max[tile.rows] == new_max
        ties[tile.rows] += (x == new_max.unsqueeze(1)).sum(1)
        row_max[tile.rows] = new_max

    def scale_gradients(self, gradients: Tensor) -> Tensor:
        return gradients / self.state[1].clamp(min=1)

    def value_gradient(self, k: int, x: Tensor, gradient: Tensor, tile: Tile, workspace: Workspace) -> Tensor:
        x = tile.remove(x, 1, -math.inf)
        return x.eq_(self.state[0][k][tile.rows].unsqueeze(1)).mul_(gradient[tile.rows].unsqueeze(1))


def normalized_gradients(gradients: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
    """Return ``(functions, anchors)`` gradients in units of the largest, without negligible ones, and the unit.

    Products of small gradients and small exponentials would be denormals.
    """
    like = next(g for g in gradients if g is not None)
    stacked = torch.cat([torch.zeros_like(like) if g is None else g for g in gradients], 1).t()
    largest = torch.linalg.vector_norm(stacked, math.inf).clamp(min=torch.finfo(stacked.dtype).tiny)
    return torch.nn.functional.hardshrink(stacked / largest, NEGLIGIBLE), largest


@dataclass(frozen=True)
class TilePass:
    """One reduction of one block of anchors and keys."""

    functions: Functions  # of the similarity
    accumulator: type[Accumulator]  # how to reduce them
    mask: Mask  # which keys count
    count: Value  # how many, for means
    mirrored: bool  # the keys are anchors too; a tile is computed once, and reduced along its rows and its columns
    same: bool  # anchors and keys are one tensor
    shape: tuple[int, int]  # rows and columns of the tiles
    workspace: Workspace | None = None  # to store all tiles in; by default an own one, for as many as pay
    d_right: Tensor | None = None  # to which the gradient of the keys is added, instead of returning it

    def with_tensors(self, tensors: Sequence[Tensor]) -> TilePass:
        """Return the same pass with other tensors in its functions."""
        return replace(self, functions=self.functions.with_tensors(tensors)) if tensors else self

    def overwrites(self) -> bool:
        """Return whether functions are computed in the place of the similarities."""
        return self.functions.scale != 1.0

    def stores_exponentials(self, keys: int) -> bool:
        """Return whether stored tiles hold ``2^x``, computed in place: then the backward pass only weights them."""
        # of a log-sum-exp they are relative to the maximum, which one tile knows if it has all keys
        whole = self.accumulator is LogSumExp and not self.mirrored and self.shape[1] >= keys
        in_place = self.accumulator is MeanSoftplus or ((self.accumulator is SumExp or whole) and self.overwrites())
        return in_place and self.mask.limits is None  # which compare similarities, in the backward pass too

    def tiles(self, rows: int, keys: int) -> Iterator[Tile]:
        height, width = self.shape
        upper = self.same and self.mirrored  # tile (j, i) is part of tile (i, j)
        offset = 0 if self.same else rows
        for i in range(0, rows, height):
            for j in range(i if upper else 0, keys, width):
                own, others = slice(i, min(rows, i + height)), slice(j, min(keys, j + width))
                mirror = slice(others.start + offset, others.stop + offset) if self.mirrored else None
                yield Tile(own, others, mirror, upper and i == j)

    def product(self, left: Tensor, right: Tensor, tile: Tile, workspace: Workspace, buffer: str = "s") -> Tensor:
        """Compute the similarities of a tile, times the functions' scale, in a buffer of this name."""
        a, b = left[tile.rows], right[tile.keys]
        out = workspace(buffer, (a.shape[0], b.shape[0]))
        if offset := self.functions.offset:  # of a softplus
            out.fill_(offset)
        return torch.addmm(out, a, b.t(), beta=1 if offset else 0, alpha=self.functions.scale, out=out)


class ReduceTiles(checks.Once):
    """A :class:`TilePass` as a function of the anchors, of keys that are not these, and of its functions' tensors."""

    @staticmethod
    def forward(ctx: Any, tile_pass: TilePass, left: Tensor, other: Tensor | None, *tensors: Tensor) -> Any:
        right, tile_pass = left if other is None else other, tile_pass.with_tensors(tensors)
        anchors = len(left) + (len(right) if tile_pass.mirrored and not tile_pass.same else 0)
        # 1. how many pairs to store: all of a chunk or a small batch; else as many as the embeddings have numbers
        size, pairs = left.numel() + (0 if tile_pass.same else right.numel()), len(left) * len(right)
        capacity = sys.maxsize if tile_pass.workspace or pairs <= STORED else max(STORED // 4, size // 2)
        # an anchor's gradient may be the sum of its keys times exponentials, up to a factor: if the keys have no
        # gradient, as those of a queue, this sum, (n, d), is all that is needed
        weighted: Tensor | None = None
        sums_keys = tile_pass.accumulator is SumExp and tile_pass.overwrites() and not tile_pass.mirrored
        if not any(ctx.needs_input_grad):
            capacity = 0
        elif sums_keys and ctx.needs_input_grad[1] and other is not None and not ctx.needs_input_grad[2]:
            weighted, capacity = torch.zeros_like(left), 0
        capacity //= math.prod(tile_pass.shape)
        # 2. all tiles; the first ones are stored, as similarities or as exponentials
        shape, workspace = (tile_pass.functions.number, anchors), tile_pass.workspace or Workspace(left)
        start = [left.new_full(shape, x) for x in tile_pass.accumulator.initial]
        accumulator = tile_pass.accumulator(tile_pass.count, start)
        overwritten = tile_pass.overwrites() and not tile_pass.stores_exponentials(len(right))
        ctx.stored = []
        with checks.exact(left.device):
            for number, tile in enumerate(tile_pass.tiles(len(left), len(right))):
                name = f"stored {number}" if number < capacity else "s"
                s = tile_pass.product(left, right, tile, workspace, "s" if overwritten else name)
                if number < capacity:
                    ctx.stored.append(workspace(name, s.shape).copy_(s) if overwritten else s)
                tile = tile_pass.mask.weigh(tile, s, workspace)
                for k, x in tile_pass.functions.evaluate(s, tile, workspace):
                    accumulator.add(k, x, tile, workspace)
                    if weighted is not None:
                        factor = tile.factor(1)
                        weighted[tile.rows].addmm_(x if factor is None else x.mul_(factor), right[tile.keys])
        # 3. what the backward pass needs, and the results
        ctx.tile_pass, ctx.weighted = tile_pass, weighted is not None
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*((left, other, *tensors) if weighted is None else (weighted,)), *accumulator.state)
        return tuple(row.unsqueeze(1) for row in accumulator.result().unbind())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        checks.refuse_second_derivative()
        if all(g is None for g in gradients):
            return (None,) * len(ctx.needs_input_grad)
        tile_pass: TilePass = ctx.tile_pass
        # 1. gradients of the results, in units of the largest
        relative, unit = normalized_gradients(gradients)
        if ctx.weighted:
            weighted, *state = ctx.saved_tensors
            (scaled,) = tile_pass.accumulator(tile_pass.count, state).scale_gradients(relative)
            factor = tile_pass.functions.fold_slope(0, scaled * unit)
            return None, weighted * factor.unsqueeze(1), None
        left, other, *rest = ctx.saved_tensors
        right = left if other is None else other
        stored, ctx.stored = ctx.stored, []  # which may be overwritten: a second call computes all again
        number = len(tile_pass.functions.tensors)
        tensors, state = rest[:number], rest[number:]
        tile_pass = tile_pass.with_tensors(tensors)
        functions, accumulator = tile_pass.functions, tile_pass.accumulator(tile_pass.count, state)
        # (n,) each, without the factors that differ from tile to tile, and times the slopes that do not
        upstream = [functions.fold_slope(k, g) for k, g in enumerate(accumulator.scale_gradients(relative))]
        # 2. buffers; those of a learned softplus need the gradient of the anchors
        learned = functions if isinstance(functions, Softplus) and tensors else None
        d_left = torch.zeros_like(left) if ctx.needs_input_grad[1] or learned else None
        d_right = d_left if tile_pass.same else None
        if ctx.needs_input_grad[2]:
            d_right = torch.zeros_like(right) if tile_pass.d_right is None else tile_pass.d_right
        scaled_left = left if tile_pass.d_right is None else left * unit  # in the units of d_right
        d_tensors, total = [torch.zeros_like(t) for t in tensors], left.new_zeros(())
        workspace = tile_pass.workspace or Workspace(left)
        ds: Tensor | None
        parts: list[Tensor]
        # 3. all tiles
        with checks.exact(left.device):  # it may be called under autocast
            for number, tile in enumerate(tile_pass.tiles(len(left), len(right))):
                # 3.1 similarities, and their gradient
                if number < len(stored) and tile_pass.stores_exponentials(len(right)):
                    p, tile = stored[number], tile_pass.mask.weigh(tile, None, workspace)
                    ds, parts = accumulator.from_exponentials(p, upstream[0], tile, workspace), []
                else:
                    s = stored[number] if number < len(stored) else tile_pass.product(left, right, tile, workspace)
                    tile = tile_pass.mask.weigh(tile, s, workspace)

                    def value_gradient(k: int, x: Tensor, tile: Tile = tile) -> Tensor:
                        return accumulator.value_gradient(k, x, upstream[k], tile, workspace)

                    ds, parts = functions.backpropagate(s, tile, workspace, value_gradient)
                # 3.2 anchors and keys; a tile on the diagonal has its keys' gradients among its anchors'
                if ds is not None and d_left is not None:
                    d_left[tile.rows].addmm_(ds, right[tile.keys])
                if ds is not None and d_right is not None and not tile.diagonal:
                    d_right[tile.keys].addmm_(ds.t(), scaled_left[tile.rows])
                # 3.3 tensors of the functions
                if learned is not None and ds is not None:
                    total += ds.sum() / (1 + tile.diagonal)
                for d, part in zip(d_tensors, parts, strict=False):
                    if d.numel() > 1:
                        d[tile.rows] += part
                    else:  # a mirrored tile on the diagonal has every pair twice
                        d += part.reshape(d.shape) / (1 + tile.diagonal)
            if learned is not None and d_left is not None:
                # the sum of s dL/ds is the anchors' product with their gradient, which may have both of a pair
                learned.add_gradients(d_tensors, total, (d_left * left).sum() / (1 + tile_pass.same))
        # 4. back to the units of the loss
        d_right = d_right if other is not None and tile_pass.d_right is None else None
        for x in (d_left, d_right, *d_tensors):
            if x is not None:
                x *= unit
        return None, d_left, d_right, *d_tensors
