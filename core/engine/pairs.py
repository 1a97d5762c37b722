"""Anchors and keys of a small batch, whose similarities are computed when the first reduction shows what is needed.

Log-sum-exps of functions that are at most quadratic, as InfoNCE, ADNCE and HCL ask for, are computed with the positives
in one function: the gradients of both share the same two products. Any other reduction computes the matrix.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .. import checks
from .matrix import MatrixNegatives, Product
from .quadratic import SAFE, Quadratics, with_constants

Coefficients = tuple[float, float, float]


class LogSumExpOfPairs(torch.autograd.Function):
    """Row-wise log-sum-exps ``(n, 1)`` of functions of similarities, without ``own`` ones; and these, ``(n, P)``.

    ``own`` are the columns of each row's positives, ``functions`` the numbers of ``v1 s + v2 s^2`` and its slope. With
    ``both``, also of the columns, whose results follow those of the rows; the halves of ``own`` are then equal. Unless
    sums of exponentials are ``safe``, these are relative to the largest.
    """

    @staticmethod
    def forward(
        ctx: Any, left: Tensor, right: Tensor, own: Tensor, functions: Sequence[Coefficients], safe: bool, both: bool
    ) -> tuple[Tensor, ...]:
        own = own[: left.shape[0]] if both else own
        s = left.mm(right.t())
        pos = s.gather(1, own)
        results, weights, totals, alone = [], [], [], len(functions) == 1
        for v1, v2, _ in functions:
            # 1. exponents
            w = (s * v1).addcmul_(s, s, value=v2) if v2 else s.mul_(v1) if alone else s * v1
            top: Tensor | None = None
            if not safe:
                top = w.scatter_(1, own, torch.finfo(w.dtype).min).amax(1, keepdim=True)
                w.sub_(top)
            # 2. exponentials and their sums
            w.exp_().scatter_(1, own, 0.0)
            total = torch.cat([w.sum(1), w.sum(0)]).unsqueeze(1) if both else w.sum(1, keepdim=True)
            results.append(total.log() if top is None else total.log().add_(top))
            weights.append(w)
            totals.append(total)
        ctx.save_for_backward(left, right, own, *weights, *totals)
        ctx.functions, ctx.both = functions, both
        ctx.set_materialize_grads(False)
        return *results, pos.repeat(2, 1) if both else pos

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        (left, right, own, *saved), functions = ctx.saved_tensors, ctx.functions
        weights, totals, ds = saved[: len(functions)], saved[len(functions) :], None
        with checks.exact(left.device):
            if torch.is_grad_enabled():  # of a second derivative
                s = left @ right.T
                s, own = (torch.cat([s, s.T]), own.repeat(2, 1)) if ctx.both else (s, own)

                def exponents(s: Tensor) -> tuple[Tensor, ...]:  # v1 s + v2 s^2, with their own slopes
                    return tuple(d * s + ((v1 - d) * s + v2 * s**2).detach() for v1, v2, d in functions)

                found = [*MatrixNegatives(s, own).logsumexp(exponents), s.gather(1, own)]
                used = [pair for pair in zip(found, gradients, strict=True) if pair[1] is not None]
                leaves = [x for x in (left, right) if x.requires_grad]
                outputs, gradients = zip(*used, strict=True)
                computed = iter(torch.autograd.grad(outputs, leaves, gradients, create_graph=True))
                of_both = (next(computed) if x.requires_grad else None for x in (left, right))
                return *of_both, None, None, None, None
            # 1. gradients of the similarities, zero where these are positives
            for (_, _, slope), w, total, d in zip(functions, weights, totals, gradients, strict=False):
                if d is not None:
                    factor = d * slope / total
                    if ctx.both:
                        rows, columns = factor.chunk(2)
                        factor = rows + columns.t()
                    ds = w * factor if ds is None else ds.addcmul_(w, factor)
            ds = torch.zeros_like(weights[0]) if ds is None else ds
            # 2. of the positives
            if (d_pos := gradients[-1]) is not None:
                ds.scatter_(1, own, sum(d_pos.chunk(2)) if ctx.both else d_pos)
            # 3. of anchors and keys
            d_left = ds.mm(right) if ctx.needs_input_grad[0] else None
            d_right = ds.t().mm(left) if ctx.needs_input_grad[1] else None
        return d_left, d_right, None, None, None, None


class PairNegatives(MatrixNegatives):
    """:class:`MatrixNegatives` of embeddings, with each anchor's positives, ``own`` columns that are not negatives.

    ``bound`` is that of the absolute similarities. With ``both``, the keys are anchors too, after the others, and
    ``own`` has rows for both.
    """

    def __init__(self, left: Tensor, right: Tensor, own: Tensor, bound: float, both: bool = False) -> None:
        self.left, self.right, self.own, self.both, self.bound = left, right, own, both, bound
        self.skip, self.drop, self.log_weight = own, None, None
        self.count = float(right.shape[0] - own.shape[1])
        self._differentiated = torch.is_grad_enabled()  # the first reduction may be one without gradient

    @cached_property
    def matrix(self) -> Tensor:  # type: ignore[override]
        with torch.set_grad_enabled(self._differentiated):
            matrix = Product.apply(self.left, self.right)
            return torch.cat([matrix, matrix.T]) if self.both else matrix

    @cached_property
    def pos(self) -> Tensor:
        """The similarities of each anchor's positives, ``(anchors, P)``."""
        with torch.set_grad_enabled(self._differentiated):
            if "matrix" in vars(self):
                return self.matrix.gather(1, self.own)
            pos = torch.stack([(self.left * x).sum(1) for x in self.right.split(self.left.shape[0])], 1)
            return pos.repeat(2, 1) if self.both else pos

    def logsumexp(self, f: Callable[..., Any], *per_anchor: Tensor, guided: bool = False) -> Any:
        first = "matrix" not in vars(self) and not guided and torch.is_grad_enabled() == self._differentiated
        traced = Quadratics.of(f, per_anchor, self.own.shape[0], self.left.dtype) if first else None
        if traced is not None and (fixed := traced[0].fixed) is not None:
            safe = traced[0].bounded(self.bound, SAFE)
            if safe or not self.both:
                found = LogSumExpOfPairs.apply(self.left, self.right, self.own, fixed, safe, self.both)
                vars(self).setdefault("pos", found[-1])
                return with_constants(traced[1], found[:-1])
        return super().logsumexp(f, *per_anchor, guided=guided)
