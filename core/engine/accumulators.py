"""What is done with the values of tiles, one tile after the other, and with the gradients of the result.

*Log-sum-exps* are sums of ``2^x`` as they stand where ``|x|`` is known to be small (a cosine and a temperature of at
least 1/60). Else every row carries its running maximum, and what lies ``2^-58`` below that counts as ``2^-58``.
Gradients of anchors that are ``1e-16`` of the largest are dropped. Both are below rounding, and keep out numbers that
CPUs need a hundred times longer for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..hyper import Value
from .quadratic import LOG2E
from .tiles import Mask, Scratch, Tile

FLOOR = -58.0
NEGLIGIBLE = 1e-16


class Reduction:
    """What is done with the values of tiles: a row of ``state`` per function, a column per anchor."""

    unit = 1.0

    def __init__(self, mask: Mask, count: Value, state: Sequence[Tensor]) -> None:
        self.mask, self.count, self.state = mask, count, state

    @classmethod
    def start(cls, functions: int, anchors: int, like: Tensor) -> list[Tensor]:
        raise NotImplementedError

    def add(self, k: int, x: Tensor, tile: Tile, scratch: Scratch) -> None:
        """Takes in the ``k``-th value of a tile."""
        raise NotImplementedError

    def result(self) -> Tensor:
        return self.state[0]

    def prepare(self, gradients: Tensor) -> Tensor:
        """Gradients per function and anchor, with the factors that are the same in all tiles."""
        return gradients

    def weigh(self, k: int, x: Tensor, gradient: Tensor, tile: Tile, scratch: Scratch) -> Tensor:
        """``dL/d value`` of a tile, in the place of the value."""
        raise NotImplementedError

    def _outer(self, w: Tensor, tile: Tile, out: Tensor) -> Tensor:
        """What a pair gets as its row's and, where its key is an anchor too, as its column's."""
        rows = w[tile.rows].unsqueeze(1)
        return rows if tile.columns is None else torch.add(rows, w[tile.columns], out=out)

    @staticmethod
    def _axes(tile: Tile) -> list[tuple[int, slice]]:
        """The dimensions to reduce, and whom the results belong to."""
        return [(1, tile.rows)] + ([(0, tile.columns)] if tile.columns is not None and not tile.diagonal else [])


class Mean(Reduction):
    """``mean_j x_j``."""

    @classmethod
    def start(cls, functions: int, anchors: int, like: Tensor) -> list[Tensor]:
        return [like.new_zeros(functions, anchors)]

    def add(self, k: int, x: Tensor, tile: Tile, scratch: Scratch) -> None:
        x = self.mask.drop(self.mask.weigh(x, tile, None), tile, 0.0)
        for dim, mine in self._axes(tile):
            self.state[0][k, mine] += x.sum(dim)

    def result(self) -> Tensor:
        return self.prepare(self.state[0])

    def prepare(self, gradients: Tensor) -> Tensor:
        return gradients / (self.count.squeeze(1) if isinstance(self.count, Tensor) else self.count)

    def weigh(self, k: int, x: Tensor, gradient: Tensor, tile: Tile, scratch: Scratch) -> Tensor:
        w = self._outer(gradient, tile, x)
        x = w if w is x else x.copy_(w)
        return self.mask.drop(self.mask.weigh(x, tile, None), tile, 0.0)


class SumExp(Mean):
    """``log sum_j 2^x_j`` for values that are known to be small."""

    unit = LOG2E

    def add(self, k: int, x: Tensor, tile: Tile, scratch: Scratch) -> None:
        super().add(k, x.exp2_(), tile, scratch)

    def result(self) -> Tensor:
        return self.state[0].log()

    def prepare(self, gradients: Tensor) -> Tensor:
        return gradients / self.state[0].clamp(min=torch.finfo(gradients.dtype).tiny)

    def weigh(self, k: int, x: Tensor, gradient: Tensor, tile: Tile, scratch: Scratch) -> Tensor:
        x.exp2_().mul_(self._outer(gradient, tile, scratch("outer", x.shape)))
        return self.mask.drop(self.mask.weigh(x, tile, None), tile, 0.0)


class LogSumExp(Reduction):
    """``log sum_j 2^x_j`` for any values: the largest so far, and the sum relative to it."""

    unit = LOG2E

    @classmethod
    def start(cls, functions: int, anchors: int, like: Tensor) -> list[Tensor]:
        lowest = torch.finfo(like.dtype).min / 4
        return [like.new_full((functions, anchors), lowest), like.new_zeros(functions, anchors)]

    def add(self, k: int, x: Tensor, tile: Tile, scratch: Scratch) -> None:
        top, total = self.state[0][k], self.state[1][k]
        x = self.mask.drop(self.mask.weigh(x, tile, self.unit), tile, torch.finfo(x.dtype).min / 4)
        for dim, mine in self._axes(tile):
            new = torch.maximum(top[mine], x.amax(dim))
            share = torch.sub(x, new.unsqueeze(dim), out=scratch("share", x.shape)).clamp_(min=FLOOR).exp2_()
            total[mine] *= (top[mine] - new).exp2_()
            total[mine] += self.mask.drop(share, tile, 0.0).sum(dim)
            top[mine] = new

    def result(self) -> Tensor:
        found = self.state[0] + self.state[1].log2()
        found = found.masked_fill(self.state[0] <= torch.finfo(found.dtype).min / 4, -math.inf)
        self.state = [found]
        return found / LOG2E

    def weigh(self, k: int, x: Tensor, gradient: Tensor, tile: Tile, scratch: Scratch) -> Tensor:
        total, g, x = self.state[0][k], gradient, self.mask.weigh(x, tile, self.unit)
        theirs = None
        if tile.columns is not None:
            theirs = torch.sub(x, total[tile.columns], out=scratch("share", x.shape))
            theirs.clamp_(min=FLOOR).exp2_().mul_(g[tile.columns])
        x.sub_(total[tile.rows].unsqueeze(1)).clamp_(min=FLOOR).exp2_().mul_(g[tile.rows].unsqueeze(1))
        return self.mask.drop(x if theirs is None else x.add_(theirs), tile, 0.0)


class Max(Reduction):
    """The largest value; ties share its gradient."""

    @classmethod
    def start(cls, functions: int, anchors: int, like: Tensor) -> list[Tensor]:
        return [like.new_full((functions, anchors), -math.inf), like.new_zeros(functions, anchors)]

    def add(self, k: int, x: Tensor, tile: Tile, scratch: Scratch) -> None:
        top, ties = self.state[0][k], self.state[1][k]
        x = self.mask.drop(x, tile, -math.inf)
        new = torch.maximum(top[tile.rows], x.amax(1))
        ties[tile.rows] *= top[tile.rows] == new
        ties[tile.rows] += (x == new.unsqueeze(1)).sum(1)
        top[tile.rows] = new

    def prepare(self, gradients: Tensor) -> Tensor:
        return gradients / self.state[1].clamp(min=1)

    def weigh(self, k: int, x: Tensor, gradient: Tensor, tile: Tile, scratch: Scratch) -> Tensor:
        x = self.mask.drop(x, tile, -math.inf)
        return x.eq_(self.state[0][k][tile.rows].unsqueeze(1)).mul_(gradient[tile.rows].unsqueeze(1))


def limited(given: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
    """Gradients per function and anchor, relative to the largest and without the negligible; and the largest."""
    like = next(g for g in given if g is not None)
    gradients = torch.stack([torch.zeros_like(like) if g is None else g for g in given]).squeeze(2)
    largest = gradients.abs().amax().clamp(min=torch.finfo(gradients.dtype).tiny)
    return torch.nn.functional.hardshrink(gradients / largest, NEGLIGIBLE), largest
