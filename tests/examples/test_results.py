"""examples/studies/results.py: docs/results.md is what the committed scores give; scores are those of the runs."""

from __future__ import annotations

import importlib
import json
import re

import numpy as np
import pytest
from documents import ROOT
from reports import noisy

from counterpoint.integrations import report, store

for needed in ("scipy", "sklearn", "torch_geometric"):
    pytest.importorskip(needed)

PAGE = ROOT / "docs" / "results.md"


@pytest.fixture
def results():
    return importlib.import_module("results")


def finished(root, table, **settings):
    """Finished runs of sentences, ``{(row, spec): {seed: score}}``; rows may have settings of their own."""
    cells, scores = [], {}
    for (row, spec, *own), values in table.items():
        for seed, value in values.items():
            cell = {"domain": "sentence", "dataset": "a.txt", "objective": spec, "seed": seed, "label": row}
            cells.append({**cell, "file": "/home/me/a.txt", "batch": 32, "steps": 40, **settings, **dict(*own)})
            scores[row, seed] = value
    train = lambda run: run.finish({"average": scores[run.name, run.arguments["seed"]]})  # noqa: E731
    return store.run_grid(train, cells, root, progress=False)


def page_of(results, tmp_path):
    path = tmp_path / "page.md"
    mark = "<!-- simcse_sts: made by `python examples/studies/results.py` -->"
    path.write_text(f"kept\n{mark}\nold\n<!-- end of simcse_sts -->\nkept\n")
    return path


def test_the_page_is_what_the_committed_scores_give(results, tmp_path):
    (tmp_path / "page.md").write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    results.main(["--page", str(tmp_path / "page.md")])
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8")
    marked = set(re.findall(r"<!-- (\w+): made by `python examples/studies/results.py` -->", PAGE.read_text("utf-8")))
    scores = {path.stem for path in (ROOT / "docs" / "results").glob("*.jsonl")}
    assert scores
    assert marked == scores
    assert scores <= set(results.STUDIES)
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "results").glob("*.jsonl"))
    assert not re.search(r'"/\w', text)  # no path of a machine


def test_what_a_run_folder_says_stands_on_the_page(results, tmp_path):
    base, better = noisy(60, 6), {seed: value + 2 + 0.011 * seed for seed, value in noisy(60, 6).items()}
    table = {("SimCSE (InfoNCE)", "infonce:t=0.05"): base, ("DCL", "dcl:t=0.1"): better}
    table |= {("HCL", "hcl:t=0.1"): base, ("before training", None): noisy(40, 6)}
    shorter = ("InfoNCE, 4 views at equal time", "infonce:t=0.1", (("views", 4), ("steps", 20), ("length", 20)))
    runs = finished(tmp_path / "runs" / "simcse_sts" / "test", table | {shorter: base})
    path, words = page_of(results, tmp_path), ["--scores", str(tmp_path / "scores")]
    results.main([*words, "--collect", str(tmp_path / "runs"), "--page", str(path)])
    page = path.read_text()
    assert page.count("kept") == 2
    assert "\nold\n" not in page
    assert "comparisons with SimCSE (InfoNCE), 1 is higher and none lower" in page
    (column,) = report.summarise(runs, baseline="SimCSE (InfoNCE)").columns
    verdict = column.compared["DCL"]
    assert f"({verdict.difference:+.2f} [{verdict.low:+.2f}, {verdict.high:+.2f}])" in page
    assert "higher: DCL (by 2.0" in page
    assert 'the same numbers: HCL, "InfoNCE, 4 views at equal time"' in page
    assert "| `dcl:t=0.1,denominator=with_positive` |" in page
    assert "| `infonce:t=0.1,denominator=with_positive`, `steps=20`, `views=4` |" in page
    assert "All rows: `batch=32`, `steps=40`; the rest as by default." in page
    assert "training is worth" in page
    again = path.read_text()
    results.main([*words, "--page", str(path)])  # from the scores alone
    assert path.read_text() == again


def test_scores_grow_by_seeds_and_a_new_setting_replaces_the_old_one(results, tmp_path):
    table = {("SimCSE (InfoNCE)", "infonce:t=0.05"): noisy(60, 3), ("DCL", "dcl:t=0.1"): noisy(61, 3)}
    old = results.records_of(finished(tmp_path / "a", table))
    assert [record["arguments"]["file"] for record in old] == ["a.txt", "a.txt"]
    more = {("SimCSE (InfoNCE)", "infonce:t=0.05"): {3: 1.0, 1: 2.0}, ("DCL", "dcl:t=0.2"): noisy(62, 2)}
    rows = {r["arguments"]["label"]: r for r in results.merged(old, results.records_of(finished(tmp_path / "b", more)))}
    assert rows["SimCSE (InfoNCE)"]["seeds"] == [0, 1, 2, 3]
    expected = [noisy(60, 3)[0], 2.0, noisy(60, 3)[2], 1.0]
    assert rows["SimCSE (InfoNCE)"]["scores"]["average"] == pytest.approx(expected, rel=1e-6)
    assert rows["DCL"]["seeds"] == [0, 1]
    assert rows["DCL"]["arguments"]["objective"].startswith("dcl:t=0.2")
    assert len(rows) == 2


def test_what_chose_a_setting_is_not_collected(results, tmp_path):
    tuning = finished(tmp_path / "a", {("tuning DCL", "dcl:t=0.1"): noisy(60, 3)}, part="tune")
    assert results.records_of(tuning) == []


def test_the_runs_of_a_row_have_its_scores(results):
    for path in (ROOT / "docs" / "results").glob("*.jsonl"):
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        runs = results.runs_of(records)
        assert len(runs) == sum(len(record["seeds"]) for record in records)
        for record in records:
            name = record["arguments"]["objective"]
            own = [run for run in runs if {**run.arguments, "seed": 0} == {**record["arguments"], "seed": 0}]
            assert name is None or len(own) == len(record["seeds"]) >= 3
            for metric, values in record["scores"].items():
                assert [run.result[metric] for run in own] == pytest.approx(values, nan_ok=True)
                assert np.isfinite(values).all()


def test_a_page_without_marks_is_an_error(results, tmp_path, capsys):
    finished(tmp_path / "simcse_sts" / "test", {("SimCSE (InfoNCE)", "infonce:t=0.05"): noisy(60, 3)})
    (tmp_path / "page.md").write_text("nothing")
    words = ["--page", str(tmp_path / "page.md"), "--scores", str(tmp_path / "scores"), "--collect", str(tmp_path)]
    with pytest.raises(SystemExit) as stopped:
        results.main(words)
    assert stopped.value.code == 2
    assert "simcse_sts: the page has no marks; replace its old table by <!-- simcse_sts: " in capsys.readouterr().err
