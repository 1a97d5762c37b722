"""Embeddings of a batch, normalised and compared in blocks and with little to remember."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from .passes import ONCE

BLOCK = 1024  # rows that are normalised together


class Unit(torch.autograd.Function):
    """:func:`counterpoint.vectors.unit` of several views, under one another, in blocks and with little to remember."""

    @staticmethod
    def forward(ctx: Any, eps: float, dtype: torch.dtype, *views: Tensor) -> Tensor:
        z = torch.cat(views).to(dtype)
        length = torch.linalg.vector_norm(z, dim=1, keepdim=True)
        scale = torch.where(length > eps, 1 / length.clamp(min=eps), torch.zeros_like(length))
        ctx.save_for_backward(z.mul_(scale), scale)
        ctx.dtype, ctx.each = views[0].dtype, views[0].shape[0]
        return z

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(ONCE)
        z, scale = ctx.saved_tensors
        out = torch.empty_like(z, dtype=ctx.dtype)
        for part, g, mine, by in zip(*(x.split(BLOCK) for x in (out, gradient, z, scale)), strict=True):
            along = (g * mine).sum(1, keepdim=True)
            part.copy_(torch.addcmul(g, mine, along, value=-1).mul_(by))
        return None, None, *out.split(ctx.each)


class Others(torch.autograd.Function):
    """``(m n, m - 1)`` similarities of each of ``m`` views of ``n`` samples to the sample's other views."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, m: int) -> Tensor:
        ctx.save_for_backward(z)
        ctx.m = m
        views = z.split(len(z) // m)
        found = z.new_empty(m, views[0].shape[0], m - 1)
        for a, b in itertools.combinations(range(m), 2):
            pairs = zip(views[a].split(BLOCK), views[b].split(BLOCK), strict=True)
            found[a, :, b - 1] = found[b, :, a] = torch.cat([(x * y).sum(1) for x, y in pairs])
        return found.flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(ONCE)
        (z,) = ctx.saved_tensors
        m, out = ctx.m, torch.zeros_like(z)
        views, gradients, outs = (x.split(len(z) // m) for x in (z, gradient, out))
        for a, b in itertools.combinations(range(m), 2):
            weight = (gradients[a][:, b - 1] + gradients[b][:, a]).unsqueeze(1)
            outs[a].addcmul_(views[b], weight)
            outs[b].addcmul_(views[a], weight)
        return out, None
