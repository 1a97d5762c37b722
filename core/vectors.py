"""Normalize embeddings, and choose their precision."""

import warnings
from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from . import checks

# Shorter rows get the gradient of a row of this length: their own, one over the length, would overflow.
EPS = 1e-30
EPS_HALF = 1e-4  # of float16

# Lengths whose squares neither overflow nor vanish.
SHORTEST, LONGEST = 1e-15, 1e15


def unit(z: Tensor, eps: float = EPS, name: str = "") -> Tensor:
    """Scale rows to length one; rows of zeros stay zero, with zero gradient, and a warning if they have a name."""
    norms: Tensor = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    if are_ordinary(norms, eps):
        return z * norms.reciprocal()
    _warn_of_zeros(norms, name)
    largest = largest_entry(z.detach())
    slope = 1 / largest.clamp(min=eps)
    z = z * slope + z.detach() * (1 / largest - slope)  # z / largest, with a gradient that does not overflow
    return z * inverse_norms(z)


def _warn_of_zeros(norms: Tensor, name: str) -> None:
    if name and checks.wanted(norms) and (zeros := int((norms == 0).sum())):
        why = "without a direction their similarities are 0, and they get no gradient"
        warnings.warn(f"{name}: {zeros} of {norms.numel()} rows are zero: {why}.", stacklevel=2)


def are_ordinary(norms: Tensor, eps: float) -> bool:
    """Return whether all norms are known to be exact, and to have finite gradients."""
    if not checks.wanted(norms):
        return False
    low, high = (norms.detach() if norms.requires_grad else norms).aminmax()
    return float(low) > max(eps, SHORTEST) and float(high) < LONGEST


def largest_entry(z: Tensor) -> Tensor:
    """Return the largest absolute value of each row, at least the smallest normal number."""
    return z.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(z.dtype).tiny)


def inverse_norms(z: Tensor) -> Tensor:
    """Return one over the length of each row, zero for rows of zeros; the largest entries are about one."""
    norms: Tensor = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    return torch.where(norms > 0, 1 / norms.clamp(min=torch.finfo(z.dtype).tiny), 0.0)


def widen(z: Tensor) -> Tensor:
    """Convert half precision to float32; float32 and float64 stay."""
    return z.float() if z.dtype in (torch.float16, torch.bfloat16) else z


class UnitViews(torch.autograd.Function):
    """:func:`unit` of several views ``(B, d)``: below one another, ``(m B, d)``, the factors of the rows, and of each.

    Their gradients come and go view by view: to join them would take longer. The factors are for second derivatives.
    """

    @staticmethod
    def forward(ctx: Any, eps: float, dtype: torch.dtype, *views: Tensor) -> tuple[Tensor, ...]:
        z = torch.cat([*views])
        z = z if z.dtype == dtype else z.to(dtype)
        norms = torch.linalg.vector_norm(z, dim=1, keepdim=True)
        if are_ordinary(norms, eps):
            scale = norms.reciprocal()
            z.mul_(scale)
        else:
            for i, (view, lengths) in enumerate(zip(views, norms.chunk(len(views)), strict=True), 1):
                checks.require_finite(view, f"view {i}")
                _warn_of_zeros(lengths, f"view {i}")
            largest = largest_entry(z)
            scale = inverse_norms(z.div_(largest))
            z.mul_(scale)
            scale = scale / largest.clamp(min=eps)  # of the gradient: one over the lengths
        ctx.dtype, ctx.views = views[0].dtype, len(views)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(z, scale)
        return z, scale, *z.chunk(len(views))

    @staticmethod
    def backward(ctx: Any, d_stack: Tensor | None, d_scale: Tensor | None, *d_views: Tensor | None) -> Any:
        def of_each(x: Tensor | None) -> Sequence[Any]:
            return [None] * ctx.views if x is None else x.chunk(ctx.views)

        stack, scales = map(of_each, ctx.saved_tensors)
        results, views = [], zip(stack, scales, of_each(d_scale), of_each(d_stack), d_views, strict=True)
        for z, scale, d_factor, *gradients in views:
            known = [d for d in gradients if d is not None]
            d = reduce(torch.add, known) if known else torch.zeros_like(z)
            # the part perpendicular to the rows, which are unit vectors
            along = d * z
            if torch.is_grad_enabled():
                d = (d - z * along.sum(1, keepdim=True)) * scale
            else:  # one buffer for all steps
                d = torch.addcmul(d, z, along.sum(1, keepdim=True), value=-1, out=along).mul_(scale)
            if d_factor is not None:  # of a second derivative
                d = d - scale**2 * z * d_factor
            results.append(d.to(ctx.dtype))
        return None, None, *results
