"""What the atlas found: which objective helps, hurts or does nothing, in which regime. Needs no torch.

``examples/studies/atlas_report.py`` writes ``atlas.json``, from which every table and sentence is made.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

Cell = dict[str, Any]

ORACLE = "oracle"  # rows that know the fault begin so
PLAIN = "InfoNCE"
EFFECTS = ("helps", "hurts", "does nothing", "cannot tell")
REGIMES = {
    "false negatives": "false negatives in the batch (few classes)",
    "mined negatives": "mined hard negatives, two thirds of them false",
    "wrong positives": "positives that are wrong pairs",
    "easy negatives": "mostly easy negatives",
    "temperature": "a temperature that is off by a factor",
    "views": "more views of each sample",
    "views, shifted": "more views, tested on strongly changed images",
    "attacks": "attacks on the inputs",
    "denominator": "the denominator",
}
# doses without the fault of their regime: in tables, their cells stand among "views" and "false negatives"
FAULTLESS = {("wrong positives", "0% redrawn"), ("temperature", "x 1")}


@cache
def atlas() -> dict[str, Any]:
    """The packaged atlas: ``about`` (seeds, steps, command) and ``cells``."""
    return json.loads(Path(__file__).with_name("atlas.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def cells(**wanted: Any) -> list[Cell]:
    """The cells with these values, for instance ``regime="views"``."""
    return [cell for cell in atlas()["cells"] if all(cell[name] == value for name, value in wanted.items())]


def knows(cell: Cell) -> bool:
    """Whether a cell's row knows the labels or the fault."""
    return str(cell["row"]).startswith(ORACLE)


def cite(cell: Cell) -> str:
    """The evidence of a cell in brackets: where, what, how much."""
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
    """Lines on what the atlas says about an objective, by its registered name."""
    for effect, some in by_effect(cell for cell in cells(objective=objective) if cell["row"] != ORACLE).items():
        shown = [
            "{regime}, {dose} ({data}, {row}): {difference:+.1f}".format(**cell)
            for cell in some[: 4 if effect in EFFECTS[:2] else 0]
        ]
        if some:
            more = f"{len(some)} of its cells" if not shown else "; ".join(shown)
            more += f"; {len(some) - len(shown)} more" if shown and len(some) > len(shown) else ""
            yield f"{effect}: {more}"


def _shown(some: Iterable[Cell]) -> list[Cell]:
    return [cell for cell in some if (cell["regime"], cell["dose"]) not in FAULTLESS]


def benefit() -> str:
    """The sentence of the README: how often another objective than InfoNCE helped, and how often known labels did."""
    known = _shown(cells(row=ORACLE))
    others = [cell for cell in _shown(atlas()["cells"]) if cell["objective"] != "infonce" and not knows(cell)]
    helps, hurts, nothing, unclear = map(len, by_effect(others).values())
    return (
        f"Of its {len(others)} comparisons of another objective with InfoNCE, {helps} gain, {hurts} lose, and "
        f"in {nothing + unclear} no difference is found.\nTo know the fault, as labels tell it, gains in "
        f"{len(by_effect(known)['helps'])} of {len(known)}."
    )


def counted(row: str, regimes: Iterable[str]) -> str:
    """In how many cells of these regimes a row gains or loses."""
    groups = by_effect(_shown(cell for regime in regimes for cell in cells(row=row, regime=regime)))
    gains, losses = (len(groups[effect]) for effect in EFFECTS[:2])
    return f"gains in {gains}, loses in {losses} of {sum(map(len, groups.values()))}"


def summary_table() -> str:
    """The table of docs/which_loss.md, in Markdown: by regime what helps, hurts or does nothing, over all doses."""
    lines = [
        "| regime (data sets) | helps | hurts | mixed | does nothing, or too little to tell |",
        "|---|---|---|---|---|",
    ]
    for regime, title in REGIMES.items():
        columns: dict[str, list[str]] = {"helps": [], "hurts": [], "mixed": [], "nothing": []}
        of_regime = _shown(cells(regime=regime))
        for row in dict.fromkeys(cell["row"] for cell in of_regime):
            some = [cell for cell in of_regime if cell["row"] == row]
            found = [cell for cell in some if cell["effect"] in EFFECTS[:2]]
            effects = {cell["effect"] for cell in found}
            kind = effects.pop() if len(effects) == 1 else "mixed" if effects else "nothing"
            values = [f"{difference:+.1f}" for difference in sorted(cell["difference"] for cell in found)]
            shown = "".join(f" {value}" for value in values[:1])
            shown += f" to {values[-1]}" if len(set(values)) > 1 else ""
            counted = f" ({len(found)} of {len(some)})" if found and len(some) > 1 else ""
            columns[kind].append(row + shown + counted)
        if of_regime:
            data = ", ".join(dict.fromkeys(cell["data"] for cell in of_regime))
            lines.append(f"| {title} ({data}) | " + " | ".join("; ".join(column) for column in columns.values()) + " |")
    return "\n".join(lines)


def decision_table() -> str:
    """The table of the atlas's page, in Markdown: by regime, data set and dose what helps, hurts and does nothing."""
    lines = [
        "| regime | data, dose | helps | hurts | no effect beyond the margin | cannot tell |",
        "|---|---|---|---|---|---|",
    ]
    for regime, title in REGIMES.items():
        for data, dose in dict.fromkeys((cell["data"], cell["dose"]) for cell in _shown(cells(regime=regime))):
            groups = by_effect(cells(regime=regime, data=data, dose=dose))
            columns = []
            for effect in EFFECTS:
                shown = [
                    cell["row"]
                    + (f" {cell['difference']:+.1f}" if effect in EFFECTS[:2] else "")
                    + ("†" if cell["edges"] else "")
                    for cell in groups[effect]
                ]
                columns.append("; ".join(shown))
            lines.append(f"| {title} | {data}, {dose} | " + " | ".join(columns) + " |")
            title = ""
    return "\n".join(lines)
