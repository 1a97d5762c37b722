"""The search along one parameter after the other; nothing here trains."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import counterpoint as cp
from counterpoint.checks import is_number
from counterpoint.objectives.infonce import first_temperature

from .grids import Grids, changed

T = TypeVar("T")
Scores = dict[str, float]
UNTYPED = 0.987654321  # a temperature that nobody types


def with_value(spec: str, name: str, value: float) -> str:
    """Return a treatment's text with another value of a parameter; it names no other that it did not name before."""
    data = cp.objective(spec, f"infonce:t={UNTYPED}").to_dict()
    text = str(cp.from_dict(changed(data, name, value)))
    for untyped in (f"t={UNTYPED}", *[r"denominator=\w+"] * ("denominator" not in spec)):
        text = re.sub(rf"([:,]){untyped}(,?)", lambda found: found[1] * bool(found[2]), text)
    return text


def at_temperature(spec: str, own: str, factor: float = 1) -> str | None:
    """Return a treatment at a multiple of the temperature to try first; None where that is not known.

    Treatments that name a temperature, or have none, stay as they are.

    Args:
        spec: of the treatment; ``host`` is the script's own loss.
        own: the script's own loss.
    """
    objective = cp.objective(spec, f"infonce:t={UNTYPED}")
    name, t = map(cp.objective(own).to_dict().get, ("name", "temperature"))
    if f"t={UNTYPED}" not in str(objective) or not is_number(t):
        return spec if factor == 1 or is_number(t) else None
    value = float(f"{factor * first_temperature(objective, t):.4g}")
    of_host = re.match(r"host\b", spec)
    return spec if of_host and value == t else with_value(re.sub(r"^host\b", str(name), spec), "temperature", value)


def search(start: str, grids: Grids, budget: int, measure: Callable[[list[str]], Mapping[str, float]]) -> Scores:
    """Measure specs along one parameter after the other, from the best so far; return the score of each.

    Each parameter gets its share of the budget, spread evenly over its grid. What is left goes into further rounds,
    until a round changes nothing.

    Args:
        start: the first spec to measure.
        grids: the values to try of each parameter, in the order of the search.
        budget: largest number of specs to measure.
        measure: returns the scores of specs; NaN for those that failed.
    """
    scores, measured = dict(measure([start])), 0
    while measured < len(scores) < budget:  # a round without a new spec is the last
        measured, left = len(scores), sum(map(len, grids.values()))
        for name, values in grids.items():
            best = best_of(scores)
            new = [spec for value in values if (spec := with_value(best, name, value)) not in scores]
            share = max(1, round((budget - len(scores)) * len(values) / left))
            if new := list(dict.fromkeys(thinned(new, share) if new else []))[: budget - len(scores)]:
                scores |= measure(new)
            left -= len(values)
    return scores


def thinned(values: Sequence[T], count: int) -> list[T]:
    """Select ``count`` of the values, spread evenly from the first to the last."""
    if count >= len(values):
        return list(values)
    if count == 1:
        return [values[len(values) // 2]]
    return [values[round(i * (len(values) - 1) / (count - 1))] for i in range(count)]


def best_of(scores: Mapping[str, float]) -> str:
    """Return the first spec with the highest score; NaN is below all numbers."""
    return max(scores, key=lambda spec: -math.inf if math.isnan(scores[spec]) else scores[spec])
