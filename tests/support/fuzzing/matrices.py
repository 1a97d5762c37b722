"""Losses of logits and of scores against the reference."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import reference
import torch
from hypothesis import strategies as st

import counterpoint as cp

from .compare import Noise, compare, gradients, trained
from .draws import DTYPES, PLAIN, TEMPERATURES, WRAPPED, at_now, counts, moving, sums, temperatures

ENTRIES = ["columns", "diagonal", "booleans", "one-hot", "soft", "scores"]
MATRIX_OBJECTIVES = st.one_of(*PLAIN[:10], WRAPPED)
MATRICES = st.fixed_dictionaries(
    {
        "objective": MATRIX_OBJECTIVES | sums(MATRIX_OBJECTIVES),
        "entry": st.sampled_from(ENTRIES),
        "anchors": st.integers(1, 5),
        "keys": st.integers(2, 8),
        "shape": st.sampled_from(["normal", "normal", "ties", "equal", "close"]),
        "masked": st.sampled_from([0.0, 0.3, 0.8]),
        "mask": st.sampled_from([-math.inf, -1e4]),
        "ignored": st.sampled_from([0.0, 0.4]),
        "scale": st.sampled_from([1.0, 3.7, 20.0]),
        "scale is": st.sampled_from(["number", "tensor", "trained"]),
        "temperature": st.sampled_from([*TEMPERATURES, "host"]),
        "dtype": st.sampled_from([*DTYPES]),
        "reduction": st.sampled_from(["mean", "none"]),
        "seed": st.integers(0, 2**31),
    }
)


def check_matrix(case: dict[str, Any]) -> None:
    """The loss of logits, or of scores and masks, is the reference's; what is masked or ignored may be anything."""
    entry, anchors, keys, how = (case[name] for name in ("entry", "anchors", "keys", "temperature"))
    g = torch.Generator().manual_seed(case["seed"])
    how = "number" if entry == "scores" and how == "host" else how
    keys = max(keys, anchors) if entry == "diagonal" else keys

    def chosen(share: float) -> torch.Tensor:
        return torch.rand(anchors, keys, generator=g) < share

    cosine = 1.9 * torch.rand(anchors, keys, generator=g, dtype=torch.float64) - 0.95
    if case["shape"] == "ties":
        cosine = (cosine * 2).round() * 0.45
    elif case["shape"] != "normal":
        cosine = 0.5 + (1e-3 * cosine if case["shape"] == "close" else 0 * cosine)
    masked, ignored = chosen(case["masked"]), chosen(case["ignored"])[:, 0]
    column = torch.arange(anchors) if entry == "diagonal" else torch.randint(0, keys, (anchors,), generator=g)
    targets = torch.rand(anchors, keys, generator=g, dtype=torch.float64) ** 3
    if entry == "soft":  # some of zero; rows of nothing else do not count
        targets = targets.masked_fill(chosen(0.3) | masked | ignored.unsqueeze(1), 0.0)
        column, ignored = targets.argmax(1), ~targets.any(1)
    positive = torch.zeros(anchors, keys, dtype=torch.bool).scatter_(1, column.unsqueeze(1), True)
    if entry in ("booleans", "one-hot", "scores"):
        positive |= chosen(0.2)
    masked &= ~positive
    if entry == "scores":  # which must have negatives, and have no rows that do not count
        masked[torch.arange(anchors), (column + 1) % keys] = False
        positive[torch.arange(anchors), (column + 1) % keys] = False
        ignored &= False
    elif entry == "diagonal":
        ignored &= False
    scale = 1.0 if entry == "scores" else case["scale"]
    logits = (cosine * scale).to(DTYPES[case["dtype"]])
    q, options = at_now(case["objective"], how, 1 / scale), {}
    loss_fn = cp.from_dict(moving(case["objective"], how)).double()
    moved = trained(case, loss_fn)
    if entry == "scores":
        junk = torch.where(masked, torch.nan, logits)
        leaf = junk.requires_grad_()
        loss = loss_fn.from_scores(leaf, leaf, ~masked & ~positive, pos_mask=positive, reduction=case["reduction"])
    else:
        logits = torch.where(masked, torch.tensor(case["mask"], dtype=logits.dtype), logits)
        junk = torch.where(ignored.unsqueeze(1), torch.nan, logits)
        leaf = junk.requires_grad_()
        if case["scale is"] != "number":
            options["scale"] = torch.tensor(scale, dtype=torch.float64, requires_grad=case["scale is"] == "trained")
        labels: torch.Tensor | None = torch.where(ignored, -100, column)
        if entry in ("booleans", "one-hot"):
            labels = positive & ~ignored.unsqueeze(1)
            labels = labels / labels.sum(1, keepdim=True).clamp(min=1) if entry == "one-hot" else labels
        elif entry in ("diagonal", "soft"):
            labels = None
        if entry == "soft":
            options["targets"] = targets
        if how == "host" and case["scale is"] == "trained" and temperatures(q):
            moved = [options["scale"]]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a trained scale beside a temperature of the objective's own
            options = {"scale": scale, **options, "empty": "zero", "reduction": case["reduction"]}
            loss = loss_fn.from_logits(leaf, labels, **options)
    counted = ~ignored
    kept = counted & (~masked & ~positive).any(1)
    if case["reduction"] == "none":
        assert loss.shape == (anchors,)
        assert not loss[~kept].any()
        loss = loss.sum() / counted.sum().clamp(min=1)
    for what in ("entry", "dtype", "temperature"):
        counts[f"matrix, {what} {case[what]}"] += 1
    if not kept.any():
        assert float(loss.detach()) == 0
        assert not gradients(loss, [leaf])[0].any()
        return

    def exact_loss(q: Any, doubles: list[torch.Tensor], noise: Noise) -> torch.Tensor:
        factor = temperatures(q)[0] if how == "host" and temperatures(q) else 1 / scale
        s = noise(torch.where(kept.unsqueeze(1) & ~masked, doubles[0], 0.0) * factor)
        zeros = torch.zeros(keys, dtype=torch.float64)
        every = [(s[i, positive[i]], s[i, ~masked[i] & ~positive[i]]) for i in kept.nonzero().flatten().tolist()]
        some = [reference.Row(pos, neg, zeros[: len(neg)]) for pos, neg in every]
        if entry == "soft":
            w = targets[kept] / targets[kept].sum(1, keepdim=True)
            means = (w * s[kept]).sum(1, keepdim=True)
            some = [replace(row, p=p, first=row.p, estimated=row.p) for row, p in zip(some, means, strict=True)]
        losses = torch.stack(reference.anchor_losses(q, some, "scores"))
        return losses.sum() / (counted.sum() if entry != "scores" else anchors)

    eps = torch.finfo(torch.float64 if case["dtype"] == "float64" else torch.float32).eps
    compare(str(loss_fn), q, loss, exact_loss, [leaf], eps, [1 / scale], how, moved)
