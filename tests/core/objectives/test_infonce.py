"""InfoNCE, DCL and HCL: how they nest, their formulas written out, cross entropy, temperatures and radii."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from identities import DENOMINATORS, PRIOR, SEED, T, cosines, embeddings, prop, same, two_batches
from specs import of_scores

import counterpoint as cp


@pytest.mark.parametrize("denominator", DENOMINATORS)
@prop(seed=SEED, t=T, prior=PRIOR)
def test_hcl_without_hardness_is_dcl_and_without_prior_infonce(denominator, seed, t, prior):
    pos, neg = cosines(seed, positives=2)
    same(
        cp.HCL(t, prior, 0.0, denominator).from_scores(pos, neg),
        cp.DCL(t, prior, denominator).from_scores(pos, neg),
        pos,
        neg,
    )
    infonce = cp.InfoNCE(t, denominator).from_scores(pos, neg)
    same(cp.DCL(t, 0.0, denominator).from_scores(pos, neg), infonce, pos, neg)
    same(cp.HCL(t, 0.0, 0.0, denominator).from_scores(pos, neg), infonce, pos, neg)


@prop(seed=SEED, t=T, sigma=st.floats(0.05, 2))
def test_decoupled_weights_are_the_papers(seed, t, sigma):
    """DCLW (Yeh et al. 2022, Eq. 6 and section 3.3), sample by sample."""
    z = embeddings(seed)
    (a, b), total = F.normalize(z.detach(), dim=-1), 0.0
    mean = sum(math.exp(float(x @ y) / sigma) for x, y in zip(a, b, strict=True)) / len(a)
    for own, other in ((a, b), (b, a)):
        for i in range(len(a)):
            p, rest = float(own[i] @ other[i]), [j for j in range(len(a)) if j != i]
            mass = sum(math.exp(float(own[i] @ keys[j]) / t) for keys in (own, other) for j in rest)
            total += -(2 - math.exp(p / sigma) / mean) * p / t + math.log(mass)
    weight = 2 - len(a) * torch.softmax((a * b).sum(1) / sigma, 0)
    loss = cp.InfoNCE(t, denominator="negatives")(*z, positive_factor=weight)
    assert float(loss.detach()) == pytest.approx(total / (2 * len(a)), rel=1e-10, abs=1e-12)


@prop(30, seed=SEED, t=st.floats(0.2, 2), prior=st.floats(0, 0.9), beta=st.floats(0, 3))
def test_debiased_estimators_written_out(seed, t, prior, beta):
    pos, neg = cosines(seed, positives=2)
    v, _ = cosines(seed + 1, positives=3)
    e, share = (neg / t).exp(), prior * (v / t).exp().mean(1, keepdim=True)
    hard = (e ** (beta + 1)).sum(1, keepdim=True) / (e**beta).sum(1, keepdim=True)
    for loss_fn, mean in ((cp.DCL(t, prior), e.mean(1, keepdim=True)), (cp.HCL(t, prior, beta), hard)):
        g = ((mean - share) / (1 - prior)).clamp(min=math.exp(-1 / t))
        expected = torch.log1p(7 * g / (pos / t).exp()).mean()
        same(of_scores(loss_fn, pos, neg, v=v), expected, pos, neg, v, rtol=1e-8)


@prop(seed=SEED, t=T, prior=PRIOR, beta=st.floats(0, 3))
def test_hcl_detached_weights_change_the_gradient_only(seed, t, prior, beta):
    pos, neg = cosines(seed, positives=2)
    same(
        cp.HCL(t, prior, beta, detach_weights=True).from_scores(pos, neg), cp.HCL(t, prior, beta).from_scores(pos, neg)
    )


@pytest.mark.parametrize("spec", ["dcl:t=0.5,prior=learned({},0,0.5)", "hcl:t=0.5,prior=learned({},0,0.5)"])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_learned_prior_that_reaches_zero_keeps_the_gradient_that_raises_it(spec, sign):
    def gradient(prior):
        loss_fn = cp.objective(spec.format(prior)).double()
        return torch.autograd.grad(sign * loss_fn(*embeddings(0)), [*loss_fn.parameters()])[0]

    expected = gradient(1e-6)
    assert expected.abs() > 0.01
    torch.testing.assert_close(gradient(0), expected.clamp(max=0), rtol=1e-4, atol=0)


@prop(seed=SEED, t=T)
def test_clip_is_the_mean_of_both_simcse_directions(seed, t):
    z = embeddings(seed)
    loss_fn = cp.InfoNCE(t)
    both = (loss_fn(z[0], z[1], pairing="one_way") + loss_fn(z[1], z[0], pairing="one_way")) / 2
    same(loss_fn(*z, pairing="symmetric"), both, z)
    logits, label = F.normalize(z[0], dim=1) @ F.normalize(z[1], dim=1).T / t, torch.arange(5)
    same(both, (F.cross_entropy(logits, label) + F.cross_entropy(logits.T, label)) / 2, z)


@prop(seed=SEED, t=T)
def test_graphcl_is_the_mean_form_plus_a_constant(seed, t):
    z = embeddings(seed)
    graphcl = cp.InfoNCE(t, "negatives")(*z, pairing="one_way")
    same(graphcl, cp.InfoNCE(t, "mean")(*z, pairing="one_way") + math.log(4), z)


@prop(seed=SEED, t=T)
def test_the_temperature_is_the_inverse_scale(seed, t):
    s = cosines(seed, negatives=5)[1]
    same(cp.InfoNCE(t).from_logits(s), cp.InfoNCE(1.0).from_logits(s / t), s)
    same(cp.InfoNCE(t).from_logits(s / t, scale=1 / t), cp.InfoNCE(1.0).from_logits(s / t), s)


@prop(seed=SEED)
def test_temperature_limits(seed):
    pos, neg = cosines(seed)
    cold = 1e-3 * cp.InfoNCE(1e-3, "negatives").from_scores(pos, neg, reduction="none")
    torch.testing.assert_close(cold, neg.amax(1) - pos.squeeze(1), rtol=0, atol=1e-3 * math.log(7))
    hot = cp.InfoNCE(1e8).from_scores(pos, neg)
    torch.testing.assert_close(hot.item(), math.log(8), rtol=1e-7, atol=0)


def test_a_radius_tracks_the_temperature_that_it_implies():
    loss_fn, tracked = cp.InfoNCE(radius=0.2), None
    for pos, neg, mask, _, loss in two_batches(loss_fn):
        variances = [neg[i].detach()[mask[i]].var(unbiased=False).item() for i in range(6)]
        new = math.sqrt(np.mean(variances) / (2 * 0.2))
        tracked = new if tracked is None else 0.9 * tracked + 0.1 * new
        torch.testing.assert_close(loss_fn.tracked_temperature.value.item(), tracked, rtol=1e-6, atol=0)
        same(loss, cp.InfoNCE(tracked).from_scores(pos, neg, mask), pos, neg, rtol=1e-6, atol=1e-7)


def test_a_radius_from_embeddings_is_the_variance_of_all_negatives_per_anchor():
    z = embeddings(0)
    loss_fn = cp.HCL(radius=0.3)
    unit = F.normalize(z.detach().flatten(0, 1), dim=1)
    rows = [torch.stack([unit[i] @ unit[j] for j in range(10) if i % 5 != j % 5]) for i in range(10)]
    t = math.sqrt(np.mean([r.var(unbiased=False).item() for r in rows]) / 0.6)
    same(loss_fn(*z), cp.HCL(t)(*z), z, rtol=1e-6, atol=1e-7)


def test_before_any_training_call_evaluation_uses_the_batch_at_hand():
    pos, neg = cosines(0)
    t = math.sqrt(neg.detach().var(1, unbiased=False).mean().item() / 0.4)
    same(cp.InfoNCE(radius=0.2).eval().from_scores(pos, neg), cp.InfoNCE(t).from_scores(pos, neg), pos, neg, rtol=1e-6)


# Loss and norm of the gradient of steps 1 and 50, by sym_loss of chingyaoc/RINCE at c7f8534: by q and lam.
RINCE = {
    (0.1, 0.01): (-1.728323533786, 1.578862080199, -3.922744780067, 0.120446206152),
    (0.5, 0.025): (-0.929929488019, 1.827856441560, -4.181266166940, 0.137927394391),
    (1.0, 0.5): (5.388540018279, 3.024066018375, 0.207693596203, 2.358290299965),
}


@pytest.mark.parametrize("engine", ["matrix", "tiles:5"])
@pytest.mark.parametrize("case", RINCE)
def test_fifty_steps_of_rince(case, engine):
    draw = torch.Generator().manual_seed(0)
    views = torch.randn(2, 6, 12, generator=draw, dtype=torch.float64)
    weight, found = torch.randn(12, 8, generator=draw, dtype=torch.float64) / 4, []
    for step in range(50):
        weight.requires_grad_()
        loss = cp.RINCE(0.5, q=case[0], lam=case[1])(*(views @ weight), engine=engine)
        (slope,) = torch.autograd.grad(loss, weight)
        weight = (weight - 0.1 * slope).detach()
        if step in (0, 49):
            found += [loss.item(), slope.norm().item()]
    assert found == pytest.approx(RINCE[case], rel=1e-9)
