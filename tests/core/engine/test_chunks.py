"""Losses that are differentiated chunk by chunk are those of a matrix, value for value and gradient for gradient."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
import torch
from golden import CASES, TOLERANCE, evaluate, inputs
from specs import LEARNED, REGISTERED, SPECS, at, difficult, embeddings

import counterpoint as cp
from counterpoint.engine import chunks
from counterpoint.engine.pairs import PairNegatives
from counterpoint.engine.tiles import TileNegatives

ENGINES = ["matrix", "tiles", "chunks"]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Several chunks of several tiles, of which the last are smaller."""
    monkeypatch.setattr(chunks, "CHUNK", 40)
    monkeypatch.setattr(chunks, "HEIGHT", 2)
    monkeypatch.setattr(chunks, "EDGE", 4)


def options(pairing: str, z: torch.Tensor) -> dict:
    ids = torch.tensor([0, 1, 2, 0, 3, 4])
    log_q = torch.linspace(-3, 0, len(ids), dtype=z.dtype)
    cases = {
        "queue": {"queue": torch.cat([z[2], z[3]])},
        "queue ids": {"queue": cp.Keys(z[2], ids=ids.flip(0)), "ids": ids},
        "queue log_q": {"queue": cp.Keys(z[2], log_q=log_q)},
        "negatives": {"negatives": cp.Keys(z[2], own_log_weight=0.7)},
        "several negatives": {"negatives": cp.Keys(torch.stack([z[2], z[3]], 1), own_log_weight=-0.5)},
        "own negatives": {"negatives": cp.Keys(z[2], shared=False)},
        "ids": {"pairing": "one_way", "ids": ids},
        "negative ids": {"negatives": cp.Keys(z[2], ids=ids.roll(1)), "ids": ids},
        "log_q": {"pairing": "one_way", "log_q": log_q},
        "prior": {"pairing": "one_way", "prior": torch.linspace(0.01, 0.3, len(ids), dtype=z.dtype)},
        "positive_factor": {"pairing": "one_way", "positive_factor": torch.linspace(0.5, 1.5, len(ids), dtype=z.dtype)},
        "inner products": {"pairing": "one_way", "normalize": False},
        "own margin": {"pairing": "one_way", "false_negatives": cp.margin(-0.6)},
        "symmetric margin": {"pairing": "symmetric", "false_negatives": cp.margin(-0.6), "log_q": log_q},
        "threshold": {"negatives": z[2], "false_negatives": cp.threshold(0.2)},
        "exempt": {"negatives": z[2], "ids": ids, "false_negatives": cp.threshold(0.1, hard=False)},
        "guide": {"pairing": "symmetric", "false_negatives": cp.threshold(0.3), "guide": (z[2], z[3])},
        "queue guide": {
            "queue": cp.Keys(z[2], guide=z[0]), "false_negatives": cp.threshold(0.3), "guide": (z[3], z[1]), },
    }  # fmt: skip
    return {"index": torch.arange(len(ids)), **cases.get(pairing, {"pairing": pairing})}


def step(spec: str, z: torch.Tensor, how: dict, engine: str, factor: float = 1.0) -> list[torch.Tensor]:
    """The loss, and the gradients of all embeddings and parameters."""
    loss_fn = at(spec).to(z.dtype)
    keys = {k: cp.Keys.of(x) for k, x in how.items() if k in ("queue", "negatives")}
    leaves = {k: x.embeddings.clone().requires_grad_() for k, x in keys.items()}
    views = [x.clone().requires_grad_() for x in z[:2]]
    loss = loss_fn(*views, engine=engine, **how | {k: x._replace(embeddings=leaves[k]) for k, x in keys.items()})
    wanted = [*views, *leaves.values(), *loss_fn.parameters()]
    gradients = torch.autograd.grad(factor * loss, wanted, allow_unused=True)
    return [loss.detach(), *(torch.zeros_like(x) if g is None else g for x, g in zip(wanted, gradients, strict=True))]


SEPARATE = [
    spec
    for spec in [*SPECS, *LEARNED]
    if not at(spec).couples_anchors and at(spec).needs <= {"indexed"} and "views=" not in spec
]


@pytest.mark.parametrize("spec", SEPARATE)
@pytest.mark.parametrize("pairing", ["one_way", "queue", "negatives"])
def test_every_objective(spec, pairing):
    z = embeddings(dtype=torch.float64)
    how = options(pairing, z)
    for got, want in zip(step(spec, z, how, "chunks"), step(spec, z, how, "matrix"), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "spec",
    ["infonce:t=T", "hcl:t=T", "adnce:t=learned(0.3,0.01,1),mu=learned(0.4)", "mv:t=T",
     "siglip:t=learned(0.3),b=learned(-1,-5,0)"],
)  # fmt: skip
@pytest.mark.parametrize(
    "pairing",
    ["views", "symmetric", "first_two", "pairs", "arcl", "queue ids", "queue log_q", "several negatives",
     "own negatives", "ids", "negative ids", "log_q", "prior", "positive_factor", "inner products", "own margin",
     "symmetric margin", "threshold", "exempt", "guide", "queue guide"],
)  # fmt: skip
def test_every_pairing_and_mask(spec, pairing):
    z = embeddings(dtype=torch.float64)
    how = options(pairing, z)
    for got, want in zip(step(spec, z, how, "chunks"), step(spec, z, how, "matrix"), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_anchor_without_negatives_is_named_by_its_row(engine):
    z = torch.cat([torch.eye(4), torch.full((2, 4), 0.5)])  # the last two are as near to all others
    views = z.repeat(2, 1, 1).requires_grad_()
    with pytest.raises(ValueError, match=r"2 of 6 anchors have no negatives \(rows 4, 5\)"):
        cp.InfoNCE()(*views, pairing="one_way", engine=engine, false_negatives=cp.threshold(0.4))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("golden", [c for c in CASES if "z1" in c["args"] or "q" in c["args"]], ids=lambda c: c["id"])
def test_golden_values(golden, engine, monkeypatch):
    forward, refused = cp.Objective.forward, []

    def forced(self, *views, **how):
        try:
            return forward(self, *views, engine=engine, **how)
        except ValueError as error:
            refused.append(str(error))
            return forward(self, *views, **how)

    monkeypatch.setattr(cp.Objective, "forward", forced)
    args = inputs(golden)
    value = evaluate(golden, args)
    torch.testing.assert_close(value.detach(), torch.tensor(golden["value"], dtype=torch.float64), **TOLERANCE)
    found = torch.autograd.grad(value, [args[k] for k in golden["grad"]], allow_unused=True)
    for (name, expected), gradient in zip(golden["grad"].items(), found, strict=True):
        want = torch.tensor(expected, dtype=torch.float64).reshape(args[name].shape)
        torch.testing.assert_close(torch.zeros_like(want) if gradient is None else gradient, want, **TOLERANCE)
    if refused:
        why = {"lmcl_views": "depends on statistics of all anchors", "joint": "directions", "sogclr": "all anchors"}[
            golden["fn"]
        ]
        assert engine == "chunks"
        assert why in refused[0]


@pytest.mark.parametrize(
    ("name", "t"),
    [*itertools.product(["aligned", "duplicates", "identical", "opposite"], [0.1, 0.01, 0.005]), ("zero", 0.1)],
)
@pytest.mark.parametrize("edge", [32, 1024], ids=["tiles", "one tile"])
def test_float32(name, t, edge, monkeypatch):
    """As near to float64 as the matrix is, at any temperature."""
    monkeypatch.setattr(chunks, "CHUNK", 1024)
    monkeypatch.setattr(chunks, "EDGE", edge)
    z = difficult(name)
    found = []
    for dtype, engine in ((torch.float64, "matrix"), (torch.float32, "matrix"), (torch.float32, "chunks")):
        x = z.to(dtype).requires_grad_()
        loss = cp.InfoNCE(t)(x[0], x[1], pairing="one_way", engine=engine)
        found.append((loss.detach().double(), torch.autograd.grad(loss, x)[0].double()))
    (value, exact), (_, dense), (got, gradient) = found
    torch.testing.assert_close(got, value, rtol=1e-4, atol=1e-6)
    rounding = 1e-9 / t  # far below that of an exponent; some matrices have none
    assert (gradient - exact).norm() <= max(1e-6 * exact.norm(), 1.5 * (dense - exact).norm(), rounding)


def test_gradients_below_the_smallest_normal_number_of_their_products():
    """Each chunk's gradients are tiny, and those of the last chunk a million times larger than those of the first."""
    draw = torch.Generator().manual_seed(0)
    a = torch.nn.functional.normalize(torch.randn(8, 64, generator=draw, dtype=torch.float64))
    b = torch.nn.functional.normalize(a + 0.02 * torch.arange(8).unsqueeze(1) * torch.randn(8, 64, generator=draw))
    found = []
    for dtype, engine in ((torch.float64, "matrix"), (torch.float32, "chunks")):
        x = torch.stack([a, b]).to(dtype).requires_grad_()
        loss = cp.InfoNCE(0.02)(x[0], x[1], pairing="one_way", engine=engine)
        found.append(torch.autograd.grad(loss, x)[0].double())
    exact, gradient = found
    assert exact.norm() < 2**-14
    rows = exact.norm(dim=2)
    assert rows.max() > 1e6 * rows.min()
    assert ((gradient - exact).norm(dim=2) < 1e-3 * rows).all()


def test_numeric_gradients():
    z = embeddings(2, dtype=torch.float64).requires_grad_()
    for spec in ("infonce:t=T", "hcl:t=T"):
        loss_fn = at(spec)
        assert torch.autograd.gradcheck(lambda z, f=loss_fn: f(z[0], z[1], pairing="one_way", engine="chunks"), z)


def test_incoming_gradients_scale():
    z = embeddings(dtype=torch.float64)
    for got, want in zip(
        step("infonce:t=learned(0.3)", z, {"pairing": "one_way"}, "chunks", -2.5)[1:],
        step("infonce:t=learned(0.3)", z, {"pairing": "one_way"}, "chunks")[1:],
        strict=True,
    ):
        torch.testing.assert_close(got, -2.5 * want)
        assert got.abs().sum() > 0


@pytest.mark.parametrize("normalize", [True, False])
def test_backward_twice(normalize):
    z = [x.clone().requires_grad_() for x in torch.nn.functional.normalize(embeddings(2), dim=-1)]
    loss = cp.InfoNCE()(*z, pairing="one_way", engine="chunks", normalize=normalize)
    first = [g.clone() for g in torch.autograd.grad(loss, z, retain_graph=True)]
    loss.backward(retain_graph=True)
    sum(x.sum() for x in z).backward()  # whatever else is added to the gradients, in place
    loss.backward(retain_graph=True)
    torch.testing.assert_close([x.grad for x in z], [1 + 2 * g for g in first])
    assert all(map(torch.equal, torch.autograd.grad(loss, z), first))


def test_no_second_derivative():
    z = embeddings(2).requires_grad_()
    loss = cp.InfoNCE()(z[0], z[1], pairing="one_way", engine="chunks")
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(loss, z, create_graph=True)


def test_only_what_needs_a_gradient():
    a, b = embeddings(2)
    for first, second in ((True, False), (False, True), (False, False)):
        x, y = a.clone().requires_grad_(first), b.clone().requires_grad_(second)
        loss = cp.InfoNCE()(x, y, pairing="one_way", engine="chunks")
        torch.testing.assert_close(loss, cp.InfoNCE()(x, y, pairing="one_way", engine="matrix"))
        assert loss.requires_grad is (first or second)
        if loss.requires_grad:
            loss.backward()
        assert [x.grad is not None, y.grad is not None] == [first, second]
    with torch.no_grad():
        quiet = cp.InfoNCE()(a.requires_grad_(), b, pairing="one_way", engine="chunks")
    torch.testing.assert_close(quiet, loss)


def test_a_schedule_advances_once():
    loss_fn = at("infonce:t=schedule(0.3,0.1,9)")
    z = embeddings(2).requires_grad_()
    for engine in ("matrix", "chunks"):
        loss_fn(z[0], z[1], pairing="one_way", engine=engine)
    assert int(loss_fn.state_dict()["_temperature.step"]) == 2


MEMORY = """
import pathlib, torch, counterpoint as cp
torch.set_num_threads(1)
def held(key):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))
def step(n):
    a, b = (x.clone().requires_grad_() for x in torch.randn(2, n, 128))
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = held("VmRSS")
    cp.InfoNCE(0.1)(a, b, pairing="one_way").backward()
    return held("VmHWM") - before
step(1024)
print(step(4096))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory():
    """One chunk is 16 MB, the matrix would be 67 MB; kilobytes beyond the inputs, gradients included."""
    assert int(subprocess.check_output([sys.executable, "-c", MEMORY])) < 40_000


@pytest.mark.parametrize("spec", ["hcl:t=T", "infonce:t=T", "infonce:t=0.001", "siglip:t=T"])
@pytest.mark.parametrize("pairing", ["threshold", "inner products", "ids", "log_q", "negatives", "own negatives"])
def test_wide_embeddings_have_chunks_of_one_tile(spec, pairing, monkeypatch):
    """As a GPU has: few large operations instead of many in the cache. Exponentials are stored for the gradient."""
    z = embeddings(dtype=torch.float64)
    monkeypatch.setattr(chunks, "HEIGHT", 4)
    monkeypatch.setattr(chunks, "NARROW", 0)
    monkeypatch.setattr(chunks, "rows_of_chunk", lambda device, *sizes: 4)
    how = options(pairing, z)
    for x, wanted in zip(step(spec, z, how, "chunks"), step(spec, z, how, "matrix"), strict=True):
        torch.testing.assert_close(x, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("device", "anchors", "keys", "width", "rows"),
    [
        ("cpu", 4096, 4096, 128, 1024),  # 16 MB
        ("cpu", 512, 4096, 128, 512),  # all
        ("cpu", 10**6, 10**6, 128, 128),
        ("cuda", 2**16, 2**16, 128, 1024),  # 256 MB
        ("cuda", 2**16, 2**16, 4096, 4096),  # as many similarities as the keys have numbers
        ("cuda", 2**20, 2**20, 4096, 4096),
        ("cuda", 2**16, 2**22, 1024, 1024),
    ],
)
def test_rows_of_a_chunk(device, anchors, keys, width, rows, monkeypatch):
    monkeypatch.undo()
    assert chunks.rows_of_chunk(device, anchors, keys, width) == rows


# ---- where it is not possible --------------------------------------------------------------------


def refused(match: str, objective: cp.Objective | None = None, **how) -> None:
    z = embeddings(2).requires_grad_()
    objective = objective or cp.InfoNCE()
    with pytest.raises(ValueError, match=match):
        objective(z[0], z[1], **{"pairing": "one_way", "engine": "chunks", **how})
    with torch.no_grad():  # without a gradient there is nothing to do in chunks
        objective(z[0], z[1], **{"pairing": "one_way", "engine": "chunks", **how})


def test_forced_in_vain():
    z = embeddings()
    refused("chunks': .* reduction='none'", reduction="none")
    refused("chunks': .* statistics of all anchors", at("adnce:t=T,mu=auto"))
    refused("chunks': adversarial=", adversarial=z[2])


class Offset(cp.Objective):
    def __init__(self, offset: torch.Tensor) -> None:
        super().__init__()
        self.hidden = [offset]

    couples_anchors = False

    def per_anchor(self, pos, neg):
        return neg.logsumexp(lambda s: s) - pos + (self.hidden[0] * pos) ** 2


def test_what_is_not_a_parameter_keeps_its_gradient():
    refused("chunks': .* not its parameters", Offset(torch.tensor(2.0, requires_grad=True)))
    offset = torch.tensor(2.0, requires_grad=True)
    z = torch.randn(2, 520, 4, requires_grad=True)
    Offset(offset)(z[0], z[1], pairing="one_way").backward()
    got = offset.grad.clone()
    offset.grad = None
    Offset(offset)(z[0], z[1], pairing="one_way", engine="matrix").backward()
    torch.testing.assert_close(got, offset.grad)
    assert got > 0


class Centred(cp.Objective):
    """Does not say that a statistic of all anchors enters."""

    def per_anchor(self, pos, neg):
        return neg.logsumexp(lambda s: s) - (pos - pos.mean()) ** 2


def test_objectives_that_do_not_say_are_not_split():
    z = torch.randn(2, 520, 4, dtype=torch.float64, requires_grad=True)
    got, want = (
        torch.autograd.grad(Centred()(z[0], z[1], pairing="one_way", **how), z)[0] for how in ({}, {"engine": "matrix"})
    )
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-12)


# ---- which engine --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        (chunks.Chunk, {"pairing": "one_way"}),
        (chunks.Chunk, {"pairing": "symmetric", "engine": "chunks"}),
        (TileNegatives, {"pairing": "symmetric"}),
        (TileNegatives, {"pairing": "views"}),
        (TileNegatives, {"queue": torch.randn(2**10, 4)}),
        (TileNegatives, {"pairing": "one_way", "engine": "tiles:64"}),
        (TileNegatives, {"pairing": "one_way", "engine": "tiles"}),
        (PairNegatives, {"pairing": "one_way", "engine": "matrix"}),
        (PairNegatives, {"pairing": "symmetric", "engine": "matrix"}),
        (cp.MatrixNegatives, {"pairing": "views", "engine": "matrix"}),
    ],
)
def test_chosen(kind, how, monkeypatch):
    seen = set()
    losses = cp.InfoNCE.losses
    monkeypatch.setattr(chunks, "CHUNK", 2**18)
    monkeypatch.setattr(chunks, "EDGE", 64)
    monkeypatch.setattr(cp.InfoNCE, "losses", lambda self, scores: seen.add(type(scores.neg)) or losses(self, scores))
    z = torch.randn(2, 520, 4, requires_grad=True)
    cp.InfoNCE()(*z, **how)
    assert seen == {kind}


def test_chosen_by_size(monkeypatch):
    seen = []
    losses = cp.InfoNCE.losses
    monkeypatch.setattr(chunks, "CHUNK", 2**18)
    monkeypatch.setattr(chunks, "EDGE", 64)
    monkeypatch.setattr(
        cp.InfoNCE, "losses", lambda self, scores: seen.append(type(scores.neg)) or losses(self, scores)
    )
    z = torch.randn(2, 520, 4, requires_grad=True)
    cp.InfoNCE()(*z[:, :512], pairing="one_way")
    cp.InfoNCE()(z[0], z[1].detach(), pairing="one_way")
    cp.InfoNCE()(*z, pairing="one_way")
    assert seen == [PairNegatives, TileNegatives, chunks.Chunk, chunks.Chunk]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"engine": "chunk"}, "engine: unknown value 'chunk'.*chunks"),
        ({"engine": "tiles:0"}, "engine: expected tiles:N or chunks:N .*got 'tiles:0'"),
        ({"engine": "matrix:8"}, "engine: expected tiles:N or chunks:N .*got 'matrix:8'"),
        ({"engine": "fused"}, "engine='fused': GPU kernels need a GPU"),
    ],
)
def test_engines_that_are_not(how, message):
    with pytest.raises(ValueError, match=message):
        cp.InfoNCE()(*embeddings(2), **how)


def test_torch_func_needs_a_matrix():
    z = embeddings(2)
    for engine in ("tiles", "chunks"):
        with pytest.raises(ValueError, match=r"torch\.func needs 'matrix'"):
            torch.func.grad(lambda a, e=engine: cp.InfoNCE()(a, z[1], engine=e))(z[0])


@pytest.mark.parametrize(
    ("spec", "how", "name"),
    [
        ("infonce:t=T", {"pairing": "one_way"}, "chunks"),
        ("infonce:t=T + 0.1*dp", {"pairing": {"views": "one_way"}}, "chunks"),
        ("adnce:t=T,mu=auto", {"pairing": "one_way"}, "tiles"),
        ("infonce:t=T", {}, "tiles"),
        ("infonce:t=T", {"pairing": "one_way", "engine": "tiles"}, "tiles"),
        ("infonce:t=T", {"engine": "matrix"}, "matrix"),
    ],
)
def test_the_report_names_the_engine(spec, how, name):
    report = at(spec).report(*torch.randn(2, 520, 4), **how)
    assert [key for key in report if key.startswith("engine[")] == [f"engine[{name}]"]


EMPTIED = [spec for spec in REGISTERED if not at(spec).needs and "matryoshka" not in spec]


@pytest.mark.parametrize("engine", [*ENGINES, "auto"])
@pytest.mark.parametrize("spec", EMPTIED)
def test_an_anchor_that_a_rule_leaves_nothing(spec, engine):
    """One of many, or all: the same error in every engine, and with ``empty="zero"`` the loss of the others."""
    z = embeddings(2, 8)
    unit = torch.nn.functional.normalize(z, dim=-1)
    keys = unit[0] if at(spec).pairing == "single" else unit[1]
    least = (unit[0] @ keys.T).fill_diagonal_(torch.inf).amin(1).sort(descending=True).values
    for limit, empty in ((float(least[:2].mean()), 1), (-0.999, 8)):
        how = {"pairing": "one_way", "engine": engine, "false_negatives": cp.threshold(limit)}
        with pytest.raises(
            ValueError, match=rf"{empty} of 8 anchors have no negatives \(row.*false_negatives= excludes"
        ):
            at(spec)(*z, **how)
        losses = [at(spec)(*z, empty="zero", **{**how, "engine": which}) for which in (engine, "matrix")]
        torch.testing.assert_close(*losses)


@pytest.mark.parametrize("pairing", ["views", "symmetric", "one_way"])
def test_inner_problems_share_the_buffers_of_a_chunk(pairing):
    """The weights of one problem stay while the next is solved; the next chunk overwrites both."""

    class Worst(cp.Objective):
        couples_anchors = False

        def per_anchor(self, pos, neg):
            parts = (cp.CLDRO(0.2), cp.CLDRO(0.05), cp.CLDRO(0.3, "chi2"))
            return sum(part.per_anchor(torch.zeros_like(pos), neg) for part in parts) + neg.mean(lambda s: s**3) - pos

    found = []
    for engine in ("matrix", "chunks"):
        z = embeddings(2, dtype=torch.float64).requires_grad_()
        loss = Worst()(*z, pairing=pairing, engine=engine)
        found.append((loss.detach(), torch.autograd.grad(loss, z)[0]))
    torch.testing.assert_close(found[1], found[0])
