"""The arguments of a call with embeddings: their types, and which views there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

from torch import Tensor

from .. import checks
from .keys import Keys
from .rules import Rule

Pairing = Literal["views", "one_way", "symmetric", "first_two", "pairs", "arcl", "joint", "single", "queue"]
Reduction = Literal["mean", "none"]


class KnownOptions(TypedDict, total=False):
    """What may be known of a batch beside its views."""

    directions: Sequence[str] | None
    hardness: tuple[str, float] | None
    queue: Tensor | Keys | None
    negatives: Tensor | Keys | None
    ids: Tensor | None
    labels: Tensor | None
    false_negatives: Rule | str | Sequence[Rule | str] | None
    guide: Tensor | Sequence[Tensor] | None
    empty: Literal["error", "zero"]
    in_batch: bool
    log_q: Tensor | None
    prior: Tensor | None
    positive_weight: Tensor | None
    adversarial: Tensor | None
    mixed: Tensor | None


class BatchOptions(KnownOptions, total=False):
    """The keyword arguments of a call with embeddings; ``help(Objective.forward)`` explains each."""

    pairing: Pairing | Mapping[str, str] | None
    stacked: bool
    normalize: bool
    engine: str


def checked_views(views: Sequence[Tensor], queued: bool, stacked: bool = False) -> list[Tensor]:
    """Return the views of a batch, ``(B, d)`` each; with a queue also ``(B, m, d)``."""
    for i, view in enumerate(views, 1):
        if isinstance(view, (list, tuple)):
            raise TypeError(f"view {i}: expected a tensor, got {type(view).__name__}: call loss_fn(*views).")
        if checks.is_whole(checks.is_tensor(view, f"view {i}")):
            raise TypeError(
                f"view {i}: expected floating-point values, got {view.dtype}. Pass labels by name, labels=...; for "
                "logits, call from_logits(logits, labels)."
            )
        checks.is_float(view, f"view {i}")
    if not views:
        raise ValueError("no embeddings: call with the views of a batch, loss_fn(z1, z2).")
    whole = len(views) == 1 and views[0].dim() == 3
    if stacked and not whole:
        raise ValueError(
            f"stacked=True: expected one tensor (batch, views, width), got {', '.join(map(checks.shape, views))}."
        )
    if whole and not stacked:
        raise ValueError(
            f"view 1: expected shape (batch, width), got {checks.shape(views[0])}. For (views, batch, width), call "
            "loss_fn(*z); for (batch, views, width), loss_fn(z, stacked=True)."
        )
    views = views[0].unbind(1) if stacked else views
    dims = 3 if queued and views[0].dim() == 3 else 2
    for i, view in enumerate(views, 1):
        if view.dim() != dims or view.shape != views[0].shape:
            raise ValueError(
                f"view {i}: expected shape {checks.shape(views[0]) if views[0].dim() == dims else '(batch, width)'}"
                f"{' as view 1' if i > 1 else ''}, got {checks.shape(view)}."
            )
        if 0 in view.shape:
            raise ValueError(f"view {i}: empty, shape {checks.shape(view)}.")
        if view.device != views[0].device:
            raise ValueError(f"view {i}: on {view.device}, but view 1 is on {views[0].device}.")
    return list(views)
