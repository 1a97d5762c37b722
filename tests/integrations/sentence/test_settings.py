"""The settings of a sentence run: every flag is explained, and stored runs are found again."""

from __future__ import annotations

from dataclasses import fields

import pytest

pytest.importorskip("sentence_transformers")

from counterpoint.integrations.command.main import build
from counterpoint.integrations.domain import about
from counterpoint.integrations.sentence import settings, training
from counterpoint.integrations.sentence.presets import PRESETS
from counterpoint.integrations.store.run import Run


def test_every_flag_has_a_help():
    assert all(about(field).help for field in fields(settings.Settings) if about(field).flag)


def test_presets_change_settings_that_exist():
    names = {field.name for field in fields(settings.Settings)}
    for preset in PRESETS.values():
        assert set(preset.settings) <= names


@pytest.mark.parametrize(
    ("cell", "folder"),
    [
        (
            training.cell("wiki1m.txt", "infonce:t=0.05", 7, lr=1e-5, test=["STS12"]),
            "sentence/wiki1m.txt/infonce-t=0.05-denominator=with_positive-0cf1d61e/seed7",
        ),
        (training.untrained("book.txt", 2), "sentence/book.txt/before-training-02565cef/seed2"),
    ],
)
def test_runs_of_version_0_1_0_are_in_the_same_folders(tmp_path, cell, folder):
    assert Run(tmp_path, cell).path == tmp_path / folder


@pytest.mark.parametrize("path", ["texts/a.txt", "./texts/a.txt", "texts//a.txt"])
def test_a_file_has_one_name(path):
    arguments = build("train sentence").parse_args(["train", "sentence", "--data", path])
    assert arguments.data == "texts/a.txt"
