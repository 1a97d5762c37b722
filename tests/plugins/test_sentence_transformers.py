"""The losses for sentence-transformers, in its own trainer; in two processes too, whose script this file is."""

from __future__ import annotations

import copy
import functools
import json
import multiprocessing
import os
import pickle
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from injected import differences, launch
from processes import PATIENCE
from tiny_bert import load, texts
from torch import nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")
from specs import keyed

import counterpoint as cp
from counterpoint.plugins.encoders import follow
from counterpoint.plugins.host import SeamError
from counterpoint.plugins.sentence_transformers import HOST, CachedContrastiveLoss, ContrastiveLoss

st = pytest.importorskip("sentence_transformers")
datasets = pytest.importorskip("datasets")
from sentence_transformers.sentence_transformer import losses  # noqa: E402
from sentence_transformers.sentence_transformer.modules import StaticEmbedding  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from tokenizers.models import WordLevel  # noqa: E402

ATTACKED = {"robust", "intcl", "intnacl"}
SPECS = [f"{name}(infonce)" if issubclass(kind, cp.Wrapper) else name for name, kind in cp.registry.items()]


@pytest.fixture
def model(bert):
    return load(bert)


def features(model, columns: list[list[str]]) -> list[dict[str, torch.Tensor]]:
    return [model.preprocess(column) for column in columns]


def value_and_gradients(loss_fn, columns, labels=None) -> list[torch.Tensor]:
    model = loss_fn.model
    model.zero_grad()
    loss = loss_fn(features(model, columns), labels)
    loss = torch.stack(list(loss.values())).sum() if isinstance(loss, dict) else loss
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def assert_equal(ours, theirs, tolerance: float) -> None:
    """The loss, and all gradients together: single ones may be nothing but rounding, as that of a key's bias."""
    torch.testing.assert_close(ours[0], theirs[0], rtol=tolerance, atol=tolerance)
    mine, other = (torch.cat([g.flatten() for g in found[1:]]) for found in (ours, theirs))
    assert (mine - other).norm() <= tolerance * other.norm()


# ---- what it computes ----------------------------------------------------------------------------


def test_the_hosts_temperature_is_refused_at_once():
    """It belongs to ``inject``; a loss of ours has no logits of the host."""
    with pytest.raises(ValueError, match=r"ContrastiveLoss: .*t=host.* is for `counterpoint inject`.*t=0\.05"):
        ContrastiveLoss(nn.Identity(), "0.5*dp + hcl:t=host")


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("columns", [2, 3, 4])
def test_is_multiple_negatives_ranking(model, columns, dtype, tolerance):
    model.to(dtype).eval()
    data = texts(columns)
    theirs = value_and_gradients(losses.MultipleNegativesRankingLoss(model, scale=20.0), data)
    assert_equal(value_and_gradients(ContrastiveLoss(model, "infonce:t=0.05"), data), theirs, tolerance)


@pytest.mark.parametrize(
    ("spec", "chosen", "pairing"),
    [
        ("infonce:t=0.05", None, "one_way"),
        ("nca", None, "one_way"),
        ("infonce:t=0.05", "views", "views"),
        ("arcl(adnce):views=3 + 0.1*dp", None, None),
        ("debpos", None, None),
    ],
)
def test_columns_are_views(model, spec, chosen, pairing):
    """The first column has the anchors, unless the objective's paper compares other pairs."""
    model.eval()
    embedded = [model(x)["sentence_embedding"] for x in features(model, texts(3))]
    loss_fn = ContrastiveLoss(model, spec, columns="views", pairing=chosen)
    loss = loss_fn(features(model, texts(3)), None)
    torch.testing.assert_close(loss, cp.objective(spec)(*embedded, pairing=pairing))


def test_labels_are_ids_or_classes(model):
    model.eval()
    data, labels = features(model, texts(2)), torch.tensor([0, 1, 2, 3, 0, 4, 5, 6])
    a, b = (model(x)["sentence_embedding"] for x in features(model, texts(2)))
    for spec, what, name in (
        ("hcl:t=0.1", "ids", "ids"), ("hcl:t=0.1", "classes", "labels"), ("sogclr:t=0.1", "index", "index"),
    ):  # fmt: skip
        ours = ContrastiveLoss(model, spec, labels=what)(data, labels)
        torch.testing.assert_close(ours, cp.objective(spec)(a, b, pairing="one_way", **{name: labels}))
        told = ContrastiveLoss(model, f"{spec}; {name}=labels")  # a treatment's text, as in `inject`
        torch.testing.assert_close(told(data, labels), ours)
    with pytest.raises(ValueError, match=r"ids=data.y is for `counterpoint inject`; this loss takes a column"):
        ContrastiveLoss(model, "hcl; ids=data.y")
    with pytest.raises(ValueError, match="labels='ids' needs a dataset with a column label"):
        ContrastiveLoss(model, "hcl", labels="ids")(data, None)


@pytest.mark.parametrize("kind", [ContrastiveLoss, CachedContrastiveLoss])
def test_matryoshka_is_that_of_the_host(model, kind):
    model.eval()
    dims, weights = [16, 8], [1, 0.5]
    theirs = losses.MatryoshkaLoss(model, losses.MultipleNegativesRankingLoss(model), dims, weights)
    ours = kind(model, cp.Matryoshka("infonce:t=0.05", dims=dims, weights=weights))
    assert_equal(value_and_gradients(ours, texts(3)), value_and_gradients(theirs, texts(3)), 5e-6)


@pytest.mark.skipif(not hasattr(losses, "GlobalOrthogonalRegularizationLoss"), reason="an older version")
@pytest.mark.parametrize("mean", [True, False])
def test_spread_out_is_that_of_the_host(mean):
    """Of queries and documents; without the first moment, as for EmbeddingGemma."""
    some = [torch.randn(6, 8, generator=torch.Generator().manual_seed(i)).requires_grad_() for i in range(2)]
    kind = losses.GlobalOrthogonalRegularizationLoss
    host = kind(None, mean_weight=float(mean), aggregation="sum").compute_loss_from_embeddings(some)
    loss_fn = cp.SpreadOut(mean=mean)
    values = loss_fn(some[0]) + loss_fn(some[1]), sum(host.values())
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*(torch.autograd.grad(value, some) for value in values))


@pytest.mark.parametrize("kind", [ContrastiveLoss, CachedContrastiveLoss])
@pytest.mark.parametrize("columns", [2, 3])
def test_the_model_before_the_first_step_guides(model, kind, columns):
    model.eval()
    data, first = texts(columns, 12), copy.deepcopy(model)
    loss, mean = (kind(model, f"infonce:t=0.05; guide={which}; margin=0.02") for which in ("self", "ema"))
    assert_equal(value_and_gradients(loss, data), value_and_gradients(mean, data), 5e-6)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    for each in (loss, mean):
        wanted = value_and_gradients(kind(model, "infonce:t=0.05; margin=0.02", guide=first), data)
        assert_equal(value_and_gradients(each, data), wanted, 5e-6)
        follow(first, model)
    different = value_and_gradients(loss, data)[0] - value_and_gradients(kind(model), data)[0]
    assert different.abs() > 1e-3  # the guide leaves out something


@pytest.mark.parametrize("kind", [ContrastiveLoss, CachedContrastiveLoss])
@pytest.mark.parametrize(("margin", "strategy"), [(0.0, "absolute"), (0.05, "absolute"), (0.1, "relative")])
@pytest.mark.parametrize("columns", [2, 3])
def test_is_gist_embed(bert, model, kind, margin, strategy, columns):
    guide = load(bert).eval()
    with torch.no_grad():
        for p in guide.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    model.eval()
    data = texts(columns, 12)
    options = {"margin": margin, "margin_strategy": strategy, "contrast_anchors": False, "contrast_positives": False}
    theirs = value_and_gradients(losses.GISTEmbedLoss(model, guide, temperature=0.05, **options), data)
    rule = cp.margin(margin, strategy)
    ours = value_and_gradients(kind(model, "infonce:t=0.05", false_negatives=rule, guide=guide), data)
    assert_equal(ours, theirs, 5e-6)
    plain = value_and_gradients(kind(model, "infonce:t=0.05"), data)
    assert (plain[0] - ours[0]).abs() > 1e-3  # the guide leaves out something
    guide[0].auto_model.name_or_path = bert
    assert kind(model, false_negatives=rule, guide=guide).get_config_dict()["guide"] == Path(bert).name
    compiled = torch.compile(guide)
    assert kind(model, false_negatives=rule, guide=compiled).get_config_dict()["guide"] == Path(bert).name


@pytest.mark.parametrize("kind", [ContrastiveLoss, CachedContrastiveLoss])
def test_samples_that_share_a_text_are_not_negatives(model, kind):
    model.eval()
    anchors, answers, hard = ([f"w{k + i} w{50 - k - i}" for i in range(8)] for k in (0, 10, 35))
    anchors[3], answers[5], hard[2], hard[6] = anchors[0], answers[1], answers[4], anchors[7]
    labels = torch.tensor([0, 1, 2, 0, 4, 1, 6, 7])
    a, b, c = (model(x)["sentence_embedding"] for x in features(model, [anchors, answers, hard]))
    negative_ids = torch.tensor([20, 21, 4, 23, 24, 25, 7, 27])
    expected = cp.objective("hcl:t=0.1")(a, b, negatives=cp.Keys(c, ids=negative_ids), pairing="one_way", ids=labels)
    loss_fn = kind(model, "hcl:t=0.1", duplicates="text")
    torch.testing.assert_close(loss_fn(features(model, [anchors, answers, hard]), None), expected)
    assert loss_fn.get_config_dict()["duplicates"] == "text"


@pytest.mark.parametrize("kind", [ContrastiveLoss, CachedContrastiveLoss])
@pytest.mark.parametrize("objective", ["infonce:t=0.1", "infonce:t=0.1; duplicates", "infonce:t=0.1; ids=label"])
def test_ids_of_documents_and_equal_texts_go_together(model, kind, objective):
    """A hard negative has the id of the sample whose text it is."""
    model.eval()
    anchors, answers, hard = ([f"w{k + i} w{50 - k - i}" for i in range(6)] for k in (0, 10, 35))
    answers[3], hard[2], hard[5] = answers[1], answers[0], answers[4]
    documents = torch.tensor([7, 8, 9, 10, 7, 12])  # the same document in other words
    told = {} if "ids" in objective else {"labels": "ids"}
    told |= {} if "duplicates" in objective else {"duplicates": "text"}
    found = value_and_gradients(kind(model, objective, **told), [anchors, answers, hard], documents)
    a, b, c = (model(x)["sentence_embedding"] for x in features(model, [anchors, answers, hard]))
    ids, of_hard = torch.tensor([0, 1, 2, 1, 0, 5]), torch.tensor([20, 21, 0, 23, 24, 0])
    wanted = cp.InfoNCE(0.1)(a, b, negatives=cp.Keys(c, ids=of_hard), pairing="one_way", ids=ids)
    torch.testing.assert_close(found[0], wanted.detach())


@pytest.mark.parametrize("kind", [ContrastiveLoss, CachedContrastiveLoss])
def test_a_treatment_finds_duplicates_by_their_texts(model, kind):
    """Dropout embeds equal texts differently."""
    columns = [[f"w{k + i} w{50 - k - i}" for i in range(6)] for k in (0, 10, 35)]
    columns[1][3], columns[2][2] = columns[1][1], columns[1][0]
    losses_of = (kind(model.train(), "infonce:t=0.1; duplicates"), kind(model, "infonce:t=0.1", duplicates="text"))
    losses_of += (kind(model, "infonce:t=0.1"),)
    found = []
    for loss_fn in losses_of:
        torch.manual_seed(0)
        found.append(loss_fn(features(model, columns), None).detach())
    torch.testing.assert_close(found[0], found[1])
    assert found[0] != found[2]


def test_which_negatives_count(model):
    model.eval()
    data = features(model, texts(4))
    a, b, *hard = (model(dict(x))["sentence_embedding"] for x in data)
    for options in ({"in_batch": False}, {"shared_negatives": False}, {"false_negatives": "margin(-0.1)"}):
        how = keyed({**options, "negatives": torch.stack(hard, 1)})
        how |= {"empty": "zero"} if "false_negatives" in options else {}
        expected = cp.InfoNCE(0.05)(a, b, pairing="one_way", **how)
        loss = ContrastiveLoss(model, "infonce:t=0.05", **options)([dict(x) for x in data], None)
        torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("kind", [ContrastiveLoss, CachedContrastiveLoss])
@pytest.mark.parametrize("columns", [2, 3])
def test_rules_that_leave_no_anchor_a_negative_are_an_error(model, kind, columns):
    """In the words of a treatment's text; a later batch of nothing else, such as a small last one, counts as zero."""
    data, says = texts(columns), r"every anchor of this step is left without negatives\. A lower margin="
    for options in ({"false_negatives": cp.margin(1.95)}, {"false_negatives": "margin(1.95)", "guide": model}):
        with pytest.raises(ValueError, match=rf"^infonce:t=0\.05.*; margin=1\.95: {says}"):
            kind(model, "infonce:t=0.05", **options)(features(model, data), None)
    with pytest.raises(ValueError, match=says):
        kind(model, "infonce:t=0.05; margin=1.95")(features(model, data), None)
    embedded = [model.eval()(x)["sentence_embedding"].detach() for x in features(model, data)]
    a, keys = nn.functional.normalize(embedded[0], dim=1), nn.functional.normalize(torch.cat(embedded[1:]), dim=1)
    least = (a @ keys.T).masked_fill(torch.eye(len(a), len(keys)).bool(), 2).amin(1)
    loss_fn = kind(model, "infonce:t=0.05", false_negatives=cp.threshold(float(least.sort().values[:2].mean())))
    assert loss_fn(features(model, data), None) > 0  # one anchor has a negative
    assert loss_fn(features(model, [data[0][:1] * 2] * columns), None) == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"duplicates": "txt"}, "unknown duplicates 'txt'. Did you mean 'text'"),
        ({"duplicates": "text", "labels": "classes"}, 'duplicates="text" cannot be combined with labels="classes"'),
        ({"duplicates": "text", "gather_across_devices": True}, 'gather_across_devices=; give labels="ids"'),
        ({"guide": object()}, "guide= needs false_negatives= beside it"),
        ({"guide": object(), "objective": "infonce:t=0.05; guide=self; margin=0"}, "are two judges"),
        ({"false_negatives": "margin"}, "expected margin(0.1), margin(0.05,relative)"),
    ],
)
def test_wrong_rules_and_duplicates(model, options, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        ContrastiveLoss(model, **{"objective": "infonce:t=0.05", **options})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ids": "doc_id"}, 'Ids are a column "label" of the dataset: labels="ids"'),
        ({"doc_ids": [1]}, 'Ids are a column "label" of the dataset: labels="ids"'),
        ({"margin": 0.1}, "A rule: false_negatives=cp.margin(...)"),
        ({"scale": 20}, '"infonce:t=0.05" for a scale of 20'),
        ({"temperature": 0.03}, '"infonce:t=0.03"'),
        ({"queue": 1024}, "CachedContrastiveLoss trains with larger batches"),
    ],
)
def test_other_words_for_what_is_known_of_the_data(model, options, says):
    with pytest.raises(TypeError, match=re.escape(says)):
        ContrastiveLoss(model, "infonce", **options)
    with pytest.raises(ValueError, match=r"unknown labels 'doc_id'\. They are the values of a column"):
        ContrastiveLoss(model, "infonce", labels="doc_id")


def static():
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "w1": 1}, "[UNK]"))
    return st.SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=4)], device="cpu")


@pytest.mark.parametrize("told", ["guide=self; margin=0", "guide=ema; margin=0.95,percentage"])
def test_an_encoder_that_guides_at_logits_has_a_remedy(told):
    with pytest.raises(SeamError, match=re.escape(f'ContrastiveLoss(model, "infonce:t=0.05; {told}")')):
        HOST.check(f"infonce:t=host; {told}")


def test_a_spec_without_a_temperature_is_warned_about(model, recwarn):
    with pytest.warns(UserWarning, match=r"'infonce; ids=labels' names no t, so t=0\.5; the host's is 0\.05"):
        ContrastiveLoss(model, "infonce; ids=labels")
    recwarn.clear()
    ContrastiveLoss(model, "infonce:t=0.5")
    assert not recwarn.list


def test_citations_and_the_name_of_a_static_guide(model):
    cited = CachedContrastiveLoss(model, "hcl:t=0.1").citation
    assert cited.count("@misc") == 2
    assert "2010.04592" in cited
    guide = static()
    guide.model_card_data.base_model = "some/guide"
    assert ContrastiveLoss(guide, guide=guide, false_negatives="margin(0)").get_config_dict()["guide"] == "some/guide"


def test_cached_losses_refuse_static_embeddings():
    with pytest.raises(ValueError, match="StaticEmbedding has no row per text; use ContrastiveLoss"):
        CachedContrastiveLoss(static())


def test_nothing_is_ignored(model):
    """Hard negatives that are not there, and texts that embeddings do not have."""
    data = features(model.eval(), texts(2))
    for name in ("in_batch", "shared_negatives"):
        with pytest.raises(ValueError, match=f"{name}=False: needs (negatives=|hard negatives)"):
            ContrastiveLoss(model, **{name: False})(data, None)
    embedded = [model(dict(x))["sentence_embedding"] for x in data]
    for options in ({"duplicates": "text"}, {"guide": model, "false_negatives": "margin(0)"}):
        with pytest.raises(ValueError, match="reads texts, and embeddings alone do not have them"):
            ContrastiveLoss(model, **options).compute_loss_from_embeddings(embedded)


def test_one_column_is_embedded_twice(model):
    """As unsupervised SimCSE is usually written down, with the same text in two columns."""
    (column,) = texts(1)
    model.train()
    found = []
    for columns in ([column], [column, column]):
        torch.manual_seed(0)
        found.append(value_and_gradients(ContrastiveLoss(model, "infonce:t=0.05"), columns))
    assert_equal(*found, 0)
    assert found[0][0] > 0


@pytest.mark.parametrize("kind", [ContrastiveLoss, CachedContrastiveLoss])
def test_one_column_has_the_views_that_the_objective_asks_for(model, kind):
    data = features(model.eval(), texts(1))
    (embedded,) = (model(x)["sentence_embedding"] for x in features(model, texts(1)))
    spec = "arcl(adnce:t=0.1):views=4 + 0.1*dp"
    loss_fn = kind(model, spec)
    assert loss_fn.get_config_dict()["views"] == 4
    loss = loss_fn(data, None)
    torch.testing.assert_close(
        loss if isinstance(loss, torch.Tensor) else loss.sum(), cp.objective(spec)(*[embedded] * 4)
    )
    assert kind(model, "infonce").views == 2
    assert kind(model, "infonce", views=3).views == 3
    with pytest.raises(ValueError, match="views must be at least 2, got 0"):
        kind(model, views=0)


def test_schedules_advance_once_a_step(model):
    loss = ContrastiveLoss(model, "infonce:t=schedule(0.5,0.1,4) + schedule(0,1,4)*dp")
    for _ in range(2):
        loss(features(model, texts(2)), None)
    assert [int(m.step) for m in loss.objective.modules() if isinstance(m, cp.Schedule)] == [2, 2]


def test_unknown_choices_are_named(model):
    with pytest.raises(ValueError, match=r"unknown columns 'view'\. Did you mean 'views'"):
        ContrastiveLoss(model, columns="view")
    with pytest.raises(ValueError, match=r"unknown labels 'id'\. Did you mean 'ids'"):
        ContrastiveLoss(model, labels="id")


@pytest.mark.parametrize("kind", [ContrastiveLoss, CachedContrastiveLoss])
def test_the_model_comes_first(model, kind):
    for swapped in (("infonce:t=0.05",), ("infonce:t=0.05", model)):
        with pytest.raises(TypeError, match=r"model: expected a SentenceTransformer, got str; .*\(model, ") as refused:
            kind(*swapped)
        assert len(str(refused.value)) < 200


@pytest.mark.parametrize("kind", [ContrastiveLoss, CachedContrastiveLoss])
def test_copies(model, kind):
    model.eval()
    loss = kind(model, "adnce:t=0.05,mu=0.4 + 0.1*dp")
    data = features(model, texts(2))
    for copied in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert copied.get_config_dict() == loss.get_config_dict()
        torch.testing.assert_close(
            copied.compute_loss_from_embeddings([copied.model(x)["sentence_embedding"] for x in data]),
            loss.compute_loss_from_embeddings([loss.model(x)["sentence_embedding"] for x in data]),
        )


@pytest.mark.parametrize(
    "wrap", [lambda *given: losses.MatryoshkaLoss(*given, [16, 8], [1, 0.5]), losses.AdaptiveLayerLoss]
)
def test_losses_that_wrap_another_one(model, wrap):
    """They weigh what it returns."""
    model.eval()
    wrap(model, ContrastiveLoss(model, "hcl + 0.1*dp"))(features(model, texts(2)), None).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_matryoshka_wraps_the_cached_one(model):
    wrapped = losses.MatryoshkaLoss(model, CachedContrastiveLoss(model, "hcl + 0.1*dp"), [16, 8])
    wrapped(features(model, texts(2)), None).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


# ---- cached --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"mini_batch_size": 3}, {"mini_batch_num_tokens": 12}])
@pytest.mark.parametrize(
    ("spec", "columns"),
    [("infonce:t=0.05", 2), ("infonce:t=0.05", 4), ("adnce:mu=0.4,t=0.07 + 0.1*dp", 3), ("arcl(hcl):views=3", -3)],
)
def test_cached_is_the_uncached(model, spec, columns, how):
    """Loss and gradients; without dropout, whose masks differ between parts and whole."""
    model.double().eval()
    kind = {"columns": "views" if columns < 0 else "negatives"}
    data = texts(abs(columns))
    plain = value_and_gradients(ContrastiveLoss(model, spec, **kind), data)
    assert_equal(value_and_gradients(CachedContrastiveLoss(model, spec, **kind, **how), data), plain, 1e-12)


@pytest.mark.parametrize("size", [0, -5, 2.5, True])
@pytest.mark.parametrize("name", ["mini_batch_size", "mini_batch_num_tokens"])
def test_parts_of_no_size_are_refused_at_once(model, name, size):
    with pytest.raises(ValueError, match=f"{name} must be a whole number of at least 1, got {size}"):
        CachedContrastiveLoss(model, **{name: size})


def test_cached_is_the_hosts_cached(model):
    """With dropout: the same parts in the same order."""
    model.train()
    found = []
    for loss in (
        losses.CachedMultipleNegativesRankingLoss(model, scale=20.0, mini_batch_size=3),
        CachedContrastiveLoss(model, "infonce:t=0.05", mini_batch_size=3),
    ):
        torch.manual_seed(0)
        found.append(value_and_gradients(loss, texts(3)))
    assert_equal(*found, 1e-6)


def test_cached_names_a_column_that_no_term_reads(model):
    with pytest.raises(ValueError, match=r"CachedContrastiveLoss did not use input column\(s\) 1"):
        CachedContrastiveLoss(model, "dp")(features(model, texts(2)), None)


# ---- in the trainer ------------------------------------------------------------------------------


def trainer(model, loss, out: Path, columns: int = 2, **how):
    names = ["anchor", "positive", "negative", "negative_2"][:columns]
    data = datasets.Dataset.from_dict(dict(zip(names, texts(columns, 24), strict=True)))
    settings = {
        "max_steps": 3,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 1,
        **how,
    }
    arguments = st.SentenceTransformerTrainingArguments(output_dir=str(out), **settings)
    return st.SentenceTransformerTrainer(model=model, args=arguments, train_dataset=data, loss=loss)


def logged(run) -> list[float]:
    return [line["loss"] for line in run.state.log_history if "loss" in line]


QUICKLY_TRAINED = ("infonce", "hcl", "supcon", "robust", "arcl(infonce)")


@pytest.mark.parametrize(
    "spec", [pytest.param(spec, marks=[pytest.mark.slow] * (spec not in QUICKLY_TRAINED)) for spec in SPECS]
)
def test_every_objective_trains(model, tmp_path, spec):
    before = [p.detach().clone() for p in model.parameters()]
    if spec in ATTACKED:
        for kind in (ContrastiveLoss, CachedContrastiveLoss):
            with pytest.raises(ValueError, match="needs adversarial views, but words have no gradient"):
                kind(model, spec)
        return
    if "sogclr" in spec:
        with pytest.raises(ValueError, match="pass index=, the samples' positions"):
            trainer(model, ContrastiveLoss(model, spec), tmp_path).train()
        return
    run = trainer(model, ContrastiveLoss(model, spec), tmp_path)
    run.train()
    assert len(logged(run)) == 3
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert any(not torch.equal(p, was) for p, was in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("spec", ["adnce:t=0.05,mu=0.4", "infonce:t=0.05 + 0.1*dp"])
@pytest.mark.parametrize("kind", [ContrastiveLoss, CachedContrastiveLoss])
def test_a_last_batch_of_one_sample_trains(model, tmp_path, kind, spec):
    """24 samples in batches of 23."""
    run = trainer(model, kind(model, spec), tmp_path, max_steps=2, per_device_train_batch_size=23)
    with pytest.warns(UserWarning, match="one sample has no negatives, so its loss is zero.*dataloader_drop_last=True"):
        run.train()
    first, last = logged(run)
    assert first > 0
    assert last == 0
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_one_sample_with_a_hard_negative_has_negatives(model, recwarn):
    data = [column[:1] for column in texts(3)]
    assert ContrastiveLoss(model.eval())(features(model, data), None) > 0
    assert not any("one sample" in str(each.message) for each in recwarn.list)


def test_trains_as_the_hosts_loss(bert, tmp_path):
    """Three steps with dropout, from the same weights and seed."""
    curves = []
    for kind, how in ((losses.MultipleNegativesRankingLoss, {"scale": 20.0}), (ContrastiveLoss, {})):
        model = load(bert)
        run = trainer(model, kind(model, **how), tmp_path, columns=3)
        run.train()
        curves.append(logged(run))
    assert curves[0] == pytest.approx(curves[1], rel=1e-5)


def test_card(model, tmp_path):
    loss = CachedContrastiveLoss(model, "adnce:mu=0.4,t=0.07 + 0.1*dp", mini_batch_size=4)
    trainer(model, loss, tmp_path).train()
    model.save_pretrained(str(tmp_path / "saved"))
    card = (tmp_path / "saved" / "README.md").read_text()
    assert "counterpoint.plugins.sentence_transformers.CachedContrastiveLoss" in card
    assert '"objective": "adnce:t=0.07,denominator=with_positive,mu=0.4 + 0.1*dp"' in card
    assert '"mini_batch_size": 4' in card


# ---- examples ------------------------------------------------------------------------------------

EXAMPLES = Path(__file__).parents[2] / "examples" / "existing_repos"


def test_example(capsys):
    runpy.run_path(str(EXAMPLES / "sentence_transformers" / "train.py"))["main"](["--steps", "30"])
    before, after = re.findall(r"(\d+)%", capsys.readouterr().out)
    assert int(before) < int(after)


def test_example_of_the_plain_trainer(capsys):
    runpy.run_path(str(EXAMPLES / "hf_trainer" / "train.py"))["main"]("hcl:t=0.05")
    first, last = capsys.readouterr().out.split("loss ")[-1].split(" -> ")
    assert float(last) < float(first)


# ---- unmodified scripts ---------------------------------------------------------------------------

SCRIPT = """
import os
from pathlib import Path

import torch
from sentence_transformers.sentence_transformer import losses
from tiny_bert import load, texts


def work(rank, world, folder):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, guide = (load(Path({bert!r})).double().eval() for _ in range(2))
    loss_fn = losses.{loss}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if world > 1:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
        model[0].model.pooler.requires_grad_(False)
        loss_fn.model = torch.nn.parallel.DistributedDataParallel(model)
    own = slice(8 // world * rank, 8 // world * (rank + 1))
    for step in range(4):
        columns = [model.preprocess(column[own]) for column in texts({columns}, seed=step)]
        loss = loss_fn(columns, None)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if world == 1:
            print(float(loss.detach()))
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    torch.save([loss.detach(), *grads], f"{folder}/{rank}.pt")


if __name__ == "__main__":
    {start}
"""
DIRECTIONS = "directions=('query_to_doc', 'query_to_query', 'doc_to_query', 'doc_to_doc')"
BOTH_WAYS = "directions=('query_to_doc', 'doc_to_query'), partition_mode='per_direction'"
HOST_LOSSES = {
    "MultipleNegativesRankingLoss(model)": (20, 3, 4),
    f"MultipleNegativesRankingLoss(model, scale=10, {DIRECTIONS})": (10, 2, 4),
    f"MultipleNegativesRankingLoss(model, {BOTH_WAYS})": (20, 2, 8),
    "CachedMultipleNegativesRankingLoss(model, mini_batch_size=4)": (20, 2, 8),
    "GISTEmbedLoss(model, guide=guide)": (100, 2, 4),
    "CachedGISTEmbedLoss(model, guide=guide, mini_batch_size=4)": (100, 2, 8),
}


def script_of(bert, loss: str, columns: int, processes: int = 1) -> str:
    start = "work(0, 1, os.getcwd())"
    if processes > 1:
        start = f"torch.multiprocessing.spawn(work, ({processes}, os.getcwd()), nprocs={processes})"
    names = {"{bert!r}": repr(str(bert)), "{loss}": loss, "{columns}": str(columns), "{start}": start}
    return functools.reduce(lambda text, name: text.replace(*name), names.items(), SCRIPT)


@pytest.mark.parametrize("loss", HOST_LOSSES)
def test_the_hosts_losses_in_an_unmodified_script(loss, bert, tmp_path, monkeypatch, capsys):
    scale, columns, calls = HOST_LOSSES[loss]
    script = script_of(bert, loss, columns)

    def run(*words):
        found = launch(tmp_path, script, monkeypatch, capsys, "sentence_transformers", words)
        assert (found.code, f"reached {calls} times" in found.err) == (0, True), found.err
        return found.numbers, torch.load(tmp_path / "0.pt"), found.err

    own = run()
    same = run("--objective", "infonce:t=host")
    for name in (0, 1):
        torch.testing.assert_close(same[name], own[name], rtol=1e-8, atol=1e-10)
    assert f"cosines times {scale}, constant, measured in 3 calls" in same[2]
    assert max(differences(same[2])) < 1e-10
    nothing = run("--objective", "0*infonce")
    assert not any(gradient.any() for gradient in nothing[1][1:])  # which Adam would make steps of, however small
    other = run("--objective", "hcl:t=0.1")
    assert other[0][0] == own[0][0]  # the script logs its own loss
    assert not all(torch.allclose(a, b, rtol=1e-4) for a, b in zip(other[1], own[1], strict=True))


@pytest.mark.parametrize("loss", [*HOST_LOSSES][::3])
def test_texts_of_hard_negatives_are_not_offered(find, loss, bert):
    """Two queries with the same one are still each other's negatives."""
    found = find(script_of(bert, loss, 3))
    paths = [f"sentence_features[{column}]['input_ids']" for column in (0, 1)]
    assert [told["path"] for told in found.data["told"]] == paths


def test_a_cached_loss_takes_ids_of_the_whole_batch(bert, tmp_path, monkeypatch, capsys):
    """Hard negatives have none, so that there are more keys than ids."""
    found = []
    for loss in ("MultipleNegativesRankingLoss(model)", "CachedMultipleNegativesRankingLoss(model, mini_batch_size=4)"):
        script = script_of(bert, loss, 3).replace("columns, None)", "columns, torch.tensor([0, 1, 2, 3, 0, 1, 6, 7]))")
        words = ("--objective", "host; ids=labels")
        run = launch(tmp_path, script, monkeypatch, capsys, "sentence_transformers", words)
        assert (run.code, "left out 0.5 keys" in run.err) == (0, True), run.err
        found.append(torch.load(tmp_path / "0.pt"))
    torch.testing.assert_close(found[0], found[1], rtol=1e-8, atol=1e-10)


def test_a_script_whose_loss_the_host_does_not_have(bert, tmp_path, monkeypatch, capsys):
    script = script_of(bert, "CoSENTLoss(model)", 2).replace("None)", "torch.rand(8).double())")
    found = launch(tmp_path, script, monkeypatch, capsys, "sentence_transformers", ("--objective", "hcl:t=0.1"))
    assert (found.code, "never reached" in found.err) == (3, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["MultipleNegativesRankingLoss(", "CachedMultipleNegativesRankingLoss(mini_batch_size=2, "]
)
def test_two_processes_of_an_unmodified_script(kind, bert, tmp_path):
    """The mean of their losses, and the gradient that they share, are those of the whole batch."""
    loss = f"{kind}model=model, gather_across_devices=True)"
    (tmp_path / "toy.py").write_text(script_of(bert, loss, 2, processes=2))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1] / "support")}
    words = ["-m", "counterpoint.plugins.inject", "sentence_transformers", "--objective", "hcl:t=0.05", "--", "toy.py"]
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    model = load(bert).double().eval()
    model[0].model.pooler.requires_grad_(False)
    loss_fn, optimizer = ContrastiveLoss(model, "hcl:t=0.05"), torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        batch = texts(2, seed=step)
        value = ContrastiveLoss(model, "infonce:t=0.05")(features(model, batch), None)  # the script logs its own loss
        optimizer.zero_grad()
        loss_fn(features(model, batch), None).backward()
        optimizer.step()
    assert float(found[0][0] + found[1][0]) / 2 == pytest.approx(value.item(), rel=1e-9)
    expected = [p.grad for p in model.parameters() if p.grad is not None]
    for process in found:
        torch.testing.assert_close(process[1:], expected, rtol=1e-7, atol=1e-10)


# ---- two processes -------------------------------------------------------------------------------

GATHERED = {
    "infonce:t=0.05": {},
    "infonce:t=0.1": {"columns": "negatives", "texts": 4},
    "hcl:t=0.1": {"labels": "ids"},
    "adnce:t=0.5,mu=auto": {},
    "adnce:t=0.07,mu=0.4 + 0.1*dp": {"texts": 3},
    "arcl(adnce):views=3": {"columns": "views", "texts": 3},
    "nca": {"columns": "views", "texts": 3},
}
IDS = torch.tensor([0, 1, 2, 3, 0, 4, 5, 6])


def gathered_step(bert, kind, spec: str, own: slice, parallel: bool, **more) -> tuple[float, list[list[float]]]:
    settings = dict(GATHERED[spec])
    columns = [column[own] for column in texts(settings.pop("texts", 2))]
    model = load(bert).double().eval()
    preprocess = model.preprocess
    loss_fn = kind(model, spec, **settings, **more)
    if parallel:
        # as the trainer does; the pooler, which nothing here uses, would have to be looked for in every pass
        model[0].model.pooler.requires_grad_(False)
        loss_fn.model = nn.parallel.DistributedDataParallel(model)
    loss = loss_fn([preprocess(column) for column in columns], IDS[own])
    loss = torch.stack(list(loss.values())).sum() if isinstance(loss, dict) else loss
    loss.backward()
    return loss.item(), [p.grad.flatten().tolist() for p in model.parameters() if p.grad is not None]


def one_of_two(rank: int, bert: str | Path, out: str | Path) -> None:
    """What each of the two processes does."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{out}/meet", rank=rank, world_size=2)
    own = slice(4 * rank, 4 * rank + 4)
    found = {
        spec: gathered_step(bert, ContrastiveLoss, spec, own, True, gather_across_devices=True) for spec in GATHERED
    }
    found["cached"] = gathered_step(
        bert, CachedContrastiveLoss, "infonce:t=0.05", own, True, gather_across_devices=True, mini_batch_size=2
    )

    def theirs(model, spec):
        return losses.MultipleNegativesRankingLoss(model, scale=20.0, gather_across_devices=True)

    found["theirs"] = gathered_step(bert, theirs, "infonce:t=0.05", own, True)
    Path(out, f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def two_processes(bert, tmp_path_factory):
    out = tmp_path_factory.mktemp("gloo")
    other = multiprocessing.get_context("fork").Process(target=one_of_two, args=(1, bert, out))
    other.start()  # as this one, where sentence-transformers is imported already
    try:
        one_of_two(0, bert, out)
        other.join(PATIENCE)
        assert other.exitcode == 0
    finally:
        other.kill()
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(2)]


def assert_same(found, expected) -> None:
    for mine, whole in zip(found, expected, strict=True):
        assert mine == pytest.approx(whole, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", [*GATHERED, "cached"])
def test_gathered_is_one_process_with_the_whole_batch(two_processes, bert, name):
    spec = "infonce:t=0.05" if name == "cached" else name
    loss, gradients = gathered_step(bert, ContrastiveLoss, spec, slice(None), False)
    for process in two_processes:
        assert process[name][0] == pytest.approx(loss, rel=1e-12)
        assert_same(process[name][1], gradients)


def test_gathered_is_what_the_host_computes(two_processes):
    """Its loss is of a process's own anchors; ours is the mean over processes, in each."""
    mean = sum(process["theirs"][0] for process in two_processes) / 2
    for process in two_processes:
        for name in ("infonce:t=0.05", "cached"):
            assert process[name][0] == pytest.approx(mean, rel=1e-12)
            assert_same(process[name][1], process["theirs"][1])


def test_gathering_alone_changes_nothing(model):
    model.eval()
    data = texts(2)
    found = [value_and_gradients(ContrastiveLoss(model, gather_across_devices=on), data) for on in (False, True)]
    assert_equal(*found, 0)


# ---- false negatives -----------------------------------------------------------------------------


MARGINS = [("absolute", 0.0), ("absolute", 0.02), ("relative", 0.03), ("absolute", -0.02)]


@pytest.mark.parametrize(
    ("columns", "anchors", "strategy", "margin"),
    [
        *((columns, False, *margin) for columns in (2, 3) for margin in MARGINS),
        *((2, True, *margin) for margin in MARGINS[:3]),  # below zero it takes an anchor as a negative of itself
    ],
)
def test_a_guide_excludes_what_gist_does(model, columns, anchors, strategy, margin):
    guide = copy.deepcopy(model)
    for p in guide.parameters():
        p.data += 0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()))
    for each in (model, guide):
        each.to(torch.float64).eval()
    data = texts(columns)
    theirs = losses.GISTEmbedLoss(model, guide, 0.05, strategy, margin, anchors, contrast_positives=False)

    def embedded(by) -> list[torch.Tensor]:
        return [by(x)["sentence_embedding"] for x in features(by, data)]

    def ours() -> torch.Tensor:
        (a, b, *negatives), (ga, gb, *guided) = embedded(model), embedded(guide)
        how = {"negatives": cp.Keys(negatives[0], guide=guided[0])} if negatives else {}
        rule = cp.margin(margin, strategy)
        pairing = "arcl" if anchors else "one_way"  # keys: both views of the others, or the second ones
        assert cp.InfoNCE(0.05).report(
            a, b, pairing=pairing, false_negatives=rule, guide=(ga, gb), empty="zero", **how
        )[f"removed[{rule}]"]
        return cp.InfoNCE(0.05)(a, b, pairing=pairing, false_negatives=rule, guide=(ga, gb), empty="zero", **how)

    model.zero_grad()
    loss = ours()
    loss.backward()
    mine = [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
    assert_equal(mine, value_and_gradients(theirs, data), 1e-9)
