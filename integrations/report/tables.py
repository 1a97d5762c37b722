"""The tables of a report: terminal, Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from html import escape
from itertools import groupby
from textwrap import wrap
from typing import Any, NamedTuple

from counterpoint import html
from counterpoint.names import visible

from ..store.files import finite
from .statistics import ALPHA, Verdict
from .summary import Cell, Column, Report, digits
from .words import overview_reading, pooled_reading, reading, with_interval

TITLE = "counterpoint report"
ENTITIES = {"<": "&lt;", "&": "&amp;"}

WIDTH = 120  # characters of an overview in a terminal

LEGEND = (
    "Differences are over paired seeds; verdicts are from paired t-tests from 3 seeds on, corrected for the rows of a "
    "table after Holm. Intervals are corrected too (Bonferroni; where only a later step of Holm finds a row, at its "
    "level), and agree with the verdicts: different means that the interval excludes 0, equivalent that it contains 0 "
    "and lies within the margin. In brackets: the smallest difference that these seeds find with 80% power. Rows that "
    "train nothing are compared with all trained rows, in families of their own. {} marks a row that is different from "
    "every other trained one."
)
VERDICT = tuple(field.name for field in fields(Verdict))
DIFFERENCE = "minus baseline [95%, corrected]"


def _mean(column: Column, cell: Cell) -> str:
    places = digits(column)
    spread = "" if math.isnan(cell.sd) else f" ± {cell.sd:.{places}f}"
    return f"{cell.mean:.{places}f}{spread} ({len(cell.values)})"


def _difference(column: Column, row: str) -> list[str]:
    """Return the difference with its interval, the verdict, and the corrected p-value."""
    places, verdict = digits(column), column.compared.get(row)
    if (compared := column.checks.get(row)) and column.tested:
        tested = [v for v in compared.values() if not math.isnan(v.p)]
        better = sum(v.different and (v.difference < 0) == column.lower for v in tested)
        return ["", f"beaten by {better} of {len(tested)} trained rows" if tested else "", ""]
    if verdict is None:
        return ["", "", ""]
    difference = with_interval(verdict.difference, verdict.low, verdict.high, places)
    if math.isnan(verdict.p):
        return [difference, "", ""]
    kind = f"{verdict.kind}, within the margin" if verdict.different and verdict.within else verdict.kind
    return [
        difference,
        f"{kind} ({verdict.detectable:.{places}f})",
        f"{verdict.corrected:.2g}",
    ]


class Table(NamedTuple):
    """A table as text: names of rows, header, a line per row, ``(line, cell)`` of the best, a sentence below."""

    title: str
    names: list[str]
    head: list[str]
    body: list[list[str]]
    best: list[tuple[int, int]]
    below: str
    columns: list[Column]


def tables(report: Report) -> Iterator[Table]:
    """Yield a table for each column; before the columns of a group, where there are several, an overview of them."""
    for title, columns in _groups(report):
        if len(columns) > 1:
            yield _overview(title, columns)
        yield from map(_table, columns)


def _groups(report: Report) -> Iterator[tuple[str, list[Column]]]:
    """Yield the columns of each domain, or all together if each domain has one."""
    domains = [(name, list(columns)) for name, columns in groupby(report.columns, key=lambda column: column.domain)]
    if len(domains) > 1 and len(domains) == len(report.columns):
        domains = [("all domains", list(report.columns))]
    yield from domains


def _overview(title: str, columns: list[Column]) -> Table:
    several = len({column.domain for column in columns}) > 1
    head = ["mean ± sd over seeds (their number)"]
    head += [_heading(column) if several else column.title for column in columns]
    names = list(dict.fromkeys(row for column in columns for row in column.cells))
    cells = [[column.cells.get(row) for column in columns] for row in names]
    body = [
        [row, *(_mean(column, cell) if cell else "" for column, cell in zip(columns, line, strict=True))]
        for row, line in zip(names, cells, strict=True)
    ]
    best = [(i, j) for i, line in enumerate(cells) for j, cell in enumerate(line, 1) if cell and cell.best]
    return Table(title, names, head, body, best, overview_reading(columns), columns)


def _table(column: Column) -> Table:
    compared = bool(column.compared) or any(column.checks.values())
    papers = any(cell.paper for cell in column.cells.values())
    head = [
        "",
        "mean ± sd (seeds)",
        *[DIFFERENCE, "verdict (detectable)", "p, corrected"] * compared,
        *["paper"] * papers,
    ]
    body = []
    for row, cell in column.cells.items():
        line = [row + " (baseline)" * (row == column.baseline), _mean(column, cell)]
        line += _difference(column, row) if compared else []
        line += [f"{cell.paper.printed} ({cell.paper.source})" if cell.paper else ""] if papers else []
        body.append(line)
    best = [(i, 1) for i, cell in enumerate(column.cells.values()) if cell.best]
    return Table(_heading(column), list(column.cells), head, body, best, "", [column])


def _heading(column: Column) -> str:
    return f"{column.domain}: {column.title}" + f", {column.metric}" * (column.metric not in column.title)


def opening(report: Report) -> list[str]:
    """Return the sentences with which a report opens: one for each column, then what data sets say together."""
    several = len({column.domain for column in report.columns}) > 1
    start = [f"{column.domain}: " * several for column in report.columns]
    return [*map(str.__add__, start, map(reading, report.columns)), *map(pooled_reading, report.pooled)]


def terminal(report: Report) -> str:
    """Return the report as plain text."""
    lines = [line for sentence in opening(report) for line in (*wrap(sentence, WIDTH), "")]
    for title, _, head, body, best, below, columns in tables(report):
        rows = [head, *body]
        shown = [[cell + " *" * ((i - 1, j) in best) for j, cell in enumerate(row)] for i, row in enumerate(rows)]
        widths = [max(len(row[j]) for row in shown) for j in range(len(shown[0]))]
        lines.append(f"== {title} ==")
        for block in _blocks(widths) if len(columns) > 1 else [range(len(widths))]:
            lines += ["  ".join(row[j].ljust(widths[j]) for j in block).rstrip() for row in shown]
        lines += ["", below, ""] if below else [""]
    return "\n".join(map(visible, [*lines, *report.notes, *wrap(LEGEND.format("*"), WIDTH)]))


def _blocks(widths: Sequence[int]) -> list[list[int]]:
    """Group the columns of an overview by what fits beside each other; the names begin each block."""
    blocks = [[0]]
    for j, width in enumerate(widths[1:], 1):
        if len(blocks[-1]) > 1 and sum(widths[i] + 2 for i in blocks[-1]) + width > WIDTH:
            blocks.append([0])
        blocks[-1].append(j)
    return blocks


def markdown(report: Report) -> str:
    """Return the report as Markdown."""
    lines = [line for sentence in opening(report) for line in (in_markdown(sentence), "")]
    for title, _, head, body, best, below, _ in tables(report):
        rows = [head, *body]
        shown = [
            [f"**{cell}**" if (i - 1, j) in best else in_markdown(cell) for j, cell in enumerate(row)]
            for i, row in enumerate(rows)
        ]
        lines += [f"### {in_markdown(title)}", ""]
        lines += [f"| {' | '.join(row)} |" for row in [shown[0], ["---"] * len(rows[0]), *shown[1:]]]
        lines += ["", in_markdown(below), ""] if below else [""]
    return "\n".join([*lines, *(in_markdown(note) + "\n" for note in report.notes), LEGEND.format("Bold")])


def in_markdown(text: str) -> str:
    """Return a text in one line, without HTML, links, formulas, code, or the end of a table's cell in it."""
    return re.sub(r"[\\|`$\[<&]", lambda found: ENTITIES.get(found[0], "\\" + found[0]), visible(text))


def notebook(report: Report) -> str:
    """Return the report as notebooks show it; a star marks the best rows."""
    parts = [f"<p>{escape(sentence)}</p>" for sentence in opening(report)]
    for title, _, head, body, best, below, _ in tables(report):
        rows = [[cell + " ★" * ((i, j) in best) for j, cell in enumerate(row)] for i, row in enumerate(body)]
        parts.append(html.table(head, rows, title, below))
    parts += [f"<p>{escape(note)}</p>" for note in [*report.notes, LEGEND.format("★")]]
    return "".join(parts)


def plain(report: Report) -> dict[str, Any]:
    """Return the report as plain JSON."""
    columns = []
    for column in report.columns:
        rows = []
        for row, cell in column.cells.items():
            numbers: dict[str, Any] = {"row": row, "objective": column.runs[row][0].arguments["objective"]}
            numbers |= {"n": len(cell.values), "mean": cell.mean, "sd": cell.sd, "best": cell.best}
            numbers["values"] = {str(seed): value for seed, value in sorted(cell.values.items())}
            numbers["difference"] = cell.difference and asdict(cell.difference)
            if row in column.checks:
                numbers["trained_minus_this"] = {other: asdict(v) for other, v in column.checks[row].items()}
            paper = cell.paper and {**asdict(cell.paper), "value": cell.paper.value, "spread": cell.paper.spread}
            rows.append({**numbers, "paper": paper})
        head = {key: x for key, x in vars(column).items() if key not in ("cells", "runs", "checks", "tested")}
        columns.append({**head, "reading": reading(column), "rows": rows})
    pooled = [{**asdict(one), "reading": pooled_reading(one)} for one in report.pooled]
    data: dict[str, Any] = finite({"columns": columns, "pooled": pooled, "notes": report.notes, "alpha": ALPHA})
    return data


def as_csv(report: Report) -> str:
    """Return the report as CSV, a line per row of each column."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    head = ["domain", "dataset", "metric", "row", "n", "mean", "sd", "best", "baseline"]
    head += [{"corrected": "p_corrected", "sd": "sd_difference"}.get(name, name) for name in VERDICT]
    writer.writerow([*head, "paper", "paper_spread", "paper_source"])
    for column in report.columns:
        for row, cell in column.cells.items():
            line = [column.domain, column.dataset, column.metric, row, len(cell.values), cell.mean, cell.sd]
            line += [int(cell.best), column.baseline]
            line += [getattr(cell.difference, name, "") for name in VERDICT]
            line += [cell.paper.value, cell.paper.spread, cell.paper.source] if cell.paper else [""] * 3
            writer.writerow([_csv_cell(x) for x in line])
    return out.getvalue().rstrip("\n")


def _csv_cell(value: Any) -> Any:
    """Return a number or a text as CSV shows it; an apostrophe keeps spreadsheets from reading a text as a formula."""
    if isinstance(value, float) and math.isnan(value):
        return ""
    if not isinstance(value, str):
        return value
    return f"'{visible(value)}" if value.lstrip().startswith(("=", "+", "-", "@")) else visible(value)
