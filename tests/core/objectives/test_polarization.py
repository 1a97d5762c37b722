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


def test_moments_of_the_spread_leave_out_anchors_without_negatives():
    z = torch.randn(10, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    loss = cp.SpreadOut()(z, false_negatives=cp.threshold(-0.5), empty="zero")

    s = F.normalize(z, dim=1) @ F.normalize(z, dim=1).T
    kept = (s < -0.5).to(s.dtype)  # not the diagonal, which is 1
    counted = kept.sum(1) > 0
    assert 0 < counted.sum() < 10
    m1, m2 = (((x * kept).sum(1)[counted] / kept.sum(1)[counted]).mean() for x in (s, s * s))
    expected = counted.to(s.dtype).mean() * (m1**2 + (m2 - 1 / 4).clamp(min=0))  # the others' loss is zero
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, z), torch.autograd.grad(expected, z))
