"""Normalize and compare the embeddings of a batch in blocks, storing little for the backward pass."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..vectors import are_ordinary, unit_

BLOCK = 1024  # rows that are processed together

_overwritten: ContextVar[bool] = ContextVar("_overwritten", default=False)


@contextmanager
def overwritten_by_gradients() -> Iterator[None]:
    """Let the gradients of large batches that are normalized in this context overwrite the normalized embeddings.

    This is for code that differentiates a loss once and keeps nothing else of its graph.
    """
    token = _overwritten.set(True)
    try:
        yield
    finally:
        _overwritten.reset(token)


class StackedUnit(torch.autograd.Function):
    """:func:`counterpoint.vectors.unit` of several views ``(B, d)``, below one another: ``(m B, d)``.

    Also returns the factors of the rows, ``(m B, 1)``: the gradient is a function of the results, so that autograd can
    differentiate it again. With ``others``, the similarities of :class:`OtherViews` follow, whose gradient then needs
    no memory of its own.
    """

    @staticmethod
    def forward(ctx: Any, eps: float, dtype: torch.dtype, others: bool, *views: Tensor) -> Any:
        z, scale = normalized(ctx, eps, dtype, views)
        ctx.save_for_backward(z, scale)
        return z, scale, other_views(z, len(views)) if others else None

    @staticmethod
    def backward(ctx: Any, dz: Tensor | None, d_scale: Tensor | None, d_pos: Tensor | None) -> Any:
        z, scale = ctx.saved_tensors
        m = ctx.views
        if d_pos is None:
            return None, None, None, *gradients_of_stack(ctx, z, scale, dz, d_scale)
        d_views = [None] * m if dz is None else dz.chunk(m)
        return None, None, None, *_of_views(ctx, z.chunk(m), scale, d_views, d_scale, d_pos)


class SeparateUnit(torch.autograd.Function):
    """As :class:`StackedUnit`, with a result for each view, so that their gradients need not be stacked.

    The results are the factors of the rows, the similarities and the views.
    """

    @staticmethod
    def forward(ctx: Any, eps: float, dtype: torch.dtype, others: bool, *views: Tensor) -> Any:
        z, scale = normalized(ctx, eps, dtype, views)
        separate = z.chunk(len(views))
        ctx.save_for_backward(scale, *separate)
        return scale, other_views(z, len(views)) if others else None, *separate

    @staticmethod
    def backward(ctx: Any, d_scale: Tensor | None, d_pos: Tensor | None, *gradients: Tensor | None) -> Any:
        scale, *views = ctx.saved_tensors
        return None, None, None, *_of_views(ctx, views, scale, gradients, d_scale, d_pos)


def normalized(ctx: Any, eps: float, dtype: torch.dtype, views: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the rows of all views at length one, and their factors."""
    z = torch.cat([*views])
    z = z if z.dtype == dtype else z.to(dtype)
    norms = torch.linalg.vector_norm(z, dim=1, keepdim=True)
    if are_ordinary(norms, eps):
        scale = norms.reciprocal()
        z.mul_(scale)
    else:
        for i, view in enumerate(views, 1):
            checks.is_finite(view, f"view {i}")
        scale = unit_(z, eps)
    ctx.dtype, ctx.views, ctx.overwritten = views[0].dtype, len(views), _overwritten.get()
    ctx.set_materialize_grads(False)
    return z, scale


def gradients_of_stack(ctx: Any, z: Tensor, scale: Tensor, dz: Tensor | None, d_scale: Tensor | None) -> Any:
    """Return the gradient of each view, given that of all ``(m B, d)``."""
    m = ctx.views
    if z.shape[0] > BLOCK and d_scale is None and not torch.is_grad_enabled():
        return _of_views(ctx, z.chunk(m), scale, [None] * m if dz is None else dz.chunk(m))
    dz = _across(torch.zeros_like(z) if dz is None else dz, z, scale)
    if d_scale is not None:  # of a second derivative
        dz = dz - scale**2 * z * d_scale
    return (dz if dz.dtype == ctx.dtype else dz.to(ctx.dtype)).chunk(m)


def _of_views(
    ctx: Any,
    views: Sequence[Tensor],
    scale: Tensor,
    gradients: Sequence[Tensor | None],
    d_scale: Tensor | None = None,
    d_pos: Tensor | None = None,
) -> list[Tensor]:
    """Return the gradient of each view: the part perpendicular to the unit vectors, divided by the norms.

    Args:
        views, scale: of the unit vectors, ``(B, d)`` each, and the factors of all of them.
        gradients: of the unit vectors.
        d_scale: of the factors.
        d_pos: of the similarities to a sample's other views.
    """
    m, size = len(views), views[0].shape[0]
    scales, of_pairs = scale.chunk(m), () if d_pos is None else d_pos.chunk(m)

    def gradient(i: int, rows: slice) -> Tensor:
        z, dz = views[i][rows], gradients[i]
        dz = torch.zeros_like(z) if dz is None else dz[rows]
        for j in (j for j in range(m) if of_pairs and j != i):
            weight = of_pairs[i][rows, j - (j > i)] + of_pairs[j][rows, i - (i > j)]
            dz = torch.addcmul(dz, views[j][rows], weight.unsqueeze(1))
        return _across(dz, z, scales[i][rows])

    height = max(1, BLOCK // m)
    if torch.is_grad_enabled() or d_scale is not None or size <= height:
        results = [gradient(i, slice(None)) for i in range(m)]
        if d_scale is not None:  # of a second derivative
            d_scales = d_scale.chunk(m)
            results = [dz - s**2 * z * d for dz, z, s, d in zip(results, views, scales, d_scales, strict=True)]
        return [x.to(ctx.dtype) for x in results]
    overwritten = ctx.overwritten and views[0].dtype == ctx.dtype
    results = [z.detach() if overwritten else torch.empty_like(z, dtype=ctx.dtype) for z in views]
    for rows in (slice(first, first + height) for first in range(0, size, height)):
        blocks = [gradient(i, rows) for i in range(m)]  # of all views, before any is overwritten
        for result, block in zip(results, blocks, strict=True):
            result[rows] = block
    return results


def _across(dz: Tensor, z: Tensor, scale: Tensor) -> Tensor:
    """Return ``scale`` times the part of ``dz`` that is perpendicular to the rows of ``z``, which are unit vectors."""
    if torch.is_grad_enabled():
        return (dz - z * (dz * z).sum(1, keepdim=True)) * scale
    x = dz * z  # one buffer for all steps
    return torch.addcmul(dz, z, x.sum(1, keepdim=True), value=-1, out=x).mul_(scale)


def other_views(z: Tensor, m: int) -> Tensor:
    """Return the similarities of :class:`OtherViews`."""
    views = z.chunk(m)
    if m == 2 and len(views[0]) <= BLOCK:
        return (views[0] * views[1]).sum(1, keepdim=True).repeat(2, 1)
    pos = z.new_empty(m, views[0].shape[0], m - 1)
    for a, b in itertools.combinations(range(m), 2):
        pairs = zip(views[a].split(BLOCK), views[b].split(BLOCK), strict=True)
        pos[a, :, b - 1] = pos[b, :, a] = torch.cat([(x * y).sum(1) for x, y in pairs])
    return pos.flatten(0, 1)


class OtherViews(checks.Once):
    """``(m B, m - 1)`` similarities of each of ``m`` views of ``B`` samples to the sample's other views."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, m: int) -> Tensor:
        ctx.save_for_backward(z)
        ctx.m = m
        return other_views(z, m)

    @staticmethod
    def backward(ctx: Any, d_pos: Tensor) -> Any:
        checks.refuse_second_derivative()
        (z,) = ctx.saved_tensors
        m, dz = ctx.m, torch.zeros_like(z)
        views, d_views, gradients = (x.split(len(z) // m) for x in (z, dz, d_pos))
        for a, b in itertools.combinations(range(m), 2):
            weight = (gradients[a][:, b - 1] + gradients[b][:, a]).unsqueeze(1)
            d_views[a].addcmul_(views[b], weight)
            d_views[b].addcmul_(views[a], weight)
        return dz, None
