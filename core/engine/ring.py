"""Negatives in other processes, whose keys move round a ring and are never gathered.

In a reduction, each process compares its anchors with the keys of one process after the other, tile by tile, while the
next keys are on their way. For the gradient the keys go round again, together with their gradient so far, which ends at
the process that owns them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from .. import checks
from .accumulators import Accumulator, normalized_gradients
from .distributed import ProcessGroup
from .passes import Functions, TilePass, upstream_gradients
from .quadratic import rows_of
from .tiled import TiledNegatives
from .tiles import Mask, Workspace

ONCE = 'gather="ring" has no second derivative (create_graph=True): use gather=True, tile=0.'


class RingBlock(NamedTuple):
    """Anchors, and the views of one process that they are compared with.

    Attributes:
        rows: of the anchors.
        views: rows of each view among the process's keys.
        mask: which of these keys count.
    """

    rows: slice
    views: list[slice]
    mask: Mask

    @property
    def sizes(self) -> list[int]:
        return [view.stop - view.start for view in self.views]

    def select(self, keys: Tensor) -> Tensor:
        """Select the views, below one another, from all keys of the process."""
        if sum(self.sizes) == len(keys):
            return keys
        return keys[self.views[0]] if len(self.views) == 1 else torch.cat([keys[view] for view in self.views])


class RingNegatives(TiledNegatives):
    """The keys of the other samples, of all processes.

    Args:
        group: the processes.
        parts: views of this process's samples as anchors, and the views that they are compared with.
        hard: ``(B, n, width)`` further keys, seen by all samples.
        weight, ids, hard_ids, foreign, log_weight, hard_log_weight, owned: as in
            :meth:`counterpoint.engine.tiles.Mask.of`, for this process's samples.
        tile, bound: as in :class:`counterpoint.StreamedNegatives`; other processes' keys may be longer, so that the
            bound is not computed.
    """

    group: ProcessGroup

    def __init__(
        self,
        group: ProcessGroup,
        parts: Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]],
        hard: Tensor | None = None,
        weight: float = 0.0,
        ids: Tensor | None = None,
        hard_ids: Tensor | None = None,
        tile: int | None = None,
        bound: float | None = None,
        foreign: bool = True,
        log_weight: Tensor | None = None,
        hard_log_weight: Tensor | None = None,
        owned: bool = True,
    ) -> None:
        views = list({id(view): view for _, keys in parts for view in keys}.values())
        place = {id(view): i for i, view in enumerate(views)}
        further = [] if hard is None else [*hard.unbind(1)]
        left = torch.cat([view for anchors, _ in parts for view in anchors])
        mask = Mask(own_weight=weight if further else 0.0, foreign=foreign, owned=owned)
        if log_weight is not None:  # those of all keys, for their bound
            all_weights = [group.gather(w.flatten()) for w in (log_weight, hard_log_weight) if w is not None]
            mask = replace(mask, log_weight=(log_weight, torch.cat(all_weights)))
        super().__init__(left, len(left), mask, tile, bound, cacheable=False)
        self.group = group  # pyright: ignore[reportIncompatibleVariableOverride]
        self.left, self.right = left, torch.cat([*views, *further])
        further_views = list(range(len(views), len(views) + len(further)))
        self._parts = [(len(anchors), [place[id(view)] for view in keys], further_views) for anchors, keys in parts]
        # a few bytes per sample: these are gathered
        self._ids = ids
        self._owner_ids = None if ids is None else self._by_owner(ids)
        self._owner_hard_ids = None if hard_ids is None or not further else self._by_owner(hard_ids)
        self._log_weight = log_weight
        self._owner_log_weight = None if log_weight is None else self._by_owner(log_weight)
        self._owner_hard_log_weight = None if hard_log_weight is None else self._by_owner(hard_log_weight)
        self.structural = reduce(add, (self._count_of(owner) for owner in range(group.world_size)))

    def dense(self) -> NoReturn:
        raise TypeError(
            'gather="ring": the function that is reduced may close over numbers and tensors without dimensions only; '
            "what differs from anchor to anchor is passed beside it."
        )

    def reduce(self, accumulator: type[Accumulator], functions: Functions, uniform: bool) -> tuple[Tensor, ...]:
        return ReduceRing.apply(self, accumulator, functions, self.left, self.right, *functions.tensors)  # type: ignore[no-any-return]

    def blocks_of(self, owner: int) -> Iterator[RingBlock]:
        """Yield the blocks to compare while the keys of rank ``owner`` are here."""
        size, start = self.group.sizes[owner], 0
        for times, views, further in self._parts:
            rows = slice(start, start + times * self.group.sizes[self.group.rank])
            ids = None
            if self._ids is not None and self._owner_ids is not None:
                ids = self._ids.repeat(times), self._owner_ids[owner]
            hard_ids = None if self._owner_hard_ids is None else self._owner_hard_ids[owner]
            log_weight = hard_log_weight = None
            if self._log_weight is not None and self._owner_log_weight is not None:
                log_weight = self._log_weight.repeat(times), self._owner_log_weight[owner]
            if self._owner_hard_log_weight is not None:
                hard_log_weight = self._owner_hard_log_weight[owner]
            own = owner == self.group.rank
            mask = Mask.of(
                size, len(views), len(further), self.mask.own_weight, ids, hard_ids, own,
                self.mask.foreign, log_weight, hard_log_weight, self.mask.owned,
            )  # fmt: skip
            yield RingBlock(rows, [slice(v * size, (v + 1) * size) for v in (*views, *further)], mask)
            start = rows.stop

    def _first_exempt(self, exempt: int) -> int | None:
        return exempt or None  # each process's hard negatives: see passes

    def rotate(self, keys: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield the rank of the owner, its keys and the guide's, this process's first."""
        widths = keys.shape[1], 0 if self.guide is None else self.guide.right.shape[1]
        if self.guide is not None:
            keys = torch.cat([keys, self.guide.right], 1)
        owner, rows, world_size = self.group.rank, self.group.rows(keys), self.group.world_size
        for remaining in reversed(range(world_size)):
            previous = (owner - 1) % world_size
            operations: list[Any] = []
            received = keys.new_empty(rows[previous] if remaining else 0, keys.shape[1])
            if remaining:  # overlaps with the computation
                operations = self.group.shift(keys, received)
            own, guide = keys.split(widths, 1)
            yield owner, own, guide
            for operation in operations:
                operation.wait()
            owner, keys = previous, received

    def passes(
        self, owner: int, guide: Tensor, accumulator: type[Accumulator], functions: Functions, state: Sequence[Tensor]
    ) -> Iterator[tuple[RingBlock, TilePass, Accumulator]]:
        """Yield the tile passes over the keys of ``owner``, each with its part of the accumulator's state."""
        for block in self.blocks_of(owner):
            count = rows_of(self.count, block.rows) if accumulator.averages else 1.0
            own, mask, limits = functions.for_rows(block.rows), block.mask, self.mask.limits
            if limits is not None:
                compared = None if self.guide is None else (self.guide.left[block.rows], block.select(guide))
                limits = limits.for_block(block.rows, compared, own.scale, own.offset)
                limits = replace(limits, exempt=limits.exempt and mask.own)
                mask = replace(mask, limits=limits)
            tile_pass = TilePass(own, accumulator, mask, count, False, False, self.edge(functions))
            yield block, tile_pass, accumulator(mask, count, [x[:, block.rows] for x in state])

    def _by_owner(self, ids: Tensor) -> Sequence[Tensor]:
        parts: Sequence[Tensor] = self.group.gather(ids).split(self.group.rows(ids))
        return parts

    def _count_of(self, owner: int) -> Any:
        blocks = self.blocks_of(owner)
        counts = [
            block.mask.count(block.rows.stop - block.rows.start, sum(block.sizes), self.like.dtype) for block in blocks
        ]
        per_anchor = [count for count in counts if isinstance(count, Tensor)]
        return torch.cat(per_anchor) if per_anchor else counts[0]


class ReduceRing(checks.Once):
    """Tile passes over the keys of all processes."""

    @staticmethod
    def forward(
        ctx: Any,
        neg: RingNegatives,
        accumulator: type[Accumulator],
        functions: Functions,
        left: Tensor,
        right: Tensor,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        functions, workspace = functions.with_tensors(tensors), Workspace(left)
        state = accumulator.start(functions.number, len(left), left)
        for owner, keys, guide in neg.rotate(right):
            for block, tile_pass, part in neg.passes(owner, guide, accumulator, functions, state):
                tile_pass.accumulate(left[block.rows], block.select(keys), part, workspace)
        count = neg.count if accumulator.averages else 1.0
        whole = accumulator(neg.mask, count, state)
        result = whole.result()
        ctx.neg, ctx.accumulator, ctx.functions = neg, accumulator, functions
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(left, right, *tensors, *whole.state)
        return tuple(row.unsqueeze(1) for row in result.unbind())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        checks.refuse_second_derivative(ONCE)
        neg, accumulator = ctx.neg, ctx.accumulator
        left, right, *rest = ctx.saved_tensors
        number = len(ctx.functions.tensors)
        tensors, state = rest[:number], rest[number:]
        functions, workspace = ctx.functions.with_tensors(tensors), Workspace(left)
        count = neg.count if accumulator.averages else 1.0
        # 1. gradients of the results, in units of the largest
        relative, largest = normalized_gradients(gradients)
        upstream = upstream_gradients(functions, accumulator(neg.mask, count, state), relative)
        d_left, d_right, *d_tensors = map(torch.zeros_like, (left, right, *tensors))
        sizes, world_size = neg.group.rows(right), neg.group.world_size
        # 2. the keys of each process
        for owner, keys, guide in neg.rotate(right):
            for block, tile_pass, part in neg.passes(owner, guide, accumulator, functions, state):
                rows, selected = block.rows, block.select(keys)
                d_selected = torch.zeros_like(selected)
                tile_pass.backpropagate(
                    left[rows], selected, part, [g[rows] for g in upstream], d_left[rows], d_selected,
                    [rows_of(d, rows) for d in d_tensors], workspace,
                )  # fmt: skip
                # other processes add to it in units of their own
                for view, d_view in zip(block.views, d_selected.split(block.sizes), strict=True):
                    d_right[view] += d_view * largest
            # 3. the gradient follows its keys, and ends at their owner
            received = d_right.new_empty(sizes[(owner - 1) % world_size], d_right.shape[1])
            for operation in neg.group.shift(d_right, received):
                operation.wait()
            d_right = received
        return None, None, None, d_left * largest, d_right, *(x * largest for x in d_tensors)
