"""The findings of the atlas: which objective helps, hurts or does nothing, in which regime. Needs no torch.

``examples/studies/atlas_report.py`` writes ``atlas.json``, and the tables of the documents.
"""

import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypedDict


class Cell(TypedDict):
    """A comparison of two rows, as far as code reads it; :func:`cite` prints the rest."""

    data: str
    regime: str
    dose: str  # of the fault, in words
    level: float  # and as a number
    row: str
    spec: str
    difference: float
    effect: str


ORACLE = "oracle"  # rows that know the fault begin so
EFFECTS = ("helps", "hurts", "does nothing", "cannot tell")


@cache
def atlas() -> dict[str, Any]:
    """The packaged atlas: ``about`` (seeds, steps, command) and ``cells``."""
    return json.loads(Path(__file__).with_name("atlas.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def cells(**wanted: object) -> list[Cell]:
    """The cells with these values, for instance ``regime="views"``."""
    return [cell for cell in atlas()["cells"] if all(cell[name] == value for name, value in wanted.items())]


def knows(cell: Cell) -> bool:
    """Whether a cell's row knows the labels or the fault."""
    return str(cell["row"]).startswith(ORACLE)


def cite(cell: Cell) -> str:
    """The evidence of a cell in brackets: the data, the regime, the difference."""
    shown = "[atlas: {data}, {regime}, {dose}: {row} against {versus} {difference:+.2f} ({low:+.2f} to {high:+.2f}), "
    shown += "{n} seeds]"
    return shown.format(**cell)


def nearest(regime: str, level: float) -> list[Cell]:
    """The cells of a regime whose dose is the nearest to ``level``, of each data set."""
    found: list[Cell] = []
    for data in dict.fromkeys(cell["data"] for cell in cells(regime=regime)):
        of_data = cells(regime=regime, data=data)
        distance = min(abs(cell["level"] - level) for cell in of_data)
        found += [cell for cell in of_data if abs(cell["level"] - level) == distance]
    return found


def by_effect(some: Iterable[Cell]) -> dict[str, list[Cell]]:
    """Group cells by effect, the largest differences first."""
    ordered = sorted(some, key=lambda cell: -abs(cell["difference"]))
    return {effect: [cell for cell in ordered if cell["effect"] == effect] for effect in EFFECTS}


def about(objective: str) -> Iterator[str]:
    """The atlas's findings on an objective, by its registered name, as lines."""
    own = [cell for cell in cells(objective=objective) if cell["row"] != ORACLE]
    once = {(cell["data"], cell["spec"], cell["difference"]): cell for cell in reversed(own)}  # one of two regimes
    for effect, some in by_effect(once.values()).items():
        first = some[: 4 if effect in EFFECTS[:2] else 0]
        shown = ["{regime}, {dose} ({data}, {row}, {spec}): {difference:+.1f}".format(**cell) for cell in first]
        if some:
            more = f"{len(some)} of its cells" if not shown else "; ".join(shown)
            more += f"; {len(some) - len(shown)} more" if shown and len(some) > len(shown) else ""
            yield f"{effect}: {more}"
