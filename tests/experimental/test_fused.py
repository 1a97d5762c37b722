"""The Triton kernels against dense formulas. Without a GPU they run in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from interpreted import kernels_everywhere
from specs import CHOICES, SPECS, at, embeddings, keyed, of_tiles

import counterpoint as cp

GPU = torch.cuda.is_available()
pytest.importorskip("triton")
fused = pytest.importorskip("counterpoint.experimental.triton")

DEVICE = "cuda" if GPU else "cpu"


def dense(anchors, keys, value, slope, ids, weight, softplus):
    """The same in plain torch, in float64."""
    s = anchors.double() @ keys.double().T
    x2, x1, x0 = value.double().unbind()
    p, q = slope.double().unbind()
    f = (x2[..., None] * s.detach() + x1[..., None]) * s.detach() + x0[..., None]
    # a derivative with respect to s that is not the value's
    f = f + (p[..., None] * s.detach() + q[..., None]).detach() * (s - s.detach())
    drop = torch.zeros_like(s, dtype=torch.bool) if ids is None else ids[0][:, None] == ids[1]
    weight = torch.zeros_like(s) if weight is None else weight.double()
    if softplus:
        return (torch.nn.functional.softplus(f, threshold=40) * weight.exp()).masked_fill(drop, 0.0).sum(1)
    return (f + weight).masked_fill(drop, -torch.inf).logsumexp(1)


def unit(n, d):
    return torch.nn.functional.normalize(torch.randn(n, d), dim=1).to(DEVICE)


def case(n, m, d, wide, dtype):
    torch.manual_seed(n + m)
    anchors, keys = (unit(k, d).to(dtype) for k in (n, m))
    columns = n if wide else 1
    value = torch.randn(3, columns, device=DEVICE) * torch.tensor([2.0, 5.0, 1.0], device=DEVICE)[:, None]
    slope = torch.randn(2, columns, device=DEVICE) * 5
    return anchors.requires_grad_(), keys.requires_grad_(), value.requires_grad_(), slope


@pytest.mark.parametrize("softplus", [False, True])
@pytest.mark.parametrize(
    ("n", "m", "d", "wide", "mask", "dtype"),
    [
        (33, 50, 16, False, "none", torch.float32),
        (20, 70, 20, False, "weights", torch.float32),
        (70, 20, 40, True, "ids", torch.float32),
        (17, 30, 300, True, "weights", torch.bfloat16),
        (20, 33, 24, True, "ids", torch.float16),
    ],
)
def test_values_and_gradients(n, m, d, wide, mask, dtype, softplus):
    anchors, keys, value, slope = case(n, m, d, wide, dtype)
    ids = (torch.arange(n, device=DEVICE) % 7, torch.arange(m, device=DEVICE) % 9) if mask != "none" else None
    weight = 2 * torch.randn(m, device=DEVICE) if mask == "weights" else None
    if weight is not None:
        weight[3] = -torch.inf
    how = ids, weight, softplus
    ours, theirs = fused.reduce(anchors, keys, value, slope, *how), dense(anchors, keys, value, slope, *how)
    assert ours.shape == (n,)
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


@pytest.mark.parametrize(
    ("t", "dtype"), [(0.005, torch.float32), (0.01, torch.bfloat16), (0.01, torch.float32), (0.5, torch.float32)]
)
def test_small_temperatures_neither_overflow_nor_vanish(t, dtype):
    """To a few roundings of exponents as large as ``1 / t``, and so is the gradient of the temperature."""
    anchors, keys, _, _ = case(20, 30, 16, False, dtype)
    with torch.no_grad():
        keys[:5] = anchors[:5]  # as large as similarities can be
    weight = torch.linspace(-20, 20, 30, device=DEVICE)
    scale = torch.tensor(1 / t, device=DEVICE, requires_grad=True)
    value = torch.stack([0 * scale, scale, 0 * scale]).view(3, 1)
    ours = fused.reduce(anchors, keys, value, value[:2].detach(), None, weight)
    exact = (anchors.double() @ keys.double().T * scale.double() + weight).logsumexp(1)
    torch.testing.assert_close(ours.double(), exact, rtol=3e-7, atol=3e-7)
    found, wanted = (torch.autograd.grad(x.sum(), (anchors, keys, scale)) for x in (ours, exact))
    rough = torch.finfo(torch.float32).eps * (1 / t + 20)  # that of the exponents
    for mine, right in zip(found, wanted, strict=True):
        error = (mine - right).abs().max() / right.abs().max()
        assert error <= max(rough, torch.finfo(mine.dtype).eps)


def test_an_anchor_without_negatives_is_minus_infinity_and_has_no_gradient():
    anchors, keys, value, slope = case(20, 30, 16, False, torch.float32)
    own = torch.zeros(20, dtype=torch.long, device=DEVICE)
    own[3] = 1
    ours = fused.reduce(anchors, keys, value, slope, (own, torch.ones(30, dtype=torch.long, device=DEVICE)))
    assert ours[3] == -torch.inf
    assert ours[:3].isfinite().all()
    (gradient,) = torch.autograd.grad(ours.sum(), anchors)  # the row without negatives included
    assert not gradient[3].any()
    assert gradient[:3].any(1).all()
    assert gradient.isfinite().all()


def test_a_softplus_keeps_the_digits_of_small_values():
    """A negative that is far below the bias counts ``e^x``, which is lost beside one in float32."""
    keys = torch.tensor([[-30.0], [-9.0], [-0.01], [0.0], [0.3], [12.0], [88.0]], device=DEVICE)
    value = torch.tensor([0.0, 1.0, 0.0], device=DEVICE).view(3, 1)
    for key in keys:
        found = fused.reduce(torch.ones_like(keys[:1]), key[None], value, value[:2], softplus=True)
        exact = torch.nn.functional.softplus(key.double(), threshold=100)
        torch.testing.assert_close(found.double(), exact, rtol=3e-7, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("switches", ["infonce", "siglip", "every switch"])
def test_kernels_compile_and_stay_on_the_chip(switches):
    """Neither is there too little shared memory, nor do registers spill, but for a few bytes."""
    command = [sys.executable, "-W", "ignore", Path(__file__).parents[2] / "support" / "compile_triton.py"]
    command += ["--switches", switches, *([] if switches == "infonce" else ["--widths", "128", "512", "1024"])]
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


# ---- in objectives -------------------------------------------------------------------------------


@pytest.fixture
def everywhere(monkeypatch):
    """Kernels wherever they can be; how often they were called."""
    calls, kernels = [], fused.reduce
    monkeypatch.setattr(fused, "reduce", lambda *given: calls.append(len(given[2])) or kernels(*given))
    with kernels_everywhere(DEVICE):
        yield calls


def results(spec, z, tile, **how):
    """Losses, gradients of embeddings and of parameters, in float64."""
    loss_fn = at(spec, 0.3).to(DEVICE)
    leaves = [x.clone().requires_grad_() for x in z.to(DEVICE)]
    named = {k: how.pop(k).to(DEVICE).clone().requires_grad_() for k in ("negatives", "queue") if k in how}
    losses = loss_fn(leaves[0], leaves[1], engine=of_tiles(tile), reduction="none", **keyed({**named, **how}))
    inputs = [*leaves[:2], *(v for k, v in named.items() if k != "queue"), *loss_fn.parameters()]
    weight = torch.linspace(0.5, 1.5, len(losses), device=DEVICE)
    found = torch.autograd.grad((losses * weight).sum(), inputs, allow_unused=True)
    return [losses, *(torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True))]


IDS = torch.tensor([0, 1, 2, 3, 4, 5, 1, 0])
LOG_Q = torch.linspace(-3, 0, 8)
LEARNED = ["hcl:t=learned(0.3,0.01,1),beta=learned(1,0.1,3)", "adnce:t=learned(0.3,0.01,1),mu=learned(0.4)"]


@pytest.mark.parametrize(
    ("spec", "how", "calls"),
    [
        ("infonce:t=T", {}, 1),
        ("infonce:t=T", {"ids": IDS}, 1),
        ("infonce:t=T", {"pairing": "one_way"}, 1),
        ("infonce:t=T", {"pairing": "symmetric", "ids": IDS}, 2),
        ("infonce:t=T", {"negatives": torch.randn(8, 2, 16)}, 1),
        ("infonce:t=T", {"negatives": torch.randn(8, 2, 16), "ids": IDS}, 1),
        ("infonce:t=T", {"log_q": LOG_Q}, 1),
        ("infonce:t=T", {"log_q": LOG_Q, "pairing": "symmetric"}, 2),
        ("infonce:t=T", {"queue": torch.randn(30, 16), "queue_log_q": torch.randn(30)}, 1),
        ("siglip:t=learned(0.3),b=learned(-1,-5,0)", {"log_q": LOG_Q}, 1),
        ("infonce:t=T", {"queue": torch.randn(30, 16)}, 1),
        ("dcl:t=T", {}, 1),
        ("hcl:t=T", {}, 2),
        ("adnce:t=T", {}, 2),
        ("mv:t=T", {}, 0),  # in tiles, as false negatives and weights of hard ones are
        ("infonce:t=T", {"false_negatives": cp.threshold(0.3), "ids": IDS}, 0),
        ("infonce:t=T", {"negatives": torch.randn(8, 2, 16), "negative_weight": 1.0}, 0),
        *((spec, {}, 2) for spec in LEARNED),
    ],
)
def test_objectives_use_them(everywhere, spec, how, calls):
    z = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(0))
    how = {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in how.items()}
    ours = results(spec, z, None, **how)
    assert len(everywhere) == calls
    torch.testing.assert_close(ours, results(spec, z, 0, **how), rtol=1e-4, atol=2e-5)
    assert len(everywhere) == calls


@pytest.mark.parametrize("spec", [pytest.param(s, marks=[pytest.mark.slow] * (s in CHOICES)) for s in SPECS])
def test_every_objective(everywhere, spec):
    z = embeddings(dtype=torch.float32)
    how = {"adversarial": z[2].to(DEVICE), "mixed": z[3].to(DEVICE), "index": torch.arange(6, device=DEVICE)}
    how["pairing"] = "one_way" if "dp" in spec else "views" if " + " in spec else None
    torch.testing.assert_close(results(spec, z[:2], None, **how), results(spec, z[:2], 0, **how), rtol=1e-3, atol=1e-4)


def test_bfloat16_is_multiplied_as_it_is(everywhere, monkeypatch):
    kinds, kernels = [], fused.reduce
    monkeypatch.setattr(fused, "reduce", lambda *given: kinds.append(given[0].dtype) or kernels(*given))
    z = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        found, exact = (results("infonce:t=T", x, tile) for x, tile in ((z.to(dtype), None), (z.to(dtype), 0)))
        assert found[1].dtype == dtype
        for mine, theirs in zip(found, exact, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=2e-2 * theirs.abs().max().item())
    assert kinds == [torch.bfloat16, torch.float32, torch.float32]


def test_a_tile_that_is_asked_for_and_float64_go_without(everywhere):
    z = torch.randn(2, 8, 16)
    results("infonce:t=T", z, 4)
    cp.InfoNCE(0.3)(*z.double().to(DEVICE))
    assert not everywhere


@pytest.mark.parametrize(("width", "calls"), [(1024, 2), (1025, 0), (8192, 0)])
def test_any_width(everywhere, width, calls):
    """Tiles, where the kernels' blocks do not fit."""
    z = torch.randn(2, 8, width, generator=torch.Generator().manual_seed(0))
    how = {"log_q": LOG_Q, "ids": IDS, "pairing": "symmetric"}
    how = {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in how.items()}
    spec = "infonce:t=learned(0.3,0.01,1)"
    torch.testing.assert_close(results(spec, z, None, **how), results(spec, z, 0, **how), rtol=1e-4, atol=2e-5)
    assert len(everywhere) == calls
    assert "engine[fused]" in cp.objective(spec).to(DEVICE).report(*z.to(DEVICE), **how)


def test_too_wide_embeddings_are_refused():
    with pytest.raises(ValueError, match=r"engine='fused'.*width 1025 on"):
        cp.InfoNCE(0.3)(*torch.randn(2, 8, 1025, device=DEVICE), engine="fused")


def test_no_second_derivative(everywhere):
    z = torch.randn(2, 8, 16, device=DEVICE, requires_grad=True)
    with pytest.raises(RuntimeError, match="engine='matrix'"):
        torch.autograd.grad(cp.InfoNCE(0.3)(z[0], z[1]), z, create_graph=True)


@pytest.mark.skipif(not GPU, reason="needs a GPU")
@pytest.mark.parametrize("spec", SPECS)
def test_no_step_waits_for_the_gpu(spec):
    z = embeddings(dtype=torch.float32).to(DEVICE).requires_grad_()
    how = {"adversarial": z[2], "mixed": z[3], "pairing": "one_way" if "dp" in spec else "views"}
    how["index"] = torch.arange(6, device=DEVICE)
    loss_fn = at(spec, 0.3).to(DEVICE)
    loss_fn(*z[:2], **how).backward()  # the first call compiles
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss_fn(*z[:2], **how).backward()
    finally:
        torch.cuda.set_sync_debug_mode(before)
