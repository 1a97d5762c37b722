"""Negatives beside one another: an anchor's keys come from several comparisons, each with embeddings of its own."""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import mul
from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..values import Value
from .matrix import MatrixNegatives, Negatives
from .tiles import LIMITED


def joined(parts: Sequence[Negatives], hard: Sequence[int]) -> Negatives:
    """Return the negatives of all parts: anchor ``i`` of each is the same sample, perhaps by other embeddings.

    ``hard`` says how many keys of each part, the last ones, are hard negatives; these become the last of all.
    """
    if len(parts) == 1:
        return parts[0]
    matrices = [part for part in parts if isinstance(part, MatrixNegatives)]
    return _beside(matrices, hard) if len(matrices) == len(parts) else JoinedNegatives(parts, hard)


def _beside(parts: Sequence[MatrixNegatives], hard: Sequence[int]) -> MatrixNegatives:
    def columns(matrices: Sequence[Tensor]) -> Tensor:
        cut = [(x, x.shape[1] - n) for x, n in zip(matrices, hard, strict=True)]
        return torch.cat([*(x[:, :at] for x, at in cut), *(x[:, at:] for x, at in cut)], 1)

    drops = [part.masked(torch.zeros_like(part.matrix, dtype=torch.bool), True) for part in parts]
    weights = None
    if any(part.log_weight is not None for part in parts):
        weights = columns([torch.zeros_like(p.matrix) if p.log_weight is None else p.log_weight for p in parts])
    return MatrixNegatives(columns([part.matrix for part in parts]), drop=columns(drops), log_weight=weights)


class JoinedNegatives(Negatives):
    """The negatives of several parts, each reduced by its own engine; an anchor may have none in some of them."""

    def __init__(self, parts: Sequence[Negatives], hard: Sequence[int], limited: bool = False) -> None:
        self.parts, self.hard, self.limited = parts, hard, limited

    @cached_property
    def counts(self) -> list[Value]:
        """The number of negatives in each part."""
        counts = [part.count for part in self.parts]
        for part in self.parts:  # a mean over no negatives would have no gradient that is a number
            if isinstance(count := part.count, Tensor):
                part.count = torch.where(count > 0, count, 1.0)
        return counts

    @property
    def count(self) -> Value:  # type: ignore[override]
        return sum(self.counts)

    def set_guide(self, guide: Negatives) -> None:
        for part, by in zip(self.parts, guide.parts if isinstance(guide, JoinedNegatives) else (), strict=True):
            part.set_guide(by)

    def logsumexp(self, f: Callable[..., Any], *per_anchor: Tensor, guided: bool = False) -> Any:
        return self._together(torch.logsumexp, [part.logsumexp(f, *per_anchor, guided=guided) for part in self.parts])

    def mean(self, f: Callable[..., Any], *per_anchor: Tensor, guided: bool = False) -> Any:
        counts = self.counts  # ahead of the means
        found = [part.mean(f, *per_anchor, guided=guided) for part in self.parts]
        many = isinstance(found[0], tuple)
        if self.limited:
            self.valid = self.valid * checks.require_negatives(self.count, LIMITED)
        sums = (sum(map(mul, x, counts)) for x in (zip(*found, strict=True) if many else [found]))
        means = tuple(x / self.count for x in sums)
        return means if many else means[0]

    def max(self) -> Tensor:
        return self._together(torch.amax, [part.max() for part in self.parts])  # type: ignore[no-any-return]

    def min(self) -> Tensor:
        return self._together(torch.amin, [part.min() for part in self.parts])  # type: ignore[no-any-return]

    def excluding(self, most: Tensor, guide: Negatives | None = None, exempt: int = 0) -> Negatives:
        if guide is not None and not isinstance(guide, JoinedNegatives):
            raise TypeError("the guide's negatives have other parts than the model's.")
        guides = [None] * len(self.parts) if guide is None else guide.parts
        exempts = self.hard if exempt else [0] * len(self.parts)
        parts = [part.excluding(most, by, n) for part, by, n in zip(self.parts, guides, exempts, strict=True)]
        kept = JoinedNegatives(parts, self.hard, limited=True)
        kept.group = self.group
        return kept

    def materialized(self) -> Negatives:
        matrices = [part.materialized() for part in self.parts]
        if not all(isinstance(matrix, MatrixNegatives) for matrix in matrices):
            return self
        whole = joined(matrices, self.hard)
        whole.group = self.group
        if self.limited:
            whole.valid = self.valid * checks.require_negatives(whole.count, LIMITED)
        return whole

    def _together(self, reduce: Callable[..., Tensor], found: Sequence[Any]) -> Any:
        many = isinstance(found[0], tuple)
        results = tuple(reduce(torch.cat([*x], 1), 1, True) for x in (zip(*found, strict=True) if many else [found]))
        if self.limited:  # a matrix without negatives has the smallest number instead of minus infinity
            lowest = torch.finfo(results[0].dtype).min / 2
            left = (results[0].detach() > lowest) & (results[0].detach() < math.inf)
            self.valid = self.valid * checks.require_negatives(left, LIMITED)
        return results if many else results[0]
