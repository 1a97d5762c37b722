"""Similarities, ready to be turned into losses: positives that are held, negatives that can only be reduced.

An objective sees ``pos``, a tensor ``(anchors, P)``, and ``neg``, a :class:`Negatives`. It asks ``neg`` for
log-sum-exps, means and maxima of functions of the similarity and never for the similarities themselves.
How they are kept - a matrix here, tiles or shards elsewhere - is therefore not its business.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..hyper import Value
from .distributed import Peers

Terms = Tensor | tuple[Tensor, ...]

# Elements of a row block on the CPU: 256 KB of float32, so that a chain of elementwise steps stays in the cache.
BLOCK = 2**16


def elementwise(results: Any, s: Tensor) -> None:
    """Raises if what a function made of ``s`` is of another shape: then it has seen more than ``s``."""
    for x in results if isinstance(results, tuple) else (results,):
        if x.shape != s.shape:
            raise TypeError(
                f"the function that is reduced made {checks.shape(x)} of {checks.shape(s)} similarities: it may close "
                "over numbers and tensors without dimensions only; what differs from anchor to anchor is passed "
                "beside it, neg.mean(f, per_anchor)."
            )


class Negatives(ABC):
    """Each anchor's negative similarities, of which only reductions can be had.

    The functions ``f`` are elementwise: ``f(s)`` maps a block of similarities to a tensor of its shape, or to
    a tuple of such tensors, which are then reduced in one pass. What ``f`` closes over must be numbers or
    tensors without dimensions. What differs from anchor to anchor is passed beside it as ``(anchors, 1)``
    tensors and arrives as further arguments, cut to the block: ``neg.mean(lambda s, m: (s - m) ** 2, m)``.
    Every reduction has the shape ``(anchors, 1)``, to be combined with ``pos`` as it stands.

    The anchors may be only some of the batch's: those of this process. What an objective wants to know of all of them
    it asks :meth:`across` or :meth:`batch_mean`.
    """

    peers: Peers | None = None

    @property
    @abstractmethod
    def count(self) -> Value:
        """Number of negatives per anchor: a float if it is the same for all, else ``(anchors, 1)``."""

    @property
    def log_count(self) -> Value:
        return self.count.log() if isinstance(self.count, Tensor) else math.log(self.count)

    @abstractmethod
    def logsumexp(self, f: Callable[..., Any], *per_anchor: Tensor) -> Any:
        """``log sum_j exp f(s_j)``."""

    @abstractmethod
    def mean(self, f: Callable[..., Any], *per_anchor: Tensor) -> Any:
        """``mean_j f(s_j)``."""

    @abstractmethod
    def max(self) -> Tensor:
        """The largest similarity; its gradient is shared evenly among ties."""

    @abstractmethod
    def min(self) -> Tensor:
        """The smallest similarity."""

    def across(self, x: Tensor, how: str = "sum") -> Tensor:
        """``x`` of all processes that share the batch, added up, or its ``min`` or ``max``. A constant."""
        return x if self.peers is None else self.peers.across(x, how)

    def batch_mean(self, x: Tensor) -> Tensor:
        """Mean of ``(anchors, 1)`` values over the anchors of the whole batch. A constant."""
        return (x.mean() if self.peers is None else self.peers.mean(x)).detach()

    def variance(self) -> Tensor:
        """Population variance, by deviations from the mean rather than by a difference of moments."""
        mean = self.mean(lambda s: s)
        return self.mean(lambda s, m: (s - m) ** 2, mean)  # type: ignore[no-any-return]

    def expectation(self, log_weight: Callable[[Tensor], Tensor], f: Callable[[Tensor], Tensor]) -> Tensor:
        """``sum_j w_j f(s_j) / sum_j w_j`` with constant weights ``w = exp(log_weight)``."""
        total = self.logsumexp(lambda s: log_weight(s.detach()))

        def weighted(s: Tensor, total: Tensor) -> Tensor:
            # a share is at most one; a key that is no negative may exceed it without bound, and infinity times its
            # zero gradient would be NaN
            return (log_weight(s.detach()) - total).clamp(max=0).exp() * f(s)

        return self.mean(weighted, total) * self.count  # type: ignore[no-any-return]


class DenseNegatives(Negatives):
    """Negatives kept as a matrix; :mod:`counterpoint.engine.streamed` keeps only embeddings.

    Args:
        scores: ``(anchors, keys)`` similarities.
        skip: ``(anchors, k)`` columns that are no negatives of that anchor (itself, its positives).
        drop: ``(anchors, keys)``, True where a key is no negative; replaces ``skip``.
        log_weight: ``(anchors, keys)``; a key counts ``exp(log_weight)`` times (SimCSE's hard-negative weight).
    """

    def __init__(
        self,
        scores: Tensor,
        skip: Tensor | None = None,
        drop: Tensor | None = None,
        log_weight: Tensor | None = None,
    ) -> None:
        self.scores, self.skip, self.drop, self.log_weight = scores, skip, drop, log_weight
        self._count: Value
        if log_weight is not None:
            self._count = self._fill(log_weight, slice(None), -math.inf).exp().sum(1, keepdim=True)
        elif drop is not None:
            self._count = (~drop).sum(1, keepdim=True).to(scores.dtype)
        else:
            self._count = float(scores.shape[1] - (0 if skip is None else skip.shape[1]))

    @property
    def count(self) -> Value:
        return self._count

    def logsumexp(self, f: Callable[..., Any], *per_anchor: Tensor) -> Any:
        def block(x: Tensor, rows: slice) -> Tensor:
            if self.log_weight is not None:
                x = x + self.log_weight[rows]
            return self._fill(x, rows, -math.inf).logsumexp(1, keepdim=True)

        return self._reduce(block, f, per_anchor)

    def mean(self, f: Callable[..., Any], *per_anchor: Tensor) -> Any:
        def block(x: Tensor, rows: slice) -> Tensor:
            if self.log_weight is not None:
                x = x * self.log_weight[rows].exp()
            count = self._count[rows] if isinstance(self._count, Tensor) else self._count
            return self._fill(x, rows, 0.0).sum(1, keepdim=True) / count

        return self._reduce(block, f, per_anchor)

    def max(self) -> Tensor:
        return self._reduce(  # type: ignore[no-any-return]
            lambda x, rows: self._fill(x, rows, -math.inf).amax(1, keepdim=True), lambda s: s, ()
        )

    def min(self) -> Tensor:
        return self._reduce(  # type: ignore[no-any-return]
            lambda x, rows: self._fill(x, rows, math.inf).amin(1, keepdim=True), lambda s: s, ()
        )

    def _fill(self, x: Tensor, rows: slice, value: float) -> Tensor:
        if self.drop is not None:
            return x.masked_fill(self.drop[rows], value)
        return x if self.skip is None else x.scatter(1, self.skip[rows], value)

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        keys = self.scores.shape[1]
        if self.scores.device.type != "cpu" or checks.compiling():
            yield slice(None), self.scores
            return
        start = 0
        # split, not slicing: its backward writes the gradient once instead of once per block
        for block in self.scores.split(max(1, BLOCK // max(keys, 1))):
            yield slice(start, start + len(block)), block
            start += len(block)

    def _reduce(
        self, reduce: Callable[[Tensor, slice], Tensor], f: Callable[..., Any], per_anchor: tuple[Tensor, ...]
    ) -> Any:
        parts: list[tuple[Tensor, ...]] = []
        single = True
        for rows, block in self._blocks():
            if not parts and len(block) < len(self.scores):
                with torch.no_grad():
                    elementwise(f(block[:1], *(p[:1] for p in per_anchor)), block[:1])
            terms = f(block, *(p[rows] for p in per_anchor))
            single = not isinstance(terms, tuple)
            parts.append(tuple(reduce(x, rows) for x in ((terms,) if single else terms)))
        columns = tuple(p[0] if len(p) == 1 else torch.cat(p) for p in zip(*parts, strict=True))
        return columns[0] if single else columns
