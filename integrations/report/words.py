"""The statistics of a report in plain sentences."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from .statistics import FEWEST, MANY, Verdict
from .summary import LOSS, Column, Pooled, listed, plural

SHOWN = 3  # rows whose intervals are in a sentence
UNTRAINED = re.compile("untrained|before training|no pre-train|random encoder", re.IGNORECASE)


def reading(column: Column) -> str:
    """Return the statistics of a column in words: the worth of training, then the verdicts on objectives."""
    return f"{column.title}: {'; '.join([*_checks(column), *_objectives(column), *_paper_differences(column)])}."


def _objectives(column: Column) -> Iterator[str]:
    compared = column.compared
    if len(column.cells) - len(column.checks) == 1:
        if not any(column.checks.values()):
            yield "one row, nothing to compare"
    elif column.baseline is None and column.metric == LOSS and not column.lower:
        yield "each objective has its own scale, so losses are not compared (--lower compares them)"
    elif column.baseline is None:
        yield "no baseline (--baseline names one)"
    elif not compared:
        yield f"nothing shares a seed with {column.baseline}"
    else:
        start = f"against {column.baseline}, {_pairs(compared)} paired seed{'s' * (_pairs(compared) != '1')}, "
        if not column.tested:
            yield start + "no intervals and no tests without scipy"
        elif not any(verdict.tested for verdict in compared.values()):
            yield start + f"no verdict: {FEWEST} seeds are the fewest that allow a test"
        else:
            yield start + "; ".join(verdicts(compared, column.digits))


def _pairs(compared: Mapping[str, Verdict]) -> str:
    return _range(map(str, sorted(verdict.pairs for verdict in compared.values())))


def _range(ordered: Iterable[str]) -> str:
    first, *rest = ordered
    return first if not rest or rest[-1] == first else f"{first} to {rest[-1].removeprefix('about ')}"


def with_interval(difference: float, low: float, high: float, places: int = 1, **_: object) -> str:
    """Return a difference with its interval, if it has one."""
    write = partial(number, places=places) if low * high > 0 else f"{{:+.{places}f}}".format
    return write(difference) + ("" if math.isnan(low) else f" [{write(low)}, {write(high)}]")


def number(x: float, places: int, sign: str = "+") -> str:
    """Return a difference that is not 0, which is not printed as 0 either."""
    text = f"{x:{sign}.{places}f}"
    return text if float(text) else f"{x:{sign}.1g}"


def verdicts(compared: Mapping[str, Verdict], places: int, pair: str = "seed") -> Iterator[str]:
    """Yield the rows of each verdict, the detectable difference, and how many more pairs would tell."""
    for word in ("higher", "lower"):
        if rows := {row: v for row, v in compared.items() if v.word == word}:
            yield f"{word}: {_with_sizes(rows, places)}"
    margin = next(iter(compared.values())).margin
    if same := [row for row, v in compared.items() if v.word == "the same numbers"]:
        yield f"the same numbers: {_rows(same)}"
    if equivalent := [row for row, v in compared.items() if v.word == "equivalent"]:
        yield f"equivalent within {margin:.{places}f}: {_rows(equivalent)}"
    if unclear := {row: v for row, v in compared.items() if v.kind == "cannot tell"}:
        yield f"cannot tell: {_rows(unclear)}{_findable(unclear, places, pair)}"


def _rows(rows: Iterable[str]) -> str:
    return listed(map(quoted, rows))


def quoted(row: str) -> str:
    """Return a row's name, in quotation marks if it has a comma or semicolon."""
    return f'"{row}"' if {",", ";"} & {*row} else row


def _with_sizes(rows: Mapping[str, Verdict], places: int) -> str:
    sizes = {row: number(abs(v.difference), places, "") + ", within the margin" * v.within for row, v in rows.items()}
    return listed(f"{quoted(row)} (by {size})" for row, size in sizes.items())


def _findable(unclear: Mapping[str, Verdict], places: int, pair: str = "seed") -> str:
    sizes = sorted(v.detectable for v in unclear.values() if v.tested)
    if not sizes:
        return ""
    fresh = pair == "seed"  # so that no test is repeated with more of them
    missing = sorted((v.missing + v.pairs * fresh, row) for row, v in unclear.items() if v.tested)
    named = " ({})" * (missing[0][0] < missing[-1][0])
    about = ((f"about {n}" if n < MANY else f"over {MANY}") + named.format(quoted(row)) for n, row in missing)
    count = _range(about if named else [next(about)])
    found = f"differences of {_range(f'{x:.{places}f}' for x in sizes)} or more would be found"
    pairs = f"{'fresh' if fresh else 'more'} {pair}{'s' * (count != 'about 1')}"
    margin = next(iter(unclear.values())).margin
    return f" ({found}; {count} {pairs} would tell whether different or equivalent within {margin:.{places}f})"


def _checks(column: Column) -> Iterator[str]:
    """Yield the comparisons with the rows that train nothing, and with the largest class."""
    if column.uninformative:
        share = f"{column.majority:.{column.digits}f}"
        yield f"this data set tells nothing: no row is found above the majority class ({share})"
    checks = {check: compared for check, compared in column.checks.items() if compared and column.tested}
    if checks and not any(v.tested for compared in checks.values() for v in compared.values()):
        yield f"whether training helps is tested from {FEWEST} seeds on"
        return
    for check, compared in sorted(checks.items(), key=lambda item: UNTRAINED.search(item[0]) is None):
        yield from check_reading(check, compared, column)


def check_reading(check: str, compared: Mapping[str, Verdict], column: Column) -> Iterator[str]:
    """Yield the gains of trained rows over one that trains nothing."""
    places, sign = column.digits, -1 if column.lower else 1
    untrained = UNTRAINED.search(check) is not None
    better = {row: v for row, v in compared.items() if v.different and v.difference * sign > 0}
    worse = {row: v for row, v in compared.items() if v.different and v.difference * sign < 0}
    same = [row for row, v in compared.items() if v.word == "the same numbers"]
    unclear = {row: v for row, v in compared.items() if not v.different and row not in same}
    if same:
        yield f"the same numbers as {check}: {_rows(same)}"
    if better:
        gains = _range(number(gain, places) for gain in sorted(v.difference for v in better.values()))
        rows = f" for {_rows(better)}" * (len(better) < len(compared))
        yield f"{'training is worth' if untrained else f'over {check},'} {gains}{rows}"
    if worse:
        yield f"{'training made it worse' if untrained else f'worse than {check}'}: {_with_sizes(worse, places)}"
    if unclear:
        every = len(unclear) == len(compared) > SHOWN
        question = "training helps" if untrained else f"{'any row' if every else 'it'} is better than {check}"
        by = {row: f" by {with_interval(v.difference, v.low, v.high, places)}" for row, v in unclear.items()}
        named = listed(f"{quoted(row)}{by[row] * (len(by) <= SHOWN)}" for row in by)
        rows = "" if every and not untrained else f", for {'any row' if every else named}"
        yield f"cannot tell whether {question}{rows}{_findable(unclear, places)}"


def overview_reading(columns: Sequence[Column]) -> str:
    """Return the pooled statistics of several columns in words."""
    differences = [verdict for column in columns for verdict in column.compared.values()]
    text = f"{plural(len(differences), 'comparison')} with a baseline in {plural(len(columns), 'column')}, "
    if not all(column.tested for column in columns):
        return text + "not tested without scipy."
    kinds = ("different", "equivalent", "cannot tell")
    text += ", ".join(f"{sum(v.kind == kind for v in differences if v.tested)} {kind}" for kind in kinds)
    few = sum(not v.tested for v in differences)
    text += f", {few} with less than {FEWEST} seeds" * bool(few)
    best = [f"{row} ({column.title})" for column in columns for row, cell in column.cells.items() if cell.best]
    return text + f"; separated from every other row: {listed(best) or 'none'}."


def pooled_reading(pooled: Pooled) -> str:
    """Summarize several data sets; their table has the numbers."""
    said = "; ".join(verdicts(pooled.verdicts, pooled.digits, "data set"))
    start = f"{pooled.domain}, {pooled.metric}: over {_pairs(pooled.verdicts)} data sets"
    return f"{start} against {pooled.baseline}: {said}."


def _paper_differences(column: Column) -> Iterator[str]:
    """Where a paper has both numbers in one table, yield its difference and whether our interval contains it."""
    base = column.cells[column.baseline].paper if column.baseline else None
    for row, verdict in column.compared.items():
        paper = column.cells[row].paper
        if base is None or paper is None or paper == base or not verdict.tested:
            continue
        if (paper.paper, paper.table, paper.measure) == (base.paper, base.table, base.measure):
            difference = paper.value - base.value
            where = "in" if verdict.low <= difference <= verdict.high else "not in"
            yield f"the paper's {difference:+.{column.digits}f} for {row} is {where} our interval"
