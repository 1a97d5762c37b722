"""The tables of a report: terminal, Markdown and JSON."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from textwrap import wrap
from typing import NamedTuple

from counterpoint.plugins.printing import visible

from ..store.files import finite
from .statistics import ALPHA
from .summary import Cell, Column, Pooled, Report
from .words import overview_reading, pooled_reading, reading, with_interval

TITLE = "counterpoint report"
ENTITIES = {"<": "&lt;", "&": "&amp;"}

WIDTH = 120  # characters of an overview in a terminal

LEGEND = (
    "Differences are over paired seeds; intervals and verdicts are from paired t-tests (3 seeds or more), corrected "
    "for a table's rows after Holm: the interval of higher and lower excludes 0, that of equivalent lies within the "
    "margin. In brackets: the smallest difference that these seeds find with 80% power. Rows that train nothing are "
    "compared with all others."
)
BEST = " {} marks the best row, which is different from every other trained one."
DIFFERENCE = ["minus baseline [95%, corrected]", "verdict (detectable)", "p, corrected"]


class Table(NamedTuple):
    """A table as text: names of rows, header, a line per row, a sentence below.

    ``column`` is what it shows, None of an overview of several.
    """

    title: str
    names: list[str]
    head: list[str]
    body: list[list[str]]
    below: str = ""
    column: Column | None = None


def tables(report: Report, best: str) -> Iterator[Table]:
    """Yield a table for each column; before those of a domain, or of domains with one each, an overview of them.

    ``best`` formats the mean of a row that is the best.
    """
    groups = [(name, list(columns)) for name, columns in groupby(report.columns, key=lambda column: column.domain)]
    if len(groups) > 1 and len(groups) == len(report.columns):
        groups = [("all domains", report.columns)]
    for title, columns in groups:
        if len(columns) > 1:
            yield _overview(title, columns, [pooled for pooled in report.pooled if pooled.domain == title], best)
        for table in (_table(column, best) for column in columns):
            for row, line in zip(table.names, table.body, strict=True):
                line[0] += f" ({remark})" if table.column and (remark := report.remark(table.column, row)) else ""
            shown = [j for j in range(len(table.head)) if not j or any(line[j] for line in table.body)]  # not empty
            head, *body = ([line[j] for j in shown] for line in (table.head, *table.body))
            yield table._replace(head=head, body=body)


def _overview(title: str, columns: Sequence[Column], pooled: Iterable[Pooled], best: str) -> Table:
    several = len({column.domain for column in columns}) > 1
    head = ["mean ± sd over seeds (their number)"]
    head += [_heading(column) if several else column.title for column in columns]
    body = {row: [row] for column in columns for row in column.cells}
    for row, line in body.items():
        line += [_mean(column, column.cells[row], best) if row in column.cells else "" for column in columns]
    for one in pooled:
        name, texts = pooled_numbers(one)
        head.append(name)
        for row, line in body.items():
            line.append(texts.get(row, ""))
    return Table(title, list(body), head, list(body.values()), overview_reading(columns))


def pooled_numbers(pooled: Pooled) -> tuple[str, dict[str, str]]:
    """Return the head of the column of several data sets together, and the text of each row."""
    differences = {row: with_interval(v.difference, v.low, v.high, pooled.digits) for row, v in pooled.verdicts.items()}
    return f"{pooled.metric}, {DIFFERENCE[0]}, random effects", differences


def _table(column: Column, best: str) -> Table:
    compared = bool(column.compared) or any(column.checks.values())
    papers = any(cell.paper for cell in column.cells.values())
    head = ["", "mean ± sd (seeds)", *DIFFERENCE * compared, *["paper"] * papers]
    body = []
    for row, cell in column.cells.items():
        line = [row + " (baseline)" * (row == column.baseline), _mean(column, cell, best)]
        line += _difference(column, cell) if compared else []
        line += [f"{cell.paper.printed} ({cell.paper.source})" if cell.paper else ""] * papers
        body.append(line)
    return Table(_heading(column), list(column.cells), head, body, column=column)


def _heading(column: Column) -> str:
    return f"{column.domain}: {column.title}" + f", {column.metric}" * (column.metric not in column.title)


def _mean(column: Column, cell: Cell, best: str) -> str:
    spread = "" if math.isnan(cell.sd) else f" ± {cell.sd:.{column.digits}f}"
    text = f"{cell.mean:.{column.digits}f}{spread} ({len(cell.values)})"
    return best.format(text) if cell.best else text


def _difference(column: Column, cell: Cell) -> list[str]:
    """Return the difference with its interval, the verdict, and the corrected p-value."""
    if cell.check and column.tested:
        tested = [v for v in cell.check.values() if v.tested]
        better = [(v.difference < 0) == column.lower for v in tested if v.different]
        text = f"beaten by {sum(better)} of {len(tested)} trained rows, ahead of {len(better) - sum(better)}"
        return ["", text if tested else "", ""]
    if (verdict := cell.difference) is None:
        return ["", "", ""]
    difference = with_interval(verdict.difference, verdict.low, verdict.high, column.digits)
    difference += f", {verdict.pairs} seeds" * (verdict.pairs < len(cell.values))
    if not verdict.tested:
        return [difference, "", ""]
    kind = verdict.word + ", within the margin" * (verdict.different and verdict.within)
    return [difference, f"{kind} ({verdict.detectable:.{column.digits}f})", f"{verdict.corrected:.2g}"]


def opening(report: Report) -> list[str]:
    """Return the sentences with which a report opens, one for each column."""
    several = len({column.domain for column in report.columns}) > 1
    return [f"{column.domain}: " * several + reading(column) for column in report.columns]


def together(report: Report) -> list[str]:
    """Return the sentences on several data sets together, and on the items of each."""
    several = [pooled_reading(pooled) for pooled in report.pooled]
    return several + [sentence for one in report.items for sentence in one.sentences()]


def legend(report: Report, mark: str) -> str:
    """Return how the tables were computed; empty without a table, and where nothing is tested."""
    starred = any(cell.best for column in report.columns for cell in column.cells.values())
    return (LEGEND + BEST.format(mark) * starred) * any(column.tested for column in report.columns)


def terminal(report: Report) -> str:
    """Return the report as plain text."""
    lines = [line for sentence in (*opening(report), *together(report)) for line in (*wrap(sentence, WIDTH), "")]
    for table in tables(report, "{} *"):
        rows = [table.head, *table.body]
        widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
        lines.append(f"== {table.title} ==")
        for block in _blocks(widths) if table.column is None else [range(len(widths))]:
            lines += ["  ".join(row[j].ljust(widths[j]) for j in block).rstrip() for row in rows]
        lines += ["", table.below, ""] if table.below else [""]
    return "\n".join(map(visible, [*lines, *report.notes, *wrap(legend(report, "*"), WIDTH)]))


def _blocks(widths: Sequence[int]) -> list[list[int]]:
    """Group the columns of an overview into blocks that fit the width; the names begin each block."""
    blocks = [[0]]
    for j, width in enumerate(widths[1:], 1):
        if len(blocks[-1]) > 1 and sum(widths[i] + 2 for i in blocks[-1]) + width > WIDTH:
            blocks.append([0])
        blocks[-1].append(j)
    return blocks


def markdown(report: Report) -> str:
    """Return the report as Markdown."""
    lines = [line for sentence in (*opening(report), *together(report)) for line in (in_markdown(sentence), "")]
    for table in tables(report, "**{}**"):
        rows = [map(in_markdown, table.head), ["---"] * len(table.head), *(map(in_markdown, row) for row in table.body)]
        lines += [f"### {in_markdown(table.title)}", "", *(f"| {' | '.join(row)} |" for row in rows)]
        lines += ["", in_markdown(table.below), ""] if table.below else [""]
    return "\n".join([*lines, *(in_markdown(note) + "\n" for note in report.notes), legend(report, "Bold")])


def in_markdown(text: str) -> str:
    """Return a text in one line, without HTML, links, formulas, code, or the end of a table's cell in it."""
    return re.sub(r"[\\|`$\[<&]", lambda found: ENTITIES.get(found[0], "\\" + found[0]), visible(text))


def latex(report: Report) -> str:
    """Return a table per column for booktabs, bold where a test finds the row better than the baseline."""
    lines = ["% needs booktabs; bold: found to be better than the baseline, which a larger mean alone is not"]
    lines += [
        f"% {line}"
        for note in (*opening(report), *together(report), *report.notes)
        for line in wrap(visible(note), WIDTH)
    ]
    for column in report.columns:
        head = ["", column.metric, f"minus {column.baseline} [95%, corrected]" if column.baseline else ""]
        lines += [f"% {visible(_heading(column))}", r"\begin{tabular}{lrr}", r"\toprule", _latex_row(head), r"\midrule"]
        for row, cell in column.cells.items():
            verdict = cell.difference
            better = verdict is not None and verdict.different and (verdict.difference < 0) == column.lower
            name = f"{row} ({remark})" if (remark := report.remark(column, row)) else row
            lines.append(_latex_row([name, _mean(column, cell, "{}"), _difference(column, cell)[0]], bold=better))
        lines += [r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join(lines)


def _latex_row(texts: Iterable[str], bold: bool = False) -> str:
    words = {"\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}", "±": r"$\pm$"}
    safe = (re.sub(r"[\\{}$&#^_~%±]", lambda m: words.get(m[0], f"\\{m[0]}"), visible(text)) for text in texts)
    return " & ".join(rf"\textbf{{{text}}}" if bold else text for text in safe) + r" \\"


def plain(report: Report) -> dict[str, object]:
    """Return the report as plain JSON."""
    columns = []
    for column in report.columns:
        rows = []
        for row, cell in column.cells.items():
            numbers: dict[str, object] = {"row": row, "objective": cell.runs[0].arguments["objective"]}
            numbers |= {"n": len(cell.values), "mean": cell.mean, "sd": cell.sd, "best": cell.best}
            numbers["values"] = {str(seed): value for seed, value in sorted(cell.values.items())}
            numbers["difference"] = cell.difference and asdict(cell.difference)
            if cell.check is not None:
                numbers["trained_minus_this"] = {other: asdict(v) for other, v in cell.check.items()}
            paper = cell.paper and {**asdict(cell.paper), "value": cell.paper.value, "spread": cell.paper.spread}
            rows.append({**numbers, "paper": paper, "remark": report.remark(column, row)})
        head = {key: value for key, value in vars(column).items() if key != "cells"}
        columns.append({**head, "reading": reading(column), "rows": rows})
    pooled = [{**asdict(one), "reading": pooled_reading(one)} for one in report.pooled]
    data: dict[str, object] = finite({"columns": columns, "pooled": pooled, "notes": report.notes, "alpha": ALPHA})
    return data | ({"items": [one.plain() for one in report.items]} if report.items else {})
