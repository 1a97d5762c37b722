"""Compute the loss of negatives in tiles a chunk of anchors at a time, where each anchor's loss is its own."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..engine.chunks import Chunk, loss_in_chunks
from ..engine.joined import JoinedNegatives
from ..engine.tiles import TileNegatives
from ..values import given_by_host, host_values, learned_values, with_host_values
from .scores import Negatives, Scores

# What scores say of each anchor, beside its negatives.
PER_ANCHOR = (
    "pos", "pos_mask", "denominator_pos", "v", "prior", "positive_factor", "anchor_factor", "index", "guide_pos",
)  # fmt: skip


def chunked_loss(objective: Any, scores: Scores, reduction: str) -> Tensor | None:
    """Return the mean loss, with its gradients, or None if it must be computed from all anchors at once."""
    neg: Any = scores.neg
    if not torch.is_grad_enabled():
        return None
    names = [name for name in PER_ANCHOR if getattr(scores, name) is not None]
    tensors, (learned, others) = [getattr(scores, name) for name in names], learned_values(objective)
    parameters = [*learned.values(), *others, *given_by_host(objective)]
    embeddings = (x for pair in neg.pairs for x in pair)
    if not any(x.requires_grad for x in (*embeddings, *tensors, *parameters)):
        return None
    refusal = _refusal(objective, scores, reduction)
    if refusal is None and (neg.forced or _says_that_anchors_are_separate(objective)):
        total = len(scores.pos) if scores.anchor_factor is None else scores.anchor_factor.sum().clamp(min=1)

        def part(rows: slice, chunk: Chunk, known: Sequence[Tensor]) -> Tensor:
            values: dict[str, Any] = dict(zip(names, known, strict=True))
            of_chunk = replace(scores, neg=chunk, **values)
            each = of_chunk.positives_mean(of_chunk.mark_invalid(objective.losses(of_chunk))).squeeze(1)
            each = each if of_chunk.anchor_factor is None else each * of_chunk.anchor_factor
            return each.sum() * (scores.share / total)

        with with_host_values({**host_values(), **learned}):
            loss = loss_in_chunks(neg, part, tensors, parameters)
        if loss is not None:
            return loss
        refusal = "the objective depends on tensors with a gradient that are not its parameters"
    if neg.forced and refusal is not None:
        raise ValueError(f"engine='chunks': {refusal}; use engine='tiles' or 'auto'.")
    return None


def engine_of_training(objective: Any, scores: Scores) -> str:
    """Return how a training step on these scores reduces its negatives: one of ``ENGINES``."""
    neg = scores.neg
    if suits_chunks(objective, neg):
        separate = _refusal(objective, scores, "mean") is None and _says_that_anchors_are_separate(objective)
        return "chunks" if separate else "tiles"
    return (neg.parts[0] if isinstance(neg, JoinedNegatives) else neg).engine  # by the largest part


def suits_chunks(objective: Any, neg: Negatives) -> bool:
    """Return whether chunks are asked for, or fastest: where keys are not anchors, or with an inner problem (dro)."""
    if not isinstance(neg, TileNegatives):
        return False
    solved = any(getattr(part, "in_chunks", False) for part in objective.modules())
    return neg.engine == "chunks" or (solved and not neg.forced)


def _refusal(objective: Any, scores: Scores, reduction: str) -> str | None:
    """Return why a loss cannot be computed in chunks, if so."""
    if reduction != "mean":
        return "each anchor's loss can have a gradient of its own with reduction='none'"
    if objective.couples_anchors:
        return f"{objective} depends on statistics of all anchors"
    if scores.adversarial is not None or scores.mixed:
        return "adversarial= and mixed= have negatives of their own"
    return None if scores.neg.group is None else "the anchors are in several processes"


def _says_that_anchors_are_separate(objective: Any) -> bool:
    """Return whether ``couples_anchors`` of each part is its own or a built-in's: nobody may have checked others."""
    parts = [type(part) for part in objective.modules() if hasattr(part, "couples_anchors")]
    return all(kind.__module__.startswith("counterpoint.") or "couples_anchors" in vars(kind) for kind in parts)
