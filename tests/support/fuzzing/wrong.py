"""Wrong calls that could return a number: each is refused, or warned of, in words that name the right call."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

import counterpoint as cp

from .draws import T, counts

WRONG = st.fixed_dictionaries(
    {
        "call": st.sampled_from(["no positives", "stacked", "logits", "labelled logits", "scale"]),
        "objective": st.sampled_from(["infonce", "supcon", "dcl", "hcl", "adnce", "alphacl", "mv", "dro", "siglip"]),
        "temperature": T,
        "scale": st.floats(5.01, 200).map(lambda x: float(f"{x:.4g}")),
        "size": st.integers(2, 12),
        "width": st.integers(2, 6),
        "more": st.integers(1, 4),
        "large": st.booleans(),
        "engine": st.sampled_from(["auto", "auto", "matrix", "tiles"]),
        "seed": st.integers(0, 9999),
    }
)


def check_wrong(case: dict[str, Any]) -> None:
    """Views without a positive, views as one tensor, logits as a view and scales as temperatures are not computed."""
    q, call = {"name": case["objective"]}, case["call"]
    if case["objective"] != "dro":
        q["temperature"] = case["scale"] if call == "scale" else case["temperature"]
    size = case["size"] + 300 * case["large"]
    g = torch.Generator().manual_seed(case["seed"])
    z = torch.randn(3, size, case["width"], generator=g)
    loss_fn, how = cp.from_dict(q), {"engine": case["engine"]}
    different = torch.randperm(size + case["more"], generator=g)[:size]
    counts[f"wrong: {call}"] += 1
    if call == "scale":
        if "temperature" not in q:
            return
        with pytest.warns(UserWarning, match=rf"at most 5 for cosines, got .*temperature is 1/{case['scale']:g}"):
            loss_fn(*z[:2], **how)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loss_fn(*z[:2], normalize=False, **how)
        return
    message = {
        "no positives": rf"(^labels: .*, got {size} different ones\.$|at least 2 views, got 1\. If the tensor)",
        "stacked": r"^view 1: expected shape \(batch, width\), got .*\*z\.unbind\(1\)\)",
        "logits": r"at least 2 views, got 1\. For logits, call from_logits\(logits, labels\)",
        "labelled logits": r"(different ones|at least 2 views, got 1)\. For logits, call from_logits\(logits, labels\)",
    }[call]
    views = {
        "no positives": [torch.cat([z[0], z[0, :, :1]], 1) if size == case["width"] else z[0]],
        "stacked": [z if case["more"] % 2 else z.transpose(0, 1)],
        "logits": [z[0] @ z[1].T],
        "labelled logits": [z[0] @ z[1].T],
    }[call]
    if call in ("no positives", "labelled logits") or (call == "stacked" and case["more"] > 2):
        how["labels"] = different if call != "stacked" else torch.arange(len(views[0]))
    with pytest.raises(ValueError, match=message):
        loss_fn(*views, **how)
