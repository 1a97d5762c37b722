"""Rectangles of the matrix of similarities: where they are, which of their keys count, and memory to work in."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..hyper import Value


class Tile(NamedTuple):
    """A rectangle of similarities; ``columns`` is where its keys stand among the anchors, if they are some."""

    rows: slice
    keys: slice
    columns: slice | None
    diagonal: bool = False


@dataclass(frozen=True)
class Mask:
    """Which keys are no negatives of an anchor, and which count more than once.

    Args:
        period: key ``j`` is no negative of anchor ``i`` where ``j - i`` is a multiple of it (its own sample).
        ids: of anchors and of keys; replaces that rule: equal ids are no negatives.
        shared: the rule holds for the keys before this one, by default for all.
        own: from this key on, those whose ``j - i`` is a multiple of ``period`` count ``exp(own_weight)`` times.
        own_weight: see there.
    """

    period: int | None = None
    ids: tuple[Tensor, Tensor] | None = None
    shared: int | None = None
    own: int = 0
    own_weight: float = 0.0

    @staticmethod
    def of(
        samples: int,
        views: int,
        hard: int = 0,
        weight: float = 0.0,
        ids: tuple[Tensor, Tensor] | None = None,
        hard_ids: Tensor | None = None,
        own: bool = True,
    ) -> Mask:
        """For keys that are views of the same samples, one view after the other.

        Args:
            samples: how many there are.
            views: how many views, of which an anchor's own ones are no negatives.
            hard: how many hard negatives of each sample follow, arranged like views.
            weight: added to the logits of an anchor's own hard negatives.
            ids: of the anchors and of the samples; equal ones are no negatives.
            hard_ids: of the hard negatives, sample by sample.
            own: whether the anchors are of these samples, which begin with theirs.
        """
        found = Mask(samples if own else None)
        if hard:
            inside = samples * views
            found = replace(found, shared=None if hard_ids is not None else inside, own=inside, own_weight=weight)
        if ids is not None:
            mine, known = ids[0], ids[1].repeat(views)
            if hard:
                further = known.new_zeros(samples, hard) if hard_ids is None else hard_ids.view(samples, hard)
                known = torch.cat([known, further.T.flatten()])
            found = replace(found, ids=(mine, known))
        return found

    def turned(self) -> Mask:
        """The mask of keys as anchors and anchors as keys."""
        return self if self.ids is None else replace(self, ids=(self.ids[1], self.ids[0]))

    def drop(self, x: Tensor, tile: Tile, value: float) -> Tensor:
        """Overwrites what is no negative."""
        inside = x if self.shared is None else x[:, : max(0, self.shared - tile.keys.start)]
        if self.ids is not None:
            theirs = self.ids[1][tile.keys][: inside.shape[1]]
            inside.masked_fill_(self.ids[0][tile.rows].unsqueeze(1) == theirs, value)
        else:
            for diagonal in self._diagonals(inside, tile.keys.start - tile.rows.start):
                diagonal.fill_(value)
        return x

    def weigh(self, x: Tensor, tile: Tile, unit: float | None) -> Tensor:
        """Counts an anchor's own keys as often as they shall: ``x`` is a summand, or a logarithm in this unit."""
        if self.own_weight:
            first = max(0, self.own - tile.keys.start)
            for diagonal in self._diagonals(x[:, first:], tile.keys.start + first - tile.rows.start):
                if unit is None:
                    diagonal.mul_(math.exp(self.own_weight))
                else:
                    diagonal.add_(self.own_weight * unit)
        return x

    def _diagonals(self, x: Tensor, ahead: int) -> Iterator[Tensor]:
        """The diagonals on which ``j - i`` is a multiple of the period; the first key is ``ahead`` of the first row."""
        if self.period is not None and x.numel():
            low, high = 1 - x.shape[0] + ahead, x.shape[1] - 1 + ahead
            for step in range(-(-low // self.period), high // self.period + 1):
                yield x.diagonal(step * self.period - ahead)

    def keyed(self, rows: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
        """Numbers of the anchors and of the keys: a key with an anchor's own is none of its negatives."""
        shared = keys if self.shared is None else self.shared
        if self.ids is not None:
            mine, theirs = self.ids
        elif self.period is not None:
            mine, theirs = (torch.arange(n, device=device) % self.period for n in (rows, keys))
        else:
            return None
        if shared < keys:
            nobody = (mine.min() - 1).expand(keys - shared)
            theirs = torch.cat([theirs[:shared], nobody])
        return mine, theirs

    def dense(self, matrix: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """``skip``, ``drop`` and ``log_weight`` of :class:`DenseNegatives`."""
        skip = drop = weight = None
        (rows, keys), device = matrix.shape, matrix.device
        shared = keys if self.shared is None else self.shared
        if self.ids is not None:
            drop = self.ids[0].unsqueeze(1) == self.ids[1]
            drop[:, shared:] = False
        elif self.period is not None:
            first = torch.arange(rows, device=device).unsqueeze(1) % self.period
            skip = first + torch.arange(0, shared, self.period, device=device)
        if self.own_weight:
            whole = Tile(slice(0, rows), slice(0, keys), None)
            weight = self.weigh(torch.zeros_like(matrix), whole, 1.0)
        return skip, drop, weight

    def count(self, rows: int, keys: int, dtype: torch.dtype) -> Value:
        """How many negatives an anchor has, ``(anchors, 1)`` where they differ."""
        shared = keys if self.shared is None else self.shared
        own = (keys - self.own) // self.period if self.period and self.own_weight else 0
        more = math.expm1(self.own_weight)
        if self.ids is None:
            return float(keys - (shared // self.period if self.period else 0)) + more * own
        mine, theirs = self.ids[0].contiguous(), self.ids[1][:shared].sort().values
        count = keys - torch.searchsorted(theirs, mine, right=True) + torch.searchsorted(theirs, mine)
        counted = torch.full_like(count, own)
        if own and self.period and shared > self.own:
            counted = (self.ids[1][self.own :].view(-1, self.period)[:, :rows] != mine).sum(0)
        return (count.to(dtype) + more * counted.to(dtype)).unsqueeze(1)


class Scratch:
    """Memory for tiles."""

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.held: dict[str, Tensor] = {}

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        size = math.prod(shape)
        if name not in self.held or self.held[name].numel() < size:
            self.held[name] = self.like.new_empty(size)
        return self.held[name][:size].view(shape)
