"""The tables of a report: terminal, Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any, NamedTuple

from ..store.files import finite
from .summary import LEVEL, Cell, Column, Report, digits
from .words import reading, together

TITLE = "counterpoint report"

WIDTH = 120  # of an overview in a terminal


def _mean(column: Column, cell: Cell) -> str:
    places = digits(column)
    spread = "" if math.isnan(cell.sd) else f" ± {cell.sd:.{places}f}"
    return f"{cell.mean:.{places}f}{spread} ({len(cell.values)})"


def _gap(column: Column, cell: Cell) -> tuple[str, str]:
    """The difference with its interval, and the corrected p-value."""
    if (one := cell.difference) is None:
        return "", ""
    places = digits(column)
    interval = "" if math.isnan(one.low) else f" [{one.low:+.{places}f}, {one.high:+.{places}f}]"
    return f"{one.mean:+.{places}f}{interval}", f"{one.corrected:.2g}" if one.pairs > 1 else ""


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
    return Table(title, names, ["mean ± sd over seeds (their number)", *heads], body, best, together(columns), columns)


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
    return Table(_heading(column), list(column.cells), head, body, best, reading(column), [column])


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
        about = {key: getattr(column, key) for key in ("domain", "dataset", "metric", "baseline")}
        about["reading"] = reading(column)
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
