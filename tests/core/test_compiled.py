"""Large batches in compiled code, which break its graph and are computed as without a compiler."""

from __future__ import annotations

import copy

import pytest
import torch

import counterpoint as cp
from counterpoint.plugins.clip import ContrastiveLoss


@pytest.fixture(autouse=True)
def _afresh():
    torch._dynamo.reset()


def embeddings(count: int = 2, size: int = 300, seed: int = 0) -> list[torch.Tensor]:
    z = torch.randn(count, size, 16, generator=torch.Generator().manual_seed(seed))
    return [(x + z[0]).requires_grad_() for x in z]


def known(name: str, size: int = 300) -> dict[str, object]:
    g = torch.Generator().manual_seed(1)
    return {
        "": {},
        "ids": {"ids": torch.arange(size) % 100, "pairing": "symmetric"},
        "labels": {"labels": torch.arange(size) % 100},
        "queue": {"queue": torch.randn(1000, 16, generator=g)},
        "negatives": {"negatives": cp.Keys(torch.randn(size, 3, 16, generator=g).requires_grad_(), own_log_weight=0.5)},
        "guide": {
            "guide": [*torch.randn(2, size, 8, generator=g)],
            "false_negatives": [cp.margin(0.1), "threshold(0.95)"],
            "empty": "zero",
            "pairing": "one_way",
        },
        "weights": {"positive_factor": torch.rand(size, generator=g), "prior": torch.full((size,), 0.1)},
        "a pairing for each term": {"pairing": {"views": "one_way"}},
        "tiles": {"engine": "tiles:64", "pairing": "one_way"},
        "chunks": {"engine": "chunks", "pairing": "one_way"},
    }[name]


SPECS = (
    "infonce:t=learned(0.1,0.01,1)",
    "adnce:mu=auto,t=schedule(0.5,0.1,3)",
    "arcl(hcl) + 0.1*dp",
    "siglip:t=learned(0.1,0.01,1),b=learned(-10,-20,0)",
)


def compare(loss_fn: cp.Objective, backend: str, views: int = 2, steps: int = 3, **how: object) -> None:
    """Gradients of embeddings and parameters, and what moves during training, are those of uncompiled code."""
    plain = copy.deepcopy(loss_fn)
    step = torch.compile(lambda *z: 2 * loss_fn(*z, **how), backend=backend)
    for seed in range(steps):
        found, expected = embeddings(views, seed=seed), embeddings(views, seed=seed)
        step(*found).backward()
        (2 * plain(*expected, **how)).backward()
        for a, b in zip(found, expected, strict=True):
            assert a.grad is None or b.grad is not None or not a.grad.any()
            if b.grad is not None:
                torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-8)
    for a, b in zip(loss_fn.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(loss_fn.state_dict(), plain.state_dict())


@pytest.mark.parametrize("spec", SPECS)
def test_gradients_and_state(spec):
    compare(cp.objective(spec), "aot_eager", views=4 if "arcl" in spec else 2)


OFTEN = ("negatives", "guide")
RARELY = ("ids", "labels", "queue", "weights", "tiles", "chunks", "a pairing for each term")


@pytest.mark.parametrize("name", [*OFTEN, *(pytest.param(name, marks=pytest.mark.slow) for name in RARELY)])
def test_whatever_is_known_of_a_batch(name):
    compare(cp.InfoNCE(0.2), "aot_eager", steps=1, **known(name))


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
def test_compiled_to_machine_code(spec):
    compare(cp.objective(spec), "inductor", views=4 if "arcl" in spec else 2)


def test_an_objective_of_ones_own_and_its_copies():
    class Mine(cp.Objective):
        def per_anchor(self, pos, neg):
            return neg.logsumexp(lambda s: s / 0.2) - pos / 0.2

    compare(Mine(), "aot_eager", steps=1)


def test_two_objectives_in_one_function_keep_apart():
    step = torch.compile(lambda loss_fn, *z: loss_fn(*z), backend="aot_eager")
    z = embeddings()
    for t in (0.1, 0.5, 0.1):
        loss_fn = cp.InfoNCE(t)
        assert step(loss_fn, *z).item() == loss_fn(*z).item()


def test_bad_input_is_refused_when_the_code_runs():
    step = torch.compile(cp.InfoNCE(), backend="aot_eager")
    z = embeddings()
    with torch.no_grad():
        z[0][7, 3] = torch.nan
    with pytest.raises(ValueError, match=r"view 1: 1 of 4800 values are NaN or infinite, the first at \(7, 3\)"):
        step(*z)


def test_batches_of_twenty_sizes_share_compiled_code():
    compilations = []

    def backend(graph, inputs):
        compilations.append(graph)
        return graph.forward

    encoder = torch.nn.Linear(16, 16)
    loss_fn = cp.InfoNCE(0.1)
    step = torch.compile(lambda a, b: loss_fn(encoder(a), encoder(b)), backend=backend)
    for size in range(280, 680, 20):
        step(*embeddings(size=size)).backward()
    assert len(compilations) <= 5


@pytest.mark.parametrize(
    ("size", "options", "broken"), [(20, {}, False), (700, {}, True), (700, {"engine": "matrix"}, False)]
)
def test_small_batches_stay_a_matrix_that_the_compiler_sees(size, options, broken):
    step = torch.compile(cp.InfoNCE(), backend="eager", fullgraph=True)
    if broken:
        with pytest.raises(torch._dynamo.exc.Unsupported, match=r"torch\.compiler\.disable"):
            step(*embeddings(size=size), **options)
    else:
        step(*embeddings(size=size), **options)


def test_an_objective_that_compiled_code_makes():
    z = embeddings()
    step = torch.compile(lambda a, b: cp.InfoNCE(0.2)(a, b), backend="eager")
    assert step(*z).item() == pytest.approx(cp.InfoNCE(0.2)(*z).item(), rel=1e-6)


def test_under_torch_func_it_is_a_matrix():
    loss_fn, z = cp.InfoNCE(0.1), torch.stack([*embeddings()]).detach()
    many = z.unsqueeze(1).repeat(1, 2, 1, 1)
    compiled_many = torch.compile(torch.func.vmap(loss_fn.forward), backend="aot_eager", fullgraph=True)(*many)
    torch.testing.assert_close(compiled_many, torch.func.vmap(loss_fn.forward)(*many))
    gradient = torch.compile(torch.func.grad(loss_fn.forward), backend="aot_eager")(*z)
    torch.testing.assert_close(gradient, torch.func.grad(loss_fn.forward)(*z))


def test_an_exported_module_keeps_a_matrix():
    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.loss_fn = torch.nn.Linear(16, 16), cp.InfoNCE(0.1)

        def forward(self, a, b):
            return self.loss_fn(self.encoder(a), self.encoder(b))

    step, z = Step(), [x.detach() for x in embeddings()]
    exported = torch.export.export(step, (*z,))
    torch.testing.assert_close(exported.module()(*z), step(*z))


@pytest.mark.parametrize("spec", ["infonce:t=host", "siglip:t=0.1"])
def test_what_a_host_learns_keeps_its_gradient(spec):
    found = []
    for backend in ("aot_eager", None):
        scale, bias = torch.tensor(10.0, requires_grad=True), torch.tensor(-10.0, requires_grad=True)
        loss_fn, z = ContrastiveLoss(spec), [torch.nn.functional.normalize(x, dim=1) for x in embeddings()]
        step = torch.compile(loss_fn, backend=backend) if backend else loss_fn
        loss = step(*z, scale, bias if "siglip" in spec else None)
        found.append(torch.autograd.grad(loss, [bias if "siglip" in spec else scale]))
    torch.testing.assert_close(*found, rtol=1e-5, atol=0)
    assert found[0][0].abs() > 0


@pytest.mark.parametrize("pairing", ["views", "one_way", "joint", "symmetric"])
def test_an_anchor_that_a_rule_leaves_without_negatives_is_nan_in_compiled_code(pairing: str) -> None:
    """Compiled code reads no values, so it cannot raise; the loss and the gradients must not look sound."""
    z1, z2 = (torch.randn(5, 3, generator=torch.Generator().manual_seed(i)).requires_grad_() for i in (0, 1))
    loss_fn = cp.SupCon(0.5, denominator="with_positive")
    options = {"pairing": pairing, "false_negatives": cp.threshold(-0.9), "engine": "matrix"}
    with pytest.raises(ValueError, match="excludes every key"):
        loss_fn(z1, z2, **options)
    torch._dynamo.reset()
    loss = torch.compile(loss_fn, backend="eager", fullgraph=True)(z1, z2, **options)
    loss.backward()
    assert loss.isnan()
    assert z1.grad is not None
    assert z1.grad.isnan().any()
