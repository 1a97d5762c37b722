"""Anchors and keys of a small batch, whose similarities are computed when the first reduction shows what is needed.

A log-sum-exp, as InfoNCE asks for, is computed with the positives in one function: the exponentials are where the
similarities were, and both gradients share the same two products. Any other reduction computes the matrix.
"""

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .. import checks
from .matrix import MatrixNegatives, Product
from .quadratic import SAFE, multiple_of


class LogSumExpOfPairs(torch.autograd.Function):
    """Row-wise log-sum-exp ``(n, 1)`` of ``multiple`` times similarities, without ``own`` ones; and these, ``(n, P)``.

    ``own`` are the columns of each row's positives. With ``both``, also of the columns, whose results follow those of
    the rows, only where the ``bound`` of the absolute similarities says that sums of exponentials neither overflow nor
    vanish; ``own`` is then ``(2 n, 1)``, of which the halves are equal.
    """

    @staticmethod
    def forward(
        ctx: Any, left: Tensor, right: Tensor, own: Tensor, multiple: float, bound: float | None, both: bool
    ) -> tuple[Tensor, Tensor]:
        own = own[: left.shape[0]] if both else own
        w = left.mm(right.t())
        pos = w.gather(1, own)
        w.mul_(multiple)
        largest = float(w.amax()) if bound is None else bound * abs(multiple)
        if largest <= SAFE:
            w.exp_().scatter_(1, own, 0.0)
            total = torch.cat([w.sum(1), w.sum(0)]).unsqueeze(1) if both else w.sum(1, keepdim=True)
            lse = total.log()
            if bound is None and not float(lse.amin()) >= -SAFE:  # a row of exponentials has vanished
                w = left.mm(right.t()).mul_(multiple)
                total, lse = _shifted(w, own)
        else:
            total, lse = _shifted(w, own)
        ctx.save_for_backward(left, right, own, w, total)
        ctx.multiple, ctx.both = multiple, both
        return lse, pos.repeat(2, 1) if both else pos

    @staticmethod
    def backward(ctx: Any, d_lse: Tensor, d_pos: Tensor) -> tuple[Tensor | None, ...]:
        left, right, own, w, total = ctx.saved_tensors
        with checks.exact(left.device):
            if torch.is_grad_enabled():  # of a second derivative
                s = left @ right.T
                s, own = (torch.cat([s, s.T]), own.repeat(2, 1)) if ctx.both else (s, own)
                found = (s * ctx.multiple).scatter(1, own, -math.inf).logsumexp(1, keepdim=True), s.gather(1, own)
                leaves = [x for x in (left, right) if x.requires_grad]
                gradients = iter(torch.autograd.grad(found, leaves, (d_lse, d_pos), create_graph=True))
                return *(next(gradients) if x.requires_grad else None for x in (left, right)), None, None, None, None
            factor = d_lse * ctx.multiple / total
            if ctx.both:
                (rows, columns), (d_rows, d_columns) = factor.chunk(2), d_pos.chunk(2)
                factor, d_pos = rows + columns.t(), d_rows + d_columns
            ds = (w * factor).scatter_(1, own, d_pos)  # where the weights are zero
            d_left = ds.mm(right) if ctx.needs_input_grad[0] else None
            d_right = ds.t().mm(left) if ctx.needs_input_grad[1] else None
        return d_left, d_right, None, None, None, None


def _shifted(w: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Compute row-wise sums of exponentials relative to the largest, in place, and log-sum-exps, without ``own``."""
    top = w.scatter_(1, own, torch.finfo(w.dtype).min).amax(1, keepdim=True)
    total = w.sub_(top).exp_().sum(1, keepdim=True)
    return total, total.log().add_(top)


class PairNegatives(MatrixNegatives):
    """:class:`MatrixNegatives` of embeddings, with each anchor's positives, ``own`` columns that are not negatives.

    With ``both``, the keys are anchors too, after the others, and ``own`` has rows for both.
    """

    def __init__(self, left: Tensor, right: Tensor, own: Tensor, bound: float | None, both: bool = False) -> None:
        self.left, self.right, self.own, self.bound, self.both = left, right, own, bound, both
        self.skip, self.drop, self.log_weight, self.workspace, self._buffers = own, None, None, None, 0
        self.count = float(right.shape[0] - own.shape[1])
        self._differentiated = torch.is_grad_enabled()  # the first reduction may be one without gradient

    @cached_property
    def scores(self) -> Tensor:  # type: ignore[override]
        with torch.set_grad_enabled(self._differentiated):
            matrix = Product.apply(self.left, self.right)
            return torch.cat([matrix, matrix.T]) if self.both else matrix

    @cached_property
    def pos(self) -> Tensor:
        """The similarities of each anchor's positives, ``(anchors, P)``."""
        with torch.set_grad_enabled(self._differentiated):
            return self.scores.gather(1, self.own)

    def logsumexp(self, f: Callable[..., Any], *per_anchor: Tensor, guided: bool = False) -> Any:
        known = self.__dict__.keys() & {"scores", "pos"}
        if not (known or per_anchor or guided) and torch.is_grad_enabled() == self._differentiated:
            multiple, bound = multiple_of(f), self.bound
            if bound is None and self.both:
                norms = [torch.linalg.vector_norm(x.detach(), dim=1) for x in (self.left, self.right)]
                bound = float(norms[0].amax() * norms[1].amax())
            if multiple is not None and (not self.both or (bound or 0.0) * abs(multiple) <= SAFE):
                lse, self.pos = LogSumExpOfPairs.apply(self.left, self.right, self.own, multiple, bound, self.both)
                return lse
        return super().logsumexp(f, *per_anchor, guided=guided)
