"""The scores of small batches of which only the views are known: whatever is asked first, the results are the same."""

import itertools

import pytest
import torch

import counterpoint as cp
from counterpoint.batch.batch import Batch
from counterpoint.batch.pairings import scores_of
from counterpoint.engine import cosines

PAIRINGS = ["one_way", "symmetric", "views"]
T = 0.2


def views(m=2, size=7, width=5):
    z = torch.randn(m, size, width, dtype=torch.float64, generator=torch.Generator().manual_seed(m))
    return [x.requires_grad_() for x in z]


def reductions(scores, first):
    asked = {
        "log-sum-exp": lambda: scores.neg.logsumexp(lambda s: s / T),
        "positives": lambda: scores.pos,
        "mean": lambda: scores.neg.mean(lambda s: s**3),
        "other": lambda: scores.neg.logsumexp(lambda s: -3 * s),
    }
    results = {name: asked[name]() for name in first}
    return [results[name] for name in sorted(results)]


@pytest.mark.parametrize(("pairing", "m"), [*((pairing, 2) for pairing in PAIRINGS), ("one_way", 3), ("views", 3)])
def test_any_order(pairing, m):
    wanted = None
    for order in itertools.permutations(["log-sum-exp", "positives", "mean", "other"]):
        z = views(m)
        results = reductions(scores_of(Batch(z), pairing), order)
        total = sum((k + 1) * (x * torch.arange(x.shape[0]).unsqueeze(1)).sum() for k, x in enumerate(results))
        found = [*results, *torch.autograd.grad(total, z)]
        wanted = found if wanted is None else wanted
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("t", [T, 0.001], ids=["in range", "out of range"])
def test_the_matrix_that_is_given(pairing, t):
    z = views()
    scores = scores_of(Batch(z), pairing)
    found = torch.cat([scores.neg.logsumexp(lambda s: s / t), scores.pos], 1)
    a, b = (torch.nn.functional.normalize(x) for x in z)
    rows, columns = {"one_way": (a, b), "symmetric": (a, b), "views": (torch.cat([a, b]),) * 2}[pairing]
    matrix = rows @ columns.T
    matrix = torch.cat([matrix, matrix.T]) if pairing == "symmetric" else matrix
    own = torch.arange(len(matrix)) % len(a)
    pos = (a * b).sum(1)[own]
    others = matrix.masked_fill(own.unsqueeze(1) == torch.arange(matrix.shape[1]) % len(a), float("-inf"))
    wanted = torch.stack([(others / t).logsumexp(1), pos], 1)
    torch.testing.assert_close(found, wanted)
    weights = torch.linspace(-1, 2, wanted.numel(), dtype=torch.float64).view_as(wanted)
    for x, y in zip(*(torch.autograd.grad((weights * r).sum(), z) for r in (found, wanted)), strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_second_derivatives(pairing):
    loss_fn = cp.InfoNCE(T)
    assert torch.autograd.gradgradcheck(lambda a, b: loss_fn(a, b, pairing=pairing), views(size=3, width=3))


def test_a_log_sum_exp_keeps_one_matrix(monkeypatch):
    made = []
    forward = cosines.Cosines.forward
    monkeypatch.setattr(cosines.Cosines, "forward", staticmethod(lambda *a: made.append(1) or forward(*a)))
    cp.InfoNCE(T)(*views(), pairing="one_way").backward()
    assert not made
    cp.ADNCE(T)(*views(), pairing="one_way").backward()
    assert made == [1]


def test_a_first_reduction_without_gradient():
    z = views()
    with torch.enable_grad():
        scores = scores_of(Batch(z), "views")
    with torch.no_grad():
        constant = scores.neg.logsumexp(lambda s: s / T)
    assert not constant.requires_grad
    assert scores.pos.requires_grad
    assert scores.neg.logsumexp(lambda s: s / T).requires_grad


def test_without_a_gradient_of_the_log_sum_exp():
    z = views()
    scores = scores_of(Batch(z), "symmetric")
    scores.neg.logsumexp(lambda s: s / T)
    got = torch.autograd.grad(scores.pos.sum(), z)
    want = torch.autograd.grad(2 * torch.nn.functional.cosine_similarity(*z).sum(), z)
    torch.testing.assert_close(got, want)
