"""The statistics of a report in plain sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .summary import LEVEL, LOSS, Column, digits, many


def reading(column: Column) -> str:
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
            f"{row} (by {abs(one.mean):.{digits(column)}f})"
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


def together(columns: Sequence[Column]) -> str:
    """What the statistics of several columns say."""
    cells = [(column, row, cell) for column in columns for row, cell in column.cells.items()]
    tested = [cell.difference for _, _, cell in cells if cell.difference is not None]
    found = sum(one.found for one in tested)
    best = [f"{row} ({column.title})" for column, row, cell in cells if cell.best]
    said = f"{many(len(tested), 'comparison')} with a baseline in {many(len(columns), 'column')}, "
    said += f"{many(found, 'difference')} found"
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
            yield f"the paper's {theirs:+.{digits(column)}f} for {row} is {where} our interval"


def _can_find(column: Column) -> bool:
    """Whether a column has so many pairs that some p-value could fall below the level."""
    pairs = [cell.difference.pairs for cell in column.cells.values() if cell.difference is not None]
    return bool(pairs) and max(pairs) >= _seeds_needed(len(pairs))


def _seeds_needed(tests: int) -> int:
    """The pairs from which the smallest of so many corrected p-values can be below the level."""
    return next(n for n in range(1, 100) if tests * 2.0 ** (1 - n) < LEVEL)
