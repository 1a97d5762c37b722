"""Scores from ready-made similarities: logits and matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import checks
from ..engine.negatives import DenseNegatives, Negatives
from ..engine.negatives import dense_scores as dense_scores  # for objectives, which do not import the engine
from ..vectors import widen
from .scores import Scores

# Logits of at most this are masked: hosts write minus infinity, or a number that equals it in their precision.
MASKED = -1e4


def scores_from_matrices(
    pos: Tensor,
    neg: Tensor | Negatives,
    mask: Tensor | None,
    pos_mask: Tensor | None,
    v: Tensor | None,
    prior: Tensor | None,
    adversarial: tuple[Tensor, Tensor] | None,
    mixed: tuple[Tensor, Tensor] | None,
) -> Scores:
    """Build scores from matrices of similarities; see :meth:`counterpoint.Objective.from_scores`."""
    pos = score_columns(pos, "pos")
    anchors = len(pos)
    scores = Scores(pos, _negatives(neg, mask, anchors, "neg"), pos_mask)
    if pos_mask is not None:
        if checks.is_tensor(pos_mask, "pos_mask").shape != pos.shape or pos_mask.dtype != torch.bool:
            raise ValueError(
                f"pos_mask: expected booleans of shape {checks.shape(pos)}, "
                f"got {checks.shape(pos_mask)} of {pos_mask.dtype}."
            )
        scores.pos = torch.where(pos_mask, pos, torch.zeros_like(pos))
        scores.pos_mask, scores.anchors = _with_positives(pos_mask, pos.dtype)
    checks.is_finite(scores.pos, "pos")
    if v is not None:
        scores.v = checks.is_finite(score_columns(v, "v", anchors), "v")
    if prior is not None:
        if checks.is_float(prior, "prior").numel() != anchors:
            raise ValueError(f"prior: expected one number per anchor, shape ({anchors},), got {checks.shape(prior)}.")
        scores.prior = checks.is_prior(prior).reshape(-1, 1).to(scores.pos.dtype)
    if adversarial is not None:
        adversarial_pos, adversarial_neg = _pair(adversarial, "adversarial")
        attacked = _negatives(adversarial_neg, None, anchors, "adversarial[1]")
        scores.adversarial = Scores(score_columns(adversarial_pos, "adversarial[0]", anchors), attacked)
    if mixed is not None:
        mixed_pos, mixed_neg = _pair(mixed, "mixed")
        checks.is_finite(checks.is_float(mixed_pos, "mixed[0]"), "mixed[0]")
        if (
            mixed_pos.dim() != 2
            or len(mixed_pos) != anchors
            or (mixed_pos.shape[1] and mixed_neg.shape[:2] != mixed_pos.shape)
        ):
            raise ValueError(
                f"mixed: expected shapes ({anchors}, M-1) and ({anchors}, M-1, N), "
                f"got {checks.shape(mixed_pos)} and {checks.shape(mixed_neg)}."
            )
        scores.mixed = [
            Scores(widen(mixed_pos[:, j : j + 1]), _negatives(mixed_neg[:, j], None, anchors, "mixed[1]"))
            for j in range(mixed_pos.shape[1])
        ]
    return scores


def _pair(value: object, what: str) -> tuple[Tensor, Tensor]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(f"{what}: expected two tensors, (similarities, those of their negatives).")
    return value[0], value[1]


def _with_positives(pos_mask: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the mask and a weight per anchor.

    Anchors without positives get weight zero and placeholder positives, since their loss would be infinite, and
    ``inf * 0`` is NaN.
    """
    has_positives = pos_mask.any(1)
    return pos_mask | ~has_positives.unsqueeze(1), has_positives.to(dtype)


def score_columns(scores: Tensor, what: str, anchors: int | None = None) -> Tensor:
    """Return ``(anchors,)`` or ``(anchors, n)`` scores as ``(anchors, n)``, in float32 at least."""
    checks.is_float(scores, what)
    full = widen(scores.unsqueeze(1) if scores.dim() == 1 else scores)
    if full.dim() != 2 or full.numel() == 0 or (anchors is not None and len(full) != anchors):
        rows = "anchors" if anchors is None else anchors
        raise ValueError(f"{what}: expected shape ({rows},) or ({rows}, n) with n >= 1, got {checks.shape(scores)}.")
    return full


def as_negatives(neg: Tensor | Negatives) -> Negatives:
    """Wrap a matrix of scores as negatives; return negatives as they are."""
    return neg if isinstance(neg, Negatives) else DenseNegatives(score_matrix(neg))


def score_matrix(neg: Tensor, what: str = "neg", anchors: int | None = None) -> Tensor:
    """Check that ``(anchors, N)`` scores are finite, and return them in float32 at least."""
    return widen(checks.is_finite(_rows(neg, what, anchors), what))


def _rows(neg: Tensor, what: str, anchors: int | None) -> Tensor:
    rows = "anchors" if anchors is None else anchors
    checks.is_matrix(neg, what, f"({rows}, N)")
    if neg.numel() == 0 or len(neg) != (anchors or len(neg)):
        raise ValueError(f"{what}: expected shape ({rows}, N) with N >= 1, got {checks.shape(neg)}.")
    return neg


def _negatives(neg: Tensor | Negatives, mask: Tensor | None, anchors: int, what: str) -> Negatives:
    if isinstance(neg, Negatives):
        if mask is not None:
            raise ValueError(f"mask: goes with a matrix of negatives, got {type(neg).__name__}.")
        return neg
    if mask is None:
        return DenseNegatives(score_matrix(neg, what, anchors))
    _rows(neg, what, anchors)
    if checks.is_tensor(mask, "mask").shape != neg.shape or mask.dtype != torch.bool:
        raise ValueError(
            f"mask: expected booleans of shape {checks.shape(neg)}, got {checks.shape(mask)} of {mask.dtype}."
        )
    checks.has_negatives(mask.sum(1))
    # masked values may be anything, NaN included; zero keeps them out of gradients too
    clean = torch.where(mask, widen(neg), torch.zeros_like(neg, dtype=widen(neg).dtype))
    return DenseNegatives(checks.is_finite(clean, what), drop=~mask)


def scores_from_logits(logits: Tensor, labels: Tensor | None, scale: float, ignore_index: int) -> Scores:
    """Build scores from logits and labels as cross entropy takes them."""
    checks.is_matrix(logits, "logits", "(anchors, keys)")
    anchors, keys = logits.shape
    if not isinstance(scale, (int, float)) or not 0 < scale < float("inf"):
        raise ValueError(f"scale: expected a positive number, got {scale!r}.")
    if keys < 2:
        raise ValueError(f"logits: expected at least 2 keys, got shape {checks.shape(logits)}.")
    s, masked = widen(logits) / scale, None
    # a comparison with NaN is False, so that NaN is reported below
    if not checks.wanted(logits) or not bool(logits.detach().amin() > MASKED):
        masked = logits <= MASKED
        s.masked_fill_(masked, 0.0)
    checks.is_finite(s, "logits")
    if labels is None:
        if keys < anchors:
            raise ValueError(f"labels: needed, logits of shape {checks.shape(logits)} have no diagonal of positives.")
        labels = torch.arange(anchors, device=logits.device)
    if checks.is_tensor(labels, "labels").device != logits.device:
        raise ValueError(f"labels: on {labels.device}, but logits are on {logits.device}.")
    if labels.dtype == torch.bool:
        if labels.shape != logits.shape:
            raise ValueError(f"labels: expected booleans of shape {checks.shape(logits)}, got {checks.shape(labels)}.")
        drop, labels = (labels, labels) if masked is None else (labels | masked, labels & ~masked)
        checks.has_negatives((~drop).sum(1))
        pos_mask, has_positives = _with_positives(labels, s.dtype)
        return Scores(s, DenseNegatives(s, drop=drop), pos_mask, "logits", anchors=has_positives)
    if labels.shape != (anchors,) or labels.is_floating_point():
        raise ValueError(f"labels: expected {anchors} columns, got shape {checks.shape(labels)} of {labels.dtype}.")
    valid = labels != ignore_index
    inside = ((labels >= 0) & (labels < keys)) | ~valid
    if checks.wanted(labels) and not bool(inside.all()):
        wrong = labels[~inside][:5].tolist()
        raise ValueError(f"labels: expected columns from 0 to {keys - 1} or {ignore_index}, got {wrong}.")
    column = torch.where(valid, labels, torch.zeros_like(labels)).unsqueeze(1)
    if masked is None:
        neg = DenseNegatives(s, skip=column)
    else:
        if checks.wanted(labels) and bool((lost := masked.gather(1, column).squeeze(1) & valid).any()):
            rows = lost.nonzero().squeeze(1)[:5].tolist()
            raise ValueError(f"logits: those of the positives of rows {rows} are masked, {MASKED:g} or less.")
        drop = masked.scatter(1, column, True)
        checks.has_negatives((~drop | ~valid.unsqueeze(1)).sum(1))
        neg = DenseNegatives(s, drop=drop)
    return Scores(s.gather(1, column), neg, layout="logits", anchors=valid.to(s.dtype))
