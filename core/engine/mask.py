"""Which keys of an anchor are its negatives, and how much each counts; the tiles in which that is decided."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import checks
from ..values import Value

LOG2E = 1 / math.log(2)  # exponents of tiles are in units of log 2

COUNTED = 2**20  # pairs that are counted together

Pair = tuple[Tensor, Tensor]  # of the anchors and of their keys


class Tile(NamedTuple):
    """A rectangle of similarities, and how its keys count.

    Reductions along dimension 1 are those of the rows' anchors, along dimension 0 those of the columns', where the
    keys are anchors too. :meth:`Mask.weigh` sets the last three; ``keep`` and ``log_weights`` have a tensor for each
    dimension, that of dimension 1 first.
    """

    rows: slice  # of the anchors
    keys: slice
    mirror: slice | None = None  # where the keys are among the anchors, if the tile is reduced along its columns too
    diagonal: bool = False  # whether the anchors and the keys are the same rows
    excluded: Sequence[int] = ()  # diagonals whose keys do not count
    keep: tuple[Tensor, ...] = ()  # 1 where a key counts, else 0; empty: all keys that are not on these diagonals
    log_weights: tuple[Tensor, ...] = ()  # of how often keys count, which broadcast against the tile; empty: once

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.stop - self.rows.start, self.keys.stop - self.keys.start

    def factor(self, dim: int) -> Tensor | None:
        """Return how often each key counts; None: once, but for the excluded diagonals."""
        keep = self.keep[1 - dim] if self.keep else None
        if not self.log_weights:
            return keep
        weight = self.log_weights[1 - dim].exp()
        return weight if keep is None else keep * weight

    def total(self, x: Tensor, dim: int, workspace: Workspace) -> Tensor:
        """Sum finite values along ``dim``, each as often as its key counts; excluded diagonals are zero already."""
        if self.keep:
            x = torch.mul(x, self.keep[1 - dim], out=workspace("counted", x.shape))
        if not self.log_weights:
            return x.sum(dim)
        weight = self.log_weights[1 - dim].exp()
        if weight.shape == x.shape:
            return torch.mul(x, weight, out=workspace("counted", x.shape)).sum(dim)
        return (x if dim else x.t()).mv(weight.flatten())

    def clear(self, x: Tensor, value: float) -> Tensor:
        """Set the excluded diagonals to ``value``, in place."""
        return fill_diagonals(x, self.excluded, value)

    def remove(self, x: Tensor, dim: int, value: float) -> Tensor:
        """Set all entries that do not count to ``value``, in place, even NaN."""
        x = self.clear(x, value)
        return x.masked_fill_(self.keep[1 - dim] == 0, value) if self.keep else x


@dataclass(frozen=True)
class Limits:
    """Largest similarities that negatives may have, a number per anchor, by the embeddings or by those of a guide."""

    most: Tensor  # (anchors, 1)
    guide: Pair | None = None  # embeddings of the anchors (n, w) and of the keys (N, w)
    exempt: int | None = None  # keys from this one on stay
    scale: float = 1.0  # factor of the similarities in a tile
    offset: float = 0.0  # and what is added to them

    def allowed(self, x: Tensor, tile: Tile, workspace: Workspace) -> list[Tensor]:
        """Return 1 where a key is within the limit of a row's anchor, else 0; if mirrored, also of a column's."""
        # multiplying by numbers is twenty times faster than filling by booleans
        most, at_most = self.most * self.scale + self.offset, torch.le if self.scale > 0 else torch.ge
        if self.guide is not None:
            x = by_guide(self.guide, tile, workspace)
            most, at_most = self.most, torch.le
        allowed = [at_most(x, most[tile.rows], out=workspace("allowed", x.shape))]
        if self.exempt is not None:
            allowed[0][:, max(0, self.exempt - tile.keys.start) :] = 1.0
        if tile.mirror is not None:
            allowed.append(at_most(x, most[tile.mirror].T, out=workspace("allowed columns", x.shape)))
        return allowed


@dataclass(frozen=True)
class Mask:
    """Which keys count for an anchor, and how much.

    Key ``j`` is a view, or a hard negative, of the sample of anchor ``i`` if ``j - i`` is a multiple of ``period``.
    Views of the same sample are excluded or, with ``ids`` of the anchors and of the keys, keys with the anchor's id.
    A key counts ``exp(log_weight)`` times; minus infinity excludes it. Weights, too, are those of the anchors, if these
    are keys, and of the keys.
    """

    period: int | None = None
    ids: Pair | None = None
    hard: int | None = None  # number of the first hard negative, from which on all keys are hard negatives
    own_log_weight: float = 0.0  # added to the log-weights of an anchor's own hard negatives
    others: bool = True  # whether the hard negatives of other samples count
    positives: Tensor | None = None  # (anchors, P) rows of keys that do not count for an anchor, padded with -1
    log_weight: Pair | None = None
    zeros: bool = False  # whether any of these may be minus infinity
    limits: Limits | None = None  # exclude keys that are too similar
    strength: float = 0.0  # each key counts exp(strength s) times besides, with the similarity s as a constant
    first: int = 0  # number of the first anchor, where the anchors are some of the rows that period counts

    @property
    def by_position(self) -> bool:
        """Whether a key is excluded only for its position, and all others count once."""
        apart = self.ids is not None or self.positives is not None or self.log_weight is not None
        return not apart and self.others and self.own_log_weight == 0

    @property
    def largest_log_weight(self) -> float:
        """Bound of the absolute log-weights; infinite if not known without synchronizing."""
        own = abs(self.own_log_weight) if math.isfinite(self.own_log_weight) else 0.0
        if self.log_weight is None:
            return own
        if self.log_weight[1].device.type != "cpu":
            return math.inf
        return own + max(float(x.masked_fill(x == -math.inf, 0.0).abs().amax()) for x in self.log_weight)

    def weigh(self, tile: Tile, s: Tensor | None, workspace: Workspace) -> Tile:
        """Decide which keys of a tile count, and how much; a matrix is one tile.

        ``s`` are its similarities, times the scale of the limits plus their offset; only limits and strength need them.
        """
        height, width = tile.shape
        start, weights = tile.keys.start - tile.rows.start - self.first, []
        if self.log_weight is not None:
            weights = [self.log_weight[1][tile.keys], self.log_weight[0][tile.rows].unsqueeze(1)]
        if self.strength and s is not None:
            tilt = torch.mul(s, self.strength, out=workspace("tilt", (height, width)))
            weights = [tilt.add_(weights[0]) if weights else tilt]
        views = width if self.hard is None else min(width, max(0, self.hard - tile.keys.start))
        plain = self.ids is None and self.positives is None and self.limits is None and not self.zeros
        if plain and views == width:
            return tile._replace(excluded=self._offsets(height, width, start), log_weights=(*weights,))
        # 1. views of the anchor's sample, or keys with its id
        keep = workspace("keep", (height, width))
        if self.ids is None:
            fill_diagonals(keep.fill_(1.0)[:, :views], self._offsets(height, views, start), 0.0)
        else:
            different = self.ids[0][tile.rows].unsqueeze(1) != self.ids[1][tile.keys]
            keep = different.to(keep.dtype) if checks.traced() else keep.copy_(different)
        # 2. hard negatives: whose, and the weight of an anchor's own
        if views < width and not (self.others and self.own_log_weight == 0):
            own = workspace("own", (height, width)).zero_()
            fill_diagonals(own[:, views:], self._offsets(height, width - views, start + views), 1.0)
            if not self.others:
                keep[:, views:] *= own[:, views:]
            if self.own_log_weight == -math.inf:
                keep.sub_(own).clamp_(min=0.0)
            elif self.own_log_weight:
                own.mul_(self.own_log_weight)
                weights = [own.add_(weights[0])] if weights else [own]
        # 3. positives in this tile
        if self.positives is not None:
            at = self.positives[tile.rows] - tile.keys.start
            outside = ((at < 0) | (at >= width)).to(keep.dtype)
            scatter = keep.scatter_reduce if checks.traced() else keep.scatter_reduce_
            keep = scatter(1, at.clamp(0, width - 1), outside, "amin")
        keeps = [keep] if tile.mirror is None else [keep, keep]
        # 4. keys of weight zero; in buffers, since malloc fragments where large tensors come and go
        if self.zeros:
            for k, (x, weight) in enumerate(zip(keeps, weights, strict=False)):
                keeps[k] = torch.mul(x, weight > -math.inf, out=None if checks.traced() else workspace(f"{k}", x.shape))
            weights = [x.masked_fill(x == -math.inf, 0.0) for x in weights]
        # 5. keys that are too similar
        if self.limits is not None and s is not None:
            allowed = self.limits.allowed(s, tile, workspace)
            keeps = [x.mul_(y) for x, y in zip(allowed, keeps, strict=True)]
        return tile._replace(keep=(*keeps,), log_weights=(*weights,))

    def transposed(self) -> Mask:
        """Return the mask with anchors and keys exchanged; limits have to be chosen for these anchors."""
        ids, weight = (None if x is None else (x[1], x[0]) for x in (self.ids, self.log_weight))
        return replace(self, ids=ids, log_weight=weight)

    def for_rows(self, rows: slice) -> Mask:
        """Return the mask of some of the anchors; limits have to be chosen for these."""
        ids, weight = (None if x is None else (x[0][rows], x[1]) for x in (self.ids, self.log_weight))
        positives = None if self.positives is None else self.positives[rows]
        return replace(self, ids=ids, positives=positives, log_weight=weight, first=self.first + rows.start)

    def count(self, rows: int, keys: int, like: Tensor) -> Value:
        """Count the negatives of an anchor as often as they count, ``(rows, 1)`` if they may differ, without limits."""
        if self.by_position:
            views = keys if self.hard is None else min(keys, self.hard)
            return float(keys - (views // self.period if self.period else 0))
        mask, workspace, counts = replace(self, limits=None), Workspace(like), []
        height = max(1, COUNTED // keys)
        for first in range(0, rows, height):
            tile = Tile(slice(first, min(rows, first + height)), slice(0, keys))
            tile = mask.weigh(tile, None, workspace)
            counts.append(tile.total(tile.clear(workspace("ones", tile.shape).fill_(1.0), 0.0), 1, workspace))
        return torch.cat(counts).unsqueeze(1)

    def _offsets(self, height: int, width: int, start: int) -> Sequence[int]:
        """Return the diagonals whose keys are of the anchors' samples; ``start``: first key minus first anchor."""
        if self.period is None:
            return ()
        return range(1 - height + (height - 1 - start) % self.period, width, self.period)


def by_guide(guide: Pair, tile: Tile, workspace: Workspace) -> Tensor:
    """Compute the similarities of a tile by the guide's embeddings of the anchors and of the keys."""
    anchors, keys = guide[0][tile.rows], guide[1][tile.keys]
    return torch.mm(anchors, keys.t(), out=workspace("guide", (len(anchors), len(keys))))


def with_own_guide(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``f(s, g, ...)`` as a function of ``s``, which is its own guide."""
    return lambda s, *others: f(s, s.detach(), *others)


class Workspace:
    """Named buffers that tiles reuse."""

    def __init__(self, like: Tensor) -> None:
        self.dtype: torch.dtype = like.dtype
        self.device: torch.device = like.device
        self.buffers: dict[str, Tensor] = {}

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        buffer, size = self.buffers.get(name), math.prod(shape)
        if buffer is None or buffer.numel() < size:
            buffer = self.buffers[name] = torch.empty(shape, dtype=self.dtype, device=self.device)
        return buffer if buffer.shape == shape else buffer.view(-1)[:size].view(shape)


def fill_diagonals(x: Tensor, offsets: Sequence[int], value: float) -> Tensor:
    """Set diagonals of a matrix to ``value``, in place."""
    for offset in offsets:
        x.diagonal(offset).fill_(value)
    return x
