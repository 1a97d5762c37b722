"""Turn measurements into sentences, each with the evidence behind it."""

import shlex
from collections.abc import Iterator
from typing import Any

import counterpoint as cp

from ..evidence import ORACLE, Cell, by_effect, cells, cite, knows, nearest

OFF = "7 points"  # on data with known shares, tests/integrations/advise/test_known_faults.py
SMALL = 0.001  # rate of false negatives from which on ids are worth a run
MANY = 100  # features
SOME = 0.03  # share of wrong positives or duplicates from which on there is something to do

Said = Iterator[tuple[str, list[Cell]]]


def advise(measured: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the advice: ``topic``, ``text``, and ``evidence``, the cells of the atlas behind it."""
    parts = (_hard_negatives, _false_negatives, _wrong_positives, _duplicates, _unknown)
    said = [(part.__name__.strip("_").replace("_", " "), *one) for part in parts for one in part(measured)]
    return [{"topic": topic, "text": text, "evidence": [cite(cell) for cell in some]} for topic, text, some in said]


def _effects(some: list[Cell], measured: dict[str, Any], oracle: bool = False) -> dict[str, list[Cell]]:
    """Group the cells of the user's modality, if it is known, by effect: usable ones, or also the oracle's."""
    own = [cell for cell in some if measured.get("modality") in (None, cell["data"])]
    if measured.get("modality") == "text":  # texts are neither mixed nor perturbed by gradients
        own = [cell for cell in own if not cp.objective(cell["spec"]).needs & {"mixed", "adversarial"}]
    return by_effect(cell for cell in own if not knows(cell) or (oracle and cell["row"] == ORACLE))


def _hard_negatives(measured: dict[str, Any]) -> Said:
    if (hard := measured.get("hard_negatives")) is None:
        return
    text = f"{hard['suspect']:.0%} of your hard negatives are about as similar to their anchor as its positive is"
    told = f"by their ids {hard['false']:.0%} are false" if "false" in hard else "--negative-ids tells which are false"
    text += f"; {told}."
    found = _effects(mined := cells(regime="mined negatives"), measured)
    dose = mined[0]["dose"].replace(" of ", " of the ")  # 4 of 10 nearest
    text += f" In the atlas they are {dose} texts, and {mined[0]['level']:.0%} of them are false."
    yield text, found["helps"] + found["hurts"][:1]


def _false_negatives(measured: dict[str, Any]) -> Said:
    if (false := measured.get("false_negatives")) is None:
        return
    text = "{share:.1%} of in-batch negatives share the anchor's id ({low:.1%} to {high:.1%}, sampling error only; "
    text += "from {known} known ids, "
    text += "{batches} batches of yours)." if false.get("batches") else "random batches; or use --batches)."
    found = _effects(nearest("false negatives", false["share"]), measured, oracle=True)
    without = [cell for cell in found["helps"] if cell["row"] != ORACLE][:1]
    repaired = [cell for cell in found["helps"] if cell["row"] == ORACLE]
    if any(found.values()):
        gained = {cell["data"] for cell in repaired}
        others = {cell["data"] for some in found.values() for cell in some if cell["row"] == ORACLE} - gained
        where = [f"gained on {' and '.join(sorted(gained))}"] * bool(gained)
        where += [f"were not found to gain on {' and '.join(sorted(others))}"] * bool(others)
        text += f" At the nearest rates of the atlas, known ids {', but '.join(where)}"
        gain = "without ids {row} gained most, on {data}".format(**without[0]) if without else ""
        text += f"; {gain or 'no objective gained without them'}."
    text += f" Avoid {found['hurts'][0]['row']}." if found["hurts"] else ""
    yield text.format(**false), repaired + without + found["hurts"][:1]


def _wrong_positives(measured: dict[str, Any]) -> Said:
    wrong = measured["wrong_positives"]
    shown = "{share:.1%} ({low:.1%} to {high:.1%}, sampling error only)".format(**wrong)
    if wrong["share"] < SOME:
        yield f"Wrong positives: {shown} by estimate, which is about none.", []
        return
    if wrong["low"] == 0:
        yield f"Wrong positives: {shown} by estimate, which may be none: more samples would tell (--limit).", []
        return
    found = _effects(nearest("wrong positives", wrong["share"]), measured)
    text = f"About {shown} of your positive pairs are wrong: so many look like random pairs, give or take {OFF}."
    text += " They are SimCLR's crops." if measured.get("modality") == "images" else " Clean them first."
    for cell in found["helps"][:1]:
        text += f" In the atlas {cell['row']} gained most at the nearest share."
    for cell in found["hurts"][:1]:
        text += f" Avoid {cell['row']}."
    yield text, found["helps"][:2] + found["hurts"][:1]


def _duplicates(measured: dict[str, Any]) -> Said:
    text = "{equal:.1%} of the samples share an anchor ({anchors:.1%}) or positive ({positives:.1%}) with another one; "
    text += "{share:.1%} are near one that shares neither" + ", nor the id" * ("false_negatives" in measured)
    text += ": their anchors have a cosine of {cosine:g} or more."
    if measured["duplicates"]["share"] >= SOME:
        few = ": so few features make different samples that similar, too" * (measured.get("width", 0) < MANY)
        text += f" Look at some before you give both the same ids={few} (--near sets the cosine, of centred features)."
    yield text.format(**measured["duplicates"]), []


def _unknown(measured: dict[str, Any]) -> Said:
    if "false_negatives" not in measured:
        text = "Cannot be known from embeddings alone: how many negatives are false. "
        yield text + "Pass --ids, as of each pair's query, or about 100 labels: else a prior below is a default.", []
    text = "Measured on fixed features: an encoder that trains on raw data can behave differently."
    text += " Positives that are wrong but look right to the features cannot be seen."
    yield text + " Whether something helps, your own script tells: counterpoint race.", []


def treatments(measured: dict[str, Any]) -> list[str]:
    """Return the treatments to race against the script's own loss, as their texts."""
    false = measured.get("false_negatives")
    text = measured.get("modality") == "text"  # whose names are those of sentence-transformers
    ids = "labels" if text else 'batch["id"]'
    found = [f"host; ids={ids}"] if false and false["high"] >= SMALL else []
    columns = [(measured["duplicates"][name], i) for i, name in enumerate(("anchors", "positives"))]
    both = zip(("duplicates", "ids"), sorted(columns, reverse=True), strict=True)
    rule = "; ".join(f"{rule}=sentence_features[{i}]['input_ids']" for rule, (rate, i) in both if rate)
    rule = rule if text and not measured.get("flat") else "duplicates" * bool(rule)  # dropout changes embeddings
    found += [f"host; {rule}"] * bool(rule)
    graphs = measured.get("modality") == "graphs"
    alone = graphs or measured.get("modality") == "images"  # on which neither these nor HCL gained
    copies = f"{rule}; " * bool(rule)  # which a margin alone would leave
    found += [] if alone else ["host; guide=guide; margin=-0.05", f"host; {copies}margin=-0.05"]
    prior = min(max(false["share"], SMALL), 0.2) if false else 0.01
    wrong = measured["wrong_positives"]
    drrl = (wrong["share"] >= SOME and wrong["low"] > 0) or any("DrRL gained" in x["text"] for x in advise(measured))
    found += [f"hcl:beta=1,prior={prior:.1g}"] * (not alone)
    return [*found, *["drrl:m=0.4,weight=10" if graphs else "drrl:m=0.8,weight=3.333"] * (drrl or graphs)]


def race_command(proposed: list[str]) -> str:
    """Return the command that tests those that need no name of a script; it also trains its own loss for more steps."""
    rows = [one for one in proposed if not cp.treatment(one, "infonce").paths]
    chosen = f"--objective {shlex.join(rows)} " * bool(rows)
    flags = "--metric json:results.json:accuracy --steps-flag --max_steps --seed-flag --seed"
    return f"counterpoint race auto {chosen}{flags} -- train.py --max_steps 900"
