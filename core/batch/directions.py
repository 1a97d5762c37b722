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
    hardness: tuple[str, float] | None,
) -> tuple[str, ...]:
    """Return the directions in force, in the order of :data:`DIRECTIONS`; none for other pairings."""
    if hardness is not None:
        if not isinstance(hardness, (tuple, list)) or len(hardness) != 2:
            raise TypeError(f"hardness: expected a pair such as ('hard_negatives', 5.0), got {hardness!r}.")
        mode, strength = hardness
        check_known("hardness: unknown negatives", mode, HARDNESS)
        if not is_number(strength) or not 0 <= strength <= MAX_STRENGTH:
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
