"""How much each objective computes: calls of the loss, and the time of a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from ..store.run import Run

TOLERANCE = 1.2  # ratio of times up to which two rows take equally long


def uneven(runs: Iterable[Run]) -> Iterator[tuple[Run, str]]:
    """Yield the runs that reached the loss less often than others of their seed, and what is wrong with them."""
    seeds: dict[int, list[Run]] = defaultdict(list)
    for run in runs:
        if run.arguments["length"] is None:
            seeds[run.arguments["seed"]].append(run)
    for members in seeds.values():
        most = max(members, key=calls)
        for run in members:
            if calls(run) < calls(most):
                yield run, f"{run.title}: the loss was reached {calls(run)} times, with {most.name} {calls(most)} times"


def calls(run: Run) -> int:
    count: int = run.details["calls"]
    return count


def step_times(runs: Iterable[Run], baseline: str) -> dict[str, list[float]]:
    """Return for each other row the times from one call of the loss to the next, per seed, over the baseline's."""
    seconds: dict[str, dict[int, float]] = defaultdict(dict)
    for run in runs:
        if run.details["step_seconds"]:
            seconds[run.name][run.arguments["seed"]] = run.details["step_seconds"]
    base = seconds.pop(baseline, {})
    ratios = {row: [value / base[seed] for seed, value in by.items() if seed in base] for row, by in seconds.items()}
    return {row: values for row, values in ratios.items() if values}


def equal_lengths(runs: Sequence[Run], baseline: str, length: float) -> dict[str, float]:
    """Return the length at which each row that is slower takes as long as the baseline, by the first seed's times.

    More seeds, added later, then leave the lengths as they are. A whole length stays whole, and is at least 1.
    """
    first = min(run.arguments["seed"] for run in runs)
    times = step_times([run for run in runs if run.arguments["seed"] == first], baseline)
    lengths = {row: length / time for row, (time,) in times.items() if time > TOLERANCE}
    if length.is_integer():
        lengths = {row: float(max(1, round(value))) for row, value in lengths.items()}
    return {row: value for row, value in lengths.items() if value < length}
