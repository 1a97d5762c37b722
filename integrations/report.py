"""``counterpoint report``: from folders of runs to tables, plain sentences and pictures.

A table has an objective per row and a data set per column (with several metrics: a data set's metric). Every
difference to the baseline is taken over paired seeds, with an interval from :func:`paired.bootstrap_interval` and a
test, :func:`paired.sign_flip_p` after Holm's correction over the column's rows. A row is marked as the best only if
that test, corrected over all other rows, tells it from each of them.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import counterpoint as cp
from counterpoint.hyper import nearest
from counterpoint.integrations.paired import bootstrap_interval, holm, sign_flip_p
from counterpoint.integrations.papers import PaperNumber, paper_number
from counterpoint.integrations.runs import Run, atomic, find_runs, finite

LEVEL = 0.05
TITLE = "counterpoint report"
WIDTH = 120  # of an overview in a terminal
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

    @property
    def reading(self) -> str:
        """What the statistics say, in one sentence."""
        return _reading(self)


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


# ---- in words ----------------------------------------------------------------------------------


def _reading(column: Column) -> str:
    said = f"{column.title}: "
    compared = {row: cell.difference for row, cell in column.cells.items() if cell.difference is not None}
    if column.baseline is None:
        if len(column.cells) == 1:
            return said + "one row, nothing to compare."
        if column.metric == LOSS:
            return said + "each objective has a scale of its own, so losses are not compared (--lower does)."
        return said + "no baseline (--baseline names one)."
    if not compared:
        return said + f"nothing shares a seed with {column.baseline}."
    pairs = sorted({one.pairs for one in compared.values()})
    seeds = f"{pairs[0]}" if len(pairs) == 1 else f"{pairs[0]} to {pairs[-1]}"
    said += f"against {column.baseline}, {seeds} paired seed{'s' * (pairs != [1])}, "
    if pairs == [1]:
        return said + "no interval and no test: one seed says nothing about chance."
    parts = []
    for word, sign in (("higher", 1), ("lower", -1)):
        rows = [
            f"{row} (by {abs(one.mean):.{_digits(column)}f})"
            for row, one in compared.items()
            if one.found and one.mean * sign > 0
        ]
        if rows:
            parts.append(f"{word}: {', '.join(rows)}")
    unclear = [row for row, one in compared.items() if not one.found]
    if unclear:
        whom = ", ".join(unclear) if len(unclear) < len(compared) else f"any of {len(unclear)} rows"
        parts.append(f"no difference found for {whom if len(compared) > 1 else unclear[0]}")
    least = _seeds_needed(len(compared))
    if unclear and pairs[-1] < least:
        tests = f"{len(compared)} comparisons need" if len(compared) > 1 else "one comparison needs"
        parts.append(f"with so few seeds none could be: {tests} {least}")
    parts += _papers_differences(column)
    return said + "; ".join(parts) + "."


def _together(columns: Sequence[Column]) -> str:
    """What the statistics of several columns say."""
    cells = [(column, row, cell) for column in columns for row, cell in column.cells.items()]
    tested = [cell.difference for _, _, cell in cells if cell.difference is not None]
    found = sum(one.found for one in tested)
    best = [f"{row} ({column.title})" for column, row, cell in cells if cell.best]
    said = f"{_many(len(tested), 'comparison')} with a baseline in {_many(len(columns), 'column')}, "
    said += f"{_many(found, 'difference')} found"
    if tested and not any(map(_can_find, columns)):
        said += " (no column has the seeds to find one)"
    return said + f"; told from every other row: {', '.join(best) or 'none'}."


def _papers_differences(column: Column) -> Iterator[str]:
    """Where a paper has both numbers in one table: its difference, and whether ours agrees."""
    base = column.cells[column.baseline].paper if column.baseline else None
    for row, cell in column.cells.items():
        paper, ours = cell.paper, cell.difference
        if base is None or paper is None or ours is None or paper == base or paper.measure != base.measure:
            continue
        if (paper.paper, paper.table) == (base.paper, base.table):
            theirs = paper.value - base.value
            where = "in" if ours.low <= theirs <= ours.high else "not in"
            yield f"the paper's {theirs:+.{_digits(column)}f} for {row} is {where} our interval"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _can_find(column: Column) -> bool:
    """Whether a column has so many pairs that some p-value could fall below the level."""
    pairs = [cell.difference.pairs for cell in column.cells.values() if cell.difference is not None]
    return bool(pairs) and max(pairs) >= _seeds_needed(len(pairs))


def _seeds_needed(tests: int) -> int:
    """The pairs from which the smallest of so many corrected p-values can be below the level."""
    return next(n for n in range(1, 100) if tests * 2.0 ** (1 - n) < LEVEL)


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
        named = ", ".join(f"{row} ({_many(rows.count(row), 'run')})" for row in dict.fromkeys(rows))
        yield f"{here[0].arguments['dataset']}: no {metric} could be computed for {named}: left out of all means."


# ---- in tables ---------------------------------------------------------------------------------


def _digits(column: Column) -> int:
    """Decimals that show a hundredth of a percent as such, a score without any, and a loss with more."""
    largest = max(abs(cell.mean) for cell in column.cells.values())
    return 1 if largest >= 150 else 2 if largest >= 2 else 4


def _mean(column: Column, cell: Cell) -> str:
    digits = _digits(column)
    spread = "" if math.isnan(cell.sd) else f" ± {cell.sd:.{digits}f}"
    return f"{cell.mean:.{digits}f}{spread} ({len(cell.values)})"


def _gap(column: Column, cell: Cell) -> tuple[str, str]:
    """The difference with its interval, and the corrected p-value."""
    if (one := cell.difference) is None:
        return "", ""
    digits = _digits(column)
    interval = "" if math.isnan(one.low) else f" [{one.low:+.{digits}f}, {one.high:+.{digits}f}]"
    return f"{one.mean:+.{digits}f}{interval}", f"{one.corrected:.2g}" if one.pairs > 1 else ""


class Table(NamedTuple):
    """A table as text: the rows' names, a header and a line per row, the places of the best ones, words below."""

    title: str
    names: list[str]
    head: list[str]
    body: list[list[str]]
    best: list[tuple[int, int]]
    below: str
    columns: list[Column]


def tables(report: Report) -> Iterator[Table]:
    """An overview of the columns that stand side by side, where there are several, and a table for each."""
    for title, columns in _groups(report):
        if len(columns) > 1:
            yield _overview(title, columns)
        yield from map(_table, columns)


def _groups(report: Report) -> Iterator[tuple[str, list[Column]]]:
    """The columns of each domain, or all together where each domain has one."""
    domains = [(name, list(columns)) for name, columns in groupby(report.columns, key=lambda column: column.domain)]
    if len(domains) > 1 and len(domains) == len(report.columns):
        domains = [("all domains", list(report.columns))]
    yield from domains


def _overview(title: str, columns: list[Column]) -> Table:
    several = len({column.domain for column in columns}) > 1
    heads = [_heading(column) if several else column.title for column in columns]
    names = list(dict.fromkeys(row for column in columns for row in column.cells))
    cells = [[column.cells.get(row) for column in columns] for row in names]
    body = [
        [row, *(_mean(column, cell) if cell else "" for column, cell in zip(columns, of, strict=True))]
        for row, of in zip(names, cells, strict=True)
    ]
    best = [(i, j) for i, of in enumerate(cells) for j, cell in enumerate(of, 1) if cell and cell.best]
    return Table(title, names, ["mean ± sd over seeds (their number)", *heads], body, best, _together(columns), columns)


def _table(column: Column) -> Table:
    compared, papers = column.baseline is not None, any(cell.paper for cell in column.cells.values())
    head = ["", "mean ± sd (seeds)", *["minus baseline [95%]", "p, corrected"] * compared, *["paper"] * papers]
    body = []
    for row, cell in column.cells.items():
        line = [row + " (baseline)" * (row == column.baseline), _mean(column, cell)]
        line += list(_gap(column, cell)) if compared else []
        line += [f"{cell.paper.printed} ({cell.paper.source})" if cell.paper else ""] if papers else []
        body.append(line)
    best = [(i, 1) for i, cell in enumerate(column.cells.values()) if cell.best]
    return Table(_heading(column), list(column.cells), head, body, best, column.reading, [column])


def _heading(column: Column) -> str:
    return f"{column.domain}: {column.title}" + f", {column.metric}" * (column.metric not in column.title)


LEGEND = (
    "Differences are over paired seeds: bootstrap intervals (Student's up to 7 pairs), uncorrected; p from a "
    "sign-flip test, Holm-corrected within a column. {} marks a row that this test tells from every other one."
)


def terminal(report: Report) -> str:
    lines = []
    for title, _, head, body, best, below, columns in tables(report):
        rows = [head, *body]
        shown = [[cell + " *" * ((i - 1, j) in best) for j, cell in enumerate(row)] for i, row in enumerate(rows)]
        widths = [max(len(row[j]) for row in shown) for j in range(len(shown[0]))]
        lines.append(f"== {title} ==")
        for block in _blocks(widths) if len(columns) > 1 else [range(len(widths))]:
            lines += ["  ".join(row[j].ljust(widths[j]) for j in block).rstrip() for row in shown]
        lines += ["", below, ""] if below else [""]
    return "\n".join([*lines, *report.notes, LEGEND.format("*")])


def _blocks(widths: Sequence[int]) -> list[list[int]]:
    """The columns of an overview that fit beside each other; the first one, of names, begins each block."""
    blocks = [[0]]
    for j, width in enumerate(widths[1:], 1):
        if len(blocks[-1]) > 1 and sum(widths[i] + 2 for i in blocks[-1]) + width > WIDTH:
            blocks.append([0])
        blocks[-1].append(j)
    return blocks


def markdown(report: Report) -> str:
    lines = []
    for title, _, head, body, best, below, _ in tables(report):
        rows = [head, *body]
        shown = [
            [f"**{cell}**" if (i - 1, j) in best else cell.replace("|", r"\|") for j, cell in enumerate(row)]
            for i, row in enumerate(rows)
        ]
        lines += [f"### {title}", ""]
        lines += [f"| {' | '.join(row)} |" for row in [shown[0], ["---"] * len(rows[0]), *shown[1:]]]
        lines += ["", below, ""] if below else [""]
    return "\n".join([*lines, *(note + "\n" for note in report.notes), LEGEND.format("Bold")])


def plain(report: Report) -> dict[str, Any]:
    """The report as plain JSON."""
    columns = []
    for column in report.columns:
        rows = []
        for row, cell in column.cells.items():
            one: dict[str, Any] = {"row": row, "objective": column.runs[row][0].arguments["objective"]}
            one |= {"n": len(cell.values), "mean": cell.mean, "sd": cell.sd, "best": cell.best}
            one["values"] = {str(seed): value for seed, value in sorted(cell.values.items())}
            one["difference"] = cell.difference and asdict(cell.difference)
            paper = cell.paper and {**asdict(cell.paper), "value": cell.paper.value, "spread": cell.paper.spread}
            rows.append({**one, "paper": paper})
        about = {key: getattr(column, key) for key in ("domain", "dataset", "metric", "baseline", "reading")}
        columns.append({**about, "rows": rows})
    return {"columns": finite(columns), "notes": report.notes, "level": LEVEL}


def as_csv(report: Report) -> str:
    """A line per row of each column."""
    out = io.StringIO()
    first = ["domain", "dataset", "metric", "row", "n", "mean", "sd", "best", "baseline"]
    gap = ["pairs", "difference", "low", "high", "p", "p_corrected"]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*first, *gap, "paper", "paper_spread", "paper_source"])
    for column in report.columns:
        for row, cell in column.cells.items():
            line = [column.domain, column.dataset, column.metric, row, len(cell.values), cell.mean, cell.sd]
            line += [int(cell.best), column.baseline]
            line += asdict(cell.difference).values() if cell.difference else [""] * 6
            line += [cell.paper.value, cell.paper.spread, cell.paper.source] if cell.paper else [""] * 3
            writer.writerow(["" if isinstance(x, float) and math.isnan(x) else x for x in line])
    return out.getvalue().rstrip("\n")


def html(report: Report, title: str = TITLE, intro: str = "") -> str:
    """The report as a page, see :mod:`counterpoint.integrations.report_html`."""
    from counterpoint.integrations import report_html

    return report_html.page(report, title, intro)


RENDER: dict[str, Callable[[Report], str]] = {
    "terminal": terminal,
    "markdown": markdown,
    "html": html,
    "csv": as_csv,
    "json": lambda report: json.dumps(plain(report), indent=1, allow_nan=False),
}


# ---- counterpoint report -----------------------------------------------------------------------


def show(found: Sequence[Run], as_json: bool) -> None:
    """What a ``train`` command prints: the runs for machines, or the report of all their results for people."""
    if as_json:
        print(json.dumps([finite(run.flat()) for run in found], indent=1, allow_nan=False))
    elif found:
        metrics = list(dict.fromkeys(name for run in found for name in run.record["result"]))
        print(terminal(summarise(found, metrics=metrics)))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUNS", help="folders of runs, at any depth")
    add("--baseline", metavar="SPEC", help="the row that the others are compared with (InfoNCE, where there is one)")
    add("--metric", action="append", default=[], metavar="NAME", help="a result, may be repeated (the first there is)")
    add("--lower", action="store_true", help="small numbers are the good ones")
    add("--out", type=Path, metavar="FOLDER", help="write report.html, .md, .csv and .json, and pictures")
    add("--format", choices=RENDER, default="terminal", help="of what is printed (%(default)s)")
    add("--json", dest="format", action="store_const", const="json", help="print JSON")


def command(given: argparse.Namespace) -> int:
    found = find_runs(given.runs)
    if not found:
        raise ValueError(f"no runs in {', '.join(map(str, given.runs))}: no folder there has a run.json.")
    report = summarise(found, baseline=given.baseline, metrics=given.metric, lower=given.lower)
    print(RENDER[given.format](report))
    if given.out is not None:
        for path in write(report, given.out):
            print(f"wrote {path}", file=sys.stderr)
    return 0


def write(
    report: Report,
    folder: str | Path,
    formats: Sequence[str] = ("markdown", "csv", "json", "html"),
    title: str = TITLE,
    intro: str = "",
    pictures: bool = True,
) -> Iterator[Path]:
    """Writes the report in these formats, and the pictures as PNG; yields the files as they are done.

    ``title`` and ``intro`` are the page's.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in formats:
        path = folder / f"report.{'md' if name == 'markdown' else name}"
        text = html(report, title, intro) if name == "html" else RENDER[name](report)
        with atomic(path) as file:
            file.write(text.encode() + b"\n")
        yield path
    if not pictures:
        return
    from counterpoint.integrations import report_plots

    try:
        yield from report_plots.draw(report, folder)
    except ImportError as error:
        print(f"no pictures: {error}", file=sys.stderr)
