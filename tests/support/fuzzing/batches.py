"""Losses of embeddings against the reference."""

from __future__ import annotations

import json
from typing import Any

import reference
import torch
from hypothesis import strategies as st

from .compare import check_call
from .draws import DTYPES, ENGINES, OBJECTIVES, PAIRINGS, SHAPES, TEMPERATURES, embeddings, meets_a_pole

CASES = st.fixed_dictionaries(
    {
        "objective": OBJECTIVES,
        "pairing": st.none() | st.sampled_from(PAIRINGS),
        "views": st.integers(2, 4),
        "size": st.integers(2, 6),
        "width": st.integers(1, 6),
        "shape": st.sampled_from(SHAPES),
        "scale": st.sampled_from([1e-2, 1.0, 1.0, 30.0]),
        "normalize": st.sampled_from([True, True, True, False]),
        "dtype": st.sampled_from([*DTYPES]),
        "engine": st.sampled_from(ENGINES),
        "tile": st.integers(1, 7),
        "known": st.sampled_from(
            [
                "",
                "",
                "ids",
                "labels",
                "negatives",
                "weighted negatives",
                "padded negatives",
                "negatives with ids",
                "queue",
                "queues",
                "queue with ids",
                "documents",
                "documents",
                "documents with ids",
            ]
        ),
        "prior": st.booleans(),
        "weights": st.sampled_from(["", "", "sample", "view"]),
        "temperature": st.sampled_from(TEMPERATURES),
        "read": st.booleans(),
        "reduction": st.sampled_from(["mean", "none"]),
        "seed": st.integers(0, 2**31),
    }
)


def build(case: dict[str, Any]) -> tuple[reference.Batch, dict[str, Any], list[torch.Tensor]] | None:
    """The batch of a case, the arguments of the call, and its leaves; None for what the library refuses by contract."""
    q, known, size, width = case["objective"], case["known"], case["size"], case["width"]
    words, count, pairing = json.dumps(q), case["views"], case["pairing"]
    attacked = any(f'"name": "{name}"' in words for name in ("robust", "intcl", "intnacl"))
    if attacked or '"name": "mixnca"' in words:
        known = "ids" if known == "ids" else ""
        if attacked and pairing not in (None, "one_way", "first_two"):
            pairing = "first_two"
        if attacked and q["name"] in ("sum", "arcl", "aal"):
            pairing = "first_two"
    if pairing == "symmetric" or '"view"' in words:  # averages of two views
        count = 2
    if '"[2,1]"' in words:
        width = max(width, 2)
    if pairing == "single" and q["name"] not in ("dp", "gor"):
        pairing = None
    normalize = case["normalize"] or any(word in words for word in ('"debpos"', '"gamma"', '"rayleigh"', '"chi2"'))
    scale = case["scale"] if normalize else min(case["scale"], 1.0)
    if meets_a_pole(case):
        return None
    g = torch.Generator().manual_seed(case["seed"])
    dtype = DTYPES[case["dtype"]]

    def draw(n: int, rows: int = size) -> torch.Tensor:
        return embeddings(case["shape"], n, rows, width, scale, g).to(dtype)

    options: dict[str, Any] = {}
    leaves: list[torch.Tensor] = []

    def leaf(x: torch.Tensor) -> torch.Tensor:
        leaves.append(x.clone().requires_grad_())
        return leaves[-1]

    if known.startswith("documents"):
        views = [leaf(draw(1)[0])]
        options["queue"] = leaf(torch.cat([draw(1)[0], draw(1)[0]])[: size + 2])
        options["positives"] = torch.randint(-1, size + 1, (size, 1 + case["seed"] % 3), generator=g)
        options["positives"][0, 0] = 1
        if '"shared": true' in words or '"radius": 0' in words:  # statistics include queries without positives
            options["positives"].clamp_(min=0)
        pairing = None
        if known == "documents with ids":
            options["ids"] = torch.arange(size) % max(2, size - 1)
            options["queue_ids"] = torch.randint(0, size + 2, (size + 2,), generator=g)
            options["queue_ids"][-1] = -1  # a negative of all queries
    elif known.startswith("queue"):
        views = [leaf(draw(count).transpose(0, 1).contiguous() if known == "queues" else draw(1)[0])]
        views.append(draw(count).transpose(0, 1).contiguous() if known == "queues" else draw(1)[0])
        options["queue"] = draw(1, size + 2)[0]
        pairing = None
        if known == "queue with ids":
            options["ids"] = torch.arange(size) % max(2, size - 1)
            options["queue_ids"] = torch.randint(0, size + 2, (size + 2,), generator=g)
            options["queue_ids"][0] = -1
    else:
        views = [leaf(x) for x in draw(count)]
    if "negatives" in known:
        padded = known == "padded negatives"
        options["negatives"] = leaf(draw(2 if padded else 1 + case["seed"] % 2).transpose(0, 1).contiguous())
        if padded:  # one or two of each sample
            padding = torch.rand(size, generator=g) < 0.5
            options["negative_log_q"] = torch.zeros(size, 2, dtype=torch.float64)
            options["negative_log_q"][padding, 1] = torch.inf
        if known == "weighted negatives":
            options["negative_weight"] = 0.7
        if known == "negatives with ids":
            options["ids"] = torch.arange(size) % max(2, size - 1)
            options["negative_ids"] = torch.randint(0, size + 2, options["negatives"].shape[:2], generator=g)
        pairing = "one_way"
    if known in ("ids", "labels"):
        options[known] = torch.arange(size) % max(2, size - 1)
        if known == "labels" and pairing not in ("views", "one_way"):
            pairing = "views"
    if attacked:
        options["adversarial"] = leaf(draw(1)[0])
    if '"mixnca"' in words or '"both"' in words:
        options["mixed"] = leaf(draw(2).transpose(0, 1).contiguous())
    if case["prior"] and '"debpos"' not in words:
        options["prior"] = torch.rand(size, generator=g, dtype=torch.float64) * 0.5
    if "sogclr" in words:
        options["index"] = torch.arange(size) + 1
    if case["weights"]:
        every = pairing == "views" or (pairing in ("first_two", "symmetric") and count == 2)  # view is an anchor
        shape = (count, size) if case["weights"] == "view" and every else (size,)
        options["positive_factor"] = torch.rand(shape, generator=g, dtype=torch.float64) * 3 - 1
    batch = reference.Batch(views, normalize, **options)
    return batch, {**options, "pairing": pairing, "normalize": normalize}, leaves


def check_objective(case: dict[str, Any]) -> None:
    """The loss of embeddings is the reference's."""
    built = build(case)
    if built is not None:
        batch, options, leaves = built
        check_call(case, batch, options, leaves, options["pairing"])
