"""NCA, MixNCA, the robust term, IntCL and IntNaCl: how each contains the others."""

from __future__ import annotations

import pytest
import torch
from hypothesis import strategies as st
from identities import PRIOR, SEED, T, cosines, prop, same
from specs import of_scores

import counterpoint as cp


@prop(seed=SEED, t=T, prior=PRIOR)
def test_estimators_nest_in_nca(seed, t, prior):
    pos, neg = cosines(seed, positives=3)
    g1 = cp.NCA(t, "g1", prior).from_scores(pos, neg)
    same(cp.NCA(t, "g2", prior, beta=0.0).from_scores(pos, neg), g1, pos, neg)
    same(cp.NCA(t, "g1", 0.0).from_scores(pos, neg), cp.NCA(t, "g0").from_scores(pos, neg), pos, neg)


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
    loss = {lam: of_scores(cp.MixNCA(t, "g0", lam), pos, neg, mixed=(mix, mixneg)) for lam in (0.0, 0.25, 1.0)}
    same(loss[0.25], 0.75 * loss[0.0] + 0.25 * loss[1.0], pos, neg, mix, mixneg)
    odds = mix / t - (mixneg / t).logsumexp(2)
    same(loss[1.0] - loss[0.0], -odds.mean(), mix, mixneg)


@pytest.mark.parametrize("base", ["nca", "mixnca", "both"])
@prop(seed=SEED, t=T)
def test_intnacl_without_robust_term_is_its_base(base, seed, t):
    pos, neg = cosines(seed, positives=2)
    mixed = (cosines(seed + 1, positives=2)[0], torch.stack(cosines(seed + 2, positives=7), 1))
    parts = {"nca": cp.NCA(t), "mixnca": cp.MixNCA(t, lam=0.3)}
    expected = [parts[base]] if base in parts else list(parts.values())
    integrated = cp.IntNaCl(t, base=base, alpha=0.0, lam=0.3)
    same(
        of_scores(integrated, pos, neg, mixed=mixed),
        sum(of_scores(p, pos, neg, mixed=mixed) for p in expected),
        pos,
        neg,
    )


@pytest.mark.parametrize("weight", ["one", "clean"])
@prop(seed=SEED, t=T, alpha=st.floats(0, 2))
def test_intnacl_with_one_positive_is_intcl(weight, seed, t, alpha):
    (pos, neg), (adv, advneg) = cosines(seed), cosines(seed + 1)
    options = {"alpha": alpha, "weight": weight, "prior": 0.1}
    same(
        of_scores(cp.IntNaCl(t, **options), pos, neg, adversarial=(adv, advneg)),
        of_scores(cp.IntCL(t, **options), pos, neg, adversarial=(adv, advneg)),
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
    term = of_scores(cp.Robust(t, robust, weight, prior), pos, neg, **extra)
    expected = named(accurate, t, prior, 1.0).from_scores(pos, neg) + 0.7 * term
    whole = cp.IntCL(t, accurate, robust_estimator=robust, alpha=0.7, weight=weight, prior=prior)
    actual = of_scores(whole, pos, neg, **extra)
    same(actual, expected, pos, neg, adv, advneg)


@prop(seed=SEED, t=T, alpha=st.floats(0, 2))
def test_intcl_with_plain_estimators_is_the_adversarial_loss(seed, t, alpha):
    (pos, neg), (adv, advneg) = cosines(seed), cosines(seed + 1)
    plain = cp.InfoNCE(t)
    same(
        of_scores(
            cp.IntCL(t, "g0", robust_estimator="g0", alpha=alpha, weight="one"), pos, neg, adversarial=(adv, advneg)
        ),
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
    robust = of_scores(cp.Robust(t, detach_weights=detach), pos, neg, adversarial=(pos, neg))
    same(robust, (weight * clean).mean(), pos, neg)
