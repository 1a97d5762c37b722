"""Hard negatives of pairs, by a model whose similarities are known."""

from __future__ import annotations

import json

import pytest
from tiny_bert import load, texts, write_collection

pytest.importorskip("sentence_transformers")
pytest.importorskip("datasets")

from counterpoint.integrations.command.main import main
from counterpoint.integrations.sentence import data, retrieval
from counterpoint.integrations.sentence.mine import mine


@pytest.fixture
def pairs(tmp_path):
    rows = zip(*texts(2, 20, seed=3), strict=True)
    path = tmp_path / "pairs.tsv"
    path.write_text("query\tanswer\n" + "".join(f"{a}\t{b}\n" for a, b in rows))
    return path


def test_the_most_similar_candidates_that_are_not_the_positive(bert, pairs):
    model = load(bert)
    mined = mine(pairs, model, negatives=3, verbose=False)
    samples, _ = data.load(pairs)
    answers = list(dict.fromkeys(samples["answer"]))
    keys = model.encode(answers, normalize_embeddings=True)
    assert mined.column_names == ["query", "answer", "negative_1", "negative_2", "negative_3"]
    assert len(mined) == len(samples)
    for row in mined:
        positives = {a for q, a in zip(samples["query"], samples["answer"], strict=True) if q == row["query"]}
        similar = keys @ model.encode([row["query"]], normalize_embeddings=True)[0]
        ranked = [answers[i] for i in (-similar).argsort() if answers[i] not in positives]
        found = [row[f"negative_{k}"] for k in (1, 2, 3)]
        assert [similar[answers.index(x)] for x in found] == pytest.approx(
            [similar[answers.index(x)] for x in ranked[:3]], abs=1e-5
        )


def test_command_writes_what_training_reads(bert, tmp_path, capsys):
    folder = write_collection(tmp_path / "words")
    model = tmp_path / "model"
    load(bert).save_pretrained(str(model))
    out = tmp_path / "mined.jsonl"
    assert main(["mine", str(folder), str(model), "--out", str(out), "--negatives", "2", "--json"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    samples, _ = data.load(out)
    assert said == {"rows": len(samples), "columns": samples.column_names, "file": str(out)}
    assert samples.column_names == ["anchor", "positive", "negative_1", "negative_2"]
    documents = set(retrieval.read(folder, "train").documents.values())
    assert {row["negative_1"] for row in samples} <= documents


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--out", "x.csv"], "--out: expected a name that ends in .jsonl, got x.csv"),
        (["--out", "x.jsonl", "--negatives", "50"], "no pair has 50 negatives"),
        (["--out", "x.jsonl", "--columns", "query", "anser"], "has no column 'anser'. Did you mean 'answer'"),
    ],
)
def test_wrong_input(bert, pairs, tmp_path, monkeypatch, capsys, words, says):
    monkeypatch.chdir(tmp_path)
    load(bert).save_pretrained("model")
    assert main(["mine", str(pairs), "model", *words]) == 2
    assert says in capsys.readouterr().err


def test_pairs_are_read_before_the_model(pairs, tmp_path, capsys):
    (tmp_path / "model").mkdir()  # which contains none
    words = ["mine", str(pairs), str(tmp_path / "model"), "--out", str(tmp_path / "x.jsonl")]
    assert main([*words, "--columns", "query", "anser"]) == 2
    assert "has no column 'anser'" in capsys.readouterr().err
