"""The packaged atlas: documents are made from it, objectives and advice cite it."""

from __future__ import annotations

import json
from pathlib import Path

import atlas_cells
import pytest

import counterpoint as cp
from counterpoint.integrations import evidence
from counterpoint.integrations.advise.advice import advise
from counterpoint.integrations.command.main import main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def planted(monkeypatch):
    monkeypatch.setattr(evidence, "atlas", lambda: {"about": {}, "cells": atlas_cells.CELLS})


def test_the_packaged_atlas_is_part_of_the_full_one():
    full = json.loads((ROOT / "docs" / "atlas.json").read_text(encoding="utf-8"))
    packaged = evidence.atlas()
    assert packaged["about"] == full["about"]
    assert packaged["about"]["seeds"] >= 20
    places = {(c["data"], c["regime"], c["dose"]): c for c in full["cells"] if c["row"] == "InfoNCE, tuned again"}
    for cell, whole in zip(packaged["cells"], full["cells"], strict=True):
        assert cell.items() <= whole.items()
        assert cell["objective"] in cp.registry
        assert cp.objective(cell["spec"])
        assert cell["low"] <= cell["difference"] <= cell["high"]
        assert cell["effect"] in evidence.EFFECTS
        told, placebo = whole["corrected"] <= 0.05, places.get((cell["data"], cell["regime"], cell["dose"]))
        if placebo and placebo["corrected"] <= 0.05 and cell["versus"] == "InfoNCE" and cell["row"] != placebo["row"]:
            told = False  # the choice of a setting alone makes such differences
        assert (cell["effect"] in ("helps", "hurts")) == told


def test_what_an_objective_shows_about_itself(planted, capsys):
    assert list(evidence.about("dcl")) == [
        "hurts: false negatives, 4 classes (images, DCL, dcl:t=0.2): -2.0",
        "does nothing: 1 of its cells",
    ]
    assert main(["objectives", "hcl"]) == 0
    assert "atlas       helps: false negatives, 10 classes (images, HCL, hcl:t=0.2): +1.2" in capsys.readouterr().out


def test_a_cell_of_two_regimes_counts_once(planted):
    [first, *_] = (cell for cell in evidence.cells(objective="dcl") if cell["effect"] == "hurts")
    evidence.atlas()["cells"].append(first | {"regime": "wrong positives", "dose": "0% redrawn"})
    assert next(evidence.about("dcl")).count("-2.0") == 1
    evidence.atlas()["cells"].pop()


def test_advice_cites_the_nearest_dose(planted):
    measured = {
        "duplicates": {"cosine": 0.95, "share": 0.0, "equal": 0, "anchors": 0, "positives": 0},
        "wrong_positives": {"share": 0.0, "low": 0.0, "high": 0.01},
        "false_negatives": {"share": 0.22, "low": 0.2, "high": 0.24, "known": 1000},
    }
    about_rate = next(one for one in advise(measured) if one["topic"] == "false negatives")
    assert "known ids gained on images; no objective gained without them" in about_rate["text"]
    cited = "[atlas: images, false negatives, 4 classes: oracle against InfoNCE +3.00 (+2.00 to +4.00), 20 seeds]"
    assert about_rate["evidence"][0] == cited


def test_advice_says_on_which_data_ids_gained():
    measured = {
        "duplicates": {"cosine": 0.95, "share": 0.0, "equal": 0, "anchors": 0, "positives": 0},
        "wrong_positives": {"share": 0.0, "low": 0.0, "high": 0.01},
        "false_negatives": {"share": 0.5, "low": 0.4, "high": 0.6, "known": 1000},
    }
    (all_data,) = (one["text"] for one in advise(measured) if one["topic"] == "false negatives")
    assert "known ids gained on images, but were not found to gain on graphs and text; without ids DrRL" in all_data
    (graphs,) = (one for one in advise(measured | {"modality": "graphs"}) if one["topic"] == "false negatives")
    assert (
        "atlas, known ids were not found to gain on graphs; without ids DrRL gained most, on graphs." in graphs["text"]
    )
    assert all("atlas: graphs" in one for one in graphs["evidence"])
