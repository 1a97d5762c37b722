"""Losses of logits and of scores against the reference, called in every way that takes logits."""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import replace
from typing import Any

import pytest
import reference
import torch
from hypothesis import strategies as st

import counterpoint as cp
from counterpoint.plugins.logits import ContrastiveLoss

from .compare import Noise, compare, gradients, reading, trained
from .draws import DTYPES, PLAIN, TEMPERATURES, WRAPPED, at_now, counts, moving, sums, temperatures

ENTRIES = ["columns", "diagonal", "booleans", "one-hot", "soft", "soft", "scores"]
WAYS = ["call", "call", "call", "parts", "criterion", "treatment", "compiled"]
MATRIX_OBJECTIVES = st.one_of(*PLAIN[:11], *PLAIN[16:22], WRAPPED)  # those that need no views
MARGINS = ["margin(-0.3)", "margin(0.1)", "margin(0.2,relative)", "margin(0.9,percentage)"]
MATRICES = st.fixed_dictionaries(
    {
        "objective": MATRIX_OBJECTIVES | sums(MATRIX_OBJECTIVES),
        "entry": st.sampled_from(ENTRIES),
        "way": st.sampled_from(WAYS),
        "anchors": st.integers(1, 5),
        "keys": st.integers(2, 8),
        "shape": st.sampled_from(["normal", "normal", "ties", "equal", "close"]),
        "masked": st.sampled_from([0.0, 0.3, 0.8]),
        "mask": st.sampled_from([-math.inf, -1e4]),
        "ignored": st.sampled_from([0.0, 0.4]),
        "targets": st.sampled_from(["numbers", "numbers", "one", "of masked keys"]),
        "smoothing": st.sampled_from([0.0, 0.1]),
        "rule": st.sampled_from(["threshold(-0.3)", "threshold(0.2)", "threshold(0.6)", *MARGINS]),
        "log_q": st.booleans(),
        "scale": st.sampled_from([1.0, 3.7, 20.0]),
        "scale is": st.sampled_from(["number", "tensor", "trained"]),
        "temperature": st.sampled_from([*TEMPERATURES, "host"]),
        "dtype": st.sampled_from([*DTYPES]),
        "read": st.booleans(),
        "reduction": st.sampled_from(["mean", "none"]),
        "seed": st.integers(0, 2**31),
    }
)


def check_matrix(case: dict[str, Any]) -> None:
    """The loss of logits, or of scores and masks, is the reference's; what is masked or ignored may be anything."""
    entry, way, anchors, keys, how = (case[name] for name in ("entry", "way", "anchors", "keys", "temperature"))
    g = torch.Generator().manual_seed(case["seed"])
    how = "number" if entry == "scores" and how == "host" else how
    keys = max(keys, anchors) if entry == "diagonal" else keys
    way = "call" if entry == "scores" or (entry == "diagonal" and way in ("parts", "criterion")) else way

    def chosen(share: float) -> torch.Tensor:
        return torch.rand(anchors, keys, generator=g) < share

    # 1. similarities, of which some are masked, and rows that do not count
    cosine = 1.9 * torch.rand(anchors, keys, generator=g, dtype=torch.float64) - 0.95
    if case["shape"] == "ties":
        cosine = (cosine * 2).round() * 0.45
    elif case["shape"] != "normal":
        cosine = 0.5 + (1e-3 * cosine if case["shape"] == "close" else 0 * cosine)
    smoothing = case["smoothing"] if way == "criterion" and entry in ("columns", "soft") else 0.0
    if (entry == "soft" or smoothing) and "'linear'" in str(case["objective"]):  # which reads a guide
        return
    as_targets = way == "criterion" and entry == "one-hot"  # which are targets where a row has one positive alone
    if as_targets and case["objective"]["name"] in ("soft", "sum"):
        return
    masked, ignored = chosen(0.0 if smoothing else case["masked"]), chosen(case["ignored"])[:, 0]
    # 2. positives, or targets
    column = torch.arange(anchors) if entry == "diagonal" else torch.randint(0, keys, (anchors,), generator=g)
    targets = torch.rand(anchors, keys, generator=g, dtype=torch.float64) ** 3
    if entry == "soft":  # some of zero; rows of nothing else do not count
        if case["targets"] == "one":
            targets = torch.zeros_like(targets).scatter_(1, column.unsqueeze(1), 0.7)
        targets = targets.masked_fill(chosen(0.3) | masked | ignored.unsqueeze(1), 0.0).to(DTYPES[case["dtype"]])
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
    if entry == "soft" and case["targets"] == "of masked keys":  # which have no part in the mean
        targets = torch.where(masked & ~ignored.unsqueeze(1), 0.5 * targets.amax(1, keepdim=True), targets)
    scale = 1.0 if entry == "scores" else case["scale"]
    logits = (cosine * scale).to(DTYPES[case["dtype"]])
    log_q = 2 - 6 * torch.rand(keys, generator=g, dtype=torch.float64)
    weight = -log_q if case["log_q"] and way in ("call", "parts", "compiled") and entry != "scores" else 0 * log_q
    # 3. the call
    q, options = at_now(case["objective"], how, 1 / scale), {}
    loss_fn = cp.from_dict(moving(case["objective"], how)).double()
    moved = trained(case, loss_fn)
    if entry == "scores":
        junk = torch.where(masked, torch.nan, logits)
        leaf = junk.requires_grad_()
        with reading(case["read"]):
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
        options = {"scale": scale, **options, "reduction": case["reduction"]}
        if weight.any():
            options["log_q"] = log_q
        if way == "treatment":  # keys of more similarity than the rule's are masked, all but the least similar
            similar = logits.double() / scale
            negative = ~masked & ~positive & ~ignored.unsqueeze(1)
            least = reference.rounded_up(similar.masked_fill(~negative, math.inf).amin(1, keepdim=True))
            most = reference.rounded_up(most_similar(case["rule"], similar.masked_fill(~positive, math.inf)))
            if negative.any(1).sum() > 1 and not (negative & (similar <= most)).any():
                with pytest.raises(ValueError, match="every anchor of this step is left without negatives"):
                    called(case, way, loss_fn, leaf, labels, options, smoothing)
                counts["matrix, treatment: refused"] += 1
                return
            masked |= negative & (similar > torch.maximum(most, least))
        with warnings.catch_warnings(), reading(case["read"]):
            warnings.simplefilter("ignore")  # a trained scale beside a temperature of the objective's own
            loss = called(case, way, loss_fn, leaf, labels, options, smoothing)
    if smoothing:
        targets = targets.double() if entry == "soft" else positive * (~ignored.unsqueeze(1)).double()
        targets = (1 - smoothing) * targets + targets.sum(1, keepdim=True) * (smoothing / keys)
    counted = ~ignored
    kept = counted & (~masked & ~positive).any(1)
    if case["reduction"] == "none":
        loss = loss.flatten()
        assert loss.shape == (anchors,)
        assert not loss[~kept].any()
        loss = loss.sum() / counted.sum().clamp(min=1)
    for what in ("entry", "dtype", "temperature"):
        counts[f"matrix, {what} {case[what]}"] += 1
    counts[f"matrix, {way} of {entry}"] += 1
    if not kept.any():
        assert float(loss.detach()) == 0
        assert not gradients(loss, [leaf])[0].any()
        return

    def exact_loss(q: Any, doubles: list[torch.Tensor], noise: Noise) -> torch.Tensor:
        factor = temperatures(q)[0] if how == "host" and temperatures(q) else 1 / scale
        s = noise(torch.where(kept.unsqueeze(1) & ~masked, doubles[0], 0.0) * factor)
        some = []
        for i in kept.nonzero().flatten().tolist():
            negative = ~masked[i] & ~positive[i]
            some.append(reference.Row(s[i, positive[i]], s[i, negative], weight[negative]))
            if entry == "soft" or smoothing:
                w = targets[i].double().masked_fill(masked[i], 0.0)
                mean, own = (w / w.sum() * s[i]).sum()[None], some[-1].p
                log_w = torch.cat([w[positive[i]], w[negative]]).log()
                some[-1] = replace(some[-1], p=mean, first=own, estimated=own, guide=log_w.clamp(min=-1e30))
        losses = torch.stack(reference.anchor_losses(q, some, "scores"))
        return losses.sum() / (counted.sum() if entry != "scores" else anchors)

    eps = torch.finfo(torch.float64 if case["dtype"] == "float64" else torch.float32).eps
    soft = entry == "soft" or smoothing > 0 or as_targets
    compare(str(loss_fn), q, loss, exact_loss, [leaf], eps, [1 / scale], how, moved, cancels=soft)


def most_similar(rule: str, positives: torch.Tensor) -> torch.Tensor:
    """Return ``(anchors, 1)`` limits by a rule from the positives' similarities; infinity is not one."""
    name, value, kind = re.fullmatch(r"(\w+)\(([^,]*),?(\w*)\)", rule).groups()  # type: ignore[union-attr]
    x, own = float(value), positives.amin(1, keepdim=True)
    by_kind = {"": own - x, "relative": own - x * own.abs(), "percentage": own * x}
    return torch.full_like(own, x) if name == "threshold" else by_kind[kind]


def called(
    case: dict[str, Any],
    way: str,
    loss_fn: cp.Objective,
    leaf: torch.Tensor,
    labels: torch.Tensor | None,
    options: dict[str, Any],
    smoothing: float,
) -> torch.Tensor:
    """Return the loss of logits by a call, of a batch of matrices, compiled, or by a criterion or a treatment."""
    if way == "criterion":
        given = options["targets"] if labels is None else labels
        criterion = ContrastiveLoss(loss_fn, reduction=case["reduction"], label_smoothing=smoothing)
        return criterion(leaf, given, scale=options["scale"])
    if way == "treatment":
        loss_fn = cp.Treatment(loss_fn, false_negatives=case["rule"])
    options["empty"] = "zero"
    if way == "parts":
        parts = 2 if len(leaf) % 2 == 0 else 1
        given = (leaf, labels, options.get("targets"))
        leaf, labels, options["targets"] = (x if x is None else x.unflatten(0, (parts, -1)) for x in given)
    if way == "compiled" and case["seed"] % 9 == 1 and "'dro'" not in str(case["objective"]):  # seconds, or a minute
        torch._dynamo.reset()
        return torch.compile(lambda x: loss_fn.from_logits(x, labels, **options), backend="eager")(leaf)
    return loss_fn.from_logits(leaf, labels, **options)
