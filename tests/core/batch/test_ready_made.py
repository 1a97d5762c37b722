"""Logits and matrices of scores: cross entropy, scales, masks, order and padding."""

from __future__ import annotations

import math
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from identities import DENOMINATORS, FORMULAS, SEED, WITHOUT_ATTACK, T, cosines, embeddings, gradients, prop, same
from specs import of_scores

import counterpoint as cp

# an anchor's loss depends on the other anchors too
COUPLED = ("radius=0.1", "auto", "shared", "batch_sum")
ROW_BY_ROW = [s for s in FORMULAS if not (s == "infonce:radius=0.1" or any(c in s for c in COUPLED[1:]))]


@pytest.mark.parametrize("reduction", ["mean", "none"])
@prop(seed=SEED, ignored=st.integers(0, 4))
def test_from_logits_is_cross_entropy(reduction, seed, ignored):
    logits = (cosines(seed, anchors=5, negatives=7)[1] * 20).detach().requires_grad_()
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(7, (5,), generator=g)
    labels[torch.randperm(5, generator=g)[:ignored]] = -100
    actual = cp.InfoNCE(1.0).from_logits(logits, labels, reduction=reduction)
    same(actual, F.cross_entropy(logits, labels, reduction=reduction), logits)
    moved = torch.where(labels == -100, torch.full_like(labels, -7), labels)
    same(cp.InfoNCE(1.0).from_logits(logits, moved, ignore_index=-7, reduction=reduction), actual, logits)


def test_from_logits_takes_the_diagonal_by_default_and_ignores_everything_quietly():
    logits = (cosines(0, negatives=7)[1] * 20).detach().requires_grad_()
    same(cp.InfoNCE(1.0).from_logits(logits), F.cross_entropy(logits, torch.arange(5)), logits)
    nothing = cp.InfoNCE(1.0).from_logits(logits, torch.full((5,), -100))
    assert nothing == 0
    assert not gradients(nothing, [logits])[0].any()


@pytest.mark.parametrize("spec", [*WITHOUT_ATTACK, "infonce + 0.1*dp"])
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf])
def test_rows_that_do_not_count_are_never_looked_at(spec, garbage):
    logits = (cosines(1, anchors=5, negatives=7)[1]).detach().requires_grad_()
    labels, counted = torch.tensor([3, 0, -100, 6, -100]), torch.tensor([0, 1, 3])
    spoiled = logits.masked_fill((labels == -100).unsqueeze(1), garbage)
    expected = cp.objective(spec).from_logits(logits[counted], labels[counted])
    same(cp.objective(spec).from_logits(spoiled, labels), expected, logits)
    rows = cp.objective(spec).from_logits(spoiled, labels, reduction="none")
    assert not rows[labels == -100].any()
    torch.testing.assert_close(rows.sum() / 3, expected)
    report = cp.objective(spec).report(spoiled, labels, call="from_logits")
    assert report == pytest.approx(cp.objective(spec).report(logits[counted], labels[counted], call="from_logits"))


OF_BATCHES = ["adnce:mu=auto,sigma=auto", "adnce:mu=auto,quantile=0.4", "infonce:radius=0.1", "dro:shared=true"]


@pytest.mark.parametrize("spec", ["infonce:t=1", "adnce:t=0.5", "hcl:t=0.5", "dro", *OF_BATCHES])
@pytest.mark.parametrize("masks", [slice(1, None), slice(None, -1)])
def test_rows_without_negatives_are_an_error_or_zero(spec, masks):
    logits = (cosines(2, anchors=5, negatives=7)[1] * 3).detach().requires_grad_()
    mask = torch.zeros(5, 7, dtype=torch.bool)
    mask[[1, 3], masks] = True
    column = 0 if masks.start else 6
    masked, labels = logits.masked_fill(mask, -math.inf), torch.full((5,), column)
    with pytest.raises(ValueError, match=r"2 of 5 anchors have no negatives \(rows 1, 3\)"):
        cp.objective(spec).from_logits(masked, labels)
    rest = torch.tensor([0, 2, 4])
    expected = cp.objective(spec).from_logits(masked[rest], labels[rest])
    actual = cp.objective(spec).from_logits(masked, labels, empty="zero")
    same(actual, expected * 3 / 5, logits)
    rows = cp.objective(spec).from_logits(masked, labels, empty="zero", reduction="none")
    torch.testing.assert_close(rows.mean(), actual)
    assert not rows[[1, 3]].any()
    with pytest.warns(UserWarning, match="2 of 5 anchors have no negatives, so their loss is zero"):
        cp.objective(spec).from_logits(masked, labels, empty="warn")
    if spec == "infonce:t=1":
        same(actual, F.cross_entropy(masked, labels), logits)
    if "auto" in spec or "radius" in spec:  # statistics that are tracked
        return
    over = torch.func.vmap(lambda x: cp.objective(spec).from_logits(x, labels, empty="zero"))
    torch.testing.assert_close(over(torch.stack([masked, masked]))[1], actual)


@pytest.mark.parametrize("spec", [pytest.param(s, marks=[pytest.mark.slow] * ("radius" not in s)) for s in OF_BATCHES])
def test_compiled_statistics_leave_out_the_rows_that_do_not_count(spec):
    logits = cosines(2, anchors=5, negatives=7)[1].detach().requires_grad_()
    labels = torch.tensor([0, 3, -100, 2, -100])
    torch._dynamo.reset()
    compiled = torch.compile(cp.objective(spec).from_logits, backend="eager")
    same(compiled(logits, labels), cp.objective(spec).from_logits(logits, labels), logits)
    assert compiled(logits, torch.full((5,), -100), empty="zero") == 0


def test_compiled_rows_without_negatives_are_zero():
    logits = cosines(2, anchors=5, negatives=7)[1].detach().requires_grad_()
    mask, labels = torch.zeros(5, 7, dtype=torch.bool), torch.tensor([0, 0, -100, 0, 0])
    mask[1, 1:] = True
    masked = logits.masked_fill(mask, -math.inf)
    compiled = torch.compile(cp.InfoNCE(1.0).from_logits, backend="eager", fullgraph=True)
    same(compiled(masked, labels, empty="zero"), F.cross_entropy(masked, labels), logits)


def test_batches_of_matrices_and_one_hot_targets():
    logits = (cosines(3, anchors=6, negatives=4)[1] * 3).detach().view(2, 3, 4).requires_grad_()
    labels = torch.tensor([[1, 3, 0], [-100, 2, 2]])
    expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    same(cp.InfoNCE(1.0).from_logits(logits, labels), expected, logits)
    rows = cp.InfoNCE(1.0).from_logits(logits, labels, reduction="none")
    same(rows, F.cross_entropy(logits.movedim(2, 1), labels, reduction="none"), logits)
    assert cp.InfoNCE(1.0).from_logits(logits).shape == ()  # the diagonal of each
    one_hot = F.one_hot(labels.clamp(min=0), 4) * (labels >= 0).unsqueeze(2)
    same(cp.InfoNCE(1.0).from_logits(logits, one_hot.double()), expected, logits)
    same(cp.InfoNCE(1.0).from_logits(logits, one_hot.bool()), expected, logits)


@pytest.mark.parametrize("spec", ["infonce:t=host", "adnce:t=host,mu=0.4", "hcl:t=host,prior=0.1", "nca:t=host"])
def test_a_trained_scale_is_one_over_the_temperature(spec):
    s = cosines(4, anchors=5, negatives=5)[1].detach().requires_grad_()
    log_scale = torch.tensor(2.0, dtype=s.dtype, requires_grad=True)
    loss_fn = cp.objective(spec)
    assert cp.objective(str(loss_fn)) == loss_fn
    assert cp.from_dict(loss_fn.to_dict()) == loss_fn
    actual = loss_fn.from_logits(log_scale.exp() * s, scale=log_scale.exp())
    # what a temperature of the objective's own makes of cosines, with a gradient through the temperature
    slope = [
        cp.objective(spec.replace("host", repr(math.exp(-x)))).from_logits(s.detach()).item()
        for x in (2 - 1e-4, 2 + 1e-4)
    ]
    torch.testing.assert_close(actual, cp.objective(spec.replace("host", repr(math.exp(-2)))).from_logits(s))
    gradient = torch.autograd.grad(actual, log_scale, retain_graph=True)[0]
    assert gradient.item() == pytest.approx((slope[1] - slope[0]) / 2e-4, rel=1e-5)
    if spec == "infonce:t=host":
        same(actual, F.cross_entropy(log_scale.exp() * s, torch.arange(5)), s, log_scale)
    report = loss_fn.report(log_scale.exp() * s, call="from_logits", scale=log_scale.exp())
    assert report["loss"] == pytest.approx(actual.item())
    deepcopy(loss_fn)  # no history is kept
    with pytest.raises(ValueError, match='temperature "host" is one over the scale'):
        loss_fn(s, s)


def test_a_trained_scale_without_gradient_is_warned_of():
    scale = torch.tensor(5.0, requires_grad=True)
    with pytest.warns(UserWarning, match=r"scale= is trained, but has no gradient .*t=host"):
        loss = cp.InfoNCE(0.2).from_logits(scale * torch.eye(4), scale=scale)
    assert abs(torch.autograd.grad(loss, scale)[0]) < 1e-6


@pytest.mark.parametrize("value", [-math.inf, -1e9, -1e4])
@pytest.mark.parametrize("spec", ["infonce:t=0.5", "adnce:t=0.5", "dcl:t=0.5", "hcl:t=0.5", "mv:t=0.5", "dro", "dp"])
@prop(4, seed=SEED)
def test_masked_logits_are_not_keys(spec, value, seed):
    pos, neg = cosines(seed, anchors=5, negatives=7)
    loss_fn = cp.objective(spec)
    expected = loss_fn.from_scores(pos, neg)
    own = torch.arange(5)
    matrix = torch.cat([neg[:, :3], pos, torch.full_like(pos, value / 2), neg[:, 3:]], 1)  # scale=2 below
    same(loss_fn.from_logits(2 * matrix, torch.full((5,), 3), scale=2.0), expected, pos, neg)
    if spec not in ("dp", "dro"):  # a mean over positives
        several = torch.zeros(5, 9, dtype=torch.bool)
        several[own, 3] = several[own, 4] = True
        same(loss_fn.from_logits(2 * matrix, several, scale=2.0), expected, pos, neg)


@prop(seed=SEED)
def test_from_logits_with_several_positives_per_row(seed):
    logits = (cosines(seed, negatives=7)[1] * 5).detach().requires_grad_()
    g = torch.Generator().manual_seed(seed)
    labels = torch.rand(5, 7, generator=g) < 0.4
    labels[:, 0], labels[:, 1] = False, True
    labels[2] = False  # a row without positives is skipped
    rows = []
    for i in (0, 1, 3, 4):
        others = logits[i][~labels[i]].exp().sum()
        rows.append(torch.stack([-torch.log(x.exp() / (x.exp() + others)) for x in logits[i][labels[i]]]).mean())
    same(cp.InfoNCE(1.0).from_logits(logits, labels), torch.stack(rows).mean(), logits)


@pytest.mark.parametrize("denominator", DENOMINATORS)
@prop(seed=SEED, t=T)
def test_shifted_rows_of_logits_change_nothing(denominator, seed, t):
    logits = (cosines(seed, anchors=5, negatives=5)[1] * 20).detach().requires_grad_()
    loss_fn = cp.InfoNCE(t, denominator)
    shifted = logits - logits.detach().amax(1, keepdim=True)
    same(loss_fn.from_logits(shifted), loss_fn.from_logits(logits), logits, rtol=1e-8)


@pytest.mark.parametrize("spec", WITHOUT_ATTACK)
@prop(4, seed=SEED, scale=st.floats(0.05, 100))
def test_scaled_logits_and_scores_are_the_same(spec, seed, scale):
    s = cosines(seed, negatives=7)[1]
    column = torch.randint(7, (5, 1), generator=torch.Generator().manual_seed(seed))
    rest = torch.ones(5, 7, dtype=torch.bool).scatter(1, column, False)
    expected = cp.objective(spec).from_scores(s.gather(1, column), s[rest].view(5, 6))
    actual = cp.objective(spec).from_logits(s * scale, column.squeeze(1), scale=scale)
    same(actual, expected, s, rtol=1e-7, atol=1e-9)
    same(cp.objective(spec).from_logits(s * scale, ~rest, scale=scale), expected, s, rtol=1e-7, atol=1e-9)


def extras(seed: int) -> dict:
    """Return adversarial and mixed scores; objectives that need none ignore them."""
    return {
        "adversarial": cosines(seed + 10),
        "mixed": (cosines(seed + 11, positives=2)[0], torch.stack(cosines(seed + 12, positives=7), 1)),
    }


def pick(scores: dict, rows) -> dict:
    return {k: tuple(x[rows] for x in pair) for k, pair in scores.items()}


@pytest.mark.parametrize("spec", FORMULAS)
@prop(2, seed=SEED)
def test_the_order_of_samples_and_negatives_does_not_matter(spec, seed):
    g = torch.Generator().manual_seed(seed)
    z, order = embeddings(seed, 4), torch.randperm(5, generator=g)
    loss_fn = cp.objective(spec)
    a, b, adversarial, mixed = z
    actual = loss_fn(*z[:2, order], adversarial=adversarial[order], mixed=mixed[order])
    same(actual, cp.objective(spec)(a, b, adversarial=adversarial, mixed=mixed), z, rtol=1e-7, atol=1e-9)
    pos, neg = cosines(seed, positives=2)
    columns = torch.argsort(torch.rand(5, 7, generator=g), dim=1)
    shuffled = of_scores(cp.objective(spec), pos, neg.gather(1, columns), **extras(seed))
    same(shuffled, of_scores(cp.objective(spec), pos, neg, **extras(seed)), pos, neg, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("spec", FORMULAS)
@prop(4, seed=SEED, garbage=st.sampled_from([0.3, 1e6, math.inf, math.nan]))
def test_padding_does_not_matter(spec, seed, garbage):
    pos, neg = cosines(seed, positives=2)
    g = torch.Generator().manual_seed(seed)
    spots = [torch.argsort(torch.rand(5, k, generator=g), dim=1) < real for k, real in ((4, 2), (10, 7))]
    padded = [
        torch.full(m.shape, garbage, dtype=torch.float64).masked_scatter(m, x.detach())
        for m, x in zip(spots, (pos, neg), strict=True)
    ]
    wide_pos, wide_neg = (x.requires_grad_() for x in padded)
    actual = of_scores(cp.objective(spec), wide_pos, wide_neg, spots[1], pos_mask=spots[0], **extras(seed))
    expected = of_scores(cp.objective(spec), pos, neg, **extras(seed))
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-10)
    for wide, mask, gradient in zip(gradients(actual, padded), spots, gradients(expected, [pos, neg]), strict=True):
        torch.testing.assert_close(wide[mask].view_as(gradient), gradient, rtol=1e-8, atol=1e-10)
        assert not wide[~mask].any()


@pytest.mark.parametrize("spec", ROW_BY_ROW)
@prop(3, seed=SEED)
def test_ragged_rows_are_what_each_row_is_alone(spec, seed):
    pos, neg = cosines(seed, positives=3)
    g = torch.Generator().manual_seed(seed)
    pos_mask, mask = torch.rand(5, 3, generator=g) < 0.5, torch.rand(5, 7, generator=g) < 0.6
    pos_mask[:, 1] = mask[:, 3] = True
    loss_fn, more = cp.objective(spec), extras(seed)
    actual = of_scores(loss_fn, pos, neg, mask, pos_mask=pos_mask, reduction="none", **more)
    rows = [
        of_scores(loss_fn, pos[i, pos_mask[i]][None], neg[i, mask[i]][None], **pick(more, [i])) for i in range(len(pos))
    ]
    same(actual, torch.stack(rows), pos, neg, rtol=1e-8)


@pytest.mark.parametrize("spec", FORMULAS)
def test_anchors_without_positives_do_not_count(spec):
    pos, neg = cosines(3, positives=2)
    pos_mask = torch.ones(5, 2, dtype=torch.bool)
    pos_mask[1] = False
    rest, more = [0, 2, 3, 4], extras(3)
    if any(c in spec for c in COUPLED):  # these depend on the negatives of all anchors
        neg = neg[:1].detach().expand(5, -1).clone().requires_grad_()
    actual = of_scores(cp.objective(spec), pos, neg, pos_mask=pos_mask, **more)
    expected = of_scores(cp.objective(spec), pos[rest], neg[rest], **pick(more, rest))
    if "shared" in spec:  # its multiplier is one for all rows, but no row may turn the others into NaN
        torch.testing.assert_close(actual, expected)
        assert all(x.isfinite().all() for x in gradients(actual, [pos, neg]))
        return
    same(actual, expected, pos, neg, rtol=1e-8)


@pytest.mark.parametrize("mask", [-math.inf, -1e4])
def test_masked_logits_leave_a_trained_scale_its_gradient(mask):
    """Found by fuzzing: minus infinity by the scale has a gradient that is not a number."""
    s, found = torch.rand(5, 5, dtype=torch.float64), []
    masked = torch.eye(5, dtype=torch.bool).roll(1, 1)
    for shown in (0.0, mask):
        scale = torch.tensor(4.0, dtype=torch.float64, requires_grad=True)
        positive = torch.eye(5, dtype=torch.bool)
        logits = (scale * s).masked_fill(masked, shown) if shown else scale * s[~masked].view(5, 4)
        labels = positive if shown else positive[~masked].view(5, 4)
        cp.ADNCE("host").from_logits(logits, labels, scale=scale).backward()
        found.append(scale.grad)
    torch.testing.assert_close(*found)
