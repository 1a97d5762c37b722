"""Losses of the pairing ``joint`` against the reference: directions, hardness, hard negatives and false ones."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import reference
import torch
from hypothesis import strategies as st
from specs import keyed, of_tiles

import counterpoint as cp

from .compare import check_call, precision
from .draws import ANY, DTYPES, ENGINES, SHAPES, TEMPERATURES, counts, embeddings, meets_a_pole, sums

ALL = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")
FURTHER = st.sets(st.sampled_from([*ALL[1:], "doc_to_positive"])).filter(
    lambda some: not {"doc_to_doc", "doc_to_positive"} <= some
)
MODES = ["in_batch_negatives", "hard_negatives", "all_negatives"]
RULES = (
    st.tuples(st.just("absolute"), st.sampled_from([-0.3, 0.0, 0.1, 0.5]))
    | st.tuples(st.just("relative"), st.sampled_from([0.05, 0.4]))
    | st.tuples(st.just("percentage"), st.sampled_from([0.5, 0.95]))
    | st.tuples(st.just("threshold"), st.sampled_from([-0.2, 0.3, 0.9]))
)

JOINT = st.fixed_dictionaries(
    {
        # adversarial and mixed views have no directions
        "objective": (ANY | sums(ANY)).filter(lambda q: not any(f'"{n}"' in json.dumps(q) for n in NEED_MORE)),
        "directions": st.none() | FURTHER.map(lambda some: ("query_to_doc", *sorted(some))),
        "pairing": st.sampled_from([None, "one_way", "joint", "joint"]),
        "mode": st.none() | st.sampled_from(MODES),
        "strength": st.sampled_from([0.0, 0.5, 1.5, 9.0]),
        "hard": st.integers(0, 2),
        "shared": st.booleans(),
        "weight": st.sampled_from([0.0, 0.0, 0.7]),
        "known": st.sampled_from(["", "", "ids", "ids of all"]),
        "log_q": st.booleans(),
        "rules": st.just([]) | st.lists(RULES, min_size=1, max_size=2),
        "hard_rules": st.booleans(),
        "guide": st.booleans(),
        "empty": st.sampled_from(["error", "zero", "keep"]),
        "prior": st.booleans(),
        "weights": st.booleans(),
        "size": st.integers(2, 6),
        "width": st.integers(1, 6),
        "shape": st.sampled_from(SHAPES),
        "scale": st.sampled_from([1e-2, 1.0, 30.0]),
        "normalize": st.sampled_from([True, True, True, False]),
        "dtype": st.sampled_from([*DTYPES]),
        "engine": st.sampled_from(ENGINES),
        "read": st.booleans(),
        "tile": st.integers(1, 7),
        "temperature": st.sampled_from(TEMPERATURES),
        "reduction": st.sampled_from(["mean", "none"]),
        "seed": st.integers(0, 2**31),
    }
)
NEED_MORE = ("robust", "intcl", "intnacl", "mixnca")


def build(case: dict[str, Any]) -> tuple[reference.Batch, dict[str, Any], list[torch.Tensor]]:
    """The batch of a case, the arguments of the call, and its leaves."""
    words, size, width, hard = json.dumps(case["objective"]), case["size"], case["width"], case["hard"]
    width = max(width, 2) if '"[2,1]"' in words else width
    normalize = case["normalize"] or any(name in words for name in ('"debpos"', '"gamma"', '"rayleigh"', '"chi2"'))
    g = torch.Generator().manual_seed(case["seed"])

    def draw(n: int, width: int = width, scale: float = case["scale"]) -> torch.Tensor:
        scale = scale if normalize else min(scale, 1.0)
        return embeddings(case["shape"], n, size, width, scale, g).to(DTYPES[case["dtype"]])

    def numbers(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=g, dtype=torch.float64)

    leaves = [x.clone().requires_grad_() for x in draw(2)]
    views, options = leaves[:], {}
    if hard:
        options["negatives"] = draw(hard).transpose(0, 1).clone().requires_grad_()
        leaves.append(options["negatives"])
        options |= {"negative_weight": case["weight"], "shared_negatives": case["shared"]}
    if case["known"]:
        options["ids"] = torch.arange(size) % max(2, size - 1)
        if case["known"] == "ids of all" and hard:
            options["negative_ids"] = torch.randint(0, size + 2, (size, hard), generator=g)
    if case["log_q"]:
        options["log_q"] = 2 - 6 * numbers(size)
        if hard:
            options["negative_log_q"] = 2 - 6 * numbers(size, hard)
    if case["prior"] and '"debpos"' not in words:
        options["prior"] = 0.5 * numbers(size)
    if "sogclr" in words:
        options["index"] = torch.arange(size) + 1
    if case["weights"]:
        options["positive_factor"] = 3 * numbers(size) - 1
    if case["rules"]:
        options["empty"] = case["empty"]
        if case["guide"]:
            options["guide"] = [*draw(2, 3, 1.0)]
            if hard:
                options["negative_guide"] = draw(hard, 3, 1.0).transpose(0, 1)
    if case["mode"] is not None:
        options["hardness"] = (case["mode"], case["strength"])
    alone = case["mode"] is not None and case["pairing"] != "joint"  # hardness alone has one direction
    batch = reference.Batch(
        views,
        normalize,
        **options,
        rules=case["rules"],
        hard_rules=case["hard_rules"],
        directions=case["directions"] or (ALL[:1] if alone else ALL),
    )
    call: dict[str, Any] = {**options, "normalize": normalize, "pairing": case["pairing"]}
    if case["directions"] is not None:
        call["directions"] = case["directions"]
    elif case["mode"] is None:
        call["pairing"] = "joint"
    if case["rules"]:
        call["false_negatives"] = rules_of(case)
    return batch, call, leaves


def rules_of(case: dict[str, Any]) -> list[Any]:
    hard = case["hard_rules"]
    return [
        cp.threshold(x, hard=hard) if kind == "threshold" else cp.margin(x, kind, hard=hard)
        for kind, x in case["rules"]
    ]


def near_a_limit(case: dict[str, Any], batch: reference.Batch) -> bool:
    """Whether rounding may decide which keys the rules remove, or which is the least similar one."""
    seen = batch
    if batch.guide is not None:
        seen = replace(batch, views=batch.guide, negatives=batch.negative_guide, normalize=True)
    s, n = reference.similarities(seen, lambda x: x.detach())[0], len(batch.views[0])
    own = s[:n, n : 2 * n].diagonal()
    rows = s.view(-1, len(s))[: 2 * n].clone()
    for view in (0, n):
        rows[torch.arange(2 * n), view + torch.arange(2 * n) % n] = torch.inf  # never negatives
    by_rule = {
        "absolute": lambda x: own - x,
        "relative": lambda x: own - x * own.abs(),
        "percentage": lambda x: x * own,
    }
    limits = [by_rule.get(kind, lambda x: torch.full_like(own, x))(value) for kind, value in batch.rules]
    gaps = [(rows - most.repeat(2).unsqueeze(1)).abs().min() for most in limits]
    if case["empty"] == "keep":
        gaps.append(rows.sort(1).values.diff(dim=1).nan_to_num(torch.inf).min())
    return min(map(float, gaps)) < 100 * precision(case, batch) * max(1.0, float(s.abs().max()))


def check_joint(case: dict[str, Any]) -> None:
    """The loss of a batch with directions is the reference's."""
    if meets_a_pole(case):
        return
    batch, options, leaves = build(case)
    if batch.rules:
        if "matryoshka" in str(case["objective"]):  # its rules see fewer numbers
            return
        if near_a_limit(case, batch):
            counts["joint: near a limit"] += 1
            return
        pairings = pairings_of(case)
        unread = replace(batch, empty="zero")
        rows = [row for pairing in sorted(pairings) for row in reference.rows(unread, pairing, lambda s: s)]
        if batch.empty == "error" and not all(row.counts for row in rows):
            with pytest.raises(ValueError, match="exclude"):
                cp.from_dict(case["objective"])(*batch.views, **keyed(options), engine=of_tiles(case["tile"] - 1))
            counts["joint: refused"] += 1
            return
    for what in ("mode", "hard", "known"):
        counts[f"joint: {what} {case[what]}"] += 1
    check_call(case, batch, options, leaves, "joint")


def pairings_of(case: dict[str, Any]) -> set[str]:
    q = case["objective"]
    terms = [term for _, term in q["terms"]] if q["name"] == "sum" else [q]
    return {"single" if term["name"] in ("dp", "gor") else "joint" for term in terms}
