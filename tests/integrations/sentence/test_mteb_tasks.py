"""mteb's own evaluation of an ordinary SentenceTransformer; the downloads alone are replaced by files."""

from __future__ import annotations

import json

import pytest
import tiny_bert
import torch

pytest.importorskip("sentence_transformers")
pytest.importorskip("datasets")
pytest.importorskip("mteb")

from counterpoint.integrations.command.main import main
from counterpoint.integrations.sentence import mteb_tasks, sts


@pytest.fixture
def data(tmp_path):
    """A folder with two sets of scored pairs, and questions of three intents."""
    tiny_bert.write_sts(tmp_path, ("STS16", "STSB-test"))
    (tmp_path / "intents").mkdir()
    for split, seed in (("train", 0), ("test", 1)):
        (texts,) = tiny_bert.texts(1, 60, seed=seed)
        rows = [f"intent {index % 3}\t{text}" for index, text in enumerate(texts)]
        (tmp_path / "intents" / f"BANKING77-{split}.tsv").write_text("\n".join(rows))
    return tmp_path


def test_scores_are_ours_where_we_have_them(bert, data):
    model = tiny_bert.load(bert)
    found = mteb_tasks.evaluate(model, ["STS16", "STSBenchmark"], data)
    ours = sts.evaluate(model, ["STS16", "STSB-test"], data).sets
    assert found.tasks["STS16"].score == pytest.approx(ours["STS16"].spearman, abs=1e-3)
    assert found.tasks["STSBenchmark"].score == pytest.approx(ours["STSB-test"].spearman, abs=1e-3)
    assert found.mean == pytest.approx(sum(one.score for one in found.tasks.values()) / 2)
    assert {(one.metric, one.kind, one.local) for one in found.tasks.values()} == {("cosine_spearman", "STS", True)}


def test_results_belong_to_the_weights(bert, data, tmp_path, monkeypatch):
    model, names = tiny_bert.load(bert), ["Banking77Classification", "STS16"]
    how = {"out": tmp_path / "kept", "batch_size": 64}
    first = mteb_tasks.evaluate(model, names, data, **how)
    assert 0 < first.tasks["Banking77Classification"].score < 100
    with monkeypatch.context() as patch:
        patch.setattr(type(model), "encode", None)  # a second call embeds nothing
        assert mteb_tasks.evaluate(model, names, data, **how).tasks == first.tasks
    with torch.no_grad():
        next(model.parameters()).normal_()
    assert mteb_tasks.evaluate(model, ["STS16"], data, **how).tasks["STS16"] != first.tasks["STS16"]


def test_a_benchmark_is_its_tasks():
    found = [task.metadata.name for task in mteb_tasks.find(["MTEB(eng, v2)", "STS16", "STS12"])]
    assert len(found) == len(set(found)) == 42
    assert found[-1] == "STS16"  # STS12 is of the benchmark already


@pytest.mark.parametrize(
    ("name", "says"),
    [("Banking77Clasification", "'Banking77Classification'"), ("MTEB(eng,v2)", "'MTEB(eng, v2)'")],
)
def test_unknown_names(bert, data, capsys, name, says):
    assert main(["eval", "mteb", str(bert), "--pooling", "cls", "--root", str(data), "--tasks", name]) == 2
    assert f"mteb has no task or benchmark {name!r}. Did you mean {says}?" in capsys.readouterr().err


def test_the_command(bert, data, capsys):
    words = ["eval", "mteb", str(bert), "--pooling", "cls", "--root", str(data), "--tasks"]
    assert main([*words, "STS16", "Banking77Classification"]) == 0
    out = capsys.readouterr().out
    for row in ("STS16 (local data)", "Banking77Classification (local data)", "mean"):
        assert row in out
    assert main([*words, "STS16", "ArguAna", "--json"]) == 2  # its data would have to be downloaded
    assert "ArguAna: its data cannot be had" in (said := capsys.readouterr().err)
    assert "1 tasks are done" in said
    assert main([*words, "STS16", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mean"] is None
