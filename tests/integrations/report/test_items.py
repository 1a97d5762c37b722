"""Verdicts over items: against scipy, by simulation of size and power, and on wrong input."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("scipy")
from scipy.stats import spearmanr, ttest_rel

from counterpoint.integrations.command.main import main
from counterpoint.integrations.items import Items, write
from counterpoint.integrations.report.items import compare_items, measure


def test_weighted_correlation_is_that_of_repeated_pairs():
    rng = np.random.default_rng(0)
    x, gold, weights = rng.integers(9, size=60), rng.integers(6, size=60), rng.integers(4, size=(3, 60))
    expected = [100 * spearmanr(np.repeat(x, w), np.repeat(gold, w)).statistic for w in weights]
    assert measure(x, gold, weights.astype(float)) == pytest.approx(expected)


def models(rng, count, seeds, shift=0.0, of_seeds=0.0, pairs=False):
    """Two rows of equal quality but for ``shift``; items differ in difficulty, each row on its own ones."""
    ids, hard = tuple(map(str, range(count))), rng.normal(size=count)
    rows = {}
    for row, more in (("a", 0.0), ("b", shift)):
        own = 0.5 * rng.normal(size=count)
        good = [more + of_seeds * rng.normal() for _ in range(seeds)]
        noise = [rng.normal(size=count) for _ in range(seeds)]
        if pairs:
            rows[row] = {s: Items(ids, (1 + good[s]) * hard + noise[s] + own, np.round(2 * hard)) for s in range(seeds)}
        else:
            uniform = [rng.uniform(size=count) for _ in range(seeds)]
            rows[row] = {
                s: Items(ids, (hard + own + noise[s] + good[s] > 0) * uniform[s]) for s in range(seeds)
            }  # many zeros, like nDCG
    return rows


def rejected(again=False, repetitions=200, draws=300, **how):
    found = 0
    for repetition in range(repetitions):
        one = compare_items("", "a", models(np.random.default_rng(repetition), **how), seeds=again, draws=draws)
        found += (one.again if again else one.these)["b"].different
    return found / repetitions


@pytest.mark.parametrize(
    ("how", "low", "high"),
    [
        ({"count": 50, "seeds": 1}, 0.01, 0.1),
        ({"count": 200, "seeds": 1, "shift": 0.8, "repetitions": 100}, 0.8, 1),
        ({"count": 100, "seeds": 1, "pairs": True, "repetitions": 600}, 0.03, 0.07),
        ({"count": 200, "seeds": 1, "pairs": True, "shift": 0.5, "repetitions": 30}, 0.8, 1),
        ({"count": 60, "seeds": 4, "of_seeds": 0.4, "again": True}, 0.005, 0.1),
        ({"count": 200, "seeds": 5, "of_seeds": 0.1, "shift": 0.8, "again": True, "repetitions": 60}, 0.8, 1),
    ],
)
def test_size_and_power(how, low, high):
    assert low <= rejected(**how) <= high


def test_seeds_that_differ_are_no_evidence_for_training_again():
    assert rejected(count=300, seeds=3, of_seeds=1.0, repetitions=60) > 0.25  # as models, they do differ
    assert rejected(count=300, seeds=3, of_seeds=1.0, repetitions=400, again=True) < 0.07


def test_three_seeds_always_give_an_interval_of_training_again():
    """What seeds and items both count is taken away, which can leave fewer degrees of freedom than the seeds have."""
    for repetition in range(40):
        found = compare_items("", "a", models(np.random.default_rng(repetition), 50, 3, of_seeds=0.3), draws=200)
        assert found.again["b"].tested
        assert found.again["b"].low < found.again["b"].difference < found.again["b"].high


def test_two_items_have_no_verdict_and_their_json_has_no_nan():
    rows = {row: {0: Items(("x", "y"), np.array(scores))} for row, scores in {"a": [0.1, 0.2], "b": [0.3, 0.1]}.items()}
    found = compare_items("", "a", rows)
    assert not found.these["b"].tested
    assert "3 items or more tell" in "".join(found.sentences())
    assert '"p": null' in json.dumps(found.plain(), allow_nan=False)


def test_of_means_it_is_the_paired_t_test():
    rows = models(np.random.default_rng(3), 80, 1, 0.3)
    found = compare_items("", "a", rows, seeds=False, draws=20_000)
    expected = ttest_rel(rows["b"][0].scores, rows["a"][0].scores).pvalue
    assert found.these["b"].p == pytest.approx(expected, rel=1e-9)
    assert found.permutation["b"] == pytest.approx(expected, rel=0.2)
    assert "corrected" not in "".join(found.sentences())
    two = compare_items("", "a", {**rows, "c": rows["b"]}, seeds=False, draws=200)
    assert "".join(two.sentences()).count(", not corrected)") == 2  # the p-value before it is, after Holm


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_files_of_models(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scores = np.random.default_rng(0).uniform(size=40)
    np.save("a.npy", scores)
    lines(tmp_path / "a.jsonl", [{"query": f"q{i}", "score": x} for i, x in enumerate(scores)])
    lines(tmp_path / "b.jsonl", [{"query": f"q{i}", "score": scores[i] + 0.1} for i in reversed(range(40))])
    assert (
        main(
            ["report", "--items", "a=jsonl:a.jsonl:query:score", "b=jsonl:b.jsonl:query:score", "--json", "--out", "r"]
        )
        == 0
    )
    (found,) = json.loads(capsys.readouterr().out)["items"]
    assert found["these"]["b"]["difference"] == pytest.approx(0.1)
    assert found["these"]["b"]["kind"] == "different"
    assert "These models on new items: b minus a +0.1" in found["reading"][0]
    for name in ("report.html", "report.md", "report.tex"):
        text = (tmp_path / "r" / name).read_text(encoding="utf-8")
        assert "b minus a +0.1" in text
        assert "paired seeds" not in text  # of a table, of which there is none
        assert "Made with" not in text


@pytest.mark.parametrize(
    ("b", "said"),
    [
        ([{"q": "1", "s": 1}] * 2, "item '1' is there twice"),
        ([{"q": str(i), "s": float("nan")} for i in range(4)], "4 of 4 items have a score that is not finite"),
        ([{"q": str(i), "s": i} for i in range(3)], "b has 3 and a 4; not in both: 3"),
        ([{"q": "1", "s": 1}], "expected at least 3 items, got 1"),
        ([], "expected at least 3 items, got 0"),
        ([{"q": str(i), "S": i} for i in range(4)], "no field 's'"),
        ([{"q": str(i), "s": "x"} for i in range(4)], "expected a number, got 'x'"),
        ([3], "expected an object with q, s, got 3"),
    ],
)
def test_wrong_items(tmp_path, capsys, monkeypatch, b, said):
    monkeypatch.chdir(tmp_path)
    lines(tmp_path / "a.jsonl", [{"q": str(i), "s": i} for i in range(4)])
    lines(tmp_path / "b.jsonl", b)
    assert main(["report", "--items", "a=jsonl:a.jsonl:q:s", "b=jsonl:b.jsonl:q:s"]) == 2
    assert said in capsys.readouterr().err


def test_wrong_files(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", np.arange(4.0))
    np.save("pickled.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save("cube.npy", np.zeros((2, 2, 2)))
    np.save("flat.npy", np.ones((4, 2)))
    for name, said in (
        ("pickled.npy", "Object arrays cannot be loaded"),
        ("cube.npy", "expected numbers (n,)"),
        ("flat.npy", "all items have the same similarity"),
        ("none.npy", "no such file"),
    ):
        assert main(["report", "--items", "npy:a.npy", f"npy:{name}"]) == 2
        assert said in capsys.readouterr().err
    assert main(["report"]) == 2
    assert "--items of two models or more" in capsys.readouterr().err


def test_files_of_two_settings_are_told_apart_by_their_paths(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for beta in (1, 2):  # as `compare` names the folders of its runs
        (tmp_path / f"hcl-beta={beta}").mkdir()
        np.save(tmp_path / f"hcl-beta={beta}" / "items.npy", np.arange(20) + 0.1 * beta * (np.arange(20) % 3))
    words = ["report", "--items", "npy:hcl-beta=1/items.npy", "npy:hcl-beta=2/items.npy", "--json"]
    assert main(words) == 0
    assert set(json.loads(capsys.readouterr().out)["items"][0]["values"]) == {
        f"hcl-beta={beta}/items.npy" for beta in (1, 2)
    }


def test_two_models_never_share_a_file(tmp_path):
    written = write(tmp_path, "sts/12", {"m/bge-v1.0": [{"item": "a"}], "m/bge-v1.5": [{"item": "b"}]})
    assert [path.relative_to(tmp_path).as_posix() for path in written] == [
        "sts_12/m_bge-v1.0.jsonl",
        "sts_12/m_bge-v1.5.jsonl",
    ]
    assert [path.read_text() for path in written] == ['{"item": "a"}\n', '{"item": "b"}\n']
    with pytest.raises(ValueError, match="--items: m/a and m_a would be written to the same file"):
        write(tmp_path, "new", {"m/a": [], "m_a": []})
    assert not (tmp_path / "new").exists()
