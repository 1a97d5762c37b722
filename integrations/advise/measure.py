"""Measure data, with short trainings: wrong positives, duplicates, false negatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

import counterpoint as cp

from .data import UNKNOWN, Pairs
from .settings import Settings
from .training import MLP, Batches, Networks, draw, train
from .wrong_positives import Canonical, ranks, share

GUIDE = 0.05  # a negative counts as suspect if it is that close to being as similar as the positive

Result = dict[str, Any]


def measure(data: Pairs, settings: Settings) -> Result:
    """Return all measurements that the data allows, as JSON values."""
    data = data.draw(settings.limit)
    if len(data) < 4 * settings.batch:
        raise ValueError(f"expected at least {4 * settings.batch} samples (4 batches), got {len(data)}.")
    result: Result = {"samples": len(data), "width": data.x.shape[1], "features": data.kind, "text": data.text}
    result["duplicates"] = duplicates(data, settings.near)
    result["wrong_positives"] = wrong_positives(data, settings)
    if data.negatives is not None:
        result["hard_negatives"] = hard_negatives(data)
    if data.ids is not None:
        result["false_negatives"] = false_negatives(data.ids)
    return result


def duplicates(data: Pairs, near: float) -> Result:
    """Compute the share of samples with another one whose anchor has a cosine of at least ``near``.

    Features are centred, as those of a network share a direction, by which all their cosines are near 1.
    """
    x = data.x[data.views[:, 0]]
    x = normalize(x - x.mean(0), dim=1)
    closest = torch.cat([(part @ x.T).topk(2).values[:, 1] for part in x.split(1000)])
    return {"cosine": near, "share": float((closest >= near).float().mean())}


def _scaled(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / x.std()


def _train(data: Pairs, samples: Sequence[Tensor], settings: Settings) -> Networks:
    """Train a network on each set of samples, which are named by their numbers in the data."""
    views = data.views if data.views.shape[1] == 2 else data.views[:, 1:]
    parts = []
    for seed, some in enumerate(samples):
        generator = torch.Generator().manual_seed(seed)
        rows, drawn = draw(views[some], settings.steps, settings.batch, 2, generator)
        parts.append((rows, some[drawn]))
    batches = Batches(*(torch.stack(each, 1) for each in zip(*parts, strict=True)))
    table = _scaled(data.x)
    networks = Networks(lambda: MLP(table.shape[1]), range(len(samples)))
    train(networks, cp.InfoNCE(settings.temperature), table, batches, title="training")
    return networks


def wrong_positives(data: Pairs, settings: Settings) -> Result:
    """Train on all samples but a fold of them, and estimate the share of that fold's positives that are wrong.

    Right pairs that a representation cannot tell from random ones count as wrong, so that every representation has an
    upper bound of the share of wrong positives; the smaller one is reported, of the network and of canonical
    components.
    """
    count = min(settings.seeds, len(data) // settings.batch)
    parts = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[: len(data) // count * count]
    folds = parts.view(-1, count).T  # (folds, samples)
    trained = [torch.cat([*folds[:i], *folds[i + 1 :]]) for i in range(count)]
    networks = _train(data, trained, settings)
    first, second = (0, 1) if data.views.shape[1] == 2 else (1, 2)
    table = _scaled(data.x)
    found: dict[str, list[Tensor]] = {"network": [], "canonical components": []}
    with torch.no_grad():
        z = [networks(table[data.views[folds, column]]) for column in (first, second)]
    for fold, others, z1, z2 in zip(folds, trained, *z, strict=True):
        found["network"].append(ranks(normalize(z1, dim=1) @ normalize(z2, dim=1).T))
        # every other view, where there are more than two
        likelihood = Canonical(*(table[data.views[others, column::2].flatten()] for column in (first, second)))
        ratio = likelihood(*(table[data.views[fold, column]] for column in (first, second)))
        found["canonical components"].append(ranks(ratio))
    (wrong, low, high), by = min((share(of_folds), name) for name, of_folds in found.items())
    return {"share": wrong, "low": low, "high": high, "by": by}


def hard_negatives(data: Pairs) -> Result:
    """Count hard negatives that look false: by their ids, and by their similarity in the features as they are."""
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
    """Estimate the probability that two samples with known ids have the same one, with a bootstrap interval."""
    known = ids[ids != UNKNOWN]
    generator = torch.Generator().manual_seed(0)
    if (n := len(known)) < 2:
        raise ValueError(f"ids: expected at least two known ones, got {n}.")

    def rate(x: Tensor) -> float:
        counts = x.unique(return_counts=True)[1].double()
        return float((counts * (counts - 1)).sum() / (n * (n - 1)))

    # a drawn sample is not its own partner: the expected rate of a bootstrap sample is (1 - 1/n) rate + 1/n
    drawn = sorted((rate(known[torch.randint(n, (n,), generator=generator)]) - 1 / n) / (1 - 1 / n) for _ in range(400))
    return {"share": rate(known), "low": max(drawn[9], 0.0), "high": drawn[390], "known": n}
