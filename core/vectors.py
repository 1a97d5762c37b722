"""Normalize embeddings, and choose their precision; the similarities of a sample's views."""

import itertools
import warnings
from typing import Any

import torch
from torch import Tensor

from . import checks

# Shorter rows get the gradient of a row of this length: their own, one over the length, would overflow.
EPS = 1e-30
EPS_HALF = 1e-4  # of float16

# Lengths whose squares neither overflow nor vanish.
SHORTEST, LONGEST = 1e-15, 1e15

BLOCK = 1024  # rows whose gradients are computed together


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
    """:func:`unit` of several views ``(B, d)``, below one another: ``(m B, d)``; stores little for the backward pass.

    Also returns the factors of the rows, ``(m B, 1)``, so that autograd can differentiate the gradient again, and with
    ``similarities`` those of :func:`view_similarities`, whose gradient then needs no memory of its own.
    """

    @staticmethod
    def forward(ctx: Any, eps: float, dtype: torch.dtype, similarities: bool, *views: Tensor) -> Any:
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
        return z, scale, view_similarities(z, len(views)) if similarities else None

    @staticmethod
    def backward(ctx: Any, dz: Tensor | None, d_scale: Tensor | None, d_pos: Tensor | None) -> Any:
        m = ctx.views
        if dz is not None and d_scale is None and d_pos is None and len(dz) <= BLOCK:
            return None, None, None, *_perpendicular(dz, *ctx.saved_tensors).to(ctx.dtype).chunk(m)
        views, scales = (x.chunk(m) for x in ctx.saved_tensors)
        gradients = [None] * m if dz is None else dz.chunk(m)
        of_pairs = () if d_pos is None else d_pos.chunk(m)

        def gradient(i: int, rows: slice) -> Tensor:
            z, dz = views[i][rows], gradients[i]
            # 1. dL/dz, with the similarities to the sample's other views
            dz = torch.zeros_like(z) if dz is None else dz[rows]
            for j in (j for j in range(m) if of_pairs and j != i):
                weight = of_pairs[i][rows, j - (j > i)] + of_pairs[j][rows, i - (i > j)]
                dz = torch.addcmul(dz, views[j][rows], weight.unsqueeze(1))
            # 2. its part perpendicular to the unit vectors, divided by the norms
            return _perpendicular(dz, z, scales[i][rows])

        size, height = len(views[0]), max(1, BLOCK // m)
        if torch.is_grad_enabled() or d_scale is not None or size <= height:
            results = [gradient(i, slice(None)) for i in range(m)]
            if d_scale is not None:  # of a second derivative
                parts = zip(results, views, scales, d_scale.chunk(m), strict=True)
                results = [dz - s**2 * z * d for dz, z, s, d in parts]
            return None, None, None, *(x.to(ctx.dtype) for x in results)
        results = [torch.empty_like(z, dtype=ctx.dtype) for z in views]
        for rows in (slice(first, first + height) for first in range(0, size, height)):
            for i, result in enumerate(results):
                result[rows] = gradient(i, rows)
        return None, None, None, *results


def _perpendicular(dz: Tensor, z: Tensor, scale: Tensor) -> Tensor:
    """Return ``scale`` times the part of ``dz`` that is perpendicular to the rows of ``z``, which are unit vectors."""
    if torch.is_grad_enabled():
        return (dz - z * (dz * z).sum(1, keepdim=True)) * scale
    x = dz * z  # one buffer for all steps
    return torch.addcmul(dz, z, x.sum(1, keepdim=True), value=-1, out=x).mul_(scale)


def view_similarities(z: Tensor, m: int) -> Tensor:
    """Return the similarities ``(m B, m - 1)`` of each of ``m`` views ``(B, d)`` to the sample's other views."""
    views = z.chunk(m)
    if m == 2 and len(views[0]) <= BLOCK:
        return (views[0] * views[1]).sum(1, keepdim=True).repeat(2, 1)
    pos = z.new_empty(m, views[0].shape[0], m - 1)
    for a, b in itertools.combinations(range(m), 2):
        pairs = zip(views[a].split(BLOCK), views[b].split(BLOCK), strict=True)
        pos[a, :, b - 1] = pos[b, :, a] = torch.cat([(x * y).sum(1) for x, y in pairs])
    return pos.flatten(0, 1)
