"""The share of wrong positives from ranks whose mixture is known, and the likelihood ratio of Gaussian pairs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from counterpoint.integrations.advise.wrong_positives import Canonical, ranks, share


def mixture(wrong: float, power: float, count: int = 4000, seed: int = 0) -> Tensor:
    """Ranks of which a share is uniform; the others have the density ``(power + 1) u^power``."""
    u = torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    return torch.where(torch.arange(count) < wrong * count, u, u ** (1 / (power + 1)))


@pytest.mark.parametrize("wrong", [0.0, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("power", [1.5, 5.0, 300.0])
def test_the_uniform_part_is_found(wrong, power):
    found, low, high = share([mixture(wrong, power)])
    assert found == pytest.approx(wrong, abs=0.06 if power < 300 else 0.015)
    assert low <= found <= high


def test_the_tail_alone_is_worse():
    """Storey's plain estimate, from ranks below 0.1, has twice the squared error where right pairs look random, too."""
    covered, squares, plain = 0, 0.0, 0.0
    for seed in range(30):
        u = mixture(0.3, 1.0, 1500, seed)
        found, low, high = share([u])
        covered += low <= 0.3 <= high
        squares += (found - 0.3) ** 2
        plain += (float((u < 0.1).double().mean() / 0.1) - 0.3) ** 2
    assert covered >= 22
    assert squares < plain / 2


def test_the_same_ranks_give_the_same_share():
    torch.manual_seed(1)
    first = share([mixture(0.2, 3.0)])
    state = torch.get_rng_state()
    assert share([mixture(0.2, 3.0)]) == first
    assert torch.equal(torch.get_rng_state(), state)


def test_ranks_among_negatives():
    similar = torch.tensor([[0.9, 0.1, 0.2], [0.3, 0.0, 0.4], [0.5, 0.6, 0.35]])
    assert ranks(similar).tolist() == pytest.approx([6.5 / 7, 0.5 / 7, 3.5 / 7])


def test_the_likelihood_ratio_of_gaussian_pairs():
    """Up to a constant it is the logarithm of the joint density over the product of the marginal ones."""
    generator = torch.Generator().manual_seed(0)
    count, width, r = 60_000, 3, torch.tensor([0.9, 0.6, 0.3])
    x = torch.randn(count, width, generator=generator)
    y = r * x + (1 - r**2).sqrt() * torch.randn(count, width, generator=generator)
    angle = torch.linalg.qr(torch.randn(width, width, generator=generator))[0]
    plain = torch.nn.Identity()
    Canonical._scaled, before = staticmethod(plain), Canonical.__dict__["_scaled"]
    try:
        found = Canonical(x @ angle, y @ angle)((x @ angle)[:50], (y @ angle)[:50])
    finally:
        Canonical._scaled = before
    pairs = torch.stack([x[:50].unsqueeze(1).expand(-1, 50, -1), y[:50].expand(50, -1, -1)], -1)
    joint = sum(
        torch.distributions.MultivariateNormal(torch.zeros(2), torch.tensor([[1.0, c], [c, 1.0]])).log_prob(
            pairs[:, :, i]
        )
        for i, c in enumerate(r.tolist())
    )
    exact = joint - torch.distributions.Normal(0, 1).log_prob(pairs).sum((-1, -2))
    assert torch.corrcoef(torch.stack([exact.flatten(), found.flatten()]))[0, 1] > 0.98


def test_pairs_that_agree_score_higher():
    x = torch.randn(400, 20, generator=torch.Generator().manual_seed(0))
    y = x + 0.5 * torch.randn(400, 20, generator=torch.Generator().manual_seed(1))
    scores = Canonical(x[:300], y[:300])(x[300:], y[300:])
    assert float((ranks(scores) > 0.9).float().mean()) > 0.95
