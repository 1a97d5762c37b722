"""Accumulate functions of similarities over tiles, one tile after the other, and differentiate the result.

*Log-sum-exps* are plain sums of ``2^x`` where ``|x|`` is known to be small (a cosine and a temperature of at least
1/60). Otherwise every row carries its running maximum, and exponents below it by more than 58 count as ``2^-58``.
Gradients of anchors that are below ``1e-16`` of the largest are dropped. Both are below rounding, and avoid denormals,
which are a hundred times slower on CPUs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..values import Value
from .mask import LOG2E, Tile, Workspace

MIN_EXPONENT = -58.0
NEGLIGIBLE = 1e-16


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
        """Compute ``dL/df`` of the values ``x`` of function ``k`` in a tile, in units of ``unit``; overwrite them."""
        return self.from_exponentials(tile.clear(x.exp2_(), 0.0), gradient, tile, workspace)

    def from_exponentials(self, p: Tensor, gradient: Tensor, tile: Tile, workspace: Workspace) -> Tensor:
        """Compute ``dL/df`` from ``2^x``, which tiles may have stored, and overwrite them."""
        raise NotImplementedError

    @staticmethod
    def pair_gradient(gradient: Tensor, tile: Tile, out: Tensor) -> Tensor:
        """Compute the gradient of each pair's row and, in a mirrored tile, of its column, as often as keys count."""
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
        pair = self.pair_gradient(gradient, tile, x)
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
        return p.mul_(self.pair_gradient(gradient, tile, workspace("pair", p.shape)))


class MeanSoftplus(Mean):
    """``mean_j log(1 + 2^x_j)`` of values that are known to be small; tiles store ``2^x``."""

    unit = LOG2E
    value_gradient = Accumulator.value_gradient

    def add(self, k: int, x: Tensor, tile: Tile, workspace: Workspace) -> None:
        x = tile.clear(x.exp2_(), 0.0)  # excluded keys become zero, whose log1p and gradient are zero
        self._add_sums(k, torch.log1p(x, out=workspace("values", x.shape)), tile, workspace)

    def from_exponentials(self, p: Tensor, gradient: Tensor, tile: Tile, workspace: Workspace) -> Tensor:
        p.div_(torch.add(p, 1.0, out=workspace("values", p.shape)))
        return p.mul_(self.pair_gradient(gradient, tile, workspace("values", p.shape)))


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
