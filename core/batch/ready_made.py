"""Scores from ready-made similarities: logits and matrices."""

import math
import warnings
from typing import cast

import torch
from torch import Tensor

from .. import checks
from ..engine.mask import Pair
from ..engine.matrix import MatrixNegatives, Negatives
from ..engine.matrix import matrix_of as matrix_of  # for objectives, which do not import the engine
from ..names import check_known
from ..values import Value
from ..vectors import widen
from .options import checked_log_q
from .scores import Scores, counted_positives

# Logits of at most this are masked: hosts write minus infinity, or a number that equals it in their precision.
MASKED = -9984.0  # what -1e4 is in bfloat16
ABSENT = -1e30


def scores_from_matrices(
    pos: Tensor, neg: Tensor | Negatives, mask: Tensor | None, pos_mask: Tensor | None, guide: Pair | None
) -> Scores:
    """Build scores from matrices of similarities; see :meth:`counterpoint.Objective.from_scores`."""
    pos = similarity_columns(pos, "pos")
    scores = Scores(pos, _negatives(neg, mask, len(pos)), pos_mask)
    if pos_mask is not None:
        if checks.require_tensor(pos_mask, "pos_mask").shape != pos.shape or pos_mask.dtype != torch.bool:
            got = f"{checks.shape(pos_mask)} of {pos_mask.dtype}"
            raise ValueError(f"pos_mask: expected booleans of shape {checks.shape(pos)}, got {got}.")
        scores.pos = torch.where(pos_mask, pos, torch.zeros_like(pos))
        error = "pos_mask: expected a positive of at least one anchor, got False everywhere."
        scores.pos_mask, scores.anchor_factor = counted_positives(pos_mask, pos.dtype, error)
    checks.require_finite(scores.pos, "pos")
    if guide is not None:
        if not isinstance(guide, (tuple, list)) or [x.shape for x in guide] != [pos.shape, matrix_of(scores.neg).shape]:
            raise ValueError("guide: expected two tensors, of the shapes of pos and of neg.")
        scores.guide_pos, scores.neg.guide = _targets(guide[0]), MatrixNegatives(_targets(guide[1]))
    return scores


def _targets(guide: Tensor) -> Tensor:
    """Return the guide's similarities in float32 at least; minus infinity becomes a number, of which exp is zero."""
    g = widen(checks.require_float(guide, "guide").detach())
    return checks.require_finite(g.masked_fill(g == -math.inf, ABSENT), "guide")


def similarity_columns(s: Tensor, what: str, anchors: int | None = None) -> Tensor:
    """Return similarities ``(anchors,)`` or ``(anchors, n)`` as ``(anchors, n)``, in float32 at least."""
    checks.require_float(s, what)
    full = widen(s.unsqueeze(1) if s.dim() == 1 else s)
    if full.dim() != 2 or full.numel() == 0 or (anchors is not None and len(full) != anchors):
        rows = "anchors" if anchors is None else anchors
        raise ValueError(f"{what}: expected shape ({rows},) or ({rows}, n) with n >= 1, got {checks.shape(s)}.")
    return full


def as_negatives(neg: Tensor | Negatives, anchors: int | None = None) -> Negatives:
    """Wrap a matrix of similarities as negatives; return negatives as they are."""
    return neg if isinstance(neg, Negatives) else MatrixNegatives(similarity_matrix(neg, anchors))


def similarity_matrix(neg: Tensor, anchors: int | None = None) -> Tensor:
    """Check that similarities ``(anchors, N)`` are finite, and return them in float32 at least."""
    return widen(checks.require_finite(_rows(neg, anchors), "neg"))


def _rows(neg: Tensor, anchors: int | None) -> Tensor:
    rows = "anchors" if anchors is None else anchors
    checks.require_matrix(neg, "neg", f"({rows}, N)")
    if neg.numel() == 0 or len(neg) != (anchors or len(neg)):
        raise ValueError(f"neg: expected shape ({rows}, N) with N >= 1, got {checks.shape(neg)}.")
    return neg


def _negatives(neg: Tensor | Negatives, mask: Tensor | None, anchors: int) -> Negatives:
    if mask is None:
        return as_negatives(neg, anchors)
    if isinstance(neg, Negatives):
        raise ValueError(f"mask: goes with a matrix of negatives, got {type(neg).__name__}.")
    _rows(neg, anchors)
    if checks.require_tensor(mask, "mask").shape != neg.shape or mask.dtype != torch.bool:
        got = f"{checks.shape(mask)} of {mask.dtype}"
        raise ValueError(f"mask: expected booleans of shape {checks.shape(neg)}, got {got}.")
    valid = checks.require_negatives(mask.sum(1, keepdim=True))
    clean = widen(neg).masked_fill(~mask, 0.0)  # masked values may be anything, NaN included
    found = MatrixNegatives(checks.require_finite(clean, "neg"), drop=~mask)
    found.valid = valid
    return found


def scores_from_logits(
    logits: Tensor,
    labels: Tensor | None,
    scale: float | Tensor,
    bias: float | Tensor,
    ignore_index: int,
    empty: str,
    log_q: Tensor | None = None,
    guide: Tensor | None = None,
    targets: Tensor | None = None,
) -> Scores:
    """Build scores from logits and labels; see :meth:`counterpoint.Objective.from_logits`.

    Rows that do not count leave before anything is computed from them. Where that would synchronize, and in compiled
    code, they stay as zeros of weight zero, which statistics of the batch (``mu="auto"``) leave out.
    """
    if checks.require_float(logits, "logits").dim() < 2:
        raise ValueError(f"logits: expected (..., anchors, keys), got shape {checks.shape(logits)}.")
    check_known("empty: unknown value", empty, ("error", "warn", "zero"))
    if logits.shape[-1] < 2 and empty == "error":
        raise ValueError(f"logits: expected at least 2 keys, got shape {checks.shape(logits)}.")
    scale = _number(scale, "scale", 0.0)
    for x, what in ((guide, "guide: expected similarities"), (targets, "targets: expected numbers")):
        if x is not None and checks.require_float(x, what.partition(":")[0]).shape != logits.shape:
            raise ValueError(f"{what} {checks.shape(logits)}, got {checks.shape(x)}.")
    largest = None if targets is None else columns_of(targets, ignore_index)
    labels = _labels_of(logits, largest if labels is None else labels)
    logits = logits.flatten(0, -2)
    # 1. which keys are masked (a comparison with NaN is False, so that NaN is reported below)
    masked: Tensor | None = None
    if not checks.wanted(logits) or not bool(logits.detach().amin() > MASKED):
        masked = logits <= MASKED
    drop: Tensor | None
    if labels.dtype == torch.bool:
        labels, drop = (labels, labels) if masked is None else (labels & ~masked, labels | masked)
        counted = labels.any(1)
    else:
        counted = labels != ignore_index
        labels = _columns(labels, counted, logits.shape[1], ignore_index)
        lost = counted if masked is None else masked.gather(1, labels).squeeze(1) & counted
        if masked is not None and checks.wanted(labels) and bool(lost.any()):
            first = lost.nonzero()[:5, 0].tolist()
            raise ValueError(f"logits: those of the positives of rows {first} are masked, -1e4 or less.")
        drop = None if masked is None else masked.scatter(1, labels, True)

    # 2. which rows count, and which of these have negatives
    kept, share, valid = counted, cast(Value, 1.0), cast(Value, 1.0)
    drop = torch.ones_like(logits, dtype=torch.bool) if logits.shape[1] < 2 else drop
    if drop is not None:
        with_negatives = ~drop.all(1)
        if empty == "error":
            valid = checks.require_negatives((with_negatives | ~counted).long().unsqueeze(1))
        kept = counted & with_negatives
        share = kept.to(widen(logits).dtype).sum() / counted.sum().clamp(min=1)
        if empty == "warn" and checks.wanted(kept) and bool(share < 1):
            few = f"{int(counted.sum() - kept.sum())} of {int(counted.sum())} anchors have no negatives"
            why = "so their loss is zero: every key is masked, or there is one key alone."
            warnings.warn(f"{few}, {why}", stacklevel=1)  # always the same place, so that Python warns once

    # 3. the others leave, or become zeros
    rows: Tensor | None = None
    anchors: Tensor | None = None
    out = ~kept
    if not checks.wanted(kept) or bool(out.all()):
        anchors = kept.to(widen(logits).dtype)
        logits = logits.masked_fill(out.unsqueeze(1), 0.0)
        masked, drop = (x if x is None else x & kept.unsqueeze(1) for x in (masked, drop))
    elif bool(out.any()):
        rows, logits, labels = kept, logits[kept], labels[kept]
        masked, drop = (x if x is None else x[kept] for x in (masked, drop))

    # 4. similarities, zero where masked: infinity by a scale has no gradient
    logits = widen(logits)
    s = checks.require_finite(logits if masked is None else logits.masked_fill(masked, 0.0), "logits")
    s = (s - _number(bias, "bias") if isinstance(bias, Tensor) or bias != 0.0 else s) / scale
    weight = None if log_q is None else -checked_log_q(log_q, "log_q", s.shape[1], s.dtype).to(s.device).expand_as(s)
    neg = MatrixNegatives(s, labels if drop is None else None, drop, weight)
    neg.valid, neg.counted = valid, None if anchors is None else kept.unsqueeze(1)
    of_positives: Tensor | None = None
    if guide is not None:
        guide = guide.flatten(0, -2)
        graded = _targets(guide.masked_fill(out.unsqueeze(1), 0.0) if rows is None else guide[rows])
        neg.guide = MatrixNegatives(graded)
        of_positives = graded if labels.dtype == torch.bool else graded.gather(1, labels)
    if labels.dtype == torch.bool:
        error = "labels: expected a positive in at least one row, got none." if empty == "error" else ""
        pos_mask, with_positives = counted_positives(labels, s.dtype, error)
        anchors = with_positives if anchors is None else anchors * with_positives
        pos = s
    else:
        pos, pos_mask = s.gather(1, labels), None
    scores = Scores(pos, neg, pos_mask, "logits", guide_pos=of_positives, anchor_factor=anchors, rows=rows, share=share)
    if targets is None:
        return scores
    if pos_mask is not None:
        raise ValueError("targets: expected labels= to be one column per row, got several positives.")
    w = widen(targets.detach().flatten(0, -2)[slice(None) if rows is None else rows])
    total = (used := w if masked is None else w.masked_fill(masked, 0.0)).sum(1, keepdim=True)
    if checks.wanted(w) and not bool((w >= 0).all() & (total > (0 if anchors is None else anchors[:, None] - 1)).all()):
        raise ValueError("targets: expected numbers of 0 or more, in each row one above 0 at a key that is not masked.")
    scores.pos = (used / total.clamp(min=torch.finfo(w.dtype).tiny) * s).sum(1, keepdim=True)
    scores.denominator_pos = scores.v = pos
    return scores


def columns_of(targets: Tensor, ignore_index: int = -100) -> Tensor:
    """Return the columns of the largest targets; rows without targets are ignored."""
    return targets.argmax(-1).masked_fill(~targets.any(-1), ignore_index)


def _number(x: object, what: str, low: float = -math.inf) -> float | Tensor:
    """Check a number above ``low``, or a tensor with one."""
    if isinstance(x, Tensor):
        fits = x.numel() == 1 and x.is_floating_point() and (not checks.wanted(x) or low < float(x.detach()) < math.inf)
    else:
        fits = checks.is_number(x) and low < x
    if not fits:
        kind = "a positive number" if low == 0 else "a number"
        raise ValueError(f"{what}: expected {kind}, or a tensor with one, got {x!r}.")
    return x.reshape(()) if isinstance(x, Tensor) else float(x)  # type: ignore[arg-type]


def _labels_of(logits: Tensor, labels: Tensor | None) -> Tensor:
    """Return ``(rows,)`` columns or ``(rows, keys)`` booleans."""
    *_, anchors, keys = logits.shape
    if labels is None:
        if keys < anchors:
            raise ValueError(f"labels: needed, logits of shape {checks.shape(logits)} have no diagonal of positives.")
        return torch.arange(anchors, device=logits.device).expand(logits.shape[:-1]).flatten()
    if checks.require_tensor(labels, "labels").device != logits.device:
        raise ValueError(f"labels: on {labels.device}, but logits are on {logits.device}.")
    if labels.shape == logits.shape and (labels.dtype == torch.bool or labels.is_floating_point()):
        labels = labels.flatten(0, -2)
        if labels.dtype == torch.bool:
            return labels
        if checks.wanted(labels) and bool(((labels != 0) & (labels != labels.amax(1, keepdim=True))).any()):
            hint = "targets that are neither positives nor negatives (label smoothing, distillation) are targets="
            one = "one number for all positives of a row (one-hot)"
            raise ValueError(f"labels: expected zero, or {one}, got several: {hint}.")
        return labels > 0
    if labels.dtype == torch.bool:
        raise ValueError(f"labels: expected booleans of shape {checks.shape(logits)}, got {checks.shape(labels)}.")
    if labels.shape != logits.shape[:-1] or labels.is_floating_point():
        rows = " x ".join(map(str, logits.shape[:-1]))
        raise ValueError(f"labels: expected {rows} columns, got shape {checks.shape(labels)} of {labels.dtype}.")
    return labels.long().flatten()


def _columns(labels: Tensor, counted: Tensor, keys: int, ignore_index: int) -> Tensor:
    """Return ``(rows, 1)`` columns, zero for rows that do not count."""
    wrong = ((labels < 0) | (labels >= keys)) & counted
    if checks.wanted(labels) and bool(wrong.any()):
        first = labels[wrong][:5].tolist()
        raise ValueError(f"labels: expected columns from 0 to {keys - 1} or {ignore_index}, got {first}.")
    return labels.where(counted, 0).unsqueeze(1)
