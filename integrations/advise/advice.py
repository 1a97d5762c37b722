"""Turn measurements into sentences, each with the evidence behind it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .evidence import ORACLE, by_effect, cells, cite, nearest

Advice = dict[str, Any]

SOME = 0.03  # share of wrong positives or duplicates from which on there is something to do


def advise(measured: dict[str, Any]) -> list[Advice]:
    """Return the advice: ``topic``, ``text``, and ``evidence``, the cells of the atlas behind it."""
    parts = (_gap, _hard_negatives, _false_negatives, _wrong_positives, _duplicates, _negatives, _unknown)
    return [
        {"topic": part.__name__.strip("_").replace("_", " "), "text": text, "evidence": [cite(cell) for cell in some]}
        for part in parts
        for text, some in part(measured)
    ]


Said = Iterator[tuple[str, list[dict[str, Any]]]]


def _interval(verdict: dict[str, Any]) -> str:
    return f"{verdict['difference']:+.2f} points ({verdict['low']:+.2f} to {verdict['high']:+.2f})"


def _gap(measured: dict[str, Any]) -> Said:
    gap = measured.get("gap")
    if gap is None:
        return
    if "unknown" in gap:
        yield f"The repairable gap was not measured: {gap['unknown']}", []
        return
    seeds, hard = gap["seeds"], "hard_negatives" in measured
    for name, verdict in gap["masked"].items():
        what = f"masking false negatives {name}" + (" (negatives about as similar as the positive)" if "guide" in name else "")
        change = f"{_interval(verdict)} of held-out accuracy, {seeds} paired seeds"
        evidence = cells(regime="mined negatives" if hard else "false negatives", row=ORACLE)
        if "guide" in name:
            evidence = cells(row="masked by a guide")
        elif not hard:
            evidence = [cell for cell in nearest("false negatives", measured["false_negatives"]["share"]) if cell["row"] == ORACLE]
        if verdict["kind"] == "different" and verdict["difference"] > 0:
            argument = "a mask" if "guide" in name else "ids= and negative_ids=" if hard else "ids="
            yield f"Do this: {what} gains {change}. Pass {argument} to the loss.", evidence
        elif verdict["kind"] == "different":
            yield f"Leave the negatives as they are: {what} costs {change}.", evidence
        elif verdict["kind"] == "equivalent":
            yield f"There is nothing to gain: {what} changes accuracy by {change}, within the margin.", evidence
        else:
            detectable = verdict["detectable"]
            yield f"No gain was found: {what} changes accuracy by {change}. So many seeds find {detectable:.1f} points.", evidence


def _hard_negatives(measured: dict[str, Any]) -> Said:
    hard = measured.get("hard_negatives")
    if hard is None:
        return
    text = f"{hard['suspect']:.0%} of your hard negatives are about as similar to their anchor as its positive, in the features as they are"
    text += f"; by their ids {hard['false']:.0%} are false." if "false" in hard else "; ids would tell how many are false."
    some = by_effect(cell for cell in cells(regime="mined negatives") if cell["row"] != ORACLE)
    yield text, some["helps"] + some["hurts"][:1]


def _false_negatives(measured: dict[str, Any]) -> Said:
    false = measured.get("false_negatives")
    if false is None:
        return
    share, known = false["share"], false["known"]
    text = (
        f"{share:.1%} of in-batch negatives share the anchor's id "
        f"({false['low']:.1%} to {false['high']:.1%}, from {known} known ids)."
    )
    groups = by_effect(nearest("false negatives", share))
    without = [cell for cell in groups["helps"] if cell["row"] != ORACLE]
    repaired = [cell for cell in groups["helps"] if cell["row"] == ORACLE]
    if groups["hurts"] or groups["helps"]:
        text += " At the nearest rates of the atlas, known ids " + ("gained" if repaired else "gained nothing that was found")
        text += f", and without ids {without[0]['row']} gained most." if without else ", and no objective gained without them."
    yield text, repaired + without[:1] + groups["hurts"][:1]


def _wrong_positives(measured: dict[str, Any]) -> Said:
    wrong = measured["wrong_positives"]
    shown = f"{wrong['share']:.1%} ({wrong['low']:.1%} to {wrong['high']:.1%})"
    if wrong["share"] < SOME:
        yield f"Wrong positives: {shown} estimated, which is about none; nothing to repair.", []
        return
    near = by_effect(cell for cell in nearest("wrong positives", wrong["share"]) if cell["row"] != ORACLE)
    text = f"About {shown} of your positive pairs look like random pairs. Clean them first."
    if near["helps"]:
        text += f" In the atlas {near['helps'][0]['row']} gained most at the nearest share."
    if near["hurts"]:
        text += f" Avoid {near['hurts'][0]['row']}."
    yield text, near["helps"][:2] + near["hurts"][:1]


def _duplicates(measured: dict[str, Any]) -> Said:
    near = measured["duplicates"]
    if near["share"] < SOME:
        yield f"Near-duplicates: {near['share']:.1%} of the samples have another one at a cosine of {near['cosine']:g} or more.", []
        return
    text = f"{near['share']:.1%} of the samples have a near-duplicate (cosine of at least {near['cosine']:g}); give both the same ids=."
    yield text + " The atlas has no cell for duplicates.", []


def _negatives(measured: dict[str, Any]) -> Said:
    negatives = measured["negatives"]
    text = (
        f"After training at t = {negatives['temperature']:g}, {negatives['effective']:.0f} of {negatives['of_batch']:.0f} negatives "
        f"carry the gradient, as under a worst case at KL radius {measured['radius']:.2f} (infonce:radius={measured['radius']:.2g})."
    )
    off = by_effect(cell for cell in cells(regime="temperature", row="InfoNCE") if cell["effect"] == "hurts")
    yield text + " Tune t before anything else.", off["hurts"][:2]


def _unknown(measured: dict[str, Any]) -> Said:
    if "false_negatives" not in measured:
        yield (
            "Cannot be known from embeddings alone: how many negatives are false, and what masking them would gain. "
            "Pass --ids with ids or labels; about 100 labels give the rate, more give the gain."
        ), []
    yield (
        "Measured with a small network on fixed features: an encoder that trains on raw data can behave differently. "
        "Whether positives are wrong in a way that looks right to the features cannot be seen."
    ), []
