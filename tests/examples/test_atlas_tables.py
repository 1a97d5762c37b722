"""The documents' tables are those of the packaged atlas."""

from __future__ import annotations

import atlas_cells
import atlas_tables
import pytest
from documents import ROOT

from counterpoint.integrations import evidence


@pytest.fixture
def planted(monkeypatch):
    monkeypatch.setattr(evidence, "atlas", lambda: {"about": {}, "cells": atlas_cells.CELLS})


@pytest.mark.parametrize(
    ("path", "table"),
    [
        ("README.md", atlas_tables.benefit),
        ("docs/index.md", atlas_tables.benefit),
        ("docs/results.md", atlas_tables.benefit),
        ("docs/which_loss.md", atlas_tables.summary_table),
        ("docs/atlas.md", atlas_tables.decision_table),
    ],
)
def test_the_tables_are_those_of_the_packaged_atlas(path, table):
    text = (ROOT / path).read_text(encoding="utf-8")
    made = text.partition("<!-- made by `python examples/studies/atlas_report.py` -->\n")[2]
    assert f"\n{table()}\n" in "\n" + made.partition("<!-- end of the table -->")[0]


def test_the_paragraph_on_benefit_counts_the_cells(planted):
    said = " ".join(atlas_tables.benefit().split())
    assert (
        "+3.0 points where a sixth or more of the negatives are false; at 1 in 10 and 1 in 77, nothing could be told"
        in said
    )
    assert "HCL gained in 1 of 2 cells" in said
    assert "DCL lost in 1, ArCL in 0." in said
    assert atlas_tables.counts().splitlines()[2:] == ["| false negatives, images | 1 | 1 | 1 | 1 |"]


def test_the_first_screens_show_cells_that_exist():
    for title, wanted in atlas_tables.FIRST_SCREEN.items():
        assert len(evidence.cells(**wanted)) == 1, title


def test_the_tables(planted):
    assert atlas_tables.decision_table().splitlines()[2:] == [
        "| false negatives in the batch (few classes) | images, 4 classes | oracle +3.0 | DCL -2.0 |  | HCL† |",
        "|  | images, 10 classes | HCL +1.2† |  | DCL |  |",
    ]
    assert atlas_tables.summary_table().splitlines()[2:] == [
        "| false negatives in the batch (few classes) (images) | oracle +3.0; HCL +1.2 (1 of 2) | DCL -2.0 (1 of 2) "
        "|  |  |"
    ]


def test_the_packaged_regimes_are_known():
    assert {cell["regime"] for cell in evidence.cells()} <= set(atlas_tables.REGIMES)
