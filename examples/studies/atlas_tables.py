"""The tables and sentences of the documents that are made from the packaged atlas; `atlas_report.py` writes them."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable

from counterpoint.integrations.evidence import EFFECTS, ORACLE, Cell, by_effect, cells, knows

REGIMES = {
    "false negatives": "false negatives in the batch (few classes)",
    "topical batches": "batches of a few classes, such as a crawler's or a topic's",
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


MINED, HALF = "4 of 10 nearest", "50% redrawn"
FIRST_SCREEN = {  # of the picture on the first screens
    "half of the positives wrong: twice the steps (text)": {
        "data": "text", "dose": HALF, "row": "InfoNCE, 2 times the steps"},
    "half of the positives wrong: DrRL (text)": {"data": "text", "dose": HALF, "row": "DrRL"},
    "half of the positives wrong: NCA, 4 views (text)": {"data": "text", "dose": HALF, "row": "NCA, 4 views"},
    "1 in 4 negatives false: labels as ids= (images)": {"data": "images", "dose": "4 classes", "row": ORACLE},
    "mined negatives: labels as ids= (text)": {"dose": MINED, "row": ORACLE},
    "mined negatives: HCL, the batch's prior (text)": {"dose": MINED, "row": "HCL"},
    "mined negatives: a frozen guide (text)": {"dose": MINED, "row": "masked by a guide"},
    "1 in 4 negatives false: ADNCE (images)": {"data": "images", "dose": "4 classes", "row": "ADNCE"},
    "1 in 3 negatives false: DCL (images)": {"data": "images", "dose": "3 classes", "row": "DCL"},
}  # fmt: skip


def _others() -> list[Cell]:
    """The comparisons of another objective with InfoNCE."""
    some = (cell for cell in _shown(cells()) if cell["objective"] != "infonce" and not knows(cell))
    return [cell for cell in some if not cell["row"].startswith("guide")]


def _span(some: Iterable[Cell]) -> str:
    """The smallest and the largest difference of those that help, and how many do."""
    some = list(some)
    found = sorted(cell["difference"] for cell in some if cell["effect"] == "helps")
    if not found:
        return "nothing could be told"
    span = f"{found[0]:+.1f}" if len(found) == 1 else f"{found[0]:+.1f} to {found[-1]:+.1f}"
    return f"{span} points" + (f" in {len(found)} of {len(some)} cells" if len(some) > 1 else "")


def benefit() -> str:
    """The paragraph of the first screens: what gained, by how much and where, from the cells."""
    wrong = _shown(cells(regime="wrong positives"))
    right = cells(regime="wrong positives", dose="0% redrawn", row="InfoNCE, 2 times the steps")
    many = [c for c in cells(row=ORACLE, regime="false negatives") if c["level"] > 1 / 7]
    few = [c for c in cells(row=ORACLE, regime="false negatives") if c["level"] < 1 / 7]
    mined = {cell["row"]: [cell] for cell in cells(regime="mined negatives")}
    images = cells(row="HCL", regime="false negatives", data="images")
    guided = [c for c in cells(regime="false negatives", data="images") if c["row"].startswith("guide, margin")]
    faulty = [c for c in _others() if c["regime"] != "temperature" and not c["regime"].startswith("views")]
    groups = {name: by_effect(c for c in faulty if c["objective"] == name) for name in ("adnce", "dcl", "arcl")}
    adnce, nca = groups["adnce"], [c for c in wrong if c["row"] == "NCA, 4 views"]
    drrl, sound = (cells(regime="wrong positives", row="DrRL", **more) for more in ({}, {"dose": "0% redrawn"}))
    gained = Counter(cell["spec"] for cell in by_effect(drrl)["helps"])
    usual = "".join(f" (`{spec}`)" for spec, _ in gained.most_common(1))
    points = [
        "**Tune the temperature, then train longer.** Where positives are wrong, twice the steps gained "
        f"{_span(c for c in wrong if c['row'] == 'InfoNCE, 2 times the steps')}; where none is, {_span(right)}: these "
        "trainings are short.",
        "**Pass `ids=` if you know duplicates, labels or sources**: "
        f"{_span(many)} where a sixth or more of the negatives are false; at 1 in 10 and 1 in 77, {_span(few)}.",
        "**Otherwise mask by a frozen guide, or use HCL with the batch's small `prior`**: among mined negatives "
        f"{_span(mined.get('masked by a guide', []))} and {_span(mined.get('HCL', []))}. "
        f"On images with false negatives HCL gained in {len(by_effect(images)['helps'])} of {len(images)} cells, and "
        f"a guide lost in {len(by_effect(guided)['hurts'])} of {len(guided)}.",
        f"**Where positives are wrong, try DrRL**{usual}: {_span(_shown(drrl))}; where none is, {_span(sound)}. "
        f"NCA on four views, if half are wrong: {_span(c for c in nca if '50%' in c['dose'])}. "
        f"ADNCE gained in {len(adnce['helps'])}, lost in {len(adnce['hurts'])} of {sum(map(len, adnce.values()))} "
        f"faulty cells; DCL lost in {len(groups['dcl']['hurts'])}, ArCL in {len(groups['arcl']['hurts'])}.",
    ]
    return "\n".join(textwrap.fill(f"- {point}", 118, subsequent_indent="  ") for point in points)


def counts() -> str:
    """How often other objectives gain and lose, in Markdown, by fault and data set."""
    lines = ["| fault, data | gain | lose | shown equivalent | cannot be told |", "|---|---|---|---|---|"]
    others = _others()
    for regime, data in dict.fromkeys((cell["regime"], cell["data"]) for cell in others):
        groups = by_effect(c for c in others if (c["regime"], c["data"]) == (regime, data))
        lines.append(f"| {regime}, {data} | {' | '.join(str(len(some)) for some in groups.values())} |")
    return "\n".join(lines)


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
