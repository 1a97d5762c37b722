"""Negatives in other processes, whose keys pass by and are never held all at once.

In a reduction each process compares its anchors with one process's keys after the other, tile by tile, while the keys
move round the ring of processes. Nothing but the reductions is kept: for the gradient the keys go round again, with
what they have been given so far, and end where they belong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from .accumulators import Reduction, limited
from .distributed import Peers
from .functions import Traced
from .passes import Pass
from .quadratic import Quadratics, rows_of
from .streamed import StreamedNegatives
from .tiles import Mask, Scratch, Tile


class Meeting(NamedTuple):
    """Anchors, the views of one process that they are compared with, and which of these keys count."""

    rows: slice
    views: list[slice]
    mask: Mask

    @property
    def sizes(self) -> list[int]:
        return [view.stop - view.start for view in self.views]

    def pick(self, keys: Tensor) -> Tensor:
        """The views, under one another, from all that the process has sent."""
        found = [keys[view] for view in self.views]
        return keys if sum(self.sizes) == len(keys) else found[0] if len(found) == 1 else torch.cat(found)


class RingNegatives(StreamedNegatives):
    """The other samples' keys, wherever they are.

    Args:
        peers: the processes.
        parts: views of this process's samples as anchors, and the views that they are compared with.
        hard: ``(B, n, width)`` further keys, seen by all samples.
        weight: added to the logits of a sample's own hard negatives.
        ids: ``(B,)``; samples with the same id are never each other's negatives.
        hard_ids: ``(B n,)``, those of the hard negatives.
        tile, reach: as in :class:`StreamedNegatives`.
    """

    peers: Peers

    def __init__(
        self,
        peers: Peers,
        parts: Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]],
        hard: Tensor | None = None,
        weight: float = 0.0,
        ids: Tensor | None = None,
        hard_ids: Tensor | None = None,
        tile: int | None = None,
        reach: float | None = None,
    ) -> None:
        views = list({id(view): view for _, keys in parts for view in keys}.values())
        place = {id(view): i for i, view in enumerate(views)}
        further = [] if hard is None else [*hard.unbind(1)]
        left = torch.cat([view for mine, _ in parts for view in mine])
        self.peers, self.blocks, self.both = peers, [(left, torch.cat([*views, *further]))], False
        self.anchors, self.tile = len(left), tile
        self._reach, self._keepable, self._visited = reach, False, False
        self.mask = Mask(own_weight=weight if further else 0.0)
        extra = list(range(len(views), len(views) + len(further)))
        self._seen = [(len(mine), [place[id(view)] for view in keys], extra) for mine, keys in parts]
        # a few bytes per sample: these are held
        self._ids = ids
        self._known = None if ids is None else self._by_owner(ids)
        self._hard_known = None if hard_ids is None or not further else self._by_owner(hard_ids)
        self._count = reduce(add, (self._counts(owner) for owner in range(peers.count)))

    def reach(self) -> float:
        # other processes' keys may be longer
        return float("inf") if self._reach is None else self._reach

    def _fusable(self, terms: Quadratics) -> bool:
        return False  # the kernels see what this process holds

    def dense(self) -> NoReturn:
        raise TypeError(
            'gather="ring": the function that is reduced may close over numbers and tensors without dimensions only; '
            "what differs from anchor to anchor is passed beside it."
        )

    def _by_owner(self, ids: Tensor) -> Sequence[Tensor]:
        parts: Sequence[Tensor] = self.peers.gather(ids).split(self.peers.rows(ids))
        return parts

    def meetings(self, owner: int) -> Iterator[Meeting]:
        """What is compared while the keys of ``owner`` are here."""
        size, own, start = self.peers.sizes[owner], owner == self.peers.rank, 0
        for times, views, extra in self._seen:
            rows = slice(start, start + times * self.peers.sizes[self.peers.rank])
            ids = None
            if self._ids is not None and self._known is not None:
                ids = self._ids.repeat(times), self._known[owner]
            hard_ids = None if self._hard_known is None else self._hard_known[owner]
            mask = Mask.of(size, len(views), len(extra), self.mask.own_weight, ids, hard_ids, own)
            yield Meeting(rows, [slice(v * size, (v + 1) * size) for v in (*views, *extra)], mask)
            start = rows.stop

    def _counts(self, owner: int) -> Any:
        found, dtype = [], self.blocks[0][0].dtype
        for meeting in self.meetings(owner):
            anchors = meeting.rows.stop - meeting.rows.start
            found.append(meeting.mask.count(anchors, sum(meeting.sizes), dtype))
        by_anchor = [count for count in found if isinstance(count, Tensor)]
        return torch.cat(by_anchor) if by_anchor else found[0]

    def passing(self, keys: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Whose keys are here, and the keys; this process's to begin with."""
        owner, rows = self.peers.rank, self.peers.rows(keys)
        for left in reversed(range(self.peers.count)):
            before = (owner - 1) % self.peers.count
            moving: list[Any] = []
            arriving = keys.new_empty(rows[before] if left else 0, keys.shape[1])
            if left:  # while these are looked at
                moving = self.peers.pass_on(keys, arriving)
            yield owner, keys
            for work in moving:
                work.wait()
            owner, keys = before, arriving

    def job(self, reduction: type[Reduction], terms: Quadratics | Traced, meeting: Meeting) -> Pass:
        count = rows_of(self.count, meeting.rows)
        return Pass(terms.cut(meeting.rows), reduction, meeting.mask, count, False, False, self.edge(terms))

    def _reduce(self, reduction: type[Reduction], terms: Quadratics | Traced, uniform: bool) -> tuple[Tensor, ...]:
        (left, right), *_ = self.blocks
        return RingReduce.apply(self, reduction, terms, left, right, *terms.tensors)  # type: ignore[no-any-return]


class RingReduce(torch.autograd.Function):
    """Reductions over the keys of all processes."""

    @staticmethod
    def forward(
        ctx: Any,
        neg: RingNegatives,
        reduction: type[Reduction],
        terms: Quadratics | Traced,
        left: Tensor,
        right: Tensor,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        terms, scratch = terms.bound(tensors), Scratch(left)
        state = reduction.start(terms.functions, len(left), left)

        def work(job: Pass, so_far: Reduction, mine: Tensor, theirs: Tensor, _: int, tile: Tile) -> None:
            s = job.product(mine, theirs, tile, scratch)
            for k, x in job.terms.values_of(s, tile, scratch, pulled=False):
                so_far.add(k, x, tile, scratch)

        for owner, keys in neg.passing(right):
            for meeting in neg.meetings(owner):
                job, mine, theirs = neg.job(reduction, terms, meeting), left[meeting.rows], meeting.pick(keys)
                so_far = reduction(meeting.mask, job.count, [x[:, meeting.rows] for x in state])
                job.each(partial(work, job, so_far, mine, theirs), len(mine), len(theirs), left.device)
        whole = reduction(neg.mask, neg.count, state)
        result = whole.result()
        ctx.neg, ctx.reduction, ctx.terms = neg, reduction, terms
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(left, right, *tensors, *whole.state)
        return tuple(row.unsqueeze(1) for row in result.unbind())

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError('gather="ring" has no second derivative (create_graph=True): use gather=True, tile=0.')
        neg, reduction = ctx.neg, ctx.reduction
        left, right, *rest = ctx.saved_tensors
        tensors, state = rest[: len(ctx.terms.tensors)], rest[len(ctx.terms.tensors) :]
        terms, scratch = ctx.terms.bound(tensors), Scratch(left)
        gradients, largest = limited(given)
        prepared = reduction(neg.mask, neg.count, state).prepare(gradients)
        folded = [terms.fold(k, g) for k, g in enumerate(prepared.unbind())]
        to_left, back, *to_tensors = map(torch.zeros_like, (left, right, *tensors))

        def work(
            job: Pass,
            so_far: Reduction,
            rows: slice,
            keys: tuple[Tensor, Tensor],
            _: int,
            tile: Tile,
        ) -> None:
            mine, (theirs, to_theirs) = left[rows], keys
            s = job.product(mine, theirs, tile, scratch)
            total, found = job.terms.pull(
                s, tile, scratch, lambda k, x: so_far.weigh(k, x, folded[k][rows], tile, scratch)
            )
            if total is not None:
                to_left[rows][tile.rows].addmm_(total, theirs[tile.keys])
                to_theirs[tile.keys].addmm_(total.t(), mine[tile.rows])
            for to, part in zip(to_tensors, found, strict=False):
                if to.numel() > 1:
                    to[rows][tile.rows] += part
                else:
                    to += part.reshape(to.shape)

        sizes = neg.peers.rows(right)
        for owner, keys in neg.passing(right):
            for meeting in neg.meetings(owner):
                job, theirs = neg.job(reduction, terms, meeting), meeting.pick(keys)
                so_far = reduction(meeting.mask, job.count, [x[:, meeting.rows] for x in state])
                anchors, to_theirs = meeting.rows.stop - meeting.rows.start, torch.zeros_like(theirs)
                run = partial(work, job, so_far, meeting.rows, (theirs, to_theirs))
                job.each(run, anchors, len(theirs), left.device)
                # others add to it in units of their own
                for view, part in zip(meeting.views, to_theirs.split(meeting.sizes), strict=True):
                    back[view] += part * largest
            # the gradient follows its keys, home at last
            arriving = back.new_empty(sizes[(owner - 1) % neg.peers.count], back.shape[1])
            for sent in neg.peers.pass_on(back, arriving):
                sent.wait()
            back = arriving
        return None, None, None, to_left * largest, back, *(x * largest for x in to_tensors)
