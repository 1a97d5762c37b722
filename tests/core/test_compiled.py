"""Large batches in compiled code, which one operator computes as uncompiled code would."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import subprocess
import sys

import pytest
import torch

import counterpoint as cp
from counterpoint import compiled
from counterpoint.batch import rules
from counterpoint.batch.options import BatchOptions
from counterpoint.plugins.clip import ContrastiveLoss

pytestmark = pytest.mark.skipif(not compiled.AVAILABLE, reason="this PyTorch cannot register such an operator")


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
        "weights": {"positive_weight": torch.rand(size, generator=g), "prior": torch.full((size,), 0.1)},
        "a pairing for each term": {"pairing": {"infonce": "one_way", "*": "views"}},
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
    step = torch.compile(lambda *z: 2 * loss_fn(*z, **how), backend=backend, fullgraph=True)
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


def different(name: str) -> object:
    """Return a value of this argument of a call that is not its default."""
    values = {
        "directions": ("forward", "backward"), "hardness": ("in_batch_negatives", 0.3),
        "negatives": cp.Keys(torch.ones(3, 2), torch.arange(3), shared=False, own_log_weight=0.5),
        "empty": "zero", "in_batch": False,
        "normalize": False, "stacked": True, "engine": "tiles:32",
        "pairing": {"infonce": "one_way", "*": "views"},
        "false_negatives": [cp.margin(1 / 3, "relative", hard=False), cp.threshold(0.3, hard=False)],
        "guide": [torch.ones(2), torch.zeros(2)], "reduction": "sum", "gather": True,
    }  # fmt: skip
    return values.get(name, torch.full((3,), 0.25))


def test_every_option_reaches_the_operator_as_it_was_passed():
    """Also those to come: the arguments are taken from the signature."""
    received: dict[str, object] = {}

    class Recorded(cp.InfoNCE):
        def forward(self, *views, **options):
            received.update(options)
            return views[0].sum()

    parameters = inspect.signature(cp.Objective.forward).parameters.values()
    named = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} | set(BatchOptions.__annotations__)
    passed = {name: different(name) for name in named}
    for name, value in passed.items():  # each is a decision of its own
        assert compiled._is_plain(value), name
    compiled.loss_of(Recorded(), embeddings(), passed)
    for rule, text in zip(passed["false_negatives"], received.pop("false_negatives"), strict=True):
        assert rules.parse(text) == rule
    del passed["false_negatives"]
    assert set(received) == set(passed)
    for name, value in passed.items():
        if isinstance(value, (torch.Tensor, cp.Keys)) or name == "guide":
            torch.testing.assert_close(received[name], value)
        else:
            assert received[name] == value, name


def test_a_rule_spares_hard_negatives_in_compiled_code():
    a, b = torch.randn(2, 400, 8, generator=torch.Generator().manual_seed(0))
    hard = torch.nn.functional.normalize(a + 0.3 * b, dim=1)

    def loss(x, y, n):
        return loss_fn(x, y, negatives=n, false_negatives=cp.threshold(0.5, hard=False))

    loss_fn = cp.InfoNCE(0.1)
    compiled_loss = torch.compile(loss, backend="eager", fullgraph=True)(a, b, hard)
    torch.testing.assert_close(compiled_loss, loss(a, b, hard))
    assert compiled_loss > loss_fn(a, b, negatives=hard, false_negatives=cp.threshold(0.5)) + 0.1


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
def test_compiled_to_machine_code(spec):
    compare(cp.objective(spec), "inductor", views=4 if "arcl" in spec else 2)


def test_an_objective_of_ones_own_and_its_copies():
    class Mine(cp.Objective):
        def per_anchor(self, pos, neg):
            return neg.logsumexp(lambda s: s / 0.2) - pos / 0.2

    compare(Mine(), "aot_eager", steps=1)
    for made in (copy.deepcopy(cp.InfoNCE(0.2)), pickle.loads(pickle.dumps(cp.InfoNCE(0.2)))):
        gc.collect()  # what they are copies of is gone
        compare(made, "aot_eager", steps=1)


def test_two_objectives_in_one_function_keep_apart():
    step = torch.compile(lambda loss_fn, *z: loss_fn(*z), backend="aot_eager", fullgraph=True)
    z = embeddings()
    for t in (0.1, 0.5, 0.1):
        loss_fn = cp.InfoNCE(t)
        assert step(loss_fn, *z).item() == loss_fn(*z).item()


def test_no_gradient_where_none_is_wanted():
    loss_fn = cp.InfoNCE(cp.Schedule(0.5, 0.1, 3))
    step = torch.compile(loss_fn, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        assert step(*embeddings()).item() == loss_fn(*embeddings()).item()
    assert loss_fn.state_dict()["_temperature.step"] == 0
    fixed = embeddings()
    fixed[1] = fixed[1].detach()
    torch.compile(cp.InfoNCE(), backend="aot_eager", fullgraph=True)(*fixed).backward()
    assert fixed[1].grad is None
    assert fixed[0].grad.any()


def test_bad_input_is_refused_when_the_code_runs():
    step = torch.compile(cp.InfoNCE(), backend="aot_eager", fullgraph=True)
    z = embeddings()
    with torch.no_grad():
        z[0][7, 3] = torch.nan
    with pytest.raises(ValueError, match=r"view 1: 1 of 4800 values are NaN or infinite, the first at \(7, 3\)"):
        step(*z)


def test_batches_of_twenty_sizes_are_compiled_at_most_twice_again():
    compilations = []

    def backend(graph, inputs):
        compilations.append(graph)
        return graph.forward

    encoder = torch.nn.Linear(16, 16)
    loss_fn = cp.InfoNCE(0.1)
    step = torch.compile(lambda a, b: loss_fn(encoder(a), encoder(b)), backend=backend, fullgraph=True)
    for size in range(280, 680, 20):
        step(*embeddings(size=size)).backward()
    assert len(compilations) <= 3


def test_small_batches_stay_a_matrix_that_the_compiler_sees():
    loss_fn, called = cp.InfoNCE(), []

    def backend(graph, inputs):
        called.append("ops.counterpoint.loss" in graph.print_readable(print_output=False))
        return graph.forward

    step = torch.compile(loss_fn, backend=backend, dynamic=False, fullgraph=True)
    for size in (20, 700):
        step(*embeddings(size=size))
    assert called == [False, True]


def test_an_objective_that_compiled_code_makes_is_a_matrix():
    z = embeddings()
    step = torch.compile(lambda a, b: cp.InfoNCE(0.2)(a, b), backend="eager", fullgraph=True)
    assert step(*z).item() == pytest.approx(cp.InfoNCE(0.2)(*z).item(), rel=1e-6)


def test_under_torch_func_it_is_a_matrix():
    loss_fn, z = cp.InfoNCE(0.1), torch.stack([*embeddings()]).detach()
    many = z.unsqueeze(1).repeat(1, 2, 1, 1)
    compiled_many = torch.compile(torch.func.vmap(loss_fn.forward), backend="aot_eager", fullgraph=True)(*many)
    torch.testing.assert_close(compiled_many, torch.func.vmap(loss_fn.forward)(*many))
    gradient = torch.compile(torch.func.grad(loss_fn.forward), backend="aot_eager", fullgraph=True)(*z)
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
    assert "counterpoint" not in str(exported.graph)
    torch.testing.assert_close(exported.module()(*z), step(*z))


MEMORY = """
import sys, torch, counterpoint as cp
from torch.profiler import profile
torch.set_num_threads(1)
backend, loss_fn, encoder = sys.argv[1], cp.InfoNCE(0.1), torch.nn.Linear(128, 128)
def step(a, b):
    return loss_fn(encoder(a), encoder(b), pairing=sys.argv[2])
if backend != "none":
    step = torch.compile(step, backend=backend, fullgraph=True)
a, b = torch.randn(2, 8192, 128).unbind()
step(a, b).backward()
with profile(profile_memory=True) as profiled:
    step(a, b).backward()
events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
held = most = 0
for event in sorted(events, key=lambda e: e.start_ns()):
    held += event.nbytes()
    most = max(most, held)
print(most)
"""


def peak(backend: str, pairing: str) -> int:
    """Bytes that a training step holds at once."""
    return int(subprocess.check_output([sys.executable, "-c", MEMORY, backend, pairing]))


@pytest.mark.slow
@pytest.mark.parametrize(("pairing", "allowed"), [("views", 1.1), ("symmetric", 1.1), ("one_way", 1.01)])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_memory_is_that_of_uncompiled_code(backend, pairing, allowed):
    """The encoder's outputs live as long as the operator, so it writes their gradients over the unit vectors."""
    assert peak(backend, pairing) <= allowed * peak("none", pairing) < 80e6  # the matrix has 268 MB or 1,074 MB


@pytest.mark.parametrize("spec", ["infonce:t=host", "siglip:t=0.1"])
def test_what_a_host_learns_keeps_its_gradient(spec):
    """Scale and bias are tensors of the code around the call, which the operator would not see."""
    found = []
    for backend in ("aot_eager", None):
        scale, bias = torch.tensor(10.0, requires_grad=True), torch.tensor(-10.0, requires_grad=True)
        loss_fn, z = ContrastiveLoss(spec), [torch.nn.functional.normalize(x, dim=1) for x in embeddings()]
        step = torch.compile(loss_fn, backend=backend, fullgraph=True) if backend else loss_fn
        loss = step(*z, scale, bias if "siglip" in spec else None)
        found.append(torch.autograd.grad(loss, [bias if "siglip" in spec else scale]))
    torch.testing.assert_close(*found, rtol=1e-5, atol=0)
    assert found[0][0].abs() > 0


def test_a_loss_that_depends_on_no_trained_number():
    """Batches whose every anchor has no negatives have a loss of zero, of which nothing can be differentiated."""
    loss_fn = cp.InfoNCE(0.1)
    how = {"pairing": "one_way", "false_negatives": [cp.threshold(-2.0)], "empty": "zero"}
    z = embeddings()
    plain = loss_fn(*z, **how)
    found = torch.compile(lambda *z: loss_fn(*z, **how), backend="eager", fullgraph=True)(*z)
    assert found == plain == 0
    found.backward()
    assert all(x.grad is None or not x.grad.any() for x in z)


@pytest.mark.parametrize("t", ["schedule(0.5,0.1,10)", "learned(0.3)"])
def test_parts_of_an_objective_share_a_number(t):
    results = []
    for compile_ in (lambda f: f, lambda f: torch.compile(f, backend="eager", fullgraph=True)):
        loss_fn, views = cp.objective(f"intcl:t={t}"), embeddings()
        call = compile_(loss_fn)
        for _ in range(2):
            loss = call(*views, adversarial=views[1].detach() + 0.1, engine="tiles:64")
            loss.backward()
        state = [*loss_fn.buffers(), *(x.grad for x in loss_fn.parameters()), views[0].grad]
        results.append([loss.detach(), *state])
    assert len(results[0]) > 2
    torch.testing.assert_close(*results)


def test_a_tensor_may_be_passed_twice():
    z = torch.randn(300, 16, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(300) % 100
    loss_fn = cp.InfoNCE(0.1)

    def loss(view: torch.Tensor) -> torch.Tensor:
        return loss_fn(view, view, queue=cp.Keys(z, ids=labels), labels=labels, engine="tiles:64")

    found, expected = z.clone().requires_grad_(), z.clone().requires_grad_()
    compiled_loss, uncompiled_loss = torch.compile(loss, backend="eager", fullgraph=True)(found), loss(expected)
    torch.testing.assert_close(compiled_loss, uncompiled_loss)
    compiled_loss.backward()
    uncompiled_loss.backward()
    torch.testing.assert_close(found.grad, expected.grad)


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
