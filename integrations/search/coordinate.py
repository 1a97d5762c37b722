"""The search along one parameter after the other; nothing here trains."""

import math
import re
from bisect import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence

import counterpoint as cp

from .grids import Grids, changed, numbers

Scores = dict[str, float]
UNTYPED = 0.987654321  # a temperature that nobody types
FOLLOWS = "at the script's own temperature, which is learned or not known"  # and which its own gradient trains on
FACTORS = [2.0**power for power in range(-4, 5)]  # of the temperature that is tried first: what is tried at most


def with_value(spec: str, name: str, value: float) -> str:
    """Return a treatment's text with another value of a parameter; it names no other that it did not name before."""
    text = str(cp.from_dict(changed(cp.objective(spec, f"infonce:t={UNTYPED}").to_dict(), name, value)))
    for untyped in (f"t={UNTYPED}", *[r"denominator=\w+"] * ("denominator" not in spec)):
        text = re.sub(rf"([:,]){untyped}(,?)", lambda found: found[1] * bool(found[2]), text)
    return text


def at_temperature(spec: str, own: str, factor: float = 1) -> str | None:
    """Return a treatment at a multiple of the temperature to try first; None if that of ``own`` is not a number."""
    from counterpoint.checks import is_number
    from counterpoint.objectives.infonce import first_temperature

    objective = cp.objective(spec, f"infonce:t={UNTYPED}")
    name, t = map(cp.objective(own).to_dict().get, ("name", "temperature"))
    by_radius = any(getattr(part, "radius", None) is not None for part in objective.modules())  # whose t has no effect
    if f"t={UNTYPED}" not in str(objective) or by_radius or not is_number(t):
        return spec if factor == 1 or is_number(t) else None  # as it is, if it names its own
    value = float(f"{factor * first_temperature(objective, t):.4g}")
    of_host = re.match(r"host\b", spec)
    return spec if of_host and value == t else with_value(re.sub(r"^host\b", str(name), spec), "temperature", value)


def search(start: str, grids: Grids, budget: int, measure: Callable[[list[str]], Mapping[str, float]]) -> Scores:
    """Measure specs along one parameter after the other, from the best so far; return the score of each.

    Each parameter gets its share of the budget, for the values next to the best one; a temperature goes on while the
    best is at an end. What is left goes into further rounds, until a round changes nothing. ``grids`` are in the order
    of the search, ``budget`` is the largest number of specs to measure, and ``measure`` returns their scores, NaN for
    those that failed.
    """
    scores, measured = dict(measure([start])), 0
    while measured < len(scores) < budget:  # a round without a new spec is the last
        measured, left = len(scores), sum(map(len, grids.values()))
        for name, values in grids.items():
            best = best_of(scores)
            near = (with_value(best, name, value) for value in by_nearness(values, value_of(best, name)))
            share = min(budget - len(scores), max(1, round((budget - len(scores)) * len(values) / left)))
            if new := list(dict.fromkeys(spec for spec in near if spec not in scores))[:share]:
                scores |= measure(new)
            while name == "temperature" and len(scores) + 2 * (len(grids) - 1) * (budget > 8) < budget:  # spares some
                at, tried = value_of(best_of(scores), name), [value_of(spec, name) for spec in scores]
                below = max((value for value in values if value < at == min(tried)), default=None)
                if (
                    beyond := below or min((value for value in values if value > at == max(tried)), default=None)
                ) is None:
                    break
                scores |= measure([with_value(best_of(scores), name, beyond)])
            left -= len(values)
    return scores


def value_of(spec: str, name: str) -> float:
    """Return the value that a treatment has of a parameter."""
    return dict(numbers(cp.objective(spec).to_dict()))[name]


def by_nearness(values: Sequence[float], at: float) -> list[float]:
    """Sort values by how many others lie between them and ``at``, so that both sides take turns."""
    ordered = sorted({*values} - {at})
    return sorted(ordered, key=lambda value: abs(ordered.index(value) - bisect(ordered, at) + 0.5))


def at_edge(best: str, names: Iterable[str], tried: Iterable[str]) -> str:
    """Return a remark on parameters whose best value is the largest or the smallest tried, or one of two or fewer."""
    values = {name: [value_of(spec, name) for spec in (best, *tried)] for name in names}
    few = [name for name, (_, *every) in values.items() if len({*every}) < 3]
    ends = [name for name, (own, *every) in values.items() if name not in few and own in (min(every), max(every))]
    remarks = {"at the edge of its grid": ends, "two values or fewer tried": few}
    return "; ".join(f"{remark}: {', '.join(some)}" for remark, some in remarks.items() if some)


def best_of(scores: Mapping[str, float]) -> str:
    """Return the first spec with the highest score; NaN is below all numbers."""
    return max(scores, key=lambda spec: -math.inf if math.isnan(scores[spec]) else scores[spec])
