"""What ``counterpoint objectives NAME`` says beside an objective's own words: advice, a picture in text, a check."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

import counterpoint as cp
from counterpoint.diagnose.report import weight_curve

WIDE, TALL = 61, 9


class Advice(NamedTuple):
    """When to use an objective, what to tune first, and what it costs beside InfoNCE."""

    use: str
    first: str
    cost: str


ADVICE = {
    "infonce": Advice(
        "a baseline, and often enough", "t: it matters more than anything else", "the measure of all others"
    ),
    "dcl": Advice(
        "false negatives abound, and their share, the class prior, is about known",
        "t, then prior (.01, .05, .1)",
        "nothing to speak of",
    ),
    "hcl": Advice(
        "as dcl, where hard negatives should count more",
        "t, then prior (.01, .05, .1), then beta (.5, 1, 2)",
        "one more log-sum-exp",
    ),
    "adnce": Advice(
        "false negatives abound (few classes, near-duplicates), and their share is unknown",
        "t, then mu (.4 to .9), then sigma (.5, 1); or mu=auto",
        "one more log-sum-exp",
    ),
    "alphacl": Advice("hard negatives should count more, by a power of their weight", "t, then power", "a soft-max"),
    "mv": Advice(
        "to see what InfoNCE does to first order: mean and variance", "t", "less than InfoNCE: no exponentials"
    ),
    "dro": Advice(
        "results depend on the temperature: the radius, not the temperature, is what is chosen",
        "radius (.01 to 1)",
        "an inner solve",
    ),
    "nca": Advice(
        "several positives per sample, pooled inside the logarithm", "t, then the number of views", "more views"
    ),
    "mixnca": Advice("as nca, with mixtures of samples as soft positives", "t, then lam (.5, .7, .9)", "mixed views"),
    "robust": Advice(
        "a term that adds adversarial robustness to another objective", "epsilon of the attack", "an attack"
    ),
    "intcl": Advice("adversarial robustness", "epsilon of the attack, then alpha", "an attack and its forward pass"),
    "intnacl": Advice(
        "adversarial robustness, with several or mixed positives",
        "epsilon of the attack, then alpha, then lam (.5, .7, .9)",
        "an attack, mixed views and their forward passes",
    ),
    "dp": Advice(
        "no margin between similar and dissimilar pairs; a regulariser: infonce + 0.1*dp",
        "reduction, then its weight (.01 to 5)",
        "one pass over the similarities",
    ),
    "arcl": Advice(
        "representations fail under shift: pulls the worst pair of views together",
        "views (4 and more), then t",
        "more views",
    ),
    "aal": Advice("what more views bring by themselves, beside arcl", "views, then t", "more views"),
    "debpos": Advice(
        "positives are sometimes wrong (strong augmentation, noisy pairs), several views",
        "t, then prior",
        "more views",
    ),
}


def picture(one: cp.Objective) -> Iterator[str]:
    """The training weight of a negative over its similarity, in characters; the positive stands at ``|``."""
    s, weight = weight_curve(
        one, torch.linspace(-1, 1, WIDE, dtype=torch.float64), negatives=torch.linspace(-1, 1, 201)
    )
    low, high = min(0.0, float(weight.min())), float(weight.max())
    if not high > low:
        yield "no negative has any weight here"
        return
    level = ((weight - low) / (high - low) * (TALL - 1)).round().int().tolist()
    zero = round(-low / (high - low) * (TALL - 1))
    positive = int((s - 0.8).abs().argmin())
    for row in reversed(range(TALL)):
        label = f"{low + (high - low) * row / (TALL - 1):7.2f} " if row in (0, zero, TALL - 1) else " " * 8
        marks = ("*" if level[i] == row else "|" if i == positive else "-" if row == zero else " " for i in range(WIDE))
        yield label + "".join(marks).rstrip()
    yield " " * 8 + f"{'-1':{WIDE // 2 - 1}} 0{'1':>{WIDE - WIDE // 2 - 1}}"


@cache
def references() -> dict[str, Any]:
    """For each objective a case whose value is known to 50 digits; see ``tests/golden.py``, which makes this file."""
    text = Path(__file__).with_name("golden.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def check(name: str) -> tuple[str, float, float] | None:
    """The spec of an objective's reference case, its value there and its value here; None if it has no case."""
    case = references().get(name)
    if case is None:
        return None
    one = cp.objective(case["spec"])
    given = {key: _tensors(value) for key, value in case["given"].items()}
    found = getattr(one, case["call"])(*map(_tensors, case["positional"]), **given)
    return case["spec"], case["value"], float(found)


def _tensors(value: Any) -> Any:
    if isinstance(value, dict):  # a tuple of tensors
        return tuple(map(_tensors, value["tuple"]))
    return torch.tensor(value, dtype=torch.float64) if isinstance(value, list) else value
