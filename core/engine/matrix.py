"""What an objective can ask of its negatives, and negatives as a matrix of similarities.

An objective sees ``pos``, a tensor ``(anchors, P)``, and ``neg``, a :class:`Negatives`. It asks ``neg`` for
log-sum-exps, means and maxima of functions of the similarity, never for the similarities themselves, so that the same
objective runs on a matrix, in tiles (:mod:`counterpoint.engine.tiles`) and in chunks.

Torch differentiates :class:`MatrixNegatives`, apart from :class:`Product` and :class:`MatrixLogSumExp`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..values import Value
from .distributed import ProcessGroup
from .mask import LOG2E, Mask
from .quadratic import Quadratics, is_zero

# Logarithm of the largest share of a key before its own weight, which may be as small as e^-80.
HIGHEST = 80.0

# Exponents that are smaller, relative to the largest, are below rounding; their exponentials would be denormals.
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

    The anchors may be only those of this process: for statistics of the whole batch use :meth:`across` and
    :meth:`batch_mean`.

    >>> import torch, counterpoint as cp
    >>> neg: cp.Negatives = cp.MatrixNegatives(torch.tensor([[0.1, 0.4, 0.7]]))
    >>> neg.logsumexp(lambda s: s / 0.5)
    tensor([[2.0152]])
    """

    engine: str = "matrix"
    group: ProcessGroup | None = None
    optional: bool = False
    """Whether an anchor may have none, because others are joined to these."""
    valid: Value = 1.0
    """Factor of the loss, ``(anchors, 1)``: NaN for anchors without negatives where no error can be raised."""
    count: Value
    """Number of negatives per anchor: a float if it is the same for all, else ``(anchors, 1)``."""

    @property
    def log_count(self) -> Value:
        return self.count.log() if isinstance(self.count, Tensor) else math.log(self.count)

    @abstractmethod
    def logsumexp(self, f: Callable[..., Any], *per_anchor: Tensor) -> Any:
        """Compute ``log sum_j exp f(s_j)``."""

    @abstractmethod
    def mean(self, f: Callable[..., Any], *per_anchor: Tensor) -> Any:
        """Compute ``mean_j f(s_j)``."""

    @abstractmethod
    def max(self) -> Tensor:
        """Return the largest similarity; its gradient is shared evenly among ties."""

    @abstractmethod
    def min(self) -> Tensor:
        """Return the smallest similarity."""

    @torch.no_grad()
    def moments(self, b: Tensor, top: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Describe the distribution ``Q ~ e^{b s}`` over an anchor's negatives, without gradient.

        Args:
            b: ``(anchors, 1)``, at least 0.
            top: the largest similarities; all results are of ``s - top``.

        Returns:
            ``log mean_j e^{b s_j}``, and mean, variance and third central moment under ``Q``, ``(anchors, 1)`` each.
        """
        total, first, second, third = self._powers(b, top)
        mean, square = first / total, second / total
        return total.log(), mean, square - mean**2, third / total - 3 * mean * square + 2 * mean**3

    def _powers(self, b: Tensor, top: Tensor) -> tuple[Tensor, ...]:
        """Compute ``mean_j e^{b x_j} x_j^n`` of ``x = s - top``, for ``n`` from 0 to 3."""

        def powers(s: Tensor, b: Tensor, m: Tensor) -> tuple[Tensor, ...]:
            x = s - m
            w = (b * x).clamp(min=LOWEST).exp()
            return w, w * x, w * x**2, w * x**3

        return self.mean(powers, b, top)  # type: ignore[no-any-return]

    def excluding(self, most: Tensor, guide: Negatives | None = None, exempt: int = 0) -> Negatives:
        """Return the negatives whose similarity is at most ``most``, ``(anchors, 1)``.

        Args:
            most: a constant for autograd.
            guide: the same anchors and keys by other embeddings, whose similarities are compared instead.
            exempt: so many keys, the last, stay.
        """
        raise TypeError(f"{type(self).__name__}: negatives of this kind cannot be excluded by their similarity.")

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
        return (x.mean() if self.group is None else self.group.mean(x)).detach()

    def variance(self) -> Tensor:
        """Compute the population variance, by deviations from the mean rather than by a difference of moments."""
        mean = self.mean(lambda s: s)
        return self.mean(lambda s, m: (s - m) ** 2, mean)  # type: ignore[no-any-return]

    def expectation(self, log_weight: Callable[[Tensor], Tensor], f: Callable[[Tensor], Tensor]) -> Tensor:
        """Compute ``sum_j w_j f(s_j) / sum_j w_j`` with constant weights ``w = exp(log_weight)``."""
        total = self.logsumexp(lambda s: log_weight(s.detach()))

        def weighted(s: Tensor, total: Tensor) -> Tensor:
            # that of an excluded key is unbounded, and infinity times its zero gradient would be NaN; that of a key
            # that counts less than once may exceed one
            return (log_weight(s.detach()) - total).clamp(max=HIGHEST).exp() * f(s)

        return self.mean(weighted, total) * self.count  # type: ignore[no-any-return]


class Product(torch.autograd.Function):
    """The inner products of the rows of two matrices, whose gradient is exact even under autocast."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        ctx.save_for_backward(left, right)
        return left @ right.T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        left, right = ctx.saved_tensors
        with checks.exact(gradient.device):
            d_left = gradient @ right if ctx.needs_input_grad[0] else None
            return d_left, gradient.T @ left if ctx.needs_input_grad[1] else None


class MatrixLogSumExp(torch.autograd.Function):
    """Row-wise log-sum-exp of a matrix times a number, block by block, whose product is never a matrix of its own.

    The results are the log-sum-exps, the exponentials, and their sums ``(anchors, 1)``, so that autograd can
    differentiate the gradient again. Exponents are relative to the largest of their row.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: float, blocks: Sequence[slice], exclude_: Callable[..., None]
    ) -> tuple[Tensor, Tensor, Tensor]:
        w, parts, sums = torch.empty_like(x, memory_format=torch.contiguous_format), [], []
        for rows in blocks:
            y = torch.mul(of_rows(x, rows), scale * LOG2E, out=of_rows(w, rows))
            exclude_(y, rows)  # with finite values, so that a row without negatives has no NaN
            top = y.amax(1, keepdim=True)
            sums.append(y.sub_(top).exp2_().sum(1, keepdim=True))
            parts.append(sums[-1].log2().add_(top).div_(LOG2E))
        lse, total = (x[0] if len(x) == 1 else torch.cat(x) for x in (parts, sums))
        ctx.save_for_backward(w, total)
        ctx.set_materialize_grads(False)
        ctx.scale = scale
        return lse, w, total

    @staticmethod
    def backward(ctx: Any, d_lse: Tensor | None, dw: Tensor | None, d_total: Tensor | None) -> Any:
        w, total = ctx.saved_tensors
        dx = None if d_lse is None else w * (d_lse * ctx.scale / total)
        for d in (dw, d_total):  # of a second derivative
            if d is not None:
                dx = w * d * ctx.scale if dx is None else dx + w * d * ctx.scale
        return dx, None, None, None


class MatrixNegatives(Negatives):
    """Negatives as a matrix of similarities.

    Args:
        scores: ``(anchors, keys)`` similarities.
        skip: ``(anchors, k)`` columns that are not negatives of that anchor (itself, its positives).
        drop: ``(anchors, keys)``, True where a key is not a negative; replaces ``skip``.
        log_weight: ``(anchors, keys)``; a key counts ``exp(log_weight)`` times (SimCSE's hard-negative weight).

    >>> import torch, counterpoint as cp
    >>> cp.MatrixNegatives(torch.tensor([[0.1, 0.4, 0.7]])).mean(lambda s: s**2)
    tensor([[0.2200]])
    """

    def __init__(
        self,
        scores: Tensor,
        skip: Tensor | None = None,
        drop: Tensor | None = None,
        log_weight: Tensor | None = None,
    ) -> None:
        self.scores = scores
        self.skip = skip
        self.drop = drop
        self.log_weight = log_weight
        self._shifted: tuple[Tensor, Tensor, Tensor] | None = None
        if log_weight is not None:
            self.count = self.masked(log_weight, -math.inf).exp().sum(1, keepdim=True)
        elif drop is not None:
            self.count = (~drop).sum(1, keepdim=True).to(scores.dtype)
        else:
            self.count = float(scores.shape[1] - (0 if skip is None else skip.shape[1]))

    @staticmethod
    def of(blocks: Sequence[tuple[Tensor, Tensor]], mask: Mask, both: bool = False) -> MatrixNegatives:
        """Materialize the similarities of embeddings; see :class:`counterpoint.engine.tiles.TileNegatives`."""
        matrices, masks = [], []
        for left, right in blocks:
            matrix = left @ right.T if checks.traced() else Product.apply(left, right)
            matrices += [matrix, matrix.T] if both else [matrix]
            masks += [mask, mask.transposed()] if both else [mask]
        excluded = [mask.of_matrix(matrix) for mask, matrix in zip(masks, matrices, strict=True)]
        skip, drop, weight = (concatenated([parts[i] for parts in excluded]) for i in range(3))
        return MatrixNegatives(torch.cat(matrices) if len(matrices) > 1 else matrices[0], skip, drop, weight)

    def excluding(self, most: Tensor, guide: Negatives | None = None, exempt: int = 0) -> MatrixNegatives:
        s = self.scores.detach() if guide is None else matrix_of(guide.materialized())
        drop = s > most
        if exempt:
            drop = torch.cat([drop[:, :-exempt], torch.zeros_like(drop[:, -exempt:])], 1)
        kept = MatrixNegatives(self.scores, drop=self.masked(drop, True), log_weight=self.log_weight)
        kept.group = self.group
        return kept

    def masked(self, x: Tensor, value: float, rows: slice = slice(None)) -> Tensor:
        """Return ``x`` with ``value`` where a key is not a negative."""
        if self.drop is not None:
            return x.masked_fill(of_rows(self.drop, rows), value)
        return x if self.skip is None else x.scatter(1, of_rows(self.skip, rows), value)

    def exclude_(self, x: Tensor, rows: slice = slice(None), value: float | None = None) -> None:
        """Overwrite ``x`` where a key is not a negative, by default with the smallest number."""
        value = torch.finfo(x.dtype).min if value is None else value
        if self.drop is not None:
            x.masked_fill_(of_rows(self.drop, rows), value)
        elif self.skip is not None:
            x.scatter_(1, of_rows(self.skip, rows), value)

    def logsumexp(self, f: Callable[..., Any], *per_anchor: Tensor) -> Any:
        traced = checks.traced()
        if not per_anchor and self.log_weight is None and self.scores.device.type == "cpu" and not traced:
            quadratic = Quadratics.of(f, (), len(self.scores), self.scores.dtype)
            if quadratic is not None and quadratic[0].multiple is not None and is_zero(quadratic[1][0]):
                return MatrixLogSumExp.apply(
                    self.scores, quadratic[0].multiple, [rows for rows, _ in self._blocks()], self.exclude_
                )[0]

        def reduce(x: Tensor, rows: slice) -> Tensor:
            if self.log_weight is not None:
                x = x + of_rows(self.log_weight, rows)
            if traced:
                return self.masked(x, -math.inf, rows).logsumexp(1, keepdim=True)
            return MatrixLogSumExp.apply(x, 1.0, [slice(None)], lambda y, _: self.exclude_(y, rows))[0]  # type: ignore[no-any-return]

        return self._reduce(reduce, f, per_anchor)

    def mean(self, f: Callable[..., Any], *per_anchor: Tensor) -> Any:
        def reduce(x: Tensor, rows: slice) -> Tensor:
            if self.log_weight is not None:
                x = x * of_rows(self.log_weight, rows).exp()
            count = of_rows(self.count, rows) if isinstance(self.count, Tensor) else self.count
            return self.masked(x, 0.0, rows).sum(1, keepdim=True) / count

        return self._reduce(reduce, f, per_anchor)

    def max(self) -> Tensor:
        return self._reduce(  # type: ignore[no-any-return]
            lambda x, rows: self.masked(x, -math.inf, rows).amax(1, keepdim=True), lambda s: s, ()
        )

    def min(self) -> Tensor:
        return self._reduce(  # type: ignore[no-any-return]
            lambda x, rows: self.masked(x, math.inf, rows).amin(1, keepdim=True), lambda s: s, ()
        )

    def _powers(self, b: Tensor, top: Tensor) -> tuple[Tensor, ...]:
        if self.log_weight is not None or not checks.wanted(self.scores):
            return super()._powers(b, top)
        # in place; a block's passes share their buffers
        buffers = self._shifted
        if buffers is None or buffers[0] is not top:
            buffers = top, (self.scores - top).detach(), torch.empty_like(self.scores)
        _, x, w = buffers
        if w.numel() <= 4 * BLOCK:
            self._shifted = buffers
        if bool(b.any()):
            torch.mul(x, b.detach(), out=w).clamp_(min=LOWEST).exp_()
            self.exclude_(w, value=0.0)
            sums = [w.sum(1, keepdim=True) / self.count]
        else:  # the moments of all negatives need no exponentials
            self.exclude_(w.fill_(1), value=0.0)
            sums = [torch.ones_like(top)]
        for _ in range(3):
            sums.append(w.mul_(x).sum(1, keepdim=True) / self.count)
        return tuple(sums)

    def softmax_weights(self, b: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
        """Compute ``log mean_j e^{b (s_j - top)}`` and ``softmax(b s)``, ``(anchors, keys)``, without gradient."""
        weights, totals = torch.empty_like(self.scores), []
        for rows, block in self._blocks():
            w = (
                torch.sub(block.detach(), top[rows].detach(), out=weights[rows])
                .mul_(b[rows].detach())
                .clamp_(min=LOWEST)
                .exp_()
            )
            if self.log_weight is not None:
                w.mul_(self.log_weight[rows].exp())
            self.exclude_(w, rows, 0.0)
            totals.append(w.sum(1, keepdim=True))
            w.div_(totals[-1])
        return (torch.cat(totals) / self.count).log(), weights

    def split(self) -> Sequence[Negatives]:
        def part(x: Tensor | None, rows: slice) -> Tensor | None:
            return None if x is None else x[rows]

        return [
            MatrixNegatives(block, part(self.skip, rows), part(self.drop, rows), part(self.log_weight, rows))
            for rows, block in self._blocks(4 * BLOCK)
        ]

    def _blocks(self, size: int = BLOCK) -> Iterator[tuple[slice, Tensor]]:
        if self.scores.numel() <= BLOCK or self.scores.device.type != "cpu" or checks.compiling():
            yield slice(None), self.scores
            return
        start = 0
        # split rather than slicing: its backward pass writes the gradient once, not once per block
        for block in self.scores.split(max(1, size // max(self.scores.shape[1], 1))):
            yield slice(start, start + len(block)), block
            start += len(block)

    def _reduce(
        self, reduce: Callable[[Tensor, slice], Tensor], f: Callable[..., Any], per_anchor: tuple[Tensor, ...]
    ) -> Any:
        parts: list[tuple[Tensor, ...]] = []
        single = True
        for rows, block in self._blocks():
            if not parts and rows.start is not None:
                with torch.no_grad():
                    checks.require_elementwise(f(block[:1], *(p[:1] for p in per_anchor)), block[:1])
            results = f(block, *[of_rows(p, rows) for p in per_anchor])
            single = not isinstance(results, tuple)
            parts.append(tuple(reduce(x, rows) for x in ((results,) if single else results)))
        columns = tuple(p[0] if len(p) == 1 else torch.cat(p) for p in zip(*parts, strict=True))
        return columns[0] if single else columns


def of_rows(x: Tensor, rows: slice) -> Tensor:
    """Return some rows; all of them cost no operation."""
    return x if rows.start is None else x[rows]


def matrix_of(neg: Negatives) -> Tensor:
    """Return the matrix of similarities, ``(anchors, keys)``, or raise if ``neg`` does not store one."""
    scores: Tensor | None = getattr(neg, "scores", None)
    if scores is None:
        raise TypeError("the weight of every single negative needs a matrix of scores.")
    return scores


def concatenated(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Concatenate all parts below one another; None if there are none."""
    tensors = [x for x in parts if x is not None]
    return torch.cat(tensors) if len(tensors) > 1 else tensors[0] if tensors else None
