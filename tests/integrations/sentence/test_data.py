"""Benchmarks in both layouts, corpora in all formats, and what is said of files that are wrong."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

pytest.importorskip("datasets")

import datasets

from counterpoint.integrations.sentence import data, files, sts, transfer
from counterpoint.integrations.sentence.settings import SEVEN, STS, TRANSFER

HEADER = "subset\tscore\tsentence1\tsentence2\n"
real_data = pytest.mark.skipif("COUNTERPOINT_DATA" not in os.environ, reason="COUNTERPOINT_DATA is not set")


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(encoding))
    return path


# ---- scored pairs --------------------------------------------------------------------------------


def test_quotes_belong_to_the_text_and_swallow_no_row(tmp_path):
    rows = ['a\t1\tHe said "no.\tShe left.', 'a\t2\t\'tis\t""', "b\t3.5\tx, y\tz"]
    write(tmp_path / "sts" / "STS12.tsv", HEADER + "\n".join(rows) + "\n")
    pairs = sts.load("STS12", tmp_path)
    assert pairs.first == ['He said "no.', "'tis", "x, y"]
    assert pairs.second == ["She left.", '""', "z"]
    assert (pairs.gold, pairs.dropped) == ([1, 2, 3.5], 0)


def test_pairs_without_gold_score_are_dropped_and_counted(tmp_path):
    rows = ["a\t1\tp\tq", "a\t\tr\ts", "a\t  \tt\tu", "a\t0\tv\tw"]
    write(tmp_path / "STS16.tsv", HEADER + "\r\n".join(rows))
    pairs = sts.load("STS16", tmp_path)
    assert (pairs.first, pairs.second, pairs.dropped) == (["p", "v"], ["q", "w"], 2)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (b"a\t1\tp\tq\na\t2\tr\xe9\ts\n", r"STS13.tsv: line 3 is not utf-8: byte 0xe9"),
        (b"a\t1\tp\tq\na\t2\tr\n", r"STS13.tsv: line 3 has 3 columns, expected 4"),
        (b"a\t1\tp\tq\na\ttwo\tr\ts\n", r"STS13.tsv: line 3: expected a number as gold score, got 'two'"),
        (b"a\t1\tp\tq\na\tnan\tr\ts\n", r"expected a number as gold score, got 'nan'"),
        (b"a\t1\tp\tq\na\t\tr\ts\n", r"STS13: 1 pairs with a gold score, and 1 without; expected 2 or more"),
    ],
)
def test_wrong_rows_are_named(tmp_path, rows, says):
    (tmp_path / "STS13.tsv").write_bytes(HEADER.encode() + rows)
    with pytest.raises(ValueError, match=says):
        sts.load("STS13", tmp_path)


def test_a_missing_header_swallows_no_pair(tmp_path):
    write(tmp_path / "STS13.tsv", "a\t1\tp\tq\na\t2\tr\ts\nb\t3\tt\tu\n")
    with pytest.raises(ValueError, match=r"STS13.tsv: line 1 is a pair, expected the header"):
        sts.load("STS13", tmp_path)
    write(tmp_path / "SICK" / "SICK_train.txt", "1\tp\tq\t4.5\tNEUTRAL\n2\tr\ts\t1\tNEUTRAL\n")
    assert sts.load("SICKR-train", tmp_path).first == ["p", "r"]
    for split in ("train", "test"):
        write(tmp_path / "MRPC" / f"msr_paraphrase_{split}.txt", "1\ta\tb\tp\tq\n0\tc\td\tr\ts\n")
    assert transfer.load("MRPC", tmp_path)["train"].labels == ["1", "0"]


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(ValueError, match=r"unknown STS set 'STS-12'. Did you mean 'STS12'"):
        sts.load("STS-12", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"STS14: neither STS14.tsv nor SentEval's files"):
        sts.load("STS14", tmp_path)
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        sts.load("STS14", tmp_path / "nowhere")
    with pytest.raises(ValueError, match="MR: give its folder with --root"):
        transfer.load("MR", "hub")
    with pytest.raises(ValueError, match="SICKR-test: the hub's SICK has no splits"):
        sts.load("SICKR-test", "hub")


def test_a_senteval_folder_gives_what_the_tables_give(tmp_path):
    """The same pairs, some without a score, written down in SentEval's files and in one table per set."""
    ours, theirs = tmp_path / "ours" / "sts", tmp_path / "theirs" / "data" / "downstream"
    for year, subsets in sts.SUBSETS.items():
        table = HEADER
        for subset in subsets:
            short = subset.removeprefix("surprise.")
            rows = [("" if k == 1 else f"{k}.5", f'{year} {short} "{k}', f"second {k}") for k in range(3)]
            folder = theirs / "STS" / f"{year}-en-test"
            write(folder / f"STS.input.{subset}.txt", "".join(f"{a}\t{b}\n" for _, a, b in rows))
            write(folder / f"STS.gs.{subset}.txt", "".join(f"{gold}\n" for gold, _, _ in rows))
            table += "".join(f"{short}\t{gold}\t{a}\t{b}\n" for gold, a, b in rows)
        write(ours / f"{year}.tsv", table)
    for split, ending in (("train", ""), ("trial", ""), ("test", "_annotated")):
        rows = [(f"{split} A man {k}.", f"B {k}", f"{k + 1}.25") for k in range(3)]
        sick = "".join(f"{k}\t{a}\t{b}\t{gold}\tNEUTRAL\n" for k, (a, b, gold) in enumerate(rows))
        header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
        write(theirs / "SICK" / f"SICK_{split}{ending}.txt", header + sick)
        table = "".join(f"{split}\t{gold}\t{a}\t{b}\n" for a, b, gold in rows)
        write(ours / f"SICKR-{split}.tsv", HEADER + table)
    for split in ("train", "dev", "test"):
        rows = [(f"{split} {k}", "B", f"{k}.0") for k in range(3)]
        stsb = "".join(f"main-news\tMSRpar\t2012test\t{k}\t{gold}\t{a}\t{b}\n" for k, (a, b, gold) in enumerate(rows))
        write(theirs / "STS" / "STSBenchmark" / f"sts-{split}.csv", stsb)
        table = "".join(f"MSRpar-2012test\t{gold}\t{a}\t{b}\n" for a, b, gold in rows)
        write(ours / f"STSB-{split}.tsv", HEADER + table)
    for name in STS:
        found = sts.load(name, tmp_path / "theirs")
        assert found == sts.load(name, tmp_path / "ours")
        assert found.dropped == len(sts.SUBSETS.get(name, ()))
    assert len(sts.load("SICKR-all", tmp_path / "theirs").gold) == 9
    (theirs / "STS" / "STS15-en-test" / "STS.gs.belief.txt").write_text("1\n2\n")
    with pytest.raises(ValueError, match=r"STS.gs.belief.txt: 2 scores for the 3 pairs of STS.input.belief.txt"):
        sts.load("STS15", tmp_path / "theirs")


def test_the_hubs_revisions_are_pinned_and_its_rows_are_read(tmp_path, monkeypatch):
    """Through the real reader of `datasets`, with a folder in the place of the hub's."""
    assert all(re.fullmatch("[0-9a-f]{40}", revision) for _, revision, _ in sts.HUB.values())
    rows = [{"sentence1": "a", "sentence2": "b", "score": 1.5}, {"sentence1": "c", "sentence2": "d", "score": 4}]
    write(tmp_path / "test.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setitem(sts.HUB, "STS13", (str(tmp_path), *sts.HUB["STS13"][1:]))
    pairs = sts.load("STS13", "hub")
    assert (pairs.first, pairs.second, pairs.gold) == (["a", "c"], ["b", "d"], [1.5, 4.0])


@real_data
def test_real_sets_have_as_many_pairs_as_the_papers_say():
    counts = {name: len(sts.load(name).gold) for name in (*SEVEN, "SICKR-all", "STSB-dev")}
    expected = dict(zip(sts.SUBSETS, (3108, 1500, 3750, 3000, 1186), strict=True))
    assert counts == expected | {"STSB-test": 1379, "SICKR-test": 4927, "SICKR-all": 9927, "STSB-dev": 1500}


# ---- labelled texts ------------------------------------------------------------------------------


def test_transfer_in_both_layouts(tmp_path):
    ours, theirs = tmp_path / "ours" / "transfer", tmp_path / "theirs" / "downstream"
    write(ours / "MR.tsv", "1\tna\u00efve fun\n1\t.\n0\tdull\n")
    write(theirs / "MR" / "rt-polarity.pos", "na\u00efve  fun \n\n", "latin-1")
    write(theirs / "MR" / "rt-polarity.neg", "dull\n", "latin-1")
    for split, name in (("train", "train_5500"), ("test", "TREC_10")):
        write(ours / f"TREC-{split}.tsv", "NUM\tHow many ?\nHUM\tWho ?\n")
        write(theirs / "TREC" / f"{name}.label", "NUM:count How many ?\nHUM:ind Who ?\n", "latin-1")
        write(ours / f"MRPC-{split}.tsv", '1\tA "b\tC\n0\tD\tE\n')
        write(
            theirs / "MRPC" / f"msr_paraphrase_{split}.txt", 'Quality\tid\tid\ta\tb\n1\t7\t8\tA "b\tC\n0\t9\t9\tD\tE\n'
        )
    for name in ("MR", "TREC", "MRPC"):
        assert transfer.load(name, tmp_path / "ours") == transfer.load(name, tmp_path / "theirs")
    assert transfer.load("MR", tmp_path / "ours")["all"].columns[0] == ["na\u00efve fun", ".", "dull"]
    assert transfer.load("MRPC", tmp_path / "ours")["test"].columns[1] == ["C", "E"]
    write(ours / "CR.tsv", "1\tfun\n0\tdull\tboring\n")
    with pytest.raises(ValueError, match=r"CR.tsv: line 2 has 3 columns, expected 2"):
        transfer.load("CR", tmp_path / "ours")
    (ours / "CR.tsv").unlink()
    with pytest.raises(FileNotFoundError, match=r"CR: neither CR\*.tsv nor SentEval's CR/custrev.pos"):
        transfer.load("CR", tmp_path / "ours")


@real_data
def test_real_tasks_have_as_many_texts_as_senteval_says():
    counts = {name: [len(texts.labels) for texts in transfer.load(name).values()] for name in TRANSFER}
    assert counts == {
        "MR": [10662],
        "CR": [3775],
        "SUBJ": [10000],
        "MPQA": [10606],
        "TREC": [5452, 500],
        "MRPC": [4076, 1725],
    }


# ---- corpora -------------------------------------------------------------------------------------

TABLE = {"sent0": ["a, b", 'say "x"', "c"], "sent1": ["d", "e", "f"], "hard_neg": ["g", "h", "i"], "score": [1, 2, 3]}


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_columns_of_every_format(tmp_path, kind):
    path, table = tmp_path / f"nli.{kind}", datasets.Dataset.from_dict(TABLE)
    if kind == "tsv":
        write(path, "\n".join("\t".join(map(str, row)) for row in [TABLE.keys(), *zip(*TABLE.values(), strict=True)]))
    else:
        getattr(table, {"jsonl": "to_json"}.get(kind, f"to_{kind}"))(path)
    found, left_out = data.load(path, columns=["sent0", "sent1", "hard_neg"])
    assert (found[:], left_out) == ({name: TABLE[name] for name in ("sent0", "sent1", "hard_neg")}, 0)
    assert data.load(path, "same", ["sent1"])[0][:] == {"sent1": ["d", "e", "f"]}
    if kind != "tsv":  # where columns have types, numbers are no texts
        assert data.load(path)[0].column_names == ["sent0", "sent1", "hard_neg"]
    with pytest.raises(ValueError, match=r"has no column 'hard_ng'. Did you mean 'hard_neg'"):
        data.load(path, columns=["hard_ng"])


def test_blank_lines_and_missing_texts_are_left_out_and_counted(tmp_path):
    path = write(tmp_path / "a.txt", "\ufeffone\n\n  \ntwo\r\n\nthree")
    found, left_out = data.load(path)
    assert (found["text"][:], left_out) == (["one", "two", "three"], 3)
    path = tmp_path / "a.jsonl"
    write(path, '{"a": "x", "b": "y"}\n{"a": "x", "b": null}\n{"a": " ", "b": "y"}\n{"a": "v", "b": "w"}\n')
    found, left_out = data.load(path)
    assert (found[:], left_out) == ({"a": ["x", "v"], "b": ["y", "w"]}, 2)


@pytest.mark.parametrize(
    ("name", "content", "how", "says"),
    [
        ("a.txt", b"only one sentence\n\n", {}, r"a.txt: 1 samples, and 1 blank ones; expected 2 or more"),
        ("a.txt", b"", {}, r"a.txt: empty"),
        ("a.tsv", b"", {}, r"a.tsv: empty"),
        ("a.tsv", b"a\tb\nx\ty\nz\n", {}, r"a.tsv: line 3 has 1 columns, expected 2"),
        ("a.tsv", b"a\tb\nx\ty\nu\tv\tw\n", {}, r"a.tsv: line 3 has 3 columns, expected 2"),
        ("a.tsv", b"a\ta\nx\ty\nu\tv\n", {}, r"a.tsv: line 1 names the column 'a' twice"),
        ("a.txt", b"one\ntw\xff\n", {}, r"a.txt: line 2 is not utf-8: byte 0xff"),
        ("a.csv", b"a,b\nx,y\n\xff,z\n", {}, r"a.csv: cannot be read as csv"),
        ("a.jsonl", b"no json\n", {}, r"a.jsonl: cannot be read as jsonl"),
        ("a.jsonl", b'{"n": 1}\n{"n": 2}\n', {}, r"no column contains text; it has n"),
        ("a.txt", b"one\ntwo\n", {"positives": "columns"}, r"one column of text, 'text'; expected two or more"),
        ("a.csv", b"a\nx\n", {"positives": "next-sentence"}, r"needs running text in a .txt file"),
        ("a.txt", b"one\ntwo\n", {"positives": "sane"}, r"unknown positives 'sane'. Did you mean 'same'"),
        ("a.doc", b"", {}, r"expected a file of .txt, .csv"),
    ],
)
def test_wrong_corpora_are_named(tmp_path, name, content, how, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=says):
        data.load(tmp_path / name, **how)


def test_a_name_on_the_hub_is_asked_for_its_training_texts(monkeypatch):
    datasets = pytest.importorskip("datasets")
    asked: list[tuple[str, str]] = []

    def stored(path, *, split):
        asked.append((path, split))
        return datasets.Dataset.from_dict({"a": ["x", "y"], "n": [1, 2], "b": ["v", "w"]})

    monkeypatch.setattr(datasets, "load_dataset", stored)
    found, left_out = data.load("owner/name")
    assert asked == [("owner/name", "train")]
    assert (found[:], left_out) == ({"a": ["x", "y"], "b": ["v", "w"]}, 0)


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.tsv", "a.parquet"])
def test_a_missing_file_is_one_clear_error(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=f"{name}: no such file"):
        data.load(tmp_path / name)


def test_neighbours(tmp_path):
    path = write(tmp_path / "b.txt", 'It rains. It\npours! Nobody\ncares.\n\n"Really?" she said.\n')
    found, _ = data.load(path, "next-sentence")
    assert found["anchor"][:] == ["It rains.", "It pours!", "Nobody cares."]
    assert found["positive"][:] == ["It pours!", "Nobody cares.", '"Really?" she said.']


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Mr. and Mrs. Bennet came. They left.", ["Mr. and Mrs. Bennet came.", "They left."]),
        ("J. R. R. Tolkien wrote it. Yes!", ["J. R. R. Tolkien wrote it.", "Yes!"]),
        ("It cost 3.5 pounds. He paid.", ["It cost 3.5 pounds.", "He paid."]),
        ('"Is he single?" "Oh! Single, my dear."', ['"Is he single?"', '"Oh!', 'Single, my dear."']),
        ("He saw it, e.g. London. Then ... nothing", ["He saw it, e.g. London.", "Then ... nothing"]),
        (
            "\u201cWhat?\u201d \u2018No.\u2019 (So it was.) End",
            ["\u201cWhat?\u201d", "\u2018No.\u2019", "(So it was.)", "End"],
        ),
        ("no capital. follows here", ["no capital. follows here"]),
        ("", []),
    ],
)
def test_sentences(text, expected):
    assert list(data.sentences(text)) == expected


@real_data
def test_a_book_is_split_without_loss():
    text = "\n".join(files.lines(data.find("books/pride-and-prejudice.txt")))
    found = list(data.sentences(text))
    assert " ".join(found).split() == text.split()
    assert 5000 < len(found) < 8000
    assert not [s for s in found if s.endswith((" Mr.", " Mrs.", " Dr."))]
