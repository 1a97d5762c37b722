"""The Triton kernels against dense formulas. Without a GPU they run in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

GPU = torch.cuda.is_available()
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined
pytest.importorskip("triton")
fused = pytest.importorskip("counterpoint.fused")
if not GPU and not fused._interpreted():
    pytest.skip("kernels were defined before this file was read", allow_module_level=True)

DEVICE = "cuda" if GPU else "cpu"


def dense(anchors, keys, value, slope, ids, summed):
    """The same in plain torch, in float64."""
    s = anchors.double() @ keys.double().T
    x2, x1, x0 = value.double().unbind(1)
    p, q = slope.double().unbind(1)
    f = (x2[..., None] * s.detach() + x1[..., None]) * s.detach() + x0[..., None]
    # a derivative with respect to s that is not the value's
    f = f + (p[..., None] * s.detach() + q[..., None]).detach() * (s - s.detach())
    drop = torch.zeros_like(s, dtype=torch.bool) if ids is None else ids[0][:, None] == ids[1]
    if summed:
        return f.masked_fill(drop, 0.0).sum(2)
    return f.masked_fill(drop, -torch.inf).logsumexp(2)


def case(n, m, d, functions, wide, masked, dtype):
    torch.manual_seed(n + m)
    anchors, keys = (torch.nn.functional.normalize(torch.randn(k, d), dim=1).to(DEVICE, dtype) for k in (n, m))
    columns = n if wide else 1
    value = torch.randn(functions, 3, columns, device=DEVICE) * torch.tensor([2.0, 5.0, 1.0], device=DEVICE)[:, None]
    slope = torch.randn(functions, 2, columns, device=DEVICE) * 5
    ids = (torch.arange(n, device=DEVICE) % 7, torch.arange(m, device=DEVICE) % 9) if masked else None
    return anchors.requires_grad_(), keys.requires_grad_(), value.requires_grad_(), slope, ids


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize(
    ("n", "m", "d", "functions", "wide", "masked", "dtype"),
    [
        (33, 50, 16, 1, False, False, torch.float32),
        (40, 150, 20, 2, False, True, torch.float32),
        (150, 40, 130, 2, True, True, torch.float32),
        (17, 30, 700, 1, True, False, torch.float32),
        (20, 33, 24, 2, False, True, torch.bfloat16),
        (20, 33, 24, 1, True, True, torch.float16),
    ],
)
def test_values_and_gradients(n, m, d, functions, wide, masked, dtype, summed):
    anchors, keys, value, slope, ids = case(n, m, d, functions, wide, masked, dtype)
    ours = fused.reduce(anchors, keys, value, slope, ids, summed)
    theirs = dense(anchors, keys, value, slope, ids, summed)
    assert ours.shape == (functions, n)
    torch.testing.assert_close(ours.double(), theirs, rtol=2e-5, atol=2e-5)
    upstream = torch.randn_like(ours)
    given = (anchors, keys, value)
    found = torch.autograd.grad(ours, given, upstream)
    expected = torch.autograd.grad(theirs, given, upstream.double())
    rough = 2e-5 if dtype == torch.float32 else 2e-2
    for mine, right, what in zip(found, expected, ("anchors", "keys", "value"), strict=True):
        assert mine.dtype == right.dtype == {"value": torch.float32}.get(what, dtype)
        scale = right.abs().max().item()
        torch.testing.assert_close(mine, right, rtol=0, atol=rough * scale, msg=lambda m, w=what: f"{w}: {m}")


@pytest.mark.parametrize("t", [0.005, 0.01, 0.5])
def test_small_temperatures_neither_overflow_nor_vanish(t):
    anchors, keys, _, _, _ = case(20, 30, 16, 1, False, False, torch.float32)
    value = torch.tensor([[[0.0], [1 / t], [0.0]]], device=DEVICE)
    slope = torch.tensor([[[0.0], [1 / t]]], device=DEVICE)
    ours = fused.reduce(anchors, keys, value, slope)
    torch.testing.assert_close(
        ours[0].double(), (anchors.double() @ keys.double().T / t).logsumexp(1), rtol=1e-5, atol=0
    )
    (gradient,) = torch.autograd.grad(ours.sum(), anchors)
    assert gradient.isfinite().all()
    assert gradient.any()


def test_an_anchor_without_negatives_is_minus_infinity_and_has_no_gradient():
    anchors, keys, value, slope, _ = case(20, 30, 16, 1, False, False, torch.float32)
    own = torch.zeros(20, dtype=torch.long, device=DEVICE)
    own[3] = 1
    ours = fused.reduce(anchors, keys, value, slope, (own, torch.ones(30, dtype=torch.long, device=DEVICE)))
    assert ours[0, 3] == -torch.inf or ours[0, 3] < -1e38
    (gradient,) = torch.autograd.grad(ours[0, :3].sum(), anchors)
    assert gradient[3].abs().max() == 0
    assert gradient.isfinite().all()


@pytest.mark.slow
def test_kernels_compile_and_fit_on_the_chip():
    script = Path(__file__).parent / "compile_fused.py"
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-W", "ignore", script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
