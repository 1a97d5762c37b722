"""mteb's own evaluation of an ordinary SentenceTransformer; the downloads alone are replaced."""

from __future__ import annotations

import json

import pytest
import tiny_bert
import torch

pytest.importorskip("sentence_transformers")
datasets = pytest.importorskip("datasets")
pytest.importorskip("mteb")

from counterpoint.integrations.command.main import main  # noqa: E402
from counterpoint.integrations.sentence import mteb_tasks, sts  # noqa: E402


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A folder with a set of scored pairs; mteb's task of it, and one of intents, have their data already."""
    tiny_bert.write_sts(tmp_path, ("STS16",))
    pairs = sts.load("STS16", tmp_path)
    scored = {"test": {"sentence1": pairs.first, "sentence2": pairs.second, "score": pairs.gold}}
    intents = {}
    for split, seed in (("train", 0), ("test", 1)):
        (texts,) = tiny_bert.texts(1, 60, seed=seed)
        intents[split] = {"text": texts, "label": [index % 3 for index in range(len(texts))]}
    local, find = {"STS16": scored, "Banking77Classification": intents}, mteb_tasks.find

    def with_data(names):
        for task in (tasks := find(names)):
            if columns := local.get(task.metadata.name):
                task.dataset = {split: datasets.Dataset.from_dict(part) for split, part in columns.items()}
                task.data_loaded = True
        return tasks

    monkeypatch.setattr(mteb_tasks, "find", with_data)
    return tmp_path


@pytest.mark.slow
def test_scores_are_ours_where_we_have_them(bert, data):
    model = tiny_bert.load(bert)
    found = mteb_tasks.evaluate(model, ["STS16", "Banking77Classification"])
    ours = sts.evaluate(model, ["STS16"], data).sets
    assert found.tasks["STS16"].score == pytest.approx(ours["STS16"].spearman, abs=1e-3)
    assert found.mean == pytest.approx(sum(one.score for one in found.tasks.values()) / 2)
    assert (found.tasks["STS16"].metric, found.tasks["STS16"].kind) == ("cosine_spearman", "STS")


def test_results_belong_to_the_weights(bert, data, tmp_path, monkeypatch):
    model, names = tiny_bert.load(bert), ["Banking77Classification", "STS16"]
    how = {"out": tmp_path / "kept", "batch_size": 64}
    first = mteb_tasks.evaluate(model, names, **how)
    assert 0 < first.tasks["Banking77Classification"].score < 100
    with monkeypatch.context() as patch:
        patch.setattr(type(model), "encode", None)  # a second call embeds nothing
        assert mteb_tasks.evaluate(model, names, **how).tasks == first.tasks
    with torch.no_grad():
        next(model.parameters()).normal_()
    assert mteb_tasks.evaluate(model, ["STS16"], **how).tasks["STS16"] != first.tasks["STS16"]


def test_a_benchmark_is_its_tasks():
    found = [task.metadata.name for task in mteb_tasks.find(["MTEB(eng, v2)", "STS16", "STS12"])]
    assert len(found) == len(set(found)) == 42
    assert found[-1] == "STS16"  # STS12 is of the benchmark already


@pytest.mark.parametrize(
    ("name", "says"),
    [
        pytest.param("Banking77Clasification", "'Banking77Classification'", marks=pytest.mark.slow),
        ("MTEB(eng,v2)", "'MTEB(eng, v2)'"),
    ],
)
def test_unknown_names(bert, data, capsys, name, says):
    assert main(["eval", "mteb", str(bert), "--pooling", "cls", "--tasks", name]) == 2
    assert f"mteb has no task or benchmark {name!r}. Did you mean {says}?" in capsys.readouterr().err


def test_the_command(bert, data, capsys):
    words = ["eval", "mteb", str(bert), "--pooling", "cls", "--tasks"]
    assert main([*words, "STS16", "Banking77Classification"]) == 0
    out = capsys.readouterr().out
    for row in ("STS16", "Banking77Classification", "mean"):
        assert row in out
    assert main([*words, "STS16", "ArguAna", "--json"]) == 2  # its data would have to be downloaded
    assert "ArguAna: its data cannot be had" in (said := capsys.readouterr().err)
    assert "1 tasks are done" in said
    assert main([*words, "STS16", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mean"] is None
