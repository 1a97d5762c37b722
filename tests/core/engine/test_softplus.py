"""Softplus of similarities in closed form: which functions are recognized, and the values and gradients of autograd."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import softplus

import counterpoint as cp
from counterpoint.engine.mask import Mask
from counterpoint.engine.quadratic import Quadratics, Softplus
from counterpoint.engine.tiles import TileNegatives

NAMES = ("anchors", "keys")


def recognized(f, *per_anchor):
    """The softplus of a function of four anchors' similarities, which are at most one."""
    functions, _ = Quadratics.of(f, per_anchor, 4, torch.float32) or (None, [])
    is_softplus = functions is not None and functions.after == "softplus"
    return Softplus.of_linear(functions, torch.device("cpu"), 1.0) if is_softplus else None


def steep(s):
    return softplus(3 * s - 2, threshold=40)


def test_recognizes_a_softplus_of_a_linear_function():
    found = recognized(steep)
    assert found is not None
    assert (found.slope, found.inside) == (3.0, -2.0)
    scale, bias = torch.tensor(3.0, requires_grad=True), torch.tensor(-2.0, requires_grad=True)
    learned = recognized(lambda s: softplus(s * scale + bias, threshold=40))
    assert learned is not None
    assert [x.item() for x in learned.tensors] == [3.0, -2.0]


@pytest.mark.parametrize(
    ("name", "f"),
    [
        ("curved", lambda s: softplus(s * s, threshold=40)),
        ("multiplied", lambda s: 2 * softplus(s, threshold=40)),
        ("sharper", lambda s: softplus(s, beta=2, threshold=40)),
        ("linear from 20 on", lambda s: softplus(s)),
        ("detached", lambda s: softplus(s.detach(), threshold=40)),
        ("partly detached", lambda s: softplus(s + s.detach(), threshold=40)),
        ("constant", lambda s: softplus(0 * s + 1, threshold=40)),
        ("two results", lambda s: (softplus(s, threshold=40), s)),
        ("overflowing", lambda s: softplus(100 * s, threshold=40)),
    ],
)
def test_leaves_other_functions_to_autograd(name, f):
    assert recognized(f) is None


def test_leaves_functions_that_differ_between_anchors_to_autograd():
    f = lambda s, m: softplus(s - m, threshold=40)  # noqa: E731
    assert recognized(f, torch.zeros(4, 1)) is None


def reduced(closed: bool, monkeypatch, mask: Mask, same: bool, both: bool) -> list[torch.Tensor]:
    """The mean of a learned softplus, and its gradients, in closed form or by autograd."""
    draw = torch.Generator().manual_seed(0)
    left, right = torch.nn.functional.normalize(torch.randn(2, 9, 5, generator=draw, dtype=torch.float64), dim=2)
    left, right = left.requires_grad_(), right.requires_grad_()
    scale, bias = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (4.0, -1.5))
    with monkeypatch.context() as patch:
        if not closed:
            patch.setattr(Softplus, "of", lambda *args: None)
        neg = TileNegatives([(left, left if same else right)], both, mask, 4)
        mean = neg.mean(lambda s: softplus(s * scale + bias, threshold=40))
    weights = torch.randn(mean.shape, generator=draw, dtype=torch.float64)
    wanted = [left, *([] if same else [right]), scale, bias]
    return [mean, *torch.autograd.grad((weights * mean).sum(), wanted)]


@pytest.mark.parametrize(("same", "both"), [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("ids", [False, True])
def test_agrees_with_autograd(monkeypatch, same, both, ids):
    mask = Mask(9, (torch.arange(9) // 2,) * 2 if ids else None)
    for got, want in zip(*(reduced(closed, monkeypatch, mask, same, both) for closed in (True, False)), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("frozen", ["anchors", "keys", "both"])
@pytest.mark.parametrize("engine", ["tiles", "chunks"])
def test_trains_scale_and_bias_of_frozen_embeddings(frozen, engine):
    draw = torch.Generator().manual_seed(0)
    z = torch.randn(2, 9, 5, generator=draw, dtype=torch.float64)
    found = []
    for how in (engine, "matrix"):
        views = [x.clone().requires_grad_(frozen not in (name, "both")) for name, x in zip(NAMES, z, strict=True)]
        loss_fn = cp.objective("siglip:t=learned(0.3),b=learned(-1,-5,0)").double()
        loss_fn(*views, engine=how).backward()
        found.append([x.grad for x in [*views, *loss_fn.parameters()] if x.requires_grad])
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-12)


def test_small_values_keep_their_digits():
    """A negative that is far below the bias counts ``e^x``, which is lost beside one in float32."""
    left, right = torch.eye(4), torch.eye(4).roll(1, 0)
    neg = TileNegatives([(left, right)], tile=2)
    mean = neg.mean(lambda s: softplus(s * 0.5 - 30, threshold=40))
    expected = (3 * math.exp(-30) + math.exp(-29.5)) / 4
    torch.testing.assert_close(mean, torch.full((4, 1), expected), rtol=1e-5, atol=0)
