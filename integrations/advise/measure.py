"""Measure data with short trainings: wrong positives, duplicates, negatives, the repairable gap."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

import counterpoint as cp

from .data import UNKNOWN, Pairs
from .settings import Settings
from .training import MLP, Batches, Compute, Networks, call, draw, knn_accuracy, masked, one_way, train
from .wrong_positives import Canonical, ranks, share

GUIDE = 0.05  # a hard negative counts as suspect if it is that close to being as similar as the positive
HELD_OUT = 0.3  # share of the known samples on which the gap is measured
NEIGHBORS = 10

Result = dict[str, Any]


def measure(data: Pairs, settings: Settings) -> Result:
    """Return all measurements that the data allows, as JSON values."""
    data = data.draw(settings.limit)
    if len(data) < 4 * settings.batch:
        raise ValueError(f"expected at least {4 * settings.batch} samples (4 batches), got {len(data)}.")
    result: Result = {"samples": len(data), "width": data.x.shape[1], "features": data.kind, "text": data.text}
    result["duplicates"] = duplicates(data, settings.near)
    result |= trained_statistics(data, settings)
    if data.negatives is not None:
        result["hard_negatives"] = hard_negatives(data)
    if data.ids is not None:
        result["false_negatives"] = false_negatives(data.ids)
        result["gap"] = gap(data, settings)
    return result


def duplicates(data: Pairs, near: float) -> Result:
    """Share of samples with another one whose anchor has a cosine of at least ``near``, of centred features.

    Features of a network share a direction, by which all their cosines are near 1.
    """
    x = data.x[data.views[:, 0]]
    x = normalize(x - x.mean(0), dim=1)
    closest = torch.cat([(part @ x.T).topk(2).values[:, 1] for part in x.split(1000)])
    return {"cosine": near, "share": float((closest >= near).float().mean())}


def _scaled(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / x.std()


def _splits(count: int, share: float, settings: Settings) -> list[tuple[Tensor, Tensor]]:
    """For each seed, samples to train on and ``share`` of the samples to measure on."""
    splits = []
    for seed in range(settings.seeds):
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        splits.append((order[round(share * count) :], order[: round(share * count)]))
    return splits


def _batches(data: Pairs, samples: list[Tensor], settings: Settings) -> Batches:
    """Batches of each seed's samples; their numbers are those of the data."""
    rows, drawn = [], []
    anchored = data.views.shape[1] == 2
    for seed, some in enumerate(samples):
        g = torch.Generator().manual_seed(seed)
        views = data.views if anchored else data.views[:, 1:]
        r, s = draw(views[some], settings.steps, settings.batch, 2, g)
        rows.append(r)
        drawn.append(some[s])
    of_samples = torch.stack(drawn, 1)
    return Batches(torch.stack(rows, 1), of_samples, None if data.negatives is None else data.negatives[of_samples])


def _train(data: Pairs, batches: Batches, settings: Settings, compute: Compute, options: Any, title: str) -> Networks:
    table = _scaled(data.x)
    networks = Networks(lambda: MLP(table.shape[1]), range(batches.rows.shape[1]))
    train(networks, cp.InfoNCE(settings.temperature), table, batches, compute=compute, options=options, title=title)
    return networks


def trained_statistics(data: Pairs, settings: Settings) -> Result:
    """Train on all samples but a fold of them, and compare positives and negatives of that fold.

    Right pairs that a representation cannot tell from random ones count as wrong, so that every representation has an
    upper bound of the share of wrong positives; the smaller one is reported, of the network and of canonical
    components.
    """
    count = min(settings.seeds, len(data) // settings.batch)
    parts = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[: len(data) // count * count]
    folds = parts.view(-1, count).T  # (folds, samples)
    trained = [torch.cat([fold for j, fold in enumerate(folds) if j != i]) for i in range(count)]
    batches = _batches(data, trained, settings)
    networks = _train(data, Batches(batches.rows, batches.samples), settings, call, None, "training")
    first, second = (0, 1) if data.views.shape[1] == 2 else (1, 2)
    table = _scaled(data.x)
    found: dict[str, list[Tensor]] = {"network": [], "canonical components": []}
    effective, of_batch = 0.0, 0.0
    with torch.no_grad():
        z = [networks(table[data.views[folds, column]]) for column in (first, second)]
    for fold, others, z1, z2 in zip(folds, trained, *z, strict=True):
        found["network"].append(ranks(normalize(z1, dim=1) @ normalize(z2, dim=1).T))
        # every other view, where there are more than two
        likelihood = Canonical(*(table[data.views[others, column::2].flatten()] for column in (first, second)))
        found["canonical components"].append(
            ranks(likelihood(*(table[data.views[fold, column]] for column in (first, second))))
        )
        numbers = cp.InfoNCE(settings.temperature).report(z1[: settings.batch], z2[: settings.batch])
        effective += numbers["effective_negatives"] / count
        of_batch = numbers["negatives"]
    (wrong, low, high), by = min((share(of_folds), name) for name, of_folds in found.items())
    return {
        "wrong_positives": {"share": wrong, "low": low, "high": high, "by": by},
        "negatives": {"of_batch": of_batch, "effective": effective, "temperature": settings.temperature},
        "radius": math.log(of_batch / effective),
    }


def hard_negatives(data: Pairs) -> Result:
    """How many hard negatives look false: by their ids, and by their similarity in the features as they are."""
    assert data.negatives is not None
    x = normalize(data.x, dim=1)
    anchor = x[data.views[:, 0]]
    positive = (anchor * x[data.views[:, 1]]).sum(1, keepdim=True)
    suspect = (anchor.unsqueeze(1) * x[data.negatives]).sum(2) > positive - GUIDE
    result = {"count": data.negatives.shape[1], "suspect": float(suspect.float().mean())}
    if data.negative_ids is not None and data.ids is not None:
        known = (data.negative_ids != UNKNOWN) & (data.ids != UNKNOWN).unsqueeze(1)
        false = (data.negative_ids == data.ids.unsqueeze(1))[known]
        result["false"] = float(false.float().mean())
    return result


def false_negatives(ids: Tensor) -> Result:
    """Probability that two samples with known ids have the same one, with a bootstrap interval."""
    known = ids[ids != UNKNOWN]
    generator = torch.Generator().manual_seed(0)

    def rate(x: Tensor) -> float:
        counts, n = x.unique(return_counts=True)[1].double(), len(x)
        return float((counts * (counts - 1)).sum() / (n * (n - 1)))

    n = len(known)
    if n < 2:
        raise ValueError(f"ids: expected at least two known ones, got {n}.")
    # a drawn sample is not its own partner: the expected rate of a bootstrap sample is (1 - 1/n) rate + 1/n
    drawn = sorted((rate(known[torch.randint(n, (n,), generator=generator)]) - 1 / n) / (1 - 1 / n) for _ in range(400))
    return {"share": rate(known), "low": max(drawn[9], 0.0), "high": drawn[390], "known": n}


def gap(data: Pairs, settings: Settings) -> Result:
    """Accuracy of nearest neighbors on held-out samples, with known false negatives as they are and masked."""
    from dataclasses import asdict

    from ..report.statistics import compare

    assert data.ids is not None
    ids = data.ids
    known, rest = (ids != UNKNOWN).nonzero().squeeze(1), (ids == UNKNOWN).nonzero().squeeze(1)
    if len(known) < 4 * NEIGHBORS:
        return {"unknown": f"{len(known)} known ids are too few for a measurement; about 100 are needed."}
    splits = [(known[a], known[b]) for a, b in _splits(len(known), HELD_OUT, settings)]
    batches = _batches(data, [torch.cat([a, rest]) for a, _ in splits], settings)
    single = torch.where(ids == UNKNOWN, ids.max() + 1 + torch.arange(len(ids)), ids)
    table = _scaled(data.x)
    where = torch.stack([a for a, _ in splits]), torch.stack([b for _, b in splits])
    accuracy: dict[str, list[float]] = {}
    for name, (compute, options) in _arms(data, batches, single).items():
        title = "training" if name == "plain" else f"training, false negatives masked {name}"
        networks = _train(data, batches, settings, compute, options, title)
        with torch.no_grad():
            features = [networks(table[data.views[rows, 0]], project=False) for rows in where]
        values = knn_accuracy(features[0], ids[where[0]], features[1], ids[where[1]], NEIGHBORS)
        accuracy[name] = values.tolist()
    baseline = dict(enumerate(accuracy.pop("plain")))
    rows = {name: dict(enumerate(values)) for name, values in accuracy.items()}
    verdicts = {name: asdict(v) for name, v in compare(baseline, rows, settings.margin).items()}
    return {"accuracy": sum(baseline.values()) / len(baseline), "seeds": settings.seeds, "masked": verdicts}


def _arms(data: Pairs, batches: Batches, ids: Tensor) -> dict[str, tuple[Compute, Any]]:
    """What is compared: how the loss is called, and with which options, plainly and with false negatives masked."""
    if data.negatives is None:
        compute = call if data.views.shape[1] > 2 else one_way
        return {
            "plain": (compute, None),
            "by ids": (compute, lambda step: {"ids": ids[batches.samples[step]]}),
        }
    x = normalize(data.x, dim=1)
    negatives, seeds = data.negatives, batches.rows.shape[1]
    # an unknown id is different from all others
    hard_ids = None if data.negative_ids is None else torch.where(data.negative_ids == UNKNOWN, -2, data.negative_ids)

    def keys(step: int) -> tuple[Tensor, Tensor, Tensor]:
        """The samples, the rows of keys, and which keys are not an anchor's positive."""
        samples = batches.samples[step]  # (seeds, B)
        rows = torch.cat([batches.rows[step, :, 1], negatives[samples].flatten(1)], 1)
        return samples, rows, ~torch.eye(samples.shape[1], rows.shape[1], dtype=torch.bool).expand(seeds, -1, -1)

    def plain(step: int) -> dict[str, Tensor]:
        return {"keep": keys(step)[2]}

    def by_ids(step: int) -> dict[str, Tensor]:
        samples, _, keep = keys(step)
        assert hard_ids is not None
        of_keys = torch.cat([ids[samples], hard_ids[samples].flatten(1)], 1)
        return {"keep": keep & (ids[samples].unsqueeze(2) != of_keys.unsqueeze(1))}

    def by_guide(step: int) -> dict[str, Tensor]:
        _, rows, keep = keys(step)
        similar = x[batches.rows[step, :, 0]] @ x[rows].transpose(1, 2)
        return {"keep": keep & (similar <= similar.diagonal(dim1=1, dim2=2).unsqueeze(2) - GUIDE)}

    arms: dict[str, tuple[Compute, Any]] = {"plain": (masked, plain), "by a guide": (masked, by_guide)}
    return arms | ({} if hard_ids is None else {"by ids": (masked, by_ids)})
