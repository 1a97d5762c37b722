"""sentence-transformers' ``directions``, ``partition_mode`` and ``hardness_mode``, as arguments of objectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from counterpoint.batch.options import HARDNESS, chosen_directions
from counterpoint.names import check_known

PARTITIONS = ("joint", "per_direction")
_OF_HARD = ("negatives", "in_batch")


def as_directions(
    pairing: str | None, directions: Sequence[str], partition_mode: str, hardness_mode: str | None, strength: float
) -> tuple[str, ...]:
    """Return the directions, checked; none if they are those of ``one_way`` without weights of hard negatives."""
    check_known("unknown partition_mode", partition_mode, PARTITIONS)
    if strength and hardness_mode is None:
        raise ValueError(f"hardness_strength: needs hardness_mode= beside it: {', '.join(HARDNESS)}.")
    hardness = None if hardness_mode is None else (hardness_mode, strength)
    plain = tuple(directions) == ("query_to_doc",) and hardness is None
    chosen = () if plain else chosen_directions(pairing, directions, hardness)
    if partition_mode == "per_direction" and {*chosen} - {"query_to_doc", "doc_to_query"}:
        raise ValueError(
            "partition_mode='per_direction': query_to_query, doc_to_doc and doc_to_positive have no positives of their "
            "own; use 'joint'."
        )
    return chosen if len(chosen) > 1 or (hardness_mode and strength) else ()


def per_direction(
    views: Sequence[Tensor], options: dict[str, Any], hardness: dict[str, Any], directions: Sequence[str]
) -> list[tuple[Sequence[Tensor], dict[str, Any]]]:
    """Return the calls of an objective, one per direction: documents are compared with queries only."""
    back = {name: value for name, value in options.items() if name not in _OF_HARD}
    if "guide" in back:
        back["guide"] = back["guide"][::-1]
    calls = [(views, options | hardness), (views[::-1], back)]
    return calls if "doc_to_query" in directions else calls[:1]
