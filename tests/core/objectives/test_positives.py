"""SupCon, ArCL, AAL and debiased positives."""

from __future__ import annotations

import math
import warnings
from itertools import combinations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from identities import SEED, T, cosines, embeddings, gradients, prop, same

import counterpoint as cp


@pytest.mark.parametrize("average", ["outside", "inside"])
@prop(seed=SEED, t=T)
def test_supcon_with_one_positive_is_infonce(average, seed, t):
    z, queue, (pos, neg) = embeddings(seed), embeddings(seed + 1, 1, 9)[0], cosines(seed)
    weight = torch.rand(5, dtype=torch.float64)
    for denominator in ("positives", "with_positive", "negatives"):
        loss_fn = cp.SupCon(t, average=average, denominator=denominator)
        infonce = cp.InfoNCE(t, denominator="negatives" if denominator == "negatives" else "with_positive")
        same(loss_fn(*z), infonce(*z), z)
        same(loss_fn(*z, labels=torch.arange(5)), infonce(*z), z)
        same(loss_fn(*z, queue=queue), infonce(*z, queue=queue), z)
        same(loss_fn(*z, positive_factor=weight), infonce(*z, positive_factor=weight), z)
        same(loss_fn.from_scores(pos, neg), infonce.from_scores(pos, neg), pos, neg)
        for kind in (cp.ArCL, cp.AAL):
            views = embeddings(seed, 3)
            same(kind(loss_fn)(*views), kind(infonce)(*views), views)


@prop(seed=SEED, t=T, positives=st.integers(1, 5))
def test_supcon_and_its_relatives(seed, t, positives):
    pos, neg = cosines(seed, positives=positives)

    def loss(**how):
        return cp.SupCon(t, **how).from_scores(pos, neg)

    same(loss(denominator="with_positive"), cp.InfoNCE(t).from_scores(pos, neg), pos, neg)
    same(loss(denominator="negatives"), cp.InfoNCE(t, denominator="negatives").from_scores(pos, neg), pos, neg)
    pooled = cp.NCA(t, "g0").from_scores(pos, neg)
    same(loss(average="inside"), pooled + math.log(positives), pos, neg)
    assert loss(average="inside") <= loss() + 1e-12  # Jensen's inequality: the paper's L_in <= L_out


@pytest.mark.parametrize("seed", range(3))
def test_supcon_is_the_loss_of_the_official_code(seed):
    """With masks and a row-wise softmax over all other rows, positives included, of the views of all samples."""
    z, labels, t = embeddings(seed, batch=7), torch.tensor([0, 1, 0, 2, 1, 0, 3]), 0.1
    features, label = F.normalize(torch.cat([*z]), dim=1), labels.repeat(2)
    itself = torch.eye(14, dtype=torch.bool)
    log_p = (features @ features.T / t).masked_fill(itself, -math.inf).log_softmax(1).masked_fill(itself, 0)
    positive = (label.unsqueeze(1) == label) & ~itself
    expected = -((log_p * positive).sum(1) / positive.sum(1)).mean()
    same(cp.SupCon(t)(*z, labels=labels), expected, z)
    same((t / 0.07) * cp.SupCon(t)(*z, labels=labels), (t / 0.07) * expected, z)


@pytest.mark.parametrize("average", ["outside", "inside"])
@pytest.mark.parametrize("labels", [None, [0, 1, 2], [0, 0, 1]])
def test_supcon_keeps_small_gradients(average, labels):
    """In single precision a positive may be all of the denominator but 1e-9, which is then the gradient."""
    z = torch.eye(3, 6, dtype=torch.float64).repeat(2, 1, 1) + 0.05 * embeddings(0, 2, 3, 6)
    labels = None if labels is None else torch.tensor(labels)
    found = []
    for dtype in (torch.float64, torch.float32):
        views = z.detach().to(dtype).requires_grad_()
        loss = cp.SupCon(0.05, average=average)(*views, labels=labels, reduction="none").view(2, 3)[:, 2].sum()
        (gradient,) = torch.autograd.grad(loss, views)
        found.append(gradient.double())
    assert 1e-12 < found[0].abs().max() < 1e-4
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-3 * float(found[0].abs().max()))


def test_supcon_ignores_anchors_without_positives():
    z, labels = embeddings(0, 1, 6)[0], torch.tensor([0, 1, 0, 2, 1, 0])
    for average in ("outside", "inside"):
        loss_fn = cp.SupCon(0.3, average=average)
        rows = loss_fn(z, labels=labels, reduction="none")
        assert rows[3] == 0
        same(loss_fn(z, labels=labels), rows.sum() / 5, z)


@pytest.mark.parametrize("inner", [cp.InfoNCE(0.4), cp.DCL(0.4), cp.HCL(0.4), cp.ADNCE(0.4)], ids=str)
@prop(seed=SEED)
def test_arcl_with_two_views_is_the_objective_on_first_view_anchors(inner, seed):
    z = embeddings(seed)
    per_anchor = inner(*z, reduction="none")
    one, other = cp.ArCL(inner)(z[0], z[1]), cp.ArCL(inner)(z[1], z[0])
    same(one, per_anchor[:5].mean(), z)
    same((one + other) / 2, inner(*z), z)
    same(cp.AAL(inner)(*z), one, z)


def test_the_worst_pair_is_subtracted_before_the_temperature_divides():
    """Found by fuzzing: in float32, the difference of two large logits had lost most of its digits."""
    pos, first, neg = torch.tensor([[0.8999]]), torch.tensor([[0.9]]), torch.tensor([[-0.5]])

    def loss(dtype):
        scores = cp.Scores(pos.to(dtype), cp.MatrixNegatives(neg.to(dtype)), denominator_pos=first.to(dtype))
        return cp.InfoNCE(0.001).losses(scores)

    torch.testing.assert_close(loss(torch.float32), loss(torch.float64).float(), rtol=1e-6, atol=0)


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
    worst = cp.ArCL(cp.InfoNCE(t), "worst")(views, views, queue=queue)
    same(worst, cp.InfoNCE(t)(z[0], z[1], queue=queue))
    paper = cp.ArCL(cp.InfoNCE(t))(views, views, queue=queue)
    same(paper, cp.InfoNCE(t, "negatives")(z[0], z[1], queue=queue))


@prop(seed=SEED, views=st.integers(2, 5))
def test_worst_alignment_is_the_largest_squared_distance(seed, views):
    z = embeddings(seed, views).transpose(0, 1)
    unit = F.normalize(z, dim=-1)
    distances = torch.stack([((unit[:, j] - unit[:, k]) ** 2).sum(-1) for j in range(views) for k in range(views)])
    same(cp.worst_alignment(z), distances.amax(0).mean())


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


def test_debiased_positives_of_inner_products_do_not_overflow():
    """In float32, ``e^{s / t}`` of such similarities is infinite."""
    values = []
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(0)
        z = (torch.randn(2, 4, 8) * 3).to(dtype).requires_grad_()
        loss = cp.DebiasedPositives(0.07, 0.3, floor=True)(*z, pairing="first_two", normalize=False)
        values.append([loss.double(), *(g.double() for g in gradients(loss, [z]))])
    assert values[1][0].item() == pytest.approx(3.6109, abs=1e-4)
    torch.testing.assert_close(values[0], values[1], rtol=1e-5, atol=1e-5)


def test_debiased_positives_without_floor_are_the_bare_formula():
    """Numerator positive; negative, and with it the denominator or not."""
    t, prior = 0.5, 0.01
    for p, s in ((0.9, 0.1), (-0.9, 0.99), (-0.9, 5.0)):
        pos, neg = (torch.full((2, k), x, dtype=torch.float64, requires_grad=True) for k, x in ((1, p), (40, s)))
        mean = (neg / t).exp().mean(1)
        total = (40 * mean + (pos / t).exp().squeeze(1) + math.exp(1 / t)) / 42
        r = total - (1 - prior) * mean
        loss = cp.DebiasedPositives(t, prior, floor=False).from_scores(pos, neg)
        expected = -torch.log(r / (r + 40 * prior * mean)).mean()
        torch.testing.assert_close(loss, expected, equal_nan=True)


def test_arcl_says_that_two_views_are_too_few_to_have_a_worst_pair():
    z = embeddings(0).detach()
    with pytest.warns(UserWarning, match=r"two views have one pair.*more than two views, or views=2"):
        cp.ArCL("hcl")(*z)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cp.ArCL("hcl", views=2)(*z)
        cp.ArCL("hcl")(*embeddings(0, 3).detach())


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


def test_the_average_inside_keeps_the_digits_of_what_the_negatives_add():
    """Two positives of shares 1 - 4e-7 and 4e-7, beside which the negatives have 1e-17: positives cancel."""
    t, pos, neg = 0.02, torch.tensor([[0.9, 0.6]]), torch.tensor([[0.1, 0.0]])
    grads = []
    for dtype in (torch.float32, torch.float64):
        p, temperature = pos.to(dtype), cp.Learned(t, 0.01, 0.1).to(dtype)
        loss = cp.SupCon(temperature, average="inside").from_scores(p.requires_grad_(), neg.to(dtype))
        grads.append([g.double() for g in torch.autograd.grad(loss, [p, *temperature.parameters()])])
    p, log_t = pos.double().requires_grad_(), torch.tensor(math.log(t), dtype=torch.float64, requires_grad=True)
    mass = (neg.double() / log_t.exp()).logsumexp(1) - (p / log_t.exp()).logsumexp(1)
    exact = torch.autograd.grad(torch.log1p(mass.exp()), [p, log_t])
    for found in grads:
        for ours, right in zip(found, exact, strict=True):
            torch.testing.assert_close(ours, right, rtol=1e-4, atol=0)
