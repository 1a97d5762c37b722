"""Tile passes: reduce a block of anchors and keys tile by tile, and recompute the tiles for its gradient."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..values import Value
from .accumulators import Accumulator, LogSumExp, MeanSoftplus, SumExp, normalized_gradients
from .functions import Traced
from .mask import Mask, Tile, Workspace
from .quadratic import Quadratics, Softplus

# store all tiles of at most so many pairs: 4 MB of float32
STORED = 2**20

Functions = Quadratics | Traced


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
    """A :class:`TilePass` as a function of embeddings, and of the tensors of its functions."""

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
        # 3. the results, and what the backward pass needs
        result = accumulator.result()
        ctx.tile_pass, ctx.weighted = tile_pass, weighted is not None
        ctx.set_materialize_grads(False)
        if weighted is not None:
            ctx.save_for_backward(weighted, *accumulator.state)
        else:
            ctx.save_for_backward(left, other, *tensors, *accumulator.state)
        return tuple(row.unsqueeze(1) for row in result.unbind())

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
        stored, ctx.stored = ctx.stored, []  # overwritten: if this is called again, they are recomputed
        number = len(tile_pass.functions.tensors)
        tensors, state = rest[:number], rest[number:]
        tile_pass = tile_pass.with_tensors(tensors)
        functions, accumulator = tile_pass.functions, tile_pass.accumulator(tile_pass.count, state)
        # (n,) each, without the factors that differ from tile to tile
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
                # 3.1 recompute similarities, and their gradient
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
