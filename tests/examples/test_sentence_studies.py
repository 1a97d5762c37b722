"""The studies of sentences: equal budgets, clean choices, tables."""

from __future__ import annotations

import importlib
import json
import sys

import numpy as np
import pytest
from tiny_bert import texts

import counterpoint as cp
from counterpoint.integrations.sentence.settings import SEVEN
from counterpoint.integrations.store.run import find_runs

for needed in ("sentence_transformers", "datasets", "accelerate", "sklearn"):
    pytest.importorskip(needed)


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Small data of all kinds that the studies ask for, in COUNTERPOINT_DATA."""
    draw = np.random.default_rng(0)
    some = lambda count: texts(1, count, seed=int(draw.integers(1000)))[0]  # noqa: E731
    for folder in ("sts", "transfer"):
        (tmp_path / folder).mkdir()
    for name in (*SEVEN, "STSB-dev"):
        rows = [f"x\t{draw.uniform(0, 5):.2f}\t{a}\t{b}" for a, b in zip(some(20), some(20), strict=True)]
        (tmp_path / "sts" / f"{name}.tsv").write_text("subset\tscore\tsentence1\tsentence2\n" + "\n".join(rows))
    for part in ("train", "test"):
        rows = [f"{draw.integers(2)}\t{a}\t{b}" for a, b in zip(some(40), some(40), strict=True)]
        (tmp_path / "transfer" / f"MRPC-{part}.tsv").write_text("\n".join(rows))
    (tmp_path / "sentences.txt").write_text("\n".join(some(70)))
    (tmp_path / "book.txt").write_text(" ".join(f"The {one}." for one in some(70)))
    monkeypatch.setenv("COUNTERPOINT_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", ["simcse_sts", "quick_thoughts"])
def test_rows_differ_in_nothing_but_the_objective(name):
    study = importlib.import_module(name)
    for row, template in study.ROWS.items():
        spec, changes = (template, {}) if isinstance(template, str) else template
        assert set(changes) <= {"views", "steps", "every"}, row
        objective = cp.objective(spec.format(t=0.3))
        assert {part.temperature for part in objective.modules() if hasattr(part, "temperature")} == {0.3}, row
        inside = {part.denominator for part in objective.modules() if hasattr(part, "temperature")}
        assert inside == {"negatives" if "left out" in row else "with_positive"}, row
    assert "denominator" not in study.SMALL


@pytest.mark.parametrize(
    ("name", "data", "rows", "columns"),
    [
        ("simcse_sts", "sentences.txt", ["SimCSE (InfoNCE)", "DCL"], ["average", *SEVEN]),
        ("quick_thoughts", "book.txt", ["QT", "QT + DP"], ["MRPC", "STSB-test"]),
    ],
)
@pytest.mark.slow
def test_a_study_chooses_by_dev_and_compares_on_test(world, bert, monkeypatch, capsys, name, data, rows, columns):
    study, shared, out = importlib.import_module(name), importlib.import_module("simcse_sts"), world / "out"
    words = ["--size", "smoke", "--data", data, "--model", str(bert), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [name, *words])
    shared.main_of(study.__doc__, study.study, study.SIZES, data, "runs")
    table = capsys.readouterr().out
    tried, shown = find_runs(out / "tuning"), find_runs(out / "test")
    assert {run.arguments["seed"] for run in tried} == {1000}
    assert {run.arguments["seed"] for run in shown} == {0, 1}
    assert all(set(run.result) == {"STSB-dev"} for run in tried)  # no test set was looked at
    assert all(set(columns) <= set(run.result) for run in shown)
    scores = json.loads((out / "tuning.json").read_text())
    temperatures = {row: [one for one in scores if one.startswith(f"{row}, t=")] for row in rows}
    assert len(set(map(len, temperatures.values()))) == 1
    for label, score in scores.items():
        assert score == pytest.approx(np.mean([run.result["STSB-dev"] for run in tried if run.name == label]))
    best = {row: max(labels, key=scores.__getitem__) for row, labels in temperatures.items()}
    assert {run.name for run in shown} == {*rows, "before training"}
    specs = {row: next(run.arguments["objective"] for run in tried if run.name == label) for row, label in best.items()}
    assert specs == {run.name: run.arguments["objective"] for run in shown if run.name in rows}
    assert f"{rows[0]} (baseline)" in table
    assert all(f"== sentence: {column} ==" in table for column in columns)
    assert json.loads((out / "report.json").read_text())["columns"][0]["metric"] == columns[0]


def test_wrong_data_is_one_line(world, bert, monkeypatch, capsys):
    study = importlib.import_module("simcse_sts")
    monkeypatch.setattr(sys, "argv", ["study", "--data", "none.txt", "--model", str(bert), "--out", str(world / "out")])
    with pytest.raises(SystemExit) as stopped:
        study.main_of(study.__doc__, study.study, study.SIZES, "sentences.txt", "runs")
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert "none.txt: no such file" in error
    assert error.count("\n") == 1
