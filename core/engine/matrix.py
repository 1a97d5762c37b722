"""The reductions that an objective can ask of its negatives, and negatives as a matrix of similarities.

An objective asks for log-sum-exps, means and maxima of functions of the similarity, never for the similarities
themselves, so that it runs on a matrix, in tiles (:mod:`counterpoint.engine.tiles`) and in chunks. Torch differentiates
:class:`MatrixNegatives`, apart from :class:`Product`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import threshold

from .. import checks
from ..values import Value
from .distributed import ProcessGroup
from .mask import Mask, Tile, Workspace, with_own_guide

# Logarithm of the largest share of a key before its own weight, which may be as small as e^-80.
HIGHEST = 80.0
# Exponentials that are smaller, relative to the largest, count as zero: they would be denormals, or outweigh it.
LOWEST = -60.0
# Elements of a row block on the CPU: 256 KB of float32, so that a chain of elementwise steps stays in the cache.
BLOCK = 2**16


class Negatives(ABC):
    """Each anchor's negative similarities, which can be reduced but not read.

    The functions ``f`` are elementwise: ``f(s)`` maps a block of similarities to a tensor of its shape, or to
    a tuple of such tensors, which are then reduced in one pass. ``f`` may close over numbers and tensors without
    dimensions only. Pass what differs from anchor to anchor beside it, as ``(anchors, 1)`` tensors, which arrive as
    further arguments, sliced to the block: ``neg.mean(lambda s, m: (s - m) ** 2, m)``. Every reduction has the shape
    ``(anchors, 1)``, which broadcasts against ``pos``.

    With ``guided=True`` they are ``f(s, g, ...)``, where ``g`` is the similarity by the call's ``guide=``, or the
    model's own if there is none, as a constant.

    Anchors may be only those of this process: for statistics of the batch use :meth:`across` and :meth:`batch_mean`.

    >>> neg: cp.Negatives = cp.MatrixNegatives(torch.tensor([[0.1, 0.4, 0.7]]))
    >>> neg.logsumexp(lambda s: s / 0.5)
    tensor([[2.0152]])
    """

    engine: str = "matrix"
    count: Value  # of negatives per anchor: a float if it is the same for all, else (anchors, 1)
    group: ProcessGroup | None = None
    guide: Negatives | None = None  # the same anchors and keys by a guide's embeddings
    optional: bool = False  # whether an anchor may have none, because others are joined to these
    valid: Value = 1.0  # factor of the loss, (anchors, 1): NaN for anchors without negatives where no error is raised
    counted: Tensor | None = None  # which anchors are part of the batch's statistics, (anchors, 1); None: all

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            known = "logsumexp, mean, max, min, variance, expectation, moments; a sum is neg.mean(f) * neg.count"
            raise AttributeError(f"neg has no {name!r}. Known: {known}. pos is a tensor, (anchors, positives).")

    @property
    def log_count(self) -> Value:
        return self.count.log() if isinstance(self.count, Tensor) else math.log(self.count)

    @abstractmethod
    def logsumexp(self, f: Callable[..., Any], *per_anchor: Tensor, guided: bool = False) -> Any:
        """Compute ``log sum_j exp f(s_j)``."""

    @abstractmethod
    def mean(self, f: Callable[..., Any], *per_anchor: Tensor, guided: bool = False) -> Any:
        """Compute ``mean_j f(s_j)``."""

    @abstractmethod
    def max(self) -> Tensor:
        """Return the largest similarity; its gradient is shared evenly among ties."""

    @abstractmethod
    def min(self) -> Tensor:
        """Return the smallest similarity."""

    @torch.no_grad()
    def moments(self, b: Tensor, top: Tensor, order: int = 3) -> tuple[Tensor, ...]:
        """Compute ``log mean_j e^{b s_j}``, and mean, variance and central moments under ``Q ~ e^{b s}``.

        They are of ``s - top``, without gradient, ``(anchors, 1)`` each.

        Args:
            b: ``(anchors, 1)``, at least 0.
            top: the largest similarities.
            order: of the last moment, 3 or 4.
        """
        total, *powers = self._powers(b, top, order)
        mean, square, cube, *fourth = (x / total for x in powers)
        central = [square - mean**2, cube - 3 * mean * square + 2 * mean**3]
        central += [x - 4 * mean * cube + 6 * mean**2 * square - 3 * mean**4 for x in fourth]
        return total.log(), mean, *central

    def _powers(self, b: Tensor, top: Tensor, order: int) -> Sequence[Tensor]:
        """Compute ``mean_j e^{b x_j} x_j^n`` of ``x = s - top``, for ``n`` from 0 to ``order``."""

        def powers(s: Tensor, b: Tensor, m: Tensor) -> tuple[Tensor, ...]:
            x = s - m
            w = threshold(b * x, LOWEST, -torch.inf).exp()
            return w, *(w * x**n for n in range(1, order + 1))

        return self.mean(powers, b, top)  # type: ignore[no-any-return]

    def excluding(self, most: Tensor, guide: Negatives | None = None, exempt: int = 0) -> Negatives:
        """Return the negatives whose similarity, by ``guide`` if given, is at most ``most``, ``(anchors, 1)``.

        The last keys, ``exempt`` of them, stay.
        """
        raise TypeError(f"{type(self).__name__}: negatives of this kind cannot be excluded by their similarity.")

    def tilted(self, strength: float) -> Negatives:
        """Return negatives that count ``e^{strength s}`` times each, with the similarity ``s`` as a constant."""
        raise TypeError(f"{type(self).__name__}: negatives of this kind cannot be weighted by their similarity.")

    def set_guide(self, guide: Negatives) -> None:
        """Let ``guide``, with the same structure, say the similarities by the guide."""
        self.guide = guide

    def materialized(self) -> Negatives:
        """Return the same negatives as a matrix, if that is small enough."""
        return self

    def split(self) -> Sequence[Negatives]:
        """Return the negatives of blocks of anchors, if these can be reduced separately."""
        return [self]

    def across(self, x: Tensor, op: str = "sum") -> Tensor:
        """Reduce ``x`` by ``sum``, ``min`` or ``max`` over the processes that share the batch, without gradient."""
        return x if self.group is None else self.group.all_reduce(x, op)

    def batch_mean(self, x: Tensor) -> Tensor:
        """Average ``(anchors, 1)`` values over the anchors of the whole batch, without gradient."""
        return (self.over_anchors(x) if self.group is None else self.group.mean(x)).detach()

    def over_anchors(self, x: Tensor) -> Tensor:
        """Average ``(anchors, 1)`` values over those anchors of this process that count."""
        return x.mean() if self.counted is None else x.where(self.counted, 0.0).sum() / self.counted.sum().clamp(min=1)

    def variance(self) -> Tensor:
        """Compute the population variance, by deviations from the mean rather than by a difference of moments."""
        mean = self.mean(lambda s: s)
        return self.mean(lambda s, m: (s - m) ** 2, mean)  # type: ignore[no-any-return]

    def expectation(
        self, log_weight: Callable[..., Tensor], f: Callable[..., Tensor], *per_anchor: Tensor, guided: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Compute ``log W`` and ``sum_j w_j f(s_j) / W`` with constant weights ``w = exp(log_weight)`` of sum ``W``."""

        def weighted(s: Tensor, g: Tensor, total: Tensor, *others: Tensor) -> Tensor:
            # unbounded of an excluded key, whose zero gradient would be NaN; above one if a key counts less than once
            return (log_weight(g, *others) - total).clamp(max=HIGHEST).exp() * f(s, *others)

        functions: list[Callable[..., Any]] = [lambda s, g, *others: log_weight(g, *others), weighted]
        log_weights, each = functions if guided else map(with_own_guide, functions)
        total = self.logsumexp(log_weights, *per_anchor, guided=guided)
        return total, self.mean(each, total, *per_anchor, guided=guided) * self.count


class Product(torch.autograd.Function):
    """The inner products of the rows of two matrices, whose gradient is exact even under autocast.

    With a ``workspace`` for the result, it is differentiated once at most; the gradient of ``right`` is then added to
    ``d_right``, if given, instead of returning it.
    """

    @staticmethod
    def forward(
        ctx: Any, left: Tensor, right: Tensor, workspace: Workspace | None = None, d_right: Tensor | None = None
    ) -> Tensor:
        ctx.save_for_backward(left, right)
        ctx.d_right = d_right
        if workspace is None:
            return left @ right.T
        return torch.mm(left, right.T, out=workspace("products", (len(left), len(right)))).detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        left, right = ctx.saved_tensors
        with checks.exact(gradient.device):
            d_left = gradient @ right if ctx.needs_input_grad[0] else None
            if ctx.d_right is None:
                return d_left, gradient.T @ left if ctx.needs_input_grad[1] else None, None, None
            ctx.d_right.addmm_(gradient.T, left)
            return d_left, None, None, None


class MatrixNegatives(Negatives):
    """Negatives as a matrix of similarities.

    Args:
        matrix: ``(anchors, keys)`` similarities.
        skip: ``(anchors, k)`` columns that are not negatives of that anchor (itself, its positives).
        drop: ``(anchors, keys)``, True where a key is not a negative; replaces ``skip``.
        log_weight: ``(anchors, keys)``; a key counts ``exp(log_weight)`` times (SimCSE's hard-negative weight).

    >>> cp.MatrixNegatives(torch.tensor([[0.1, 0.4, 0.7]])).mean(lambda s: s**2)
    tensor([[0.2200]])
    """

    workspace: Workspace | None = None  # of a chunk, to reuse
    _buffers = 0

    def __init__(
        self, matrix: Tensor, skip: Tensor | None = None, drop: Tensor | None = None, log_weight: Tensor | None = None
    ) -> None:
        self.matrix: Tensor = matrix
        self.skip: Tensor | None = skip
        self.drop: Tensor | None = drop
        self.log_weight: Tensor | None = log_weight
        if log_weight is not None:
            self.count = self.masked(log_weight, -math.inf).exp().sum(1, keepdim=True)
        elif drop is not None:
            self.count = (~drop).sum(1, keepdim=True).to(matrix.dtype)
        else:
            self.count = float(matrix.shape[1] - (0 if skip is None else skip.shape[1]))

    @staticmethod
    def of(
        blocks: Sequence[tuple[Tensor, Tensor]],
        mask: Mask,
        both: bool = False,
        workspace: Workspace | None = None,
        d_right: Tensor | None = None,
    ) -> MatrixNegatives:
        """Materialize the similarities of blocks, by :class:`Product`."""
        matrices, masks = [], []
        for left, right in blocks:
            matrix = left @ right.T if checks.traced() else Product.apply(left, right, workspace, d_right)
            matrices += [matrix, matrix.T] if both else [matrix]
            masks += [mask, mask.transposed()] if both else [mask]
        excluded = [excluded_by(mask, matrix) for mask, matrix in zip(masks, matrices, strict=True)]
        skip, drop, weight = (concatenated([parts[i] for parts in excluded]) for i in range(3))
        found = MatrixNegatives(torch.cat(matrices) if len(matrices) > 1 else matrices[0], skip, drop, weight)
        found.workspace = workspace
        return found

    def excluding(self, most: Tensor, guide: Negatives | None = None, exempt: int = 0) -> MatrixNegatives:
        s = self.matrix.detach() if guide is None else matrix_of(guide.materialized())
        drop = s > most
        if exempt:
            drop = torch.cat([drop[:, :-exempt], torch.zeros_like(drop[:, -exempt:])], 1)
        kept = MatrixNegatives(self.matrix, drop=self.masked(drop, True), log_weight=self.log_weight)
        kept.group = self.group
        return kept

    def tilted(self, strength: float) -> MatrixNegatives:
        weight = strength * self.matrix.detach()
        weight = weight if self.log_weight is None else weight + self.log_weight
        changed = MatrixNegatives(self.matrix, self.skip, self.drop, weight)
        changed.workspace = self.workspace
        return changed

    def masked(self, x: Tensor, value: float) -> Tensor:
        """Return ``x`` with ``value`` where a key is not a negative."""
        if self.drop is not None:
            return x.masked_fill(self.drop, value)
        return x if self.skip is None else x.scatter(1, self.skip, value)

    def exclude_(self, x: Tensor, rows: slice = slice(None)) -> None:
        """Set ``x`` to zero where a key is not a negative."""
        if self.drop is not None:
            x.masked_fill_(self.drop[rows], 0.0)
        elif self.skip is not None:
            x.scatter_(1, self.skip[rows], 0.0)

    def logsumexp(self, f: Callable[..., Any], *per_anchor: Tensor, guided: bool = False) -> Any:
        def reduce(x: Tensor) -> Tensor:
            x = x if self.log_weight is None else x + self.log_weight
            # of a finite number, so that a row without negatives has no NaN
            return self.masked(x, torch.finfo(x.dtype).min).logsumexp(1, keepdim=True)

        return self._reduce(reduce, f, per_anchor, guided)

    def mean(self, f: Callable[..., Any], *per_anchor: Tensor, guided: bool = False) -> Any:
        def reduce(x: Tensor) -> Tensor:
            x = x if self.log_weight is None else x * self.log_weight.exp()
            return self.masked(x, 0.0).sum(1, keepdim=True) / self.count

        return self._reduce(reduce, f, per_anchor, guided)

    def _reduce(
        self, reduce: Callable[[Tensor], Tensor], f: Callable[..., Any], per_anchor: tuple[Tensor, ...], guided: bool
    ) -> Any:
        if guided and self.guide is not None:
            per_anchor = (matrix_of(self.guide.materialized()), *per_anchor)
        elif guided:
            f = with_own_guide(f)
        if self.matrix.numel() > BLOCK and self.matrix.device.type == "cpu" and not checks.compiling():
            with torch.no_grad():  # an error that tiles would raise
                checks.require_elementwise(f(self.matrix[:1], *(x[:1] for x in per_anchor)), self.matrix[:1])
        results = f(self.matrix, *per_anchor)
        return tuple(map(reduce, results)) if isinstance(results, tuple) else reduce(results)

    def max(self) -> Tensor:
        return self.masked(self.matrix, -math.inf).amax(1, keepdim=True)

    def min(self) -> Tensor:
        return -MatrixNegatives(-self.matrix, self.skip, self.drop).max()

    def _powers(self, b: Tensor, top: Tensor, order: int) -> Sequence[Tensor]:
        if not checks.wanted(self.matrix):
            return super()._powers(b, top, order)
        b, top = b.detach(), top.detach()
        flat, sums, workspace = not bool(b.any()), [], self.workspace or Workspace(self.matrix)
        for rows, block in self._blocks(2 * BLOCK):  # in place, in two buffers that stay in the cache
            x = torch.sub(block.detach(), top[rows], out=workspace("x", block.shape))
            buffer = workspace("w", block.shape)
            if flat and self.log_weight is None:  # the moments of all negatives need no exponentials
                self.exclude_(x, rows)
                count = self.count[rows] if isinstance(self.count, Tensor) else self.count
                w, found = x, [torch.ones_like(top[: len(x)]) * count, x.sum(1, keepdim=True)]
            else:
                w = self._exponentials(x, b, rows, buffer)
                found = [w.sum(1, keepdim=True)]
            while len(found) <= order:
                w = torch.mul(w, x, out=buffer)
                found.append(w.sum(1, keepdim=True))
            sums.append(torch.cat(found, 1))
        return (torch.cat(sums) / self.count).split(1, 1)  # type: ignore[no-any-return]

    def _exponentials(self, x: Tensor, b: Tensor, rows: slice, out: Tensor) -> Tensor:
        """Compute ``e^{b x}`` of some rows as often as their keys count."""
        w: Tensor = threshold(torch.mul(x, b[rows], out=out), LOWEST, -torch.inf, inplace=True)
        w.exp_()
        if self.log_weight is not None:
            w.mul_(self.log_weight[rows].exp())
        self.exclude_(w, rows)
        return w

    def pair_buffer(self) -> Tensor:
        """Return a buffer for a number per pair."""
        if self.workspace is None:
            return torch.empty_like(self.matrix)
        self._buffers += 1
        return self.workspace(f"weights {self._buffers}", self.matrix.shape)

    def softmax_weights(self, b: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
        """Compute ``log mean_j e^{b (s_j - top)}`` and ``softmax(b s)``, ``(anchors, keys)``, without gradient."""
        weights, totals = self.pair_buffer(), []
        for rows, block in self._blocks():
            x = torch.sub(block.detach(), top[rows].detach(), out=weights[rows])
            w = self._exponentials(x, b.detach(), rows, x)
            totals.append(w.sum(1, keepdim=True))
            w.div_(totals[-1])
        return (torch.cat(totals) / self.count).log(), weights

    def split(self) -> Sequence[Negatives]:
        known, blocks = (self.skip, self.drop, self.log_weight), self._blocks(4 * BLOCK)
        return [MatrixNegatives(s, *(None if x is None else x[rows] for x in known)) for rows, s in blocks]

    def _blocks(self, size: int = BLOCK) -> Iterator[tuple[slice, Tensor]]:
        if self.matrix.numel() <= BLOCK or self.matrix.device.type != "cpu" or checks.compiling():
            yield slice(None), self.matrix
            return
        start = 0
        # split rather than slicing: its backward pass writes the gradient once, not once per block
        for block in self.matrix.split(max(1, size // max(self.matrix.shape[1], 1))):
            yield slice(start, start + len(block)), block
            start += len(block)


def excluded_by(mask: Mask, matrix: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return ``skip``, ``drop`` and ``log_weight`` of :class:`MatrixNegatives`, without limits and strength."""
    rows, keys = matrix.shape
    if mask.by_position:  # only views of the anchor's own sample, every ``period``-th key
        if mask.period is None:
            return None, None, None
        of_views = keys if mask.hard is None else mask.hard
        columns = own_columns.__wrapped__ if checks.traced() else own_columns
        return columns(rows, of_views, mask.period, matrix.device, mask.first), None, None
    tile = Tile(slice(0, rows), slice(0, keys))
    tile = replace(mask, limits=None).weigh(tile, None, Workspace(matrix))
    drop = tile.remove(torch.zeros_like(matrix, dtype=torch.bool), 1, True)
    return None, drop, tile.log_weights[0].expand(rows, keys) if tile.log_weights else None


@lru_cache(maxsize=4)  # in a small batch they take as long to make as the similarities
def own_columns(rows: int, columns: int, period: int, device: torch.device, first: int = 0) -> Tensor:
    """Return which of the columns of some views are each anchor's sample, ``(rows, k)``; see :class:`Mask`."""
    with torch.inference_mode(False):
        row = (torch.arange(rows, device=device).unsqueeze(1) + first) % period
        return row + torch.arange(0, columns, period, device=device)


def matrix_of(neg: Negatives) -> Tensor:
    """Return the matrix of similarities, ``(anchors, keys)``, or raise if ``neg`` does not store one."""
    matrix: Tensor | None = getattr(neg, "matrix", None)
    if matrix is None:
        raise TypeError("the weight of every single negative needs a matrix of similarities.")
    return matrix


def concatenated(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Concatenate all parts below one another; None if there are none."""
    tensors = [x for x in parts if x is not None]
    return torch.cat(tensors) if len(tensors) > 1 else tensors[0] if tensors else None
