"""examples/studies/retrieval.py: worlds have the faults they name, every row runs, finished rows are kept."""

from __future__ import annotations

import importlib
import json
import math
import re

import pytest
import torch
from torch.nn.functional import normalize

pytest.importorskip("scipy")


@pytest.fixture
def study(monkeypatch):
    module = importlib.import_module("retrieval")
    monkeypatch.setitem(module.SIZES, "small", (2, 2, 8))
    monkeypatch.setattr(module, "TUNING_SEEDS", 1)
    monkeypatch.setattr(module, "PER_INTENT", 6)
    return module


@pytest.fixture
def texts(study):
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(77).repeat_interleave(7)
    centre = torch.randn(77, 8, generator=draw)
    table = normalize(centre[labels] + 0.7 * torch.randn(len(labels), 8, generator=draw), dim=1)
    held_out = table[::3], labels[::3]
    judged = table[:6], table[:30], labels[:6].unsqueeze(1) == labels[:30]
    return study.Texts(table, labels, held_out, held_out, judged)


@pytest.mark.parametrize(("world", "least", "most"), [
    ("none of the mined false", 0.0, 0.0),
    ("half of the mined false", 0.5, 0.5),
    ("all of the mined false", 1.0, 1.0),
    ("mined, top 5", 0.1, 0.9),
])  # fmt: skip
def test_the_share_of_false_hard_negatives(study, texts, world, least, most):
    chosen, pairs, hard = study.draw(texts, study.WORLDS[world], 0, 3, 8)
    assert len(set(chosen.tolist())) == 77 * 6
    anchors, positives = pairs.unbind(1)
    assert bool((texts.labels[anchors] == texts.labels[positives]).all() and (anchors != positives).all())
    assert bool((hard != anchors.unsqueeze(2)).all() and (hard != positives.unsqueeze(2)).all())
    false = (texts.labels[hard] == texts.labels[anchors].unsqueeze(2)).float().mean()
    assert least <= float(false) <= most


def test_topics_are_neighbours(study, texts):
    _, pairs, hard = study.draw(texts, study.WORLDS["topics"], 0, 20, 8)
    _, others, _ = study.draw(texts, study.WORLDS["mined, top 5"], 0, 20, 8)
    assert hard.shape[-1] == 0
    close, usual = ((texts.table[p[:, :1, 0]] * texts.table[p[:, 0]]).sum(-1).mean() for p in (pairs, others))
    assert close > usual + 0.2


@pytest.mark.slow
def test_every_row_runs_and_is_kept(study, texts, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(study, "load", lambda out, cranfield: texts)
    some = {name: study.WORLDS[name] for name in ("mined, top 5", "topics")}
    monkeypatch.setattr(study, "WORLDS", some)
    study.main(["--out", str(tmp_path)])
    printed = capsys.readouterr().out
    lines = (tmp_path / "small.jsonl").read_text().splitlines()
    assert len(lines) == 2 * len(study.ROWS)
    for record in map(json.loads, lines):
        assert 6 <= len(record["tried"]) <= 8
        for metric in study.METRICS:
            assert len(record[metric]) == 2
            assert all(0 <= x <= 100 for x in record[metric])
    assert all(f"| {row} |" in printed for row in study.ROWS)
    study.main(["--out", str(tmp_path)])
    assert (tmp_path / "small.jsonl").read_text().splitlines() == lines  # nothing ran again
    assert "CPU s" not in capsys.readouterr().out


@pytest.mark.parametrize(("best", "most"), [(0.03, 6), (0.0125, 7), (0.003, 8), (0.1, 7), (1.0, 8)])
@pytest.mark.parametrize("row", ["InfoNCE", "HCL"])
def test_every_row_has_the_same_budget_and_goes_beyond_an_edge(study, row, best, most):
    tried = study.tune(study.ROWS[row], lambda value, ts: [-abs(math.log(t / best)) for t in ts])
    values = study.ROWS[row].values
    assert 6 <= len(tried) <= most
    assert {value for value, _ in tried} == {*values}
    _, t = max(tried, key=tried.get)
    assert abs(math.log(t / best)) < math.log(4.1)


def test_ndcg(study):
    q, d = torch.eye(2), torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    relevant = torch.tensor([[True, True, False], [False, False, True]])
    assert float(study.ndcg(q, d, relevant, k=3)) == pytest.approx(100)
    swapped = torch.tensor([[False, False, True], [False, False, True]])
    assert float(study.ndcg(q, d, swapped, k=3)) == pytest.approx(100 * (0.5 + 1) / 2)


def test_the_share_of_what_labels_gain(study):
    """The interval holds the true share in 95 of 100 studies; what gains as much as labels do has all of it."""
    draw, held, studies = torch.Generator().manual_seed(0), 0, 400
    for _ in range(studies):
        plain, common, *noise = torch.randn(4, 20, generator=draw)
        gains = {study.ORACLE: 1.0 + 0.5 * common + 0.6 * noise[0], "row": 0.4 + 0.5 * common + 0.6 * noise[1]}
        values = {study.PLAIN: plain, **{name: plain + gain for name, gain in gains.items()}}
        said = study.shares({name: value.tolist() for name, value in values.items()})
        low, high = map(float, re.fullmatch(r"row \S+ \[(\S+), (\S+)\]", said).groups())
        held += low - 0.5 <= 40 <= high + 0.5
    assert 0.92 <= held / studies <= 0.98
    values["row"] = values[study.ORACLE]
    assert study.shares({name: value.tolist() for name, value in values.items()}) == "row 100 [100, 100]"


def test_the_page_is_what_the_kept_rows_give(study, monkeypatch, tmp_path):
    monkeypatch.undo()
    page, kept = study.RESULTS.read_text(encoding="utf-8"), (study.ROWS_OF_PAGE / "small.jsonl").read_text()
    assert f"{study.MARK}\n{study.table(study.ROWS_OF_PAGE, 'small')}\n<!-- end -->" in page
    # a row that was measured again takes its old place
    first, second, *_ = kept.splitlines()
    (tmp_path / "rows").mkdir()
    monkeypatch.setattr(study, "ROWS_OF_PAGE", tmp_path / "rows")
    (tmp_path / "rows" / "small.jsonl").write_text(f"{first}\n{second}\n")
    again = json.dumps(json.loads(first) | {"spec": "infonce:t=1"})
    (tmp_path / "small.jsonl").write_text(f"{again}\n{second[:50]}")
    study.collect(tmp_path, "small")
    assert (tmp_path / "rows" / "small.jsonl").read_text() == f"{again}\n{second}\n"
