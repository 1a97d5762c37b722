"""The arguments of a call with embeddings: further keys, the types of all arguments, the directions of ``joint``.

*Weights* of negatives are logarithms, whose names say so: a key counts ``exp(log_weight)`` times in every sum over
negatives. ``own_log_weight`` is one; ``log_q``, a log-probability, is minus one. The *factor* ``positive_factor``
multiplies ``p / t`` of a positive.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypedDict, get_args

import torch
from torch import Tensor

from .. import checks
from ..names import check_known
from .rules import Rule

Pairing = Literal["views", "one_way", "symmetric", "first_two", "pairs", "arcl", "joint", "single", "queue"]
Reduction = Literal["mean", "none"]
REDUCTIONS: tuple[str, ...] = get_args(Reduction)

DIRECTIONS = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc", "doc_to_positive")
GTE = DIRECTIONS[:4]
HARDNESS = ("in_batch_negatives", "hard_negatives", "all_negatives")
MAX_STRENGTH = 80.0
MAX_LOG_WEIGHT = 80.0  # of a negative, whose float32 sum does not overflow


class Keys(NamedTuple):
    """Keys other than views, with ids, guide and weights: documents, ``queue=`` or ``negatives=``.

    Documents take the place of the second view, ``loss_fn(queries, cp.Keys(documents, positives=...))``: each query is
    compared with all of them, and those that are not its positives are its negatives. For ``queue=`` and ``negatives=``
    a plain tensor is embeddings alone.

    Args:
        embeddings: ``(K, d)`` for documents and a queue; ``(B, d)`` or ``(B, n, d)`` for hard negatives.
        ids: integers, one per key: ids or labels as those of the batch.
        guide: the guide's embeddings of the same keys, with any width.
        log_q: log-probability with which each key was drawn, one per key.
        shared: whether a sample's hard negatives are also those of all others.
        own_log_weight: logarithm of the weight of a sample's own hard negatives (SimCSE's hard-negative weight).
        positives: the rows of each query's documents, ``(Q, P)`` integers, padded with -1, or ``(Q,)``; or booleans
            ``(Q, K)``. Queries without any do not count, but in statistics of the batch, as of ``mu="auto"``.

    >>> z1, z2, bank = torch.randn(3, 4, 8)
    >>> queue = cp.Keys(bank, ids=torch.tensor([0, 1, 7, 8]))
    >>> cp.InfoNCE(0.1)(z1, z2, ids=torch.arange(4), queue=queue).shape
    torch.Size([])
    >>> documents = cp.Keys(bank, positives=torch.tensor([[0, 2], [1, -1], [3, -1], [0, 1]]))
    >>> cp.InfoNCE(0.1)(z1, documents).shape
    torch.Size([])
    """

    embeddings: Tensor
    ids: Tensor | None = None
    guide: Tensor | None = None
    log_q: Tensor | None = None
    shared: bool = True
    own_log_weight: float = 0.0
    positives: Tensor | None = None

    @staticmethod
    def documents(views: Sequence[View], queue: Tensor | Keys | None, negatives: Tensor | Keys | None) -> Keys | None:
        """Return the documents of a call that has them; refuse positives of other keys."""
        call = "loss_fn(queries, cp.Keys(documents, positives=...))"
        for name, keys in (("queue", queue), ("negatives", negatives)):
            if isinstance(keys, Keys) and keys.positives is not None:
                raise ValueError(f"{name}: positives= is of documents: {call}.")
        if len(views) != 2 or not isinstance(documents := views[1], Keys):
            return None
        if queue is not None or documents.positives is None:
            raise ValueError(f"documents: expected positives= and no queue=: {call}.")
        return documents

    @staticmethod
    def of(value: Tensor | Keys) -> Keys:
        """Return ``value`` as keys."""
        return value if isinstance(value, Keys) else Keys(value)

    def columns(self, queries: int, documents: int) -> Tensor | None:
        """Return ``positives`` as rows of documents, ``(queries, P)``, in falling order, -1 for none; none twice."""
        if self.positives is None:
            return None
        given = checks.require_tensor(self.positives, "documents: positives")
        if given.dtype == torch.bool and given.shape == (queries, documents):
            most = documents if checks.traced() else max(1, int(given.sum(1).max()))
            marked, rows = given.to(torch.uint8).topk(most)
            return rows.masked_fill(marked == 0, -1).sort(1, descending=True).values
        fits = given.dim() in (1, 2) and len(given) == queries and given.numel() > 0
        if given.dtype == torch.bool or not checks.is_whole(given) or not fits:
            expected = f"expected integers ({queries}, P) or ({queries},), or booleans ({queries}, {documents})"
            raise ValueError(f"documents: positives: {expected}, got {checks.shape(given)} of {given.dtype}.")
        rows = given.reshape(queries, -1).long()
        if checks.wanted(rows) and bool((wrong := (rows < -1) | (rows >= documents)).any()):
            expected = f"expected rows from 0 to {documents - 1}, or -1 for none"
            raise ValueError(f"documents: positives: {expected}, got {rows[wrong][:5].tolist()}.")
        rows = rows.sort(1, descending=True).values
        again = rows == torch.nn.functional.pad(rows, (1, -1), value=-1)
        return rows.masked_fill(again, -1).sort(1, descending=True).values


View = Tensor | Keys


def checked_log_q(log_q: Tensor, what: str, rows: int, dtype: torch.dtype) -> Tensor:
    """Check the log-probabilities with which keys were drawn."""
    if checks.require_float(log_q, what).numel() != rows or (what == "log_q" and log_q.dim() != 1):
        raise ValueError(f"{what}: expected a number per key, {rows} in all, got shape {checks.shape(log_q)}.")
    if checks.wanted(log_q):
        if not bool((log_q >= -MAX_LOG_WEIGHT).all()):
            raise ValueError(f"{what}: expected log-probabilities of at least -{MAX_LOG_WEIGHT:g}, not probabilities.")
        if bool(((log_q >= 0) & (log_q <= 1)).all() & ((log_q > 0) & (log_q < 0.69)).any()):
            got = "got numbers from 0 to 1: of p, pass p.log()"
            warnings.warn(f"{what}: expected log-probabilities, {got}.", stacklevel=2)
    return log_q.detach().to(dtype).reshape(-1)


class BatchOptions(TypedDict, total=False):
    """The keyword arguments of a call with embeddings; ``help(Objective.forward)`` explains each."""

    pairing: Pairing | Mapping[str, str] | None
    normalize: bool
    engine: str
    directions: Sequence[str] | None
    hardness: tuple[str, float] | None
    queue: Tensor | Keys | None
    negatives: Tensor | Keys | None
    ids: Tensor | None
    index: Tensor | None
    labels: Tensor | None
    false_negatives: Rule | str | Sequence[Rule | str] | None
    guide: Tensor | Sequence[Tensor] | None
    empty: Literal["error", "zero", "keep"]
    in_batch: bool
    log_q: Tensor | None
    prior: Tensor | None
    positive_factor: Tensor | None
    adversarial: Tensor | None
    mixed: Tensor | None


OPTIONS = (*BatchOptions.__annotations__, "gather", "reduction")  # all keyword arguments of a call


def chosen_directions(
    pairing: str | Mapping[str, str] | None, directions: Sequence[str] | None, hardness: tuple[str, float] | None
) -> tuple[str, ...]:
    """Return the directions in force, in the order of :data:`DIRECTIONS`; none for other pairings."""
    if hardness is not None:
        if not isinstance(hardness, (tuple, list)) or len(hardness) != 2:
            raise TypeError(f"hardness: expected a pair such as ('hard_negatives', 5.0), got {hardness!r}.")
        mode, strength = hardness
        check_known("hardness: unknown negatives", mode, HARDNESS)
        if not checks.is_number(strength) or not 0 <= strength <= MAX_STRENGTH:
            raise ValueError(f"hardness: expected a strength from 0 to {MAX_STRENGTH:g}, got {strength!r}.")
    joint = pairing == "joint"
    if directions is None and not joint and hardness is None:
        return ()
    if isinstance(pairing, str) and pairing not in ("joint", "one_way"):
        raise ValueError(f"directions= and hardness= are of the pairing joint, and {pairing!r} is another.")
    if directions is None:
        directions = GTE if joint else DIRECTIONS[:1]
    if isinstance(directions, str) or not directions:
        raise ValueError(f"directions: expected several of {', '.join(DIRECTIONS)}, got {directions!r}.")
    for direction in directions:
        check_known("unknown direction", direction, DIRECTIONS)
    if DIRECTIONS[0] not in directions:
        raise ValueError("directions: query_to_doc is required: it has the positives.")
    if {"doc_to_doc", "doc_to_positive"} <= {*directions}:
        raise ValueError("directions: doc_to_doc includes doc_to_positive: give one.")
    return tuple(d for d in DIRECTIONS if d in directions)
