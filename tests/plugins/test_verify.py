"""What ``--verify`` allows, in which precision, and what it says beyond."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

import counterpoint as cp
from counterpoint.plugins.host import DifferenceError, Seam
from counterpoint.plugins.verify import ROUNDING, precision_of, problem

NAMES = "ours", "theirs"


@pytest.mark.parametrize("dtype", ROUNDING)
def test_the_tolerance_of_values(dtype):
    allowed = ROUNDING[dtype]
    for value in (1e-7, 0.5, 40.0):
        room = allowed * max(value, 0.1)
        assert problem(value + 0.9 * room, value, None, dtype, NAMES) == ""
        assert "explains" in problem(value + 1.1 * room, value, None, dtype, NAMES)
    for wrong in (math.nan, math.inf):
        assert "ours" in problem(wrong, 1.0, None, dtype, NAMES)
        assert "ours" in problem(1.0, wrong, None, dtype, NAMES)


def test_gradients_near_zero_have_fewer_digits():
    assert "gradients differ by 0.01" in problem(1.0, 1.0, 0.01, torch.float32, NAMES)
    assert problem(1e-4, 1e-4, 0.01, torch.float32, NAMES) == ""
    assert "gradients" in problem(1.0, 1.0, math.nan, torch.float32, NAMES)


def test_the_lowest_precision_counts():
    full, half, count = torch.ones(2), torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.long)
    assert precision_of([full, count, None, 3.0]) == torch.float32
    assert precision_of([full.double()]) == torch.float64
    assert precision_of([full, half]) == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert precision_of([full]) == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("scale", [5.0, 30.0])
@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0])
def test_two_right_computations_agree_and_a_wrong_temperature_does_not(dtype, scale, spread):
    """From chance to a loss of nearly zero: the same formula in another order of operations is never called wrong."""
    generator = torch.Generator().manual_seed(0)
    a = normalize(torch.randn(32, 64, generator=generator, dtype=dtype)).requires_grad_()
    b = normalize(spread * a.detach() + torch.randn(32, 64, generator=generator, dtype=dtype) / 8).requires_grad_()

    def theirs(scale: float) -> torch.Tensor:
        e = torch.exp(scale * (a[:, None] * b).sum(-1) - scale)
        return -torch.log(e.diagonal() / e.sum(1)).mean()

    def compare(times: float) -> Seam:
        seam = Seam("host", verify=2)
        for _ in range(2):
            loss_fn = cp.InfoNCE(1 / scale)
            seam.loss(loss_fn, lambda: theirs(scale * times), a, b, pairing="one_way")
        return seam

    assert compare(1.0).wrong == []
    if scale == 5.0 or spread < 3.0:  # else the loss is zero for both
        with pytest.raises(DifferenceError, match=r"in call 1, the script's own loss is .* and infonce:t="):
            compare(1.01)


def test_a_scale_that_is_trained_is_compared_too():
    a, b = (normalize(torch.randn(6, 4)).requires_grad_() for _ in range(2))
    log_scale = nn.Parameter(torch.tensor(2.0))
    logits = log_scale.exp() * a @ b.T
    labels = torch.arange(6)
    seam = Seam("host", verify=1)
    host = lambda: nn.functional.cross_entropy(logits, labels)  # noqa: E731
    scale = log_scale.exp()
    inputs = (logits, log_scale)
    seam.loss(cp.InfoNCE("host"), host, logits, labels, call="from_logits", inputs=inputs, scale=scale)
    assert seam.gradients[0] < 1e-5
    seam, frozen = Seam("host", verify=1), logits.detach().requires_grad_()
    how = {"call": "from_logits", "inputs": (frozen, log_scale), "scale": float(scale.detach())}
    with pytest.raises(DifferenceError, match="gradients differ"):  # ours does not follow the scale
        seam.loss(cp.InfoNCE("host"), host, frozen, labels, **how)
