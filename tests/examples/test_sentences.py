"""What the first screens say are numbers of stored rows; other code finds the atlas's verdicts."""

from __future__ import annotations

import importlib
import re

import pytest
from documents import ROOT

from counterpoint.integrations import evidence

pytest.importorskip("scipy")

IDS = "known intents as ids"


@pytest.fixture(scope="module")
def finetuned_table():
    return "\n".join(importlib.import_module("finetuned").report(ROOT / "docs" / "finetuned"))


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_what_fine_tuning_gained_is_in_the_rows(page, finetuned_table):
    table = finetuned_table
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    said = {
        "mined": (
            r"mined negatives: a guide at margin 0 (\S+), labels (\S+), twice the steps (\S+), HCL (\S+);",
            ["guide, margin 0", IDS, "InfoNCE, twice the steps", "HCL"],
        ),
        "topical": (r"topical batches twice the steps (\S+), ADNCE (\S+)\. ", ["InfoNCE, twice the steps", "ADNCE"]),
    }
    for batches, (sentence, rows) in said.items():
        whole = table.partition(f"| whole encoder, {batches} batches")[2].partition("\n\n")[0]
        gains = dict(re.findall(r"^\| ([^|]+) \|[^|]*\|[^|]*\| ([+-][\d.]+) .*\| higher \|$", whole, re.M))
        assert [gains[row] for row in rows] == list(re.search(sentence, text).groups())
        assert {*gains} == {*rows} or batches != "topical"  # all that gained
    assert f"\n{table}\n" in (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def test_other_code_finds_the_verdicts_of_the_atlas():
    recompute = importlib.import_module("recompute")
    for dataset in ("images", "text", "graphs"):
        count, wrong = recompute.verdicts(dataset)
        assert count > 100
        assert wrong == []


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("labels gain 1.9 points, HCL 1.3", [{"row": "oracle"}, {"row": "HCL"}]),
        ("a frozen guide 0.7 to 1.2", [{"row": "masked by a guide"}, {"row": "masked by a guide, margin -.1"}]),
    ],
)
def test_the_sentence_on_mined_negatives_is_that_of_the_cells(said, wanted):
    text = " ".join((ROOT / "docs" / "atlas.md").read_text(encoding="utf-8").split())
    assert said in text
    cells = [evidence.cells(regime="mined negatives", **one)[0] for one in wanted]
    numbers = re.findall(r"\d\.\d", said)
    assert [f"{cell['difference']:.1f}" for cell in cells] == numbers
    assert {cell["effect"] for cell in cells} == {"helps"}


@pytest.mark.parametrize(
    ("said", "row", "effect", "count"),
    [
        ("gains 1.5 to 3.2 points in 7 of 9 cells", "DrRL", "helps", 7),
        ("PSL gains 1.1 to 1.8 in 3 of 9", "PSL", "helps", 3),
        ("RINCE, made for wrong positives, gains in none and loses 1.5 in one", "RINCE", "hurts", 1),
    ],
)
def test_the_sentences_on_wrong_positives_are_those_of_the_cells(said, row, effect, count):
    assert said in " ".join((ROOT / "docs" / "atlas.md").read_text(encoding="utf-8").split())
    cells = [one for one in evidence.cells(regime="wrong positives", row=row) if one["dose"] != "0% redrawn"]
    found = sorted(abs(one["difference"]) for one in cells if one["effect"] == effect)
    assert (len(cells), len(found)) == (9, count)
    assert {f"{found[0]:.1f}", f"{found[-1]:.1f}"} == {*re.findall(r"\d\.\d", said)}
    assert effect == "helps" or not [one for one in cells if one["effect"] == "helps"]
