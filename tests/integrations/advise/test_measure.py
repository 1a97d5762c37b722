"""Measurements on data whose faults are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from counterpoint.integrations.advise.advice import advise, race_command, treatments
from counterpoint.integrations.advise.data import from_arrays
from counterpoint.integrations.advise.measure import false_negatives, measure
from counterpoint.integrations.advise.settings import Settings
from counterpoint.integrations.compare.settings import row


def clusters(count=600, classes=10, wrong=0.0, seed=0):
    """Two noisy views of points of Gaussian classes; a share of the second views shows another point."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % classes
    x = rng.normal(size=(classes, 16))[y] + 0.7 * rng.normal(size=(count, 16))
    a, b = (x + 0.25 * rng.normal(size=x.shape) for _ in range(2))
    replaced = rng.permutation(count)[: round(wrong * count)]
    b[replaced] = b[np.roll(replaced, 1)]
    return a, b, y


def test_an_interval_from_zero_on_is_no_advice():
    wrong = {"share": 0.034, "low": 0.0, "high": 0.071}
    duplicates = {"share": 0.0, "equal": 0.0, "anchors": 0.0, "positives": 0.0, "cosine": 0.99}
    measured = {"wrong_positives": wrong, "duplicates": duplicates, "modality": "images"}
    said = " ".join(one["text"] for one in advise(measured))
    assert "Wrong positives: 3.4% (0.0% to 7.1%, sampling error only) by estimate, which may be none" in said
    assert not treatments(measured)
    wrong["low"] = 0.01
    assert treatments(measured) == ["drrl:m=0.8,weight=3.333"]
    measured["modality"] = "graphs"  # on which it alone gained, at another setting
    assert treatments(measured) == ["drrl:m=0.4,weight=10"]
    measured["modality"] = "images"
    assert "wrong: so many look like random pairs" in " ".join(one["text"] for one in advise(measured))


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_the_share_of_wrong_positives(share):
    a, b, _ = clusters(1200, classes=50, wrong=share)
    measured = measure(from_arrays(a, b), Settings())[0]["wrong_positives"]
    assert abs(measured["share"] - share) < 0.07
    assert measured["low"] <= measured["share"] <= measured["high"]


def test_false_negatives_by_ids():
    a, b, y = clusters(classes=4)
    measured, _ = measure(from_arrays(a, b, y), Settings())
    assert measured["false_negatives"]["share"] == pytest.approx(0.25, abs=0.01)
    said = [one["text"] for one in advise(measured)]
    assert any("of in-batch negatives share the anchor's id" in text for text in said)


def test_without_ids_it_says_what_cannot_be_known():
    a, b, _ = clusters(300)
    said = " ".join(one["text"] for one in advise(measure(from_arrays(a, b), Settings())[0]))
    assert "Cannot be known from embeddings alone" in said


def test_duplicates():
    a, b, _ = clusters(300)
    a[:60] = a[60:120] + 1e-2 * np.random.default_rng(0).normal(size=(60, 16))
    measured, _ = measure(from_arrays(a, b), Settings(near=0.999))
    assert measured["duplicates"]["share"] == pytest.approx(120 / 300)
    assert any("same ids=: so few features make different" in one["text"] for one in advise(measured))
    wide = [one["text"] for one in advise({**measured, "width": 384})]
    assert any("same ids= (--near sets the cosine" in text for text in wide)


@pytest.mark.parametrize(("unknown", "share"), [(0, 0.0), (20, 40 / 300)])
def test_near_samples_that_are_known_to_belong_together_are_not_told_of(unknown, share):
    a, b, _ = clusters(300)
    a[:60] = a[60:120] + 1e-2 * np.random.default_rng(0).normal(size=(60, 16))
    ids = np.arange(300)
    ids[:60] = ids[60:120]
    ids[:unknown] = -1
    measured, _ = measure(from_arrays(a, b, ids), Settings(near=0.999))
    assert measured["duplicates"]["share"] == pytest.approx(share)
    assert any("; 0.0% are near one that shares neither, nor the id" in x["text"] for x in advise(measured)) == (
        not share
    )
    a[:60] = a[60:120]  # nor are equal ones
    measured, _ = measure(from_arrays(a, b), Settings(near=0.999))
    assert measured["duplicates"] | {"share": 0.0, "equal": pytest.approx(0.4)} == measured["duplicates"]


def test_equal_texts_are_counted_in_either_column():
    a, b, _ = clusters(300)
    a[:6], b[6:8] = a[6:12], b[7:9]  # 0 to 11 in pairs, of which 6, 7 and 8 share the other text
    measured, suspects = measure(from_arrays(a, b), Settings(near=0.999))
    assert measured["duplicates"]["equal"] == pytest.approx(12 / 300)
    said = "4.0% of the samples share an anchor (4.0%) or positive (0.7%) with another one; 0.0% are near one that "
    assert any(one["text"].startswith(said) for one in advise(measured))
    pairs = {(one["row"], one["other"]): one["score"] for one in suspects if one["kind"] == "duplicate"}
    assert {pair for pair, score in pairs.items() if score == 1} >= {(0, 6), (5, 11)}
    assert {i for pair in pairs for i in pair} >= set(range(12))


def test_hard_negatives_by_ids_and_by_a_guide():
    a, b, y = clusters(400, classes=4)
    rng = np.random.default_rng(1)
    rows = rng.integers(400, size=(400, 2))
    rows[:, 0] = (np.arange(400) + 4) % 400  # of the same class
    measured, _ = measure(from_arrays(a, b, y, b[rows], y[rows]), Settings())
    assert measured["hard_negatives"]["false"] == pytest.approx((y[rows] == y[:, None]).mean())


def test_the_rate_from_about_100_labels():
    labels = torch.full((5000,), -1)
    labels[:100] = torch.arange(100) % 5
    rate = false_negatives(labels)
    assert rate["known"] == 100
    assert rate["low"] <= rate["share"] <= rate["high"]
    assert rate["share"] == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1.0]], [[1.0], [2.0]]), r"the same shape, got \(1, 1\) and \(2, 1\)"),
        (([[np.nan]], [[1.0]]), "not finite"),
        (([[1.0]], [[1.0]], [1, 2]), r"ids: expected the shape \(1,\), got \(2,\)"),
        (([[1.0]], [[1.0]], [0.5]), "ids: expected whole numbers or words, got float64"),
        (([[1.0]], [[1.0]], None, [[1.0]]), r"negatives: expected \(1, n, 1\), got \(1, 1\)"),
        (([[1.0]], [[1.0]], None, [[[1.0]]], [[1]]), "negative_ids: need negatives and ids"),
    ],
)
def test_what_is_wrong_with_arrays(arguments, message):
    with pytest.raises(ValueError, match=message):
        from_arrays(*arguments)


def test_words_as_ids():
    data = from_arrays(np.eye(4), np.eye(4), np.array(["cat", "?", "dog", "cat"]))
    cat, unknown, dog, again = data.ids.tolist()
    assert (cat == again, cat == dog, unknown) == (True, False, -1)


def test_too_few_samples():
    a, b, _ = clusters(100)
    with pytest.raises(ValueError, match="at least 128 samples, got 100"):
        measure(from_arrays(a, b), Settings())


def test_topical_batches():
    ids, topics = torch.arange(600) % 60, (torch.arange(600) % 60) // 10
    random, topical = false_negatives(ids), false_negatives(ids, topics)
    assert random["share"] == pytest.approx(9 / 599)
    assert topical["share"] == pytest.approx(9 / 99)
    assert topical["low"] == pytest.approx(9 / 99)  # all batches are alike
    with pytest.raises(ValueError, match="no two samples with known ids share one"):
        false_negatives(ids, torch.arange(600))


def test_suspects_are_the_wrong_pairs_and_the_duplicates():
    a, b, _ = clusters(1200, classes=50, wrong=0.2)
    a[7] = a[3]
    replaced = np.random.default_rng(0)
    replaced.normal(size=(50, 16)), [replaced.normal(size=(1200, 16)) for _ in range(3)]
    wrong = {*replaced.permutation(1200)[:240].tolist()}
    _, suspects = measure(from_arrays(a, b), Settings(near=0.9999))
    pairs = [one for one in suspects if one["kind"] == "wrong pair"]
    assert [one["score"] for one in pairs] == sorted(one["score"] for one in pairs)
    assert np.mean([one["row"] in wrong for one in pairs]) > 0.8
    assert [(one["row"], one["other"]) for one in suspects if one["kind"] == "duplicate"] == [(3, 7)]


def test_treatments_can_be_read_and_evidence_is_of_ones_own_data():
    a, b, y = clusters(400, classes=4)
    measured, _ = measure(replace(from_arrays(a, b, y), modality="text"), Settings())
    proposed = treatments(measured)
    assert proposed[0] == "host; ids=labels"
    assert not any("duplicates" in text or "drrl" in text for text in proposed)  # there are none, nor wrong pairs
    half = {**measured["false_negatives"], "share": 0.55}
    graphs = {**measured, "modality": "graphs", "false_negatives": half}
    assert any("DrRL gained most" in one["text"] for one in advise(graphs))
    assert treatments(graphs)[-1].startswith("drrl")
    a[7] = a[3]
    b[:80] = np.roll(b[:80], 1, axis=0)
    faulty, _ = measure(replace(from_arrays(a, b, y), modality="text"), Settings())
    proposed = treatments(faulty)
    assert proposed[1] == "host; duplicates=sentence_features[0]['input_ids']"
    both = {**faulty, "duplicates": {**faulty["duplicates"], "positives": 0.2}}
    told = "duplicates=sentence_features[1]['input_ids']; ids=sentence_features[0]['input_ids']"
    assert treatments(both)[1] == f"host; {told}"
    assert f"host; {told}; margin=-0.05" in treatments(both)
    assert treatments({**both, "flat": True})[1:3] == ["host; duplicates", "host; guide=guide; margin=-0.05"]
    assert treatments({**faulty, "modality": "images"})[1] == "host; duplicates"
    pictures = treatments({**measured, "modality": "images"})  # on which guides, margins and HCL gained nothing
    assert pictures == ['host; ids=batch["id"]']
    assert "race auto --metric" in race_command(pictures)
    low, high = (measured["wrong_positives"][key] for key in ("low", "high"))
    assert (low, high) == (0.0, pytest.approx(1 - 0.025 ** (1 / 400), abs=1e-4))
    assert proposed[-1].startswith("drrl")
    assert all(row(text) == text for text in proposed)
    assert not any("[atlas: images" in line for one in advise(measured) for line in one["evidence"])
