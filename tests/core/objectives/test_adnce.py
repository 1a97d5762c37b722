"""ADNCE: its weights, where it equals InfoNCE, and what "auto" tracks."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from identities import DENOMINATORS, FAMILIES, SEED, T, cosines, prop, same, two_batches
from specs import of_tiles

import counterpoint as cp
from counterpoint.objectives.adnce import log_weight


@pytest.mark.parametrize("denominator", [*DENOMINATORS, "all"])
@prop(seed=SEED, t=T, mu=st.floats(-1, 2))
def test_adnce_with_equal_weights_is_infonce(denominator, seed, t, mu):
    pos, neg = cosines(seed)
    plain = cp.InfoNCE(t, "with_positive" if denominator == "all" else denominator)
    same(cp.ADNCE(t, mu, 1e7, denominator=denominator).from_scores(pos, neg), plain.from_scores(pos, neg), pos, neg)


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
    """The formula, with weights that autograd sees as constants."""
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
    actual = cp.ADNCE(t, mu, sigma, denominator=denominator).from_scores(pos, neg)
    same(actual, (mass.log() - pos.squeeze(1) / t).mean(), pos, neg)


@pytest.mark.parametrize("q", [0.1, 0.5, 0.9, 0.99])
def test_auto_mu_tracks_the_quantile_of_the_negatives(q):
    loss_fn, tracked = cp.ADNCE(0.5, "auto", quantile=q), None
    for pos, neg, mask, valid, loss in two_batches(loss_fn):
        new = float(np.quantile(valid.numpy(), q, method="inverted_cdf"))
        tracked = new if tracked is None else 0.9 * tracked + 0.1 * new
        torch.testing.assert_close(loss_fn.tracked_mu.value.item(), tracked, rtol=0, atol=2 / 2048)
        fixed = cp.ADNCE(0.5, loss_fn.tracked_mu.value.item()).from_scores(pos, neg, mask)
        same(loss, fixed, pos, neg, rtol=1e-6, atol=1e-7)


def test_auto_sigma_tracks_the_deviation_of_the_negatives():
    loss_fn, tracked = cp.ADNCE(0.5, 0.7, "auto"), None
    for pos, neg, mask, valid, loss in two_batches(loss_fn):
        new = float(valid.numpy().std())
        tracked = new if tracked is None else 0.9 * tracked + 0.1 * new
        torch.testing.assert_close(loss_fn.tracked_sigma.value.item(), tracked, rtol=1e-6, atol=0)
        same(loss, cp.ADNCE(0.5, 0.7, tracked).from_scores(pos, neg, mask), pos, neg, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("s", [-1.0, -1.5])
def test_a_negative_where_the_density_vanishes_has_no_weight(s):
    pos, neg = torch.tensor([[0.5]]), torch.tensor([[s, 1.0]])
    for family in ("gamma", "rayleigh", "chi2"):
        mu = 4.0 if family == "chi2" else 2.0
        loss_fn = cp.ADNCE(0.5, mu, 0.05, family, "negatives")
        # two weights, 0 and 2
        assert loss_fn.from_scores(pos, neg).item() == pytest.approx(1 + math.log(2), abs=1e-6)
        assert loss_fn.weights(neg).tolist() == [[0.0, 2.0]]
        # a density that is infinite there gives that negative all the weight
    infinite = cp.ADNCE(0.5, 0.5, 1.0, "gamma").weights(torch.tensor([[-1.0, 1.0]]))
    assert infinite[0, 0] > 1.99


@pytest.mark.parametrize(("family", "mu"), [("gamma", 2.0), ("rayleigh", 2.0), ("chi2", 4.0)])
@pytest.mark.parametrize("denominator", ["negatives", "all"])
@pytest.mark.parametrize("neg", [[-1.0, 900.0], [-1.0, -1.0], [-1.0, 3e4, 3.1e4]])
def test_the_tail_of_a_density_outweighs_where_it_vanishes(neg, denominator, family, mu):
    """Compared with the formula in logarithms. Where all weights are zero, they are equal."""
    p, t = 0.5, 0.5

    def log_density(s):
        x = s + 1.0
        decay = {"gamma": x, "rayleigh": x**2 / (2 * mu**2), "chi2": x / 2}[family]
        return math.log(x) - decay if x > 0 else -math.inf

    def logsumexp(exponents):
        top = max(exponents)
        return top + math.log(sum(math.exp(x - top) for x in exponents))

    keys = [p, *neg] if denominator == "all" else neg
    log_w = [log_density(s) for s in keys]
    if max(log_w) == -math.inf:
        log_w = [0.0] * len(keys)
    mass = logsumexp([w + s / t for w, s in zip(log_w, keys, strict=True)]) - logsumexp(log_w) + math.log(len(keys))
    loss = cp.ADNCE(t, mu, 1.0, family, denominator).from_scores(torch.tensor([[p]]), torch.tensor([neg]))
    assert loss.item() == pytest.approx(mass - p / t, rel=1e-6)


def test_the_density_is_exact_next_to_where_it_is_infinite():
    x = 1e-8
    log_w = log_weight(torch.tensor([x - 1, 0.0], dtype=torch.float64), "gamma", 0.25, 0.5)
    expected = -0.75 * math.log(x) - x / 0.5 - (0.0 - 1 / 0.5)
    assert (log_w[0] - log_w[1]).item() == pytest.approx(expected, rel=1e-8)  # x has eight digits, and its clamp none
    assert log_w[0].item() == pytest.approx(-0.75 * math.log((x - 1) + 1) - ((x - 1) + 1) / 0.5, rel=1e-14)


@pytest.mark.parametrize("tile", [0, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_gradient_is_exact_where_the_positive_is_nearly_all_of_the_denominator(dtype, tile):
    """The positives' share is 1 - 1e-20: from it, no gradient could be told from zero."""
    z = torch.zeros(2, 4, 8, dtype=dtype)
    z[:, range(4), range(4)] = 1.0
    z[1, range(4), range(4, 8)] = 0.5  # cosines of a positive .894, of negatives 0
    z[..., 7] += 0.125
    leaves = [z.clone().requires_grad_(), z.double().requires_grad_()]
    loss_fn = cp.ADNCE(0.02, 0.7, 1.0, denominator="all")
    (ours,) = torch.autograd.grad(loss_fn(*leaves[0], pairing="one_way", engine=of_tiles(tile)), leaves[0])

    a, b = torch.nn.functional.normalize(leaves[1], dim=2)
    s = a @ b.T
    w = torch.exp(-((s.detach() - 0.7) ** 2) / 2)
    gaps = (s - s.diagonal().unsqueeze(1)) / 0.02
    others = ~torch.eye(4, dtype=torch.bool)
    shares = (w / w.diagonal().unsqueeze(1) * gaps.exp())[others]
    (exact,) = torch.autograd.grad(torch.log1p(shares.view(4, 3).sum(1)).mean(), leaves[1])
    assert 0 < exact.abs().max() < 1e-14
    torch.testing.assert_close(ours.double(), exact, rtol=0, atol=1e-3 * exact.abs().max().item())


@pytest.mark.parametrize("checks", ["auto", "never"])
@pytest.mark.parametrize("tile", [0, 4])
@pytest.mark.parametrize("denominator", [*DENOMINATORS, "all"])
def test_similarities_of_millions_keep_their_digits(denominator, tile, checks):
    """Their weights are exponentials of -1e12, in a matrix, in tiles, and where values are not read."""
    z = 1e3 * torch.randn(2, 12, 8, generator=torch.Generator().manual_seed(3))
    loss_fn = cp.ADNCE(0.5, 0.7, 0.5, denominator=denominator)
    expected = loss_fn(*z.double(), engine="matrix", normalize=False)
    cp.set_checks(checks)
    try:
        single = loss_fn(*z, engine=of_tiles(tile), normalize=False)
    finally:
        cp.set_checks("auto")
    assert single.item() == pytest.approx(expected.item(), rel=3e-6)


@pytest.mark.parametrize("tile", [0, 4])
@pytest.mark.parametrize("sigma", [0.003, 0.01])
def test_cosines_with_a_narrow_density_keep_their_digits_where_values_are_not_read(sigma, tile):
    """As on a GPU: the exponents of cosines are bounded, but not by little."""
    z = torch.randn(2, 64, 256, generator=torch.Generator().manual_seed(3))
    loss_fn = cp.ADNCE(0.5, 0.7, sigma)
    cp.set_checks("never")
    try:
        single = loss_fn(*z, engine=of_tiles(tile), reduction="none")
    finally:
        cp.set_checks("auto")
    exact = loss_fn(*z.double(), engine="matrix", reduction="none")
    torch.testing.assert_close(single.double(), exact, rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("family", ["gamma", "rayleigh", "chi2"])
def test_weights_that_all_vanish_where_values_are_not_read(family):
    """Queries opposite to all documents, where the density is zero: weights are equal, and so the loss is log 2."""
    queries, documents = torch.ones(2, 1), -torch.ones(2, 1)
    loss_fn = cp.ADNCE(0.02, 4.0, 1.3, family, denominator="all")
    cp.set_checks("never")
    try:
        loss = loss_fn(queries, documents, pairing="joint", directions=("query_to_doc",))
    finally:
        cp.set_checks("auto")
    assert loss.item() == pytest.approx(math.log(2), rel=1e-6)


@pytest.mark.parametrize("sigma", [cp.Learned(0.01), "auto"])
def test_a_density_whose_width_is_not_known_keeps_its_digits_where_values_are_not_read(sigma):
    z = torch.randn(2, 64, 256, generator=torch.Generator().manual_seed(3))
    loss_fn = cp.ADNCE(0.5, 0.7, sigma)
    exact = copy.deepcopy(loss_fn).double()(*z.double(), engine="matrix", reduction="none")
    cp.set_checks("never")
    try:
        single = loss_fn(*z, reduction="none")
    finally:
        cp.set_checks("auto")
    torch.testing.assert_close(single.double(), exact, rtol=3e-6, atol=3e-6)


def test_log_weight_is_finite_at_the_edge_of_its_support():
    edge = torch.tensor([-1.0 - 1e-7, -1.0, 1.0], dtype=torch.float64)
    for family in FAMILIES:
        for mu in (0.3, 1.0, 2.0):
            assert log_weight(edge, family, mu, 0.5).isfinite().all()
