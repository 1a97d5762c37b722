"""Negatives as a matrix of similarities, which torch's own operations reduce and differentiate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import checks
from .mask import LOG2E, Mask
from .negatives import LOWEST, Negatives
from .quadratic import SAFE, Quadratics, is_zero

# Elements of a row block on the CPU: 256 KB of float32, so that a chain of elementwise steps stays in the cache.
BLOCK = 2**16


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


class LogSumExp(torch.autograd.Function):
    """Row-wise log-sum-exp of a matrix times a number, block by block, whose product is never a matrix of its own.

    The results are the log-sum-exps, the exponentials, and their sums ``(anchors, 1)``, so that autograd can
    differentiate the gradient again. Exponents are relative to the largest of their row, unless ``safe`` says that the
    sums neither overflow nor vanish.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: float, safe: bool, blocks: Sequence[slice], exclude_: Callable[..., None]
    ) -> tuple[Tensor, Tensor, Tensor]:
        w, parts, sums = torch.empty_like(x, memory_format=torch.contiguous_format), [], []
        for rows in blocks:
            y = torch.mul(of_rows(x, rows), scale * LOG2E, out=of_rows(w, rows))
            if safe:
                exclude_(y.exp2_(), rows, 0.0)
                sums.append(y.sum(1, keepdim=True))
                parts.append(sums[-1].log())
            else:
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
        return dx, None, None, None, None


class MatrixNegatives(Negatives):
    """Negatives as a matrix of similarities.

    Args:
        scores: ``(anchors, keys)`` similarities.
        skip: ``(anchors, k)`` columns that are not negatives of that anchor (itself, its positives).
        drop: ``(anchors, keys)``, True where a key is not a negative; replaces ``skip``.
        log_weight: ``(anchors, keys)``; a key counts ``exp(log_weight)`` times (SimCSE's hard-negative weight).
        bound: bound of the absolute similarities, if known.

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
        bound: float | None = None,
    ) -> None:
        self._scores: Tensor | None = scores
        self.skip, self.drop, self.log_weight = skip, drop, log_weight
        self.bound = math.inf if bound is None else bound
        self._shifted: tuple[Tensor, Tensor, Tensor] | None = None
        if log_weight is not None:
            self.count = self.masked(log_weight, -math.inf).exp().sum(1, keepdim=True)
        elif drop is not None:
            self.count = (~drop).sum(1, keepdim=True).to(scores.dtype)
        else:
            self.count = float(scores.shape[1] - (0 if skip is None else skip.shape[1]))

    @property
    def scores(self) -> Tensor:
        """The matrix of similarities, ``(anchors, keys)``."""
        assert self._scores is not None
        return self._scores

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
        s = self.scores.detach() if guide is None else matrix_of(guide)
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
                factor = quadratic[0].multiple
                safe = self.drop is None and self.bound * abs(factor) <= SAFE  # else a row may have no negatives
                return LogSumExp.apply(self.scores, factor, safe, self._heights(), self.exclude_)[0]

        def block(x: Tensor, rows: slice) -> Tensor:
            if self.log_weight is not None:
                x = x + of_rows(self.log_weight, rows)
            if traced:
                return self.masked(x, -math.inf, rows).logsumexp(1, keepdim=True)
            found = LogSumExp.apply(x, 1.0, False, [slice(None)], lambda y, _: self.exclude_(y, rows))
            return found[0]  # type: ignore[no-any-return]

        return self._reduce(block, f, per_anchor)

    def mean(self, f: Callable[..., Any], *per_anchor: Tensor) -> Any:
        def block(x: Tensor, rows: slice) -> Tensor:
            if self.log_weight is not None:
                x = x * of_rows(self.log_weight, rows).exp()
            count = of_rows(self.count, rows) if isinstance(self.count, Tensor) else self.count
            return self.masked(x, 0.0, rows).sum(1, keepdim=True) / count

        return self._reduce(block, f, per_anchor)

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
        torch.mul(x, b.detach(), out=w).clamp_(min=LOWEST).exp_()
        if w.numel() <= 4 * BLOCK:
            self._shifted = buffers
        self.exclude_(w, value=0.0)
        sums = [w.sum(1, keepdim=True)]
        for _ in range(3):
            sums.append(w.mul_(x).sum(1, keepdim=True))
        return tuple(x / self.count for x in sums)

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
        if self._in_one():
            yield slice(None), self.scores
            return
        start = 0
        # split rather than slicing: its backward pass writes the gradient once, not once per block
        for block in self.scores.split(max(1, size // max(self.scores.shape[1], 1))):
            yield slice(start, start + len(block)), block
            start += len(block)

    def _in_one(self) -> bool:
        return self.scores.numel() <= BLOCK or self.scores.device.type != "cpu" or checks.compiling()

    def _heights(self) -> list[slice]:
        """Return the rows of each block."""
        if self._in_one():
            return [slice(None)]
        rows, height = self.scores.shape[0], max(1, BLOCK // max(self.scores.shape[1], 1))
        return [slice(start, min(start + height, rows)) for start in range(0, rows, height)]

    def _reduce(
        self, reduce: Callable[[Tensor, slice], Tensor], f: Callable[..., Any], per_anchor: tuple[Tensor, ...]
    ) -> Any:
        parts: list[tuple[Tensor, ...]] = []
        single = True
        for rows, block in self._blocks():
            if not parts and rows.start is not None:
                with torch.no_grad():
                    checks.is_elementwise(f(block[:1], *(p[:1] for p in per_anchor)), block[:1])
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
