"""Which negatives count: rules, guides, weights, own negatives and labels, in every engine, as in the reference."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import reference
import torch
from specs import REGISTERED, at, embeddings, keyed, of_tiles

import counterpoint as cp
from counterpoint.batch import rules
from counterpoint.batch.rules import Rule

SIZE, VIEWS, HARD = 7, 2, 3
DRAW = torch.Generator().manual_seed(3)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=DRAW, dtype=torch.float64)


GUIDE = {"guide": tuple(normal(VIEWS, SIZE, 3))}
LABELS = {"labels": torch.arange(SIZE) % 3}
NEGATIVES = {"negatives": normal(SIZE, HARD, 8)}
NEGATIVE_GUIDE = {"negative_guide": normal(SIZE, HARD, 3)}
QUEUE = {"queue": normal(9, 8)}
LOG_Q = {"log_q": -3 + normal(SIZE)}
OWN, THIRDS = cp.margin(-0.3), {"negative_ids": torch.arange(SIZE * HARD).view(SIZE, HARD) % 9}
ZERO = {"empty": "zero"}
IDS = {"ids": torch.arange(SIZE) // 2}

CASES = {
    "absolute": {"false_negatives": cp.margin(0.05), **ZERO},
    "relative": {"false_negatives": cp.margin(0.3, "relative"), **ZERO},
    "percentage": {"false_negatives": cp.margin(0.95, kind="percentage"), **ZERO},
    "threshold": {"false_negatives": cp.threshold(0.3), **ZERO},
    "several": {"false_negatives": [cp.threshold(0.4), OWN], **IDS},
    "a guide": {"false_negatives": OWN, **GUIDE},
    "a guide and weights": {"false_negatives": cp.threshold(0.5), **GUIDE, **LOG_Q, **ZERO},
    "weights": LOG_Q,
    "weights below one": {"log_q": 2 + normal(SIZE)},
    "hard": {"false_negatives": OWN, **NEGATIVES, **THIRDS, **IDS, "negative_weight": 0.7},
    "hard, exempt": {"false_negatives": cp.margin(0.1, hard=False), **NEGATIVES, **ZERO},
    "hard and a guide": {"false_negatives": OWN, **NEGATIVES, **GUIDE, **NEGATIVE_GUIDE},
    "hard, exempt from a guide": {"false_negatives": cp.margin(-0.1, hard=False), **NEGATIVES, **GUIDE},
    "hard and weights": {**NEGATIVES, **LOG_Q, "negative_log_q": -2 + normal(SIZE, HARD), "negative_weight": -0.2},
    "hard ones of its own beside the batch": {**NEGATIVES, **THIRDS, **IDS, "shared_negatives": False},
    "own weighted": {**NEGATIVES, "shared_negatives": False, "negative_weight": 0.4, "false_negatives": OWN},
    "own alone": {**NEGATIVES, "in_batch": False, "negative_log_q": -2 + normal(SIZE, HARD)},
    "own alone, known": {**NEGATIVES, "in_batch": False, **IDS, **THIRDS},
    "own alone and a guide": {
        **NEGATIVES, **GUIDE, **NEGATIVE_GUIDE, "in_batch": False, "false_negatives": cp.threshold(0.2), **ZERO,
    },
    "a queue": {**QUEUE, "false_negatives": OWN, "queue_log_q": -2 + normal(9)},
    "a queue and a guide": {**QUEUE, **GUIDE, "queue_guide": normal(9, 3), "false_negatives": OWN, **ZERO},
    "labels": {**LABELS, "false_negatives": OWN, **LOG_Q, **ZERO},
    "labels, symmetric": {**LABELS, "pairing": "symmetric", **GUIDE, "false_negatives": OWN, **ZERO},
    "labels and hard": {**LABELS, **NEGATIVES, **THIRDS, "shared_negatives": False},
    "labels and a queue": {**LABELS, **QUEUE, "queue_ids": torch.arange(9) % 3},
}  # fmt: skip
MANY_VIEWS = {"debpos", "arcl", "aal"}
FEW = ("infonce:t=T", "hcl:t=T")


def reference_batch(views: list[torch.Tensor], how: dict) -> reference.Batch:
    """The same batch in the reference's terms."""
    how = {k: v for k, v in how.items() if k != "pairing"}
    rules = how.pop("false_negatives", [])
    rules = [rules] if isinstance(rules, Rule) else rules
    how["rules"] = [(rule.kind, rule.value) for rule in rules]
    return reference.Batch(views, **how, hard_rules=all(rule.hard for rule in rules))


def value_and_gradients(loss: torch.Tensor, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [loss.detach(), *(torch.zeros_like(x) if g is None else g for x, g in zip(leaves, gradients, strict=True))]


def compare(spec: str, how: dict, pairing: str | None = None) -> None:
    how = {**how}
    pairing = how.pop("pairing", pairing)
    loss_fn = at(spec).double().eval()  # without a state that moves
    extra = {k: normal(SIZE, *([2] if k == "mixed" else []), 8) for k in sorted(loss_fn.needs - {"indexed"})}
    extra |= {"index": torch.arange(SIZE)} if "indexed" in loss_fn.needs else {}
    z = [*embeddings(VIEWS, SIZE, dtype=torch.float64).requires_grad_()]
    leaves = [*z, *(how[k].requires_grad_() for k in ("negatives",) if k in how)]
    options, named = {**how, **extra}, loss_fn.pairing if pairing is None else pairing
    own = reference.batch_loss(loss_fn.to_dict(), reference_batch(z, options), pairing)
    wanted = value_and_gradients(own, leaves)
    for tile in (0, 3, *[64] * (spec in FEW)):
        found = value_and_gradients(loss_fn(*z, engine=of_tiles(tile), pairing=pairing, **keyed(options)), leaves)
        for got, want in zip(found, wanted, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-9, msg=f"{named}, {tile}: {{}}".format)


def fits(spec: str, how: dict) -> bool:
    """Adversarial and mixed views go with the batch's own pairs, labels with views of all samples."""
    if at(spec).needs - {"indexed"} and set(how) & {"negatives", "queue", "labels", "guide", "log_q"}:
        return False
    if "soft" in spec and "guide" in how and "negatives" in how and "negative_guide" not in how:
        return False
    return (
        "labels" not in how
        or bool(set(how) & {"queue", "pairing", "negatives"})
        or at(spec).pairing in ("views", "single")
    )


def cases() -> list[object]:
    return [
        pytest.param(spec, case, marks=[] if spec in FEW or k % 8 == n % 8 else pytest.mark.slow)
        for n, spec in enumerate(REGISTERED)
        for k, case in enumerate(CASES)
        if fits(spec, CASES[case])
    ]


@pytest.mark.parametrize(("spec", "case"), cases())
def test_every_objective(spec, case):
    compare(spec, dict(CASES[case]))


@pytest.mark.parametrize("pairing", ["one_way", "symmetric", "first_two", "pairs", "arcl"])
@pytest.mark.parametrize("case", ["relative", "several", "a guide", "a guide and weights"])
def test_every_pairing(pairing, case):
    compare("infonce", {k: v for k, v in CASES[case].items() if k != "pairing"}, pairing)


# ---- what the reference does not say -------------------------------------------------------------


def test_one_view_with_labels_is_a_matrix_of_scores_without_the_diagonal():
    """As in pytorch-metric-learning; samples that are the only one of their class do not count."""
    z, labels = normal(SIZE, 4), torch.tensor([0, 1, 0, 2, 1, 1, 3])
    unit = torch.nn.functional.normalize(z)
    same = labels.unsqueeze(1) == labels
    pos_mask = same & ~torch.eye(SIZE, dtype=torch.bool)
    wanted = cp.HCL(0.5).from_scores(unit @ unit.T, unit @ unit.T, ~same, pos_mask=pos_mask)
    torch.testing.assert_close(cp.HCL(0.5)(z, labels=labels), wanted)


def test_several_positives_beside_hard_negatives_and_ids():
    z = [*normal(4, SIZE, 8).requires_grad_()]
    how = {**NEGATIVES, **IDS, **THIRDS, "false_negatives": OWN, "empty": "zero", "guide": tuple(normal(4, SIZE, 3))}
    how |= NEGATIVE_GUIDE
    wanted = value_and_gradients(
        reference.batch_loss(at("infonce:t=T").to_dict(), reference_batch(z, how), "one_way"), z
    )
    for tile in (0, 3):
        torch.testing.assert_close(
            value_and_gradients(at("infonce:t=T")(*z, engine=of_tiles(tile), **keyed(how)), z), wanted
        )


@pytest.mark.parametrize("tile", [0, 3])
@pytest.mark.parametrize("spec", ["infonce", "mv", "dro"])
def test_an_anchor_without_negatives(spec, tile):
    z, how = embeddings(2, SIZE), {"false_negatives": cp.threshold(-1.0), "engine": of_tiles(tile)}
    with pytest.raises(
        ValueError, match=r"14 of 14 anchors have no negatives \(rows 0, 1.*: false_negatives= excludes"
    ):
        cp.objective(spec)(*z, **how)
    assert cp.objective(spec)(*z, empty="zero", **how) == 0
    each = cp.objective(spec)(*z, false_negatives=cp.margin(0.4), empty="zero", reduction="none", engine=of_tiles(tile))
    loss = cp.objective(spec)(*z, false_negatives=cp.margin(0.4), empty="zero", engine=of_tiles(tile))
    assert 0 < (each == 0).sum() < len(each)
    torch.testing.assert_close(each.mean(), loss)


@pytest.mark.parametrize("tile", [0, 3])
def test_a_sum_over_the_batch_is_over_the_anchors_that_have_negatives(tile):
    z = torch.nn.functional.normalize(embeddings(1, SIZE)[0])
    least = (z @ z.T).amin(1).sort().values
    rules = {"false_negatives": cp.threshold(float(least[2:4].mean())), "empty": "zero", "engine": of_tiles(tile)}
    whole, each = (cp.DistancePolarization(0.0, 1.0, reduction=how) for how in ("batch_sum", "sum"))
    losses = each(z, reduction="none", **rules)
    assert (losses == 0).tolist().count(True) == SIZE - 3
    torch.testing.assert_close(whole(z, **rules), losses.sum())
    assert whole(z, **{**rules, "false_negatives": cp.threshold(-1.0)}) == 0


@pytest.mark.parametrize("tile", [0, 3])
def test_duplicates_of_the_positive_stay_at_a_margin_of_zero(tile):
    """Strictly more similar, whichever way an engine rounds: as sentence-transformers compares."""
    draw = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 40, 64, generator=draw)
    b[20:] = b[:20]
    a[20:] = a[:20]
    found = cp.InfoNCE().report(a, b, pairing="one_way", false_negatives=cp.margin(0.0), empty="zero")
    s = torch.nn.functional.normalize(a.double()) @ torch.nn.functional.normalize(b.double()).T
    assert found["removed[margin(0.0)]"] * 40 == (s > s.diagonal().unsqueeze(1) + 1e-5).sum()
    numbers = [
        cp.MeanVariance()(x, y, pairing="one_way", false_negatives=cp.margin(0.0), empty="zero", engine=of_tiles(tile))
        for x, y in ((a, b), (a.double(), b.double()))
    ]
    torch.testing.assert_close(numbers[0].double(), numbers[1], rtol=1e-5, atol=1e-5)


def test_report_counts_what_each_rule_removes():
    z = embeddings(2, SIZE, dtype=torch.float64)
    unit = torch.nn.functional.normalize(z, dim=-1)
    s = unit[0] @ unit[1].T
    free = ~torch.eye(SIZE, dtype=torch.bool)
    rules = {"margin(-0.2)": s > s.diagonal().unsqueeze(1) + 0.2, "threshold(0.3)": s > 0.3}
    how = {"false_negatives": [cp.margin(-0.2), cp.threshold(0.3)], "pairing": "one_way", "empty": "zero"}
    found = cp.InfoNCE().report(*z, **how)
    for rule, removed in rules.items():
        assert found[f"removed[{rule}]"] == pytest.approx((removed & free).sum().item() / SIZE)
        assert found[f"removed_similarity[{rule}]"] == pytest.approx(s[removed & free].mean().item())
    left = free & ~rules["margin(-0.2)"] & ~rules["threshold(0.3)"]
    assert found["without_negatives"] == (~left.any(1)).sum()
    assert "without_negatives" not in cp.InfoNCE().report(*z)


# ---- wrong input ---------------------------------------------------------------------------------

RULE = {"false_negatives": cp.margin(0.1)}
WRONG = {
    "a number": ({"false_negatives": 0.1}, TypeError, "expected a rule, cp.margin.* got 0.1 .float"),
    "a name": ({"false_negatives": "margin"}, ValueError, r"false_negatives: expected margin\(0.1\),.* got 'margin'"),
    "no rule": ({"false_negatives": []}, TypeError, "false_negatives: expected a rule"),
    "two minds": (
        {"false_negatives": [cp.margin(0.1), cp.threshold(0.9, hard=False)]}, ValueError, "need the same hard=",
    ),
    "a name near": ({"false_negative": cp.margin(0.1)}, TypeError, "Did you mean 'false_negatives'"),
    "no rule for the guide": (GUIDE, ValueError, "guide=: needs false_negatives="),
    "fewer views": ({**RULE, "guide": GUIDE["guide"][:1]}, ValueError, r"guide: expected 2 views of 7 .* \(7, 3\)\."),
    "fewer samples": ({**RULE, "guide": normal(2, 6, 3).unbind()}, ValueError, r"guide: .* \(6, 3\), \(6, 3\)"),
    "other widths": ({**RULE, "guide": (normal(7, 3), normal(7, 4))}, ValueError, r"of one width, got .* \(7, 4\)"),
    "integers": ({**RULE, "guide": (IDS["ids"], IDS["ids"])}, TypeError, "guide, view 1: expected floating-point"),
    "no guide for the queue": ({**RULE, **GUIDE, **QUEUE}, ValueError, "guide= with queue: needs"),
    "no guide for negatives": ({**RULE, **GUIDE, **NEGATIVES}, ValueError, "guide= with negatives: needs"),
    "a guide of keys alone": ({**RULE, **NEGATIVES, **NEGATIVE_GUIDE}, ValueError, "negatives: guide: needs guide="),
    "another size": (
        {**RULE, **GUIDE, **NEGATIVES, "negative_guide": normal(SIZE, 2, 3)}, ValueError, "guide: expected a row",
    ),
    "attacked": ({**RULE, **GUIDE, "adversarial": normal(SIZE, 8)}, ValueError, "the guide has not seen"),
    "empty": ({**RULE, "empty": "zeros"}, ValueError, "empty: unknown value 'zeros'.*'zero'"),
    "empty of nothing": ({"empty": "zero"}, ValueError, "empty='zero': needs false_negatives="),
    "in_batch": ({"in_batch": False}, ValueError, "in_batch=False: needs negatives="),
    "a number for a choice": ({**NEGATIVES, "shared_negatives": 0}, TypeError, "negatives: shared: expected True or"),
    "nothing left": (
        {**NEGATIVES, "in_batch": False, "false_negatives": cp.margin(0.1, hard=False)}, ValueError, "give one",
    ),
    "labels alone": ({**NEGATIVES, **LABELS, "in_batch": False}, ValueError, "in_batch=False cannot be combined"),
    "probabilities": ({"log_q": torch.full((SIZE,), -1e3)}, ValueError, "log_q: expected log-probabilities"),
    "log_q of another size": ({"log_q": torch.zeros(6)}, ValueError, "log_q: expected a number per key, 7 in all"),
    "weights of the batch": ({**QUEUE, **LOG_Q}, ValueError, r"of the queue are cp\.Keys\(..., log_q"),
    "half of the weights": ({**NEGATIVES, **LOG_Q}, ValueError, r"cp\.Keys\(negatives, log_q"),
    "a queue that is shared": ({"queue": cp.Keys(normal(9, 8), shared=False)}, ValueError, "are of negatives="),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input(case):
    how, error, text = WRONG[case]
    with pytest.raises(error, match=text):
        cp.InfoNCE()(*embeddings(2, SIZE), **keyed(how))


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: cp.margin(0.1, "relativ"), ValueError, "margin: unknown kind 'relativ'. Did you mean 'relative'"),
        (lambda: cp.margin("0.1"), ValueError, "margin: expected a number, got '0.1'"),
        (lambda: cp.margin(95, "percentage"), ValueError, "a percentage margin is a share from 0 to 1, got 95"),
        (lambda: cp.threshold(None), ValueError, "threshold: expected a number, got None"),
        (lambda: cp.threshold(0.9, hard=1), TypeError, "threshold: hard is True or False, got 1"),
    ],
)
def test_wrong_rules(make, error, text):
    with pytest.raises(error, match=text):
        make()


# values of every field of a rule: one that is added must be printed and parsed, too
FIELDS = {"value": (0.1, 1 / 3, 1e-12), "kind": (*rules.KINDS, "threshold"), "hard": (True, False)}
PRINTED = [Rule(*values) for values in itertools.product(*FIELDS.values())] + [cp.margin(-0.5), cp.threshold(-2.0)]


def test_the_fields_of_a_rule():
    assert list(FIELDS) == [field.name for field in dataclasses.fields(Rule)]


@pytest.mark.parametrize("rule", PRINTED, ids=str)
def test_a_rule_reads_as_it_prints(rule):
    assert rules.parse(str(rule)) == rule
    assert rules.as_rules(f" {rule} ") == (rule,)
    assert rules.parse(str(rule).replace(",", " , ").replace("=", " = ")) == rule


@pytest.mark.parametrize(
    "text",
    [
        "",
        "margin",
        "margin()",
        "margin(a)",
        "threshold(0.9,relative)",
        "margin(0.1)x",
        "threshold(0.9,hard=0)",
        "threshold(0.9,hard)",
    ],
)
def test_other_texts_are_no_rules(text):
    with pytest.raises(ValueError, match=r"false_negatives: expected margin\(0.1\), .*, got "):
        rules.as_rules(text)
    with pytest.raises(ValueError, match=r"margin: unknown kind 'relativ'\. Did you mean 'relative'"):
        rules.as_rules("margin(0.1,relativ)")


def test_a_margin_needs_a_positive():
    with pytest.raises(ValueError, match="a margin needs positives, at least 2 views"):
        cp.DistancePolarization()(embeddings(1, SIZE)[0], false_negatives=cp.margin(0.1))


@pytest.mark.parametrize("engine", ["matrix", "tiles", "chunks"])
@pytest.mark.parametrize("pairing", ["views", "one_way", "symmetric"])
def test_weights_of_zero_that_leave_no_negatives_are_an_error(engine, pairing):
    z = torch.randn(2, 300, 8, generator=torch.Generator().manual_seed(0))
    weights = torch.zeros(300)
    weights[0] = torch.inf
    assert torch.isfinite(cp.ADNCE(0.5)(*z, log_q=weights, engine=engine, pairing=pairing))
    with pytest.raises(ValueError, match="anchors have no negatives"):
        cp.ADNCE(0.5)(*z, log_q=torch.full((300,), torch.inf), engine=engine, pairing=pairing)
