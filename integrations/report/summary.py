"""From finished runs to numbers: means, differences to a baseline, tests, and the papers' numbers.

A table has an objective per row and a data set per column (with several metrics: a metric of a data set; with several
settings: a column for each). Every difference to the baseline is taken over paired seeds, with a verdict from
:mod:`~counterpoint.integrations.report.statistics`. Rows that train nothing, such as the encoder before training, are
checks: they are not in that family, and every trained row is compared with each of them in a family of its own. A
row is marked as the best only if it is different from each other trained one.
"""

import json
import math
import re
import shlex
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import counterpoint as cp
from counterpoint.checks import is_number
from counterpoint.names import check_known, nearest

from ..store.cell import HOST, dataset_name
from ..store.run import Run
from . import statistics
from .papers import PaperNumber, paper_number
from .statistics import Verdict

TUNED = "which selected settings by them, so they are not results"

LOSS = "loss"  # each objective has its own scale, so that losses do not say which row is better

# arguments of an objective, which may differ within a table
OBJECTIVE = (
    "objective", "label", "pairing", "views", "scores", "method", "queue", "momentum", "epsilon", "mixed", "ids",
)  # fmt: skip
IDENTIFYING = ("domain", "dataset", "seed", "length", *OBJECTIVE)  # all that may differ within a table
NO_TRAINING = ("epochs", "steps", "updates", "encoder", "head")  # in these, rows that train nothing may differ too
# in these, rows at equal time, which have a ``length``, may differ too
LENGTH = ("epochs", "steps", "steps_flag", "updates", "every", "lines", "of")
MOST = 4  # names in a sentence

Rows = dict[Path, str]  # the row of each run, by the run's path


@dataclass(frozen=True)
class Cell:
    """One row of a column: its runs, its value per seed, and the verdicts on them.

    ``difference`` is the row minus the baseline. ``check``, of a row that trains nothing, is each trained row minus it.
    """

    runs: list[Run]
    values: dict[int, float]
    difference: Verdict | None
    check: dict[str, Verdict] | None
    best: bool
    paper: PaperNumber | None

    @property
    def mean(self) -> float:
        return fmean(self.values.values())

    @property
    def sd(self) -> float:
        return stdev(self.values.values()) if len(self.values) > 1 else math.nan


@dataclass(frozen=True)
class Column:
    """The rows of one data set, metric and setting.

    ``setting`` names what distinguishes it from columns of the same data, if there are any. ``majority`` is the share
    of the largest class, if the runs stored it, and ``uninformative`` whether no row is found to be above it.
    """

    domain: str
    dataset: str
    metric: str
    setting: str
    title: str
    baseline: str | None
    lower: bool
    margin: float
    majority: float | None
    uninformative: bool
    cells: dict[str, Cell]

    @property
    def compared(self) -> dict[str, Verdict]:
        """The verdicts on the rows that are compared with the baseline."""
        return {row: cell.difference for row, cell in self.cells.items() if cell.difference is not None}

    @property
    def checks(self) -> dict[str, dict[str, Verdict]]:
        """The trained rows minus each row that trains nothing."""
        return {row: cell.check for row, cell in self.cells.items() if cell.check is not None}

    @property
    def runs(self) -> list[Run]:
        """The runs of all rows."""
        return [run for cell in self.cells.values() for run in cell.runs]

    @property
    def tested(self) -> bool:
        """Whether everything that allows a test is tested; not where scipy is missing."""
        families = [self.compared, *self.checks.values()]
        return all(v.tested or v.pairs < statistics.FEWEST for family in families for v in family.values())

    @property
    def digits(self) -> int:
        """The decimals to print."""
        return digits(cell.mean for cell in self.cells.values())


@dataclass(frozen=True)
class Pooled:
    """Several data sets together: verdicts on the differences to a baseline that all have, from 3 data sets on."""

    domain: str
    metric: str
    baseline: str
    verdicts: dict[str, Verdict]

    @property
    def digits(self) -> int:
        """The decimals to print."""
        return 4 if max(verdict.margin for verdict in self.verdicts.values()) < 0.5 else 2


@dataclass(frozen=True)
class Report:
    """The columns, the pooled verdicts on several of them, and remarks about missing runs and numbers."""

    columns: list[Column]
    notes: list[str]
    pooled: list[Pooled] = field(default_factory=list)
    items: list[Any] = field(default_factory=list)  # ItemReport
    remarks: dict[str | tuple[str, str], str] = field(default_factory=dict)  # on rows, or of a column's title and row

    def remark(self, column: Column, row: str) -> str | None:
        """Return the remark on a row of a column."""
        return self.remarks.get((column.title, row), self.remarks.get(row))


def summarise(
    runs: Sequence[Run],
    *,
    baseline: str | None = None,
    metrics: Sequence[str] = (),
    lower: bool = False,
    margin: float | None = None,
    searched: Mapping[str, str] | None = None,
) -> Report:
    """Compute the statistics of finished runs.

    Args:
        runs: those that are not done, and those of ``counterpoint tune``, are only counted in the notes.
        baseline: a row by its name or spec; by default a code base's own loss, or else InfoNCE, if there is one such.
        metrics: names of results. The default is the first one on a data set, a loss only if it is alone, and all of
            them in a comparison of scripts.
        lower: whether smaller numbers are better. Without it losses are not compared.
        margin: differences within it are of no interest, in the metric's unit; by default half a point of a hundred.
        searched: baselines by the names of runs' folders, such as the script's own loss, tuned beside the other rows.
    """
    searched = searched or {}
    done = sorted((run for run in runs if run.done and not run.tuning), key=lambda run: str(run.path))
    known_runs: dict[str, Run] = {}
    for run in done:
        twin = known_runs.setdefault(json.dumps([run.arguments, run.result], sort_keys=True), run)
        if twin is not run:
            warnings.warn(f"{run.path}: a copy of {twin.path}; left out", RuntimeWarning, stacklevel=1)
    done = [*known_runs.values()]
    if not done:
        if tuned := sum(run.tuning for run in runs):
            raise ValueError(f"{tuned} of {len(runs)} runs are of tune or race, {TUNED}, and no other is done.")
        raise ValueError(f"none of the {len(runs)} runs is done." if runs else "no runs there.")
    known = list(dict.fromkeys(name for run in done for name in run.record["result"]))
    for name in metrics:
        check_known("unknown metric", name, known)
    rows = _row_names(done)
    if baseline is not None:
        baseline = _resolve_baseline(baseline, rows, done)
    columns: list[Column] = []
    notes = list(_notes(runs, [run for run in done if run.folder.name not in searched], done))
    datasets: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in done:
        datasets[run.arguments["domain"], run.arguments["dataset"]].append(run)
    short = Counter((domain, dataset_name({"dataset": dataset})) for domain, dataset in datasets)
    for (domain, dataset), found in sorted(datasets.items()):
        name = dataset_name({"dataset": dataset})
        name = name if short[domain, name] == 1 else dataset  # two folders of the same name
        for setting, members in _settings(found):
            own = {searched[run.folder.name] for run in members if run.folder.name in searched}
            against = baseline or (own.pop() if len(own) == 1 else None)
            stored = dict.fromkeys(key for run in members for key in run.record["result"])
            usual = [*stored] if domain == "compare" else [min(stored, key=lambda one: one == LOSS)]  # as typed there
            for metric in metrics or usual:
                prefix = [name + setting] * (len(datasets) > 1 or len(metrics or usual) < 2 or bool(setting))
                title = " ".join(prefix + [metric] * (len(metrics or usual) > 1))
                columns += _columns(members, rows, (name, metric, setting, title), against, lower, margin)
                if missing := [rows[run.path] for run in members if math.isnan((run.result or {}).get(metric, 0.0))]:
                    named = listed(f"{row} ({plural(count, 'run')})" for row, count in Counter(missing).items())
                    notes.append(f"{name}: no {metric} could be computed for {named}: left out of all means.")
    if not all(column.tested for column in columns):
        notes.append(f"Means only: {statistics.MISSING}.")
    return Report(columns, notes, list(_pooled(columns)))


def _settings(runs: Sequence[Run]) -> Iterator[tuple[str, list[Run]]]:
    """Split the runs on one data set by all settings that are not the objective's; yield the differences, and the runs.

    Rows that train nothing, or another length on purpose, are in each part with which they agree in all other settings.
    """
    parts: dict[str, dict[str, Any]] = {}
    members: dict[str, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=_may_differ_in):
        settings = {key: value for key, value in run.arguments.items() if key not in IDENTIFYING}
        free = {*_may_differ_in(run)}
        shared = {key: {*part, *settings} - free for key, part in parts.items()} if free else {}
        alike = [key for key, names in shared.items() if all(parts[key].get(k) == settings.get(k) for k in names)]
        for key in alike or [json.dumps(settings, sort_keys=True)]:
            parts.setdefault(key, settings)
            members[key].append(run)
    differing = {k for part in parts.values() for k in part if len({json.dumps(p.get(k)) for p in parts.values()}) > 1}
    for key, part in parts.items():
        shown = {k: shlex.join(part[k]) if k == "script" else part[k] for k in sorted(differing) if k in part}
        named = ", ".join(f"{k}={value}" for k, value in shown.items())
        yield f" ({named})" * bool(named), members[key]


def _may_differ_in(run: Run) -> tuple[str, ...]:
    """Return the settings in which a run may differ from the others of its table."""
    cut = run.arguments.get("length") is not None or "lines" in run.arguments
    return NO_TRAINING if is_check(run) else LENGTH if cut else ()


def is_check(run: Run) -> bool:
    """Return whether the run trains nothing, such as the encoder before training."""
    return run.arguments["objective"] is None


def _weighs_nothing(run: Run) -> bool:
    """Return whether the run's whole objective has the factor 0: a script may still train something else."""
    return re.fullmatch(r"0\*[^+]+", str(run.arguments["objective"])) is not None


def _pooled(columns: Sequence[Column]) -> Iterator[Pooled]:
    """Yield the verdicts over the data sets of each domain that share a metric and a baseline's name."""
    groups: dict[tuple[str, str, str], list[Column]] = defaultdict(list)
    for column in columns:
        if column.baseline is not None and statistics.available():
            groups[column.domain, column.metric, column.baseline].append(column)
    for (domain, metric, baseline), members in groups.items():
        if len({column.dataset for column in members}) < len(members):
            continue  # the same data in several settings
        known: dict[str, list[Verdict]] = defaultdict(list)
        for column in members:
            for row, verdict in column.compared.items():
                known[row].append(verdict)
        if verdicts := statistics.pool(known, max(column.margin for column in members)):
            yield Pooled(domain, metric, baseline, verdicts)


def _row_names(runs: Iterable[Run]) -> Rows:
    """Return the row of each run: its name, and settings of its objective in which runs of it on the same data differ.

    Other settings in which they differ give them other columns.
    """
    seen: dict[tuple[str, str, str], set[str]] = defaultdict(set)  # values by row name, argument and table
    for run in runs:
        table = {key: value for key, value in run.arguments.items() if key not in (*OBJECTIVE, "seed")}
        for key, value in _other_arguments(run):
            seen[run.name, key, json.dumps(table, sort_keys=True)].add(json.dumps(value))
    differing = {(name, key) for (name, key, _), values in seen.items() if len(values) > 1}
    shown = {run.path: [f", {k}={x}" for k, x in _other_arguments(run) if (run.name, k) in differing] for run in runs}
    return {run.path: run.name + "".join(shown[run.path]) for run in runs}


def _other_arguments(run: Run) -> list[tuple[str, object]]:
    """Return the arguments of a run's objective that its name does not say."""
    spec = run.arguments["objective"] if run.arguments.get("label") else None
    others = {"objective": spec, **{key: run.arguments.get(key) for key in OBJECTIVE[2:]}}
    return [(key, others[key]) for key in sorted(others)]


def _resolve_baseline(baseline: str, rows: Rows, runs: Iterable[Run]) -> str:
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


def _columns(
    members: Sequence[Run], rows: Rows, heading: Sequence[str], baseline: str | None, lower: bool, margin: float | None
) -> Iterator[Column]:
    """Yield the column of the runs on one data set, if any of them has the metric.

    ``heading`` is the column's data set, metric, setting and title.
    """
    dataset, metric, setting, title = heading
    domain = members[0].arguments["domain"]
    runs: dict[str, dict[int, Run]] = defaultdict(dict)  # by row and seed
    for run in members:
        if not math.isnan((run.result or {}).get(metric, math.nan)):
            twin = runs[rows[run.path]].setdefault(run.arguments["seed"], run)
            if twin is not run and not is_check(run):  # these are stored once per length of training
                raise ValueError(f"{run.path} and {twin.path} are the same run, with other results: name only one.")
    values = {row: {seed: run.record["result"][metric] for seed, run in own.items()} for row, own in runs.items()}
    if not values:
        return
    first = {row: next(iter(own.values())) for row, own in runs.items()}
    comparable = metric != LOSS or lower
    if baseline is None and len(values) > 1:
        full = {row: run.arguments for row, run in first.items() if run.arguments.get("length") is None}
        own = [row for row, given in full.items() if given["objective"] == HOST]
        specs = {row: given["objective"] for row, given in full.items() if not given.get("ids")}
        likely = own or [row for row, spec in specs.items() if re.fullmatch(r"infonce(:[^+;]*)?", str(spec))]
        baseline = likely[0] if len(likely) == 1 else None
    if baseline not in values or not comparable:
        baseline = None
    trained = {row: values[row] for row, run in first.items() if not (is_check(run) or _weighs_nothing(run))}
    names = sorted(values, key=lambda row: (row in trained, row != baseline, row))
    if margin is None:
        margin = usual_margin(max(abs(fmean(seeds.values())) for seeds in values.values()))

    def against(row: str) -> dict[str, Verdict]:
        others = {other: trained[other] for other in names if other in trained and other != row}
        return statistics.compare(values[row], others, margin, test=statistics.available())

    differences = against(baseline) if baseline is not None else {}
    best = (min if lower else max)(trained, key=lambda row: fmean(trained[row].values()), default="")
    others = against(best).values() if comparable and trained else []
    separated = 0 < len(others) == len(trained) - 1 and all(verdict.different for verdict in others)
    separated &= best not in differences or differences[best].different  # corrected for other rows
    cells = {}
    for row in names:
        arguments = first[row].arguments
        spec = arguments["objective"] or first[row].name
        paper = paper_number(domain, arguments["dataset"], spec, metric, arguments, same_setup=True)
        check = None if row in trained or row == baseline else against(row) if comparable else {}
        best_one = row == best and separated
        cells[row] = Cell(list(runs[row].values()), values[row], differences.get(row), check, best_one, paper)
    majority, above_none = _majority(members, metric, trained)
    yield Column(domain, dataset, metric, setting, title, baseline, lower, margin, majority, above_none, cells)


def usual_margin(largest: float) -> float:
    """Return half a point of a hundred of the scale: 1, 10, 100, ... as the largest mean allows; of losses, too."""
    return 0.005 * 10.0 ** max(0, math.ceil(math.log10(max(largest, 1.0))))


def _majority(members: Sequence[Run], metric: str, rows: dict[str, dict[int, float]]) -> tuple[float | None, bool]:
    """Return the share of the largest class, if runs stored it, and whether no row with enough seeds is above it."""
    stored = [run.details.get("majority") for run in members]
    shares = [one[metric] for one in stored if isinstance(one, dict) and is_number(one.get(metric))]
    if not shares:
        return None, False
    base = dict.fromkeys((seed for seeds in rows.values() for seed in seeds), majority := fmean(shares))
    tested = [v for v in statistics.compare(base, rows, test=statistics.available()).values() if v.tested]
    return majority, bool(tested) and not any(verdict.different and verdict.difference > 0 for verdict in tested)


def _notes(runs: Sequence[Run], guessed: Sequence[Run], done: Sequence[Run]) -> Iterator[str]:
    if tuned := sum(run.tuning for run in runs):
        yield f"{tuned} of {len(runs)} runs are of tune or race, {TUNED}."
        data = {(run.arguments["dataset"], run.arguments.get("code")) for run in runs if run.tuning}  # as it was then
        own = (run.arguments for run in guessed if run.arguments["objective"] == HOST)
        if any((given["dataset"], given.get("code")) in data for given in own):
            yield f"{HOST} is your loss as it is, the other rows were chosen: --baseline names your tuned loss."
    if states := Counter(run.record["status"] for run in runs if not run.done and not run.tuning):
        counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        yield f"{states.total()} of {len(runs)} runs are left out: {counts}."
    for name in ("counterpoint", "torch"):
        if len(versions := sorted({run.record.get("versions", {}).get(name, "?") for run in done})) > 1:
            yield f"Runs of several versions of {name}: {listed(versions)}."


def digits(means: Iterable[float]) -> int:
    """Return the decimals to print: 2 for percentages, 1 for scores in the hundreds, 4 for losses, 3 digits below."""
    largest = max(map(abs, means))
    small = 0 < largest < 0.01
    return 2 - math.floor(math.log10(largest)) if small else 1 if largest >= 150 else 2 if largest >= 2 else 4


def plural(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count} {noun}{'s' * (count != 1)}"


def listed(names: Iterable[str]) -> str:
    """Return the first names of a list, and how many more there are."""
    names = list(names)
    return ", ".join(names[:MOST]) + f" and {len(names) - MOST} more" * (len(names) > MOST)
