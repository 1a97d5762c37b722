"""How spread out embeddings are: pairwise distances, alignment and uniformity."""

import math

import torch
from torch import Tensor

from .. import checks
from ..vectors import unit, widen


def distances(*views: Tensor) -> Tensor:
    """Compute ``(1 - cos) / 2`` of the pairs ``j > i`` of samples within each view.

    Args:
        views: ``(B, d)`` each.

    >>> import torch, counterpoint as cp
    >>> cp.distances(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]))
    tensor([1.0000, 0.5000, 0.5000])
    """
    if not views:
        raise ValueError("distances: call with the views of a batch, distances(z1, z2).")
    values = []
    for view in views:
        z = _normalized(view, "distances", "(batch, width)")
        above = torch.ones(len(z), len(z), dtype=torch.bool, device=z.device).triu(1)
        values.append(((1 - z @ z.T) / 2).clamp(0, 1)[above])
    return torch.cat(values)


def _normalized(z: Tensor, what: str, expected: str) -> Tensor:
    return unit(widen(checks.require_finite(checks.require_matrix(z, what, expected), what).detach()))


def alignment(first: Tensor, second: Tensor) -> float:
    """Compute ``mean ||x - y||^2`` of positive pairs, the normalized rows of ``first`` and ``second``.

    From 0 (all pairs coincide) to 4. Paper: Wang and Isola 2020, https://arxiv.org/abs/2005.10242.

    >>> alignment(torch.eye(3), torch.eye(3)), alignment(torch.eye(2), -torch.eye(2))
    (0.0, 4.0)
    """
    x, y = (_normalized(z, "alignment", "(pairs, width)") for z in (first, second))
    if x.shape != y.shape:
        raise ValueError(f"alignment: expected equal shapes, got {checks.shape(first)} and {checks.shape(second)}.")
    return (x - y).square().sum(1).mean().item()


def uniformity(z: Tensor, t: float = 2.0) -> float:
    """Compute ``log mean e^{-t ||x - y||^2}`` over all pairs of different rows, normalized.

    From ``-4 t`` for two opposite points up to 0 (all rows coincide); lower is more uniform. Paper: Wang and Isola
    2020, https://arxiv.org/abs/2005.10242.

    >>> round(uniformity(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])), 4)
    -8.0
    """
    d = distances(z)
    if len(d) == 0:
        raise ValueError("uniformity: expected at least 2 rows.")
    return (-4 * t * d).logsumexp(0).sub(math.log(len(d))).item()  # ||x - y||^2 = 4 D
