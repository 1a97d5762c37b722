"""Which negatives count: rules, guides, weights, own negatives and labels, in every engine, as in the reference."""

from __future__ import annotations

import functools

import pytest
import reference
import torch
from specs import REGISTERED, at, embeddings

import counterpoint as cp
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
    "labels, symmetric": {**LABELS, "symmetric": True, **GUIDE, "false_negatives": OWN, **ZERO},
    "labels and hard": {**LABELS, **NEGATIVES, **THIRDS, "shared_negatives": False},
    "labels and a queue": {**LABELS, **QUEUE, "queue_ids": torch.arange(9) % 3},
}  # fmt: skip
MANY_VIEWS = {"debpos", "arcl", "aal"}
FEW = ("infonce:t=T", "hcl:t=T")


def reference_batch(views: list[torch.Tensor], how: dict) -> reference.Batch:
    """The same batch in the reference's terms."""
    how = {k: v for k, v in how.items() if k not in ("symmetric", "pairing")}
    rules = how.pop("false_negatives", [])
    rules = [rules] if isinstance(rules, Rule) else rules
    how["rules"] = [(rule.kind, rule.value) for rule in rules]
    return reference.Batch(views, **how, hard_rules=all(rule.hard for rule in rules))


def value_and_gradients(loss: torch.Tensor, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [loss.detach(), *(torch.zeros_like(x) if g is None else g for x, g in zip(leaves, gradients, strict=True))]


def compare(spec: str, how: dict, pairing: str | None = None) -> None:
    pairing = "symmetric" if how.get("symmetric") else pairing
    loss_fn = at(spec).double()
    extra = {k: normal(SIZE, 8) for k in loss_fn.needs}
    if "mixed" in extra and not set(how) & {"negatives", "queue", "labels"}:
        extra["mixed"] = normal(SIZE, 2, 8)
    if extra and set(how) & {"negatives", "queue", "labels", "guide", "log_q"}:
        pytest.skip("adversarial and mixed views go with the batch's own pairs")
    z = [*embeddings(VIEWS, SIZE, dtype=torch.float64).requires_grad_()]
    leaves = [*z, *(how[k].requires_grad_() for k in ("negatives",) if k in how)]
    options = {**how, **extra}
    named = loss_fn.pairing if pairing is None else pairing
    if "labels" in how and pairing is None and "queue" not in how and named not in ("views", "single"):
        pytest.skip("labels go with views of all samples")
    settings = dict(options)
    if extra.get("mixed") is not None and extra["mixed"].dim() == 2:
        settings["mixed"] = extra["mixed"].unsqueeze(1)
    own = reference.batch_loss(loss_fn.to_dict(), reference_batch(z, settings), pairing)
    wanted = value_and_gradients(own, leaves)
    for tile in (0, 3, 64):
        found = value_and_gradients(loss_fn(*z, tile=tile, pairing=pairing, **options), leaves)
        for got, want in zip(found, wanted, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-9, msg=f"{named}, {tile}: {{}}".format)


def cases() -> list[object]:
    return [
        pytest.param(spec, case, marks=[] if spec in FEW or k % 8 == n % 8 else pytest.mark.slow)
        for n, spec in enumerate(REGISTERED)
        for k, case in enumerate(CASES)
    ]


@pytest.mark.parametrize(("spec", "case"), cases())
def test_every_objective(spec, case):
    compare(spec, dict(CASES[case]))


@pytest.mark.parametrize("pairing", ["one_way", "symmetric", "first_two", "pairs", "arcl"])
@pytest.mark.parametrize("case", ["relative", "several", "a guide", "a guide and weights"])
def test_every_pairing(pairing, case):
    compare("infonce", {k: v for k, v in CASES[case].items() if k != "symmetric"}, pairing)
