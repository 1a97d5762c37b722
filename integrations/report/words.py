"""The statistics of a report in plain sentences."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .statistics import FEWEST, Verdict
from .summary import LOSS, Column, Pooled, digits, plural

UNTRAINED = re.compile("untrained|before training|no pre-train|random encoder", re.IGNORECASE)


def reading(column: Column) -> str:
    """Return what the statistics of a column say: what training is worth, then the verdicts on objectives."""
    parts = [*_checks(column), *_objectives(column), *_paper_differences(column)]
    return f"{column.title}: {'; '.join(parts)}."


def _objectives(column: Column) -> Iterator[str]:
    compared = column.compared
    if len(column.cells) - len(column.checks) == 1:
        if not any(column.checks.values()):
            yield "one row, nothing to compare"
    elif column.baseline is None:
        if column.metric == LOSS and not column.lower:
            yield "each objective has its own scale, so losses are not compared (--lower compares them)"
        else:
            yield "no baseline (--baseline names one)"
    elif not compared:
        yield f"nothing shares a seed with {column.baseline}"
    else:
        pairs = sorted({verdict.pairs for verdict in compared.values()})
        seeds = f"{pairs[0]}" if len(pairs) == 1 else f"{pairs[0]} to {pairs[-1]}"
        start = f"against {column.baseline}, {seeds} paired seed{'s' * (pairs != [1])}, "
        if not column.tested:
            yield start + "no intervals and no tests without scipy"
        elif pairs[-1] < FEWEST:
            yield start + f"no verdict: {FEWEST} seeds are the fewest that allow a test"
        else:
            yield start + "; ".join(verdicts(compared, digits(column)))


def with_interval(difference: float, low: float, high: float, places: int = 1, **_: Any) -> str:
    """Return a difference with its interval, if it has one."""
    interval = "" if math.isnan(low) else f" [{low:+.{places}f}, {high:+.{places}f}]"
    return f"{difference:+.{places}f}{interval}"


def verdicts(compared: Mapping[str, Verdict], places: int) -> Iterator[str]:
    """Yield the rows of each verdict, and what could have been found."""
    for word, sign in (("higher", 1), ("lower", -1)):
        rows = [
            f"{_quoted(row)} (by {abs(v.difference):.{places}f}{', within the margin' * v.within})"
            for row, v in compared.items()
            if v.different and v.difference * sign > 0
        ]
        if rows:
            yield f"{word}: {', '.join(rows)}"
    margin = next(iter(compared.values())).margin
    if equivalent := [row for row, v in compared.items() if v.kind == "equivalent"]:
        yield f"equivalent within {margin:.{places}f}: {_listed(equivalent)}"
    if unclear := {row: v for row, v in compared.items() if v.kind == "cannot tell"}:
        yield f"cannot tell: {_listed(unclear)}{_findable(unclear.values(), places)}"


def _listed(rows: Iterable[str]) -> str:
    return ", ".join(map(_quoted, rows))


def _quoted(row: str) -> str:
    """Return a row as a list names it: in quotation marks if its name has a comma."""
    return f'"{row}"' if "," in row else row


def _findable(unclear: Iterable[Verdict], places: int) -> str:
    sizes = [f"{x:.{places}f}" for x in sorted(v.detectable for v in unclear if v.pairs >= FEWEST)]
    if not sizes:
        return ""
    return f" (differences from {sizes[0]}{f' to {sizes[-1]}' * (sizes[0] != sizes[-1])} on would be found)"


def _checks(column: Column) -> Iterator[str]:
    """Yield what the rows that train nothing, and the largest class, say about the data set."""
    places = digits(column)
    if column.uninformative:
        yield f"this data set tells nothing: no row is found above the majority class ({column.majority:.{places}f})"
    checks = {check: compared for check, compared in column.checks.items() if compared and column.tested}
    if checks and all(v.pairs < FEWEST for compared in checks.values() for v in compared.values()):
        yield f"whether training helps is tested from {FEWEST} seeds on"
        return
    for check, compared in sorted(checks.items(), key=lambda item: UNTRAINED.search(item[0]) is None):
        yield check_reading(check, compared, column)


def check_reading(check: str, compared: Mapping[str, Verdict], column: Column) -> str:
    """Return what trained rows gain over one that trains nothing."""
    places, sign = digits(column), -1 if column.lower else 1
    untrained = UNTRAINED.search(check) is not None
    better = {row: v for row, v in compared.items() if v.different and v.difference * sign > 0}
    worse = {row: v for row, v in compared.items() if v.different and v.difference * sign < 0}
    unclear = {row: v for row, v in compared.items() if not v.different}
    parts = []
    if better:
        parts.append(f"{'training is worth' if untrained else f'over {check},'} {_range(better, places)}")
        if len(better) < len(compared):
            parts[0] += f" for {_listed(better)}"
    if worse:
        start = "training made it worse" if untrained else f"worse than {check}"
        sizes = (f"{_quoted(row)} (by {abs(v.difference):.{places}f})" for row, v in worse.items())
        parts.append(f"{start}: {', '.join(sizes)}")
    if unclear:
        rows = _listed(unclear) if len(unclear) < len(compared) or len(compared) == 1 else "any row"
        what = "whether training helps" if untrained else f"whether it is better than {check}"
        parts.append(f"cannot tell {what}: {rows}{_findable(unclear.values(), places)}")
    return "; ".join(parts)


def _range(compared: Mapping[str, Verdict], places: int) -> str:
    sizes = sorted(v.difference for v in compared.values())
    low, high = f"{sizes[0]:+.{places}f}", f"{sizes[-1]:+.{places}f}"
    return low if low == high else f"{low} to {high}"


def overview_reading(columns: Sequence[Column]) -> str:
    """Return what the statistics of several columns say together."""
    cells = [(column, row, cell) for column in columns for row, cell in column.cells.items()]
    differences = [verdict for column in columns for verdict in column.compared.values()]
    text = f"{plural(len(differences), 'comparison')} with a baseline in {plural(len(columns), 'column')}, "
    if not all(column.tested for column in columns):
        return text + "not tested without scipy."
    counts = (sum(v.kind == kind for v in differences) for kind in ("different", "equivalent", "cannot tell"))
    text += "{} different, {} equivalent, {} cannot tell".format(*counts)
    best = [f"{row} ({column.title})" for column, row, cell in cells if cell.best]
    return text + f"; separated from every other row: {', '.join(best) or 'none'}."


def pooled_reading(pooled: Pooled) -> str:
    """Return what several data sets say together."""
    parts = []
    if pooled.verdicts:
        counts = sorted({v.pairs for v in pooled.verdicts.values()})
        sets = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        places = 4 if max(v.margin for v in pooled.verdicts.values()) < 0.5 else 2
        intervals = ", ".join(
            f"{row} {with_interval(v.difference, v.low, v.high, places)}" for row, v in pooled.verdicts.items()
        )
        said = "; ".join(verdicts(pooled.verdicts, places))
        parts.append(f"over {sets} data sets against {pooled.baseline}: {said}; random effects: {intervals}")
    if pooled.interquartile:
        means = ", ".join(
            f"{row} {m:.3g} [{low:.3g}, {high:.3g}]" for row, (m, low, high) in pooled.interquartile.items()
        )
        parts.append(f"interquartile means over all tasks and seeds, with 95% intervals: {means}")
    return f"{pooled.domain}, {pooled.metric}: {'; '.join(parts)}."


def _paper_differences(column: Column) -> Iterator[str]:
    """Where a paper has both numbers in one table, yield its difference and whether our interval contains it."""
    base = column.cells[column.baseline].paper if column.baseline else None
    for row, cell in column.cells.items():
        paper, measured = cell.paper, cell.difference
        if base is None or paper is None or measured is None or paper == base or paper.measure != base.measure:
            continue
        if math.isnan(measured.low):
            continue
        if (paper.paper, paper.table) == (base.paper, base.table):
            difference = paper.value - base.value
            where = "in" if measured.low <= difference <= measured.high else "not in"
            yield f"the paper's {difference:+.{digits(column)}f} for {row} is {where} our interval"
