"""The coordinate-wise search of ``counterpoint tune``; it trains nothing itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import counterpoint as cp

T = TypeVar("T")

WEIGHT = "weight"  # of the second and further terms of a sum


def changed(data: Mapping[str, Any], name: str, value: float) -> dict[str, Any]:
    """Return a copy in which a parameter that is a number has another value, in all terms and inner objectives."""
    from counterpoint.hyper import is_number

    if data["name"] == "sum":
        terms = [
            [value if name == WEIGHT and i and is_number(weight) else weight, changed(term, name, value)]
            for i, (weight, term) in enumerate(data["terms"])
        ]
        return {**data, "terms": terms}
    copy = {**data, **({name: value} if is_number(data.get(name)) else {})}
    return copy | ({"objective": changed(data["objective"], name, value)} if "objective" in data else {})


def thinned(values: Sequence[T], count: int) -> list[T]:
    """Select ``count`` of the values, spread evenly from the first to the last."""
    if count >= len(values):
        return list(values)
    if count == 1:
        return [values[len(values) // 2]]
    return [values[round(i * (len(values) - 1) / (count - 1))] for i in range(count)]


def search(
    start: str,
    grids: Mapping[str, Sequence[float]],
    budget: int,
    measure: Callable[[list[str]], Mapping[str, float]],
) -> tuple[str, dict[str, float]]:
    """Coordinate-wise search for the spec with the highest score.

    Args:
        start: the first spec to measure.
        grids: the values to try of each parameter, in the order of the search.
        budget: largest number of specs to measure.
        measure: returns the scores of specs; NaN for those that failed.

    Returns:
        The best spec, and the score of each measured spec in the order of the search.
    """
    scores: dict[str, float] = {}
    for specs in proposals(start, grids, budget, scores):
        scores.update(measure(specs))
    return best_of(scores), scores


def proposals(
    start: str, grids: Mapping[str, Sequence[float]], budget: int, scores: Mapping[str, float]
) -> Iterator[list[str]]:
    """Yield the specs to measure next; the caller adds their scores to ``scores`` before it continues."""
    yield [start]
    measured = 0
    while measured < len(scores) < budget:  # a round without a new spec is the last
        measured, left = len(scores), sum(map(len, grids.values()))
        for name, values in grids.items():
            data = cp.objective(best_of(scores)).to_dict()
            new = [spec for value in values if (spec := str(cp.from_dict(changed(data, name, value)))) not in scores]
            share = max(1, round((budget - len(scores)) * len(values) / left))
            if new := list(dict.fromkeys(thinned(new, share) if new else []))[: budget - len(scores)]:
                yield new
            left -= len(values)


def best_of(scores: Mapping[str, float]) -> str:
    """The first spec with the highest score; NaN is below all numbers."""
    return max(scores, key=lambda spec: -math.inf if math.isnan(scores[spec]) else scores[spec])
