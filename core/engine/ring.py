"""Negatives in other processes, whose keys move round a ring and are never gathered.

In a reduction, each process compares its anchors with the keys of one process after the other, tile by tile or in GPU
kernels, while the next keys are on their way. For the gradient the keys go round again, together with their gradient so
far, which ends at the process that owns them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from .. import checks
from ..hyper import Value
from .accumulators import Accumulator, normalized_gradients
from .distributed import ProcessGroup
from .passes import Functions, TilePass, upstream_gradients
from .quadratic import Quadratics, rows_of
from .streamed import kernels, kernels_take, no_kernels
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
        if self.engine == "fused":
            raise no_kernels(self.like)
        return ReduceRing.apply(self, accumulator, functions, self.left, self.right, *functions.tensors)  # type: ignore[no-any-return]

    def uses_kernels(self, functions: Quadratics) -> bool:
        return kernels_take(self, functions)

    def reduce_by_kernels(self, functions: Quadratics, summed: Sequence[Value] = ()) -> Sequence[Tensor]:
        packed = functions.packed(summed or [0.0] * functions.number, self.like)
        how = bool(summed), functions.after
        results: Tensor = ReduceRingByKernels.apply(self, *how, self.left, self.right, *packed)
        return results.unsqueeze(2).unbind()

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
            own = functions.for_rows(block.rows)
            mask = self._limited(block, self._compared(block, guide), own.scale, own.offset)
            tile_pass = TilePass(own, accumulator, mask, count, False, False, self.edge(functions))
            yield block, tile_pass, accumulator(mask, count, [x[:, block.rows] for x in state])

    def _compared(self, block: RingBlock, guide: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the guide's embeddings of a block's anchors and keys, if a guide decides which keys count."""
        return None if self.guide is None else (self.guide.left[block.rows], block.select(guide))

    def _limited(
        self, block: RingBlock, guide: tuple[Tensor, Tensor] | None = None, scale: float = 1.0, offset: float = 0.0
    ) -> Mask:
        """Return the mask of a block, with the limits of its anchors."""
        limits = self.mask.limits
        if limits is None:
            return block.mask
        limits = limits.for_block(block.rows, guide, scale, offset)
        return replace(block.mask, limits=replace(limits, exempt=limits.exempt and block.mask.own))

    def launches(
        self, owner: int, left: Tensor, keys: Tensor, guide: Tensor, summed: bool, after: str
    ) -> Iterator[tuple[RingBlock, Any, Tensor, Tensor]]:
        """Yield what kernels reduce over the keys of ``owner``: the block, how, its anchors and its keys."""
        for block in self.blocks_of(owner):
            reduction = kernels().Reduction(self._limited(block, self._compared(block, guide)), summed, after)
            yield block, reduction, left[block.rows].to(self.multiplied), block.select(keys).to(self.multiplied)

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
            d_right = follow(neg.group, d_right, sizes[(owner - 1) % world_size])
        return None, None, None, d_left * largest, d_right, *(x * largest for x in d_tensors)


class ReduceRingByKernels(checks.Once):
    """Sums or log-sum-exps of quadratic functions over the keys of all processes, by GPU kernels.

    Those over the keys of each process are added to one another; their gradient needs only the total.
    """

    @staticmethod
    def forward(
        ctx: Any,
        neg: RingNegatives,
        summed: bool,
        after: str,
        left: Tensor,
        right: Tensor,
        value: Tensor,
        slope: Tensor,
    ) -> Tensor:
        out = left.new_full((len(value), len(left)), 0.0 if summed else -math.inf, dtype=torch.float32)
        for owner, keys, guide in neg.rotate(right):
            for block, reduction, anchors, selected in neg.launches(owner, left, keys, guide, summed, after):
                part, total = reduction.forward(anchors, selected, columns_of(value, block.rows)), out[:, block.rows]
                out[:, block.rows] = total + part if summed else torch.logaddexp(total, part)
        ctx.neg, ctx.how = neg, (summed, after)
        ctx.save_for_backward(left, right, value, slope, out)
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Any:
        checks.refuse_second_derivative(ONCE)
        neg: RingNegatives = ctx.neg
        left, right, value, slope, out = ctx.saved_tensors
        needed = ctx.needs_input_grad[3:6]
        d_left, d_right, d_value = (torch.zeros_like(x, dtype=torch.float32) for x in (left, right, value))
        sizes, world_size = neg.group.rows(right), neg.group.world_size
        for owner, keys, guide in neg.rotate(right):
            for block, reduction, anchors, selected in neg.launches(owner, left, keys, guide, *ctx.how):
                rows = block.rows
                of_block = (columns_of(x, rows) for x in (value, slope))
                parts = reduction.backward(anchors, selected, *of_block, out[:, rows], upstream[:, rows], needed)
                for total, part in ((d_left[rows], parts[0]), (columns_of(d_value, rows), parts[2])):
                    if part is not None:
                        total += part
                if parts[1] is not None:
                    for view, d_view in zip(block.views, parts[1].split(block.sizes), strict=True):
                        d_right[view] += d_view
            d_right = follow(neg.group, d_right, sizes[(owner - 1) % world_size])
        return None, None, None, d_left.to(left.dtype), d_right.to(right.dtype), d_value, None


def columns_of(x: Tensor, rows: slice) -> Tensor:
    """Select the anchors of coefficients ``(functions, n, anchors)``; return those of all anchors as they are."""
    return x[..., rows] if x.shape[2] > 1 else x


def follow(group: ProcessGroup, d_keys: Tensor, rows: int) -> Tensor:
    """Pass on the gradient of the keys that have just left; return the gradient of the next, of so many rows."""
    received = d_keys.new_empty(rows, d_keys.shape[1])
    for operation in group.shift(d_keys, received):
        operation.wait()
    return received
