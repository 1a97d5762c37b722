"""Training on sentence-transformers: the losses by formula, what a run leaves, and that interruptions lose nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from documents import run_blocks
from processes import fresh
from tiny_bert import WORDS, load, texts
from torch.nn import functional as F

st = pytest.importorskip("sentence_transformers")
pytest.importorskip("datasets")
pytest.importorskip("accelerate")
from safetensors.torch import load_file  # noqa: E402
from sentence_transformers.sentence_transformer import losses  # noqa: E402
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer  # noqa: E402

import counterpoint as cp  # noqa: E402
from counterpoint.integrations import store  # noqa: E402
from counterpoint.integrations.command.main import main  # noqa: E402
from counterpoint.integrations.sentence import encode, sts, training  # noqa: E402
from counterpoint.integrations.sentence import model as sentence_model  # noqa: E402
from counterpoint.integrations.sentence.model import WordDropout  # noqa: E402
from counterpoint.integrations.sentence.presets import PRESETS, preset  # noqa: E402
from counterpoint.plugins.sentence_transformers import ContrastiveLoss  # noqa: E402


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Sentences to train on, and an STS-B dev set, found through COUNTERPOINT_DATA."""
    (tmp_path / "sts").mkdir()
    first, second = texts(2, 30, seed=1)
    draw = np.random.default_rng(0)
    rows = [f"x\t{draw.uniform(0, 5):.2f}\t{a}\t{b}" for a, b in zip(first, second, strict=True)]
    (tmp_path / "sts" / "STSB-dev.tsv").write_text("subset\tscore\tsentence1\tsentence2\n" + "\n".join(rows))
    (tmp_path / "sentences.txt").write_text("\n".join(texts(1, 40, seed=2)[0]) + "\n")
    monkeypatch.setenv("COUNTERPOINT_DATA", str(tmp_path))
    return tmp_path


SMALL = {"batch": 8, "every": 3, "save": 3, "lr": 1e-2, "epochs": 2, "max_length": 12}


def cell(bert: Path, objective: str = "infonce:t=0.05", seed: int = 0, **changes: Any) -> dict[str, Any]:
    how = {} if changes.get("static") else {"pooling": "cls"}
    return training.cell("sentences.txt", objective, seed, **{"model": str(bert), **how, **SMALL, **changes})


def run(world: Path, one: dict[str, Any], name: str = "runs") -> store.Run:
    (done,) = store.run_grid(training.train, [one], world / name, progress=False)
    return done


def weights(done: store.Run) -> torch.Tensor:
    model = st.SentenceTransformer(str(done.path / "model"), device="cpu")
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def features(model, columns):
    return [model.preprocess(column) for column in columns]


def value_and_gradient(loss_fn, model, columns) -> torch.Tensor:
    """The loss, and all its gradients in units of their length."""
    model.zero_grad()
    loss = loss_fn(features(model, columns), None)
    loss.backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return torch.cat([loss.detach().view(1), gradient.norm().view(1), gradient / gradient.norm()])


# ---- the losses ----------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [2, 3])
def test_infonce_is_multiple_negatives_ranking(bert, columns):
    model = load(bert).double().eval()
    ours = sentence_model.make_loss(model, cell(bert))
    theirs = losses.MultipleNegativesRankingLoss(model, scale=20.0)
    data = texts(columns)
    found = [value_and_gradient(one, model, data) for one in (ours, theirs)]
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("weight", [0.0, 1.5, -2.0])
@pytest.mark.parametrize("columns", [2, 3])
def test_infonce_is_simcses_cl_forward(bert, columns, weight):
    """Logits to positives, then to hard negatives; the weight on each anchor's own; cross entropy with the diagonal."""
    model = load(bert).double().eval()

    def cl_forward(given, _):
        z = [model(x)["sentence_embedding"] for x in given]
        logits = torch.cat([F.cosine_similarity(z[0].unsqueeze(1), keys.unsqueeze(0), dim=-1) for keys in z[1:]], 1)
        logits = logits / 0.05
        if len(z) == 3:
            logits = logits + weight * torch.cat([torch.zeros(8, 8), torch.eye(8)], 1)
        return F.cross_entropy(logits, torch.arange(8))

    ours = sentence_model.make_loss(model, cell(bert, negative_weight=weight))
    data = texts(columns)
    found = [value_and_gradient(one, model, data) for one in (ours, cl_forward)]
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


def test_adnce_preset_is_its_sentence_code(bert):
    """``-log(e^{s_ii / t} / sum_j w_ij e^{s_ij / t})``, weights of mean one over all columns, the positive's too."""
    model = load(bert).double().eval()

    def official(given, _):
        a, b = (model(x)["sentence_embedding"] for x in given)
        similar = F.cosine_similarity(a.unsqueeze(1), b.unsqueeze(0), dim=-1)
        weight = torch.exp(-((similar - 0.4) ** 2) / 2)
        weight = (weight / weight.mean(1, keepdim=True)).detach()
        total = (torch.exp(similar / 0.07) * weight).sum(1)
        return -(torch.exp(similar.diag() / 0.07) / total).log().mean()

    ours = sentence_model.make_loss(model, cell(bert, preset("adnce-bert").objective))
    found = [value_and_gradient(one, model, texts(2)) for one in (ours, official)]
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


def test_a_single_text_gives_as_many_dropout_views_as_the_objective_wants(bert):
    model = load(bert).train()
    loss_fn = sentence_model.make_loss(model, cell(bert, "arcl(hcl:t=0.1):views=4"))
    embedded: list[torch.Tensor] = []
    original = loss_fn._embed
    loss_fn._embed = lambda given: embedded.extend(original(given)) or list(embedded)
    loss = loss_fn(features(model, texts(1)), None)
    assert len(embedded) == 4
    assert all(not torch.equal(embedded[0], other) for other in embedded[1:])  # each has a mask of its own
    torch.testing.assert_close(loss, cp.objective("arcl(hcl:t=0.1):views=4")(*embedded))
    with pytest.raises(ValueError, match="views must be at least 2"):
        ContrastiveLoss(model, views=1)


# ---- noise ---------------------------------------------------------------------------------------


def test_word_dropout_of_padded_batches(bert):
    model = load(bert)
    given = model.preprocess(texts(1, 200)[0])
    mask = given["attention_mask"].bool()
    dropout = WordDropout(0.3)
    assert dropout(model.eval(), (given,)) is None
    torch.manual_seed(0)
    (noisy,) = dropout(model.train(), (given,))
    left = noisy["attention_mask"].bool()
    assert torch.equal(noisy["input_ids"], given["input_ids"])
    assert not (left & ~mask).any()
    special = torch.isin(given["input_ids"], torch.tensor([2, 3]))  # [CLS] and [SEP]
    assert left[special].all()
    words = mask & ~special
    assert (left & words).any(1).all()  # something is left of every text
    long = words.sum(1) > 3
    assert 0.65 < (left & words)[long].sum() / words[long].sum() < 0.75


def test_word_dropout_of_lists_of_pieces(bert):
    model = sentence_model.static(load(bert)).train()
    given = model.preprocess(texts(1, 200)[0])
    torch.manual_seed(0)
    (noisy,) = WordDropout(0.4)(model, (given,))
    before, after = ([x.tolist() for x in torch.tensor_split(f["input_ids"], f["offsets"][1:])] for f in (given, noisy))
    assert len(before) == len(after) == 200
    for old, new in zip(before, after, strict=True):
        rest = iter(old)
        assert new
        assert all(piece in rest for piece in new)  # in their order
    long = [i for i, old in enumerate(before) if len(old) > 3]
    share = sum(len(after[i]) for i in long) / sum(len(before[i]) for i in long)
    assert 0.54 < share < 0.68
    with pytest.raises(ValueError, match="expected 0 <= p < 1, got 1"):
        WordDropout(1)


# ---- a run ---------------------------------------------------------------------------------------


def test_what_a_run_leaves(world, bert):
    done = run(world, cell(bert, "adnce:t=0.1,mu=0.4 + 0.1*dp", head="training", test=["STSB-dev"]))
    assert {path.name for path in done.path.iterdir()} >= {"run.json", "metrics.jsonl", "model", "encoder.safetensors"}
    names = run_blocks("docs/own_models.md", "Sentences", done.path, done.path / "model")
    assert names["z"].shape == (2, 16)
    exported, encoder = load_file(done.path / "encoder.safetensors"), names["model"][0].model.state_dict()
    assert all(torch.equal(value, encoder[name]) for name, value in exported.items())
    assert not (done.path / "checkpoints").exists()
    model = st.SentenceTransformer(str(done.path / "model"), device="cpu")
    assert [type(module) for module in model] == [Transformer, Pooling]  # the head was for training
    assert model[1].pooling_mode == "cls"
    assert model.max_seq_length == 16  # the model's own limit, not that of training
    card = (done.path / "model" / "README.md").read_text()
    assert '"objective": "adnce:t=0.1,denominator=with_positive,mu=0.4 + 0.1*dp"' in card
    curve = dict(map(tuple, done.details["curve"]))
    assert list(curve) == [3, 6, 9, 10]  # every three steps, and the last
    assert done.result["STSB-dev"] == max(curve.values()) == curve[done.details["step"]]
    # the model that is kept is that of the best step, without the head
    report = sts.evaluate(model, ["STSB-dev"])
    assert report.sets["STSB-dev"].spearman == pytest.approx(done.result["STSB-dev"], abs=1e-6)
    steps = [line["step"] for line in done.metrics() if "loss" in line]
    assert steps == sorted(steps)
    assert [line["step"] for line in done.metrics() if "report/negatives" in line] == [0, 3, 6, 9]
    assert done.record["data"] == store.checksum(world / "sentences.txt")


@pytest.mark.parametrize("static", [False, True])
def test_training_learns(world, bert, static):
    """Views of one text come closer than texts do, compared with the start."""
    one = cell(bert, static=static, word_dropout=0.2, dev=None, epochs=6)
    done = run(world, one)
    loss = [line["loss"] for line in done.metrics() if "loss" in line]
    assert loss[-1] < loss[0] - 0.05
    assert done.result == {"loss": pytest.approx(loss[-1])}


class Stopped(KeyboardInterrupt):
    pass


@pytest.mark.parametrize(
    ("changes", "moment"),
    [
        pytest.param(
            {"objective": "infonce:t=schedule(0.2,0.05,8) + 0.1*dp", "head": "training"}, "before the record",
            id="schedule and head", marks=pytest.mark.slow,
        ),
        pytest.param(
            {"objective": "adnce:t=learned(0.1,0.01,1),mu=auto", "word_dropout": 0.2, "every": 4}, "after the record",
            id="learned and tracked", marks=pytest.mark.slow,
        ),
        pytest.param(
            {"static": True, "word_dropout": 0.3, "dev": None, "every": 100}, "damaged", id="static",
        ),
        pytest.param(
            {"objective": "arcl(infonce:t=0.05):views=3", "mini_batch": 3}, "after the record",
            id="views and gradient cache", marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_interrupted_training_ends_with_the_same_weights(world, bert, monkeypatch, changes, moment):
    """Stopped in the second epoch, when a checkpoint is written but not yet recorded as whole, or just afterwards.

    A checkpoint whose weights have changed on the disk since then gives way to the one before.
    """
    one = cell(bert, **changes)
    whole = run(world, one, "whole")
    save = store.Run.save

    def stop(self, state, step):
        if step == 6 and moment == "before the record":
            raise Stopped
        save(self, state, step)
        if step == 6:
            raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(store.Run, "save", stop)
        with pytest.raises(KeyboardInterrupt):
            run(world, one, "parts")
    if moment == "damaged":
        (weight,) = (world / "parts").rglob("checkpoint-6/**/*.safetensors")
        content = bytearray(weight.read_bytes())
        content[-5] ^= 1
        weight.write_bytes(content)
        with pytest.warns(RuntimeWarning, match=r"checkpoint-6: damaged; not used|from the checkpoint at step 3"):
            parts = run(world, one, "parts")
    else:
        parts = run(world, one, "parts")
    assert torch.equal(weights(parts), weights(whole))
    assert parts.result == whole.result
    assert parts.details == whole.details
    timed = ("eval_runtime", "eval_samples_per_second", "eval_steps_per_second")
    lines = [[{k: v for k, v in line.items() if k not in timed} for line in one.metrics()] for one in (parts, whole)]
    assert lines[0] == lines[1]


@pytest.mark.parametrize("how", [{"precision": "bf16"}, {"pooling": "pooler", "schedule": "cosine", "warmup": 0.5}])
def test_a_short_run_has_its_loss(world, bert, how):
    """Shorter than what is between two lines of the log, and without a dev set."""
    done = run(world, cell(bert, steps=2, dev=None, every=100, **how))
    assert 0 < done.result["loss"] < 10
    assert [line["step"] for line in done.metrics() if "loss" in line] == [2]


@pytest.mark.slow
def test_a_run_is_where_another_one_begins(world, bert):
    """By its folder, whether a table of word pieces or a transformer is in it, which then gives its table."""
    for static in (True, False):
        first = run(world, cell(bert, static=static, steps=1, dev=None))
        second = run(world, cell(first.path, static=True, pooling=None, steps=1, dev=None))
        assert weights(second).shape == (65 * 16,)
    with pytest.raises(ValueError, match=r"max_length: .* is a static embedding"):
        encode.load(second.path, max_length=4)


@pytest.mark.slow
def test_seeds_differ_and_repeat(world, bert):
    first, again, other = (run(world, cell(bert, seed=seed), name) for seed, name in ((0, "a"), (0, "b"), (1, "a")))
    assert torch.equal(weights(first), weights(again))
    assert not torch.equal(weights(first), weights(other))


def test_a_head_can_be_kept_and_pairs_have_hard_negatives(world, bert):
    rows = zip(*texts(3, 16), strict=True)
    (world / "nli.tsv").write_text("a\tb\tc\n" + "\n".join("\t".join(row) for row in rows))
    one = training.cell(
        "nli.tsv", "infonce", 0, model=str(bert), pooling="cls", **SMALL, head="kept", negative_weight=0.5
    )
    done = run(world, one)
    model = st.SentenceTransformer(str(done.path / "model"), device="cpu")
    assert [type(module).__name__ for module in model] == ["Transformer", "Pooling", "Dense"]
    assert "negative_weight" in (done.path / "model" / "README.md").read_text()


def test_the_gradient_cache_trains(world, bert):
    done = run(world, cell(bert, steps=4, mini_batch=3))
    assert "CachedContrastiveLoss" in (done.path / "model" / "README.md").read_text()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"poling": "cls"}, "unknown argument 'poling'. Did you mean 'pooling'"),
        ({"head": "keep"}, "unknown head 'keep'. Did you mean 'kept'"),
        ({"dev": "STSB"}, "unknown dev 'STSB'. Did you mean 'STSB-dev'"),
        ({"test": ["STS11"]}, "unknown test 'STS11'. Did you mean 'STS1"),
        ({"batch": 1}, "batch: expected a whole number of at least 2, got 1"),
        ({"steps": 0}, "steps: expected a whole number of at least 1, got 0"),
        ({"views": 1}, "views: expected a whole number of at least 2, got 1"),
        ({"mini_batch": 0}, "mini_batch: expected a whole number of at least 1, got 0"),
        ({"lr": 0}, "lr must be a finite number with 0 < lr, got 0"),
        ({"warmup": 1.0}, "warmup must be a finite number with 0 <= warmup < 1, got 1.0"),
        ({"word_dropout": 1.5}, "word_dropout must be .*, got 1.5"),
        ({"device": "cuda:1"}, "device: the trainer uses the first visible GPU; for cuda:1 set CUDA_VISIBLE_DEVICES"),
        ({"precision": "fp16"}, "precision: fp16 needs a GPU"),
        ({"static": True, "head": "kept"}, "static: word-piece embeddings alone need head=none"),
    ],
)
def test_wrong_settings_are_named(changes, says):
    with pytest.raises((TypeError, ValueError), match=says):
        training.cell("a.txt", "infonce", 0, **changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"batch": 64}, "batch: 64 samples, but sentences.txt has only 40"),
        ({"objective": "infonce:t=learned(0.1,0.01,1)", "static": True}, "has learned values"),
        ({"objective": "arcl(infonce):views=3", "views": 4}, "views=3 were expected, got 4"),
        ({"objective": "intcl"}, "needs adversarial views"),
    ],
)
def test_what_fails_later_is_named_too(world, bert, changes, says):
    with pytest.raises(store.GridError, match=says):
        run(world, cell(bert, **changes))


# ---- recipes and the command ---------------------------------------------------------------------


def test_presets_are_cells():
    for one in PRESETS.values():
        made = training.cell("a.txt", one.objective, 0, **one.settings, device="cuda")
        assert {name: made[name] for name in one.settings} == one.settings
    bert, adnce, roberta = (PRESETS[name] for name in ("simcse-bert", "adnce-bert", "adnce-roberta"))
    assert bert.settings == adnce.settings
    assert (bert.settings["batch"], bert.settings["lr"], bert.settings["max_length"]) == (64, 3e-5, 32)
    assert (roberta.settings["batch"], roberta.settings["lr"]) == (512, 1e-5)
    assert cp.objective(adnce.objective) == cp.ADNCE(0.07, mu=0.4, sigma=1, denominator="all")
    with pytest.raises(ValueError, match=r"unknown preset 'simcse'\. Did you mean 'simcse-"):
        preset("simcse")


def test_loading_a_model_is_quiet_and_leaves_the_bars_as_they_were(bert, capfd):
    from transformers.utils import logging

    encode.load(bert, "mean", device="cpu")
    assert "it/s" not in capfd.readouterr().err
    assert logging.is_progress_bar_enabled()


def test_a_batch_larger_than_the_data_is_refused_before_the_frameworks_are_loaded(tmp_path):
    (tmp_path / "few.txt").write_text("one\ntwo\nthree\n")
    file = str(tmp_path / "few.txt")
    code = f"""
import sys
from counterpoint.integrations.command.main import main
code = main(["train", "sentence", "--model", ".", "--data", {file!r}])
print(code, "transformers" in sys.modules)
"""
    assert fresh(code).splitlines() == [
        f"counterpoint train sentence: batch: 64 samples, but {file} has only 3; give --batch 3 or less.",
        "2 False",
    ]


def test_the_command_trains_and_what_it_leaves_is_evaluated(world, bert, capsys):
    words = ["train", "sentence", "--data", "sentences.txt", "--preset", "adnce-bert", "--model", str(bert)]
    words += ["--precision", "fp32", "--batch", "8", "--every", "5", "--out", str(world / "out")]
    assert main([*words, "--objective", "hcl:t=0.1", "infonce:t=0.1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    before = found.pop()
    assert (before["objective"], before["label"]) == (None, "before training")
    scored = sts.evaluate(encode.load(bert, "cls"), ["STSB-dev"]).sets["STSB-dev"].spearman
    assert before["STSB-dev"] == pytest.approx(scored, abs=1e-6)
    assert [one["objective"].partition(":")[0] for one in found] == ["hcl", "infonce"]
    assert {one["head"] for one in found} == {"training"}
    assert {one["lr"] for one in found} == {3e-5}
    assert main(["eval", "sts", found[0]["folder"], "--sets", "STSB-dev", "--device", "cpu", "--json"]) == 0
    scored = json.loads(capsys.readouterr().out)["sets"]["STSB-dev"]["spearman"]
    assert scored == pytest.approx(found[0]["STSB-dev"], abs=1e-6)
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "== sentence: sentences.txt, STSB-dev ==" in out
    assert "adnce:t=0.07,denominator=all,mu=0.4, seed 0: " in out


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--data", "nowhere.txt"], "nowhere.txt: no such file"),
        (["--data", "sentences.txt", "--positives", "columns"], "has one column of text"),
        (["--data", "sentences.txt", "--preset", "simcse-bert", "--batch", "8"], "fp16 needs a GPU"),
    ],
)
def test_wrong_commands_are_one_clear_line(world, bert, capsys, more, says):
    assert main(["train", "sentence", "--model", str(bert), "--out", str(world / "out"), *more]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_words_are_known_to_the_tiny_model(bert):
    """Otherwise everything above would be about unknown words."""
    assert load(bert).tokenizer.convert_tokens_to_ids(WORDS[:3]) == [5, 6, 7]
