"""One contract for every objective: whatever is registered, here or by a plugin, passes the same tests."""

from __future__ import annotations

import copy
import inspect
import io
import json
import math
import pickle
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specs import DENOMINATORS, OF_SCORES, REGISTERED, SPECS, at, embeddings, of_scores, of_tiles
from torch.utils._python_dispatch import TorchDispatchMode

import counterpoint as cp

TEMPERATURES = [0.005, 0.05, 0.5, 10]


def temperatures(spec: str) -> list[float]:
    usable = [t for t in TEMPERATURES if t > 0.02 or "rince" not in spec]  # which grows like e^{q / t}
    return usable if "=T" in spec else [0.5]


def call(loss_fn, z: torch.Tensor, **how) -> torch.Tensor:
    """Two views, and an adversarial and a mixed one, or positions, for those who look at them."""
    return loss_fn(z[0], z[1], adversarial=z[2], mixed=z[3], index=torch.arange(z.shape[1]), **how)


@pytest.fixture
def unchecked():
    cp.set_checks("never")
    yield
    cp.set_checks("auto")


# ---- numbers ------------------------------------------------------------------------------------


def duplicates(z):
    z[:, 1:3] = z[:, :1]
    return z


def opposite_positives(z):
    z[1] = -z[0]
    return z


def zero_vectors(z):
    z[:, 0] = 0
    z[1, 2] = 0
    return z


BATCHES = {
    "generic": lambda z: z,
    "duplicates": duplicates,
    "equal views": lambda z: z[:1].repeat(4, 1, 1),
    "collapsed": lambda z: z[:1, :1].repeat(4, 6, 1),
    "opposite positives": opposite_positives,
    "opposite pair": lambda z: opposite_positives(z[:, :1].repeat(1, 2, 1)),
    "zero vectors": zero_vectors,
    "only zeros": torch.zeros_like,
    "two samples": lambda z: z[:, :2],
    "one negative": lambda z: z[:, :2],
    "large": lambda z: (z * 1e4).clamp(-6e4, 6e4),
}


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("spec", SPECS)
def test_loss_and_gradients_are_finite(spec, batch):
    how = {"pairing": "one_way"} if batch == "one negative" else {}
    failures, usable = [], temperatures(spec)
    usual = batch in ("generic", "large")
    for t in usable if usual else sorted({usable[0], *usable[-2:]}):
        # gradients are largest at the smallest temperature; bfloat16 has the range of float32 and only rounds more
        half = (torch.float16, torch.bfloat16) if usual else (torch.float16,)
        for dtype in (torch.float32, *half * (t == usable[0])):
            z = BATCHES[batch](embeddings()).to(dtype).requires_grad_()
            loss = call(at(spec, t), z, **how)
            (gradient,) = torch.autograd.grad(loss, z)
            assert loss.dtype == torch.float32
            assert gradient.dtype == dtype
            if not (loss.isfinite() and gradient.isfinite().all()):
                failures.append((t, dtype, loss.item(), int((~gradient.isfinite()).sum())))
    assert not failures


@pytest.mark.parametrize("spec", OF_SCORES)
def test_scores_at_the_edges_are_finite(spec):
    failures = []
    for t in temperatures(spec):
        for p, s in ((1.0, 1.0), (1.0, -1.0), (-1.0, 1.0), (-1.0, -1.0), (0.0, 0.0)):
            for count in (1, 50):
                pos, neg, mixneg = (
                    torch.full((3, *k), v).requires_grad_() for k, v in (((1,), p), ((count,), s), ((1, count), s))
                )
                extra = {"adversarial": (pos, neg), "mixed": (pos, mixneg)}
                loss = of_scores(at(spec, t), pos, neg, **extra)
                gradients = torch.autograd.grad(loss, [pos, neg], allow_unused=True)
                if not (loss.isfinite() and all(g is None or g.isfinite().all() for g in gradients)):
                    failures.append((t, p, s, count, loss.item()))
    assert not failures


@pytest.mark.parametrize("spec", SPECS)
def test_autocast_changes_nothing(spec):
    """Products of float32 tensors would be rounded to bfloat16, too coarse for a small temperature."""
    z = embeddings().requires_grad_()
    outside = call(at(spec, 0.05), z)
    with torch.autocast("cpu", torch.bfloat16):
        inside = call(at(spec, 0.05), z)
    torch.testing.assert_close(inside, outside, rtol=0, atol=0)
    torch.testing.assert_close(*(torch.autograd.grad(x, z)[0] for x in (inside, outside)), rtol=0, atol=0)


@pytest.mark.parametrize("spec", SPECS)
def test_half_precision_is_widened_first(spec):
    for dtype in (torch.bfloat16, torch.float16):
        z = embeddings(dtype=dtype)
        torch.testing.assert_close(call(at(spec), z), call(at(spec), z.float()), rtol=0, atol=0)


@pytest.mark.parametrize("spec", SPECS)
def test_double_precision_stays(spec):
    z = embeddings(dtype=torch.float64).requires_grad_()
    loss = call(at(spec), z)
    assert loss.dtype == torch.float64
    assert torch.autograd.grad(loss, z)[0].dtype == torch.float64
    assert loss.shape == ()


@pytest.mark.parametrize("spec", SPECS)
def test_the_length_of_embeddings_does_not_matter(spec):
    z, length = embeddings(dtype=torch.float64), torch.rand(4, 6, 1, dtype=torch.float64) + 0.1
    torch.testing.assert_close(call(at(spec), z * length), call(at(spec), z), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("spec", SPECS)
def test_anchors_average_to_the_mean(spec):
    z = embeddings(dtype=torch.float64)
    pairing = (
        "one_way" if "dp" in spec or "gor" in spec else "views" if " + " in spec else None
    )  # a sum needs the same anchors throughout
    each, mean = (call(at(spec), z, reduction=r, pairing=pairing) for r in ("none", "mean"))
    assert each.dim() == 1
    torch.testing.assert_close(each.mean(), mean)


# Weights without gradient (ADNCE, alpha-CL, Robust, the tracked temperature) make the gradient another function than
# the slope of the value: finite differences are not a reference there. Their golden gradients are, and so are
# objectives/test_adnce.py, test_alpha_cl.py and test_nacl.py, which write them out with constant weights.
SMOOTH = [
    s
    for s in SPECS
    if not s.startswith(("alphacl", "robust:t=T", "intcl", "adnce", "infonce:radius", "soft"))
    and "adnce" not in s
    and "alphacl" not in s
    and "detach_weights=true" not in s
    and s not in ("intnacl:t=T",)
]


@pytest.mark.parametrize(
    "spec", [*SMOOTH, "robust:t=T,detach_weights=false", "robust:t=T,weight=one", "intcl:t=T,weight=one"]
)
def test_gradients_are_slopes(spec):
    z = embeddings(batch=3, width=3, seed=1, dtype=torch.float64)
    count = 4 if at(spec).needs & {"adversarial", "mixed"} else 2  # the others are not looked at
    read = z[:count].clone().requires_grad_()
    loss_fn = at(spec).eval()
    assert torch.autograd.gradcheck(lambda x: call(loss_fn, torch.cat([x, z[count:]])), read, atol=1e-6, rtol=1e-4)


# What has constant weights has second derivatives of the loss with these weights, as its gradient is.
@pytest.mark.parametrize(
    "spec", [*SMOOTH, "dro:radius=0.6,shared=true", "dro:radius=0.6,divergence=chi2", "robust:t=T,weight=one"]
)
def test_second_derivatives_are_slopes_of_gradients(spec):
    z = embeddings(batch=3, width=3, seed=1, dtype=torch.float64).requires_grad_()
    loss_fn, g = at(spec).eval(), torch.Generator().manual_seed(3)
    direction = torch.randn(z.shape, generator=g, dtype=torch.float64)

    def gradient(x, **how):
        return torch.autograd.grad(call(loss_fn, x, engine="matrix"), x, **how)[0]

    steps = [gradient((z + h * direction).detach().requires_grad_()) for h in (-1e-5, 1e-5)]
    (product,) = torch.autograd.grad((gradient(z, create_graph=True) * direction).sum(), z)
    torch.testing.assert_close(product, (steps[1] - steps[0]) / 2e-5, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("spec", ["dro", "dro:shared=true", "dro:divergence=chi2"])
def test_second_derivatives_of_torch_func(spec):
    z = embeddings(views=2, batch=3, width=2, seed=1, dtype=torch.float64)
    loss_fn = at(spec).eval()
    found = torch.func.hessian(lambda x: loss_fn(x[0], x[1]))(z)
    wanted = torch.autograd.functional.hessian(lambda x: loss_fn(x[0], x[1]), z)
    torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-9)


# ---- lengths ------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [spec for spec in SPECS if "soft" not in spec])
def test_inner_products_of_any_size_in_single_precision(spec):
    """Float32 agrees with float64 as far as rounded similarities can: soft targets, constants, change by more."""
    scales = (1e-3, 0.03, 1.0, 30.0, 1e3)
    failures = []
    for scale in scales:
        z = embeddings(batch=5) * scale
        (single, slope), (double, exact) = (
            value_and_gradient(at(spec), z.to(d)) for d in (torch.float32, torch.float64)
        )
        sensitivity = (exact * z).abs().sum().item()  # of the loss, to a relative error of the embeddings
        bound = 200 * torch.finfo(torch.float32).eps * (1 + abs(double) + sensitivity)
        if not (abs(single - double) <= bound and slope.isfinite().all()):
            failures.append((scale, single, double, bound))
        elif scale <= 1 and (slope.double() - exact).abs().max() > 1e-3 * exact.abs().max():
            failures.append((scale, slope, exact))
    assert not failures


def value_and_gradient(loss_fn, z):
    z = z.clone().requires_grad_()
    loss = call(loss_fn, z, normalize=False)
    return loss.item(), torch.autograd.grad(loss, z)[0]


@pytest.mark.parametrize("tile", [0, 4])
@pytest.mark.parametrize("length", [1e-40, 1e-25, 1e-9, 1e19, 1e30])
def test_very_short_and_very_long_embeddings_have_a_direction(length, tile):
    z = embeddings(views=2)
    z[1, 2] = 0  # stays without one, and without gradient
    scaled = (z.double() * length).float()
    (plain, slope), (found, gradient) = (value_and_gradient_of_cosines(x, tile) for x in (z, scaled))
    torch.testing.assert_close(found, plain, rtol=1e-4 if length < 1e-38 else 1e-5, atol=1e-5)
    assert gradient.isfinite().all()
    assert not gradient[1, 2].any()
    if length <= 1e-9:  # the gradient of longer ones vanishes in float32
        cosine = torch.cosine_similarity(gradient.double().flatten(1), slope.double().flatten(1))
        torch.testing.assert_close(cosine, torch.ones(2, dtype=torch.float64), rtol=1e-4, atol=0)
    if 1e-30 < length <= 1e-9:
        torch.testing.assert_close(gradient * length, slope, rtol=1e-4, atol=1e-5)


def test_short_half_precision_embeddings_have_a_direction():
    z = embeddings(views=2).double()
    short = (z * 2e-5).half()
    (plain, slope), (found, gradient) = (value_and_gradient_of_cosines(x, 0) for x in (short.double(), short))
    torch.testing.assert_close(found, plain.float(), rtol=1e-5, atol=1e-5)
    assert gradient.isfinite().all()
    for ours, exact in zip(gradient.double().flatten(0, 1), slope.flatten(0, 1), strict=True):
        assert torch.cosine_similarity(ours, exact, dim=0) > 0.999


def value_and_gradient_of_cosines(z, tile):
    z = z.clone().requires_grad_()
    loss = cp.InfoNCE()(*z, engine=of_tiles(tile))
    return loss.detach(), torch.autograd.grad(loss, z)[0]


# ---- hosts --------------------------------------------------------------------------------------


class NoSync(TorchDispatchMode):
    """Fails where an accelerator would have to be waited for."""

    WAITS = frozenset({"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique2"})

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func.overloadpacket.__name__ not in self.WAITS, f"{func} waits for the device"
        assert not any(isinstance(x, torch.Tensor) and x.dtype == torch.bool for x in self.indices(func, args))
        return func(*args, **(kwargs or {}))

    @staticmethod
    def indices(func, args):
        return args[1] if func.overloadpacket.__name__ in ("index", "index_put", "index_put_") else ()


def test_no_sync_notices_a_look_at_a_value():
    x = torch.arange(3.0)
    for look in (lambda: float(x.sum()), lambda: bool(x.any()), lambda: x[x > 0], x.nonzero):
        with pytest.raises(AssertionError), NoSync():
            look()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("spec", SPECS)
def test_the_host_never_waits_for_the_device(spec):
    loss_fn, z = at(spec), embeddings().requires_grad_()
    pos, neg = torch.rand(4, 2).requires_grad_(), torch.rand(4, 9).requires_grad_()
    masks = {"mask": torch.rand(4, 9) < 0.7, "pos_mask": torch.rand(4, 2) < 0.7}
    extra = {"adversarial": (pos[:, :1], neg), "mixed": (pos, torch.rand(4, 2, 9))}
    logits, labels, ids = torch.rand(6, 9).requires_grad_(), torch.arange(6), torch.tensor([0, 1, 2, 3, 3, 4])
    with NoSync():
        for _ in range(2):
            call(loss_fn, z).backward()
        call(loss_fn, z, ids=ids, prior=torch.full((6,), 0.1)).backward()
        if spec in OF_SCORES:
            of_scores(loss_fn, pos, neg, **masks, **extra).backward()
        if spec in OF_SCORES and "robust" not in spec and "int" not in spec:
            loss_fn.from_logits(logits, labels, scale=20.0).backward()


# the others are slow; "dro" alone has sixty Newton steps, traced one by one
QUICKLY_COMPILED = ("infonce:t=T", "adnce:t=T", "siglip:t=T")


@pytest.mark.parametrize(
    "spec",
    [pytest.param(s, marks=[pytest.mark.slow] * (s not in QUICKLY_COMPILED)) for s in REGISTERED if "(hcl" not in s],
)
def test_compiled_without_a_break(spec):
    compare_compiled(spec, "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["infonce:t=T", "adnce:t=T,mu=auto", "arcl(hcl:t=T) + 0.1*dp"])
def test_compiled_to_machine_code(spec):
    compare_compiled(spec, "inductor")


@pytest.mark.parametrize(
    "spec",
    [
        "infonce:t=learned(0.5,0.01,1)",
        pytest.param("adnce:mu=auto,t=schedule(0.5,0.1,3)", marks=pytest.mark.slow),
        "isogclr:size=8",
    ],
)
def test_compiled_state_moves_as_without(spec):
    compare_compiled(spec, "aot_eager", steps=3)


def compare_compiled(spec: str, backend: str, steps: int = 1) -> None:
    torch._dynamo.reset()
    eager, plain = at(spec), embeddings(dtype=torch.float64).requires_grad_()
    inner = copy.deepcopy(eager)
    compiled, z = torch.compile(inner, backend=backend, fullgraph=True), plain.detach().clone().requires_grad_()
    for _ in range(steps):
        found, wanted = call(compiled, z), call(eager, plain)
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
        found.backward()
        wanted.backward()
    torch.testing.assert_close(z.grad, plain.grad, rtol=1e-8, atol=1e-12)
    for a, b in zip(inner.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-6, atol=1e-9)
    state = inner.state_dict()
    for key, value in eager.state_dict().items():
        torch.testing.assert_close(state[key], value, rtol=1e-6, atol=0)


# ---- text and data ------------------------------------------------------------------------------

BUILT = [
    cp.InfoNCE(cp.Learned(0.1234564, low=0.1234564, high=0.5)),
    cp.InfoNCE(cp.Learned(0.4999999, low=0.1, high=0.4999999)),
    cp.InfoNCE(1e-7),
    cp.ADNCE(1 / 3, cp.Schedule(1 / 3, 2 / 3, 7), cp.Learned(0.5)),
    1 * cp.InfoNCE(),
    2 * (0.5 * cp.InfoNCE()),
    cp.Schedule(0, 1, 10) * (cp.InfoNCE() + cp.HCL()) + cp.DCL(),
    cp.Learned(1.0) * (1 * cp.DCL()),
    0.3 * (cp.Schedule(0, 1, 10) * (cp.InfoNCE() + cp.HCL())),
    -1e-9 * cp.ArCL(cp.ArCL(cp.InfoNCE() + cp.HCL()), views=2) + 1e20 * cp.DCL(),
    cp.ArCL(2 * cp.InfoNCE()),
]


def example(given: cp.Objective | str) -> cp.Objective:
    return at(given) if isinstance(given, str) else copy.deepcopy(given)


@pytest.mark.parametrize("given", [*SPECS, *BUILT], ids=str)
def test_text_and_data_round_trips(given):
    loss_fn = example(given)
    z = embeddings()
    wanted = call(example(given), z)
    copies = {
        "text": cp.objective(str(loss_fn)),
        "data": cp.from_dict(json.loads(json.dumps(loss_fn.to_dict()))),
        "pickle": pickle.loads(pickle.dumps(loss_fn)),
        "copy": copy.deepcopy(loss_fn),
    }
    for how, found in copies.items():
        assert found == loss_fn, how
        assert str(found) == str(loss_fn), how
        assert cp.objective(repr(found)) == found, how
        assert found.to_dict() == loss_fn.to_dict(), how
        torch.testing.assert_close(call(found, z), wanted, rtol=1e-4 if "earned" in str(loss_fn) else 1e-6, atol=1e-6)


FINITE = st.floats(-1e6, 1e6)
POSITIVE = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
MOVING = st.one_of(
    POSITIVE,
    st.builds(cp.Schedule, POSITIVE, POSITIVE, st.integers(1, 10**9), st.sampled_from(["linear", "cosine"])),
    st.builds(
        lambda low, up, share: cp.Learned(low + (up - low) * share, low, up),
        st.floats(1e-6, 0.5),
        st.floats(0.5, 9),
        st.floats(0, 1),
    ),
)
LEAF = st.one_of(
    st.builds(cp.InfoNCE, MOVING, st.sampled_from(DENOMINATORS[:3]), st.none() | POSITIVE),
    st.builds(
        cp.ADNCE,
        POSITIVE,
        FINITE | st.just("auto"),
        MOVING | st.just("auto"),
        denominator=st.sampled_from(DENOMINATORS),
    ),
    st.builds(cp.CLDRO, POSITIVE, shared=st.booleans()),
    st.builds(
        cp.DistancePolarization, st.floats(0, 0.4), st.floats(0.5, 1), st.sampled_from(["sum", "mean", "batch_sum"])
    ),
)
TREE = st.recursive(
    LEAF,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a + b, inner, inner),
        st.builds(lambda w, a: w * a, FINITE | st.sampled_from([0.0, 1.0]) | MOVING, inner),
        st.builds(cp.ArCL, inner, st.sampled_from(["paper", "worst"]), st.none() | st.integers(2, 99)),
        st.builds(cp.AAL, inner),
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(loss_fn=TREE)
def test_any_composition_round_trips(loss_fn):
    assert cp.objective(str(loss_fn)) == loss_fn
    assert cp.from_dict(json.loads(json.dumps(loss_fn.to_dict()))) == loss_fn
    assert pickle.loads(pickle.dumps(loss_fn)) == loss_fn


@pytest.mark.parametrize("name", [n for n in cp.registry if not issubclass(cp.registry[n], cp.Wrapper)])
def test_changed_parameters_make_another_objective(name):
    kind, loss_fn = cp.registry[name], cp.objective(name)
    assert loss_fn == kind() == loss_fn.replace()
    assert loss_fn != cp.ArCL(loss_fn)
    assert loss_fn != 2 * loss_fn
    assert len({loss_fn, kind()}) == 2
    for key, hyper in kind.hyper.items():
        value = loss_fn._hyper[key]
        if isinstance(value, float) and value and isinstance(hyper, cp.Real):
            changed = loss_fn.replace(**{key: value * 0.9})
            assert changed != loss_fn
            assert getattr(changed, key) == value * 0.9
            assert cp.objective(f"{name}:{hyper.short}={value * 0.9}") == changed
            assert cp.objective(f"{name}:{key}={value * 0.9!r}") == changed


@pytest.mark.parametrize("spec", SPECS)
def test_state_survives_a_checkpoint(spec):
    trained, z = at(spec), embeddings()
    for seed in range(3):
        call(trained, embeddings(seed=seed))
    for p in trained.parameters():
        p.data -= 0.1
    file = io.BytesIO()
    torch.save(trained.state_dict(), file)
    file.seek(0)
    fresh = at(spec)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    torch.testing.assert_close(call(fresh.eval(), z), call(trained.eval(), z), rtol=0, atol=0)
    again = pickle.loads(pickle.dumps(trained))
    torch.testing.assert_close(call(again, z), call(trained, z), rtol=0, atol=0)


@pytest.mark.parametrize("spec", SPECS)
def test_copies_do_not_share_state(spec):
    loss_fn, z = at(spec), embeddings()
    before = copy.deepcopy(loss_fn.state_dict())
    twin = copy.deepcopy(loss_fn)
    call(twin.train(), z)
    for p in twin.parameters():
        p.data += 1
    for key, value in loss_fn.state_dict().items():
        torch.testing.assert_close(value, before[key], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", cp.registry)
def test_every_objective_says_what_it_is(name):
    kind = cp.registry[name]
    if kind.__module__.startswith("counterpoint."):  # others are exported by their own packages
        assert getattr(cp, kind.__name__) is kind
    assert kind.formula
    assert "https://" in kind.paper or "preprint" in kind.paper
    for advice in ("use", "tune_first", "cost"):
        assert vars(kind)[advice]
    documented = " ".join(kind.__doc__.split())
    assert documented.count("Args:") == bool(kind.hyper)
    for key, hyper in kind.hyper.items():
        assert hyper.doc
        assert f" {key}: {hyper.doc} Default: {hyper.default!r}." in documented
        assert re.fullmatch("[a-z][a-z0-9_]*", hyper.short), f"{hyper.short!r} cannot be written in a spec"


@pytest.mark.parametrize("name", cp.registry)
def test_the_signature_names_every_parameter_with_its_default(name):
    kind = cp.registry[name]
    parameters = inspect.signature(kind).parameters
    assert set(parameters) == set(kind.hyper) | ({"objective"} if issubclass(kind, cp.Wrapper) else set())
    built = kind(*(p.default for p in parameters.values()))
    assert built == kind() == kind(**{key: p.default for key, p in parameters.items()})
    assert "z1" not in inspect.signature(built).parameters  # an instance has the signature of its call
    assert list(inspect.signature(built).parameters) != list(parameters)


def test_an_objective_inside_many_others_is_asked_once():
    asked = []

    class Asked(cp.Objective):
        @property
        def couples_anchors(self):
            asked.append(self)
            return False

    loss_fn = Asked()
    for _ in range(10):
        loss_fn = cp.ArCL(loss_fn)
    assert not loss_fn.couples_anchors
    assert len(asked) == 1


def test_a_subclass_needs_no_init():
    class Mine(cp.Objective):
        temperature: cp.Real = cp.Real("t", default=0.5, above=0)
        mu: cp.Real = cp.Real(doc="The center.", kw_only=True)
        half: cp.Flag = cp.Flag(default=False)

        def __post_init__(self):
            self.twice = 2 * self.mu

        def per_anchor(self, pos, neg):
            return neg.mean(lambda s: s) * self.mu / self.temperature - pos

    loss_fn = Mine(0.2, mu=0.7)
    assert (loss_fn.temperature, loss_fn.mu, loss_fn.half, loss_fn.twice) == (0.2, 0.7, False, 1.4)
    assert str(loss_fn) == "Mine:t=0.2,mu=0.7"
    assert str(loss_fn.replace(t=0.5, half=True)) == "Mine:mu=0.7,half=true"
    assert str(inspect.signature(Mine)) == "(temperature=0.5, half=False, *, mu)"
    assert Mine.__doc__ == "Args:\n    mu: The center."
    for wrong, message in (
        (lambda: Mine(), "Mine: mu= is required"),
        (lambda: Mine(0.5, False, 1, 4), r"Mine: expected at most 3 arguments \(temperature, half, mu\), got 4"),
        (lambda: Mine(0.5, temperature=0.5, mu=1), "Mine: temperature was passed both by position and by name"),
        (lambda: Mine(t=0.5, temperature=0.5, mu=1), "Mine: temperature was passed twice, also as t"),
    ):
        with pytest.raises(TypeError, match=message):
            wrong()


def test_the_positions_of_parameters():
    assert cp.ADNCE(0.5, 0.7, 1.0, "gaussian", "mean") == cp.ADNCE(weight="gaussian", denominator="mean")
    assert cp.HCL(0.5, 0.1, 2.0) == cp.HCL(beta=2.0)
    assert cp.DCL(0.2, 0.05) == cp.DCL(temperature=0.2, prior=0.05)
    assert cp.DistancePolarization(0.2, 0.6) == cp.DistancePolarization(low=0.2, high=0.6)


def test_a_new_range_keeps_the_default_and_the_position():
    class Cold(cp.DCL):
        temperature = cp.Real("t", above=0, high=1, always=True)

    assert Cold().temperature == 0.5
    assert Cold(0.3, 0.05).to_dict() == {**cp.DCL(0.3, 0.05).to_dict(), "name": "Cold"}
    with pytest.raises(ValueError, match="temperature"):
        Cold(2.0)


def test_a_subclass_may_write_its_own_init():
    class Mine(cp.InfoNCE):
        margin = cp.Real("m", low=0)

        def __init__(self, temperature=0.3, denominator="mean", margin=0.25):
            """Pass values on."""
            super().__init__(temperature, denominator, margin=margin)

    assert str(Mine()) == "Mine:t=0.3,denominator=mean"
    assert str(Mine(margin=1)) == "Mine:t=0.3,denominator=mean,m=1"
    assert list(inspect.signature(Mine).parameters) == ["temperature", "denominator", "margin"]


@pytest.mark.parametrize("name", cp.registry)
def test_every_parameter_has_a_long_and_a_short_name_of_its_own(name):
    hyper = cp.registry[name].hyper
    names = [n for k, h in hyper.items() for n in {k, h.short}]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", cp.registry)
def test_either_name_of_a_parameter_is_accepted(name):
    kind = cp.registry[name]
    data = kind().to_dict()
    short = {kind.hyper[key].short if key in kind.hyper else key: value for key, value in data.items()}
    assert cp.from_dict(short) == cp.from_dict(data) == kind()
    if {"t", "temperature"} & {*short}:
        assert kind(t=0.3) == kind(temperature=0.3) == kind().replace(t=0.3)
        assert cp.objective(f"{name}:t=0.3") == cp.objective(f"{name}:temperature=0.3") == kind(t=0.3)


def test_learned_parameters_train():
    loss_fn = cp.InfoNCE(cp.Learned(0.5, 0.05, 1.0)) + cp.Learned(0.1) * cp.HCL()
    optimizer, z = torch.optim.SGD(loss_fn.parameters(), lr=0.5), embeddings()
    first = call(loss_fn, z)
    for _ in range(20):
        optimizer.zero_grad()
        loss = call(loss_fn, z)
        loss.backward()
        optimizer.step()
    assert loss < first
    assert math.isclose(
        cp.objective(str(loss_fn)).parts[0].temperature.item(), loss_fn.parts[0].temperature.item(), rel_tol=1e-5
    )


@pytest.mark.parametrize(
    ("spec", "needs"),
    [
        ("infonce", set()),
        ("mixnca", {"mixed"}),
        ("robust", {"adversarial"}),
        ("intcl", {"adversarial"}),
        ("intcl:alpha=0", set()),
        ("intnacl:base=both", {"adversarial", "mixed"}),
        ("intnacl:base=mixnca,alpha=0", {"mixed"}),
        ("infonce + 0.1*arcl(robust)", {"adversarial"}),
    ],
)
def test_what_an_objective_needs_beside_views(spec, needs):
    assert cp.objective(spec).needs == needs


def test_an_objective_that_was_not_registered():
    class Mine(cp.Objective):
        def __init__(self, t, mu):
            super().__init__()
            self.t, self.mu = t, mu

        def per_anchor(self, pos, neg):
            def log_w(s):
                return -0.5 * (s.detach() - self.mu) ** 2

            log_mass = neg.logsumexp(lambda s: log_w(s) + s / self.t) - neg.logsumexp(log_w) + neg.log_count
            return torch.nn.functional.softplus(log_mass - pos / self.t)

    class Other(Mine):
        pass

    z, adnce = embeddings(3), cp.ADNCE(0.5, 0.7)
    for mine, theirs in ((Mine(0.5, 0.7), adnce), (cp.ArCL(Mine(0.5, 0.7), "worst"), cp.ArCL(adnce, "worst"))):
        torch.testing.assert_close(mine(*z), theirs(*z))
    assert str(cp.ArCL(Mine(0.5, 0.7)) + 0.1 * cp.DistancePolarization()) == "arcl(Mine) + 0.1*dp"
    assert Mine(0.5, 0.7) != Other(0.5, 0.7)
    with pytest.raises(ValueError, match="unknown objective 'Mine'"):
        cp.objective(str(Mine(0.5, 0.7)))


def test_arithmetic_of_objectives():
    z = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
    a, b = cp.InfoNCE(0.3), cp.HCL(0.1)
    assert sum([a, b]) == a + b
    torch.testing.assert_close((-1.0 * a)(*z), -a(*z))
    assert cp.objective(f"2*({a} + 0.5*({b}))") == 2 * (a + 0.5 * b) == 2 * a + b
    assert cp.objective(f"{a} + ({b} + dp)") == a + (b + cp.DistancePolarization()) == sum([a, b, cp.objective("dp")])
    assert a.replace(t=0.1) == a.replace(temperature=0.1) == cp.InfoNCE(0.1)
    assert repr([cp.Schedule(0.5, 0.1, 10), cp.Learned(0.5)]) == "[schedule(0.5,0.1,10), learned(0.5,0.001,1000)]"


def test_numbers_of_other_libraries():
    numpy = pytest.importorskip("numpy")
    assert cp.InfoNCE(numpy.float32(0.5)) == cp.InfoNCE(0.5)
    for two in (numpy.float32(2), numpy.float64(2), numpy.int64(2)):
        for loss_fn in (cp.InfoNCE(), cp.InfoNCE() + cp.HCL()):
            assert two * loss_fn == loss_fn * two == 2 * loss_fn
    assert repr(cp.Schedule(numpy.float64(0.5), 0.1, numpy.int64(10))) == "schedule(0.5,0.1,10)"
    with pytest.raises(TypeError, match=r"(?s)temperature must be .*a Learned"):
        cp.InfoNCE(torch.nn.Parameter(torch.tensor(0.5)))


@pytest.mark.parametrize("spec", SPECS)
def test_vmap_is_a_loop(spec):
    loss_fn = at(spec, 0.3).eval()
    how = {"pairing": "views"} if " + " in spec else {}
    batches = torch.stack([embeddings(seed=seed, dtype=torch.float64) for seed in (0, 1)])
    batches.requires_grad_()
    expected = torch.stack([call(loss_fn, z, **how) for z in batches])
    found = torch.func.vmap(lambda z: call(loss_fn, z, **how))(batches)
    torch.testing.assert_close(found, expected)
    slopes = [torch.autograd.grad(losses.sum(), batches, allow_unused=True)[0] for losses in (found, expected)]
    torch.testing.assert_close(*slopes)


GROUPS = torch.randn(2, 5, 6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("known", ["ids", "labels"])
def test_groups_with_numbers_of_their_own(known):
    numbers = torch.stack([torch.arange(6) % (i + 2) for i in range(5)])
    loss_fn = at("hcl:t=T", 0.3)

    def loss(a, b, of_group):
        return loss_fn(a, b, **{known: of_group})

    expected = torch.stack([loss(*group) for group in zip(*GROUPS, numbers, strict=True)])
    torch.testing.assert_close(torch.vmap(loss)(*GROUPS, numbers), expected)


def test_groups_in_a_plain_call_are_refused():
    message = r"got \(5, 6, 4\)\..* If each group is a batch of its own: torch\.vmap\(loss_fn\)\(z1, z2\)\.$"
    for known in ({}, {"labels": torch.arange(5)}, {"ids": torch.arange(5)}):
        with pytest.raises(ValueError, match=message):
            cp.InfoNCE()(*GROUPS, **known)
    with pytest.raises(ValueError, match=message):
        cp.InfoNCE()(GROUPS[0], cp.Keys(GROUPS[1], positives=torch.arange(6)))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("spec", ["adnce:mu=auto", "hcl:radius=0.1", "sogclr:size=6", "isogclr:size=6"])
def test_training_keeps_no_state_that_vmap_has_mapped(spec):
    """It would be a tensor that nothing outside of torch.vmap can read or store."""
    loss_fn, known = cp.objective(spec).double(), {"index": torch.arange(6)} if "sogclr" in spec else {}
    over = torch.vmap(lambda a, b: loss_fn(a, b, **known))
    before = {name: x.clone() for name, x in loss_fn.state_dict().items()}
    for call in (over, torch.vmap(torch.func.grad(lambda a: loss_fn(a, GROUPS[1, 0], **known)))):
        with pytest.raises(RuntimeError, match=r"torch\.vmap: each of the mapped calls has statistics of its own"):
            call(*GROUPS) if call is over else call(GROUPS[0])
        torch.testing.assert_close(dict(loss_fn.state_dict()), before, equal_nan=True)
    mapped = torch.vmap(lambda state, a, b: torch.func.functional_call(loss_fn, dict(state), (a, b), known))
    stacked = {name: torch.stack([x] * 5) for name, x in before.items()}
    expected = torch.stack([loss_fn.eval()(*group, **known) for group in GROUPS.unbind(1)])  # as in a first step
    torch.testing.assert_close(over(*GROUPS), expected)
    torch.testing.assert_close(mapped(stacked, *GROUPS), expected)
    loss_fn.train()
    torch.testing.assert_close(mapped(stacked, *GROUPS), expected)
    torch.func.grad(lambda a: loss_fn.train()(a, GROUPS[1, 0], **known))(GROUPS[0, 0])
    assert any(not torch.equal(x, before[name]) for name, x in loss_fn.state_dict().items())


# ---- text ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", SPECS)
def test_every_text_rebuilds_the_objective(spec):
    """The canonical spec, which names stored runs; the label without defaults; the repr with all numbers."""
    loss_fn = at(spec)
    for text in (str(loss_fn), repr(loss_fn), loss_fn.label):
        assert cp.objective(text) == loss_fn
    assert len(loss_fn.label) <= len(str(loss_fn)) <= len(repr(loss_fn))


def test_a_label_hides_defaults_and_a_repr_shows_the_numbers():
    assert cp.ADNCE().label == "adnce"
    assert cp.objective("arcl(adnce:t=0.2,denominator=with_positive) + 0.1*dp").label == "arcl(adnce:t=0.2) + 0.1*dp"
    assert str(cp.ADNCE()) == "adnce:t=0.5,denominator=with_positive"
    assert "mu=0.7,sigma=1" in repr(cp.ADNCE())
    assert "prior=0.1,beta=1" in repr(cp.ArCL(cp.HCL()))
    assert repr(cp.InfoNCE(cp.Schedule(0.5, 0.1, 9))) == "infonce:t=schedule(0.5,0.1,9),denominator=with_positive"
