"""The settings of a graph run: what they allow is what the implementations know, and stored runs are found again."""

from __future__ import annotations

from dataclasses import fields

import pytest

pytest.importorskip("torch_geometric")

from counterpoint.batch.pairings import PAIRINGS
from counterpoint.integrations.domain import about
from counterpoint.integrations.graph import augment, evaluation, settings, training
from counterpoint.integrations.store.run import Run


def test_choices_are_what_the_implementations_know():
    assert tuple(augment.AUGMENTATIONS) == settings.AUGMENTATIONS
    assert tuple(evaluation.PROBES) == settings.PROBES
    # no queue to fill here, and no directions to choose
    assert tuple(name for name in PAIRINGS if name not in ("queue", "joint", "single")) == settings.PAIRINGS


def test_every_flag_has_a_help():
    assert all(about(field).help for field in fields(settings.Settings) if about(field).flag)


@pytest.mark.parametrize("change", [{"lr": -1.0}, {"lr": float("nan")}, {"batch": 1}, {"probe": "svn"}])
def test_a_cell_out_of_range_is_refused(change):
    with pytest.raises(ValueError, match=f"^{next(iter(change))}"):
        training.cell("demo", "infonce", 0, **change)


@pytest.mark.parametrize(
    ("cell", "folder"),
    [
        (
            training.cell("MUTAG", "adnce:t=0.15", 3, epochs=5, probe="svc"),
            "graph/MUTAG/adnce-t=0.15-denominator=with_positive-af736bee/seed3",
        ),
        (training.bag("demo", 0), "graph/demo/bag-of-nodes-c1097034/seed0"),
        (training.untrained("demo", 1), "graph/demo/untrained-encoder-ff2d371c/seed1"),
    ],
)
def test_runs_of_version_0_1_0_are_in_the_same_folders(tmp_path, cell, folder):
    assert Run(tmp_path, cell).path == tmp_path / folder
