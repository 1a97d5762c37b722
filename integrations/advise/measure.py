"""Measure data without training: wrong positives, duplicates, false negatives."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from counterpoint.batch.same import merged_of_all, numbered

from .data import UNKNOWN, Pairs
from .settings import Settings
from .wrong_positives import Canonical, ranks, share

FOLDS, FEWEST = 8, 128  # of samples
GUIDE = 0.05  # a negative counts as suspect if it is that close to being as similar as the positive

Result = dict[str, Any]


def measure(data: Pairs, settings: Settings) -> tuple[Result, list[Result]]:
    """Return all measurements that the data allows, as JSON values, and the suspects behind them, the worst first.

    A suspect is a wrong pair, whose score is the share of random pairs that are less similar, or a duplicate, whose
    score is its cosine with the other, of the views that are more similar.
    """
    data = data.draw(settings.limit)
    if len(data) < FEWEST:
        raise ValueError(f"expected at least {FEWEST} samples, got {len(data)}.")
    result: Result = {"samples": len(data), "width": data.x.shape[1], "features": data.kind, "modality": data.modality}
    result |= {"flat": True} if data.flat else {}
    numbers = torch.arange(len(data)) if data.numbers is None else data.numbers
    result["duplicates"], twins = duplicates(data, settings.near, numbers)
    result["wrong_positives"], wrong = wrong_positives(data, numbers)
    if data.negatives is not None:
        result["hard_negatives"] = hard_negatives(data)
    if data.ids is not None:
        result["false_negatives"] = false_negatives(data.ids, data.batches)
    return result, wrong + twins


def duplicates(data: Pairs, near: float, numbers: Tensor) -> tuple[Result, list[Result]]:
    """Compute the share of samples with one of their first two views in common, which ``duplicates`` leaves out.

    Of others, which do not share a known id either, count those whose anchors have a cosine of at least ``near``.
    Features are centred, as those of a network share a direction, by which all their cosines are near 1. List both.
    """
    columns = [numbered(data.x[rows], False) for rows in data.views.T[:2]]
    repeats = [float((column.unique(return_counts=True)[1][column] > 1).float().mean()) for column in columns]
    same = merged_of_all(columns, False)
    first = {sample: i for i, sample in reversed([*enumerate(same.tolist())])}
    equal = [(first[sample], i) for i, sample in enumerate(same.tolist()) if first[sample] != i]
    ids = torch.arange(UNKNOWN - len(same), UNKNOWN) if data.ids is None else data.ids
    x = data.x[data.views[:, 0]]
    x = normalize(x - x.mean(0), dim=1)
    parts = zip(x.split(1000), same.split(1000), ids.split(1000), strict=True)
    known = (((s[:, None] == same) | ((i[:, None] == ids) & (ids != UNKNOWN)), part) for part, s, i in parts)
    top = [(part @ x.T).masked_fill(alike, -torch.inf).max(1) for alike, part in known]
    closest, other = (torch.cat(each) for each in zip(*top, strict=True))
    found = [(i, int(other[i]), closest[i].item()) for i in range(len(x)) if closest[i] >= near]
    found += [(i, j, 1.0) for i, j in equal]
    listed = {tuple(sorted(numbers[[i, j]].tolist())): round(score, 4) for i, j, score in found}
    worst = sorted(listed.items(), key=lambda item: -item[1])
    rows = [{"kind": "duplicate", "row": i, "other": j, "score": score} for (i, j), score in worst]
    share = len({i for pair in equal for i in pair}) / len(x)
    found_of = {"share": float((closest >= near).float().mean()), "equal": share}
    return {"cosine": near, **found_of, **dict(zip(("anchors", "positives"), repeats, strict=True))}, rows


def wrong_positives(data: Pairs, numbers: Tensor) -> tuple[Result, list[Result]]:
    """Estimate the share of positives that are wrong, in each fold by canonical components of the others.

    Right pairs that these components cannot tell from random ones count as wrong.
    """
    parts = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[: len(data) // FOLDS * FOLDS]
    folds = parts.view(-1, FOLDS).T  # (folds, samples)
    first, second = (0, 1) if data.views.shape[1] == 2 else (1, 2)
    table = (data.x - data.x.mean(0)) / data.x.std()
    found = []
    for i, fold in enumerate(folds):
        others = torch.cat([*folds[:i], *folds[i + 1 :]])
        # every other view, where there are more than two
        likelihood = Canonical(*(table[data.views[others, column::2].flatten()] for column in (first, second)))
        found.append(ranks(likelihood(*(table[data.views[fold, column]] for column in (first, second)))))
    wrong, low, high = share(found)
    scores, sample = torch.cat(found), numbers[folds.flatten()]
    worst = scores.argsort()[: round(wrong * len(scores))].tolist()
    pairs = ((sample[i].item(), round(scores[i].item(), 4)) for i in worst)
    rows = [{"kind": "wrong pair", "row": row, "other": "", "score": score} for row, score in pairs]
    return {"share": wrong, "low": low, "high": high}, rows


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
        result["false"] = float((data.negative_ids == data.ids.unsqueeze(1))[known].float().mean())
    return result


def false_negatives(ids: Tensor, batches: Tensor | None = None) -> Result:
    """Estimate how many of an anchor's negatives have its id, with a bootstrap interval, from samples with known ids.

    ``batches`` is the batch of each sample, or the topic of which its batches are drawn; None for random batches.
    """
    where = ids != UNKNOWN
    known, batch = ids[where], torch.zeros_like(ids[where]) if batches is None else batches[where]
    generator = torch.Generator().manual_seed(0)
    if (n := len(known)) < 2:
        raise ValueError(f"ids: expected at least two known ones, got {n}.")
    groups, group = batch.unique(return_inverse=True)
    _, label, sizes = torch.stack([group, known]).unique(dim=1, return_inverse=True, return_counts=True)
    total = torch.bincount(group)[group]
    rates = (sizes[label] - 1).double() / (total - 1).clamp(min=1)  # of each anchor, over the others of its batch
    counts = total > 1
    if not counts.any():
        raise ValueError("batches: no two samples with known ids share one.")
    if len(groups) > 1:  # batches are drawn again
        sums = torch.zeros(len(groups), dtype=torch.double).index_add_(0, group[counts], rates[counts])
        size = torch.bincount(group[counts], minlength=len(groups))
        picks = torch.randint(len(groups), (400, len(groups)), generator=generator)
        drawn = sorted((sums[picks].sum(1) / size[picks].sum(1).clamp(min=1)).tolist())
    else:

        def rate(x: Tensor) -> float:
            number = x.unique(return_counts=True)[1].double()
            return float((number * (number - 1)).sum() / (n * (n - 1)))

        # a drawn sample is not its own partner: the expected rate of a bootstrap sample is (1 - 1/n) rate + 1/n
        some = (known[torch.randint(n, (n,), generator=generator)] for _ in range(400))
        drawn = sorted((rate(x) - 1 / n) / (1 - 1 / n) for x in some)
    several = 0 if batches is None else len(groups)
    interval = {"low": max(drawn[9], 0.0), "high": drawn[390]}
    return {"share": float(rates[counts].mean()), "known": n, "batches": several, **interval}
