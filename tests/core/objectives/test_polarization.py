"""Distance polarization, against its formula written out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from identities import embeddings, same

import counterpoint as cp


def test_distance_polarization_reductions():
    """Over ordered pairs of samples of the first view, against the formula written out."""
    z = embeddings(0, 2, 6)
    unit = F.normalize(z[0], dim=1)
    pairs = [(1 - unit[i] @ unit[j]) / 2 for i in range(6) for j in range(6) if i != j]
    total = sum(torch.clamp((d - 0.1) * (0.5 - d), min=0) for d in pairs)
    for reduction, share in (("sum", 6), ("mean", 30), ("mean_full", 36), ("batch_sum", 1)):
        same(cp.DistancePolarization(reduction=reduction)(*z), total / share, z)
    assert cp.pairs_in_margin(z[0]) == sum(bool(0.1 < d < 0.5) for d in pairs)
