"""Adversarial and mixed views: inside their box, harmful, and harmless to the encoder's state."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import counterpoint as cp


@pytest.fixture
def encoder():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 8))


@pytest.fixture
def batch():
    return torch.rand(2, 10, 12, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("steps", [1, 5])
def test_attack_raises_the_loss_within_its_box(encoder, batch, steps):
    x1, x2 = batch
    encoder.eval()
    anchor = encoder(x1).detach()
    attacked = cp.views.attack(encoder, anchor, x2, epsilon=0.05, steps=steps, clip=(0, 1))
    assert (attacked - x2).abs().max() <= 0.05 + 1e-6
    assert attacked.min() >= 0
    assert attacked.max() <= 1
    assert not attacked.requires_grad
    noise = torch.randint(0, 2, (50, *x2.shape), generator=torch.Generator().manual_seed(2)) * 0.1 - 0.05
    by_chance = [cp.InfoNCE()(anchor, encoder(x2 + n), pairing="one_way").item() for n in noise]
    assert cp.InfoNCE()(anchor, encoder(attacked), pairing="one_way").item() > max(by_chance)


def test_an_attack_is_no_training_call(encoder, batch):
    loss_fn = cp.ADNCE(cp.Schedule(0.5, 0.1, 10), mu="auto").train()
    state = {k: v.clone() for k, v in loss_fn.state_dict().items()}
    cp.views.attack(encoder, encoder(batch[0]), batch[1], epsilon=0.05, objective=loss_fn, steps=3)
    assert loss_fn.training
    torch.testing.assert_close(dict(loss_fn.state_dict()), state, equal_nan=True)


def test_fgsm_is_one_signed_step():
    x = torch.tensor([[0.2, -0.4, 0.0]])
    got = cp.views.fgsm(lambda x: (x * torch.tensor([[1.0, -2.0, 0.0]])).sum(), x, epsilon=0.1)
    torch.testing.assert_close(got, torch.tensor([[0.3, -0.5, 0.0]]))


def test_pgd_finds_the_corner_of_the_box():
    x = torch.zeros(4, 6)
    target = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    got = cp.views.pgd(
        lambda x: (x * target).sum(), x, epsilon=0.1, steps=10, generator=torch.Generator().manual_seed(1)
    )
    torch.testing.assert_close(got, 0.1 * target.sign())


def test_the_attack_leaves_the_encoder_as_it_was(encoder, batch):
    x1, x2 = batch
    encoder.train()
    encoder[1].eval()  # a frozen layer stays frozen, the others stay in training mode
    state = {k: v.clone() for k, v in encoder.state_dict().items()}
    modes = [m.training for m in encoder.modules()]
    cp.views.attack(encoder, encoder(x1), x2, epsilon=0.1)
    assert [m.training for m in encoder.modules()] == modes
    assert all(torch.equal(v, state[k]) for k, v in encoder.state_dict().items())
    assert all(p.grad is None for p in encoder.parameters())


def test_mix_never_mixes_a_sample_with_itself():
    x = torch.eye(6)
    mixed = cp.views.mix(x, lam=0.7, count=5, generator=torch.Generator().manual_seed(0))
    assert mixed.shape == (6, 5, 6)
    partners = (mixed - 0.7 * x.unsqueeze(1)).argmax(-1)
    for i, row in enumerate(partners.tolist()):
        assert sorted(row) == [j for j in range(6) if j != i]


def test_perturbed_feeds_intnacl_in_one_line(encoder, batch):
    x1, x2 = batch
    loss_fn = cp.IntNaCl(base="mixnca", lam=0.9)
    extra = cp.views.perturbed(encoder, x1, x2, loss_fn, epsilon=0.05, mixed=3)
    assert extra["adversarial"].shape == (10, 8)
    assert extra["mixed"].shape == (10, 3, 8)
    loss = loss_fn(encoder(x1), encoder(x2), **extra)
    loss.backward()
    assert torch.isfinite(loss)
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in encoder.parameters())


def test_composed_objectives_are_mixed_for_by_the_terms_that_look(encoder, batch):
    x1, x2 = batch
    mixnca = cp.MixNCA(lam=0.9)
    composed = (mixnca + 0.1 * cp.DistancePolarization(), cp.ArCL(mixnca), mixnca + cp.IntNaCl(alpha=0))
    wanted, *found = (
        cp.views.perturbed(encoder.eval(), x1, x2, o, mixed=2, generator=torch.Generator().manual_seed(5))["mixed"]
        for o in (mixnca, *composed)
    )
    for got in found:
        torch.testing.assert_close(got, wanted)
    with pytest.raises(ValueError, match=r"different lam \(\[0\.5, 0\.9\]\)"):
        cp.views.perturbed(encoder, x1, x2, mixnca + cp.MixNCA(), mixed=2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: cp.views.pgd(lambda y: y.sum(), x, epsilon=0), "epsilon > 0"),
        (lambda x: cp.views.pgd(lambda y: y.sum(), x.long(), epsilon=0.1), "floating-point"),
        (lambda x: cp.views.mix(x, 0.5, count=len(x)), "batch size - 1"),
        (lambda x: cp.views.mix(x, 1.5), r"lam must be in \[0, 1\]"),
    ],
)
def test_bad_input(batch, call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(batch[0])
