"""The records of the finder, stage by stage, as plain data for JSON."""

# ruff: noqa: UP013  fields stand in groups; a class has a line for each

from collections.abc import Sequence
from typing import Any, TypedDict

from torch import Tensor

from .products import Product

TRAINED = "the soft targets get a gradient, too, which would stay that of the script's own loss"

_Seen = TypedDict("_Seen", {  # where logits reach a loss, and the embeddings that they are computed from
    "kind": str, "site": str, "file": str, "line": int, "function": str, "call": str, "logits": list[int],
    "products": list[dict[str, Any]], "processes": int, "told": dict[str, dict[str, Any]], "names": list[str],
    "doubts": list[str], "repeats": bool, "_sink": Any, "_logits": Tensor, "_products": Sequence[Product],
    "_positives": Tensor | None,
}, total=False)  # fmt: skip

_Measured = TypedDict("_Measured", {  # how logits follow from similarities: by one factor, or as scores that have none
    "scores": bool, "shifted": bool, "uneven": bool, "offset": float | None, "distance": str, "normalized": bool,
    "one_sided": bool, "scale": float, "learned": list[str], "scale_variable": str | None, "bias": float | None,
    "bias_learned": list[str], "bias_variable": str | None, "_tolerance": float,
}, total=False)  # fmt: skip

# a call of a function of the script that has our objective's gradient; ``scale`` and ``bias`` are arguments' names,
# and ``outer`` those of functions that called it
Replaced = TypedDict("Replaced", {
    "file": str, "function": str, "whole": bool, "arguments": list[str], "as": dict[str, Any], "form": str,
    "gradient_difference": float, "scale": str | None, "bias": str | None, "outer": list[str],
}, total=False)  # fmt: skip

_Compared = TypedDict("_Compared", {  # the objective that has its value and gradient, and how to replace it
    "form": str | None, "ours": bool, "value_difference": float, "gradient_difference": float, "positives": str,
    "in_denominator": bool, "reduction": str, "masked": float, "ignored": int, "self_similarity": bool, "way": str,
    "columns": str | None, "targets": list[str], "site_has_labels": bool, "product": str, "product_scales": list[float],
    "rivals": list[str], "other_direction": str, "replace": Replaced | None, "pairs": bool, "beside": bool,
    "weighted": bool, "fits": list[str],
}, total=False)  # fmt: skip


class Finding(_Seen, _Measured, _Compared, total=False):
    """A loss of the script; the last four are known when all steps have been watched."""

    steps: int
    calls: int
    scales: list[float]
    command: bool


# all that a run of ``auto`` says
Findings = TypedDict("Findings", {
    "steps": int, "backwards": int, "ended_early": bool, "failed": bool, "losses": list[Finding], "errors": list[str],
    "survey": list[dict[str, Any]], "hosts": list[str], "told": list[dict[str, Any]], "open": list[str],
    "commands": list[list[str]], "own": str | None,
}, total=False)  # fmt: skip
