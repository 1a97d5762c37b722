"""A log-sum-exp computed with its positives equals the matrix, whatever is asked first."""

import math
from typing import Any

import pytest
import torch

import counterpoint as cp
from counterpoint.batch.scores import PairScores
from counterpoint.engine.pairs import PairNegatives

OPTIONS: dict[str, Any] = {"pairing": "one_way", "engine": "matrix"}
SYMMETRIC = OPTIONS | {"pairing": "symmetric"}
PAIRINGS = pytest.mark.parametrize("how", [OPTIONS, SYMMETRIC], ids=["one_way", "symmetric"])


def views(number: int = 2, size: int = 7, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(number)
    return [torch.randn(size, 5, dtype=dtype, generator=draw).requires_grad_() for _ in range(number)]


def by_hand(z: list[torch.Tensor], t: float, normalize: bool, how: dict[str, Any] = OPTIONS) -> torch.Tensor:
    if how is SYMMETRIC:
        return (by_hand(z, t, normalize) + by_hand(z[::-1], t, normalize)) / 2
    anchors, *others = [torch.nn.functional.normalize(x, dim=1) for x in z] if normalize else z
    s = anchors @ torch.cat(others).T / t
    own = torch.arange(len(anchors)).unsqueeze(1) + torch.arange(0, s.shape[1], len(anchors))
    mass = s.scatter(1, own, -math.inf).logsumexp(1, keepdim=True)
    return torch.nn.functional.softplus(mass - s.gather(1, own), threshold=40).mean()


def assert_same_gradients(found: torch.Tensor, wanted: torch.Tensor, z: list[torch.Tensor]) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    gradients = (torch.autograd.grad(x, z, create_graph=True) for x in (found, wanted))
    for own, right in zip(*gradients, strict=True):
        torch.testing.assert_close(own, right, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("t", [0.5, 0.001, 5.0], ids="t{}".format)
@pytest.mark.parametrize("number", [2, 3])
def test_a_batch(number, t, normalize):
    z = views(number)
    loss = cp.InfoNCE(t)(*z, normalize=normalize, **OPTIONS)
    assert "LogSumExpOfPairs" in str(nodes(loss))
    assert_same_gradients(loss, by_hand(z, t, normalize), z)


@pytest.mark.parametrize("shift", [900.0, -900.0, 90.0, -90.0], ids="{:g}".format)
def test_exponentials_that_overflow_or_vanish(shift):
    """All inner products, or those of one anchor alone, which no bound of the others tells."""
    for rows in (slice(None), slice(2, 3)):
        z = [torch.cat([x.detach(), torch.zeros(7, 1, dtype=x.dtype)], 1) for x in views()]
        z[0][rows, 5], z[1][:, 5] = shift, 1.0
        z = [x.requires_grad_() for x in z]
        assert_same_gradients(cp.InfoNCE(1.0)(*z, normalize=False, **OPTIONS), by_hand(z, 1.0, False), z)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(("t", "fused"), [(0.5, True), (0.001, False)])
def test_both_directions(t, fused, normalize):
    """In one function where exponentials need no shift; rows and columns have maxima of their own."""
    z = views()
    loss = cp.InfoNCE(t)(*z, normalize=normalize, **SYMMETRIC)
    assert ("LogSumExpOfPairs" in str(nodes(loss))) == fused
    assert_same_gradients(loss, by_hand(z, t, normalize, SYMMETRIC), z)


@pytest.mark.parametrize(("number", "how"), [(2, OPTIONS), (3, OPTIONS), (2, SYMMETRIC)])
@pytest.mark.parametrize(
    "spec", ["adnce:t=0.2,mu=0.5,sigma=0.7", "adnce:t=0.002", "dcl:t=0.3", "hcl:t=0.5", "hcl:t=0.5,detach_weights=true"]
)
def test_two_functions(spec, number, how):
    """Of a quadratic, and beside positives that are asked for first; unique ids say the same of a matrix."""
    z, loss_fn = views(number), cp.objective(spec)
    loss = loss_fn(*z, **how)
    assert ("LogSumExpOfPairs" in str(nodes(loss))) == (how is OPTIONS or "t=0.002" not in spec)
    assert_same_gradients(loss, loss_fn(*z, ids=torch.arange(7), **how), z)
    found, wanted = (
        torch.autograd.grad(sum(x.square().sum() for x in torch.autograd.grad(y, z, create_graph=True)), z)
        for y in (loss, loss_fn(*z, ids=torch.arange(7), **how))
    )
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-10)


def nodes(x: torch.Tensor) -> set[str]:
    found, following = set(), [x.grad_fn]
    while following:
        node = following.pop()
        if node is not None and node not in found:
            found.add(node)
            following += [n for n, _ in node.next_functions]
    return {type(node).__name__ for node in found}


@PAIRINGS
def test_twice_through_one_graph(how):
    z = views()
    loss = cp.InfoNCE(0.1)(*z, **how)
    first, second = (torch.autograd.grad(loss, z, retain_graph=True) for _ in range(2))
    assert all(map(torch.equal, first, second))


@PAIRINGS
@pytest.mark.parametrize("frozen", [0, 1])
def test_a_frozen_tower(frozen, how):
    z = views()
    z[frozen].requires_grad_(False)
    other = z[1 - frozen]
    (found,) = torch.autograd.grad(cp.InfoNCE(0.3)(*z, **how), other)
    (wanted,) = torch.autograd.grad(by_hand(z, 0.3, True, how), other)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    assert z[frozen].grad is None


@PAIRINGS
def test_a_second_derivative(how):
    z = views(size=3)
    for normalize in (True, False):
        assert torch.autograd.gradgradcheck(lambda *x: cp.InfoNCE(0.5)(*x, normalize=normalize, **how), z)  # noqa: B023


def negatives(z: list[torch.Tensor], both: bool = False) -> PairNegatives:
    return PairNegatives(*z, torch.arange(len(z[0])).repeat(1 + both).unsqueeze(1), 6.0 if both else math.inf, both)


@pytest.mark.parametrize("both", [False, True], ids=["one_way", "symmetric"])
def test_what_is_asked_first_changes_nothing(both):
    """In any order, and under no_grad too, as a temperature that follows the batch asks first."""

    def lse(neg: PairNegatives) -> torch.Tensor:
        return neg.logsumexp(lambda s: s / 0.2)

    def silent(neg: PairNegatives) -> torch.Tensor:
        with torch.no_grad():
            return neg.mean(lambda s: s) + lse(neg) + neg.pos

    questions = [lse, lambda neg: neg.pos, lambda neg: neg.mean(lambda s: s**2), lambda neg: neg.matrix.sum(), silent]
    for first in questions:
        for second in questions:
            z = views()
            neg, plain = negatives(z, both), negatives(z, both)
            assert plain.matrix is not None  # the matrix from the beginning
            found, wanted = (
                first(n).detach().sum() + second(n).sum() + n.pos.sum() + lse(n).sum() for n in (neg, plain)
            )
            assert_same_gradients(found, wanted, z)


def test_the_positives_wait_for_the_negatives():
    neg = negatives(views())
    scores = PairScores.of(neg)
    assert vars(neg).keys().isdisjoint({"pos", "matrix"})
    cp.InfoNCE(0.1).losses(scores)
    assert "matrix" not in vars(neg)
    assert scores.pos is neg.pos


def test_exponents_of_any_size():
    """Unit vectors at a temperature whose exponentials need no shift, and scores of which no bound is known."""
    for scale, t in ((1.0, 0.02), (1e4, 1.0), (1e-4, 1.0), (30.0, 0.1)):
        z = [(x * scale).detach().requires_grad_() for x in views(dtype=torch.float32)]
        wide = [x.detach().double().requires_grad_() for x in z]
        for normalize in (True, False):
            loss, right = (cp.InfoNCE(t)(*x, normalize=normalize, **OPTIONS) for x in (z, wide))
            torch.testing.assert_close(loss.double(), right, rtol=1e-5, atol=1e-6)
            for own, wanted in zip(torch.autograd.grad(loss, z), torch.autograd.grad(right, wide), strict=True):
                torch.testing.assert_close(own.double(), wanted, rtol=1e-3, atol=1e-5 / scale)


@PAIRINGS
def test_autocast_does_not_round(how):
    z = views(dtype=torch.float32)
    plain = torch.autograd.grad(cp.InfoNCE(0.05)(*z, **how), z)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(cp.InfoNCE(0.05)(*z, **how), z)
    assert all(map(torch.equal, plain, found))


def test_columns_made_in_inference_mode_serve_training():
    with torch.inference_mode():
        cp.InfoNCE(0.1)(*views(size=9), **OPTIONS)
    z = views(size=9)
    cp.InfoNCE(0.1)(*z, **OPTIONS).backward()
    assert all(x.grad is not None for x in z)
