"""The directions of the pairing ``joint``, and its weights of hard negatives: the values of these arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..hyper import is_number
from ..names import check_known

DIRECTIONS = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc", "doc_to_positive")
GTE = DIRECTIONS[:4]
HARDNESS = ("in_batch_negatives", "hard_negatives", "all_negatives")
MAX_STRENGTH = 80.0


def chosen_directions(
    pairing: str | Mapping[str, str] | None,
    directions: Sequence[str] | None,
    hardness_mode: str | None,
    hardness_strength: float,
) -> tuple[tuple[str, ...], float]:
    """Return the directions in force, in the order of :data:`DIRECTIONS`, and the strength; none for other pairings."""
    if not is_number(hardness_strength) or not 0 <= hardness_strength <= MAX_STRENGTH:
        raise ValueError(f"hardness_strength: expected a number from 0 to {MAX_STRENGTH:g}, got {hardness_strength!r}.")
    if hardness_mode is not None:
        check_known("unknown hardness_mode", hardness_mode, HARDNESS)
    elif hardness_strength:
        raise ValueError(f"hardness_strength: needs hardness_mode= beside it: {', '.join(HARDNESS)}.")
    joint = pairing == "joint"
    if directions is None and not joint and hardness_mode is None:
        return (), 0.0
    if isinstance(pairing, str) and pairing not in ("joint", "one_way"):
        raise ValueError(f"directions= and hardness_mode= are of the pairing joint, and {pairing!r} is another.")
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
    return tuple(d for d in DIRECTIONS if d in directions), float(hardness_strength)
