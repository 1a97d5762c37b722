"""Negatives in other processes, whose keys pass by and are never held all at once.

In a reduction each process compares its anchors with one process's keys after the other, while these move round the
ring of processes. Nothing but the reductions is kept: for the gradient the keys go round again, with what they have
been given so far, and end where they belong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from counterpoint import checks
from counterpoint.distributed import Peers
from counterpoint.gradcache import leaves
from counterpoint.hyper import Value
from counterpoint.scores import BLOCK, Negatives

EMPTY = {"logsumexp": -math.inf, "mean": 0.0, "max": -math.inf, "min": math.inf}


class RingNegatives(Negatives):
    """The other samples' keys, wherever they are.

    Args:
        peers: the processes.
        parts: anchors, whole views of this process's samples, and the views that they are compared with.
        hard: ``(B, n, d)`` further keys, seen by all samples.
        hard_weight: added to the logit of a sample's own hard negatives.
        ids: ``(B,)``; samples with the same id are never each other's negatives.
        hard_ids: ``(B n,)`` of the hard negatives.
    """

    peers: Peers

    def __init__(
        self,
        peers: Peers,
        parts: Sequence[tuple[Tensor, Sequence[Tensor]]],
        hard: Tensor | None = None,
        hard_weight: float = 0.0,
        ids: Tensor | None = None,
        hard_ids: Tensor | None = None,
    ) -> None:
        self.peers, self.hard_weight = peers, hard_weight
        self.size = peers.sizes[peers.rank]
        views = list({id(view): view for _, keys in parts for view in keys}.values())
        place = {id(view): i for i, view in enumerate(views)}
        self.views, self.each = len(views), 0 if hard is None else hard.shape[1]
        self.seen = [(len(anchors), [place[id(view)] for view in keys]) for anchors, keys in parts]
        self.anchors = torch.cat([anchors for anchors, _ in parts])
        self.keys = torch.cat(views if hard is None else [*views, hard.flatten(0, 1)])
        self.sample = torch.arange(len(self.anchors), device=self.anchors.device) % self.size
        # a few bytes per sample: these are held
        self.ids = ids
        self.all_ids = None if ids is None else self._by_owner(ids)
        self.all_hard_ids = None if ids is None or hard is None or hard_ids is None else self._by_owner(hard_ids)
        self._count = self._counted()
        if isinstance(self._count, Tensor):
            checks.has_negatives(self._count)

    def _by_owner(self, ids: Tensor) -> Sequence[Tensor]:
        parts: Sequence[Tensor] = self.peers.gather(ids).split(self.peers.rows(ids))
        return parts

    # ---- what is compared ----------------------------------------------------------------------

    def _blocks(self, owner: int) -> Iterator[tuple[slice, slice, bool]]:
        """Anchors and keys that are compared while the keys of ``owner`` are here, and whether these are hard ones."""
        size, start = self.peers.sizes[owner], 0
        for anchors, views in self.seen:
            spans = [(slice(v * size, (v + 1) * size), False) for v in views]
            if self.each:
                spans.append((slice(self.views * size, (self.views + self.each) * size), True))
            for span, hard in spans:
                step = max(1, BLOCK // (span.stop - span.start))
                for row in range(start, start + anchors, step):
                    yield slice(row, min(row + step, start + anchors)), span, hard
            start += anchors

    def _drop(self, owner: int, rows: slice, hard: bool) -> Tensor | None:
        """True where a key is no negative."""
        sample = self.sample[rows].unsqueeze(1)
        if self.ids is None or self.all_ids is None:
            if hard or owner != self.peers.rank:
                return None
            return sample == self.sample[: self.size]
        known = self.all_hard_ids if hard else self.all_ids
        return None if known is None else self.ids[sample] == known[owner]

    def _weighted(self, owner: int, rows: slice, hard: bool) -> Tensor | None:
        """True where a key is the anchor's own hard negative, if those count more."""
        if not (hard and self.hard_weight and owner == self.peers.rank):
            return None
        return self.sample[rows].unsqueeze(1) == self.sample[: self.size].repeat_interleave(self.each)

    def _counted(self) -> Value:
        if self.ids is None and not self.hard_weight:
            views = len(self.seen[0][1])
            return float(self.peers.total * (views + self.each) - views)
        count = self.anchors.new_zeros(len(self.anchors), 1)
        for owner in range(self.peers.count):
            for rows, keys, hard in self._blocks(owner):
                one = count.new_ones(1, 1).expand(rows.stop - rows.start, keys.stop - keys.start)
                count[rows] += self._masked("mean", one, owner, rows, hard).sum(1, keepdim=True)
        return count

    def _masked(self, kind: str, x: Tensor, owner: int, rows: slice, hard: bool) -> Tensor:
        """A block's values with weights, and with what is no negative out of the way."""
        weighted, drop = self._weighted(owner, rows, hard), self._drop(owner, rows, hard)
        if weighted is not None and kind == "logsumexp":
            x = torch.where(weighted, x + self.hard_weight, x)
        if weighted is not None and kind == "mean":
            x = torch.where(weighted, x * math.exp(self.hard_weight), x)
        return x if drop is None else x.masked_fill(drop, EMPTY[kind])

    # ---- reductions ----------------------------------------------------------------------------

    @property
    def count(self) -> Value:
        return self._count

    def logsumexp(self, f: Callable[..., Any], *per_anchor: Tensor) -> Any:
        return self._reduce("logsumexp", f, per_anchor)

    def mean(self, f: Callable[..., Any], *per_anchor: Tensor) -> Any:
        return self._reduce("mean", f, per_anchor)

    def max(self) -> Tensor:
        return self._reduce("max", lambda s: s, ())  # type: ignore[no-any-return]

    def min(self) -> Tensor:
        return self._reduce("min", lambda s: s, ())  # type: ignore[no-any-return]

    def _reduce(self, kind: str, f: Callable[..., Any], per_anchor: tuple[Tensor, ...]) -> Any:
        # one similarity shows how many terms there are, and which parameters f looks at
        terms = f(self.anchors[:1].detach() @ self.keys[:1].detach().T, *(p[:1].detach() for p in per_anchor))
        single = isinstance(terms, Tensor)
        terms = (terms,) if single else terms
        found = _Reduce.apply(
            self, kind, f, len(terms), len(per_anchor), self.anchors, self.keys, *per_anchor, *leaves(terms)
        )
        return found[0] if single else found

    def passing(self, keys: Tensor) -> Iterator[tuple[int, Tensor]]:
        """All processes' keys, whose they are first, this process's to begin with."""
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


class _Reduce(torch.autograd.Function):
    """Reductions of functions of the similarity to all keys."""

    @staticmethod
    def forward(
        ctx: Any,
        neg: RingNegatives,
        kind: str,
        f: Callable[..., Any],
        terms: int,
        width: int,
        anchors: Tensor,
        keys: Tensor,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        per_anchor = tensors[:width]
        found = [anchors.new_full((len(anchors), 1), EMPTY[kind]) for _ in range(terms)]
        ties = anchors.new_zeros(len(anchors), 1)
        for owner, passing in neg.passing(keys):
            for rows, columns, hard in neg._blocks(owner):
                made = f(anchors[rows] @ passing[columns].T, *(p[rows] for p in per_anchor))
                for so_far, x in zip(found, made if isinstance(made, tuple) else (made,), strict=True):
                    x, old = neg._masked(kind, x, owner, rows, hard), so_far[rows]
                    if kind == "logsumexp":
                        so_far[rows] = torch.logaddexp(old, x.logsumexp(1, keepdim=True))
                    elif kind == "mean":
                        so_far[rows] = old + x.sum(1, keepdim=True)
                    else:
                        best = x.amax(1, keepdim=True) if kind == "max" else x.amin(1, keepdim=True)
                        new = torch.maximum(old, best) if kind == "max" else torch.minimum(old, best)
                        ties[rows] = torch.where(new == old, ties[rows], 0.0) + (x == new).sum(1, keepdim=True)
                        so_far[rows] = new
        if kind == "mean":
            found = [x / neg.count for x in found]
        ctx.neg, ctx.kind, ctx.f, ctx.width = neg, kind, f, width
        ctx.save_for_backward(anchors, keys, ties, *tensors, *found)
        return tuple(found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        neg, kind, f = ctx.neg, ctx.kind, ctx.f
        anchors, keys, ties, *rest = ctx.saved_tensors
        tensors, found = rest[: -len(grads)], rest[-len(grads) :]
        per_anchor, leaves = tensors[: ctx.width], tensors[ctx.width :]
        grads = tuple(g / neg.count for g in grads) if kind == "mean" else grads
        given, back = torch.zeros_like(anchors), torch.zeros_like(keys)
        more = [torch.zeros_like(t) for t in tensors]
        rows_of = neg.peers.rows(keys)
        with torch.autocast(anchors.device.type, enabled=False):
            for owner, passing in neg.passing(keys):
                for rows, columns, hard in neg._blocks(owner):
                    parts = [p[rows].detach().requires_grad_() for p in per_anchor]
                    s = (anchors[rows] @ passing[columns].T).requires_grad_()
                    with torch.enable_grad():
                        made = f(s, *parts)
                    made = made if isinstance(made, tuple) else (made,)
                    slopes = []
                    for x, value, grad in zip(made, found, grads, strict=True):
                        slope = neg._masked(kind, x.detach(), owner, rows, hard)
                        if kind == "logsumexp":
                            slope = (slope - value[rows]).exp() * grad[rows]
                        elif kind == "mean":
                            slope = neg._masked(kind, grad[rows].expand_as(x), owner, rows, hard)
                        else:
                            slope = (slope == value[rows]) * (grad[rows] / ties[rows])
                        slopes.append(slope)
                    alive = [(x, slope) for x, slope in zip(made, slopes, strict=True) if x.requires_grad]
                    if not alive:
                        continue
                    by, *of = torch.autograd.grad(
                        [x for x, _ in alive],
                        [s, *parts, *leaves],
                        [slope for _, slope in alive],
                        retain_graph=bool(leaves),
                        allow_unused=True,
                    )
                    for i, x in enumerate(of):
                        if x is not None:
                            (more[i][rows] if i < ctx.width else more[i]).add_(x)
                    if by is not None:
                        given[rows] += by @ passing[columns]
                        back[columns] += by.T @ anchors[rows]
                # the gradient follows its keys, home at last
                arriving = back.new_empty(rows_of[(owner - 1) % neg.peers.count], back.shape[1])
                for work in neg.peers.pass_on(back, arriving):
                    work.wait()
                back = arriving
        return None, None, None, None, None, given, back, *more
