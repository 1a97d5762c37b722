"""The seam in the gradient: the encoder's gradients equal those of the objective written by hand."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from contrastive_variants import HARNESS, VARIANTS

import counterpoint as cp
from counterpoint.plugins import inject
from counterpoint.plugins.embeddings import Call, Embeddings
from counterpoint.plugins.gradient import Logits, precision_of
from counterpoint.plugins.host import ONE_WAY, DifferenceError, Seam, SeamError
from counterpoint.plugins.logits import before

B, WIDTH = 24, 8
HCL = "hcl:t=0.1,beta=1,prior=0.05,denominator=with_positive"


def grace(q, k):
    """Without the positive in the denominator."""
    s = q @ k.T
    e = torch.exp(s / 0.2)
    return -torch.log(e.diag() / (e.sum(1) - e.diag())).mean()


def in_place(q, k):
    s = q @ k.T
    s.mul_(10).exp_()
    return -(s.diag() / s.sum(1)).log().mean()


def batched(q, k):
    s = torch.bmm(q.view(3, -1, WIDTH), k.view(3, -1, WIDTH).transpose(1, 2))
    return torch.stack([-F.log_softmax(x / 0.1, 1).diag().mean() for x in s]).mean()


def simclr(q, k):
    """All samples with each other, without themselves."""
    z = torch.cat([q, k])
    s = torch.einsum("ik,jk->ij", z, z)
    e = (s / 0.5).exp() * (1 - torch.eye(len(z), dtype=z.dtype))
    at = torch.arange(len(z))
    return -(e[at, (at + len(q)) % len(z)] / e.sum(1)).log().mean()


def both_ways(q, k):
    s = torch.mm(q, k.t())
    e = torch.exp(s * 10)
    return -(torch.log(e.diag() / e.sum(1)) + torch.log(e.diag() / e.sum(0))).mean() / 2


def subset(q, k):
    s = q.matmul(k.mT)
    return F.cross_entropy(s[::2] / 0.1, torch.arange(B)[::2], reduction="sum") / 7


def hcl(q, k, pairing="one_way"):
    return cp.objective(HCL)(q, k, pairing=pairing, normalize=False)


CASES = {
    grace: ("s = q @ k.T", "infonce:t=0.2,denominator=negatives", ("diagonal", "rows"), hcl),
    in_place: ("s = q @ k.T", "infonce:t=0.1", ("diagonal", "rows"), hcl),
    batched: (
        "s = torch.bmm(",
        "infonce:t=0.1",
        ("diagonal", "rows"),
        lambda q, k: torch.stack(
            [hcl(a, b) for a, b in zip(q.view(3, -1, WIDTH), k.view(3, -1, WIDTH), strict=True)]
        ).mean(),
    ),
    simclr: ("s = torch.einsum(", "infonce:t=0.5", ("half", "rows"), lambda q, k: hcl(q, k, "views")),
    both_ways: ("s = torch.mm(", "infonce:t=0.1", ("diagonal", "both"), lambda q, k: hcl(q, k, "symmetric")),
    subset: (
        "s = q.matmul(",
        "infonce:t=0.1",
        ("diagonal", "rows"),
        lambda q, k: cp.objective(HCL).from_logits(q[::2] @ k.T, torch.arange(B)[::2]) * (B / 2) / 7,
    ),
}


def line_of(function, text):
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    start = function.__code__.co_firstlineno
    return next(i for i in range(start, start + 12) if text in lines[i - 1])


def run(loss, spec, options, extra=(), scaled=1.0):
    """Return the gradients of two encoders, and the seam."""
    torch.manual_seed(0)
    encoders = [torch.nn.Linear(WIDTH, WIDTH).double() for _ in range(2)]
    x = torch.randn(B, WIDTH, dtype=torch.double)
    views = [x, x + 0.3 * torch.randn_like(x)]
    parameters = [p for e in encoders for p in e.parameters()] + [*extra]
    seam = Seam(spec, options=options)
    if options:
        before(seam)
    try:
        q, k = (F.normalize(e(v), dim=1) for e, v in zip(encoders, views, strict=True))
        total = scaled * (loss(q, k) / 4 + 0.5 * sum((p**2).sum() for p in parameters))
        total.backward()
    finally:
        seam.end()
    found = [p.grad / scaled for p in parameters]
    for p in extra:
        p.grad = None
    return found, seam


@pytest.mark.parametrize("loss", CASES, ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("scaled", [1.0, 65536.0])
def test_gradients_equal_those_by_hand(loss, scaled):
    """Beside another term, divided by four as accumulation does, and with the scale of a GradScaler."""
    line, own, (positives, way), truth = CASES[loss]
    site = f"test_gradient.py:{line_of(loss, line)}"
    options = {"product": [site], "positives": positives, "own": own, "way": way}
    found, seam = run(loss, HCL, options, scaled=scaled)
    expected, _ = run(truth, HCL, {})
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    assert (seam.calls, seam.proofs) == (1, 1)
    assert seam.worst < 1e-12


DATA = {
    "nodes": torch.arange(2, B, 5),
    "of_keys": torch.arange(B) % 6,
    "of_anchors": torch.tensor([3, 1, 3, 2, 0]),
    "rates": torch.linspace(-4, -1, B, dtype=torch.double),
}


def nodes(q, k, more=0.0):
    """Anchors are some of the samples, keys all of them; each positive is computed apart, and again with the keys."""
    batch = DATA
    at = batch["nodes"]
    positives = torch.sum(q[at] * k[at], dim=-1)
    s = q[at] @ k.T
    loss = -torch.log(torch.exp(positives / 0.2) / (torch.exp(s / 0.2).sum(-1) + 1e-30))
    return (loss + more * positives).mean()


def debiased(q, k):
    """The loss of chingyaoc/DCL, whose mask leaves the positives out of the keys."""
    z = torch.cat([q, k])
    s = torch.mm(z, z.t()).mul_(2).exp_()
    s = s.masked_select(~torch.eye(len(q), dtype=torch.bool).repeat(2, 2)).view(len(z), -1)
    positives = F.cosine_similarity(q, k)
    pos = torch.exp(positives / 0.5).repeat(2)
    g = (s.sum(1) - 0.1 * s.shape[1] * pos) / 0.9
    return -torch.log(pos / (pos + g.clamp(min=s.shape[1] * math.exp(-2)))).mean()


PAIRS = {nodes: ("s = q[at] @ k.T", "infonce:t=0.2"), debiased: ("s = torch.mm(z, z.t())", "dcl:t=0.5,prior=0.1")}


def hcl_of_nodes(q, k):
    at = torch.arange(2, B, 5)
    return cp.objective(HCL).from_logits(q[at] @ k.T, at)


@pytest.mark.parametrize(("loss", "truth"), [(nodes, hcl_of_nodes), (debiased, lambda q, k: hcl(q, k, "views"))])
def test_positives_of_a_product_of_their_own(loss, truth):
    line, own = PAIRS[loss]
    lines = f"test_gradient.py:{line_of(loss, line)},{line_of(loss, 'positives = ')}"
    found, seam = run(loss, HCL, {"product": [lines], "own": own}, scaled=65536.0)
    expected, _ = run(truth, HCL, {})
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    assert (seam.calls, seam.proofs) == (1, 1)
    assert seam.worst < 1e-12


def in_half_precision(q, k, more=0.0):
    """CPUs compute logsumexp in bfloat16, where a sum of 20 is off by up to .06."""
    near = F.normalize(q.float() + 0.1 * k.float(), dim=1)
    with torch.autocast("cpu", torch.bfloat16):
        s = q.float() @ near.T / 0.05
        return (torch.logsumexp(s, 1) - (1 + more) * s.diagonal()).mean()


def test_sums_that_are_rounded_to_half_precision():
    site = f"test_gradient.py:{line_of(in_half_precision, 'return (torch.logsumexp')}"
    found, seam = run(in_half_precision, HCL, {"site": [site], "positives": "diagonal", "scale": "20"})
    assert (seam.proofs, seam.worst < 0.02) == (1, True)

    def truth(q, k):
        near = F.normalize(q + 0.1 * k, dim=1)
        return cp.objective(HCL).from_logits(q @ near.T, torch.arange(B))

    expected, _ = run(truth, HCL, {})
    for ours, theirs in zip(found, expected, strict=True):
        assert float((ours - theirs).abs().max()) <= 0.02 * float(theirs.abs().max())
    for more in (0.2, -0.2):
        with pytest.raises(DifferenceError, match="bfloat16"):
            run(lambda q, k, more=more: in_half_precision(q, k, more), HCL, {"site": [site], "positives": "diagonal"})


TOLD = {
    "ids=batch['of_keys']": {"ids": DATA["of_keys"]},
    "ids=batch['of_anchors']": {"ids": DATA["of_anchors"]},
    "labels=batch['of_anchors']": {"classes": DATA["of_anchors"]},
    "duplicates": {},
    "log_q=batch['rates']; margin=-0.3": {"log_q": DATA["rates"]},
}


@pytest.mark.parametrize("items", TOLD)
def test_what_is_told_of_the_keys_where_positives_are_a_product_of_their_own(items):
    line, own = PAIRS[nodes]
    lines = f"test_gradient.py:{line_of(nodes, line)},{line_of(nodes, 'positives = ')}"
    repeated = DATA["of_keys"] if items == "duplicates" else torch.arange(B)
    options = {"product": [lines], "own": own}
    found, seam = run(lambda q, k: nodes(q, k[repeated]), f"{HCL}; {items}", options)
    loss_fn = cp.treatment(f"{HCL}; {items}")

    def truth(q, k):
        at = DATA["nodes"]
        return loss_fn.from_logits(q[at] @ k[repeated].T, at, **TOLD[items])

    expected, _ = run(truth, HCL, {})
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    assert seam.proofs == 1
    assert [*seam.counts()] == [{name: float(loss_fn.counts[name]) / 5 for name in ("excluded", "without_negatives")}]
    assert bool(loss_fn.counts["excluded"]) == (not items.startswith("labels"))  # more positives


def test_in_half_precision_keys_near_a_positive_are_not_taken_for_it():
    line, own = PAIRS[nodes]
    options = {"product": [f"test_gradient.py:{line_of(nodes, line)},{line_of(nodes, 'positives = ')}"], "own": own}
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(SeamError, match="multiply in float32"):
        run(lambda q, k: nodes(q.float(), k[DATA["of_keys"]].float()), f"{HCL}; ids=batch['of_keys']", options)


def others(q, k):
    """The negatives are other keys than the positives."""
    pos = (q * k).sum(-1)
    s = q @ -k.detach().T
    return -torch.log(torch.exp(pos / 0.2) / (torch.exp(s / 0.2).sum(-1) + torch.exp(pos / 0.2))).mean()


def test_a_product_of_positives_is_proved_and_replaced_in_backward_alone():
    line, own = PAIRS[nodes]
    lines = f"test_gradient.py:{line_of(nodes, line)},{line_of(nodes, 'positives = ')}"
    with pytest.raises(DifferenceError, match="is not that of infonce:t=0\\.1"):
        run(nodes, HCL, {"product": [lines], "own": "infonce:t=0.1"})
    with pytest.raises(DifferenceError, match="is not that of infonce:t=0\\.2"):  # one weight for both
        run(lambda q, k: nodes(q, k, 0.01), HCL, {"product": [lines], "own": own})
    with pytest.raises(SeamError, match="ids=missing: no such name"):
        run(nodes, f"{HCL}; ids=missing", {"product": [lines], "own": own})
    options = {"product": [f"test_gradient.py:{line_of(others, 's = q')},{line_of(others, 'pos = ')}"], "own": own}
    with pytest.raises(SeamError, match="the positives are not among the keys, of which something is told"):
        run(others, f"{HCL}; duplicates", options)
    assert run(nodes, f"{HCL}; margin=0.2", {"product": [lines], "own": own})[1].proofs == 1
    with pytest.raises(SeamError, match="has no positive for each of its 5 rows"):
        run(
            nodes,
            HCL,
            {"product": [f"test_gradient.py:{line_of(nodes, line)},{line_of(grace, 's = q @')}"], "own": own},
        )
    with pytest.raises(SeamError, match="expected no --positives"):
        run(nodes, HCL, {"product": [lines], "own": own, "positives": "diagonal"})
    seam = Seam(HCL, options={"product": [lines], "own": own})
    before(seam)
    q = torch.randn(B, WIDTH, requires_grad=True)
    try:
        with pytest.raises(SeamError, match="differentiated by something else than backward"):
            torch.autograd.grad(nodes(q, q.detach()), q)
    finally:
        seam.end()


def retaining(kept):
    def loss(q, k):
        s = q @ k.T
        positives = (q * k).sum(1)
        x = s / 0.1
        kept.update(s=s, x=x)
        for tensor in kept.values():
            tensor.retain_grad()
        if "pairs" in kept:
            return (torch.log(torch.exp(x).sum(1)) - positives / 0.1).mean()
        return F.cross_entropy(x, torch.arange(B))

    return loss


@pytest.mark.parametrize("how", ["measured", "pairs"])
def test_retain_grad_keeps_the_gradient_that_arrives(how):
    """Though the scale is measured, and the products are proved, by differentiating the same graph."""
    kept = {"pairs": torch.ones(1, requires_grad=True) * 1} if how == "pairs" else {}
    loss = retaining(kept)
    lines = [line_of(loss, text) for text in ("s = q @ k.T", "positives = ", "return F.cross_entropy")]
    options = {"site": [f"test_gradient.py:{lines[2]}"]}
    if how == "pairs":
        options = {"product": [f"test_gradient.py:{lines[0]},{lines[1]}"], "own": "infonce:t=0.1"}
    _, seam = run(loss, HCL, options)
    assert seam.proofs == 1
    found, x = kept["x"], kept["x"].detach().requires_grad_()
    cp.objective(HCL).from_logits(x, torch.arange(B), scale=10.0).backward()
    if how == "measured":
        torch.testing.assert_close(found.grad, x.grad / 4, rtol=1e-10, atol=1e-14)
    else:  # the host's own arrives behind the product, where it is replaced
        torch.testing.assert_close(found.grad, found.detach().softmax(1) / B / 4, rtol=1e-10, atol=1e-14)
        negatives = ~torch.eye(B, dtype=torch.bool)
        torch.testing.assert_close(kept["s"].grad, negatives * x.grad * 10 / 4, rtol=1e-10, atol=1e-14)


def clip(scale):
    def loss(q, k):
        s = scale.exp() * torch.matmul(q, k.t())
        a, b = -torch.diag(F.log_softmax(s, -1)).mean(), -torch.diag(F.log_softmax(s.T, -1)).mean()
        return (a + b) / 2

    return loss


@pytest.mark.filterwarnings("ignore:.*scale= is trained")
@pytest.mark.parametrize("spec", ["hcl:t=host,beta=1", "adnce:t=host,mu=0.4", HCL])
def test_a_learned_scale_gets_the_gradient_of_the_objective(spec):
    """Two sinks of the same logits, one transposed; their scale is trained."""
    scale = torch.tensor(10.0).double().log().requires_grad_()
    site = f"test_gradient.py:{line_of(clip, 'a, b = -torch.diag')}"
    options = {"site": [site], "positives": "diagonal", "scale": "scale.exp"}
    found, seam = run(clip(scale), spec, options, [scale])
    loss_fn = cp.objective(spec)

    def truth(q, k):
        x = scale.exp() * q @ k.T
        return sum(loss_fn.from_logits(y, scale=scale.exp()) for y in (x, x.T)) / 2

    expected, _ = run(truth, spec, {}, [scale])
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-14)
    assert (seam.calls, seam.proofs) == (2, 2)


def test_what_is_said_wrongly_is_refused():
    line, own, _, _ = CASES[grace]
    site = f"test_gradient.py:{line_of(grace, line)}"
    for changed in (
        {"positives": "0"},
        {"own": "infonce:t=0.2"},
        {"own": "infonce:t=0.1,denominator=negatives"},
        {"way": "both"},
        {"way": "columns"},
    ):
        options = {"product": [site], "positives": "diagonal", "own": own, **changed}
        with pytest.raises(DifferenceError, match=r"in call 1, the gradient at .* is not that of infonce"):
            run(grace, HCL, options)
    with pytest.raises(SeamError, match="--product needs --own"):
        run(grace, HCL, {"product": [site]})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    torch.manual_seed(0)
    x = F.normalize(torch.randn(B, WIDTH), dim=1).to(dtype).requires_grad_()
    y = F.normalize(torch.randn(B, WIDTH), dim=1).to(dtype)
    at = torch.arange(B)
    logits = Logits(Seam(HCL), "here", "here", "infonce:t=host", at, {"scale": 10.0})
    F.cross_entropy(logits(x @ y.T * 10), at).backward()
    wanted = x.detach().float().requires_grad_()
    cp.objective(HCL).from_logits(wanted @ y.float().T * 10, scale=10.0).backward()
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    torch.testing.assert_close(x.grad.float(), wanted.grad, rtol=tolerance, atol=tolerance * float(wanted.grad.max()))


@pytest.mark.parametrize("how", ["autocast", "half"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("t", "width", "batch"), [(0.05, 768, 256), (0.1, 128, 256)])
def test_half_precision_of_embeddings(dtype, how, t, width, batch):
    """What rounding explains is accepted, and no more."""
    torch.manual_seed(0)
    base = torch.randn(batch, width)
    z = [(base + torch.randn(batch, width)).to(torch.float32 if how == "autocast" else dtype) for _ in range(2)]

    def train(own):
        seam = Seam("infonce:t=0.07")
        views = [x.clone().requires_grad_() for x in z]
        with torch.autocast("cpu", dtype, enabled=how == "autocast" and dtype != torch.float32):
            a, b = (
                F.normalize(x, dim=1)
                for x in Embeddings(seam, "here", own, lambda *x: Call(x, {"pairing": ONE_WAY}))(*views)
            )
            (256 * F.cross_entropy(a @ b.T / t, torch.arange(batch))).backward()
        return seam.worst

    train(f"infonce:t={t}")
    for wrong in (f"infonce:t={t * 2}", f"infonce:t={t},denominator=mean"):
        with pytest.raises(DifferenceError, match="at here is not that of infonce"):
            train(wrong)


def test_the_lowest_precision_counts():
    full, half, count = torch.ones(2), torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.long)
    assert precision_of([full, count, None, 3.0]) == torch.float32
    assert precision_of([full.double()]) == torch.float64
    assert precision_of([full, half]) == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert precision_of([full]) == torch.bfloat16


def logits_of(spec=HCL, own="infonce:t=host", **how):
    at = torch.arange(B)
    torch.manual_seed(0)
    x = torch.randn(B, B, dtype=torch.double, requires_grad=True)
    return x, Logits(Seam(spec), "here", "here", own, at, {"scale": 10.0}, **how), at


def test_passes_on_steps_that_a_scaler_drops():
    x, call, at = logits_of()
    loss = F.cross_entropy(call(x), at) * torch.inf
    loss.backward()
    assert not x.grad.isfinite().all()
    assert call.seam.proofs == 0


def test_a_loss_that_does_not_count():
    x, call, at = logits_of()
    (0 * F.cross_entropy(call(x), at)).backward()
    assert not x.grad.any()
    assert call.seam.calls == 0


def test_the_forward_pass_twice():
    """Gradient checkpointing computes it again in the backward pass."""
    x, call, at = logits_of()
    torch.utils.checkpoint.checkpoint(lambda z: F.cross_entropy(call(z), at), x, use_reentrant=False).backward()
    assert call.seam.calls == 1
    y = x.detach().requires_grad_()
    cp.objective(HCL).from_logits(y, scale=10.0).backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_autograd_grad_and_no_second_derivative():
    x, call, at = logits_of()
    (g,) = torch.autograd.grad(F.cross_entropy(call(x), at), x, create_graph=True)
    with pytest.raises(SeamError, match="has no second derivative"):
        g.sum().backward()


def test_anchors_that_are_coupled_and_rows_that_do_not_count():
    spec = "adnce:t=0.1,mu=auto"
    x, call, at = logits_of(spec)
    losses = F.cross_entropy(call(x), at, reduction="none")
    losses[:10].mean().backward()
    y = x.detach().requires_grad_()
    cp.objective(spec).from_logits(y, at.masked_fill(at >= 10, -100), scale=10.0).backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_anchors_of_different_weights_are_another_loss():
    """A focal loss, or something inside the logarithm: the objective would be weighted by the host's loss."""
    x, call, at = logits_of()
    losses = F.cross_entropy(call(x), at, reduction="none")
    with pytest.raises(DifferenceError):
        (losses * torch.linspace(0.5, 1.5, B)).mean().backward()


@pytest.mark.parametrize("name", sorted(set(cp.registry) - {"isogclr", "matryoshka"}))  # these need embeddings
def test_every_objective_gives_the_gradient_of_its_loss_of_logits(name):
    kind = cp.registry[name]
    spec = f"{name}(infonce)" if issubclass(kind, cp.Wrapper) else name
    if cp.objective(spec, like="infonce:t=host").needs:
        pytest.skip("needs adversarial or mixed views")
    x, call, at = logits_of(spec)
    y = x.detach().requires_grad_()
    try:
        cp.objective(spec, like="infonce:t=host").from_logits(y, at, scale=10.0).backward()
    except ValueError:
        with pytest.raises(SeamError):
            F.cross_entropy(call(x), at).backward()
        return
    F.cross_entropy(call(x), at).backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-9, atol=1e-12)


def test_two_processes_of_the_same_site_share_no_calls():
    """Each call has its own logits, whatever the order of their backward passes."""
    x, call, at = logits_of()
    z = x.detach().clone().mul_(0.5).requires_grad_()
    other = Logits(call.seam, "here", "here", call.own, at, {"scale": 10.0})
    first, second = F.cross_entropy(call(x), at), F.cross_entropy(other(z), at)
    first.backward()
    second.backward()
    for found in (x, z):
        y = found.detach().requires_grad_()
        cp.objective(HCL).from_logits(y, scale=10.0).backward()
        torch.testing.assert_close(found.grad, y.grad)


def masked_in_half(q, k):
    z = torch.cat([q, k])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        s = z @ z.T
    s = s.masked_fill(torch.eye(len(z), dtype=torch.bool), -1e9)
    return F.cross_entropy(s.double() / 0.5, torch.arange(len(z)).roll(len(q)))


def test_a_mask_after_a_product_in_half_precision():
    """Half precision explains large differences, so that what is left out must not be found by these alone."""
    line = line_of(masked_in_half, "s = z @ z.T")
    options = {"product": [f"test_gradient.py:{line}"], "positives": "half", "own": "infonce:t=0.5"}
    found, seam = run(masked_in_half, HCL, options)
    expected, _ = run(lambda q, k: hcl(q, k, "views"), HCL, {})
    assert seam.worst < 1e-2
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.02 * float(b.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_anchors_that_do_not_count_get_no_gradient(dtype):
    """Also where theirs would be too small for a difference."""
    torch.manual_seed(0)
    at = torch.arange(B)
    x = (torch.randn(B, B) + 12 * torch.eye(B) * (at >= 10)).to(dtype).requires_grad_()
    call = Logits(Seam("hcl:t=1,beta=1"), "here", "here", "infonce:t=host", at, {"scale": 10.0})
    F.cross_entropy(call(x), at, reduction="none")[:10].mean().backward()
    assert x.grad[:10].any(-1).all()
    assert not x.grad[10:].any()


def test_keys_that_are_left_out_get_no_gradient():
    """Also where theirs would be too small for a difference."""
    torch.manual_seed(0)
    x = torch.randn(B, B)
    least = torch.zeros(B, B, dtype=torch.bool).scatter(1, (x + 9 * torch.eye(B)).argmin(1, keepdim=True), True)
    x = (x - 6.0 * least).requires_grad_()
    at = torch.arange(B)
    call = Logits(Seam("hcl:t=1,beta=1"), "here", "here", "infonce:t=host", at, {"scale": 10.0})
    F.cross_entropy(call(x).masked_fill(least, -1e9), at).backward()
    assert torch.equal(x.grad == 0, least)


def test_schedules_move_once_where_rows_and_columns_compete():
    spec = "infonce:t=schedule(0.1,0.5,5)"
    x = torch.randn(B, B, dtype=torch.double, requires_grad=True)
    at = torch.arange(B)
    seam, loss_fn = Seam(spec), cp.objective(spec)
    for _ in range(3):
        call = Logits(seam, "here", "here", "infonce:t=host", at, {"scale": 10.0}, both=True)
        y = call(x)
        x.grad = None
        ((F.cross_entropy(y, at) + F.cross_entropy(y.T, at)) / 2).backward()
        z = x.detach().requires_grad_()
        loss_fn.from_logits(torch.stack([z, z.T]), at.expand(2, -1), scale=10.0).backward()
        torch.testing.assert_close(x.grad, z.grad)


def test_no_second_derivative_of_a_sum_of_exponentials():
    x, call, _ = logits_of()
    y = x * 1.0
    call.hook(y)
    (g,) = torch.autograd.grad((y.logsumexp(1) - y.diag()).mean(), x, create_graph=True)
    with pytest.raises(SeamError, match=r"has no second derivative|is not that of infonce"):
        g.sum().backward()


def test_logits_that_are_changed_in_place_afterwards():
    x, call, at = logits_of()
    y = x * 1.0
    loss = F.cross_entropy(call(y), at)
    y.detach().div_(2)
    with pytest.raises(SeamError, match="the tensors at here were changed in place"):
        loss.backward()


def test_a_learned_scale_does_not_outweigh_embeddings():
    """Its gradient is a sum over all, beside which a second term of the embeddings is small."""
    q, k = (F.normalize(torch.randn(B, WIDTH), dim=1).requires_grad_() for _ in range(2))
    scale = torch.tensor(0.01, requires_grad=True)

    def call(a, b, c):
        return Call((a @ b.T * c,), {"scale": c}, "from_logits")

    a, b, c = Embeddings(Seam("infonce:t=host"), "here", "infonce:t=host", call)(q, k, scale)
    with pytest.raises(DifferenceError):
        (F.cross_entropy(a @ b.T * c, torch.arange(B)) + 1e-5 * (a[0] * b[1]).sum()).backward()


def two_log_softmaxes(q, k):
    s = q @ k.T * 10
    a, b = F.log_softmax(s, 1), F.log_softmax(s.T, 1)
    return (F.nll_loss(a, torch.arange(B)) + F.nll_loss(b, torch.arange(B))) / 2


def test_both_log_softmaxes_before_their_losses():
    line = line_of(two_log_softmaxes, "return (F.nll_loss")
    found, seam = run(two_log_softmaxes, HCL, {"site": [f"test_gradient.py:{line}"], "scale": "10"})
    expected, _ = run(lambda q, k: hcl(q, k, "symmetric"), HCL, {})
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-14)
    assert seam.proofs == 2


def lse(scale):
    def loss(q, k):
        s = scale.exp() * q @ k.T
        return (torch.logsumexp(s, 1) - s.diag()).mean()

    return loss


def test_a_product_does_not_know_a_scale_that_comes_after_it_and_is_not_named():
    line, own, _, _ = CASES[grace]
    options = {"product": [f"test_gradient.py:{line_of(grace, line)}"], "positives": "diagonal", "own": own}
    with pytest.raises(SeamError, match="t=host of --objective is not known"):
        run(grace, "hcl:t=host", options)


@pytest.fixture
def launch(tmp_path, monkeypatch, capsys):
    def start(script, *words):
        monkeypatch.chdir(tmp_path)
        for name in ("argv", "path", "meta_path"):
            monkeypatch.setattr(sys, name, [*getattr(sys, name)])
        monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
        (tmp_path / "toy.py").write_text(script)
        code = inject.main([*words, "--", "toy.py"])
        sys.modules.pop("toy", None)
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return start


PRINTS = "        optimizer.step()\n        print(sum(p.detach().double().sum().item() for p in net.parameters()))"


@pytest.mark.parametrize("name", ["distances", "distances_by_broadcasting", "distances_to_a_queue"])
def test_distances_train_as_an_edit_by_hand(launch, tmp_path, name):
    """The similarities are the negative distances."""
    code, _, scale, _ = VARIANTS[name]
    script = HARNESS.replace("{code}", code).replace("        optimizer.step()", PRINTS)
    launch(script, "auto", "--objective", "hcl:t=0.4", "--json", "found.json")
    (command,) = json.loads((tmp_path / "found.json").read_text())["commands"]
    with pytest.warns(UserWarning, match="negative (squared )?distances"):
        ours = launch(script, *command[2:-2])
    edit = f"import counterpoint as cp\ncross_entropy = cp.plugins.logits.ContrastiveLoss('hcl:t=0.4', scale={scale})\n"
    edited = edit + script.replace("return F.cross_entropy(", "return cross_entropy(")
    by_hand = launch(edited, "logits", "--site", "elsewhere.py:1")
    rows = [[float(x) for x in each.out.split()] for each in (ours, by_hand)]
    assert len(rows[0]) == 6
    assert rows[0] == pytest.approx(rows[1], rel=1e-6)


HALF_MASKED = """
import torch
from torch.nn.functional import cross_entropy, normalize

torch.manual_seed(0)
net = torch.nn.Linear(6, 5)
for _ in range(3):
    z = normalize(net(torch.randn(12, 6)), dim=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        s = (z @ z.T / 0.2).masked_fill(torch.eye(12).bool(), VALUE)
        loss = cross_entropy(s, torch.arange(12).roll(6))
    net.zero_grad()
    loss.backward()
"""


@pytest.mark.parametrize("value", ["-1e4", "-9e15"])
def test_masks_of_half_precision_are_no_negatives(launch, tmp_path, value):
    """-1e4 is -9984 in bfloat16."""
    line = next(i for i, line in enumerate(HALF_MASKED.splitlines(), 1) if "cross_entropy(s" in line)
    words = ["--site", f"toy.py:{line}", "--scale", "5", "--objective", "adnce:mu=auto,sigma=auto"]
    shown = launch(HALF_MASKED.replace("VALUE", value), "logits", *words, "--report", "report.jsonl")
    assert shown.code == 0, shown.err
    rows = [json.loads(row) for row in (tmp_path / "report.jsonl").read_text().splitlines()]
    assert [row["negatives"] for row in rows] == [10] * 3
    assert all(abs(row["negative_mean"]) < 1 for row in rows)


COUNTED = """
import torch
from torch.nn.functional import normalize

a, b = (torch.randn(12, 5).double().requires_grad_() for _ in range(2))
x, y, counts = normalize(a), normalize(b), torch.arange(12) % 3 > 0
pos = torch.exp((x * y).sum(-1) / 0.5)
neg = torch.exp(x @ y.T / 0.5)[~torch.eye(12).bool()].view(12, -1).sum(-1)
(-1.0 * counts * torch.log(pos / (neg + pos))).mean().backward()
print(*(int(row) for row in (a.grad != 0).any(1)))
"""


def test_anchors_that_do_not_count_are_said(launch):
    found = launch(COUNTED, "logits", "--product", "toy.py:8,7", "--own", "infonce:t=0.5", "--objective", "hcl:t=0.5")
    assert found.code == 0, found.err
    assert found.out.split() == 4 * ["0", "1", "1"]
    assert "toy.py:8, anchors: those without a gradient in its own loss do not count" in found.err


CHECKPOINTED = """
import torch
from torch.nn.functional import normalize
from torch.utils.checkpoint import checkpoint


def loss(a, b):
    x, y = normalize(a), normalize(b)
    pos = torch.exp((x * y).sum(-1) / 0.5)
    return -torch.log(pos / torch.exp(x @ y.T / 0.5).sum(-1)).mean()


torch.manual_seed(0)
a, b = (torch.randn(12, 5).double().requires_grad_() for _ in range(2))
checkpoint(loss, a, b, use_reentrant=False).backward()
print(*a.grad.flatten().tolist())
"""


def test_products_that_a_checkpoint_computes_again(launch):
    words = ("logits", "--product", "toy.py:10,9", "--own", "infonce:t=0.5", "--objective", "hcl:t=0.5")
    found = launch(CHECKPOINTED, *words)
    assert found.code == 0, found.err
    again = launch(CHECKPOINTED.replace("checkpoint(loss, a, b, use_reentrant=False)", "loss(a, b)"), *words)
    assert [float(x) for x in found.out.split()] == pytest.approx([float(x) for x in again.out.split()])


SCRIPTED = """
import torch


@torch.jit.script
def scores(q: torch.Tensor, k: torch.Tensor):
    positives = torch.einsum("ni,ni->n", q, k)
    return positives, torch.einsum("ni,mi->nm", q, k)
"""


def test_products_of_a_function_that_is_scripted(tmp_path, monkeypatch):
    """It is defined when the script runs, so that torch.jit must not see it."""
    (tmp_path / "scripted.py").write_text(SCRIPTED)
    monkeypatch.syspath_prepend(tmp_path)
    seam = Seam(HCL, options={"product": ["scripted.py:8,7"], "own": "infonce:t=0.1"})
    before(seam)
    try:
        import scripted

        torch.manual_seed(0)
        q, k = (F.normalize(torch.randn(B, WIDTH).double(), dim=1).requires_grad_() for _ in range(2))
        positives, s = scripted.scores(q, k)
        (torch.logsumexp(s / 0.1, 1) - positives / 0.1).mean().backward()
    finally:
        seam.end()
        sys.modules.pop("scripted", None)
    assert (seam.calls, seam.proofs) == (1, 1)
    expected = torch.autograd.grad(hcl(q, k), [q, k])
    torch.testing.assert_close([q.grad, k.grad], [*expected])
    assert torch.jit._state._enabled.enabled


def test_first_gradients_tell_seeds_whose_losses_are_nearly_equal():
    """The absolute entries of softmax minus one-hot sum to nearly 2 for every seed of an untrained encoder."""

    def first(seed: int) -> str:
        torch.manual_seed(seed)
        z, seam = F.normalize(torch.randn(192, 32), dim=1), Seam("host", verify=1)
        logits = (z[:96] @ z[96:].T / 0.5).requires_grad_()
        call = Logits(seam, None, "toy.py:1", "infonce:t=host", torch.arange(96), {"scale": 2.0})
        F.cross_entropy(call(logits), torch.arange(96)).backward()
        return f"{seam.first:.5g}"

    assert len({first(seed) for seed in [*range(20), 3]}) == 20
