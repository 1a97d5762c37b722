"""Tiles of the matrix of similarities: their positions, the mask of their keys, and a workspace to compute in."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
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
        keep: where :class:`Limits` leave a key to the anchors, 1 or 0, and, if mirrored, an anchor to the keys.
    """

    rows: slice
    keys: slice
    mirror: slice | None
    diagonal: bool = False
    keep: tuple[Tensor, ...] = ()

    def remove(self, x: Tensor, dim: int, value: float) -> Tensor:
        """Overwrite what limits exclude from a reduction along ``dim``, whatever it is."""
        return x.masked_fill_(self.keep[1 - dim] == 0, value) if self.keep else x


@dataclass(frozen=True)
class Limits:
    """Largest similarities that negatives may have, a number per anchor, by the embeddings or by those of a guide.

    Args:
        most: ``(anchors, 1)``.
        guide: the guide's embeddings of the anchors ``(n, w)`` and of the keys ``(N, w)``, instead of the model's.
        exempt: keys from this one on stay, by default none.
        scale, offset: factor of the similarities in a tile, and what is added to them.
    """

    most: Tensor
    guide: tuple[Tensor, Tensor] | None = None
    exempt: int | None = None
    scale: float = 1.0
    offset: float = 0.0

    def for_block(self, rows: slice, guide: tuple[Tensor, Tensor] | None, scale: float, offset: float = 0.0) -> Limits:
        """Return the limits of some of the anchors, whose keys and those of the guide are a block."""
        return replace(self, most=self.most[rows], guide=guide, scale=scale, offset=offset)

    def exempting(self, keys: int) -> int:
        """Return how many keys, the last, are exempt."""
        return 0 if self.exempt is None else keys - self.exempt

    def decide(self, x: Tensor, tile: Tile, workspace: Workspace, exponentials: bool = False) -> Tile:
        """Return the tile with ``keep``, given ``scale`` times similarities plus ``offset``, or ``2`` to that power.

        Multiplying by numbers is twenty times faster than filling by booleans.
        """
        most, at_most = self.most * self.scale + self.offset, torch.le if self.scale > 0 else torch.ge
        if self.guide is not None:
            anchors, keys = self.guide[0][tile.rows], self.guide[1][tile.keys]
            x = torch.mm(anchors, keys.t(), out=workspace("guide", (len(anchors), len(keys))))
            most, at_most = self.most, torch.le
        elif exponentials:
            most = most.exp2()
        keep = at_most(x, most[tile.rows], out=workspace("keep", x.shape))
        if self.exempt is not None:
            keep[:, max(0, self.exempt - tile.keys.start) :] = 1.0
        if tile.mirror is None:
            return tile._replace(keep=(keep,))
        return tile._replace(keep=(keep, at_most(x, most[tile.mirror].T, out=workspace("keep columns", x.shape))))


@dataclass(frozen=True)
class Mask:
    """Which keys are excluded for an anchor, and which have a weight.

    Args:
        period: key ``j`` is excluded for anchor ``i`` if ``j - i`` is a multiple of it (a view of the same sample).
        ids: of anchors and of keys; instead of that rule, exclude keys with the anchor's id.
        shared: exclude only among the keys before this one, by default among all.
        own: from this key on, those for which ``j - i`` is a multiple of ``period`` count ``exp(own_weight)`` times.
        own_weight: log-weight of an anchor's own hard negatives.
        foreign: whether the hard negatives of other samples count, from key ``own`` on.
        owned: whether an anchor's own hard negatives count.
        log_weight: ``(anchors,)`` and ``(keys,)``: each key counts ``exp(log_weight)`` times. The former are for
            anchors that are keys too.
        limits: exclude keys that are too similar.
        first: number of the first anchor, where the anchors are some of the rows that ``period`` counts.
    """

    period: int | None = None
    ids: tuple[Tensor, Tensor] | None = None
    shared: int | None = None
    own: int = 0
    own_weight: float = 0.0
    foreign: bool = True
    owned: bool = True
    log_weight: tuple[Tensor, Tensor] | None = None
    limits: Limits | None = None
    first: int = 0

    @staticmethod
    def of(
        samples: int,
        views: int,
        hard: int = 0,
        weight: float = 0.0,
        ids: tuple[Tensor, Tensor] | None = None,
        hard_ids: Tensor | None = None,
        own: bool = True,
        foreign: bool = True,
        log_weight: tuple[Tensor, Tensor] | None = None,
        hard_log_weight: Tensor | None = None,
        owned: bool = True,
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
            foreign: whether the hard negatives of other samples count.
            log_weight, hard_log_weight: of the anchors, of the samples and of the hard negatives, like the ids.
            owned: whether an anchor's own hard negatives count.
        """
        mask = Mask(samples if own else None)
        if hard:
            first = samples * views
            shared = None if hard_ids is not None else first
            mask = replace(mask, own=first)
            if owned or ids is not None:  # else they are excluded like views
                mask = replace(mask, shared=shared, own_weight=weight, foreign=foreign, owned=owned)

        def of_keys(of_samples: Tensor, of_hard: Tensor | None) -> Tensor:
            repeated = of_samples.repeat(views)
            if not hard:
                return repeated
            further = repeated.new_zeros(samples, hard) if of_hard is None else of_hard.view(samples, hard)
            return torch.cat([repeated, further.T.flatten()])

        if ids is not None:
            mask = replace(mask, ids=(ids[0], of_keys(ids[1], hard_ids)))
        if log_weight is not None:
            mask = replace(mask, log_weight=(log_weight[0], of_keys(log_weight[1], hard_log_weight)))
        return mask

    @property
    def plain(self) -> bool:
        """Whether all keys that are not excluded count the same, and the embeddings do not matter."""
        same = self.foreign and self.owned and not self.own_weight
        return same and self.log_weight is None and self.limits is None

    @cached_property
    def largest_log_weight(self) -> float:
        """Bound of the absolute log-weights; infinite if not known without synchronizing."""
        if self.log_weight is None:
            return abs(self.own_weight)
        if self.log_weight[1].device.type != "cpu":
            return math.inf
        return abs(self.own_weight) + max(float(x.abs().amax()) for x in self.log_weight)

    def decide(self, x: Tensor, tile: Tile, workspace: Workspace, exponentials: bool = False) -> Tile:
        """See :meth:`Limits.decide`."""
        return tile if self.limits is None else self.limits.decide(x, tile, workspace, exponentials)

    def log_weights(self, tile: Tile, dim: int) -> Tensor | None:
        """Return the log-weights of the keys in a reduction along ``dim``, which broadcast against the tile."""
        if self.log_weight is None:
            return None
        return self.log_weight[1][tile.keys] if dim else self.log_weight[0][tile.rows].unsqueeze(1)

    def transposed(self) -> Mask:
        """Return the mask with anchors and keys exchanged; limits have to be chosen for these anchors."""
        ids, weight = (None if x is None else (x[1], x[0]) for x in (self.ids, self.log_weight))
        return replace(self, ids=ids, log_weight=weight)

    def for_rows(self, rows: slice) -> Mask:
        """Return the mask of some of the anchors; limits have to be chosen for these."""
        ids, weight = (None if x is None else (x[0][rows], x[1]) for x in (self.ids, self.log_weight))
        return replace(self, ids=ids, log_weight=weight, first=self.first + rows.start)

    def fill(self, x: Tensor, tile: Tile, value: float) -> Tensor:
        """Overwrite the entries of excluded keys."""
        masked = x if self.shared is None else x[:, : max(0, self.shared - tile.keys.start)]
        if self.ids is not None:
            key_ids = self.ids[1][tile.keys][: masked.shape[1]]
            masked.masked_fill_(self.ids[0][tile.rows].unsqueeze(1) == key_ids, value)
        else:
            for diagonal in self._diagonals(masked, tile.keys.start - tile.rows.start):
                diagonal.fill_(value)
        if not self.foreign:
            first = max(0, self.own - tile.keys.start)
            others = torch.ones_like(x[:, first:], dtype=torch.bool)
            for diagonal in self._diagonals(others, tile.keys.start + first - tile.rows.start):
                diagonal.fill_(False)
            x[:, first:].masked_fill_(others, value)
        if not self.owned:
            first = max(0, self.own - tile.keys.start)
            for diagonal in self._diagonals(x[:, first:], tile.keys.start + first - tile.rows.start):
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
            offset -= self.first
            low, high = 1 - x.shape[0] + offset, x.shape[1] - 1 + offset
            for step in range(-(-low // self.period), high // self.period + 1):
                yield x.diagonal(step * self.period - offset)

    def as_ids(self, rows: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
        """Return integers of the anchors and of the keys, equal where a key is excluded."""
        shared = keys if self.shared is None else self.shared
        if self.ids is not None:
            row_ids, key_ids = self.ids
        elif self.period is not None:
            row_ids = (torch.arange(rows, device=device) + self.first) % self.period
            key_ids = torch.arange(keys, device=device) % self.period
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
            first = (torch.arange(rows, device=device).unsqueeze(1) + self.first) % self.period
            skip = first + torch.arange(0, shared, self.period, device=device)
        whole = Tile(slice(0, rows), slice(0, keys), None)
        if not (self.foreign and self.owned):
            skip, drop = None, self.fill(torch.zeros_like(matrix, dtype=torch.bool), whole, True)
        if self.own_weight:
            weight = self.weight_own(torch.zeros_like(matrix), whole, 1.0)
        if self.log_weight is not None:
            weight = self.log_weight[1].expand(rows, keys) if weight is None else weight + self.log_weight[1]
        return skip, drop, weight

    def count(self, rows: int, keys: int, dtype: torch.dtype) -> Value:
        """Count the negatives of an anchor, ``(anchors, 1)`` where the number differs, without limits and log-weights.

        Own hard negatives count ``exp(own_weight)`` times.
        """
        alike = self.foreign and self.owned and not self.own_weight
        own = (keys - self.own) // self.period if self.period and not alike else 0
        if self.foreign:
            seen, times = keys, math.expm1(self.own_weight) if self.owned else -1.0
        else:
            seen, times = min(keys, self.own), math.exp(self.own_weight)
        shared = seen if self.shared is None else min(seen, self.shared)
        if self.ids is None:
            return float(seen - (shared // self.period if self.period else 0)) + times * own
        row_ids, key_ids = self.ids[0].contiguous(), self.ids[1][:shared].sort().values
        count = seen - torch.searchsorted(key_ids, row_ids, right=True) + torch.searchsorted(key_ids, row_ids)
        weighted = torch.full_like(count, own)
        if own and self.period and self.shared is None:
            weighted = (
                self.ids[1][self.own :].view(-1, self.period)[:, self.first : self.first + rows] != row_ids
            ).sum(0)
        return (count.to(dtype) + times * weighted.to(dtype)).unsqueeze(1)


class Workspace:
    """Named buffers that tiles reuse."""

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.buffers: dict[str, Tensor] = {}

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        buffer = self.buffers.get(name)
        if buffer is not None and buffer.shape == shape:
            return buffer
        size = math.prod(shape)
        if buffer is None or buffer.numel() < size:
            buffer = self.buffers[name] = self.like.new_empty(shape)
            return buffer
        return buffer.view(-1)[:size].view(shape)
