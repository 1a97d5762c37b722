"""The inner problem of chi-squared CL-DRO: solved in place, and by the definition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import strategies as st
from identities import SEED, prop

from counterpoint.engine.matrix import MatrixNegatives
from counterpoint.objectives import inner

BOUNDS = st.sampled_from([1e-4, 0.04, 0.4, 4.0, 20.0])


def negatives(seed, kind, rows=9, keys=40, dtype=torch.float64):
    """A matrix with whole, excluded, dropped or weighted columns; some rows have ties at the top."""
    generator = torch.Generator().manual_seed(seed)
    s = torch.randn(rows, keys, generator=generator, dtype=dtype)
    s[::3, 5] = s[::3].amax(1)
    s.requires_grad_()
    skip = torch.randint(keys, (rows, 2), generator=generator) if kind == "skip" else None
    drop = torch.rand(rows, keys, generator=generator) < 0.3 if kind == "drop" else None
    log_weight = torch.randn(rows, keys, generator=generator, dtype=dtype) if kind == "weight" else None
    if skip is not None:
        skip[:, 1] = (skip[:, 0] + 1) % keys
    return s, MatrixNegatives(s, skip, drop, log_weight)


def by_bisection(s, weights, bound):
    """The threshold where ``E (s - l)_+^2 = (1 + bound) (E (s - l)_+)^2``, and the worst-case mean."""
    low, high = s.amin() - 2e2 * (s.amax() - s.amin()), s.amax()
    for _ in range(200):
        middle = (low + high) / 2
        distance = (s - middle).clamp(min=0)
        first, second = (weights * distance).sum(), (weights * distance**2).sum()
        low, high = (middle, high) if second < (1 + bound) * first**2 else (low, middle)
    distance = weights * (s - low).clamp(min=0)
    return (distance * s).sum() / distance.sum()


@pytest.mark.parametrize("kind", ["whole", "skip", "drop", "weight"])
@prop(seed=SEED, bound=BOUNDS)
def test_the_value_is_that_of_a_bisection(kind, seed, bound):
    s, neg = negatives(seed, kind)
    counted = torch.ones_like(s) if neg.log_weight is None else neg.log_weight.exp()
    counted = neg.masked(counted, 0.0)
    values = inner.nonnegative_worst_case(neg, bound)
    for row, weight, value in zip(s.detach(), counted, values.detach(), strict=True):
        row, weight = row[weight > 0], weight[weight > 0] / weight.sum()
        ties = weight[row == row.amax()].sum()
        expected = row.amax() if bound >= 1 / ties - 1 else by_bisection(row, weight, bound)
        torch.testing.assert_close(value.squeeze(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["whole", "skip", "drop", "weight"])
@prop(seed=SEED, bound=BOUNDS)
def test_the_gradients_are_those_of_the_closed_form(kind, seed, bound):
    """By scores and by the radius, and the second derivatives."""
    s, neg = negatives(seed, kind)
    radius = torch.tensor(bound, dtype=s.dtype, requires_grad=True)
    upstream = torch.linspace(-1, 1, len(s), dtype=s.dtype).unsqueeze(1)
    top, low, reached = inner.chi2_threshold(neg, bound)
    closed = torch.where(reached, neg.max(), inner.mean_and_deviations(neg, radius, (top, low)))
    expected = torch.autograd.grad((upstream * closed).sum(), (s, radius), create_graph=True)
    value = (upstream * inner.nonnegative_worst_case(neg, radius)).sum()
    first_order = torch.autograd.grad(value, (s, radius), retain_graph=True)
    twice = torch.autograd.grad(value, (s, radius), create_graph=True)
    for a, b, c in zip(first_order, twice, expected, strict=True):
        torch.testing.assert_close(a, c, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(b, c, rtol=1e-7, atol=1e-9)
    second, second_expected = (torch.autograd.grad((g[0] ** 2).sum(), (s, radius)) for g in (twice, expected))
    for a, c in zip(second, second_expected, strict=True):
        torch.testing.assert_close(a, c, rtol=1e-6, atol=1e-9)


def test_blocks_of_anchors_are_solved_separately():
    s, neg = negatives(0, "skip", rows=400, keys=1000, dtype=torch.float32)
    assert len(neg.split()) > 1
    value = inner.nonnegative_worst_case(neg, 0.4)
    (gradient,) = torch.autograd.grad(value.sum(), s)
    exact = MatrixNegatives(s.detach().double().requires_grad_(), neg.skip)
    expected = inner.nonnegative_worst_case(exact, 0.4)
    torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=1e-6)
    (wanted,) = torch.autograd.grad(expected.sum(), exact.matrix)
    torch.testing.assert_close(gradient.double(), wanted, rtol=1e-4, atol=1e-8)
    assert not gradient.gather(1, neg.skip).any()


def test_close_similarities_keep_the_digits_of_their_differences():
    """With two negatives, the gradient depends on the radius alone."""
    s = torch.tensor([[0.5001, 0.5]], requires_grad=True)
    value = inner.nonnegative_worst_case(MatrixNegatives(s), 0.4)
    (gradient,) = torch.autograd.grad(value, s)
    expected = torch.tensor([[1 + 0.4**0.5, 1 - 0.4**0.5]]) / 2
    torch.testing.assert_close(gradient, expected, rtol=2e-7, atol=1e-7)


def test_a_threshold_that_rounding_overshoots_comes_back():
    """Found by fuzzing: the step from far below ended above the solution, and two of the four close ones counted."""
    low = [0.158306137, 0.108074203, 0.0980934799, 0.0668166056, 0.0802960619, 0.151782796, 0.143257365, 0.116081901]
    s = torch.tensor([[*low, 0.998923957, 0.998550296, 0.999183297, 0.999228179]], requires_grad=True)
    exact = s.detach().double().requires_grad_()
    gradient, expected = (
        torch.autograd.grad(inner.nonnegative_worst_case(MatrixNegatives(x), 2.3272295336681283), x)[0]
        for x in (s, exact)
    )
    assert (expected > 0.1).sum() == 4
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-4, atol=1e-6)
