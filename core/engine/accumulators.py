"""Accumulate functions of similarities over tiles, one tile after the other, and differentiate the result.

*Log-sum-exps* are plain sums of ``2^x`` where ``|x|`` is known to be small (a cosine and a temperature of at least
1/60). Otherwise every row carries its running maximum, and exponents below it by more than 58 count as ``2^-58``.
Gradients of anchors that are below ``1e-16`` of the largest are dropped. Both are below rounding, and avoid denormals,
which are a hundred times slower on CPUs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..hyper import Value
from .tiles import LOG2E, Mask, Tile, Workspace

MIN_EXPONENT = -58.0
NEGLIGIBLE = 1e-16


class Accumulator:
    """Running statistics of the functions of an anchor's similarities.

    Args:
        mask: which keys count.
        count: number of negatives, for means.
        state: tensors ``(functions, anchors)``, see :meth:`start`.

    ``unit`` is what exponents are multiplied by before they are added, ``averages`` whether sums are divided by
    ``count``.
    """

    unit = 1.0
    averages = False

    def __init__(self, mask: Mask, count: Value, state: Sequence[Tensor]) -> None:
        self.mask, self.count, self.state = mask, count, state

    @classmethod
    def start(cls, functions: int, anchors: int, like: Tensor) -> list[Tensor]:
        """Return the state before the first tile."""
        raise NotImplementedError

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
        """Compute ``dL/dx`` of the values of function ``k`` in a tile, and overwrite them."""
        raise NotImplementedError

    def from_exponentials(self, p: Tensor, gradient: Tensor, tile: Tile, workspace: Workspace, out: Tensor) -> Tensor:
        """Compute ``dL/dx`` from stored ``2^x``, where an accumulator stores them, into ``out``, which may be ``p``."""
        raise NotImplementedError

    def pair_gradient(self, gradient: Tensor, tile: Tile, out: Tensor) -> Tensor:
        """Compute the gradient of each pair's row and, in a mirrored tile, of its column, as far as keys count."""
        rows = gradient[tile.rows].unsqueeze(1)
        columns = None if tile.mirror is None else gradient[tile.mirror]
        of_keys, of_anchors = (self.mask.log_weights(tile, dim) for dim in (1, 0))
        if of_keys is None or of_anchors is None:
            if not tile.keep:
                return rows if columns is None else torch.add(rows, columns, out=out)
            torch.mul(tile.keep[0], rows, out=out)
            return out if columns is None else out.addcmul_(tile.keep[1], columns)
        torch.mul(rows, of_keys.exp(), out=out)
        if tile.keep:
            out.mul_(tile.keep[0])
        if columns is None:
            return out
        return (
            out.addcmul_(tile.keep[1], columns * of_anchors.exp())
            if tile.keep
            else out.addcmul_(of_anchors.exp(), columns)
        )

    def _total(self, x: Tensor, tile: Tile, dim: int) -> Tensor:
        """Sum values along ``dim``, times the weights of the keys."""
        weight = self.mask.log_weights(tile, dim)
        return x.sum(dim) if weight is None else (x if dim else x.t()).mv(weight.exp().flatten())

    @staticmethod
    def _axes(tile: Tile) -> list[tuple[int, slice]]:
        """Return the dimensions to reduce, and the anchors that the results belong to."""
        return [(1, tile.rows)] + ([(0, tile.mirror)] if tile.mirror is not None and not tile.diagonal else [])


class Mean(Accumulator):
    """``mean_j x_j``."""

    averages = True

    @classmethod
    def start(cls, functions: int, anchors: int, like: Tensor) -> list[Tensor]:
        return [like.new_zeros(functions, anchors)]

    def add(self, k: int, x: Tensor, tile: Tile, workspace: Workspace) -> None:
        x = self.mask.fill(self.mask.weight_own(x, tile, None), tile, 0.0)
        for dim, anchors in self._axes(tile):
            kept = tile.remove(x.clone(), dim, 0.0) if tile.keep else x
            self.state[0][k, anchors].add_(self._total(kept, tile, dim))

    def result(self) -> Tensor:
        return self.scale_gradients(self.state[0])

    def scale_gradients(self, gradients: Tensor) -> Tensor:
        return gradients / (self.count.squeeze(1) if isinstance(self.count, Tensor) else self.count)

    def value_gradient(self, k: int, x: Tensor, gradient: Tensor, tile: Tile, workspace: Workspace) -> Tensor:
        pair = self.pair_gradient(gradient, tile, x)
        x = pair if pair is x else x.copy_(pair)
        return self.mask.fill(self.mask.weight_own(x, tile, None), tile, 0.0)


class SumExp(Mean):
    """``log sum_j 2^x_j`` of values that are known to be small."""

    unit, averages = LOG2E, False

    def add(self, k: int, x: Tensor, tile: Tile, workspace: Workspace) -> None:
        x = self.mask.fill(self.mask.weight_own(x.exp2_(), tile, None), tile, 0.0)
        decided = tile if tile.keep else self.mask.decide(x, tile, workspace, exponentials=True)
        for dim, anchors in self._axes(tile):
            kept = x
            if decided.keep:
                keep = decided.keep[1 - dim]
                if tile.keep:  # further functions need it
                    kept = torch.mul(x, keep, out=workspace("kept", x.shape))
                elif tile.mirror is None:  # the backward pass finds zeros
                    kept = x.mul_(keep)
                else:
                    kept = torch.mul(x, keep, out=keep)
            self.state[0][k, anchors].add_(self._total(kept, tile, dim))

    def result(self) -> Tensor:
        return self.state[0].log()

    def scale_gradients(self, gradients: Tensor) -> Tensor:
        return gradients / self.state[0].clamp(min=torch.finfo(gradients.dtype).tiny)

    def value_gradient(self, k: int, x: Tensor, gradient: Tensor, tile: Tile, workspace: Workspace) -> Tensor:
        x.exp2_()
        tile = tile if tile.keep else self.mask.decide(x, tile, workspace, exponentials=True)
        x.mul_(self.pair_gradient(gradient, tile, workspace("pair", x.shape)))
        return self.mask.fill(self.mask.weight_own(x, tile, None), tile, 0.0)

    def from_exponentials(self, p: Tensor, gradient: Tensor, tile: Tile, workspace: Workspace, out: Tensor) -> Tensor:
        return torch.mul(p, self.pair_gradient(gradient, tile, workspace("pair", p.shape)), out=out)


class MeanSoftplus(Mean):
    """``mean_j log(1 + 2^x_j)`` of values that are known to be small; tiles store ``2^x``."""

    unit = LOG2E

    def add(self, k: int, x: Tensor, tile: Tile, workspace: Workspace) -> None:
        # excluded keys become zero, whose log1p and gradient are zero
        x = self.mask.fill(x.exp2_(), tile, 0.0)
        decided = self.mask.decide(x, tile, workspace, exponentials=True)
        if decided.keep and tile.mirror is None:
            x.mul_(decided.keep[0])
        values = self.mask.weight_own(torch.log1p(x, out=workspace("values", x.shape)), tile, None)
        for dim, anchors in self._axes(tile):
            kept = values
            if decided.keep and tile.mirror is not None:
                kept = torch.mul(values, decided.keep[1 - dim], out=decided.keep[1 - dim])
            self.state[0][k, anchors].add_(self._total(kept, tile, dim))

    def value_gradient(self, k: int, x: Tensor, gradient: Tensor, tile: Tile, workspace: Workspace) -> Tensor:
        x = self.mask.fill(x.exp2_(), tile, 0.0)
        tile = self.mask.decide(x, tile, workspace, exponentials=True)
        return self.from_exponentials(x, gradient, tile, workspace, x)

    def from_exponentials(self, p: Tensor, gradient: Tensor, tile: Tile, workspace: Workspace, out: Tensor) -> Tensor:
        torch.div(p, torch.add(p, 1.0, out=workspace("values", p.shape)), out=out)
        out.mul_(self.pair_gradient(gradient, tile, workspace("values", p.shape)))
        return self.mask.weight_own(out, tile, None)


class LogSumExp(Accumulator):
    """``log sum_j 2^x_j`` of any values, by online softmax: the running maximum, and the sum relative to it."""

    unit = LOG2E

    @classmethod
    def start(cls, functions: int, anchors: int, like: Tensor) -> list[Tensor]:
        lowest = torch.finfo(like.dtype).min / 4
        return [like.new_full((functions, anchors), lowest), like.new_zeros(functions, anchors)]

    def add(self, k: int, x: Tensor, tile: Tile, workspace: Workspace) -> None:
        row_max, row_sum = self.state[0][k], self.state[1][k]
        x = self.mask.fill(self.mask.weight_own(x, tile, self.unit), tile, torch.finfo(x.dtype).min / 4)
        for dim, anchors in self._axes(tile):
            # 1. new row maxima
            y = x
            if (weight := self.mask.log_weights(tile, dim)) is not None:
                y = torch.add(x, weight, alpha=self.unit, out=workspace("weighted", x.shape))
            seen = y
            if tile.keep:
                lowest = torch.finfo(x.dtype).min / 4
                seen = torch.sub(tile.keep[1 - dim], 1.0, out=workspace("p", x.shape)).mul_(-lowest).add_(y)
            new_max = torch.maximum(row_max[anchors], seen.amax(dim))
            # 2. exponentials relative to them
            p = torch.sub(y, new_max.unsqueeze(dim), out=workspace("p", x.shape))
            p = self._kept(p.clamp_(min=MIN_EXPONENT, max=0.0 if tile.keep else None).exp2_(), tile, dim)
            # 3. rescale the sums so far, and add
            row_sum[anchors] *= (row_max[anchors] - new_max).exp2_()
            row_sum[anchors] += self.mask.fill(p, tile, 0.0).sum(dim)
            row_max[anchors] = new_max

    def result(self) -> Tensor:
        lse = self.state[0] + self.state[1].log2()
        return lse.masked_fill(self.state[0] <= torch.finfo(lse.dtype).min / 4, -math.inf) / LOG2E

    def scale_gradients(self, gradients: Tensor) -> Tensor:
        # the log-sum-exp of large exponents has no digits left for their sum, which is at least one
        return gradients / self.state[1].clamp(min=1.0)

    def value_gradient(self, k: int, x: Tensor, gradient: Tensor, tile: Tile, workspace: Workspace) -> Tensor:
        row_max, x = self.state[0][k], self.mask.weight_own(x, tile, self.unit)
        columns = None
        if tile.mirror is not None:
            columns = torch.sub(x, row_max[tile.mirror], out=workspace("p", x.shape))
            columns = self._share(columns, tile, 0).mul_(gradient[tile.mirror])
        x = self._share(x.sub_(row_max[tile.rows].unsqueeze(1)), tile, 1).mul_(gradient[tile.rows].unsqueeze(1))
        return self.mask.fill(x if columns is None else x.add_(columns), tile, 0.0)

    def _share(self, x: Tensor, tile: Tile, dim: int) -> Tensor:
        """Compute the exponential of each key's exponent less the largest one, in place."""
        if (weight := self.mask.log_weights(tile, dim)) is not None:
            x.add_(weight, alpha=self.unit)
        return self._kept(x.clamp_(min=MIN_EXPONENT, max=0.0 if tile.keep else None).exp2_(), tile, dim)

    @staticmethod
    def _kept(p: Tensor, tile: Tile, dim: int) -> Tensor:
        """Set what limits exclude to zero, in place; it must be finite."""
        return p.mul_(tile.keep[1 - dim]) if tile.keep else p


class Max(Accumulator):
    """The largest value; ties share its gradient. Tiles are not mirrored."""

    @classmethod
    def start(cls, functions: int, anchors: int, like: Tensor) -> list[Tensor]:
        return [like.new_full((functions, anchors), -math.inf), like.new_zeros(functions, anchors)]

    def add(self, k: int, x: Tensor, tile: Tile, workspace: Workspace) -> None:
        row_max, ties = self.state[0][k], self.state[1][k]
        x = tile.remove(self.mask.fill(x, tile, -math.inf), 1, -math.inf)
        new_max = torch.maximum(row_max[tile.rows], x.amax(1))
        ties[tile.rows] *= row_max[tile.rows] == new_max
        ties[tile.rows] += (x == new_max.unsqueeze(1)).sum(1)
        row_max[tile.rows] = new_max

    def scale_gradients(self, gradients: Tensor) -> Tensor:
        return gradients / self.state[1].clamp(min=1)

    def value_gradient(self, k: int, x: Tensor, gradient: Tensor, tile: Tile, workspace: Workspace) -> Tensor:
        x = tile.remove(self.mask.fill(x, tile, -math.inf), 1, -math.inf)
        return x.eq_(self.state[0][k][tile.rows].unsqueeze(1)).mul_(gradient[tile.rows].unsqueeze(1))


def normalized_gradients(gradients: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
    """Divide ``(functions, anchors)`` gradients by the largest, set negligible ones to zero; return the largest too."""
    like = next(g for g in gradients if g is not None)
    stacked = torch.cat([torch.zeros_like(like) if g is None else g for g in gradients], 1).t()
    largest = torch.linalg.vector_norm(stacked, math.inf).clamp(min=torch.finfo(stacked.dtype).tiny)
    return torch.nn.functional.hardshrink(stacked / largest, NEGLIGIBLE), largest
