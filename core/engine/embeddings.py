"""Normalize and compare the embeddings of a batch in blocks, storing little for the backward pass."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from .. import checks

BLOCK = 1024  # rows that are processed together


class StackedUnit(torch.autograd.Function):
    """:func:`counterpoint.vectors.unit` of several views ``(B, d)``, below one another: ``(m B, d)``."""

    @staticmethod
    def forward(ctx: Any, eps: float, dtype: torch.dtype, *views: Tensor) -> Tensor:
        z = torch.cat(views).to(dtype)
        norms = torch.linalg.vector_norm(z, dim=1, keepdim=True)
        scale = torch.where(norms > eps, 1 / norms.clamp(min=eps), torch.zeros_like(norms))
        ctx.save_for_backward(z.mul_(scale), scale)
        ctx.dtype, ctx.size = views[0].dtype, views[0].shape[0]
        return z

    @staticmethod
    def backward(ctx: Any, dz: Tensor) -> Any:
        checks.refuse_second_derivative()
        z, scale = ctx.saved_tensors
        d_views = torch.empty_like(z, dtype=ctx.dtype)
        for d_view, g, u, c in zip(*(x.split(BLOCK) for x in (d_views, dz, z, scale)), strict=True):
            along = (g * u).sum(1, keepdim=True)
            d_view.copy_(torch.addcmul(g, u, along, value=-1).mul_(c))  # the part of g across u, over the norm
        return None, None, *d_views.split(ctx.size)


class OtherViews(torch.autograd.Function):
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
