"""What ``--verify`` compares: value and gradient of the host's own loss, and of the objective that should equal it.

Two correct implementations differ by rounding. How much of a difference that explains depends on the lowest precision
in which either was computed, :data:`ROUNDING`; a larger one is an error. Values are compared relative to the host's,
and gradients to its largest entry. A loss near zero is a difference of nearly equal numbers, so that its gradient has
fewer digits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

ROUNDING = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""The largest relative difference of values. Temperatures that are typed with six digits differ by less, too."""
GRADIENTS = 10  # times as much
SMALL = 0.1  # below this, a loss is compared as if it were this large
NEAR_ZERO = 3e-3  # below this, gradients lose digits


def precision_of(tensors: Iterable[object]) -> torch.dtype:
    """Return the lowest precision in which a loss of these tensors is computed here."""
    floating = [x for x in tensors if isinstance(x, Tensor) and x.is_floating_point()]
    dtypes = {x.dtype for x in floating}
    dtypes |= {torch.get_autocast_dtype(x.device.type) for x in floating if _autocasts(x)}
    return max(dtypes & ROUNDING.keys(), key=ROUNDING.__getitem__, default=torch.float32)


def _autocasts(x: Tensor) -> bool:
    return torch.is_autocast_enabled(x.device.type)


def problem(ours: float, theirs: float, gradient: float | None, dtype: torch.dtype, names: tuple[str, str]) -> str:
    """Say in words what differs by more than rounding explains, or return "".

    Args:
        ours, theirs: the losses.
        gradient: the largest difference of gradients, relative, if they were compared.
        dtype: the precision.
        names: of the objective and of the host's loss.
    """
    allowed, word = ROUNDING[dtype], str(dtype).removeprefix("torch.")
    gap = abs(ours - theirs)
    if not (math.isfinite(theirs) and gap <= allowed * max(abs(theirs), SMALL)):  # NaN is a difference
        share = f", by {gap / max(abs(theirs), 1e-30):.2g} of it," if math.isfinite(gap) else ""
        return f"{names[1]} is {theirs:.6g} and {names[0]} {ours:.6g}{share} where {word} explains {allowed:g}"
    lost = max(1.0, NEAR_ZERO / max(abs(theirs), 1e-30))
    if gradient is not None and not gradient <= GRADIENTS * allowed * lost:
        return (
            f"the values of {names[1]} and of {names[0]} agree, but their gradients differ by {gradient:.2g} of the "
            f"largest entry, where {word} explains {GRADIENTS * allowed * lost:.2g}"
        )
    return ""


def gradients(loss: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of ``loss``, zero where it does not depend on a tensor; the graph is kept.

    Rows of unit length have been normalized, so that the part of their gradient that changes the length goes nowhere.
    It is left out: of two losses, one may normalize once more.
    """
    found = torch.autograd.grad(loss, tensors, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(x) if g is None else along(g, x.detach()) for x, g in zip(tensors, found, strict=True)]


def depends(loss: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Return whether ``loss`` has a gradient with respect to any of the tensors; the graph is kept."""
    if not loss.requires_grad:
        return False
    found = torch.autograd.grad(loss, tensors, retain_graph=True, allow_unused=True)
    return any(g is not None for g in found)


def along(gradient: Tensor, x: Tensor) -> Tensor:
    """Leave out the part of a gradient that changes the length of rows of unit length."""
    if x.dim() < 2 or x.shape[-1] < 2 or not x.numel():
        return gradient
    if float((x.norm(dim=-1) - 1).abs().max()) > ROUNDING[precision_of([x])]:
        return gradient
    return gradient - (gradient * x).sum(-1, keepdim=True) * x


def difference(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """Return the largest difference of gradients, relative to the largest entry of the host's."""
    largest = max(float(g.abs().max()) for g in theirs)
    return max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True)) / max(largest, 1e-30)
