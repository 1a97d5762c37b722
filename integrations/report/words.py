"""The statistics of a report in plain sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .summary import LEVEL, LOSS, Column, digits, plural


def reading(column: Column) -> str:
    """Return what the statistics of a column say."""
    start = f"{column.title}: "
    compared = {row: cell.difference for row, cell in column.cells.items() if cell.difference is not None}
    if column.baseline is None:
        if len(column.cells) == 1:
            return start + "one row, nothing to compare."
        if column.metric == LOSS:
            return start + "each objective has its own scale, so losses are not compared (--lower compares them)."
        return start + "no baseline (--baseline names one)."
    if not compared:
        return start + f"nothing shares a seed with {column.baseline}."
    pairs = sorted({difference.pairs for difference in compared.values()})
    seeds = f"{pairs[0]}" if len(pairs) == 1 else f"{pairs[0]} to {pairs[-1]}"
    start += f"against {column.baseline}, {seeds} paired seed{'s' * (pairs != [1])}, "
    if pairs == [1]:
        return start + "no interval and no test: one seed says nothing about chance."
    if not column.tested:
        return start + "no intervals and no tests without scipy."
    parts = []
    for word, sign in (("higher", 1), ("lower", -1)):
        rows = [
            f"{row} (by {abs(difference.mean):.{digits(column)}f})"
            for row, difference in compared.items()
            if difference.significant and difference.mean * sign > 0
        ]
        if rows:
            parts.append(f"{word}: {', '.join(rows)}")
    unclear = [row for row, difference in compared.items() if not difference.significant]
    if unclear:
        rows_meant = ", ".join(unclear) if len(unclear) < len(compared) else f"any of {len(unclear)} rows"
        parts.append(f"no difference found for {rows_meant if len(compared) > 1 else unclear[0]}")
    needed = _seeds_needed(len(compared))
    if unclear and pairs[-1] < needed:
        tests = f"{len(compared)} comparisons need" if len(compared) > 1 else "one comparison needs"
        parts.append(f"with so few seeds none could be: {tests} {needed}")
    parts += _paper_differences(column)
    return start + "; ".join(parts) + "."


def overview_reading(columns: Sequence[Column]) -> str:
    """Return what the statistics of several columns say together."""
    cells = [(column, row, cell) for column in columns for row, cell in column.cells.items()]
    differences = [cell.difference for _, _, cell in cells if cell.difference is not None]
    text = f"{plural(len(differences), 'comparison')} with a baseline in {plural(len(columns), 'column')}, "
    if not all(column.tested for column in columns):
        return text + "not tested without scipy."
    text += f"{plural(sum(difference.significant for difference in differences), 'difference')} found"
    if differences and not any(map(_enough_seeds, columns)):
        text += " (no column has enough seeds to find one)"
    best = [f"{row} ({column.title})" for column, row, cell in cells if cell.best]
    return text + f"; separated from every other row: {', '.join(best) or 'none'}."


def _paper_differences(column: Column) -> Iterator[str]:
    """Where a paper has both numbers in one table, yield its difference and whether our interval contains it."""
    base = column.cells[column.baseline].paper if column.baseline else None
    for row, cell in column.cells.items():
        paper, measured = cell.paper, cell.difference
        if base is None or paper is None or measured is None or paper == base or paper.measure != base.measure:
            continue
        if (paper.paper, paper.table) == (base.paper, base.table):
            difference = paper.value - base.value
            where = "in" if measured.low <= difference <= measured.high else "not in"
            yield f"the paper's {difference:+.{digits(column)}f} for {row} is {where} our interval"


def _enough_seeds(column: Column) -> bool:
    """Return whether a corrected p-value of the column could be below the level."""
    pairs = [cell.difference.pairs for cell in column.cells.values() if cell.difference is not None]
    return bool(pairs) and max(pairs) >= _seeds_needed(len(pairs))


def _seeds_needed(tests: int) -> int:
    """Return the number of pairs from which the smallest of so many corrected p-values can be below the level."""
    return next(n for n in range(1, 100) if tests * 2.0 ** (1 - n) < LEVEL)
