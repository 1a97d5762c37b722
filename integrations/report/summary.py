"""From finished runs to numbers: means, differences to a baseline, tests, and the papers' numbers.

A table has an objective per row and a data set per column (with several metrics: a metric of a data set; with several
settings: a column for each). Every difference to the baseline is taken over paired seeds, with a verdict from
:mod:`~counterpoint.integrations.report.statistics`. Rows that train nothing, such as the encoder before training, are
checks: they are not in that family, and every trained row is compared with each of them in a family of its own. A
row is marked as the best only if it is different from each other trained one.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import counterpoint as cp
from counterpoint.hyper import is_number, nearest
from counterpoint.names import check_known

from ..store.cell import HOST, dataset_name
from ..store.run import Run
from . import statistics
from .papers import PaperNumber, paper_number
from .statistics import Verdict, compare

TUNED = "which selected settings by them, so they are not results"

LOSS = "loss"  # each objective has its own scale, so that losses do not say which row is better

OBJECTIVE = (
    "objective",
    "label",
    "pairing",
    "views",
    "scores",
    "method",
    "queue",
    "momentum",
    "epsilon",
    "mixed",
    "ids",
)
IDENTIFYING = ("domain", "dataset", "seed", "length", *OBJECTIVE)  # all that may differ within a table
NO_TRAINING = ("epochs", "steps", "updates", "encoder", "head")  # in these, rows that train nothing may differ too
# in these, rows at equal time, which have a ``length``, may differ too
LENGTH = ("epochs", "steps", "updates", "every")
TRAINS = ("SwAV", "SAC")  # rows that train without an objective


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
    """The rows of one data set, metric and setting.

    ``setting`` names what distinguishes it from columns of the same data, if there are any. ``checks`` are the trained
    rows minus each row that trains nothing; ``majority`` is the share of the largest class, if the runs stored it, and
    ``uninformative`` whether no row is found to be above it. ``tested`` is false where scipy is missing.
    """

    domain: str
    dataset: str
    metric: str
    title: str
    baseline: str | None
    cells: dict[str, Cell]
    runs: dict[str, list[Run]]
    margin: float
    lower: bool = False
    tested: bool = True
    checks: dict[str, dict[str, Verdict]] = field(default_factory=dict)
    majority: float | None = None
    uninformative: bool = False
    setting: str = ""

    @property
    def compared(self) -> dict[str, Verdict]:
        """The verdicts on the rows that are compared with the baseline."""
        return {row: cell.difference for row, cell in self.cells.items() if cell.difference is not None}


@dataclass(frozen=True)
class Pooled:
    """Several data sets together: verdicts on the differences to a baseline that all have, from 3 data sets on.

    For control, from 2 tasks on, also each row's interquartile mean of all scores with its interval, and the scores.
    """

    domain: str
    metric: str
    baseline: str
    verdicts: dict[str, Verdict]
    interquartile: dict[str, tuple[float, float, float]]
    scores: dict[str, list[list[float]]]


@dataclass(frozen=True)
class Report:
    """The columns, what several of them say together, and remarks about missing runs and numbers."""

    columns: list[Column]
    notes: list[str]
    pooled: list[Pooled] = field(default_factory=list)

    def _repr_html_(self) -> str:
        shown: str = import_module(f"{__package__}.tables").notebook(self)  # tables imports this module
        return shown


def summarise(
    runs: Sequence[Run],
    *,
    baseline: str | None = None,
    metrics: Sequence[str] = (),
    lower: bool = False,
    margin: float | None = None,
) -> Report:
    """Compute the statistics of finished runs.

    Args:
        runs: those that are not done, and those of ``counterpoint tune``, are only counted in the notes.
        baseline: a row by its name or spec; by default a code base's own loss, or else InfoNCE, if there is one such.
        metrics: names of results; by default the first that the runs on a data set have, a loss if there is no other.
        lower: whether smaller numbers are better. Without it losses are not compared.
        margin: differences within it are of no interest, in the metric's unit; by default half a point of a hundred.
    """
    done = sorted((run for run in runs if run.done and not run.tuning), key=lambda run: str(run.path))
    if not done:
        if tuned := sum(run.tuning for run in runs):
            raise ValueError(f"{tuned} of {len(runs)} runs are of counterpoint tune, {TUNED}, and no other is done.")
        raise ValueError(f"none of the {len(runs)} runs is done." if runs else "no runs there.")
    known = list(dict.fromkeys(name for run in done for name in run.record["result"]))
    for name in metrics:
        check_known("unknown metric", name, known)
    rows = _row_names(done)
    if baseline is not None:
        baseline = _resolve_baseline(baseline, rows, done)
    columns, notes = [], list(_notes(runs, done))
    datasets: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in done:
        datasets[run.arguments["domain"], run.arguments["dataset"]].append(run)
    short = Counter((domain, dataset_name({"dataset": dataset})) for domain, dataset in datasets)
    for (domain, dataset), found in sorted(datasets.items()):
        name = dataset_name({"dataset": dataset})
        name = name if short[domain, name] == 1 else dataset  # two folders of the same name
        for setting, members in _settings(found):
            for metric in metrics or [min(members[0].record["result"], key=lambda name: name == LOSS)]:
                prefix = [name + setting] * (len(datasets) > 1 or len(metrics) < 2 or bool(setting))
                title = " ".join(prefix + [metric] * (len(metrics) > 1))
                if column := _column(members, rows, name, metric, title, baseline, lower, margin):
                    columns.append(replace(column, setting=setting))
                notes += _missing_numbers(members, rows, name, metric)
    if not all(column.tested for column in columns):
        notes.append(f"Means only: {statistics.MISSING}.")
    return Report(columns, notes, list(_pooled(columns)))


def _settings(runs: Sequence[Run]) -> Iterator[tuple[str, list[Run]]]:
    """Split the runs on one data set by all settings that are not the objective's; yield what differs, and the runs.

    Rows that train nothing, or another length on purpose, are in each part with which they agree in all other settings.
    """
    parts: dict[str, dict[str, Any]] = {}
    members: dict[str, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=_may_differ_in):
        settings = {key: value for key, value in run.arguments.items() if key not in IDENTIFYING}
        keys = [
            key
            for key, part in parts.items()
            if (free := _may_differ_in(run))
            and all(part.get(k) == settings.get(k) for k in {*part, *settings} - {*free})
        ] or [json.dumps(settings, sort_keys=True)]
        for key in keys:
            parts.setdefault(key, settings)
            members[key].append(run)
    differing = {k for part in parts.values() for k in part if len({json.dumps(p.get(k)) for p in parts.values()}) > 1}
    for key, part in parts.items():
        named = ", ".join(f"{k}={part[k]}" for k in sorted(differing) if k in part)
        yield f" ({named})" * bool(named), members[key]


def _may_differ_in(run: Run) -> tuple[str, ...]:
    """Return the settings in which a run may differ from the others of its table."""
    return NO_TRAINING if is_check(run) else LENGTH if run.arguments.get("length") is not None else ()


def is_check(run: Run) -> bool:
    """Return whether the run trains nothing, such as the encoder before training."""
    return run.arguments["objective"] is None and run.name not in TRAINS


def _pooled(columns: Sequence[Column]) -> Iterator[Pooled]:
    """Yield the verdicts over the data sets of each domain that share a metric and a baseline's name."""
    groups: dict[tuple[str, str, str], list[Column]] = defaultdict(list)
    for column in columns:
        if column.baseline is not None and column.tested:
            groups[column.domain, column.metric, column.baseline].append(column)
    for (domain, metric, baseline), members in groups.items():
        if len({column.dataset for column in members}) < len(members):
            continue  # the same data in several settings
        known: dict[str, list[Verdict]] = defaultdict(list)
        for column in members:
            for row, verdict in column.compared.items():
                known[row].append(verdict)
        scores: dict[str, list[list[float]]] = {}
        if domain.startswith("control") and len(members) > 1:  # all tasks have the same scale
            rows = [row for row in members[0].cells if all(row in column.cells for column in members)]
            scores = {row: [list(column.cells[row].values.values()) for column in members] for row in rows}
        verdicts = statistics.pool(known, max(column.margin for column in members))
        if verdicts or scores:
            means = {row: statistics.interquartile_mean(tasks) for row, tasks in scores.items()}
            yield Pooled(domain, metric, baseline, verdicts, means, scores)


def _row_names(runs: Iterable[Run]) -> dict[Path, str]:
    """Return the row of each run: its name, and settings of its objective in which runs of it on the same data differ.

    Other settings in which they differ give them other columns.
    """
    arguments: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        table = {key: value for key, value in run.arguments.items() if key not in (*OBJECTIVE, "seed")}
        arguments[run.name][json.dumps(table, sort_keys=True)].append(_other_arguments(run))
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
    others = {key: run.arguments[key] for key in OBJECTIVE[2:] if key in run.arguments}
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
    margin: float | None,
) -> Column | None:
    """Return the column of the runs on one data set, or None if none of them has the metric."""
    values: dict[str, dict[int, float]] = defaultdict(dict)
    runs: dict[str, list[Run]] = defaultdict(list)
    for run in members:
        value = (run.result or {}).get(metric, math.nan)
        if math.isnan(value):
            continue
        row, seed = rows[run.path], run.arguments["seed"]
        if seed in values[row] and is_check(run):
            continue  # stored once per length of training
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
        own = [row for row in values if runs[row][0].arguments["objective"] == HOST]
        likely = own or [row for row in values if _is_infonce(runs[row][0])]
        baseline = likely[0] if len(likely) == 1 else None
    if baseline not in values or not comparable:
        baseline = None
    tested = statistics.available() or len(values) == 1 or not comparable
    trained = [row for row in values if not is_check(runs[row][0])]
    names = sorted(values, key=lambda row: (row in trained, row != baseline, row))
    means = {row: fmean(values[row].values()) for row in names}
    if margin is None:
        margin = _margin(max(means.values()))
    compared = [] if baseline is None else [row for row in names if row in trained and row != baseline]
    differences = _differences(values, baseline, compared, margin, tested)
    checked = [row for row in names if row not in (*trained, baseline)]
    checks = {row: _differences(values, row if comparable else None, trained, margin, tested) for row in checked}
    best = _best({row: values[row] for row in trained}, lower) if trained and comparable and tested else None
    majority = _majority(members, metric)
    cells = {}
    for row in names:
        numbers, arguments = list(values[row].values()), runs[row][0].arguments
        paper = paper_number(
            domain, dataset, arguments["objective"] or runs[row][0].name, metric, arguments, same_setup=True
        )
        sd = stdev(numbers) if len(numbers) > 1 else math.nan
        cells[row] = Cell(values[row], means[row], sd, differences.get(row), row == best, paper)
    none_above = majority is not None and tested and _none_above(values, trained, majority)
    return Column(
        domain, name, metric, title, baseline, cells, dict(runs), margin, lower, tested, checks, majority, none_above
    )


def _margin(largest: float) -> float:
    """Return half a point of a hundred of the scale: 1, 100, 1000, ... as the largest mean allows."""
    scales = (10.0**power for power in itertools.count(2))
    return 0.005 * (1.0 if largest <= 1 else next(scale for scale in scales if largest <= scale))


def _majority(members: Sequence[Run], metric: str) -> float | None:
    """Return the share of the largest class that the runs stored for a metric."""
    stored = [run.details.get("majority") for run in members]
    shares = [one[metric] for one in stored if isinstance(one, dict) and is_number(one.get(metric))]
    return fmean(shares) if shares else None


def _none_above(values: dict[str, dict[int, float]], trained: Sequence[str], majority: float) -> bool:
    """Return whether rows with enough seeds were tested, and none was found above the share of the largest class."""
    rows = {row: values[row] for row in trained}
    verdicts = compare(dict.fromkeys((seed for seeds in rows.values() for seed in seeds), majority), rows).values()
    tested = [verdict for verdict in verdicts if verdict.pairs >= statistics.FEWEST]
    return bool(tested) and not any(verdict.different and verdict.difference > 0 for verdict in tested)


def _is_infonce(run: Run) -> bool:
    spec = str(run.arguments["objective"])
    return spec.partition(":")[0] == "infonce" and " + " not in spec and not run.arguments.get("ids")


def _differences(
    values: dict[str, dict[int, float]], baseline: str | None, rows: Sequence[str], margin: float, tested: bool
) -> dict[str, Verdict]:
    """Return the verdict on each row that shares a seed with the baseline."""
    if baseline is None:
        return {}
    base, others = values[baseline], {row: values[row] for row in rows}
    if tested:
        return compare(base, others, margin)
    gaps = {row: [x - base[seed] for seed, x in seeds.items() if seed in base] for row, seeds in others.items()}
    nan = math.nan
    return {
        row: Verdict("cannot tell", fmean(x), nan, nan, nan, nan, nan, margin, nan, len(x), nan)
        for row, x in gaps.items()
        if x
    }


def _best(values: dict[str, dict[int, float]], lower: bool) -> str | None:
    """Return the row that is different from every other one, if there is one."""
    first = (min if lower else max)(values, key=lambda row: fmean(values[row].values()))
    others = {row: seeds for row, seeds in values.items() if row != first}
    verdicts = compare(values[first], others)
    return first if others and len(verdicts) == len(others) and all(v.different for v in verdicts.values()) else None


def _notes(runs: Sequence[Run], done: Sequence[Run]) -> Iterator[str]:
    if tuned := sum(run.tuning for run in runs):
        yield f"{tuned} of {len(runs)} runs are of counterpoint tune, {TUNED}."
    if states := [run.record["status"] for run in runs if not run.done and not run.tuning]:
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
