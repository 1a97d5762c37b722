"""One loss in several ways: each engine, compiled code, frozen towers, trained hyper-parameters, emptied anchors."""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import replace
from typing import Any

import reference
import torch
from hypothesis import strategies as st
from specs import called

import counterpoint as cp
from counterpoint.hyper import Real

from . import batches, joint
from .batches import CASES
from .compare import engine, gradients, reading
from .draws import counts, moving
from .joint import JOINT, RULES, rules_of

WAYS = ["matrix", "tiles", "tiles of all", "chunks", "chunks of all", "streamed"]
TOWERS = {"": slice(0), "left": slice(1), "right": slice(1, None), "both": slice(None)}
SOLVED = '"dro"'  # whose inner problem takes a compiler half a minute
POLES = re.compile('"(chi2|gamma)"')  # ADNCE's weights that may be infinite at a cosine of -1, so that rounding decides

RULED = st.builds(
    lambda case, rules: {**case, **rules},
    CASES,
    st.fixed_dictionaries(
        {
            "rules": st.just([]) | st.lists(RULES, min_size=1, max_size=2),
            "hard_rules": st.booleans(),
            "guide": st.booleans(),
            "empty": st.sampled_from(["error", "zero", "keep"]),
            "log_q": st.booleans(),
            "in_batch": st.booleans(),
        }
    ),
)


def ways(**more: Any) -> st.SearchStrategy[Any]:
    """Batches with any argument of a call, in float64 and without similarities that rounding decides on."""
    drawn = st.fixed_dictionaries(
        {
            "dtype": st.just("float64"),
            "shape": st.sampled_from(["normal", "clusters", "duplicates"]),
            "way": st.sampled_from(WAYS),
            "spelled": st.booleans(),
            "frozen": st.sampled_from([*TOWERS]),
            "trained": st.booleans(),
            **more,
        }
    )
    return st.builds(lambda case, more: {**case, **more}, RULED | JOINT, drawn)


COMPILED = ways(backend=st.sampled_from(["eager", "eager", "aot_eager"]))
FROZEN = ways(frozen=st.sampled_from(["left", "right", "both"]), trained=st.just(True))
EMPTIED = ways(
    emptied=st.sampled_from(["threshold", "threshold", "absolute", "relative", "percentage", "ids"]),
    trained=st.just(False),
)


def known(case: dict[str, Any]) -> tuple[reference.Batch, dict[str, Any], list[torch.Tensor]] | None:
    """The batch of a case, with arguments that the other checks do not draw, as they do."""
    if "mode" in case:
        return joint.build(case)
    built = batches.build(case)
    if built is None:
        return None
    batch, options, leaves = built
    g = torch.Generator().manual_seed(case["seed"] + 1)

    def judged(x: torch.Tensor) -> torch.Tensor:
        return torch.randn(*x.shape[:-1], 3, generator=g, dtype=torch.float64)

    if case["rules"]:
        # where no objective uses some anchors, as with adversarial views, only a matrix knows that they are empty
        options |= {"false_negatives": rules_of(case), "empty": "zero" if "adversarial" in options else case["empty"]}
        if case["guide"] and batch.adversarial is None:
            options["guide"] = [judged(x) for x in batch.views]
            for name in ("queue", "negatives"):
                if name in options:
                    options[name.replace("negatives", "negative") + "_guide"] = judged(options[name])
    if batch.queue is not None and case["log_q"]:
        options["queue_log_q"] = 2 - 6 * torch.rand(len(batch.queue), generator=g, dtype=torch.float64)
    if batch.negatives is not None:
        options["in_batch"] = case["in_batch"]
    if case.get("alone"):
        options |= {name: torch.zeros_like(options[name]) for name in ("queue_ids", "negative_ids") if name in options}
        options |= {"ids": torch.arange(case["size"])} if "ids" in options else {}
    fields = {name: x for name, x in options.items() if name in vars(batch)}
    return replace(batch, **fields, rules=case["rules"], hard_rules=case["hard_rules"]), options, leaves


def spelled(views: list[torch.Tensor], options: dict[str, Any]) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """The same call in other words, and with a pairing that depends on the objective."""
    options = {**options}
    pairing = options.pop("pairing")
    if pairing == "symmetric":
        options["pairing"] = "symmetric"
    else:
        options["pairing"] = {"views": "one_way"} if pairing is None else pairing
    return views, options


def trainable(q: Any) -> Any:
    """The objective ``q`` with every number that may be trained as a Learned one."""
    if isinstance(q, list):
        return [f"learned({x},{x - 0.5},{x + 0.5})" if isinstance(x, float) else trainable(x) for x in q]
    if not isinstance(q, dict):
        return q
    declared = cp.registry[q["name"]].hyper if q["name"] in cp.registry else {}

    def learned(hyper: Any, x: Any) -> Any:
        if not isinstance(hyper, Real) or hyper.fixed or not isinstance(x, float):
            return trainable(x)
        low, high = (x / 1.2, x * 1.2) if x > 0 else (x - 0.5, x + 0.5)
        return f"learned({x},{max(low, hyper.low)},{min(high, hyper.high)})"

    return {name: learned(declared.get(name), x) for name, x in q.items()}


Outcome = dict[str, torch.Tensor] | str


def outcome(
    case: dict[str, Any],
    way: str,
    *,
    frozen: str = "",
    steps: int = 1,
    backend: str = "",
    whole: bool = False,
    read: bool = True,
) -> Outcome | None:
    """The values, gradients and states of training steps, or the text of an error; None where nothing is drawn."""
    q, found = case["objective"], {}
    how = {
        "matrix": {"engine": "matrix"},
        "tiles": {"engine": f"tiles:{case['tile']}"},
        "tiles of all": {"engine": "tiles"},
        "chunks": {"engine": f"chunks:{case['tile']}"},
        "chunks of all": {"engine": "chunks"},
    }.get(way, {})
    with engine("kernels" if way == "streamed" else ""), warnings.catch_warnings(), reading(read):
        warnings.simplefilter("ignore")  # such as of ArCL with two views
        try:
            loss_fn = cp.from_dict(trainable(q) if case["trained"] else moving(q, case["temperature"])).double()
            call = torch.compile(loss_fn, backend=backend, fullgraph=whole) if backend else loss_fn
            for step in range(steps):
                built = known({**case, "seed": case["seed"] + 2 * step})
                if built is None:
                    return None
                batch, options, leaves = built
                for x in leaves[TOWERS[frozen]]:
                    x.requires_grad_(False)
                views, options = spelled(batch.views, options) if case["spelled"] else (batch.views, options)
                loss = called(call, views, {**options, **how, "reduction": case["reduction"]})
                trained = {f"leaf {i}": x for i, x in enumerate(leaves) if x.requires_grad}
                trained |= dict(loss_fn.named_parameters())
                factors = torch.linspace(0.5, 1.5, loss.numel(), dtype=loss.dtype) if loss.dim() else 1.0
                slopes = dict(zip(trained, gradients((loss * factors).sum(), [*trained.values()]), strict=True))
                if any(f'"{name}"' in json.dumps(q) for name in ("arcl", "dro")):
                    slopes = {n: of_equal_rows(x, trained[n]) if n.startswith("leaf") else x for n, x in slopes.items()}
                for name, x in {"loss": loss, **slopes, **dict(loss_fn.named_buffers())}.items():
                    found[f"step {step}, {name}"] = x.detach().double()
        except (ValueError, TypeError) as error:
            return str(error).split("\n\nWhile executing")[0]  # a compiler's traceback
    counts.update(f"option {name}" for name in options)
    return found


def of_equal_rows(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Sum the gradients of equal embeddings.

    If two documents are equal, rounding decides which one is ArCL's least similar positive, or whether they share the
    gradient of CL-DRO's largest negative; each engine rounds in an order of its own.
    """
    _, which = x.detach().unique(dim=0, return_inverse=True)
    return torch.zeros_like(gradient).index_add(0, which, gradient)


def agree(found: Outcome, expected: Outcome, how: str) -> None:
    """Assert that two ways have the same outcome; the second may have further gradients."""
    if isinstance(found, str) or isinstance(expected, str):
        assert found == expected, f"{how}: {found} != {expected}"
        return
    largest = max(float(x.abs().max()) for x in expected.values())  # a gradient of zero has the rounding of the others
    for name, x in found.items():
        right = expected[name]
        allowed = 1e-6 * max(float(right.abs().max()), 1e-3 * largest) + 1e-9
        error = float(torch.where(x == right, 0.0, x - right).abs().max())
        assert error <= allowed, f"{how}, {name}: off by {error:.3g}, allowed {allowed:.3g}; {x} != {right}"


def check_compiled(case: dict[str, Any]) -> None:
    """Compiled code has the values, gradients, states and errors of the same call without a compiler."""
    if case["way"] == "matrix" and SOLVED in json.dumps(case["objective"]):
        return
    expected = outcome(case, case["way"], frozen=case["frozen"], steps=2)
    if expected is None:
        return
    refused = isinstance(expected, str)
    torch._dynamo.reset()
    how = {"frozen": case["frozen"], "steps": 2, "backend": case["backend"]}
    found = outcome(case, case["way"], **how, whole=not refused and case["way"] == "matrix")
    counts[f"compiled, {case['way']}: {'refused' if refused else case['backend']}"] += 1
    if refused and not isinstance(found, str):  # compiled code does not read values
        finite = [found[f"step {step}, loss"].isfinite().all() for step in range(2)]
        assert not all(finite), f"{expected} {found}"
        return
    agree(found, expected, "compiled")


def check_frozen(case: dict[str, Any]) -> None:
    """Each engine has the values and gradients of a matrix; trained numbers have the same with a frozen tower."""
    if case["width"] == 1 and POLES.search(json.dumps(case["objective"])):
        return
    expected = outcome(case, "matrix")
    found = outcome(case, case["way"], frozen=case["frozen"], read=case["read"])
    if expected is None or found is None or (isinstance(expected, str) and not case["read"]):
        return
    refused = isinstance(found, str) and found.startswith("engine=")
    counts[f"frozen {case['frozen']}, {case['way']}{': refused' if refused else ''}"] += 1
    counts[f"frozen, read {case['read']}"] += 1
    if not refused:
        agree(found, expected, f"frozen {case['frozen']}, {case['way']}")


def seen_by_rules(batch: reference.Batch, layout: str) -> list[reference.Row]:
    """The similarities that rules compare, of each anchor."""
    if batch.guide is not None:
        guides = {"views": batch.guide, "queue": batch.queue_guide, "negatives": batch.negative_guide}
        batch = replace(batch, **guides, guide=None, mixed=None, adversarial=None, normalize=True)
    rows = reference.rows(replace(batch, rules=[], empty="zero"), layout, lambda s: s.detach())
    return [row for row in rows if row is not None]


def emptied(case: dict[str, Any]) -> dict[str, Any] | None:
    """The case with a rule, or with ids, that leave exactly one of its anchors without negatives; None if none do."""
    q, kind = case["objective"], case["emptied"]
    case = {**case, "spelled": False}  # which may name another pairing
    if kind == "ids":
        case = {**case, "known": ["queue with ids", "negatives with ids"][case["seed"] % 2], "in_batch": False}
        case |= {"alone": True, "rules": []}
    else:
        case = {**case, "hard_rules": True, "rules": [("threshold", 3.0)]}
    built = known(case)
    if built is None or q["name"] == "sum" or (kind != "ids" and "matryoshka" in str(q)):  # its rules see fewer numbers
        return None
    batch, options, _ = built
    case["empty"] = options.get("empty", "error")
    layout = max(joint.pairings_of(case)) if "mode" in case else reference.pairing_of(q, options["pairing"], batch)
    if kind != "ids":
        rows = seen_by_rules(batch, layout)
        if not all(len(row.s) for row in rows):
            return None
        least, own = (torch.stack([x.min() for x in some]) for some in ([r.s for r in rows], [r.p for r in rows]))
        by_kind = {"absolute": own - least, "relative": (own - least) / own.abs(), "percentage": least / own}
        limits = by_kind.get(kind, least).sort(descending=kind in ("threshold", "percentage")).values
        value = float(limits[:2].mean())
        if (limits[:2].diff().abs() < 1e-3).any() or (kind in ("relative", "percentage") and not 0 <= value <= 1):
            return None
        case["rules"] = [(kind, value)]
        batch = replace(batch, rules=case["rules"])
    rows = [row for row in reference.rows(replace(batch, empty="zero"), layout, lambda s: s) if row is not None]
    return case if len(rows) > 1 and sum(not row.counts for row in rows) == 1 else None


def check_emptied(case: dict[str, Any]) -> None:
    """One anchor of many without negatives is the same error in every engine, or has the same loss of zero."""
    found = emptied(case)
    if found is None:
        counts["emptied: no such rule"] += 1
        return
    expected = outcome(found, "matrix")
    if isinstance(expected, str) and "a margin needs positives" in expected:  # spread-out documents have none
        counts["emptied: no positives"] += 1
        return
    for way in ("matrix", *WAYS):
        result = outcome(found, way)
        refused = isinstance(result, str) and result.startswith("engine=")
        counts[f"emptied by {case['emptied']}, {way}{': refused' if refused else ''}"] += 1
        if refused:
            continue
        assert result is not None
        assert expected is not None
        if found["empty"] == "error":
            assert isinstance(result, str), f"{way}: {result}"
            assert re.match(r"1 of \d+ anchors have no negatives \(rows \d+\): ", result), f"{way}: {result}"
        agree(result, expected, way)
