"""Treatments: of logits, as the objective of the embeddings with the same ids and rules; in compiled code, too."""

from __future__ import annotations

import re
from typing import Any

import torch
from hypothesis import strategies as st

import counterpoint as cp

from .compare import gradients
from .draws import OBJECTIVES, counts, moving

TOLD = ["duplicates", "duplicates=texts", "ids=y", "labels=y", "ids=y; duplicates"]
RULES = ["", "", "margin=-0.2", "margin=0.1", "threshold=0.6", "margin=0.9,percentage", "margin=0; threshold=0.8"]
TREATED = st.fixed_dictionaries(
    {
        "objective": OBJECTIVES.filter(
            lambda q: not any(name in str(q) for name in ("mixnca", "int", "robust", "arcl", "sogclr", "matryoshka"))
        ),
        "told": st.sampled_from(TOLD),
        "rules": st.sampled_from(RULES),
        "guide": st.booleans(),
        "hard": st.booleans(),
        "pairing": st.sampled_from(["one_way", "views"]),
        "size": st.integers(3, 7),
        "scale": st.sampled_from([1.0, 12.0]),
        "temperature": st.sampled_from(["number", "learned", "schedule"]),
        "reduction": st.sampled_from(["mean", "none"]),
        "compiled": st.booleans(),
        "engine": st.sampled_from(["auto", "matrix", "tiles:4"]),
        "seed": st.integers(0, 2**31),
    }
)


def check_treated(case: dict[str, Any]) -> None:
    """Treated embeddings, and treated logits, have the loss of the objective with the same options."""
    g = torch.Generator().manual_seed(case["seed"])
    size, half = case["size"], case["pairing"] == "views"
    if "duplicates" in case["told"] and re.search("'radius': [0-9]", str(case["objective"])):
        return  # of negatives that are equal up to rounding, it finds the temperature from the rounding
    if "q" in case["objective"] and case["objective"]["q"] > 30 * case["objective"]["temperature"]:
        return  # RINCE of numbers like e^60, of which only rounding is left where they cancel
    z = torch.randn(2, size, 5, generator=g, dtype=torch.float64)
    y = torch.arange(size) % max(2, size - 1)
    if "duplicates" in case["told"]:
        z[1, 1] = z[1, 0]  # the same text twice
    same = torch.arange(size)
    same[1] = 0
    texts = torch.stack([same, same * 3 % 7, same], 1)
    guide = torch.randn(2, size, 4, generator=g, dtype=torch.float64)
    hard = None
    if case["hard"] and not half:
        hard = torch.randn(size, 5, generator=g, dtype=torch.float64)
        if "duplicates" in case["told"]:
            hard[0] = z[1, 2]  # which texts of the samples do not say
    guided = bool(case["guide"] and case["rules"] and hard is None)
    text = "; ".join(filter(None, [case["told"], case["rules"], "guide=g" if guided else ""]))
    q = moving(case["objective"], case["temperature"])

    def built() -> cp.Treatment:
        plain = cp.from_dict(q).double()
        options = cp.treatment(f"infonce; {text}")
        return cp.Treatment(plain, false_negatives=options.rules or None, **options.told).double()  # type: ignore[arg-type]

    treated, ids = built(), y.clone()
    if "ids=y; duplicates" in text:
        ids[ids == ids[1]] = ids[0]
    elif "duplicates" in text:
        ids = same
    rules = [str(rule) for rule in treated.rules]
    options: dict[str, Any] = {"pairing": case["pairing"], "reduction": case["reduction"]}
    options |= {"false_negatives": rules, "empty": "keep"} if rules else {}
    options |= {"guide": [*guide]} if guided else {}
    options |= {"labels" if "labels" in text else "ids": ids}
    if hard is not None:
        of_hard = 100 + torch.arange(size)
        of_hard[0] = ids[2] if re.search(r"duplicates(?!=)", text) else 100
        options["negatives"] = cp.Keys(hard, ids=of_hard)
    known: dict[str, Any] = {"duplicates": texts} if "texts" in text else {}
    known |= {"ids": y} if "ids" in text else {}
    outcomes = []
    for way in ("plain", "embeddings", "logits"):
        leaves = [x.clone().requires_grad_() for x in z]
        loss_fn = built()
        try:
            if way == "plain":
                loss = loss_fn.objective(*leaves, **options)
            elif way == "embeddings":
                call = torch.compile(loss_fn, backend="eager") if case["compiled"] else loss_fn
                told = {"labels": y} if "labels" in text else {}
                given = {k: v for k, v in options.items() if k in ("pairing", "reduction", "guide")}
                given |= {} if hard is None else {"negatives": hard}
                loss = call(*leaves, **{**given, **known, **told})
            else:
                if any(part.pairing not in ("views",) for _, part in loss_fn.objective.terms()):
                    continue  # terms that compare other pairs
                unit = [torch.nn.functional.normalize(x, dim=1) for x in leaves]
                rows = torch.cat(unit) if half else unit[0]
                keys = torch.cat(unit) if half else unit[1]
                keys = keys if hard is None else torch.cat([keys, torch.nn.functional.normalize(hard, dim=1)])
                judges = [torch.nn.functional.normalize(x, dim=1) for x in guide]
                judge = [torch.cat(judges)] * 2 if half else judges
                logits = rows @ keys.T * case["scale"]
                columns = torch.arange(size)
                if half:
                    logits = logits.masked_fill(torch.eye(2 * size, dtype=torch.bool), -torch.inf)
                    columns = (torch.arange(2 * size) + size) % (2 * size)
                told = {"classes": y} if "labels" in text else {}
                told |= {"guide": judge[0] @ judge[1].T} if guided else {}
                loss = loss_fn.from_logits(
                    logits, columns, scale=case["scale"], reduction=case["reduction"], **known, **told
                )
        except ValueError as error:
            if not re.search("left without negatives|no negatives|the same anchors in every term", str(error)):
                raise
            counts[f"treated, {way}: refused"] += 1
            if way == "plain":
                return
            continue
        slopes = gradients(loss.sum(), leaves)
        outcomes.append((way, [loss.detach(), *slopes]))
        counts[f"treated, {way}: {case['told']}"] += 1
    for way, found in outcomes[1:]:
        for a, b in zip(found, outcomes[0][1], strict=True):
            least = max(1e-8, 1e-14 * float(b.abs().max()))  # of losses of e^50, all else is rounded
            assert torch.allclose(a, b, rtol=1e-6, atol=least), f"{treated}: {way}: {a} != {b}"
    given = {k: v for k, v in options.items() if k in ("pairing", "reduction")} | {"engine": case["engine"]}
    given |= {"labels": y} if "labels" in text else {}
    given |= {"guide": guide.float().unbind()} if guided else {}
    given |= {} if hard is None else {"negatives": hard.float()}
    found = []
    for autocast in (False, True):
        leaves = [x.float().requires_grad_() for x in z]
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            try:
                loss = built().float()(*leaves, **given, **known)
                found.append([loss.detach(), *gradients(loss.sum(), leaves)])
            except ValueError as error:  # which compiled code does not look for
                if not re.search("left without negatives|no negatives", str(error)):
                    raise
                found.append([])
    assert len(found[0]) == len(found[1])
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b) or not b.isfinite().all(), f"{treated}: autocast, {case['engine']}: {b} != {a}"
    counts[f"treated, autocast: {case['engine']}"] += bool(found[0])
