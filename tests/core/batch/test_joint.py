"""The pairing ``joint``: directions and hardness in one denominator, in every engine, as in the reference."""

from __future__ import annotations

import golden
import pytest
import reference
import torch
from specs import REGISTERED, at, embeddings, keyed, of_tiles

import counterpoint as cp
from counterpoint.batch.options import DIRECTIONS, GTE, HARDNESS
from counterpoint.batch.rules import Rule

SIZE, HARD = 7, 2
DRAW = torch.Generator().manual_seed(11)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=DRAW, dtype=torch.float64)


ALL = {"directions": GTE}
SOME = {"directions": ("query_to_query", "query_to_doc", "doc_to_positive")}
NEGATIVES = {"negatives": normal(SIZE, HARD, 8)}
GUIDE = {"guide": tuple(normal(2, SIZE, 3))}
IDS = {"ids": torch.arange(SIZE) // 2}
HARD_IDS = {"negative_ids": torch.arange(SIZE * HARD).view(SIZE, HARD) % 9}
LOG_Q = {"log_q": -2 + normal(SIZE)}
RULE = {"false_negatives": cp.margin(0.05), "empty": "zero"}

CASES = {
    "all": ALL,
    "some": {**SOME, **NEGATIVES},
    "all and hard": {**ALL, **NEGATIVES},
    "own hard ones": {**ALL, **NEGATIVES, "shared_negatives": False, "negative_weight": 0.3},
    "known": {**ALL, **IDS},
    "known and hard": {**ALL, **NEGATIVES, **IDS, **HARD_IDS},
    "weights": {**ALL, **LOG_Q},
    "weights and hard": {**ALL, **NEGATIVES, **LOG_Q, "negative_log_q": -1 + normal(SIZE, HARD)},
    "a margin": {**ALL, **RULE},
    "a margin of a guide": {**SOME, **GUIDE, **RULE},
    "hard ones and a guide": {**ALL, **NEGATIVES, **GUIDE, "negative_guide": normal(SIZE, HARD, 3), **RULE},
    "own hard ones and a guide": {
        **ALL, **NEGATIVES, **GUIDE, "negative_guide": normal(SIZE, HARD, 3), "shared_negatives": False, **RULE,
    },
    "hardness and no negatives": {
        "hardness": ("in_batch_negatives", 1.5), "false_negatives": cp.threshold(-0.2),
        "empty": "zero",
    },
    "keys that count less than once": {**ALL, "log_q": 2 + normal(SIZE)},
    "very hard": {"hardness": ("all_negatives", 9.0)},
    "factors of positives": {**ALL, "positive_factor": 1 + normal(SIZE)},
    "hard ones exempt": {**ALL, **NEGATIVES, "false_negatives": cp.margin(0.1, hard=False)},
    **{
        f"{mode}{' and hard' * hard}{' of its own' * own}": {
            "hardness": (mode, 1.5), **(NEGATIVES if hard else {}),
            **({"shared_negatives": False, **IDS, **HARD_IDS} if own else {}),
        }
        for mode in HARDNESS for hard, own in ((0, 0), (1, 0), (1, 1))
    },
    "everything": {
        **ALL, **NEGATIVES, **IDS, **HARD_IDS, "false_negatives": cp.margin(-0.1, hard=False), "empty": "zero",
        "hardness": ("in_batch_negatives", 2.0), },
}  # fmt: skip
FEW = ("infonce:t=T", "hcl:t=T")
# adversarial and mixed views have no directions; a regularizer compares within a view
SPECS = [spec for spec in REGISTERED if not at(spec).needs and at(spec).pairing != "single"]
SPECS += ["supcon:t=T,average=inside", "adnce:t=T,denominator=all"]


def reference_batch(views: list[torch.Tensor], how: dict) -> reference.Batch:
    how = dict(how)
    rules = how.pop("false_negatives", [])
    rules = [rules] if isinstance(rules, Rule) else rules
    directions = how.pop("directions", DIRECTIONS[:1])
    listed = [(rule.kind, rule.value) for rule in rules]
    return reference.Batch(
        views, **how, directions=directions, rules=listed, hard_rules=all(rule.hard for rule in rules)
    )


def value_and_gradients(loss: torch.Tensor, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [loss.detach(), *(torch.zeros_like(x) if g is None else g for x, g in zip(leaves, gradients, strict=True))]


def cases() -> list[object]:
    return [
        pytest.param(spec, case, marks=[] if spec in FEW or k % 8 == n % 8 else pytest.mark.slow)
        for n, spec in enumerate(SPECS)
        for k, case in enumerate(CASES)
    ]


@pytest.mark.parametrize(("spec", "case"), cases())
def test_every_objective(spec, case):
    how, loss_fn = dict(CASES[case]), at(spec).double()
    z = [*embeddings(2, SIZE, dtype=torch.float64).requires_grad_()]
    leaves = [*z, *(how[k].requires_grad_() for k in ("negatives",) if k in how)]
    wanted = value_and_gradients(reference.batch_loss(loss_fn.to_dict(), reference_batch(z, how), "joint"), leaves)
    for tile in (0, 3, *[64] * (spec in FEW)):
        found = value_and_gradients(loss_fn(*z, engine=of_tiles(tile), **keyed(how)), leaves)
        for got, want in zip(found, wanted, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-9, msg=f"tile {tile}: {{}}".format)


@pytest.mark.parametrize("case", [c for c in golden.CASES if c["fn"] == "joint"], ids=lambda c: c["id"])
def test_golden_values_streamed(case):
    args, params = golden.inputs(case), dict(case["params"])
    value = golden.FUNCTIONS["joint"](params, params["t"], **args, engine="tiles:2")
    torch.testing.assert_close(value.item(), case["value"], **golden.TOLERANCE)
    found = torch.autograd.grad(value, [args[k] for k in case["grad"]])
    for name, gradient in zip(case["grad"], found, strict=True):
        want = torch.tensor(case["grad"][name], dtype=torch.float64).reshape(gradient.shape)
        torch.testing.assert_close(gradient, want, **golden.TOLERANCE)


def test_the_pairing_alone_has_gtes_directions():
    z = embeddings(2, SIZE)
    assert cp.InfoNCE(0.1)(*z, pairing="joint") == cp.InfoNCE(0.1)(*z, directions=GTE)
    torch.testing.assert_close(cp.InfoNCE(0.1)(*z, directions=GTE[:1]), cp.InfoNCE(0.1)(*z, pairing="one_way"))


def test_a_report_counts_all_directions():
    z = embeddings(2, SIZE)
    numbers = cp.InfoNCE(0.1).report(*z, directions=GTE, engine="tiles:3")
    assert numbers["negatives"] == 4 * (SIZE - 1)
    assert numbers["engine[tiles]"] == 1
    rule = cp.threshold(0.2, hard=False)
    hard = {"negatives": torch.randn(SIZE, HARD, 8, generator=torch.Generator().manual_seed(0))}
    with_hard = cp.InfoNCE(0.1).report(*z, directions=GTE, false_negatives=rule, empty="zero", **hard)
    assert (
        with_hard[f"removed[{rule}]"]
        == cp.InfoNCE(0.1).report(*z, directions=GTE, false_negatives=rule, empty="zero")[f"removed[{rule}]"]
    )


def test_an_anchor_may_lose_all_keys_of_a_direction():
    """Its query is alone among queries, and its document is not."""
    q, d = torch.eye(4, dtype=torch.float64).requires_grad_(), embeddings(1, 4, width=4, dtype=torch.float64)[0]
    options = {"directions": ("query_to_doc", "query_to_query"), "false_negatives": cp.threshold(-0.01)}
    values = []
    for tile in (0, 2):
        with pytest.raises(ValueError, match="excludes every key"):
            cp.InfoNCE(0.5)(q, -d.abs() * 0 + q.detach(), engine=of_tiles(tile), **options)
        loss = cp.InfoNCE(0.5)(q, q.detach() - 0.4, engine=of_tiles(tile), **options)
        values.append([loss, *torch.autograd.grad(loss, q)])
        assert all(x.isfinite().all() for x in values[-1])
    for a, b in zip(*values, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("tile", [0, 2])
@pytest.mark.parametrize("spec", ["infonce:t=T", "mv:t=T", "alphacl:t=T,normalize=false", "dro"])
def test_anchors_without_negatives_are_refused_in_every_reduction(spec, tile):
    """A mean over none would be NaN."""
    z = embeddings(2, SIZE)
    with pytest.raises(ValueError, match="excludes every key"):
        at(spec)(*z, directions=GTE, false_negatives=cp.threshold(-1.0), engine=of_tiles(tile))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"directions": ("doc_to_doc",)}, "query_to_doc is required"),
        ({"directions": "query_to_doc"}, "expected several of"),
        ({"directions": ("query_to_doc", "docs")}, "unknown direction"),
        ({"directions": DIRECTIONS}, "doc_to_doc includes doc_to_positive"),
        ({"directions": GTE, "pairing": "views"}, "'views' is another"),
        ({"hardness": ("hard", 0.0)}, "hardness: unknown negatives"),
        ({"hardness": 1.0}, "hardness: expected a pair"),
        ({"hardness": ("all_negatives", -1.0)}, "from 0 to 80"),
        ({"directions": GTE, "labels": torch.arange(SIZE)}, "cannot be combined with labels="),
        ({"directions": GTE, "engine": "chunks"}, "reduced one by one"),
    ],
)
def test_refusals(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        cp.InfoNCE(0.5)(*embeddings(2, SIZE), **options)


def test_three_views_are_refused():
    with pytest.raises(ValueError, match="exactly 2 views, got 3"):
        cp.InfoNCE(0.5)(*embeddings(3, SIZE), directions=GTE)
