"""Seeds that train together: the same numbers as a loop over seeds."""

from __future__ import annotations

import pytest
import torch
from training import MLP, Batches, Networks, draw, knn_accuracy, train

import counterpoint as cp

SEEDS = (0, 1, 2)
ONE_WAY = {"pairing": "one_way"}


def batches_of(seeds, count=2, steps=4, negatives=False):
    views = torch.arange(60).view(20, 3)
    drawn = [draw(views, steps, 6, count, torch.Generator().manual_seed(seed)) for seed in seeds]
    rows, samples = (torch.stack(parts, 1) for parts in zip(*drawn, strict=True))
    return Batches(rows, samples, (samples.unsqueeze(-1) * 3 + 7 + torch.arange(2)) % 60 if negatives else None)


def trained(spec, seeds, constants=None, options=None, call=ONE_WAY, **how):
    torch.manual_seed(5)
    table = torch.randn(60, 8)
    networks, batches = Networks(lambda: MLP(8, 6, 5), seeds), batches_of(seeds, **how)
    losses = train(networks, cp.objective(spec), table, batches, call=call, constants=constants, options=options)
    return losses, networks.features(table)


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        ("infonce:t=0.2", 2),
        ("hcl:t=0.2 + 0.3*dp", 2),
        ("infonce:t=learned(0.2,0.01,1)", 2),  # trained, per seed
        ("adnce:t=0.2,mu=auto,sigma=auto", 2),  # tracked, per seed
        ("infonce:radius=0.1", 2),
        ("arcl(infonce:t=0.3)", 3),
    ],
)
def test_seeds_together_are_a_loop_over_seeds(spec, count):
    together = trained(spec, SEEDS, call={}, count=count)
    alone = [trained(spec, [seed], call={}, count=count) for seed in SEEDS]
    for value, parts in zip(together, zip(*alone, strict=True), strict=True):
        axis = 1 if value.dim() == 2 else 0
        torch.testing.assert_close(value, torch.cat(parts, axis), rtol=1e-4, atol=1e-5)
    assert together[0].std(1).min() > 1e-4  # seeds differ


def test_settings_together_are_a_loop_over_settings():
    """Learned hyper-parameters as constants per seed."""
    values = {"_temperature.log_value": torch.tensor([0.1, 0.1, 0.5]).log()}
    together, _ = trained("infonce:t=learned(0.2,0.01,1)", [0, 1, 0], constants=values)
    for column, (t, seed) in enumerate(((0.1, 0), (0.1, 1), (0.5, 0))):
        alone, _ = trained(f"infonce:t={t}", [seed])
        torch.testing.assert_close(together[:, column], alone[:, 0], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(together[:, 0], together[:, 2], atol=1e-2)


def test_ids_of_each_seed():
    ids = torch.arange(20) // 2
    batches = batches_of(SEEDS)
    plain, _ = trained("infonce:t=0.2", SEEDS)
    known, _ = trained("infonce:t=0.2", SEEDS, options=lambda step: {"ids": ids[batches.samples[step]]})
    pairs = [len(set(ids[batches.samples[0, seed]].tolist())) < 6 for seed in SEEDS]
    assert any(pairs)
    for seed, repeated in zip(SEEDS, pairs, strict=True):
        assert bool(known[0, seed] < plain[0, seed] - 1e-4) == repeated


def test_hard_negatives_and_their_ids():
    ids, other = torch.arange(20), torch.full((3, 6, 2), -1)
    of_batch = batches_of(SEEDS).samples
    same = lambda step: {"ids": 0 * of_batch[step], "of_hard": {"ids": other}}  # noqa: E731  of the batch, none is left
    known = lambda step: {"ids": ids[of_batch[step]], "of_hard": {"ids": other}}  # noqa: E731
    hard, _ = trained("infonce:t=0.2", SEEDS, negatives=True)
    again, _ = trained("infonce:t=0.2", SEEDS, options=known, negatives=True)
    fewer, _ = trained("infonce:t=0.2", SEEDS, options=same, negatives=True)
    plain, _ = trained("infonce:t=0.2", SEEDS)
    torch.testing.assert_close(again, hard, rtol=1e-4, atol=1e-5)
    assert bool((hard[0] > plain[0] + 0.1).all())
    assert bool((hard[0] > fewer[0] + 0.1).all())


def test_batches_repeat_no_sample_within_an_epoch():
    rows, samples = draw(torch.arange(40).view(10, 4), 5, 5, 2, torch.Generator().manual_seed(0))
    assert rows.shape == (5, 2, 5)
    assert all(sorted(samples[i : i + 2].flatten().tolist()) == list(range(10)) for i in (0, 2))
    assert bool((rows // 4 == samples.unsqueeze(1)).all())
    assert bool((rows[:, 0] != rows[:, 1]).all())
    with pytest.raises(ValueError, match="at least 11 samples with 2 views each, got 10 with 4"):
        draw(torch.arange(40).view(10, 4), 5, 11, 2, torch.Generator())


def test_nearest_neighbors():
    x = torch.tensor([[[1.0, 0.1], [1, -0.1], [0, 1]], [[1, 0.1], [1, -0.1], [0, 1]]])
    labels = torch.tensor([[0, 0, 1], [1, 1, 0]])
    test = torch.tensor([[[1.0, 0], [0, 2]]] * 2)
    assert knn_accuracy(x, labels, test, torch.tensor([0, 1]), k=1).tolist() == [100, 0]
    assert knn_accuracy(x, labels, test, torch.tensor([[0, 1], [1, 0]]), k=1).tolist() == [100, 100]
