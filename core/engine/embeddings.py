"""Normalize and compare the embeddings of a batch in blocks, storing little for the backward pass."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..vectors import are_ordinary, unit_

BLOCK = 1024  # rows that are processed together


class StackedUnit(torch.autograd.Function):
    """:func:`counterpoint.vectors.unit` of several views ``(B, d)``, below one another: ``(m B, d)``.

    Also returns the factors of the rows, ``(m B, 1)``: the gradient is a function of the results, so that autograd can
    differentiate it again.
    """

    @staticmethod
    def forward(ctx: Any, eps: float, dtype: torch.dtype, *views: Tensor) -> tuple[Tensor, Tensor]:
        z, scale = _normalized(ctx, eps, dtype, views)
        ctx.save_for_backward(z, scale)
        return z, scale

    @staticmethod
    def backward(ctx: Any, dz: Tensor | None, d_scale: Tensor | None) -> Any:
        z, scale = ctx.saved_tensors
        return None, None, *_of_views(ctx, z, scale, dz, d_scale)


class Cosines(torch.autograd.Function):
    """The matrix of similarities of views, and those of each sample's views, in one step, which small batches need.

    Args:
        eps, dtype, views: as for :class:`StackedUnit`, whose results come first.
        first: row of the first key. The rows before it are the anchors; if it is 0, all are anchors and keys.
        columns: ``(anchors, P)`` columns of the positives. If they are as many as the rows, the keys are anchors too,
            after the others, with the anchors as their keys.
    """

    @staticmethod
    def forward(
        ctx: Any, eps: float, dtype: torch.dtype, first: int, columns: Tensor, *views: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        z, scale = _normalized(ctx, eps, dtype, views)
        anchors, keys = z.split_with_sizes([first, z.shape[0] - first]) if first else (z, z)
        matrix = anchors.mm(keys.t())
        if columns.shape[0] > matrix.shape[0]:
            matrix = torch.cat([matrix, matrix.T])
        ctx.first = first
        ctx.save_for_backward(z, scale, columns)
        return z, scale, matrix, matrix.gather(1, columns)

    @staticmethod
    def backward(
        ctx: Any, dz: Tensor | None, d_scale: Tensor | None, d_matrix: Tensor | None, d_pos: Tensor | None
    ) -> Any:
        z, scale, columns = ctx.saved_tensors
        n, first = columns.shape[0], ctx.first
        if d_pos is not None:
            wanted = z.new_zeros(n, z.shape[0] - first) if d_matrix is None else d_matrix
            d_matrix = wanted.scatter_add(1, columns, d_pos)
        if d_matrix is not None:
            with checks.exact(z.device):
                if first:
                    anchors, keys = z.split_with_sizes([first, z.shape[0] - first])
                    d_keys = d_matrix if n == first else d_matrix[:first] + d_matrix[first:].t()
                    d_pairs = torch.cat([d_keys.mm(keys), d_keys.t().mm(anchors)])
                else:
                    d_pairs = (d_matrix + d_matrix.t()).mm(z)
            dz = d_pairs if dz is None else dz + d_pairs
        return None, None, None, None, *_of_views(ctx, z, scale, dz, d_scale)


def _normalized(ctx: Any, eps: float, dtype: torch.dtype, views: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
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
    ctx.dtype, ctx.views = views[0].dtype, len(views)
    ctx.set_materialize_grads(False)
    return z, scale


def _of_views(ctx: Any, z: Tensor, scale: Tensor, dz: Tensor | None, d_scale: Tensor | None) -> Any:
    """Return the gradient of each view, ``(B, d)``: the part of ``dz`` across ``z``, over the norm."""
    dz = torch.zeros_like(z) if dz is None else dz
    if z.shape[0] <= BLOCK or torch.is_grad_enabled() or d_scale is not None:
        d_views = _across(dz, z, scale)
        if d_scale is not None:  # of a second derivative
            d_views = d_views - scale**2 * z * d_scale
        d_views = d_views if d_views.dtype == ctx.dtype else d_views.to(ctx.dtype)
        return d_views.chunk(ctx.views)
    d_views = torch.empty_like(z, dtype=ctx.dtype)
    for d_view, *parts in zip(*(x.split(BLOCK) for x in (d_views, dz, z, scale)), strict=True):
        d_view.copy_(_across(*parts))
    return d_views.chunk(ctx.views)


def _across(dz: Tensor, z: Tensor, scale: Tensor) -> Tensor:
    return torch.addcmul(dz, z, (dz * z).sum(1, keepdim=True), value=-1) * scale


class OtherViews(checks.Once):
    """``(m B, m - 1)`` similarities of each of ``m`` views of ``B`` samples to the sample's other views."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, m: int) -> Tensor:
        ctx.save_for_backward(z)
        ctx.m = m
        views = z.split(len(z) // m)
        pos = z.new_empty(m, views[0].shape[0], m - 1)
        for a, b in itertools.combinations(range(m), 2):
            pairs = zip(views[a].split(BLOCK), views[b].split(BLOCK), strict=True)
            pos[a, :, b - 1] = pos[b, :, a] = torch.cat([(x * y).sum(1) for x, y in pairs])
        return pos.flatten(0, 1)

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
