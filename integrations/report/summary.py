"""``counterpoint report``: from folders of runs to tables, plain sentences and pictures.

A table has an objective per row and a data set per column (with several metrics: a data set's metric). Every
difference to the baseline is taken over paired seeds, with an interval from :func:`paired.bootstrap_interval` and a
test, :func:`paired.sign_flip_p` after Holm's correction over the column's rows. A row is marked as the best only if
that test, corrected over all other rows, tells it from each of them.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import counterpoint as cp
from counterpoint.hyper import nearest

from ..store.run import Run
from .papers import PaperNumber, paper_number
from .statistics import bootstrap_interval, holm, sign_flip_p

LEVEL = 0.05

LOSS = "loss"  # on its objective's own scale: no measure of how good a row is beside another

COMMON = ("domain", "dataset", "objective", "label", "seed")  # arguments that do not tell two rows of a name apart


@dataclass(frozen=True)
class Difference:
    """A row minus the baseline, over the seeds that both have."""

    pairs: int
    mean: float
    low: float
    high: float
    p: float
    corrected: float

    @property
    def found(self) -> bool:
        return self.corrected < LEVEL


@dataclass(frozen=True)
class Cell:
    """One row of a column: its value per seed, and what follows from them."""

    values: dict[int, float]
    mean: float
    sd: float
    difference: Difference | None
    best: bool
    paper: PaperNumber | None


@dataclass(frozen=True)
class Column:
    domain: str
    dataset: str
    metric: str
    title: str
    baseline: str | None
    cells: dict[str, Cell]
    runs: dict[str, list[Run]]


@dataclass(frozen=True)
class Report:
    columns: list[Column]
    notes: list[str]


def summarise(
    found: Sequence[Run], *, baseline: str | None = None, metrics: Sequence[str] = (), lower: bool = False
) -> Report:
    """The statistics of finished runs.

    Args:
        found: runs; those that are not done are counted in the notes.
        baseline: a row by its name or spec; by default InfoNCE where there is one such row in a column.
        metrics: names of results; by default the first that the runs on a data set have, a loss if there is no other.
        lower: whether small numbers are the good ones. Without it losses are not compared.
    """
    done = sorted((run for run in found if run.done), key=lambda run: str(run.path))
    if not done:
        raise ValueError(f"none of the {len(found)} runs is done." if found else "no runs there.")
    known = list(dict.fromkeys(name for run in done for name in run.record["result"]))
    for name in metrics:
        if name not in known:
            raise ValueError(f"unknown metric {name!r}.{nearest(name, known)}")
    names = _row_names(done)
    if baseline is not None:
        baseline = _named(baseline, names, done)
    columns, notes = [], list(_notes(found, done))
    places = list(dict.fromkeys((run.arguments["domain"], run.arguments["dataset"]) for run in done))
    for domain, dataset in sorted(places):
        here = [run for run in done if (run.arguments["domain"], run.arguments["dataset"]) == (domain, dataset)]
        for metric in metrics or [min(here[0].record["result"], key=lambda name: name == LOSS)]:
            title = " ".join([dataset] * (len(places) > 1 or len(metrics) < 2) + [metric] * (len(metrics) > 1))
            if column := _column(here, names, domain, dataset, metric, title, baseline, lower):
                columns.append(column)
            notes += _lacking(here, names, metric)
    return Report(columns, notes)


def _row_names(done: Iterable[Run]) -> dict[Path, str]:
    """Each run's row: its name, and what else tells it from others of that name on the same data."""
    groups: dict[str, dict[tuple[str, str], list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for run in done:
        groups[run.name][run.arguments["domain"], run.arguments["dataset"]].append(_others(run))
    differing: dict[str, list[str]] = {}
    for name, places in groups.items():
        keys = sorted({key for others in places.values() for one in others for key in one})
        differing[name] = [
            key for key in keys if any(len({json.dumps(one.get(key)) for one in here}) > 1 for here in places.values())
        ]
    return {
        run.path: run.name + "".join(f", {key}={_others(run).get(key)}" for key in differing[run.name]) for run in done
    }


def _others(run: Run) -> dict[str, Any]:
    others = {key: value for key, value in run.arguments.items() if key not in COMMON}
    return others | ({"objective": run.arguments["objective"]} if run.arguments.get("label") else {})


def _named(baseline: str, names: dict[Path, str], done: Iterable[Run]) -> str:
    """The row that is meant by its name or spec."""
    try:
        spec = str(cp.objective(baseline))
    except ValueError:
        spec = baseline
    rows = set(names.values())
    if baseline in rows:
        return baseline
    meant = {names[run.path] for run in done if spec in (run.arguments["objective"], run.name)}
    if len(meant) > 1:
        raise ValueError(f"baseline {baseline!r} may mean {' or '.join(map(repr, sorted(meant)))}: give one of them.")
    if not meant:
        raise ValueError(f"unknown baseline {baseline!r}.{nearest(baseline, sorted(rows))}")
    return meant.pop()


def _column(
    here: list[Run],
    names: dict[Path, str],
    domain: str,
    dataset: str,
    metric: str,
    title: str,
    baseline: str | None,
    lower: bool,
) -> Column | None:
    values: dict[str, dict[int, float]] = defaultdict(dict)
    runs: dict[str, list[Run]] = defaultdict(list)
    for run in here:
        value = (run.result or {}).get(metric, math.nan)
        if math.isnan(value):
            continue
        row, seed = names[run.path], run.arguments["seed"]
        if seed in values[row]:
            twin = next(other for other in runs[row] if other.arguments["seed"] == seed)
            raise ValueError(f"{run.path} and {twin.path} are the same run: name one of the folders only.")
        values[row][seed] = value
        runs[row].append(run)
    if not values:
        return None
    if baseline is None:
        plain = [row for row in values if _is_infonce(runs[row][0])]
        base = plain[0] if len(plain) == 1 and len(values) > 1 else None
    else:
        base = baseline if baseline in values else None
    if incomparable := metric == LOSS and not lower:
        base = None
    rows = sorted(values, key=lambda row: (runs[row][0].arguments["objective"] is not None, row != base, row))
    differences = _differences(values, base, [row for row in rows if row != base]) if base else {}
    best = None if incomparable else _best(values, lower)
    cells = {}
    for row in rows:
        of = list(values[row].values())
        arguments = runs[row][0].arguments
        paper = paper_number(domain, dataset, arguments["objective"] or runs[row][0].name, metric, arguments)
        spread = stdev(of) if len(of) > 1 else math.nan
        cells[row] = Cell(values[row], fmean(of), spread, differences.get(row), row == best, paper)
    return Column(domain, dataset, metric, title, base, cells, dict(runs))


def _is_infonce(run: Run) -> bool:
    spec = run.arguments["objective"]
    return spec is not None and cp.objective(spec).name == "infonce"


def _differences(values: dict[str, dict[int, float]], base: str, rows: Sequence[str]) -> dict[str, Difference]:
    gaps = {row: _gaps(values, row, base) for row in rows}
    p = [sign_flip_p(of) for of in gaps.values()]
    return {
        row: Difference(len(of), fmean(of), *bootstrap_interval(of), one, corrected)
        for (row, of), one, corrected in zip(gaps.items(), p, holm(p), strict=True)
        if of
    }


def _best(values: dict[str, dict[int, float]], lower: bool) -> str | None:
    """The row that the test tells from each other one, if there is one."""
    first = (min if lower else max)(values, key=lambda row: fmean(values[row].values()))
    corrected = holm([sign_flip_p(_gaps(values, row, first)) for row in values if row != first])
    return first if corrected and all(p < LEVEL for p in corrected) else None


def _gaps(values: dict[str, dict[int, float]], row: str, base: str) -> list[float]:
    """The differences over the seeds that both rows have."""
    return [value - values[base][seed] for seed, value in values[row].items() if seed in values[base]]


def _notes(found: Sequence[Run], done: Sequence[Run]) -> Iterator[str]:
    states = [run.record["status"] for run in found if not run.done]
    if states:
        counts = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
        yield f"{len(states)} of {len(found)} runs are left out: {counts}."
    for name in ("counterpoint", "torch"):
        versions = sorted({run.record.get("versions", {}).get(name, "?") for run in done})
        if len(versions) > 1:
            yield f"Runs of several versions of {name}: {', '.join(versions)}."


def _lacking(here: Sequence[Run], names: dict[Path, str], metric: str) -> Iterator[str]:
    """The runs whose number could not be computed, which are in no mean."""
    rows = [names[run.path] for run in here if math.isnan((run.result or {}).get(metric, 0.0))]
    if rows:
        named = ", ".join(f"{row} ({many(rows.count(row), 'run')})" for row in dict.fromkeys(rows))
        yield f"{here[0].arguments['dataset']}: no {metric} could be computed for {named}: left out of all means."


def digits(column: Column) -> int:
    """Decimals that show a hundredth of a percent as such, a score without any, and a loss with more."""
    largest = max(abs(cell.mean) for cell in column.cells.values())
    return 1 if largest >= 150 else 2 if largest >= 2 else 4


def many(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"
