"""Streamed negatives are the dense ones, value for value and gradient for gradient."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import fresh
from specs import CHOICES, LEARNED, SPECS, at, difficult, embeddings, keyed, of_tiles
from torch.autograd import forward_ad

import counterpoint as cp
from counterpoint.batch.pairings import PAIRINGS
from counterpoint.engine import passes
from counterpoint.engine.mask import Mask
from counterpoint.engine.pairs import PairNegatives
from counterpoint.engine.passes import TilePass
from counterpoint.engine.quadratic import Quadratics
from counterpoint.engine.tiles import TileNegatives
from counterpoint.values import Learned

ALL = [*SPECS, *LEARNED]


def compare(spec: str, tile: int | None, z: torch.Tensor, t: float = 0.5, tolerance: float = 1e-10, **how) -> None:
    """Loss, gradients of embeddings and parameters, and state, in tiles and with a matrix."""
    found = []
    for edge in (tile, 0):
        loss_fn = at(spec, t).to(z.dtype)
        leaves = {k: v.clone().requires_grad_() for k, v in tensors(z, how).items()}
        views = [v for k, v in leaves.items() if k.startswith("view")]
        extra = {**how, **{k: v for k, v in leaves.items() if not k.startswith("view")}}
        losses = loss_fn(*views, engine=of_tiles(edge), reduction="none", **keyed(extra))
        weight = torch.linspace(0.5, 1.5, len(losses), dtype=losses.dtype)
        inputs = [*leaves.values(), *loss_fn.parameters()]
        gradients = torch.autograd.grad((losses * weight).sum(), inputs, allow_unused=True)
        gradients = [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, gradients, strict=True)]
        found.append((losses.detach(), gradients, loss_fn.state_dict()))
    (value, gradients, state), (want, want_gradients, want_state) = found
    torch.testing.assert_close(value, want, rtol=tolerance, atol=tolerance)
    for got, wanted in zip(gradients, want_gradients, strict=True):
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance * max(1, 1 / t, wanted.abs().max()))
    for key in want_state:
        torch.testing.assert_close(state[key], want_state[key], rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "spec",
    [
        "infonce:t=T",
        "dcl:t=T",
        "hcl:t=T",
        "adnce:t=T",
        "mv:t=T",
        "dp",
        "debpos:t=T",
        "nca:t=T",
        "supcon:t=T",
        "siglip:t=T",
    ],
)
def test_float32(spec):
    """As near to float64 as the matrix is, where the number of pairs makes tiles the default."""
    z = torch.randn(2, 300, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def step(dtype: torch.dtype, tile: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        x = z.to(dtype).requires_grad_()
        loss = at(spec, 0.05)(x[0], x[1], engine=of_tiles(tile))
        return loss.detach().double(), torch.autograd.grad(loss, x)[0].double()

    value, gradient = step(torch.float64, 0)
    for tile in (None, 128):
        got, got_gradient = step(torch.float32, tile)
        assert abs(got - value) <= 1e-5 * abs(value)
        assert (got_gradient - gradient).norm() <= 1e-5 * gradient.norm()


@pytest.mark.parametrize("weight", [50.0, 80.0])
def test_heavy_hard_negatives(weight):
    """Neither the similarities nor the weight alone would overflow."""
    z = embeddings().requires_grad_()
    found = []
    for tile in (3, 0):
        loss = cp.InfoNCE(1 / 59)(z[0], z[1], negatives=cp.Keys(z[2], own_log_weight=weight), engine=of_tiles(tile))
        found.append([loss, *torch.autograd.grad(loss, z)])
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("tile", [0, 3])
@pytest.mark.parametrize("pairing", ["views", "one_way", "symmetric", "arcl", "queue", "negatives", "adversarial"])
@pytest.mark.parametrize("half", [torch.float16, torch.float32])
def test_one_tensor_in_float64_makes_all_so(pairing, tile, half):
    """Data of another kind is often NumPy's, of float64."""
    z = embeddings().to(half)
    wanted, exact = ([z[0].to(kind).requires_grad_(), z[1].double()] for kind in (half, torch.float64))
    found = []
    for x, y in (wanted, exact):
        named = pairing in ("queue", "negatives", "adversarial")
        how = {pairing: y} if named else {"pairing": pairing}
        loss_fn = cp.IntNaCl(0.5) if pairing == "adversarial" else cp.HCL(0.5)
        loss = loss_fn(x, x if named else y, engine=of_tiles(tile), **how)
        assert loss.dtype == torch.float64
        found.append([loss, torch.autograd.grad(loss, x)[0].double()])
    accurate = torch.finfo(half).eps
    torch.testing.assert_close(*found, rtol=2 * accurate, atol=accurate)


@pytest.mark.parametrize("tile", [4, 64])
@pytest.mark.parametrize("pairing", ["views", "one_way", "symmetric", "pairs"])
@pytest.mark.parametrize("spec", ["hcl", "alphacl"])
def test_one_tensor_as_both_views(spec, pairing, tile):
    """Then anchors and keys are one tensor, too."""
    found = []
    for edge in (tile, 0):
        z = embeddings(dtype=torch.float64)[0].requires_grad_()
        losses = cp.objective(spec)(z, z, pairing=pairing, normalize=False, engine=of_tiles(edge), reduction="none")
        weight = torch.linspace(0.5, 1.5, len(losses), dtype=z.dtype)
        found.append([losses, *torch.autograd.grad((losses * weight).sum(), z)])
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16])
def test_ids_of_any_integer_type(dtype):
    z, ids = embeddings(), torch.arange(6) % 2
    for name in ("ids", "labels"):
        for tile in (0, 3):
            found = cp.InfoNCE()(z[0], z[1], engine=of_tiles(tile), **{name: ids.to(dtype)})
            torch.testing.assert_close(
                found, cp.InfoNCE()(z[0], z[1], engine=of_tiles(tile), **{name: ids}), rtol=0, atol=0
            )
        how = {"queue": cp.Keys(z[2], ids=ids.to(dtype))}
        torch.testing.assert_close(
            cp.InfoNCE()(z[0], z[1], **{name: ids}, **how), cp.InfoNCE()(z[0], z[1], **{name: ids.to(dtype)}, **how)
        )


def tensors(z: torch.Tensor, how: dict) -> dict[str, torch.Tensor]:
    views = {f"view {k}": v for k, v in enumerate(z)}
    return views | {k: how[k] for k in ("adversarial", "mixed", "negatives", "queue") if how.get(k) is not None}


def pairing_of(spec: str) -> str | None:
    # a sum needs the same anchors throughout
    return "one_way" if "dp" in spec or "gor" in spec else "views" if " + " in spec else None


@pytest.mark.parametrize(
    ("spec", "tile"),
    [(spec, tile) for spec in ALL for tile in ((5,) if spec in CHOICES else (1, 5, 64))],  # 5: the last tile is smaller
)
def test_every_objective(spec, tile):
    z = embeddings(dtype=torch.float64)
    more = {"adversarial": z[2], "mixed": z[3], "index": torch.arange(z.shape[1])}
    compare(spec, tile, z[:2], **more, pairing=pairing_of(spec))


@pytest.mark.parametrize(
    "spec", ["dro", "dro:divergence=chi2", "adnce:t=T,mu=auto,sigma=auto", "mv:t=T", "alphacl:t=T"]
)
def test_repeated_reductions_of_a_larger_batch(spec):
    """By default these keep a small matrix from the second reduction on."""
    z = embeddings(2, 200, dtype=torch.float64)
    compare(spec, None, z, tolerance=1e-9)


NEEDS_VIEWS = ("robust", "int", "mixnca")
TWO_VIEWS = [s for s in ALL if "sogclr" in s and "average=sample" not in s]
PAIRED = [s for s in ALL if not s.startswith(NEEDS_VIEWS) and " + " not in s and s not in TWO_VIEWS]


@st.composite
def batches(draw):
    """Any batch: how many views of how many samples, in which pairing, with which masks, in which tiles."""
    batch, width = draw(st.integers(2, 9)), draw(st.integers(1, 5))
    pairing = draw(st.sampled_from([*(name for name in PAIRINGS if name != "single"), "hard"]))
    m = 2 if pairing in ("symmetric", "queue", "joint") else draw(st.integers(2, 4))
    random = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    z = torch.randn(m, batch, width, generator=random, dtype=torch.float64)
    how: dict = {"pairing": pairing, "normalize": draw(st.booleans()), "index": torch.arange(batch)}
    if draw(st.booleans()):
        z[:, 1] = z[:, 0]  # duplicates
    if draw(st.booleans()):
        z[0, 0] = 0
    if not how["normalize"]:
        z = 0.5 * z
    keys = draw(st.integers(2, 20))
    ids = torch.arange(batch) // 2 if batch > 2 and draw(st.booleans()) else None
    if pairing == "queue":
        how |= {"pairing": None, "queue": torch.randn(keys, width, generator=random, dtype=torch.float64)}
        if ids is not None:
            how |= {"queue_ids": torch.arange(keys) % (batch + 1) + 1}
    if pairing == "hard":
        each = draw(st.integers(1, 3))
        how |= {"pairing": None, "negative_weight": draw(st.sampled_from([0.0, 1.5]))}
        how["negatives"] = torch.randn(batch, each, width, generator=random, dtype=torch.float64)
        if ids is not None and draw(st.booleans()):
            how["negative_ids"] = torch.arange(batch * each) % (batch + 3)
    if ids is not None:
        how["ids"] = ids
    if draw(st.booleans()):
        how["prior"] = torch.linspace(0.01, 0.2, batch, dtype=torch.float64)
    return z, how, draw(st.integers(1, 12))


@settings(max_examples=75, deadline=None, derandomize=True, database=None)
@given(batch=batches(), spec=st.sampled_from(PAIRED), t=st.sampled_from([0.05, 0.5, 2.0]))
def test_every_batch(batch, spec, t):
    z, how, tile = batch
    compare(spec, tile, z, t, **how)


# ---- functions -----------------------------------------------------------------------------------


def unit(*shape: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(0)
    return torch.nn.functional.normalize(torch.randn(*shape, generator=random, dtype=torch.float64), dim=-1)


T, ROWS = torch.tensor(0.3, dtype=torch.float64), torch.linspace(-1, 1, 10, dtype=torch.float64).unsqueeze(1)
QUADRATIC = {
    "linear": lambda s: s / 0.1,
    "tensor": lambda s: (T - s) * 2 / T,
    "per anchor": lambda s, m: (m - s) ** 2 / -T,
    "detached": lambda s: (torch.square(s.detach() - T) * -0.5 + s / T, -s.detach()),
    "functions": lambda s: torch.sub(s, 1) + torch.mul(s, s) - T * torch.neg(s) + s.square() * 0,
}
RECTIFIED = {
    "clamped": lambda s: s.clamp(min=0),
    "polarised": lambda s: ((s + 0.1) * (0.6 - s)).clamp(min=0),
    "hinge": lambda s: torch.relu(0.2 - s),
}
OTHER = {
    "clamped twice": lambda s: s.clamp(min=0, max=0.3),
    "clamped elsewhere": lambda s: s.clamp(min=0.1),
    "after a clamp": lambda s: 2 * s.clamp(min=0) + s,
    "one of two": lambda s: (s, s.clamp(min=0)),
    "learned limit": lambda s: (s - T).clamp(min=0),
    "cubic": lambda s: s**3,
    "steep": lambda s: -((s - 0.2) ** 2) / 0.01,
    "inverse": lambda s: 1 / (s + 2),
    "compared": lambda s: (s > 0).to(s.dtype),
}


@pytest.mark.parametrize("reduction", ["logsumexp", "mean"])
@pytest.mark.parametrize("name", [*QUADRATIC, *RECTIFIED, *OTHER])
def test_what_is_quadratic_is_found_and_reduced(name, reduction):
    f = (QUADRATIC | RECTIFIED | OTHER)[name]
    rows = (ROWS,) if name == "per anchor" else ()
    quadratic = Quadratics.of(f, rows, 10, torch.float64)
    assert (quadratic is None) == (name in OTHER)
    assert quadratic is None or (quadratic[0].after == "relu") == (name in RECTIFIED)
    found = []
    for z in (unit(10, 4).requires_grad_(),) * 2:
        neg = TileNegatives([(z, z)], mask=Mask(5), tile=3)
        results = getattr(neg if not found else neg.dense(), reduction)(f, *rows)
        results = results if isinstance(results, tuple) else (results,)
        loss = sum((x * torch.arange(10).unsqueeze(1)).sum() for x in results)
        found.append([*results, torch.autograd.grad(loss + 0 * z.sum(), z)[0]])
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.saved_tensors[0]


@pytest.mark.parametrize(
    "f", [lambda s, w: Square.apply(s) * w, lambda s, w: s * Square.apply(w), lambda s, w: Square.apply(s * w)]
)
def test_functions_of_ones_own(f):
    """What torch is not shown is captured where it has no dimensions, else a matrix stands in."""
    learned = Learned(0.7).double()
    found = []
    for dense in (False, True):
        z = unit(10, 4).requires_grad_()
        neg = TileNegatives([(z, z)], mask=Mask(5), tile=3)
        loss = (neg.dense() if dense else neg).mean(lambda s: f(s, learned())).sum()
        found.append([loss, *torch.autograd.grad(loss, [z, *learned.parameters()])])
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("tile", [0, 7, None])
@pytest.mark.parametrize("power", [1, 3])
def test_what_differs_from_anchor_to_anchor_is_not_closed_over(tile, power):
    class Apart(cp.Objective):
        def per_anchor(self, pos, neg):
            return neg.mean(lambda s: (s - pos).abs() ** power)

    with pytest.raises(TypeError, match=r"made \(\d+, \d+\) of \(1, \d+\) similarities: .* neg.mean\(f, per_anchor\)"):
        Apart()(*torch.randn(2, 200, 4), engine=of_tiles(tile))


def test_ties_share_the_gradient_of_the_largest():
    keys = unit(3, 4).repeat(3, 1).requires_grad_()
    anchors = keys[:1].detach().clone().requires_grad_()
    TileNegatives([(anchors, keys)], tile=2).max().sum().backward()
    torch.testing.assert_close(keys.grad[::3], anchors.detach().expand(3, -1) / 3)
    assert keys.grad[1::3].abs().sum() == 0


@pytest.mark.parametrize("tile", [2, 4, 64])
@pytest.mark.parametrize(
    "how",
    [{}, {"ids": torch.tensor([0, 1, 2, 0, 3, 4])}, {"negatives": embeddings(1, seed=5)[0]}, {"queue": "further"}],
)
@pytest.mark.parametrize("spec", ["infonce:t=T", "adnce:t=T", "dcl:t=T"])
def test_keys_without_gradient(spec, how, tile):
    """Their sum, weighted, is computed in the forward pass; a gradient of each anchor's own scales it."""
    a, b, c = embeddings(3, dtype=torch.float64)
    how = {k: v.double() if k == "negatives" else c if k == "queue" else v for k, v in how.items()}
    if "queue" not in how:
        how |= {"pairing": "one_way", "negative_weight": 0.7}
    found = []
    for edge in (tile, 0):
        z = a.clone().requires_grad_()
        losses = at(spec)(z, b, engine=of_tiles(edge), reduction="none", **keyed(how))
        found.append(torch.autograd.grad((losses * torch.linspace(-1, 2, 6)).sum(), z)[0])
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


def test_keys_without_gradient_are_not_computed_twice(monkeypatch):
    products = []
    product = TilePass.product
    monkeypatch.setattr(TilePass, "product", lambda self, *args: products.append(1) or product(self, *args))
    z = embeddings(3).requires_grad_()
    cp.InfoNCE()(z[0], z[1], queue=z[2], engine="tiles:3").backward()
    assert len(products) == 4


# ---- how it is called ----------------------------------------------------------------------------


def test_chosen_by_size(monkeypatch):
    chosen = []
    monkeypatch.setattr(cp.InfoNCE, "losses", lambda self, scores: chosen.append(type(scores.neg)) or scores.pos)
    small, large = torch.randn(2, 16, 4), torch.randn(2, 256, 4)
    for z, tile in ((small, None), (large, None), (small, 8), (large, 0)):
        cp.InfoNCE()(*z, engine=of_tiles(tile))
    cp.InfoNCE()(small[0], small[1], queue=torch.randn(2**14, 4))
    for samples in (362, 363):  # as many pairs as a matrix of separate keys has at most, and more
        cp.InfoNCE()(*torch.randn(2, samples, 4, requires_grad=True), pairing="symmetric")
    dense, streamed = cp.MatrixNegatives, TileNegatives
    assert chosen == [dense, streamed, streamed, dense, streamed, PairNegatives, streamed]


@pytest.mark.parametrize("spec", ["infonce:t=0.3", "infonce:t=0.005", "hcl:t=0.5 + 0.1*dp", "adnce"])
def test_stored_tiles_change_nothing(monkeypatch, spec):
    """Of a small batch all tiles are stored, of a larger one the first; a second backward pass recomputes them."""
    z, results = torch.randn(2, 40, 8, requires_grad=True), []
    for stored in (2**20, 0):
        monkeypatch.setattr(passes, "STORED", stored)
        loss = cp.objective(spec)(*z, engine="tiles:16")
        results += [torch.autograd.grad(loss, z, retain_graph=retained)[0] for retained in (True, False)]
    for gradient in results[1:]:
        torch.testing.assert_close(gradient, results[0], rtol=0, atol=0)


@pytest.mark.parametrize("tile", ["-1", "0.5", "True", "all"])
def test_a_tile_that_is_none(tile):
    with pytest.raises(ValueError, match="engine: expected tiles:N"):
        cp.InfoNCE()(*torch.randn(2, 4, 4), engine=f"tiles:{tile}")


class Alignment(cp.Objective):
    def per_anchor(self, pos, neg):
        return -(pos**2)


def test_the_second_derivative_says_what_to_do():
    z = torch.randn(2, 8, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match="engine='matrix'"):
        torch.autograd.grad(cp.InfoNCE()(z[0], z[1], engine="tiles:4"), z, create_graph=True)
    (gradient,) = torch.autograd.grad(cp.InfoNCE()(z[0], z[1], engine="matrix"), z, create_graph=True)
    assert torch.autograd.grad(gradient.square().sum(), z)[0].abs().sum() > 0


def test_positives_alone_can_be_differentiated_again():
    z = torch.randn(2, 8, 4, requires_grad=True)
    for pairing in ("views", "symmetric"):
        found = []
        for tile in (4, 0):
            (gradient,) = torch.autograd.grad(
                Alignment()(z[0], z[1], engine=of_tiles(tile), pairing=pairing), z, create_graph=True
            )
            found.append(torch.autograd.grad(gradient.square().sum(), z)[0])
        torch.testing.assert_close(*found)
        assert found[0].any()


def test_forward_mode_says_what_to_do():
    z = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(z, torch.ones_like(z))
        with pytest.raises(NotImplementedError, match=r"forward-mode.*engine='matrix'"):
            cp.InfoNCE()(dual[0], dual[1], engine="tiles:4")
        for spec in ("infonce", "dro"):
            slope = forward_ad.unpack_dual(cp.objective(spec)(dual[0], dual[1], engine="matrix")).tangent
            x = z.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(cp.objective(spec)(*x), x)
            torch.testing.assert_close(slope, gradient.sum(), rtol=1e-4, atol=1e-5)


def test_under_torch_func():
    z = torch.randn(2, 300, 4)
    want = torch.autograd.grad(cp.InfoNCE()(*(x := z.clone().requires_grad_())), x)[0]
    torch.testing.assert_close(torch.func.grad(lambda x: cp.InfoNCE()(*x))(z), want)


def test_backward_twice():
    z = torch.randn(2, 8, 4, requires_grad=True)
    for tile in (4, 64):
        loss = cp.HCL(cp.Learned(0.5))(z[0], z[1], engine=of_tiles(tile))
        first = torch.autograd.grad(loss, z, retain_graph=True)
        torch.testing.assert_close(torch.autograd.grad(loss, z), first, rtol=0, atol=0)


@pytest.mark.parametrize("spec", ["infonce:t=T", "alphacl:t=T", "dro"])
def test_autocast_and_no_grad_change_nothing(spec):
    z = embeddings().requires_grad_()
    loss = at(spec, 0.05)(z[0], z[1], engine="tiles:5")
    with torch.autocast("cpu", torch.bfloat16):
        inside = at(spec, 0.05)(z[0], z[1], engine="tiles:5")
        found = torch.autograd.grad(inside, z)[0]
    torch.testing.assert_close(inside, loss, rtol=0, atol=0)
    torch.testing.assert_close(found, torch.autograd.grad(loss, z)[0], rtol=0, atol=0)
    with torch.no_grad():
        torch.testing.assert_close(at(spec, 0.05)(z[0], z[1], engine="tiles:5"), loss.detach(), rtol=0, atol=0)


def test_behind_a_compiled_encoder():
    torch._dynamo.reset()
    encoder, x = torch.nn.Linear(6, 4), torch.randn(2, 300, 6)
    encoder.weight.grad = None
    found = []
    for encode in (encoder, torch.compile(encoder, backend="aot_eager")):
        loss = cp.InfoNCE()(encode(x[0]), encode(x[1]))
        found.append(torch.autograd.grad(loss, encoder.weight)[0])
    torch.testing.assert_close(*found)


def test_threads_widen_tiles_and_change_nothing_else():
    code = """
import torch, counterpoint as cp
for threads in (1, 2):
    torch.set_num_threads(threads)
    z = torch.randn(2, 600, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    for spec in ("infonce:t=0.1", "infonce:t=0.01", "alphacl:t=learned(0.3)", "mv", "dp"):
        loss_fn = cp.objective(spec).double()
        loss = loss_fn(z[0], z[1])
        for g in torch.autograd.grad(loss, [z, *loss_fn.parameters()]):
            print(loss.item(), g.square().sum().item())
    assert torch.get_num_threads() == threads
"""
    found = [float(x) for x in fresh(code).split()]
    one, two = found[: len(found) // 2], found[len(found) // 2 :]
    assert one == pytest.approx(two, rel=1e-10)


# ---- robustness ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["aligned", "duplicates", "identical", "opposite", "zero", "large"])
@pytest.mark.parametrize("t", [0.005, 0.01, 0.1])
def test_hard_batches(name, t, dtype):
    z = difficult(name).to(dtype)
    for spec in ("infonce:t=T", "hcl:t=T", "adnce:t=T", "adnce:t=T,denominator=mean"):
        x = z.clone().requires_grad_()
        loss = at(spec, t)(x[0], x[1], engine="tiles:48")
        (gradient,) = torch.autograd.grad(loss, x)
        assert loss.isfinite()
        assert gradient.isfinite().all()
        if name == "opposite" and spec == "infonce:t=T" and t == 0.01 and dtype == torch.float32:
            assert loss > 100
            assert gradient.abs().max() > 0


@pytest.mark.parametrize("t", [0.05, 0.1])
@pytest.mark.parametrize("name", ["aligned", "duplicates"])
def test_gradients_are_as_accurate_as_with_a_matrix(name, t):
    found = []
    for dtype, tile in ((torch.float64, 0), (torch.float32, 0), (torch.float32, 48)):
        x = difficult(name).to(dtype).requires_grad_()
        found.append(torch.autograd.grad(cp.InfoNCE(t, "mean")(x[0], x[1], engine=of_tiles(tile)), x)[0].double())
    exact, dense, streamed = found
    assert (streamed - exact).norm() <= max(1e-6 * exact.norm(), 1.5 * (dense - exact).norm())


# ---- memory --------------------------------------------------------------------------------------

MEMORY = """
import pathlib, sys, torch, counterpoint as cp
torch.set_num_threads(1)
size, spec = int(sys.argv[1]), sys.argv[2]
def held(key):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))
def step(n):
    a, b = torch.randn(2, n, 128).unbind()
    a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
    guide = torch.randn(2, n, 128).cumsum(0).unbind()
    how, keys = {"guide": guide, "false_negatives": cp.margin(0.1)} if "rule" in sys.argv else {}, b
    if "soft" in sys.argv:
        how = {"guide": guide, "pairing": "one_way"}
    elif "documents" in sys.argv:
        keys = cp.Keys(b, positives=torch.stack([torch.arange(n), torch.randint(-1, n, (n,))], 1))
    elif "padded" in sys.argv:
        log_q = torch.zeros(n, 1).masked_fill(torch.rand(n, 1) < 0.5, torch.inf)
        how = {"negatives": cp.Keys(torch.randn(n, 1, 128), log_q=log_q), "pairing": "one_way"}
    elif "index" in sys.argv:
        how = {"index": torch.arange(n)}
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = held("VmRSS")
    cp.objective(spec)(a, keys, **how).backward()
    return held("VmHWM") - before
step(1024)
print(step(size))
"""


def peak(size: int, spec: str, *more: str) -> float:
    """Megabytes beyond inputs, gradients included."""
    return int(subprocess.check_output([sys.executable, "-c", MEMORY, str(size), spec, *more])) / 1000


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    "spec", [*(pytest.param(f"infonce:t={t}", marks=pytest.mark.slow) for t in (0.1, 0.01)), "infonce:t=0.1 + 0.1*dp"]
)
def test_memory_does_not_grow_with_the_square(spec):
    # 3 n d floats are 6.3 MB, the matrix 67 MB
    assert peak(2048, spec) < 25


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_that_of_a_few_copies_of_the_views():
    assert peak(4096, "infonce:t=0.1") < 17  # 3 n d floats are 12.6 MB; 19.4 where gradients of views are not in blocks


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        ("hcl:t=0.1", "padded"),
        ("soft", "soft"),
        ("hcl:t=0.1", "documents"),
        *(
            (spec, "index")
            for spec in (
                "psl",
                "drrl",
                "rince",
                "arctanh",
                "matryoshka(infonce)",
                "sogclr:size=16384",
                "isogclr:size=16384",
            )
        ),
    ],
)
def test_memory_of_a_large_batch_by_shape(spec, shape):
    """The matrix is 1074 MB or, with hard negatives, 2147; the chunks of soft targets are a constant of 330."""
    assert peak(16384, spec, shape) < (400 if shape == "soft" else 300)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_of_a_large_batch():
    plain = peak(32768, "infonce:t=0.1")
    assert plain < 150
    assert peak(32768, "infonce:t=0.1", "rule") < 1.5 * plain


def test_a_schedule_inside_a_function_is_that_of_the_forward_pass():
    """Found by fuzzing: the backward pass calls the function again, when the schedule is a step further."""

    class Waved(cp.Objective):
        temperature: cp.Real = cp.Real("t", default=0.5, above=0)

        def per_anchor(self, pos, neg):
            return neg.logsumexp(lambda s: s.sin() / self.temperature) - pos / self.temperature

    z, gradients = torch.randn(2, 6, 4, dtype=torch.float64, requires_grad=True), []
    for tile in (0, 2):
        loss_fn = Waved(cp.Schedule(0.1, 1, 3))
        first, second = (loss_fn(*z, engine=of_tiles(tile)) for _ in range(2))  # two steps before their backward passes
        gradients.append(torch.autograd.grad(first + 2 * second, z)[0])
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)
