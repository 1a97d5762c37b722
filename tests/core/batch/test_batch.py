"""How a batch is paired, and what a call refuses."""

from __future__ import annotations

import pytest
import torch
from specs import embeddings

import counterpoint as cp
from counterpoint.batch.batch import BLOCK, Batch
from counterpoint.batch.options import BatchOptions
from counterpoint.batch.pairings import PAIRINGS, scores_of
from counterpoint.engine.tiles import TileNegatives

ONE_WAY = {"views": "one_way"}
HOW = {"pairing", "normalize", "engine"}  # to compute with a batch
DEFAULTS = dict.fromkeys(BatchOptions.__annotations__.keys() - HOW) | {"empty": "error", "in_batch": True}


@pytest.mark.parametrize("spec", ["infonce", "arcl(hcl)", "debpos", "dp"])
def test_a_mapping_replaces_some_pairings_and_leaves_the_others(spec):
    z, loss_fn = embeddings()[:3], cp.objective(spec)
    wanted = loss_fn(*z, pairing=ONE_WAY.get(loss_fn.pairing, loss_fn.pairing))
    torch.testing.assert_close(loss_fn(*z, pairing=ONE_WAY), wanted, rtol=0, atol=0)
    if loss_fn.pairing != "views":
        torch.testing.assert_close(loss_fn(*z, pairing=ONE_WAY), loss_fn(*z), rtol=0, atol=0)


def test_a_queue_and_hard_negatives_keep_their_pairings_beside_a_mapping():
    z, loss_fn = embeddings(), cp.InfoNCE()
    for how in ({"queue": z[2]}, {"negatives": z[2]}):
        assert loss_fn(z[0], z[1], pairing={"one_way": "views"}, **how) == loss_fn(z[0], z[1], **how)


@pytest.mark.parametrize("pairing", ["one-way", {"views": "one-way"}, {"one-way": "views"}])
def test_an_unknown_pairing_is_refused_by_name(pairing):
    z = embeddings()
    for loss_fn in (cp.InfoNCE(), cp.DistancePolarization()):
        with pytest.raises(ValueError, match=r"unknown pairing 'one-way'\. Did you mean 'one_way'"):
            loss_fn(z[0], z[1], pairing=pairing)


@pytest.mark.parametrize("pairing", ["", False])
def test_an_empty_pairing_is_unknown(pairing):
    z = embeddings()
    with pytest.raises(ValueError, match=rf"unknown pairing {pairing!r}\."):
        cp.InfoNCE()(z[0], z[1], pairing=pairing)


def test_an_unknown_pairing_is_unknown_beside_a_queue_too():
    z = embeddings()
    with pytest.raises(ValueError, match="unknown pairing 'bogus'"):
        cp.InfoNCE()(z[0], z[1], queue=z[2], pairing="bogus")


@pytest.mark.parametrize(("name", "meant"), [("parings", "pairing"), ("negative", "negatives"), ("gathr", "gather")])
def test_an_unknown_argument_is_refused_with_the_nearest_known_one(name, meant):
    z = embeddings()
    with pytest.raises(TypeError, match=rf"InfoNCE: unknown argument '{name}'\. Did you mean '{meant}'"):
        cp.InfoNCE()(z[0], z[1], **{name: None})


def test_options_are_explained():
    for name in BatchOptions.__annotations__:
        assert name in cp.Objective.forward.__doc__


@pytest.mark.parametrize("pairing", [None, "one_way", {"views": "one_way"}])
def test_arguments_at_their_defaults_make_the_same_batch(pairing):
    z = [*embeddings()[:2]]
    short, full = Batch(z, pairing=pairing), Batch(z, pairing=pairing, **DEFAULTS)
    written = {name for name in vars(full) if name not in ("raw", "scores", "_gathered")}
    assert {"ids", "rules", "hardness", "empty", "guide", "engine"} <= written
    assert {name: getattr(short, name) for name in written} == {name: getattr(full, name) for name in written}


@pytest.mark.parametrize("pairing", [name for name in PAIRINGS if name != "queue"])
def test_a_small_batch_never_visits_the_streaming_engine(monkeypatch, pairing):
    monkeypatch.setattr(TileNegatives, "__init__", lambda *args, **kwargs: pytest.fail("streamed"))
    scores = scores_of(Batch([*embeddings()[:2]]), pairing)
    assert isinstance(scores.neg, cp.MatrixNegatives)


def test_scores_are_computed_once_and_know_the_number_of_views():
    batch = Batch([*embeddings()[:3]])
    assert scores_of(batch, "views") is scores_of(batch, "views")
    assert scores_of(batch, "arcl").view_count == 3
    z = embeddings()
    assert scores_of(Batch([z[:2].transpose(0, 1), z[2:4].transpose(0, 1)], queue=z[0]), "views").view_count == 2


@pytest.mark.parametrize("engine", ["matrix", "tiles:3", "chunks:3"])
@pytest.mark.parametrize("spec", ["infonce:t=0.1", "hcl:t=0.1", "psl", "drrl", "dro"])
def test_padded_hard_negatives_do_not_count(spec, engine):
    g = torch.Generator().manual_seed(0)
    z1, z2 = torch.nn.functional.normalize(torch.randn(2, 5, 8, generator=g, dtype=torch.float64), dim=2)
    hard = torch.nn.functional.normalize(torch.randn(5, 3, 8, generator=g, dtype=torch.float64), dim=2)
    padding = torch.rand(5, 3, generator=g) < 0.5
    log_q = torch.zeros(5, 3, dtype=torch.float64).masked_fill(padding, torch.inf)
    keys = cp.Keys(hard.masked_fill(padding.unsqueeze(2), 0.0).requires_grad_(), log_q=log_q)
    loss = cp.objective(spec)(z1, z2, negatives=keys, engine=engine)
    others = torch.cat([~torch.eye(5, dtype=torch.bool), ~padding.flatten().expand(5, -1)], 1)
    similarities = z1 @ torch.cat([z2, hard.flatten(0, 1)]).T
    expected = cp.objective(spec).from_scores((z1 * z2).sum(1), similarities, others)
    torch.testing.assert_close(loss, expected)
    (gradient,) = torch.autograd.grad(loss, keys.embeddings)
    assert not gradient[padding].any()


def test_probabilities_in_the_place_of_their_logarithms_are_warned_of(recwarn):
    z, p = torch.randn(2, 8, 4), torch.full((8,), 0.02)
    for log_q in (p.log(), torch.zeros(8), torch.tensor([1.0, 2.0] * 4).log()):  # also of counts
        cp.InfoNCE(0.1)(*z, log_q=log_q)
    assert not recwarn.list
    with pytest.warns(
        UserWarning, match=r"log_q: expected log-probabilities, got numbers from 0 to 1: of p, pass p.log"
    ):
        cp.InfoNCE(0.1)(*z, log_q=p)


@pytest.mark.parametrize("size", [BLOCK - 1, BLOCK, 2 * BLOCK + 3])
def test_gradients_of_views_do_not_depend_on_the_blocks_of_rows(size):
    a, b = (3 * torch.rand(2, size, 3, dtype=torch.float64) - 1).requires_grad_().unbind()
    u, v = (torch.nn.functional.normalize(x, dim=1) for x in (a, b))
    logits = u @ v.T / 0.5
    by_hand = torch.nn.functional.cross_entropy(logits, torch.arange(size))
    ours = cp.InfoNCE(0.5, "with_positive")(a, b, pairing="one_way")
    for found, expected in zip(*(torch.autograd.grad(loss, (a, b)) for loss in (ours, by_hand)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-14)
