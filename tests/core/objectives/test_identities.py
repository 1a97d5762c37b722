"""What must be equal whatever the numbers: the papers' identities, and every shortcut against its slow definition."""

from __future__ import annotations

import copy
import math
from itertools import combinations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import counterpoint as cp
from counterpoint.hyper import Real
from counterpoint.objectives.adnce import log_weight

SEED = st.integers(0, 2**32 - 1)
T = st.floats(0.05, 2.0)
PRIOR = st.floats(0.0, 0.5)
DENOMINATORS = ["with_positive", "negatives", "mean"]
FAMILIES = ["gaussian", "gamma", "rayleigh", "chi2"]

# every objective and every choice that has a formula of its own
SPECS = [
    *[f"infonce:t=0.3,denominator={d}" for d in DENOMINATORS],
    "infonce:radius=0.1",
    "dcl:t=0.3,prior=0.2",
    "hcl:t=0.3,beta=0.7",
    "hcl:t=0.5,detach_weights=true,denominator=mean",
    *[f"adnce:t=0.3,mu=0.9,weight={w},denominator={d}" for w in FAMILIES for d in (*DENOMINATORS, "all")],
    "adnce:t=0.3,mu=auto,sigma=auto",
    "alphacl:t=0.5",
    "alphacl:t=0.5,power=2.5,normalize=false",
    "mv:t=0.4",
    "dro:radius=0.1",
    "dro:radius=0.1,shared=true",
    "dro:radius=0.1,alpha=0.3",
    "dro:radius=0.2,divergence=chi2",
    "dro:radius=0.2,divergence=chi2,nonneg=false",
    *[f"debpos:t=0.5,aggregation={a}" for a in ("combination", "group_mean", "group_sum")],
    "debpos:t=0.5,prior=0.3,floor=false",
    *[f"nca:t=0.4,estimator={g}" for g in ("g0", "g1", "g2")],
    "nca:t=0.4,count_positives=true",
    "mixnca:t=0.4,lam=0.7",
    "robust:t=0.4",
    "intcl:t=0.4,alpha=0.5",
    "intnacl:t=0.4,base=both",
    *[f"dp:reduction={r}" for r in ("sum", "mean", "mean_full", "batch_sum")],
    "arcl(infonce:t=0.3)",
    "arcl(hcl:t=0.3):denominator=worst",
    "aal(adnce:t=0.3)",
    "infonce:t=0.3 + 0.1*dp",
]
# one anchor's loss depends on the other anchors too
COUPLED = ("radius=0.1", "auto", "shared", "batch_sum")
ADVERSARIAL = ("robust", "intcl", "intnacl")
ALONE = [s for s in SPECS if not (s == "infonce:radius=0.1" or any(c in s for c in COUPLED[1:]))]
WITHOUT_ATTACK = [s for s in SPECS if not s.startswith(ADVERSARIAL)]


def prop(examples: int = 15, **strategies):
    def decorate(test):
        return settings(max_examples=examples, deadline=None, derandomize=True, database=None)(
            given(**strategies)(test)
        )

    return decorate


def cosines(seed: int, anchors: int = 5, positives: int = 1, negatives: int = 7):
    g = torch.Generator().manual_seed(seed)
    return tuple(
        (torch.rand(anchors, k, generator=g, dtype=torch.float64) * 1.9 - 0.95).requires_grad_()
        for k in (positives, negatives)
    )


def embeddings(seed: int, views: int = 2, batch: int = 5, width: int = 4):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(views, batch, width, generator=g, dtype=torch.float64).requires_grad_()


def gradients(value, leaves):
    found = torch.autograd.grad(value, leaves, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]


def same(left, right, *leaves, rtol=1e-9, atol=1e-10):
    """Equal values, and equal gradients with respect to ``leaves``."""
    torch.testing.assert_close(left, right, rtol=rtol, atol=atol)
    if leaves:
        for a, b in zip(gradients(left.sum(), leaves), gradients(right.sum(), leaves), strict=True):
            torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


# ---- 1: the estimators nest ---------------------------------------------------------------------


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


@prop(seed=SEED, t=T, prior=PRIOR)
def test_estimators_nest_in_nca(seed, t, prior):
    pos, neg = cosines(seed, positives=3)
    g1 = cp.NCA(t, "g1", prior).from_scores(pos, neg)
    same(cp.NCA(t, "g2", prior, beta=0.0).from_scores(pos, neg), g1, pos, neg)
    same(cp.NCA(t, "g1", 0.0).from_scores(pos, neg), cp.NCA(t, "g0").from_scores(pos, neg), pos, neg)


@prop(30, seed=SEED, t=st.floats(0.2, 2), prior=st.floats(0, 0.9), beta=st.floats(0, 3))
def test_debiased_estimators_written_out(seed, t, prior, beta):
    pos, neg = cosines(seed, positives=2)
    v, _ = cosines(seed + 1, positives=3)
    e, share = (neg / t).exp(), prior * (v / t).exp().mean(1, keepdim=True)
    hard = (e ** (beta + 1)).sum(1, keepdim=True) / (e**beta).sum(1, keepdim=True)
    for loss_fn, mean in ((cp.DCL(t, prior), e.mean(1, keepdim=True)), (cp.HCL(t, prior, beta), hard)):
        g = ((mean - share) / (1 - prior)).clamp(min=math.exp(-1 / t))
        wanted = torch.log1p(7 * g / (pos / t).exp()).mean()
        same(loss_fn.from_scores(pos, neg, v=v), wanted, pos, neg, v, rtol=1e-8)


@prop(seed=SEED, t=T, prior=PRIOR, beta=st.floats(0, 3))
def test_hcl_detached_weights_change_the_gradient_only(seed, t, prior, beta):
    pos, neg = cosines(seed, positives=2)
    same(
        cp.HCL(t, prior, beta, detach_weights=True).from_scores(pos, neg), cp.HCL(t, prior, beta).from_scores(pos, neg)
    )


# ---- 2, 3: NCA and its sums ---------------------------------------------------------------------


def named(estimator: str, t: float, prior: float, beta: float) -> cp.Objective:
    return {"g0": cp.InfoNCE(t), "g1": cp.DCL(t, prior), "g2": cp.HCL(t, prior, beta)}[estimator]


@pytest.mark.parametrize("estimator", ["g0", "g1", "g2"])
@prop(seed=SEED, t=T, prior=PRIOR, beta=st.floats(0, 3))
def test_nca_with_one_positive_is_the_estimators_own_loss(estimator, seed, t, prior, beta):
    pos, neg = cosines(seed)
    own = named(estimator, t, prior, beta).from_scores(pos, neg)
    same(cp.NCA(t, estimator, prior, beta).from_scores(pos, neg), own, pos, neg)
    same(cp.MixNCA(t, estimator, 0.5, prior, beta).from_scores(pos, neg), own, pos, neg)


@pytest.mark.parametrize("estimator", ["g0", "g1", "g2"])
@prop(seed=SEED, t=T, prior=PRIOR, count=st.integers(2, 5))
def test_nca_with_identical_positives(estimator, seed, t, prior, count):
    pos, neg = cosines(seed)
    own, many = named(estimator, t, prior, 1.0).from_scores(pos, neg), pos.expand(-1, count)
    same(cp.NCA(t, estimator, prior, count_positives=True).from_scores(many, neg), own, pos, neg)
    assert cp.NCA(t, estimator, prior).from_scores(many, neg) < own


@prop(seed=SEED, t=T)
def test_mixed_views_count_as_positive_with_probability_lam(seed, t):
    pos, neg = cosines(seed)
    mix, _ = cosines(seed + 1, positives=2)
    mixneg = torch.stack(cosines(seed + 2, positives=7), 1)
    loss = {lam: cp.MixNCA(t, "g0", lam).from_scores(pos, neg, mixed=(mix, mixneg)) for lam in (0.0, 0.25, 1.0)}
    same(loss[0.25], 0.75 * loss[0.0] + 0.25 * loss[1.0], pos, neg, mix, mixneg)
    odds = mix / t - (mixneg / t).logsumexp(2)
    same(loss[1.0] - loss[0.0], -odds.mean(), mix, mixneg)


@pytest.mark.parametrize("base", ["nca", "mixnca", "both"])
@prop(seed=SEED, t=T)
def test_intnacl_without_robust_term_is_its_base(base, seed, t):
    pos, neg = cosines(seed, positives=2)
    mixed = (cosines(seed + 1, positives=2)[0], torch.stack(cosines(seed + 2, positives=7), 1))
    parts = {"nca": cp.NCA(t), "mixnca": cp.MixNCA(t, lam=0.3)}
    wanted = [parts[base]] if base in parts else list(parts.values())
    integrated = cp.IntNaCl(t, base, alpha=0.0, lam=0.3)
    same(
        integrated.from_scores(pos, neg, mixed=mixed),
        sum(p.from_scores(pos, neg, mixed=mixed) for p in wanted),
        pos,
        neg,
    )


@pytest.mark.parametrize("weight", ["one", "clean"])
@prop(seed=SEED, t=T, alpha=st.floats(0, 2))
def test_intnacl_with_one_positive_is_intcl(weight, seed, t, alpha):
    (pos, neg), (adv, advneg) = cosines(seed), cosines(seed + 1)
    given = {"alpha": alpha, "weight": weight, "prior": 0.1}
    same(
        cp.IntNaCl(t, **given).from_scores(pos, neg, adversarial=(adv, advneg)),
        cp.IntCL(t, **given).from_scores(pos, neg, adversarial=(adv, advneg)),
        pos,
        neg,
        adv,
        advneg,
    )


@pytest.mark.parametrize("weight", ["one", "clean"])
@pytest.mark.parametrize(("accurate", "robust"), [("g0", "g2"), ("g1", "g0"), ("g2", "g1")])
@prop(5, seed=SEED, t=T, prior=PRIOR)
def test_intcl_is_its_estimators_loss_plus_the_robust_term(accurate, robust, weight, seed, t, prior):
    (pos, neg), (adv, advneg) = cosines(seed), cosines(seed + 1)
    extra = {"adversarial": (adv, advneg)}
    term = cp.Robust(t, robust, weight, prior).from_scores(pos, neg, **extra)
    wanted = named(accurate, t, prior, 1.0).from_scores(pos, neg) + 0.7 * term
    found = cp.IntCL(t, accurate, robust, 0.7, weight, prior).from_scores(pos, neg, **extra)
    same(found, wanted, pos, neg, adv, advneg)


@prop(seed=SEED, t=T, alpha=st.floats(0, 2))
def test_intcl_with_plain_estimators_is_the_adversarial_loss(seed, t, alpha):
    (pos, neg), (adv, advneg) = cosines(seed), cosines(seed + 1)
    plain = cp.InfoNCE(t)
    same(
        cp.IntCL(t, "g0", "g0", alpha, "one").from_scores(pos, neg, adversarial=(adv, advneg)),
        plain.from_scores(pos, neg) + alpha * plain.from_scores(adv, advneg),
        pos,
        neg,
        adv,
        advneg,
    )


@pytest.mark.parametrize("detach", [True, False])
@prop(seed=SEED, t=T)
def test_robust_term_of_clean_views_is_the_squared_clean_loss(detach, seed, t):
    pos, neg = cosines(seed)
    clean = cp.HCL(t, 0.01).from_scores(pos, neg, reduction="none")
    weight = clean.detach() if detach else clean
    robust = cp.Robust(t, detach_weight=detach).from_scores(pos, neg, adversarial=(pos, neg))
    same(robust, (weight * clean).mean(), pos, neg)


# ---- 4: ADNCE -----------------------------------------------------------------------------------


@pytest.mark.parametrize("denominator", [*DENOMINATORS, "all"])
@prop(seed=SEED, t=T, mu=st.floats(-1, 2))
def test_adnce_with_equal_weights_is_infonce(denominator, seed, t, mu):
    pos, neg = cosines(seed)
    plain = cp.InfoNCE(t, "with_positive" if denominator == "all" else denominator)
    same(
        cp.ADNCE(t, mu, 1e7, denominator=denominator).from_scores(pos, neg),
        plain.from_scores(pos, neg),
        pos,
        neg,
    )


@pytest.mark.parametrize("family", FAMILIES)
@prop(seed=SEED, mu=st.floats(0.3, 3), sigma=st.floats(0.2, 3))
def test_adnce_weights_have_mean_one_and_the_familys_shape(family, seed, mu, sigma):
    neg = cosines(seed)[1].detach()
    weights = cp.ADNCE(0.5, mu, sigma, family).weights(neg)
    torch.testing.assert_close(weights.sum(1), torch.full((5,), 7.0, dtype=torch.float64))
    x = neg + 1
    density = {
        "gaussian": lambda: torch.exp(-((neg - mu) ** 2) / (2 * sigma**2)),
        "gamma": lambda: x ** (mu - 1) * torch.exp(-x / sigma),
        "rayleigh": lambda: x * torch.exp(-(x**2) / (2 * mu**2)),
        "chi2": lambda: x ** (mu / 2 - 1) * torch.exp(-x / 2),
    }[family]()
    torch.testing.assert_close(weights, density / density.mean(1, keepdim=True), rtol=1e-9, atol=1e-12)
    assert not cp.ADNCE(0.5, mu, sigma, family).weights(neg.clone().requires_grad_()).requires_grad


@pytest.mark.parametrize("denominator", [*DENOMINATORS, "all"])
@prop(seed=SEED, degrees=st.floats(0.5, 6))
def test_chi2_weights_are_gamma_weights(denominator, seed, degrees):
    pos, neg = cosines(seed)
    same(
        cp.ADNCE(0.5, degrees, weight="chi2", denominator=denominator).from_scores(pos, neg),
        cp.ADNCE(0.5, degrees / 2, 2.0, "gamma", denominator).from_scores(pos, neg),
        pos,
        neg,
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("denominator", DENOMINATORS)
@prop(seed=SEED, t=T)
def test_adnce_with_one_negative_is_infonce_unless_the_positive_is_weighted(denominator, family, seed, t):
    pos, neg = cosines(seed, negatives=1)
    plain = cp.InfoNCE(t, denominator).from_scores(pos, neg)
    same(cp.ADNCE(t, 0.7, 0.5, family, denominator).from_scores(pos, neg), plain, pos, neg)
    weighted = cp.ADNCE(t, 0.7, 0.5, family, "all").from_scores(pos, neg, reduction="none")
    assert (weighted - cp.InfoNCE(t).from_scores(pos, neg, reduction="none")).abs().max() > 1e-6


@pytest.mark.parametrize("denominator", [*DENOMINATORS, "all"])
@prop(seed=SEED, t=T, mu=st.floats(-1, 2), sigma=st.floats(0.2, 2))
def test_adnce_is_infonce_with_constant_weights(denominator, seed, t, mu, sigma):
    """Written out with weights computed beforehand: what autograd must see."""
    pos, neg = cosines(seed)
    columns = torch.cat([pos, neg], 1).detach()
    density = torch.exp(-((columns - mu) ** 2) / (2 * sigma**2))
    w_all = density / density.mean(1, keepdim=True)
    w = density[:, 1:] / density[:, 1:].mean(1, keepdim=True)
    e_pos, e_neg = (pos / t).exp(), (neg / t).exp()
    mass = {
        "with_positive": lambda: e_pos.squeeze(1) + (w * e_neg).sum(1),
        "negatives": lambda: (w * e_neg).sum(1),
        "mean": lambda: (w * e_neg).mean(1),
        "all": lambda: (w_all * torch.cat([e_pos, e_neg], 1)).sum(1),
    }[denominator]()
    found = cp.ADNCE(t, mu, sigma, denominator=denominator).from_scores(pos, neg)
    same(found, (mass.log() - pos.squeeze(1) / t).mean(), pos, neg)


# ---- 5, 6, 7: robust optimisation ---------------------------------------------------------------


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


# ---- 8, 9, 10: views ----------------------------------------------------------------------------


@pytest.mark.parametrize("inner", [cp.InfoNCE(0.4), cp.DCL(0.4), cp.HCL(0.4), cp.ADNCE(0.4)], ids=str)
@prop(seed=SEED)
def test_arcl_with_two_views_is_the_objective_on_first_view_anchors(inner, seed):
    z = embeddings(seed)
    per_anchor = inner(*z, reduction="none")
    one, other = cp.ArCL(inner)(z[0], z[1]), cp.ArCL(inner)(z[1], z[0])
    same(one, per_anchor[:5].mean(), z)
    same((one + other) / 2, inner(*z), z)
    same(cp.AAL(inner)(*z), one, z)


@pytest.mark.parametrize("denominator", ["paper", "worst"])
@prop(seed=SEED, views=st.integers(2, 5), t=T)
def test_the_worst_pair_costs_at_least_the_average_pair(denominator, seed, views, t):
    z = embeddings(seed, views)
    arcl = cp.ArCL(cp.InfoNCE(t), denominator)(*z, reduction="none")
    assert (arcl >= cp.AAL(cp.InfoNCE(t), denominator)(*z, reduction="none") - 1e-12).all()
    assert (arcl > 0).all()


@prop(seed=SEED, t=T)
def test_arcl_moco_with_equal_branches_is_moco(seed, t):
    z, queue = embeddings(seed), embeddings(seed + 1, 1, 9)[0]
    views = z.transpose(0, 1)
    kept = cp.ArCL(cp.InfoNCE(t), "worst")(views, views, queue=queue)
    same(kept, cp.InfoNCE(t)(z[0], z[1], queue=queue))
    alone = cp.ArCL(cp.InfoNCE(t))(views, views, queue=queue)
    same(alone, cp.InfoNCE(t, "negatives")(z[0], z[1], queue=queue))


@prop(seed=SEED, views=st.integers(2, 5))
def test_worst_alignment_is_the_largest_squared_distance(seed, views):
    z = embeddings(seed, views).transpose(0, 1)
    unit = F.normalize(z, dim=-1)
    distances = torch.stack([((unit[:, j] - unit[:, k]) ** 2).sum(-1) for j in range(views) for k in range(views)])
    same(cp.worst_alignment(z), distances.amax(0).mean())


@prop(seed=SEED, t=T)
def test_clip_is_the_mean_of_both_simcse_directions(seed, t):
    z = embeddings(seed)
    loss_fn = cp.InfoNCE(t)
    both = (loss_fn(z[0], z[1], pairing="one_way") + loss_fn(z[1], z[0], pairing="one_way")) / 2
    for how in ({}, {"pairing": "one_way"}, {"pairing": "symmetric"}):
        same(loss_fn(*z, symmetric=True, **how), both, z)
    logits, label = F.normalize(z[0], dim=1) @ F.normalize(z[1], dim=1).T / t, torch.arange(5)
    same(both, (F.cross_entropy(logits, label) + F.cross_entropy(logits.T, label)) / 2, z)


@prop(seed=SEED, t=T)
def test_graphcl_is_the_mean_form_plus_a_constant(seed, t):
    z = embeddings(seed)
    graphcl = cp.InfoNCE(t, "negatives")(*z, pairing="one_way")
    same(graphcl, cp.InfoNCE(t, "mean")(*z, pairing="one_way") + math.log(4), z)


@prop(seed=SEED, t=T, prior=st.floats(0.05, 0.95))
def test_debiased_positives_aggregations_agree_on_one_positive(seed, t, prior):
    z = embeddings(seed)
    losses = [cp.DebiasedPositives(t, prior, a) for a in ("combination", "group_mean", "group_sum")]
    for other in losses[1:]:
        same(other(*z), losses[0](*z), z)


@prop(seed=SEED, views=st.integers(3, 4))
def test_debiased_positives_combination_averages_the_pairs_of_views(seed, views):
    z = embeddings(seed, views)
    loss_fn = cp.DebiasedPositives(0.5, 0.2)
    same(loss_fn(*z), torch.stack([loss_fn(a, b) for a, b in combinations(z, 2)]).mean(), z)


@prop(seed=SEED, t=T, prior=st.floats(0.3, 0.9))
def test_debiased_positives_floor_is_idle_where_the_numerator_is_large(seed, t, prior):
    z = embeddings(seed)
    same(cp.DebiasedPositives(t, prior)(*z), cp.DebiasedPositives(t, prior, floor=False)(*z), z)


@pytest.mark.parametrize("t", [0.1, 0.5])
def test_debiased_positives_floor_where_it_is_active(t):
    pos, neg = (torch.full((2, k), s, dtype=torch.float64, requires_grad=True) for k, s in ((1, -0.9), (40, 0.99)))
    loss = cp.DebiasedPositives(t, 0.01).from_scores(pos, neg)
    floor, rest = 0.01 * math.exp(-1 / t), 40 * 0.01 * (neg / t).exp().mean()
    same(loss, -torch.log(floor / (floor + rest)), pos, neg)
    assert not gradients(loss, [pos])[0].any()


# ---- logits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "none"])
@prop(seed=SEED, ignored=st.integers(0, 4))
def test_from_logits_is_cross_entropy(reduction, seed, ignored):
    logits = (cosines(seed, anchors=5, negatives=7)[1] * 20).detach().requires_grad_()
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(7, (5,), generator=g)
    labels[torch.randperm(5, generator=g)[:ignored]] = -100
    found = cp.InfoNCE(1.0).from_logits(logits, labels, reduction=reduction)
    same(found, F.cross_entropy(logits, labels, reduction=reduction), logits)
    moved = torch.where(labels == -100, torch.full_like(labels, -7), labels)
    same(cp.InfoNCE(1.0).from_logits(logits, moved, ignore_index=-7, reduction=reduction), found, logits)


def test_from_logits_takes_the_diagonal_by_default_and_ignores_everything_quietly():
    logits = (cosines(0, negatives=7)[1] * 20).detach().requires_grad_()
    same(cp.InfoNCE(1.0).from_logits(logits), F.cross_entropy(logits, torch.arange(5)), logits)
    nothing = cp.InfoNCE(1.0).from_logits(logits, torch.full((5,), -100))
    assert nothing == 0
    assert not gradients(nothing, [logits])[0].any()


@pytest.mark.parametrize("value", [-math.inf, -1e9, -1e4])
@pytest.mark.parametrize("spec", ["infonce:t=0.5", "adnce:t=0.5", "dcl:t=0.5", "hcl:t=0.5", "mv:t=0.5", "dro", "dp"])
@prop(seed=SEED)
def test_masked_logits_are_no_keys(spec, value, seed):
    pos, neg = cosines(seed, anchors=5, negatives=7)
    loss_fn = cp.objective(spec)
    expected = loss_fn.from_scores(pos, neg)
    own = torch.arange(5)
    matrix = torch.cat([neg[:, :3], pos, torch.full_like(pos, value / 2), neg[:, 3:]], 1)  # scale=2 below
    same(loss_fn.from_logits(2 * matrix, torch.full((5,), 3), scale=2.0), expected, pos, neg)
    if spec not in ("dp", "dro"):  # a mean over positives
        several = torch.zeros(5, 9, dtype=torch.bool)
        several[own, 3] = several[own, 4] = True
        same(loss_fn.from_logits(2 * matrix, several, scale=2.0), expected, pos, neg)


@prop(seed=SEED)
def test_from_logits_with_several_positives_per_row(seed):
    logits = (cosines(seed, negatives=7)[1] * 5).detach().requires_grad_()
    g = torch.Generator().manual_seed(seed)
    labels = torch.rand(5, 7, generator=g) < 0.4
    labels[:, 0], labels[:, 1] = False, True
    labels[2] = False  # a row without positives does not count
    rows = []
    for i in (0, 1, 3, 4):
        others = logits[i][~labels[i]].exp().sum()
        rows.append(torch.stack([-torch.log(x.exp() / (x.exp() + others)) for x in logits[i][labels[i]]]).mean())
    same(cp.InfoNCE(1.0).from_logits(logits, labels), torch.stack(rows).mean(), logits)


@pytest.mark.parametrize("denominator", DENOMINATORS)
@prop(seed=SEED, t=T)
def test_shifted_rows_of_logits_change_nothing(denominator, seed, t):
    logits = (cosines(seed, anchors=5, negatives=5)[1] * 20).detach().requires_grad_()
    loss_fn = cp.InfoNCE(t, denominator)
    shifted = logits - logits.detach().amax(1, keepdim=True)
    same(loss_fn.from_logits(shifted), loss_fn.from_logits(logits), logits, rtol=1e-8)


@pytest.mark.parametrize("spec", WITHOUT_ATTACK)
@prop(4, seed=SEED, scale=st.floats(0.05, 100))
def test_scaled_logits_and_scores_are_the_same(spec, seed, scale):
    s = cosines(seed, negatives=7)[1]
    column = torch.randint(7, (5, 1), generator=torch.Generator().manual_seed(seed))
    rest = torch.ones(5, 7, dtype=torch.bool).scatter(1, column, False)
    wanted = cp.objective(spec).from_scores(s.gather(1, column), s[rest].view(5, 6))
    found = cp.objective(spec).from_logits(s * scale, column.squeeze(1), scale=scale)
    same(found, wanted, s, rtol=1e-7, atol=1e-9)
    same(cp.objective(spec).from_logits(s * scale, ~rest, scale=scale), wanted, s, rtol=1e-7, atol=1e-9)


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


# ---- order and padding --------------------------------------------------------------------------


def extras(seed: int) -> dict:
    """Adversarial and mixed scores for those that need them; the others ignore them."""
    return {
        "adversarial": cosines(seed + 10),
        "mixed": (cosines(seed + 11, positives=2)[0], torch.stack(cosines(seed + 12, positives=7), 1)),
    }


def pick(given: dict, rows) -> dict:
    return {k: tuple(x[rows] for x in pair) for k, pair in given.items()}


@pytest.mark.parametrize("spec", SPECS)
@prop(4, seed=SEED)
def test_the_order_of_samples_and_negatives_does_not_matter(spec, seed):
    g = torch.Generator().manual_seed(seed)
    z, order = embeddings(seed, 4), torch.randperm(5, generator=g)
    loss_fn = cp.objective(spec)
    a, b, adversarial, mixed = z
    found = loss_fn(*z[:2, order], adversarial=adversarial[order], mixed=mixed[order])
    same(found, cp.objective(spec)(a, b, adversarial=adversarial, mixed=mixed), z, rtol=1e-7, atol=1e-9)
    pos, neg = cosines(seed, positives=2)
    columns = torch.argsort(torch.rand(5, 7, generator=g), dim=1)
    shuffled = cp.objective(spec).from_scores(pos, neg.gather(1, columns), **extras(seed))
    same(shuffled, cp.objective(spec).from_scores(pos, neg, **extras(seed)), pos, neg, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("spec", SPECS)
@prop(4, seed=SEED, garbage=st.sampled_from([0.3, 1e6, math.inf, math.nan]))
def test_padding_is_never_looked_at(spec, seed, garbage):
    pos, neg = cosines(seed, positives=2)
    g = torch.Generator().manual_seed(seed)
    spots = [torch.argsort(torch.rand(5, k, generator=g), dim=1) < real for k, real in ((4, 2), (10, 7))]
    padded = [
        torch.full(m.shape, garbage, dtype=torch.float64).masked_scatter(m, x.detach())
        for m, x in zip(spots, (pos, neg), strict=True)
    ]
    wide_pos, wide_neg = (x.requires_grad_() for x in padded)
    found = cp.objective(spec).from_scores(wide_pos, wide_neg, spots[1], pos_mask=spots[0], **extras(seed))
    wanted = cp.objective(spec).from_scores(pos, neg, **extras(seed))
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-10)
    for wide, mask, gradient in zip(gradients(found, padded), spots, gradients(wanted, [pos, neg]), strict=True):
        torch.testing.assert_close(wide[mask].view_as(gradient), gradient, rtol=1e-8, atol=1e-10)
        assert not wide[~mask].any()


@pytest.mark.parametrize("spec", ALONE)
@prop(3, seed=SEED)
def test_ragged_rows_are_what_each_row_is_alone(spec, seed):
    pos, neg = cosines(seed, positives=3)
    g = torch.Generator().manual_seed(seed)
    pos_mask, mask = torch.rand(5, 3, generator=g) < 0.5, torch.rand(5, 7, generator=g) < 0.6
    pos_mask[:, 1] = mask[:, 3] = True
    loss_fn, more = cp.objective(spec), extras(seed)
    found = loss_fn.from_scores(pos, neg, mask, pos_mask=pos_mask, reduction="none", **more)
    rows = [
        loss_fn.from_scores(pos[i, pos_mask[i]][None], neg[i, mask[i]][None], **pick(more, [i]))
        for i in range(len(pos))
    ]
    same(found, torch.stack(rows), pos, neg, rtol=1e-8)


@pytest.mark.parametrize("spec", SPECS)
def test_anchors_without_positives_do_not_count(spec):
    pos, neg = cosines(3, positives=2)
    pos_mask = torch.ones(5, 2, dtype=torch.bool)
    pos_mask[1] = False
    rest, more = [0, 2, 3, 4], extras(3)
    if any(c in spec for c in COUPLED):  # these look at the negatives of all anchors
        neg = neg[:1].detach().expand(5, -1).clone().requires_grad_()
    found = cp.objective(spec).from_scores(pos, neg, pos_mask=pos_mask, **more)
    wanted = cp.objective(spec).from_scores(pos[rest], neg[rest], **pick(more, rest))
    if "shared" in spec:  # its multiplier is one for all rows, but no row may turn the others into NaN
        torch.testing.assert_close(found, wanted)
        assert all(x.isfinite().all() for x in gradients(found, [pos, neg]))
        return
    same(found, wanted, pos, neg, rtol=1e-8)


@pytest.mark.parametrize("spec", [s for s in WITHOUT_ATTACK if "dp" not in s])
@prop(4, seed=SEED)
def test_ids_remove_the_columns_of_duplicates(spec, seed):
    z, ids = embeddings(seed, 2, 6), torch.tensor([4, 9, 4, 1, 9, 4])
    a, b = F.normalize(z, dim=-1)
    known = ids.unsqueeze(1) != ids
    wanted = cp.objective(spec).from_scores((a * b).sum(1), a @ b.T, known)
    found = cp.objective(spec)(z[0], z[1], pairing="one_way", ids=ids)
    same(found, wanted, z, rtol=1e-7, atol=1e-9)


# ---- pairings, against double loops -------------------------------------------------------------


def table(name: str, m: int, n: int, group: list[int], labelled: bool = False):
    """Each anchor's positive pairs, its key pairs, and the pair kept in the denominator, as the table defines them.

    A view of a sample is ``(view, sample)``; samples of the same ``group`` are not each other's negatives.
    """
    first = {"one_way": [(0, range(1, m))], "symmetric": [(0, [1]), (1, [0])], "first_two": [(0, [0, 1]), (1, [0, 1])]}
    sides = {
        **first,
        "views": [(v, range(m)) for v in range(m)],
        "pairs": [(v, pair) for pair in combinations(range(m), 2) for v in pair],
        "arcl": [(0, [0, 1])],
        "single": [(0, [0])],
    }[name]
    for view, key_views in sides:
        for i in range(n):
            anchor = (view, i)
            positives = [(anchor, (w, i)) for w in key_views if w != view]
            if labelled:
                positives = [
                    (anchor, (w, j)) for w in key_views for j in range(n) if group[j] == group[i] and (w, j) != anchor
                ]
            if name == "first_two":
                positives += [(anchor, (w, i)) for w in range(2, m)]
            if name == "arcl":
                positives = [((v, i), (w, i)) for v, w in combinations(range(m), 2)]
            negatives = [(anchor, (w, j)) for w in key_views for j in range(n) if group[j] != group[i]]
            yield positives, negatives, ((0, i), (1, i)) if name == "arcl" else None


def loss_by_loops(rows, score, t: float):
    """InfoNCE of each row of ``table``, term by term."""
    losses = []
    for positives, negatives, kept in rows:
        mass = sum(torch.exp(score(*pair) / t) for pair in negatives)
        terms = []
        for pair in positives or [None]:
            p = torch.zeros((), dtype=torch.float64) if pair is None else score(*pair)
            inside = score(*kept) if kept else p
            terms.append(-p / t + torch.log(torch.exp(inside / t) + mass))
        losses.append(torch.stack(terms).mean())
    return torch.stack(losses)


PAIRINGS = [
    *[(name, m) for name in ("views", "one_way", "first_two", "pairs", "arcl") for m in (2, 3, 4)],
    ("symmetric", 2),
    ("single", 1),
    ("single", 3),
]


@pytest.mark.parametrize("group", [[0, 1, 2, 3], [5, 2, 5, 2]], ids=["distinct", "duplicates"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(("name", "m"), PAIRINGS)
def test_pairings(name, m, normalize, group):
    z = embeddings(m, m, 4)
    ready = F.normalize(z, dim=-1) if normalize else z
    wanted = loss_by_loops(table(name, m, 4, group), lambda a, b: ready[a] @ ready[b], 0.5)
    ids = None if len(set(group)) == 4 else torch.tensor(group)
    how = {"pairing": name, "ids": ids, "normalize": normalize}
    same(cp.InfoNCE(0.5)(*z, reduction="none", **how), wanted, z)
    same(cp.InfoNCE(0.5)(*z, **how), wanted.mean(), z)
    if m > 1:
        same(cp.InfoNCE(0.5)(z.transpose(0, 1), **how), wanted.mean(), z)


@pytest.mark.parametrize(("name", "m"), [("views", 2), ("views", 3), ("one_way", 2), ("one_way", 3)])
def test_labels(name, m):
    """Each sample of the class in turn is the positive, averaged outside the logarithm; other classes are negatives."""
    labels = [1, 0, 1, 2, 1, 0]
    z = embeddings(m, m, 6)
    ready = F.normalize(z, dim=-1)
    wanted = loss_by_loops(table(name, m, 6, labels, labelled=True), lambda a, b: ready[a] @ ready[b], 0.5)
    found = cp.InfoNCE(0.5)(*z, pairing=name, labels=torch.tensor(labels), reduction="none")
    same(found, wanted, z)


@pytest.mark.parametrize("name", ["views", "one_way"])
def test_labels_of_one_sample_each_are_ids(name):
    z, distinct = embeddings(0, 3), torch.arange(5)
    same(cp.HCL()(*z, pairing=name, labels=distinct), cp.HCL()(*z, pairing=name), z)


@pytest.mark.parametrize("views", [1, 2, 3])
@pytest.mark.parametrize("known", [False, True])
def test_queue(views, known):
    """With several views, all pairs of different views are positives and the first view meets the queue."""
    q, k = (embeddings(s, 4, views).requires_grad_() for s in (0, 1))
    queue = embeddings(2, 1, 7)[0].detach().requires_grad_()
    ids, queue_ids = torch.tensor([3, 1, 4, 1]), torch.tensor([3, 3, 1, 8, 9, 4, 0])
    nq, nk, nqueue = (F.normalize(x, dim=-1) for x in (q, k.detach(), queue.detach()))
    losses = []
    for i in range(4):
        mass = sum(torch.exp(nq[i, 0] @ nqueue[n] / 0.5) for n in range(7) if not known or ids[i] != queue_ids[n])
        pairs = [(0, 0)] if views == 1 else [(a, b) for a in range(views) for b in range(views) if a != b]
        terms = [torch.exp(nq[i, a] @ nk[i, b] / 0.5) for a, b in pairs]
        losses.append(torch.stack([-torch.log(e / (e + mass)) for e in terms]).mean())
    how = {"queue": queue, "ids": ids, "queue_ids": queue_ids} if known else {"queue": queue}
    found = cp.InfoNCE(0.5)(q, k, reduction="none", **how)
    same(found, torch.stack(losses), q, k, queue)
    if views == 1:
        same(cp.InfoNCE(0.5)(q[:, 0], k[:, 0], reduction="none", **how), found, q, k, queue)


@pytest.mark.parametrize("known", [None, "ids", "all"])
@pytest.mark.parametrize("weight", [0.0, -0.7, 1.3])
@pytest.mark.parametrize(("views", "each"), [(2, 1), (2, 3), (3, 2)])
def test_hard_negatives(views, each, weight, known):
    """Every sample sees all hard negatives; its own ones count ``e^weight`` times."""
    z, hard = embeddings(0, views, 4), embeddings(1, 4, each)
    nz, nhard = F.normalize(z, dim=-1), F.normalize(hard, dim=-1)
    ids = torch.tensor([3, 1, 3, 2]) if known else torch.arange(4)
    hard_ids = torch.arange(4 * each).view(4, each) % 5
    losses = []
    for i in range(4):
        keys = [(nz[v, j], 0.0) for v in range(1, views) for j in range(4) if ids[j] != ids[i]]
        keys += [
            (nhard[j, n], weight if i == j else 0.0)
            for j in range(4)
            for n in range(each)
            if known != "all" or hard_ids[j, n] != ids[i]
        ]
        mass = sum(torch.exp(nz[0, i] @ key / 0.5 + extra) for key, extra in keys)
        terms = [torch.exp(nz[0, i] @ nz[v, i] / 0.5) for v in range(1, views)]
        losses.append(torch.stack([-torch.log(e / (e + mass)) for e in terms]).mean())
    how = {"ids": ids} if known else {}
    if known == "all":
        how["negative_ids"] = hard_ids
    found = cp.InfoNCE(0.5)(*z, negatives=hard, negative_weight=weight, reduction="none", **how)
    same(found, torch.stack(losses), z, hard)
    if each == 1:
        how = {k: v.view(-1) for k, v in how.items()}
        flat = cp.InfoNCE(0.5)(*z, negatives=hard[:, 0], negative_weight=weight, reduction="none", **how)
        same(flat, found, z, hard)


@pytest.mark.parametrize("spec", [s for s in WITHOUT_ATTACK if "dp" not in s])
def test_a_hard_negative_with_weight_log_2_is_there_twice(spec):
    z, hard, own = embeddings(0), embeddings(1, 1)[0], torch.eye(5, dtype=torch.bool)
    (a, b), nhard = F.normalize(z, dim=-1), F.normalize(hard, dim=-1)
    mask = torch.cat([~own, torch.ones_like(own), own], 1)
    wanted = cp.objective(spec).from_scores((a * b).sum(1), a @ torch.cat([b, nhard, nhard]).T, mask)
    found = cp.objective(spec)(*z, negatives=hard, negative_weight=math.log(2))
    same(found, wanted, z, hard, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("spec", ["dcl:t=0.4", "hcl:t=0.4", "nca:t=0.4,estimator=g1", "debpos:t=0.4", "mixnca:t=0.4"])
@pytest.mark.parametrize("pairing", ["views", "one_way", "first_two", "queue"])
def test_a_prior_per_sample_replaces_the_objectives(spec, pairing):
    z, prior = embeddings(0), torch.tensor([0.02, 0.3, 0.1, 0.05, 0.2], dtype=torch.float64)
    how = {"queue": embeddings(1, 1, 6)[0]} if pairing == "queue" else {"pairing": pairing}
    loss_fn = cp.objective(spec)
    found = loss_fn(*z, prior=prior, reduction="none", **how)
    rows = [loss_fn.replace(prior=float(prior[i % 5]))(*z, reduction="none", **how)[i] for i in range(len(found))]
    same(found, torch.stack(rows), z)


def test_a_prior_per_anchor_of_ready_made_scores():
    pos, neg = cosines(0)
    prior = torch.tensor([0.0, 0.3, 0.1, 0.05, 0.2], dtype=torch.float64)
    found = cp.DCL(0.5).from_scores(pos, neg, prior=prior, reduction="none")
    rows = [cp.DCL(0.5, float(p)).from_scores(pos, neg, reduction="none")[i] for i, p in enumerate(prior)]
    same(found, torch.stack(rows), pos, neg)


def test_distance_polarization_reductions():
    """Over ordered pairs of samples of the first view, against the formula written out."""
    z = embeddings(0, 2, 6)
    unit = F.normalize(z[0], dim=1)
    pairs = [(1 - unit[i] @ unit[j]) / 2 for i in range(6) for j in range(6) if i != j]
    total = sum(torch.clamp((d - 0.1) * (0.5 - d), min=0) for d in pairs)
    for reduction, share in (("sum", 6), ("mean", 30), ("mean_full", 36), ("batch_sum", 1)):
        same(cp.DistancePolarization(reduction=reduction)(*z), total / share, z)
    assert cp.pairs_in_margin(z[0]) == sum(bool(0.1 < d < 0.5) for d in pairs)


# ---- sums ---------------------------------------------------------------------------------------


@prop(seed=SEED, a=st.floats(-2, 2), b=st.floats(-2, 2), c=st.floats(0.1, 2))
def test_sums_are_linear(seed, a, b, c):
    z = embeddings(seed)
    x, y, w = cp.InfoNCE(0.4), cp.HCL(0.4), cp.DistancePolarization()
    vx, vy, vw = (o(*z) for o in (x, y, w))
    same((a * x + y * b)(*z), a * vx + b * vy, z)
    same((c * (a * x + y) + w)(*z), c * (a * vx + vy) + vw, z)
    same(((x + y) + (w + x))(*z), 2 * vx + vy + vw, z)
    pos, neg = cosines(seed)
    same((a * x + b * w).from_scores(pos, neg), a * x.from_scores(pos, neg) + b * w.from_scores(pos, neg), pos, neg)
    same(cp.ArCL(x + a * y)(*z), cp.ArCL(x)(*z) + a * cp.ArCL(y)(*z), z)


def test_each_term_pairs_in_its_own_way():
    z = embeddings(0, 3)
    total = cp.InfoNCE(0.4) + cp.ArCL() + cp.DebiasedPositives() + 0.3 * cp.DistancePolarization()
    same(total(*z), sum(w * part(*z) for w, part in total.terms()), z)
    same(total(*z, pairing="first_two"), sum(w * part(*z, pairing="first_two") for w, part in total.terms()), z)


def test_weights_that_move():
    z = embeddings(0)
    total = cp.InfoNCE(0.4) + cp.Schedule(0.0, 1.0, 4) * cp.DistancePolarization() + cp.Learned(0.5) * cp.HCL(0.4)
    for step in range(6):
        parts = cp.InfoNCE(0.4)(*z), cp.DistancePolarization()(*z), cp.HCL(0.4)(*z)
        same(total(*z), parts[0] + min(step / 4, 1.0) * parts[1] + 0.5 * parts[2], z, rtol=1e-6)
    learned = next(p for p in total.parameters())
    (gradient,) = torch.autograd.grad(total(*z), learned)
    torch.testing.assert_close(gradient.double(), 0.5 * cp.HCL(0.4)(*z), rtol=1e-6, atol=0)


# ---- values that move ---------------------------------------------------------------------------


def moving() -> list[tuple[str, str, dict]]:
    """Every schedulable hyper-parameter of every objective, with what makes it matter."""
    found = []
    for name, kind in cp.registry.items():
        base = {"detach_weight": False} if "detach_weight" in kind.hyper else {}  # else part of the slope is cut
        for key, hyper in kind.hyper.items():
            if isinstance(hyper, Real) and not hyper.fixed:
                found.append((name, key, {**base, "divergence": "chi2"} if (name, key) == ("dro", "scale") else base))
    return [
        *found,
        ("dro", "radius", {"divergence": "chi2"}),
        ("dro", "radius", {"alpha": 0.3}),
        ("dro", "radius", {"shared": True}),
    ]


def start_of(name: str, key: str) -> float:
    default = cp.objective(name)._hyper[key]
    return 0.3 if default is None else default


def tiny_batch() -> tuple[torch.Tensor, dict]:
    z = embeddings(5, 4)
    return z[:2], {"adversarial": z[2], "mixed": z[3]}


MOVING = pytest.mark.parametrize(
    ("name", "key", "more"), moving(), ids=lambda x: str(x) if isinstance(x, str) else "-".join(map(str, x.values()))
)


@MOVING
def test_constant_schedules_and_learned_values_are_numbers(name, key, more):
    (z, extra), kind, value = tiny_batch(), cp.registry[name], start_of(name, key)
    wanted = kind(**{key: value}, **more)(*z, **extra)
    for moving_value in (cp.Schedule(value, value, 3), cp.Learned(value, value / 2, value * 1.5)):
        loss_fn = kind(**{key: moving_value}, **more)
        for _ in range(2):
            torch.testing.assert_close(loss_fn(*z, **extra), wanted, rtol=1e-5, atol=1e-7)


@MOVING
def test_the_gradient_of_a_learned_value_is_the_slope(name, key, more):
    (z, extra), kind, value = tiny_batch(), cp.registry[name], start_of(name, key)
    loss_fn = kind(**{key: cp.Learned(value, value / 2, value * 1.5)}, **more).double()
    (log_value,) = loss_fn.parameters()
    (slope,) = gradients(loss_fn(*z, **extra), [log_value])
    now, h = math.exp(log_value.item()), 1e-5
    above, below = (kind(**{key: now * math.exp(s * h)}, **more)(*z, **extra).item() for s in (1, -1))
    torch.testing.assert_close(slope.item(), (above - below) / (2 * h), rtol=1e-5, atol=1e-8)


def test_a_learned_value_inside_a_wrapper_and_a_sum():
    z = embeddings(0, 3)
    build = [lambda t: 0.5 * cp.ArCL(cp.HCL(t)), lambda t: cp.IntCL(t, alpha=0.0), lambda w: w * cp.DCL()]
    loss_fn = sum((b(cp.Learned(0.4)) for b in build[1:]), start=build[0](cp.Learned(0.4))).double()
    loss_fn(*z).backward()
    found = [p.grad.item() for p in loss_fn.parameters()]
    h, now = 1e-5, math.exp(next(loss_fn.parameters()).item())
    slopes = [(b(now * math.exp(h))(*z) - b(now * math.exp(-h))(*z)).item() / (2 * h) for b in build]
    assert sorted(found) == pytest.approx(sorted(slopes), rel=1e-5)


@pytest.mark.parametrize(
    ("value", "upward", "kept"),
    [
        (0.1, True, False),  # at the lower bound, a step down would leave
        (0.1, False, True),
        (1.0, True, True),
        (1.0, False, False),  # at the upper bound, a step up would leave
        (0.05, True, False),  # beyond the bounds, after a large step
        (0.05, False, True),
        (2.0, True, True),
        (2.0, False, False),
        (0.5, True, True),
        (0.5, False, True),
    ],
)
def test_a_learned_value_at_its_bounds(value, upward, kept):
    """A positive gradient makes descent go down. Only the way further out is closed."""
    learned = cp.Learned(0.5, 0.1, 1.0).double()
    with torch.no_grad():
        learned.log_value.fill_(math.log(value))
    clamped = min(max(value, 0.1), 1.0)
    torch.testing.assert_close(learned().item(), clamped, rtol=1e-12, atol=0)
    (learned() * (1 if upward else -1)).backward()
    wanted = (clamped if upward else -clamped) if kept else 0.0
    torch.testing.assert_close(learned.log_value.grad.item(), wanted, rtol=1e-12, atol=0)


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_schedule(shape):
    loss_fn, z = cp.InfoNCE(cp.Schedule(0.8, 0.2, 5, shape)), embeddings(0)
    for step in range(8):
        done = min(step / 5, 1.0)
        t = 0.8 - 0.6 * (done if shape == "linear" else (1 - math.cos(math.pi * done)) / 2)
        torch.testing.assert_close(loss_fn.temperature.item(), t, rtol=1e-6, atol=0)
        same(loss_fn(*z), cp.InfoNCE(t)(*z), z, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "build",
    [
        lambda s: cp.InfoNCE(s),
        lambda s: cp.ArCL(cp.InfoNCE(s)),
        lambda s: cp.IntCL(s, alpha=0.0),
        lambda s: cp.InfoNCE(s) + s * cp.HCL(s),
        lambda s: cp.ArCL(cp.InfoNCE(s) + cp.HCL()),
    ],
)
def test_a_schedule_takes_one_step_per_training_call(build):
    schedule = cp.Schedule(0.5, 0.1, 10)
    loss_fn, z = build(schedule), embeddings(0)
    loss_fn(*z)
    loss_fn.from_scores(*cosines(0))
    loss_fn.from_logits(cosines(0)[1])
    assert schedule.step == 3
    with torch.no_grad():
        loss_fn(*z)
    loss_fn.eval()(*z)
    assert schedule.step == 3


STATEFUL = [
    "infonce:t=schedule(0.5,0.1,10)",
    "infonce:radius=0.1",
    "adnce:mu=auto,sigma=auto",
    "hcl:t=learned(0.5),radius=0.2",
]


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("spec", STATEFUL)
def test_evaluation_changes_no_state(spec, trained):
    loss_fn = cp.objective(spec)
    if trained:
        loss_fn(*embeddings(0))
    before = copy.deepcopy(loss_fn.state_dict())
    with torch.no_grad():
        in_training_mode = loss_fn(*embeddings(1))
    evaluated = loss_fn.eval()(*embeddings(1))
    assert evaluated.requires_grad
    torch.testing.assert_close(evaluated.detach(), in_training_mode)
    for key, value in loss_fn.state_dict().items():
        torch.testing.assert_close(value, before[key], equal_nan=True, rtol=0, atol=0)


def first_and_second(loss_fn: cp.Objective):
    """Two training batches of ragged scores; the valid negatives of each, and its loss."""
    for seed in (0, 1):
        pos, neg = cosines(seed, 6, 1, 50)
        mask = torch.rand(6, 50, generator=torch.Generator().manual_seed(seed)) < 0.8
        loss = loss_fn.from_scores(pos, neg, mask)
        yield pos, neg, mask, neg.detach()[mask], loss


@pytest.mark.parametrize("q", [0.1, 0.5, 0.9, 0.99])
def test_auto_mu_tracks_the_quantile_of_the_negatives(q):
    loss_fn, tracked = cp.ADNCE(0.5, "auto", quantile=q), None
    for pos, neg, mask, valid, loss in first_and_second(loss_fn):
        new = float(np.quantile(valid.numpy(), q, method="inverted_cdf"))
        tracked = new if tracked is None else 0.9 * tracked + 0.1 * new
        torch.testing.assert_close(loss_fn.tracked_mu.value.item(), tracked, rtol=0, atol=2 / 2048)
        fixed = cp.ADNCE(0.5, loss_fn.tracked_mu.value.item()).from_scores(pos, neg, mask)
        same(loss, fixed, pos, neg, rtol=1e-6, atol=1e-7)


def test_auto_sigma_tracks_the_deviation_of_the_negatives():
    loss_fn, tracked = cp.ADNCE(0.5, 0.7, "auto"), None
    for pos, neg, mask, valid, loss in first_and_second(loss_fn):
        new = float(valid.numpy().std())
        tracked = new if tracked is None else 0.9 * tracked + 0.1 * new
        torch.testing.assert_close(loss_fn.tracked_sigma.value.item(), tracked, rtol=1e-6, atol=0)
        same(loss, cp.ADNCE(0.5, 0.7, tracked).from_scores(pos, neg, mask), pos, neg, rtol=1e-6, atol=1e-7)


def test_a_radius_tracks_the_temperature_that_it_implies():
    loss_fn, tracked = cp.InfoNCE(radius=0.2), None
    for pos, neg, mask, _, loss in first_and_second(loss_fn):
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


def test_log_weight_is_finite_at_the_edge_of_its_support():
    edge = torch.tensor([-1.0 - 1e-7, -1.0, 1.0], dtype=torch.float64)
    for family in FAMILIES:
        for mu in (0.3, 1.0, 2.0):
            assert log_weight(edge, family, mu, 0.5).isfinite().all()
