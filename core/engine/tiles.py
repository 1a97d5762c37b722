"""Tiles of the matrix of similarities: their positions, the mask of their keys, and a workspace to compute in."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..hyper import Value

LOG2E = 1 / math.log(2)  # exponents of tiles are in units of log 2


class Tile(NamedTuple):
    """A rectangle of similarities.

    Attributes:
        rows: of the anchors.
        keys: rows of the keys.
        mirror: where the keys are among the anchors, if the tile is reduced along its columns too.
        diagonal: whether the anchors and the keys are the same rows.
    """

    rows: slice
    keys: slice
    mirror: slice | None
    diagonal: bool = False


@dataclass(frozen=True)
class Mask:
    """Which keys are excluded for an anchor, and which have a weight.

    Args:
        period: key ``j`` is excluded for anchor ``i`` if ``j - i`` is a multiple of it (a view of the same sample).
        ids: of anchors and of keys; instead of that rule, exclude keys with the anchor's id.
        shared: exclude only among the keys before this one, by default among all.
        own: from this key on, those for which ``j - i`` is a multiple of ``period`` count ``exp(own_weight)`` times.
        own_weight: log-weight of an anchor's own hard negatives.
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
        """Build the mask of keys that are views of samples, one view after the other.

        Args:
            samples: number of samples.
            views: number of views; those of the anchor's sample are excluded.
            hard: number of hard negatives of each sample that follow, arranged like views.
            weight: added to the logits of an anchor's own hard negatives.
            ids: of the anchors and of the samples; equal ids are excluded.
            hard_ids: of the hard negatives, sample by sample.
            own: whether the samples begin with those of the anchors.
        """
        mask = Mask(samples if own else None)
        if hard:
            first = samples * views
            mask = replace(mask, shared=None if hard_ids is not None else first, own=first, own_weight=weight)
        if ids is not None:
            row_ids, key_ids = ids[0], ids[1].repeat(views)
            if hard:
                further = key_ids.new_zeros(samples, hard) if hard_ids is None else hard_ids.view(samples, hard)
                key_ids = torch.cat([key_ids, further.T.flatten()])
            mask = replace(mask, ids=(row_ids, key_ids))
        return mask

    def transposed(self) -> Mask:
        """Return the mask with anchors and keys exchanged."""
        return self if self.ids is None else replace(self, ids=(self.ids[1], self.ids[0]))

    def fill(self, x: Tensor, tile: Tile, value: float) -> Tensor:
        """Overwrite the entries of excluded keys."""
        masked = x if self.shared is None else x[:, : max(0, self.shared - tile.keys.start)]
        if self.ids is not None:
            key_ids = self.ids[1][tile.keys][: masked.shape[1]]
            masked.masked_fill_(self.ids[0][tile.rows].unsqueeze(1) == key_ids, value)
        else:
            for diagonal in self._diagonals(masked, tile.keys.start - tile.rows.start):
                diagonal.fill_(value)
        return x

    def weight_own(self, x: Tensor, tile: Tile, unit: float | None) -> Tensor:
        """Weight each anchor's own hard negatives: multiply summands (``unit=None``), or add to exponents."""
        if self.own_weight:
            first = max(0, self.own - tile.keys.start)
            for diagonal in self._diagonals(x[:, first:], tile.keys.start + first - tile.rows.start):
                if unit is None:
                    diagonal.mul_(math.exp(self.own_weight))
                else:
                    diagonal.add_(self.own_weight * unit)
        return x

    def _diagonals(self, x: Tensor, offset: int) -> Iterator[Tensor]:
        """Return the diagonals where ``j - i`` is a multiple of the period; ``offset`` is that of the first entry."""
        if self.period is not None and x.numel():
            low, high = 1 - x.shape[0] + offset, x.shape[1] - 1 + offset
            for step in range(-(-low // self.period), high // self.period + 1):
                yield x.diagonal(step * self.period - offset)

    def as_ids(self, rows: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
        """Return integers of the anchors and of the keys, equal where a key is excluded."""
        shared = keys if self.shared is None else self.shared
        if self.ids is not None:
            row_ids, key_ids = self.ids
        elif self.period is not None:
            row_ids, key_ids = (torch.arange(n, device=device) % self.period for n in (rows, keys))
        else:
            return None
        if shared < keys:
            unused = (row_ids.min() - 1).expand(keys - shared)
            key_ids = torch.cat([key_ids[:shared], unused])
        return row_ids, key_ids

    def dense(self, matrix: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return ``skip``, ``drop`` and ``log_weight`` of :class:`counterpoint.DenseNegatives`."""
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
            weight = self.weight_own(torch.zeros_like(matrix), whole, 1.0)
        return skip, drop, weight

    def count(self, rows: int, keys: int, dtype: torch.dtype) -> Value:
        """Count the negatives of an anchor, ``(anchors, 1)`` where the number differs."""
        shared = keys if self.shared is None else self.shared
        own = (keys - self.own) // self.period if self.period and self.own_weight else 0
        surplus = math.expm1(self.own_weight)
        if self.ids is None:
            return float(keys - (shared // self.period if self.period else 0)) + surplus * own
        row_ids, key_ids = self.ids[0].contiguous(), self.ids[1][:shared].sort().values
        count = keys - torch.searchsorted(key_ids, row_ids, right=True) + torch.searchsorted(key_ids, row_ids)
        weighted = torch.full_like(count, own)
        if own and self.period and shared > self.own:
            weighted = (self.ids[1][self.own :].view(-1, self.period)[:, :rows] != row_ids).sum(0)
        return (count.to(dtype) + surplus * weighted.to(dtype)).unsqueeze(1)


class Workspace:
    """Named buffers that tiles reuse."""

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.buffers: dict[str, Tensor] = {}

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        size = math.prod(shape)
        if name not in self.buffers or self.buffers[name].numel() < size:
            self.buffers[name] = self.like.new_empty(size)
        return self.buffers[name][:size].view(shape)
