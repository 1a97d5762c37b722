"""``counterpoint demo``: what it trains, keeps, writes and says."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch

import counterpoint as cp
from counterpoint.integrations import report, store
from counterpoint.integrations.command import demo, planted
from counterpoint.integrations.command.main import main
from counterpoint.integrations.domain import NAMES

for needed in ("matplotlib", "torch_geometric"):
    pytest.importorskip(needed)


GRAPHS = ["demo", "--quick", "--domains", "graph", "--seeds", "2", "--jobs", "1"]


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    assert main([*GRAPHS, "--out", str(out)]) == 0
    return out


def test_every_objective_with_every_seed(graphs):
    every = store.find_runs(graphs / "runs")
    rows = ["untrained encoder", *demo.ROWS]
    assert sorted((run.name, run.arguments["seed"]) for run in every) == sorted(
        (row, s) for row in rows for s in (0, 1)
    )
    assert len(demo.ROWS) >= 6
    for run in every:
        assert run.done


def test_what_it_leaves(graphs):
    assert {path.name for path in graphs.iterdir()} == {"runs", "report.html", "report.json"}
    results = json.loads((graphs / "report.json").read_text())
    (column,) = results["columns"]
    assert [row["row"] for row in column["rows"]][:2] == ["untrained encoder", "InfoNCE"]
    assert "With --quick: the numbers mean nothing." in results["notes"]
    page = (graphs / "report.html").read_text()
    assert f"{demo.INTRO} The sentences, graphs and robots are synthetic.<" in page  # nothing of pictures


@pytest.mark.slow
def test_the_planted_cases_come_first(tmp_path):
    out = ["--out", str(tmp_path)]
    assert main(["demo", "--quick", "--domains", "graph", "planted", "--seeds", "2", "--jobs", "1", *out]) == 0
    results = json.loads((tmp_path / "report.json").read_text())
    assert [column["domain"] for column in results["columns"]] == ["planted", "planted", "graph"]
    assert results["columns"][0]["dataset"] == next(iter(planted.CLASSES))


def test_a_second_start_does_nothing_twice_and_says_the_same(graphs, capsys):
    before = {path: path.stat().st_mtime_ns for path in (graphs / "runs").rglob("run.json")}
    assert main([*GRAPHS, "--out", str(graphs), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((graphs / "report.json").read_text())
    assert before == {path: path.stat().st_mtime_ns for path in (graphs / "runs").rglob("run.json")}


def test_what_cannot_run_is_left_out_and_said(tmp_path, capsys, monkeypatch):
    cells = demo.cells

    def known(domain, *args):
        if domain != "graph":
            raise ImportError(f"{domain} needs something")
        return cells(domain, *args)

    monkeypatch.setattr(demo, "cells", known)
    words = ["demo", "--quick", "--seeds", "1", "--jobs", "1", "--objective", "hcl:t=0.3", "--out", str(tmp_path)]
    assert main(words) == 0
    said = capsys.readouterr()
    assert "image is left out: image needs something" in said.out
    assert "image is left out: image needs something" in (tmp_path / "report.html").read_text()
    assert {run.name for run in store.find_runs(tmp_path)} == {"untrained encoder", "hcl:t=0.3"}
    assert main([*words, "--domains", "image"]) == 2
    assert "nothing of the demo can run here" in capsys.readouterr().err


@pytest.mark.parametrize("domain", NAMES)
def test_objectives_differ_in_nothing_but_themselves(domain):
    try:
        getattr(demo._runs(domain), "check", lambda: None)()
    except (ImportError, OSError) as error:
        pytest.skip(str(error))
    found = list(demo.cells(domain, demo.ROWS, [0, 1]))
    assert len(found) == 2 * (1 + len(demo.ROWS))
    own = ("objective", "label", "seed")
    trained = [{k: v for k, v in cell.items() if k not in own} for cell in found if cell["objective"]]
    assert all(cell == trained[0] for cell in trained)
    for cell in found:
        if cell["objective"]:
            assert cp.objective(cell["objective"]).views in (None, 4)


def test_sentences_have_known_similarity():
    pytest.importorskip("sentence_transformers")
    from counterpoint.integrations.sentence import demo_runs as synthetic

    meant = {
        word: (slot, i) for slot, groups in synthetic.SLOTS.items() for i, group in enumerate(groups) for word in group
    }
    pairs = synthetic.scored(60, 0)
    for gold, *both in zip(pairs.gold, pairs.first, pairs.second, strict=True):
        first, second = ({meant[word] for word in text.split() if word in meant} for text in both)
        assert len(first) == len(second) == 5
        assert len(first & second) == gold
    views = synthetic.positives(20, 0, views=3)
    assert all(len({frozenset(meant[w] for w in text.split() if w in meant) for text in same}) == 1
               for same in zip(*views.values(), strict=True))  # fmt: skip
    assert torch.equal(synthetic.encoder(0)[0].embedding.weight, synthetic.encoder(0)[0].embedding.weight)


def test_the_planted_cells_know_classes_in_one_row_only(tmp_path):
    found = list(demo.cells(demo.PLANTED, demo.ROWS, [3]))
    assert len(found) == 2 * (2 + len(demo.ROWS))
    assert {cell["label"] for cell in found if cell["ids"]} == {planted.KNOWN}
    words = ["demo", "--quick", "--domains", "planted", "--seeds", "1", "--jobs", "1", "--objective", "hcl:t=0.3"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    runs = store.find_runs(tmp_path)
    assert {run.name for run in runs} == {"untrained encoder", "hcl:t=0.3", planted.KNOWN}
    assert all(run.done and 0 < run.result["accuracy"] < 100 for run in runs)


@pytest.mark.slow
def test_what_is_planted_is_found_and_what_is_not_is_not(tmp_path):
    grid = demo.cells(demo.PLANTED, {"InfoNCE": demo.ROWS["InfoNCE"]}, range(5))
    train = partial(demo.train, cache=tmp_path)
    helped, nothing = report.summarise(store.run_grid(train, grid, tmp_path, progress=False)).columns
    assert (helped.baseline, nothing.baseline) == ("InfoNCE", "InfoNCE")
    assert helped.compared[planted.KNOWN].different
    assert helped.compared[planted.KNOWN].difference > 3
    assert nothing.compared[planted.KNOWN].kind == "equivalent"
    for column in (helped, nothing):
        assert all(verdict.different for verdict in column.checks["untrained encoder"].values())


@pytest.mark.slow
def test_all_domains(tmp_path):
    assert main(["demo", "--quick", "--seeds", "2", "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "report.json").read_text())
    assert len(results["columns"]) + sum("left out" in note for note in results["notes"]) == 6
