"""Normalize embeddings, and choose their precision."""

import warnings

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
    warn_of_zeros(z, name)
    largest = largest_entry(z.detach())
    slope = 1 / largest.clamp(min=eps)
    z = z * slope + z.detach() * (1 / largest - slope)  # z / largest, with a gradient that does not overflow
    return z * inverse_norms(z)


def warn_of_zeros(z: Tensor, name: str) -> None:
    if name and checks.wanted(z) and (zeros := int((z == 0).all(-1).sum())):
        why = "without a direction their similarities are 0, and they get no gradient"
        warnings.warn(f"{name}: {zeros} of {z[..., 0].numel()} rows are zero: {why}.", stacklevel=2)


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
