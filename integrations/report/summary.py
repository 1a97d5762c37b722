"""From finished runs to numbers: means, differences to a baseline, tests, and the papers' numbers.

A table has an objective per row and a data set per column (with several metrics: a metric of a data set). Every
difference to the baseline is taken over paired seeds, with an interval from
:func:`~counterpoint.integrations.report.statistics.bootstrap_interval` and a p-value from
:func:`~counterpoint.integrations.report.statistics.sign_flip_p`, corrected for the rows of the column after Holm. A row
is marked as the best only if the test, corrected for all other rows, separates it from each of them.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import counterpoint as cp
from counterpoint.hyper import nearest

from ..store.cell import dataset_name
from ..store.run import Run
from . import statistics
from .papers import PaperNumber, paper_number
from .statistics import ALPHA, Verdict, compare

TUNED = "which selected settings by them, so they are not results"

LOSS = "loss"  # each objective has its own scale, so that losses do not say which row is better

IDENTIFYING = ("domain", "dataset", "objective", "label", "seed")  # the other arguments distinguish rows of one name


@dataclass(frozen=True)
class Cell:
    """One row of a column: its value per seed and their statistics."""

    values: dict[int, float]
    mean: float
    sd: float
    difference: Verdict | None
    best: bool
    paper: PaperNumber | None


@dataclass(frozen=True)
class Column:
    """The rows of one data set and metric; ``tested`` is false where scipy is missing."""

    domain: str
    dataset: str
    metric: str
    title: str
    baseline: str | None
    cells: dict[str, Cell]
    runs: dict[str, list[Run]]
    tested: bool = True


@dataclass(frozen=True)
class Report:
    """The columns, and remarks about runs and numbers that are missing from them."""

    columns: list[Column]
    notes: list[str]


def summarise(
    runs: Sequence[Run], *, baseline: str | None = None, metrics: Sequence[str] = (), lower: bool = False
) -> Report:
    """Compute the statistics of finished runs.

    Args:
        runs: those that are not done, and those of ``counterpoint tune``, are only counted in the notes.
        baseline: a row by its name or spec; by default InfoNCE where a column has exactly one such row.
        metrics: names of results; by default the first that the runs on a data set have, a loss if there is no other.
        lower: whether smaller numbers are better. Without it losses are not compared.
    """
    done = sorted((run for run in runs if run.done and not run.tuning), key=lambda run: str(run.path))
    if not done:
        if tuned := sum(run.tuning for run in runs):
            raise ValueError(f"{tuned} of {len(runs)} runs are of counterpoint tune, {TUNED}, and no other is done.")
        raise ValueError(f"none of the {len(runs)} runs is done." if runs else "no runs there.")
    known = list(dict.fromkeys(name for run in done for name in run.record["result"]))
    for name in metrics:
        if name not in known:
            raise ValueError(f"unknown metric {name!r}.{nearest(name, known)}")
    rows = _row_names(done)
    if baseline is not None:
        baseline = _resolve_baseline(baseline, rows, done)
    columns, notes = [], list(_notes(runs, done))
    datasets: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in done:
        datasets[run.arguments["domain"], run.arguments["dataset"]].append(run)
    short = Counter((domain, dataset_name({"dataset": dataset})) for domain, dataset in datasets)
    for (domain, dataset), members in sorted(datasets.items()):
        name = dataset_name({"dataset": dataset})
        name = name if short[domain, name] == 1 else dataset  # two folders of the same name
        for metric in metrics or [min(members[0].record["result"], key=lambda name: name == LOSS)]:
            prefix = [name] * (len(datasets) > 1 or len(metrics) < 2)
            title = " ".join(prefix + [metric] * (len(metrics) > 1))
            if column := _column(members, rows, name, metric, title, baseline, lower):
                columns.append(column)
            notes += _missing_numbers(members, rows, name, metric)
    if not all(column.tested for column in columns):
        notes.append(f"Means only: {statistics.MISSING}.")
    return Report(columns, notes)


def _row_names(runs: Iterable[Run]) -> dict[Path, str]:
    """Return the row of each run: its name, and the arguments in which runs of that name on the same data differ."""
    arguments: dict[str, dict[tuple[str, str], list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        arguments[run.name][run.arguments["domain"], run.arguments["dataset"]].append(_other_arguments(run))
    differing: dict[str, list[str]] = {}
    for name, datasets in arguments.items():
        keys = sorted({key for members in datasets.values() for others in members for key in others})
        values = {key: [{json.dumps(o.get(key)) for o in members} for members in datasets.values()] for key in keys}
        differing[name] = [key for key in keys if any(len(different) > 1 for different in values[key])]
    return {
        run.path: run.name + "".join(f", {key}={_other_arguments(run).get(key)}" for key in differing[run.name])
        for run in runs
    }


def _other_arguments(run: Run) -> dict[str, Any]:
    others = {key: value for key, value in run.arguments.items() if key not in IDENTIFYING}
    return others | ({"objective": run.arguments["objective"]} if run.arguments.get("label") else {})


def _resolve_baseline(baseline: str, rows: dict[Path, str], runs: Iterable[Run]) -> str:
    """Return the row that a name or spec refers to."""
    try:
        spec = str(cp.objective(baseline))
    except ValueError:
        spec = baseline
    names = set(rows.values())
    if baseline in names:
        return baseline
    matches = {rows[run.path] for run in runs if spec in (run.arguments["objective"], run.name)}
    if len(matches) > 1:
        raise ValueError(f"baseline {baseline!r} may mean {' or '.join(map(repr, sorted(matches)))}: give one of them.")
    if not matches:
        raise ValueError(f"unknown baseline {baseline!r}.{nearest(baseline, sorted(names))}")
    return matches.pop()


def _column(
    members: list[Run],
    rows: dict[Path, str],
    name: str,
    metric: str,
    title: str,
    baseline: str | None,
    lower: bool,
) -> Column | None:
    """Return the column of the runs on one data set, or None if none of them has the metric."""
    values: dict[str, dict[int, float]] = defaultdict(dict)
    runs: dict[str, list[Run]] = defaultdict(list)
    for run in members:
        value = (run.result or {}).get(metric, math.nan)
        if math.isnan(value):
            continue
        row, seed = rows[run.path], run.arguments["seed"]
        if seed in values[row]:
            twin = next(other for other in runs[row] if other.arguments["seed"] == seed)
            raise ValueError(f"{run.path} and {twin.path} are the same run: name one of the folders only.")
        values[row][seed] = value
        runs[row].append(run)
    if not values:
        return None
    domain, dataset = members[0].arguments["domain"], members[0].arguments["dataset"]
    comparable = metric != LOSS or lower
    if baseline is None and len(values) > 1:
        infonce = [row for row in values if _is_infonce(runs[row][0])]
        baseline = infonce[0] if len(infonce) == 1 else None
    if baseline not in values or not comparable:
        baseline = None
    tested = statistics.available() or len(values) == 1 or not comparable
    names = sorted(values, key=lambda row: (runs[row][0].arguments["objective"] is not None, row != baseline, row))
    others = [row for row in names if row != baseline]
    differences = {} if baseline is None else _differences(values, baseline, others, tested)
    best = _best(values, lower) if comparable and tested else None
    cells = {}
    for row in names:
        numbers, arguments = list(values[row].values()), runs[row][0].arguments
        paper = paper_number(domain, dataset, arguments["objective"] or runs[row][0].name, metric, arguments)
        sd = stdev(numbers) if len(numbers) > 1 else math.nan
        cells[row] = Cell(values[row], fmean(numbers), sd, differences.get(row), row == best, paper)
    return Column(domain, name, metric, title, baseline, cells, dict(runs), tested)


def _is_infonce(run: Run) -> bool:
    return str(run.arguments["objective"]).partition(":")[0] == "infonce" and " + " not in run.arguments["objective"]


def _differences(
    values: dict[str, dict[int, float]], baseline: str, rows: Sequence[str], tested: bool = True
) -> dict[str, Verdict]:
    """Return the verdict on each row that shares a seed with the baseline."""
    if tested:
        return compare(values[baseline], {row: values[row] for row in rows})
    paired = {row: [x - values[baseline][seed] for seed, x in values[row].items() if seed in values[baseline]] for row in rows}
    nan = math.nan
    return {row: Verdict("cannot tell", fmean(gaps), *[nan] * 7, len(gaps)) for row, gaps in paired.items() if gaps}


def _best(values: dict[str, dict[int, float]], lower: bool) -> str | None:
    """Return the row that is different from every other one, if there is one."""
    first = (min if lower else max)(values, key=lambda row: fmean(values[row].values()))
    others = {row: seeds for row, seeds in values.items() if row != first}
    verdicts = compare(values[first], others)
    return first if others and len(verdicts) == len(others) and all(v.different for v in verdicts.values()) else None


def _notes(runs: Sequence[Run], done: Sequence[Run]) -> Iterator[str]:
    if tuned := sum(run.tuning for run in runs):
        yield f"{tuned} of {len(runs)} runs are of counterpoint tune, {TUNED}."
    states = [run.record["status"] for run in runs if not run.done and not run.tuning]
    if states:
        counts = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
        yield f"{len(states)} of {len(runs)} runs are left out: {counts}."
    for name in ("counterpoint", "torch"):
        versions = sorted({run.record.get("versions", {}).get(name, "?") for run in done})
        if len(versions) > 1:
            yield f"Runs of several versions of {name}: {', '.join(versions)}."


def _missing_numbers(members: Sequence[Run], rows: dict[Path, str], dataset: str, metric: str) -> Iterator[str]:
    """Yield a note if runs have no number for the metric, so that no mean includes them."""
    missing = [rows[run.path] for run in members if math.isnan((run.result or {}).get(metric, 0.0))]
    if missing:
        named = ", ".join(f"{row} ({plural(missing.count(row), 'run')})" for row in dict.fromkeys(missing))
        yield f"{dataset}: no {metric} could be computed for {named}: left out of all means."


def digits(column: Column) -> int:
    """Return the decimals to print: 2 for percentages, 1 for scores in the hundreds, 4 for losses."""
    largest = max(abs(cell.mean) for cell in column.cells.values())
    return 1 if largest >= 150 else 2 if largest >= 2 else 4


def plural(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count} {noun}{'s' * (count != 1)}"
