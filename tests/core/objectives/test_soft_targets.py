"""Soft targets of a guide, against torch's cross entropy with probabilities, by every engine."""

from __future__ import annotations

import pytest
import torch
from processes import part, run
from torch.nn.functional import cross_entropy, normalize

import counterpoint as cp

T, TAU = 0.3, 0.2
ENGINES = ["matrix", "tiles:3", "chunks:3"]


def batch(*shape: int, width: int = 5, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def expected(anchors, keys, guide_of_anchors, guide_of_keys, weight, excluded=None):
    s, g = normalize(anchors, dim=-1) @ normalize(keys, dim=-1).T, guide_of_anchors @ guide_of_keys.T
    targets = torch.softmax(g / TAU, 1) if weight == "softmax" else (1 + g) / 2
    if excluded is not None:
        s, targets = s.masked_fill(excluded, -1e3), targets.masked_fill(excluded, 0.0)
    return cross_entropy(s / T, targets / targets.sum(1, keepdim=True))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("weight", ["softmax", "linear"])
@pytest.mark.parametrize("keys", ["views", "one_way", "queue", "negatives", "false_negatives"])
def test_cross_entropy_with_probabilities(engine, weight, keys):
    z1, z2, more = (x.requires_grad_() for x in batch(3, 7))
    g1, g2, of_more = normalize(batch(3, 7, width=4, seed=1), dim=-1)
    loss_fn, excluded, options = cp.SoftTargets(T, tau=TAU, weight=weight), None, {"pairing": "one_way"}
    anchors, others, of_anchors, of_others = z1, z2, g1, g2
    if keys == "views":
        anchors = others = torch.cat([z1, z2])
        of_anchors = of_others = torch.cat([g1, g2])
        excluded, options = torch.eye(14, dtype=torch.bool), {"pairing": "views"}
    elif keys == "queue":
        options = {"queue": cp.Keys(more.detach(), guide=of_more)}
        # of the keys, only the anchor's own is in its denominator
        others, of_others = torch.cat([z2.detach(), more.detach()]), torch.cat([g2, of_more])
        excluded = torch.cat([~torch.eye(7, dtype=torch.bool), torch.zeros(7, 7, dtype=torch.bool)], 1)
    elif keys == "negatives":
        options = {"negatives": cp.Keys(more, guide=of_more)}
        others, of_others = torch.cat([z2, more]), torch.cat([g2, of_more])
    elif keys == "false_negatives":
        g = g1 @ g2.T
        options |= {"false_negatives": cp.threshold(0.4), "guide": None}
        excluded = (g > 0.4) & ~torch.eye(7, dtype=torch.bool)
        assert excluded.any()
    leaves = [z1] if keys == "queue" else [z1, z2]
    found = loss_fn(z1, z2, engine=engine, **{**options, "guide": (g1, g2)})
    exact = expected(anchors, others, of_anchors, of_others, weight, excluded)
    torch.testing.assert_close(found, exact, rtol=1e-12, atol=1e-12)
    slopes = [torch.autograd.grad(x, leaves) for x in (found, exact)]
    torch.testing.assert_close(*slopes, rtol=1e-10, atol=1e-12)


def xclr(z: torch.Tensor, captions: torch.Tensor) -> torch.Tensor:
    """X-CLR as its paper writes it, with plain sums: no code of its authors was found.

    ``1/2N sum_i H(s_i, p_i)`` over both views of all samples, of which ``z`` is ``(2N, d)``; ``p_i`` and ``s_i`` are
    softmaxes over the others, of similarities of embeddings and of captions. A sample's views share its caption.
    """
    z, captions = normalize(z, dim=1), normalize(captions, dim=1).repeat(2, 1)
    others = 1 - torch.eye(len(z), dtype=z.dtype)
    p, s = (torch.exp(x @ x.T / t) * others for x, t in ((z, T), (captions, TAU)))
    p, s = p / p.sum(1, keepdim=True), s / s.sum(1, keepdim=True)
    return -(s * torch.log(p + torch.eye(len(z)))).sum() / len(z)


@pytest.mark.parametrize("engine", ENGINES)
def test_fifty_steps_of_xclr(engine):
    """A linear encoder that is trained by either stays the same."""
    samples, captions = batch(2, 6, width=8), batch(6, width=4, seed=1)
    ours, theirs = (batch(8, width=5, seed=2) for _ in range(2))
    for _ in range(50):
        a, b = ours.requires_grad_(), theirs.requires_grad_()
        guide = (captions, captions)
        found = cp.SoftTargets(T, tau=TAU)(*(samples @ a), guide=guide, pairing="views", engine=engine)
        expected = xclr((samples @ b).flatten(0, 1), captions)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
        slopes = [torch.autograd.grad(x, w)[0] for x, w in ((found, a), (expected, b))]
        torch.testing.assert_close(*slopes, rtol=1e-8, atol=1e-10)
        ours, theirs = (a - 0.5 * slopes[0]).detach(), (b - 0.5 * slopes[1]).detach()


@pytest.mark.parametrize("engine", ENGINES)
def test_targets_on_the_positive_alone_are_infonce(engine):
    z1, z2 = batch(2, 7)
    own = torch.eye(7, dtype=torch.float64)
    for pairing in ("views", "symmetric"):
        found = cp.SoftTargets(T, tau=0.01)(z1, z2, guide=(own, own), pairing=pairing, engine=engine)
        torch.testing.assert_close(found, cp.InfoNCE(T)(z1, z2, pairing=pairing), rtol=1e-10, atol=1e-12)


def test_compiled_with_a_guide():
    z, g = batch(2, 7).float().requires_grad_(), batch(2, 7, seed=1).float()
    loss_fn = cp.SoftTargets(T, tau=TAU)
    compiled = torch.compile(loss_fn, fullgraph=True, backend="aot_eager")
    values = [f(*z, guide=(*g,), pairing="one_way") for f in (loss_fn, compiled)]
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*(torch.autograd.grad(x, z)[0] for x in values))


def test_a_guide_that_nothing_uses_or_that_has_not_seen_all_keys():
    z, g = batch(2, 4), batch(2, 4, seed=1)
    with pytest.raises(ValueError, match=r"^guide=: needs false_negatives= beside it, or cp\.SoftTargets"):
        cp.InfoNCE()(*z, guide=(*g,))
    rule = cp.margin(0.0, hard=False)
    assert cp.InfoNCE()(*z, guide=(*g,), negatives=z[0], false_negatives=rule, empty="keep").isfinite()
    with pytest.raises(ValueError, match=r"^guide= with negatives: needs the guide's embeddings of these"):
        cp.SoftTargets()(*z, guide=(*g,), negatives=z[0], false_negatives=rule, empty="keep")


def teacher(student, targets, rows=slice(None)):
    """Cross entropy with soft targets, by hand."""
    return -(targets * (student / T).log_softmax(1)).sum(1)[rows].mean()


@pytest.mark.parametrize("labels", ["columns", "booleans", "ignored"])
def test_logits_with_targets_of_a_teacher(labels):
    student, teachers = (batch(6, width=9, seed=seed).requires_grad_() for seed in (0, 1))
    column, rows, known = torch.tensor([3, 0, 8, 1, 1, 5]), slice(None), {}
    if labels == "booleans":
        known = {"labels": torch.zeros(6, 9, dtype=torch.bool).scatter(1, column.unsqueeze(1), True)}
        known["labels"][2, 4] = True
    else:
        known = {"labels": column if labels == "columns" else torch.cat([column[:4], torch.tensor([-100, -100])])}
        rows = rows if labels == "columns" else slice(4)
    found = cp.SoftTargets(T, tau=TAU).from_logits(20 * student, guide=teachers, scale=20, **known)
    expected = teacher(student, (teachers / TAU).softmax(1).detach(), rows)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(*(torch.autograd.grad(x, student)[0] for x in (found, expected)), rtol=1e-10, atol=1e-12)
    assert teachers.grad is None


def test_targets_of_ones_own_at_logits():
    logits, own = batch(5, width=5).requires_grad_(), torch.eye(5, dtype=torch.float64)
    momentum = (batch(5, width=5, seed=1) / T).softmax(1)
    for targets in (0.6 * own + 0.4 * momentum, own, own.roll(1, 0), (own + own.roll(2, 0)) / 2):
        found = cp.SoftTargets(T, tau=1.0).from_logits(logits, guide=targets.log())
        expected = cross_entropy(logits / T, targets)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        slopes = [torch.autograd.grad(x, logits)[0] for x in (found, expected)]
        torch.testing.assert_close(*slopes, rtol=1e-10, atol=1e-12)
        linear = cp.SoftTargets(T, weight="linear").from_logits(logits, guide=2 * targets - 1)
        torch.testing.assert_close(linear, expected, rtol=1e-10, atol=1e-12)


def test_logits_of_several_batches_compiled_and_in_half_precision():
    logits, guide = batch(2, 3, 4, width=6).float().unbind(0)
    loss_fn = cp.SoftTargets(T, tau=TAU)
    expected = teacher(logits.flatten(0, 1), (guide / TAU).softmax(-1).flatten(0, 1))
    step = torch.compile(lambda x, g: loss_fn.from_logits(x, guide=g), fullgraph=True, backend="aot_eager")
    for found in (loss_fn.from_logits(logits, guide=guide), step(logits, guide)):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(loss_fn.from_logits(logits.bfloat16(), guide=guide), expected, rtol=2e-2, atol=2e-2)


def test_guides_of_logits_and_scores_that_are_wrong():
    logits, loss_fn = batch(4, width=4), cp.SoftTargets(T)
    with pytest.raises(ValueError, match=r"^guide=: needs false_negatives= beside it, or cp\.SoftTargets"):
        cp.InfoNCE().from_logits(logits, guide=logits)
    with pytest.raises(ValueError, match=r"^guide: expected similarities \(4, 4\), got \(4, 3\)"):
        loss_fn.from_logits(logits, guide=logits[:, :3])
    with pytest.raises(ValueError, match=r"^guide: 16 of 16 values are NaN or infinite"):
        loss_fn.from_logits(logits, guide=logits * torch.nan)
    with pytest.raises(ValueError, match=r"^guide: expected two tensors, of the shapes of pos and of neg"):
        loss_fn.from_scores(logits[:, 0], logits, guide=(logits[:, 0], logits))


def gathered(rank, world):
    """Loss and gradient of the samples of one process, by the pairing."""
    generator, found = torch.Generator().manual_seed(0), {}
    z, guide = (torch.randn(2, 6, width, generator=generator, dtype=torch.float64) for width in (5, 4))
    own = part([6 // world] * world, rank)
    how = {"guide": [*guide[:, own]], "false_negatives": cp.margin(0.5), "empty": "keep", "gather": world > 1}
    for pairing in ("views", "symmetric", "one_way"):
        leaf = z[:, own].clone().requires_grad_()
        loss = cp.SoftTargets(0.3, tau=0.2)(*leaf, pairing=pairing, **how)
        loss.backward()
        found[pairing] = loss.detach(), leaf.grad
    return found


def test_two_processes_are_one(tmp_path):
    (one,) = run(gathered, tmp_path, 1, 1)
    two = run(gathered, tmp_path, 2, 2)
    for pairing, (loss, gradient) in one.items():
        torch.testing.assert_close(sum(found[pairing][0] for found in two) / 2, loss)
        torch.testing.assert_close(torch.cat([found[pairing][1] for found in two], 1) / 2, gradient)


NEED_EMBEDDINGS = ("sogclr", "isogclr", "matryoshka")


def spec_of(name):
    return f"{name}(infonce)" if issubclass(cp.registry[name], cp.Wrapper) else name


@pytest.fixture
def soft():
    """Logits of scale 3, some of them masked, and targets that have zeros."""
    torch.manual_seed(0)
    logits = (2 * torch.randn(2, 5, 9)).double()
    logits[0, 1, 7] = logits[1, 3, 4] = -torch.inf
    targets = torch.randn(2, 5, 9).double().softmax(-1).masked_fill(logits.isinf(), 0.0)
    targets[0, 3, :4] = 0
    return logits.requires_grad_(), targets / targets.sum(-1, keepdim=True)


@pytest.mark.parametrize(
    "spec",
    [
        "infonce:t=0.5",
        "infonce:t=host",
        "soft:t=0.5,tau=1",
        "dcl:t=0.5,prior=0",
        "hcl:t=0.5,beta=0,prior=0",
        "adnce:t=0.5,sigma=1e6",
        "0.3*infonce:t=0.5 + 0.7*soft:t=0.5,tau=1",
        "infonce:t=0.5; margin=-90",
        "soft:t=0.5,tau=1; margin=-90",
    ],
)
def test_targets_of_the_family_of_infonce_are_those_of_cross_entropy(soft, spec):
    """Value and gradient, whatever the scale of the targets; keys that are masked have no target."""
    logits, targets = soft
    scaled = logits if "host" in spec else logits / 3 / 0.5
    wanted = -(scaled.log_softmax(-1).masked_fill(logits.isinf(), 0.0) * targets).sum(-1)
    found = cp.objective(spec).from_logits(logits, targets=7 * targets + logits.isinf(), scale=3.0, reduction="none")
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    ours, theirs = (torch.autograd.grad(x.mean(), logits)[0].nan_to_num() for x in (found, wanted))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", sorted({*cp.registry} - {*NEED_EMBEDDINGS, "soft"}))
def test_one_target_is_one_positive_for_every_objective(soft, name):
    if cp.objective(spec_of(name)).needs:
        pytest.skip("needs adversarial or mixed views")
    logits, labels = soft[0], soft[1].argmax(-1)
    one = torch.zeros_like(soft[1]).scatter(-1, labels.unsqueeze(-1), 0.5)
    soft_, hard = cp.objective(spec_of(name)), cp.objective(spec_of(name))
    known = {"scale": 3.0, "empty": "zero"}
    found, wanted = soft_.from_logits(logits, targets=one, **known), hard.from_logits(logits, labels, **known)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    ours, theirs = (torch.autograd.grad(x, logits)[0] for x in (found, wanted))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    reports = (
        soft_.report(logits, call="from_logits", targets=one, **known),
        hard.report(logits, labels, call="from_logits", **known),
    )
    assert reports[0] == pytest.approx(reports[1], nan_ok=True)


def test_one_target_in_single_precision():
    """The positive's gradient is a difference of numbers of size 1/t: that of its label, up to their rounding."""
    logits, slopes = torch.tensor([[0.9, 0.45, 0.4]]), []
    loss_fn = cp.objective("dcl:t=0.02,prior=0")
    for x in (logits.requires_grad_(), logits.detach().double().requires_grad_()):
        found = loss_fn.from_logits(x, targets=torch.tensor([[1.0, 0.0, 0.0]]))
        slopes += [torch.autograd.grad(y, x)[0] for y in (found, loss_fn.from_logits(x, torch.tensor([0])))]
    for slope in slopes[:3]:
        torch.testing.assert_close(slope.double(), slopes[3], rtol=1e-5, atol=torch.finfo(torch.float32).eps / 0.02)
    torch.testing.assert_close(slopes[2], slopes[3], rtol=1e-6, atol=0)


def test_targets_are_no_cosines_of_a_guide():
    """``weight=linear`` would read their logarithms as cosines."""
    with pytest.raises(ValueError, match=r"targets=: .*weight=linear reads cosines of a guide; weight=softmax"):
        (cp.InfoNCE() + cp.SoftTargets(T, weight="linear")).from_logits(torch.randn(3, 3), targets=torch.eye(3))


def test_the_positive_is_the_mean_of_the_keys_by_the_targets():
    """Of similarities 1 and 0 with targets .6 and .4; the key of the largest target is in the denominator."""
    logits, targets = torch.tensor([[1.0, 0.0, -1.0]]).double(), torch.tensor([[0.6, 0.4, 0.0]]).double()
    scores = torch.tensor([0.0, -1.0]).double().exp().sum()
    mass = scores + torch.tensor(1.0).double().exp()
    found = cp.objective("infonce:t=1").from_logits(logits, targets=targets)
    torch.testing.assert_close(found, mass.log() - 0.6)
    found = cp.objective("infonce:t=1,denominator=negatives").from_logits(logits, targets=targets)
    torch.testing.assert_close(found, scores.log() - 0.6)
    found = cp.objective("infonce:t=1").from_logits(logits, torch.tensor([1]), targets=targets)
    torch.testing.assert_close(found, mass.log() - 0.6)


def test_a_guide_of_a_treatment_replaces_the_targets(soft):
    logits, targets = soft
    logits, targets = logits[1:, :3], targets[1:, :3]
    guide = torch.randn(1, 3, 9).double()
    told = cp.treatment("soft:t=1,tau=1; guide=teacher").from_logits(logits, targets=targets, guide=guide)
    torch.testing.assert_close(told, -(guide.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean())


def test_rows_that_do_not_count_and_compiled_code(soft):
    logits, targets = soft[0][1, :3].detach(), soft[1][1, :3]
    loss_fn = cp.objective("hcl:t=0.5")
    some = loss_fn.from_logits(logits, torch.tensor([2, -100, 0]), targets=targets)
    torch.testing.assert_close(some, loss_fn.from_logits(logits[::2], torch.tensor([2, 0]), targets=targets[::2]))
    step = torch.compile(lambda x, w: loss_fn.from_logits(x, targets=w), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(step(logits, targets), loss_fn.from_logits(logits, targets=targets))


@pytest.mark.parametrize(
    ("labels", "targets", "why"),
    [
        (None, -torch.ones(3, 4), "targets: expected numbers of 0 or more"),
        (None, torch.ones(3, 4) * torch.nan, "targets: expected numbers of 0 or more"),
        (torch.arange(3), torch.ones(3, 4).triu(2), "targets: expected numbers of 0 or more, in each row one above 0"),
        (None, torch.ones(3, 5), r"targets: expected numbers \(3, 4\), got \(3, 5\)"),
        (torch.eye(3, 4).bool(), torch.ones(3, 4), "targets: expected labels= to be one column per row"),
    ],
)
def test_targets_that_are_refused(labels, targets, why):
    with pytest.raises(ValueError, match=why):
        cp.InfoNCE().from_logits(torch.randn(3, 4), labels, targets=targets)
    with pytest.raises(TypeError, match="targets"):
        cp.InfoNCE().from_logits(torch.randn(3, 4), targets=torch.ones(3, 4).long())


def test_a_row_without_targets_does_not_count():
    logits, targets = torch.randn(3, 4).tanh(), torch.softmax(torch.randn(3, 4), 1)
    targets[1] = 0
    found = cp.HCL().from_logits(logits, targets=targets)
    expected = cp.HCL().from_logits(logits[::2], targets=targets[::2])
    torch.testing.assert_close(found, expected)
    told = cp.treatment("hcl; threshold=99")
    torch.testing.assert_close(told.from_logits(logits, targets=targets), expected)
