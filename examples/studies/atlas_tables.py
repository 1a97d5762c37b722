"""The tables and sentences of the documents that are made from the packaged atlas; `atlas_report.py` writes them."""

from __future__ import annotations

from collections.abc import Iterable

from counterpoint.integrations.evidence import EFFECTS, ORACLE, Cell, by_effect, cells, knows

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


def _shown(some: Iterable[Cell]) -> list[Cell]:
    return [cell for cell in some if (cell["regime"], cell["dose"]) not in FAULTLESS]


def benefit() -> str:
    """The sentence of the README: how often another objective than InfoNCE helped, and how often known labels did."""
    known = _shown(cells(row=ORACLE))
    others = [cell for cell in _shown(cells()) if cell["objective"] != "infonce" and not knows(cell)]
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
