"""BEIR folders, and what is said of those that are wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_bert import write_collection

pytest.importorskip("datasets")

from counterpoint.integrations.sentence import data, retrieval, settings


def write(folder: Path, documents: list[dict], queries: list[dict], judged: str, split: str = "test") -> Path:
    (folder / "qrels").mkdir(parents=True)
    for name, rows in (("corpus", documents), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    return folder


DOCUMENTS = [{"_id": "a", "title": "T", "text": "one"}, {"_id": "b", "text": "two"}, {"_id": "c", "text": ""}]
QUERIES = [{"_id": 1, "text": "q1"}, {"_id": "2", "text": "q2"}, {"_id": "3", "text": "q3"}]


def test_reads_titles_grades_and_judged_queries_only(tmp_path):
    judged = "1\tb\t3\n1\ta\t0\n2\ta\t1\n2\tb\t2\n3\tc\t1\n"
    found = retrieval.read(write(tmp_path / "x", DOCUMENTS, QUERIES, judged))
    assert found.documents == {"a": "T one", "b": "two"}  # one without text cannot be found
    assert found.queries == {"1": "q1", "2": "q2"}
    assert found.relevant == {"1": {"b"}, "2": {"a", "b"}}
    assert found.pairs() == [("q1", "two"), ("q2", "T one"), ("q2", "two")]


def test_judgements_without_a_header_lose_none(tmp_path):
    folder = write(tmp_path / "x", DOCUMENTS, QUERIES, "")
    (folder / "qrels" / "test.tsv").write_text("1\tb\t3\n2\ta\t1\n")
    assert retrieval.read(folder).relevant == {"1": {"b"}, "2": {"a"}}


@pytest.mark.parametrize("between", ["\t", " ", "  "])
def test_judgements_of_trec(tmp_path, between):
    folder = write(tmp_path / "x", [{"_id": "0", "text": "zero"}, *DOCUMENTS], QUERIES, "")
    rows = ("1 0 b 3", "1 0 a 0", "2 Q0 a 1", "2 0 0 1")
    (folder / "qrels" / "test.tsv").write_text("".join(between.join(row.split()) + "\n" for row in rows))
    assert retrieval.read(folder).relevant == {"1": {"b"}, "2": {"a", "0"}}
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n1\t0\t1\n2\ta\t1\n")
    assert retrieval.read(folder).relevant == {"1": {"0"}, "2": {"a"}}


@pytest.mark.parametrize(
    ("judged", "says"),
    [
        ("9\ta\t1\n", r"test.tsv: line 2: queries.jsonl does not contain the query '9'"),
        ("1\ta\thigh\n", "line 2: expected a number as grade, got 'high'"),
        ("1 a 1\n", "line 2 has 1 columns, expected 3 separated by tabs"),
        ("1\tz\t1\n", "no query of test has a relevant document"),
    ],
)
def test_wrong_judgements(tmp_path, judged, says):
    with pytest.raises(ValueError, match=says):
        retrieval.read(write(tmp_path / "x", DOCUMENTS, QUERIES, judged))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{oops", "corpus.jsonl: line 1: expected"),
        ('{"text": "a"}', "line 1: expected"),
        ('{"_id": 1, "text": null}', "line 1: expected text, got None"),
    ],
)
def test_wrong_lines(tmp_path, line, says):
    folder = write(tmp_path / "x", DOCUMENTS, QUERIES, "1\ta\t1\n")
    (folder / "corpus.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match=says):
        retrieval.read(folder)


def test_a_split_that_is_missing_names_the_others(tmp_path):
    folder = write(tmp_path / "x", DOCUMENTS, QUERIES, "1\ta\t1\n")
    with pytest.raises(FileNotFoundError, match=r"train.tsv: no such file; splits of x: test\."):
        retrieval.read(folder, "train")


def test_found_by_folder_or_by_name(tmp_path, monkeypatch):
    folder = write_collection(tmp_path / "retrieval" / "words")
    monkeypatch.setenv("COUNTERPOINT_DATA", str(tmp_path))
    assert retrieval.find(folder) == retrieval.find("words") == folder
    assert retrieval.collections() == ["words"]
    with pytest.raises(FileNotFoundError, match="Did you mean 'words'"):
        retrieval.find("wrods")
    with pytest.raises(FileNotFoundError, match=r"not a BEIR folder, which has corpus\.jsonl"):
        retrieval.find(tmp_path)
    with pytest.raises(ValueError, match=r"dev: unknown dev 'wrods'\. Did you mean 'words'"):
        settings.check_set("dev", "wrods", ["STSB-dev"])
    monkeypatch.delenv("COUNTERPOINT_DATA")
    with pytest.raises(FileNotFoundError, match="COUNTERPOINT_DATA is not set"):
        retrieval.find("words")


def test_a_collection_is_training_data(tmp_path):
    folder = write_collection(tmp_path / "words")
    samples, dropped = data.load(folder)
    assert dropped == 0
    assert list(zip(samples["anchor"], samples["positive"], strict=True)) == retrieval.read(folder, "train").pairs()
    with pytest.raises(ValueError, match="positives: unknown positives 'same'"):
        data.load(folder, "same")
