"""CL-DRO and the mean-variance loss: worst-case weights, multipliers, duals, mutual information."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import strategies as st
from identities import SEED, T, cosines, gradients, prop, same
from specs import keyed, of_tiles

import counterpoint as cp
from counterpoint.objectives.dro import kl_alpha


@prop(seed=SEED, t=T)
def test_scaled_infonce_has_the_worst_case_weights_as_gradient(seed, t):
    pos, neg = cosines(seed)
    (gradient,) = gradients(t * cp.InfoNCE(t, "mean").from_scores(pos, neg), [neg])
    torch.testing.assert_close(gradient, cp.worst_case_weights(neg, t).detach() / len(neg))


@prop(seed=SEED, radius=st.floats(1e-4, 1.5))
def test_kl_dro_is_infonce_at_its_own_temperature(seed, radius):
    pos, neg = cosines(seed)
    a = cp.kl_alpha(neg, radius)
    assert (a > 0).all()
    loss = cp.CLDRO(radius).from_scores(pos, neg, reduction="none").unsqueeze(1)
    rows = [
        x * cp.InfoNCE(float(x), "mean").from_scores(p, n) + x * radius
        for x, p, n in zip(a, pos.split(1), neg.split(1), strict=True)
    ]
    same(loss, torch.stack(rows), pos, neg, rtol=1e-8)
    q = cp.worst_case_weights(neg, a)
    divergence = torch.special.xlogy(q, q * neg.shape[1]).sum(1)
    torch.testing.assert_close(divergence, torch.full_like(divergence, radius), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close((q * neg).sum(1, keepdim=True) - pos, loss, rtol=1e-8, atol=1e-10)
    for factor in (0.9, 1.1):  # any other a is worse
        other = [
            cp.CLDRO(radius, alpha=float(x) * factor).from_scores(p, n)
            for x, p, n in zip(a, pos.split(1), neg.split(1), strict=True)
        ]
        assert (torch.stack(other) > loss.squeeze(1)).all()


def test_the_worst_case_that_reaches_the_largest_negative_is_that_one():
    neg = torch.tensor([[0.3, 0.9, 0.9, -0.2], [0.5, 0.1, 0.2, 0.4]], dtype=torch.float64)
    a = cp.kl_alpha(neg, radius=5.0)
    assert a.eq(0).all()
    want = torch.tensor([[0, 0.5, 0.5, 0], [1, 0, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(cp.worst_case_weights(neg, a), want)
    torch.testing.assert_close(cp.chi2_ratio(neg, 5.0) / 4, want)


def test_functions_of_scores_reduce_half_precision_in_float32():
    neg = torch.rand(3, 5, generator=torch.Generator().manual_seed(0)).half()
    for f in (cp.kl_alpha, cp.chi2_ratio, cp.tau_from_radius, cp.worst_case_weights):
        assert torch.equal(f(neg, 0.1), f(neg.float(), 0.1))
    assert torch.equal(cp.ADNCE(sigma=0.05).weights(neg), cp.ADNCE(sigma=0.05).weights(neg.float()))
    assert torch.equal(cp.mutual_information(neg[:, 0], neg), cp.mutual_information(neg[:, 0].float(), neg.float()))


@prop(seed=SEED, radius=st.floats(1e-3, 1.0))
def test_kl_dro_with_a_shared_multiplier(seed, radius):
    pos, neg = cosines(seed)
    a = cp.kl_alpha(neg, radius, shared=True)
    assert len(a.unique()) == 1
    q = cp.worst_case_weights(neg, a)
    divergence = torch.special.xlogy(q, q * neg.shape[1]).sum(1).mean()
    torch.testing.assert_close(divergence.detach(), torch.tensor(radius, dtype=torch.float64), rtol=1e-8, atol=1e-10)
    same(
        cp.CLDRO(radius, shared=True).from_scores(pos, neg),
        cp.CLDRO(radius, alpha=float(a[0])).from_scores(pos, neg),
        pos,
        neg,
        rtol=1e-8,
    )


def test_a_threshold_between_two_numbers_of_float32_keeps_its_digits():
    """Found by fuzzing nearly collapsed embeddings: no negative was above the threshold, and the value was zero."""
    neg = 1 - torch.tensor([[2.0, 0, 12, 7]]) * 2**-24
    loss_fn = cp.CLDRO(0.94, "chi2", scale=0.4)
    exact = loss_fn.from_scores(torch.zeros(1, 1).double(), neg.double())
    torch.testing.assert_close(loss_fn.from_scores(torch.zeros(1, 1), neg), exact.float(), rtol=1e-6, atol=0)
    ratio = cp.chi2_ratio(neg, 0.94, 0.4)
    torch.testing.assert_close(ratio, cp.chi2_ratio(neg.double(), 0.94, 0.4).float(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("divergence", ["kl", "chi2"])
@pytest.mark.parametrize("ties", [1, 2, 3])
def test_a_large_radius_reaches_the_largest_negative(divergence, ties):
    pos, neg = (x.detach() for x in cosines(0, negatives=6))
    neg[:, :ties] = 0.97
    neg.requires_grad_()
    edge = math.log(6 / ties) if divergence == "kl" else 0.25 * (6 / ties - 1)
    beyond = cp.CLDRO(edge * 1.0001, divergence).from_scores(pos, neg)
    torch.testing.assert_close(beyond.detach(), 0.97 - pos.mean())
    (gradient,) = gradients(beyond, [neg])
    torch.testing.assert_close(gradient[:, :ties], torch.full((5, ties), 1 / (5 * ties), dtype=torch.float64))
    assert cp.CLDRO(edge * 0.99, divergence).from_scores(pos, neg) < beyond - 1e-6


@prop(seed=SEED, t=st.floats(15, 60))
def test_scaled_infonce_is_mean_variance_up_to_the_third_cumulant(seed, t):
    pos, neg = cosines(seed)
    centred = neg - neg.mean(1, keepdim=True)
    third = (centred**3).mean() / (6 * t**2)
    rest = t * cp.InfoNCE(t, "mean").from_scores(pos, neg) - cp.MeanVariance(t).from_scores(pos, neg) - third
    fourth = ((centred**4).mean(1) - 3 * (centred**2).mean(1) ** 2).mean() / (24 * t**3)
    assert abs(rest - fourth) < 0.05 / t**4 + 1e-12


@prop(seed=SEED)
def test_temperature_from_a_small_radius(seed):
    neg = cosines(seed)[1]
    for radius, error in ((1e-4, 0.05), (1e-8, 5e-4)):
        ratio = cp.tau_from_radius(neg, radius) / cp.kl_alpha(neg, radius)
        torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=error, atol=0)


@prop(seed=SEED, reach=st.sampled_from([0.3, 0.9, 1.2, 2.0]), scale=st.floats(0.1, 2))
def test_chi2_closed_form_holds_while_no_ratio_is_negative(seed, reach, scale):
    pos, neg = cosines(seed, anchors=1, negatives=8)
    depth = (neg.mean() - neg.min()).detach()
    radius = float(scale * neg.detach().var(unbiased=False) * (reach / depth) ** 2)  # the smallest ratio is 1 - reach
    exact = cp.CLDRO(radius, "chi2", scale=scale).from_scores(pos, neg)
    closed = cp.CLDRO(radius, "chi2", scale=scale, nonneg=False).from_scores(pos, neg)
    if reach < 1:
        same(exact, closed, pos, neg, rtol=1e-8)
    else:
        assert closed > exact + 1e-9


@prop(seed=SEED, radius=st.floats(0.01, 0.9), scale=st.floats(0.2, 1))
def test_chi2_solution_is_feasible_and_meets_its_dual(seed, radius, scale):
    pos, neg = cosines(seed)
    loss = cp.CLDRO(radius, "chi2", scale=scale).from_scores(pos, neg)
    ratio = cp.chi2_ratio(neg, radius, scale).detach()
    assert (ratio >= 0).all()
    torch.testing.assert_close(ratio.mean(1), torch.ones(5, dtype=torch.float64))
    assert (scale * ((ratio - 1) ** 2).mean(1) <= radius + 1e-9).all()
    same(loss, (ratio * neg).mean() - pos.mean(), pos, neg, rtol=1e-8)

    lam = torch.logspace(-1.5, 1.5, 80, dtype=torch.float64).view(-1, 1, 1, 1)
    level = torch.linspace(-2, 1.5, 80, dtype=torch.float64).view(-1, 1, 1)
    y = (neg.detach() - level) / lam
    conjugate = torch.where(y >= -2 * scale, y + y**2 / (4 * scale), torch.full_like(y, -scale)).mean(-1)
    bounds = lam.squeeze(-1) * (radius + conjugate) + level.squeeze(-1)
    gap = bounds.flatten(0, 1).amin(0) - (ratio * neg.detach()).mean(1)
    assert (gap > -1e-9).all()
    assert (gap < 0.02).all()


@prop(seed=SEED, t=T)
def test_mutual_information(seed, t):
    pos, neg = cosines(seed)
    same(cp.mutual_information(pos, neg, temperature=t), -t * cp.InfoNCE(t, "mean").from_scores(pos, neg), pos, neg)
    # min over levels of  level + E[phi*(s - level)]  with phi* = x + x^2
    levels = torch.cat([torch.linspace(-1, 1, 41, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)])
    levels = levels.expand(len(neg), -1).clone()
    levels[:, -1] = neg.detach().mean(1)
    y = neg.unsqueeze(1) - levels.unsqueeze(2)
    best = (levels + (y + y**2).mean(2)).min(1)
    assert (best.indices == 41).all()
    same(cp.mutual_information(pos, neg, "chi2"), pos.mean() - best.values.mean(), pos, neg)


def test_negatives_that_are_equal_up_to_rounding():
    """A third of them are the largest, almost; the radius is just beyond log 3."""
    neg = torch.tensor([[1.0, 1 - 2**-53, -1.0, -1.0, -1.0, -1.0]], dtype=torch.float64)
    loss = cp.CLDRO(radius=math.log(3) + 5e-4).from_scores(torch.zeros(1, 1, dtype=torch.float64), neg)
    assert loss.item() == pytest.approx(1.0, abs=1e-15)


def test_two_clusters_of_negatives():
    """The divergence hardly changes between temperatures that tell the clusters and those that tell their members."""
    s = torch.tensor([[1.17, 2.3087, 2.3112, 2.3097, 2.3090, 2.3128]], dtype=torch.float64)
    share = torch.tensor([[21.9, 3.97, 0.43, 32.3, 17.6, 0.56]], dtype=torch.float64)
    neg = cp.MatrixNegatives(s, log_weight=share.log())
    share = share / share.sum()
    for radius in torch.linspace(0.05, 4.5, 40).tolist():
        a = kl_alpha(neg, radius)
        worst = (share.log() + s / a).softmax(1)
        assert float((worst * (worst / share).clamp(min=1e-300).log()).sum()) == pytest.approx(radius, rel=1e-9)


def test_an_anchor_with_one_negative_leaves_the_gradients_of_others_alone():
    """Weights round the mean of one negative: the slope of the square root, then arbitrary, was 1e15."""
    draw = torch.Generator().manual_seed(0)
    loss_fn = cp.CLDRO(0.005, divergence="chi2", scale=0.1, nonneg=False)
    for _ in range(30):
        z, hard = torch.randn(2, 5, 4, generator=draw, dtype=torch.float64), torch.randn(5, 4, generator=draw).double()
        how = {"negatives": hard, "hardness": ("in_batch_negatives", 9.0), "empty": "zero"}
        how |= {
            "log_q": -3 + torch.randn(5, generator=draw).double(),
            "negative_log_q": -3 + torch.randn(5, 1, generator=draw).double(),
        }
        how |= {"false_negatives": cp.threshold(-0.47), "pairing": "joint"}
        found = []
        for tile in (0, 2):
            leaves = [x.clone().requires_grad_() for x in z]
            found.append(torch.autograd.grad(loss_fn(*leaves, engine=of_tiles(tile), **keyed(how)), leaves))
        torch.testing.assert_close(*found, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("engine", ["matrix", "tiles:2"])
def test_the_largest_negative_has_hardly_any_weight(engine):
    """It is drawn e^50 times more often than another key, and a little more similar: there, the worst case lies."""
    s, weight = (torch.tensor(x, dtype=torch.float64) for x in ([0.5, 0.45, 0.1], [0.0, 50.0, 0.0]))
    anchors, keys = (torch.stack([x, 0 * x], 1) for x in (torch.ones_like(s), s))
    how = {"pairing": "one_way", "normalize": False, "reduction": "none", "engine": engine}
    b = torch.linspace(-5, 25, 100_001, dtype=torch.float64).exp().unsqueeze(1)
    expected = []
    for i in range(3):
        others = torch.arange(3) != i
        inner = (b * s[others] + weight[others].log_softmax(0)).logsumexp(1, keepdim=True)
        expected.append(float(((0.1 + inner) / b).min() - s[i]))
    assert cp.CLDRO(0.1)(anchors, keys, log_q=-weight, **how).tolist() == pytest.approx(expected, abs=1e-6)
