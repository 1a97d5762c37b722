"""sentence-transformers' losses with all of their settings, and ours with the same: values and gradients in float64."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from tiny_bert import build, load, texts
from torch import Tensor, nn

import counterpoint as cp

pytest.importorskip("sentence_transformers")

from sentence_transformers import util
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sparse_encoder import losses as sparse

from counterpoint.plugins.sentence_transformers import CachedContrastiveLoss, ContrastiveLoss

FURTHER = ("query_to_query", "doc_to_query", "doc_to_doc")
HARDNESS = ("in_batch_negatives", "hard_negatives", "all_negatives")
JOINT = [("query_to_doc", *d) for n in range(4) for d in itertools.combinations(FURTHER, n)]
SYMMETRIC = ("query_to_doc", "doc_to_query")
SETTINGS = [
    *({"directions": d} for d in JOINT),
    *({"directions": d, "hardness_mode": mode, "hardness_strength": 3.0} for d in JOINT[::3] for mode in HARDNESS),
]


def columns(number: int, seed: int = 0) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [*torch.randn(number, 9, 6, generator=draw, dtype=torch.float64)]


def value_and_gradients(loss_fn, embeddings: list[Tensor]) -> list[Tensor]:
    leaves = [z.clone().requires_grad_() for z in embeddings]
    loss = loss_fn.compute_loss_from_embeddings(leaves, None)
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


def same(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for got, want in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("hard", [0, 1, 3])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_multiple_negatives_ranking(settings, hard):
    z, model = columns(2 + hard), nn.Identity()
    theirs = losses.MultipleNegativesRankingLoss(model, scale=8.0, **settings)
    ours = ContrastiveLoss(model, "infonce:t=0.125", **settings)
    same(value_and_gradients(ours, z), value_and_gradients(theirs, z))


@pytest.mark.parametrize("settings", SETTINGS[::4], ids=str)
def test_dot_products_of_sparse_embeddings(settings):
    z, model = [x.relu() for x in columns(3)], nn.Identity()
    theirs = sparse.SparseMultipleNegativesRankingLoss(model, **settings)
    ours = ContrastiveLoss(model, "infonce:t=1", similarity="dot", **settings)
    same(value_and_gradients(ours, z), value_and_gradients(theirs, z))
    dense = losses.MultipleNegativesRankingLoss(model, scale=1.0, similarity_fct=util.dot_score, **settings)
    same(value_and_gradients(ours, z), value_and_gradients(dense, z))


# ---- with a model ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    build(folder, dropout=0.0)
    return load(folder).double()


@pytest.fixture(scope="module")
def guide(model):
    other = copy.deepcopy(model)
    for p in other.parameters():
        p.data += 0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()))
    return other.double().eval()


def trained(loss_fn, model, number: int) -> list[Tensor]:
    model.zero_grad()
    loss = loss_fn([model.preprocess(column) for column in texts(number)], None)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("settings", SETTINGS[::3], ids=str)
def test_cached(model, settings):
    theirs = losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=3, **settings)
    ours = CachedContrastiveLoss(model, "infonce:t=0.05", mini_batch_size=3, **settings)
    same(trained(ours, model, 3), trained(theirs, model, 3))


@pytest.mark.parametrize(
    ("kind", "own"), [("GISTEmbedLoss", ContrastiveLoss), ("CachedGISTEmbedLoss", CachedContrastiveLoss)]
)
@pytest.mark.parametrize(
    ("strategy", "margin", "contrast", "number"),
    [
        ("absolute", 0.0, (True, True), 3),
        ("relative", 0.05, (True, True), 3),
        *(("absolute", 0.03, (a, b), number) for a in (True, False) for b in (True, False) for number in (2, 3)),
    ],
)
def test_gist(model, guide, kind, own, strategy, margin, contrast, number):
    mini = {"mini_batch_size": 3} if "Cached" in kind else {}
    anchors, positives = contrast
    theirs = getattr(losses, kind)(
        model, guide, temperature=0.05, margin_strategy=strategy, margin=margin,
        contrast_anchors=anchors, contrast_positives=positives, **mini,
    )  # fmt: skip
    directions = ("query_to_doc", *["query_to_query"] * anchors, *["doc_to_positive"] * positives)
    rule = cp.margin(margin, strategy)
    ours = own(model, "infonce:t=0.05", guide=guide, false_negatives=rule, directions=directions, **mini)
    same(trained(ours, model, number), trained(theirs, model, number))


@pytest.mark.parametrize("spec", ["hcl:t=0.1", "adnce:t=0.1,mu=0.4", "infonce:t=0.05 + 0.1*dp"])
@pytest.mark.parametrize("kind", [ContrastiveLoss, CachedContrastiveLoss])
def test_other_objectives_and_equal_texts(model, spec, kind):
    loss_fn = kind(
        model, spec, directions=JOINT[-1], hardness_mode="all_negatives", hardness_strength=2.0, duplicates="text"
    )
    found = loss_fn([model.preprocess(column) for column in texts(3)], None)
    model.zero_grad()
    found.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_the_card_names_the_settings():
    config = ContrastiveLoss(nn.Identity(), directions=JOINT[-1], similarity="dot").get_config_dict()
    assert (config["directions"], config["similarity"]) == (JOINT[-1], "dot")
    assert "directions" not in ContrastiveLoss(nn.Identity()).get_config_dict()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"similarity": "euclidean"}, "unknown similarity"),
        ({"hardness_mode": "hardest", "hardness_strength": 1.0}, "hardness: unknown negatives"),
        ({"directions": JOINT[-1], "pairing": "symmetric"}, "'symmetric' is another"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ValueError, match=message):
        ContrastiveLoss(nn.Identity(), **settings)
