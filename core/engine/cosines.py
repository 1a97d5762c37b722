"""The scores of a small batch of which only the views are known.

Such a batch takes as long as its operations are many and its matrices are touched. So the positives are computed with
whatever is asked first of the negatives, a log-sum-exp or the matrix, and their gradients share the same products. The
exponentials of a log-sum-exp are where the similarities were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import checks
from .embeddings import gradients_of_stack, normalized
from .negatives import DenseNegatives
from .quadratic import SAFE, constant_factor
from .tiles import LOG2E


@dataclass(frozen=True)
class Layout:
    """Which of the unit vectors of ``m`` views, ``(m B, d)``, are anchors, and which are keys.

    Args:
        size: ``B``.
        first: the row of the first key. The rows before it are the anchors; if it is 0, all are anchors and keys.
        both: the keys are anchors too, after the others, with the anchors as their keys.
        skip: ``(anchors, k)`` columns of each anchor's sample, which are not negatives.
        own: ``(anchors, P)`` columns of its positives.
    """

    size: int
    first: int
    both: bool
    skip: Tensor
    own: Tensor

    @staticmethod
    def of_views(m: int, anchors: int, keys: int, size: int, device: torch.device) -> Layout:
        """Return the layout where the first ``anchors`` of ``m`` views are anchors, and the last ``keys`` are keys."""
        with torch.inference_mode(False):  # they may be stored
            row = torch.arange(anchors * size, device=device).unsqueeze(1)
            # where the keys are the anchors, its own column comes first
            columns = (row + torch.arange(0, keys * size, size, device=device)) % (keys * size)
            own = columns if keys < m else columns[:, 1:].sort(1).values
        return Layout(size, (m - keys) * size, keys < anchors, columns, own)

    def split(self, z: Tensor) -> Sequence[Tensor]:
        """Return the anchors and the keys."""
        return z.split_with_sizes([self.first, z.shape[0] - self.first]) if self.first else (z, z)

    def gradient(self, z: Tensor, d: Tensor) -> Tensor:
        """Return the gradient of the unit vectors, given that of the similarities."""
        if not self.first:
            return d.mm(z)  # of a symmetric matrix
        anchors, keys = self.split(z)
        if torch.is_grad_enabled():
            return torch.cat([d.mm(keys), d.t().mm(anchors)])
        dz = torch.empty_like(z)
        d_anchors, d_keys = self.split(dz)
        torch.mm(d, keys, out=d_anchors)
        torch.mm(d.t(), anchors, out=d_keys)
        return dz


class Cosines(torch.autograd.Function):
    """The matrix ``(anchors, keys)`` of similarities of views, and each anchor's positives ``(anchors, P)``.

    The results of :class:`counterpoint.engine.embeddings.StackedUnit` come first.
    """

    @staticmethod
    def forward(
        ctx: Any, eps: float, dtype: torch.dtype, layout: Layout, *views: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        z, scale = normalized(ctx, eps, dtype, views)
        anchors, keys = layout.split(z)
        matrix = anchors.mm(keys.t())
        if layout.both:
            matrix = torch.cat([matrix, matrix.T])
        ctx.save_for_backward(z, scale)
        ctx.layout, ctx.shape = layout, matrix.shape
        return z, scale, matrix, matrix.gather(1, layout.own)

    @staticmethod
    def backward(
        ctx: Any, dz: Tensor | None, d_scale: Tensor | None, d_matrix: Tensor | None, d_pos: Tensor | None
    ) -> Any:
        (z, scale), layout = ctx.saved_tensors, ctx.layout
        if d_pos is not None:
            weights = z.new_zeros(ctx.shape) if d_matrix is None else d_matrix
            d_matrix = weights.scatter_add(1, layout.own, d_pos)
        if d_matrix is not None:
            with checks.exact(z.device):
                if layout.both:
                    d_matrix = d_matrix[: layout.first] + d_matrix[layout.first :].t()
                elif not layout.first:
                    d_matrix = d_matrix + d_matrix.t()
                d_pairs = layout.gradient(z, d_matrix)
            dz = d_pairs if dz is None else dz + d_pairs
        return None, None, None, *gradients_of_stack(ctx, z, scale, dz, d_scale)


class LogSumExpOfCosines(torch.autograd.Function):
    """As :class:`Cosines`, but log-sum-exps ``(anchors, 1)`` of ``multiple`` times the similarities, not the matrix.

    The sums of the exponentials must neither overflow nor vanish. If all views are anchors and keys, they are two.
    """

    @staticmethod
    def forward(
        ctx: Any, eps: float, dtype: torch.dtype, layout: Layout, multiple: float, *views: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        z, scale = normalized(ctx, eps, dtype, views)
        anchors, keys = layout.split(z)
        n = anchors.shape[0]
        w = z.new_empty(n, keys.shape[0])
        torch.addmm(w, anchors, keys.t(), beta=0, alpha=multiple * LOG2E, out=w)
        pos = w.gather(1, layout.own[:n]).div_(multiple * LOG2E)
        w.exp2_().scatter_(1, layout.skip[:n], 0.0)
        total = torch.cat([w.sum(1), w.sum(0)]).unsqueeze(1) if layout.both else w.sum(1, keepdim=True)
        ctx.save_for_backward(z, scale, w, total)
        ctx.layout, ctx.multiple = layout, multiple
        return z, scale, total.log(), torch.cat([pos, pos]) if layout.both else pos

    @staticmethod
    def backward(
        ctx: Any, dz: Tensor | None, d_scale: Tensor | None, d_lse: Tensor | None, d_pos: Tensor | None
    ) -> Any:
        (z, scale, w, total), layout = ctx.saved_tensors, ctx.layout
        n = w.shape[0]
        with checks.exact(z.device):
            if torch.is_grad_enabled():  # as functions of the unit vectors
                anchors, keys = layout.split(z)
                w = (anchors.mm(keys.t()) * ctx.multiple).exp().scatter(1, layout.skip[:n], 0.0)
                total = torch.cat([w.sum(1), w.sum(0)] if layout.both else [w.sum(1)]).unsqueeze(1)
            factor = torch.zeros_like(total) if d_lse is None else d_lse * ctx.multiple / total
            if layout.both:
                factor = factor[:n] + factor[n:].t()
            elif not layout.first:
                factor = factor + factor.t()
            d_pairs = factor * w
            if d_pos is not None:
                if layout.both:
                    d_pos = d_pos[:n] + d_pos[n:]
                elif not layout.first:
                    d_pos = d_pos + d_pos.roll(layout.size, 0)
                d_pairs.scatter_(1, layout.own[:n], d_pos)  # where the weights are zero
            d_pairs = layout.gradient(z, d_pairs)
        return (
            None,
            None,
            None,
            None,
            *gradients_of_stack(ctx, z, scale, d_pairs if dz is None else dz + d_pairs, d_scale),
        )


class CosineNegatives(DenseNegatives):
    """:class:`DenseNegatives` of views, computed with the positives once a reduction shows what is needed.

    Args:
        views: ``(B, d)`` each, not normalized.
        eps, dtype: as for :class:`counterpoint.engine.embeddings.StackedUnit`.
        layout: which views are anchors and keys.
        bound: of the absolute similarities, if known.
    """

    def __init__(
        self, views: Sequence[Tensor], eps: float, dtype: torch.dtype, layout: Layout, bound: float | None
    ) -> None:
        self.views, self.unit, self.layout = views, (eps, dtype), layout
        self.bound = math.inf if bound is None else bound
        self.skip, self.drop, self.log_weight, self._scores, self._shifted = layout.skip, None, None, None, None
        self.count = float(len(views) * layout.size - layout.first - layout.skip.shape[1])
        self._z: Tensor | None = None
        self._pos: Tensor | None = None
        self._differentiated = torch.is_grad_enabled()  # the first reduction may be one without gradient

    @property
    def z(self) -> Tensor:
        """The unit vectors of all views, below one another."""
        if self._z is None:
            self._compute()
        assert self._z is not None
        return self._z

    @property
    def pos(self) -> Tensor:
        """The similarities of each anchor's positives, ``(anchors, P)``."""
        if self._pos is None:
            self._compute()
        assert self._pos is not None
        return self._pos

    @property
    def scores(self) -> Tensor:
        if self._z is None:
            self._compute()
        elif self._scores is None:  # a log-sum-exp came first
            with torch.set_grad_enabled(self._differentiated):
                anchors, keys = self.layout.split(self._z)
                matrix = anchors @ keys.T
                self._scores = torch.cat([matrix, matrix.T]) if self.layout.both else matrix
        assert self._scores is not None
        return self._scores

    def _compute(self) -> None:
        with torch.set_grad_enabled(self._differentiated):
            self._z, _, self._scores, self._pos = Cosines.apply(*self.unit, self.layout, *self.views)

    def logsumexp(self, f: Callable[..., Any], *per_anchor: Tensor) -> Any:
        first = self._z is None and not per_anchor and torch.is_grad_enabled() == self._differentiated
        if first and self.views[0].device.type == "cpu" and not checks.traced():
            factor, pairs = constant_factor(f), self.layout.own.shape[1] == 1 or self.layout.first
            if factor is not None and pairs and self.bound * abs(factor) <= SAFE:
                found = LogSumExpOfCosines.apply(*self.unit, self.layout, factor, *self.views)
                self._z, _, lse, self._pos = found
                return lse
        return super().logsumexp(f, *per_anchor)
