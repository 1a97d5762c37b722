"""Normalize embeddings, and choose their precision."""

from __future__ import annotations

import torch
from torch import Tensor

# A vector that is not longer has no direction: its cosine and its gradient are zero.
EPS = 1e-8

EPS_HALF = 1e-4  # in float16 the gradient, one over the length, overflows below


def unit(z: Tensor, eps: float = EPS) -> Tensor:
    """Scale rows to length one; rows not longer than ``eps`` become zero, with zero gradient."""
    length = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    return z * torch.where(length > eps, 1 / length.clamp(min=eps), torch.zeros_like(length))


def widen(z: Tensor) -> Tensor:
    """Convert half precision to float32; float32 and float64 stay."""
    return z.float() if z.dtype in (torch.float16, torch.bfloat16) else z
