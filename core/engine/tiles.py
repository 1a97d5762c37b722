"""Negatives in tiles: similarities are computed tile by tile, and mostly again for the gradient.

Memory is ``O(anchors x width + tile^2)`` instead of ``O(anchors x keys)``, and a tile stays in the cache while it is
reduced. Gradients are exact, and cannot be differentiated again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import checks
from ..values import Value
from .functions import Traced
from .mask import Limits, Mask, Workspace, with_own_guide
from .matrix import MatrixNegatives, Negatives
from .passes import Accumulator, Functions, LogSumExp, Max, Mean, MeanSoftplus, ReduceTiles, SumExp, TilePass
from .quadratic import SAFE, Quadratics, Softplus, rows_of, with_constants

# Materialize at most this many pairs (64 MB) when several reductions need autograd.
CACHED = 2**24

# Edge of a square tile, as (quadratic, traced) functions: on one CPU thread, on several, on other devices.
EDGES_CPU, EDGES_THREADS, EDGES = (512, 256), (1024, 512), (4096, 2048)

LIMITED = "false_negatives= excludes every key; empty='keep' keeps the least similar one, 'zero' gives a loss of zero"


class Block(NamedTuple):
    """Anchors and their keys."""

    rows: slice  # of the anchors among all
    left: Tensor  # (n, width)
    right: Tensor  # (N, width)
    mask: Mask
    guide: tuple[Tensor, Tensor] | None  # its embeddings of both


class TileNegatives(Negatives):
    """Negatives of which only the embeddings are stored.

    Args:
        pairs: anchors ``(n, width)`` and their keys ``(N, width)``; several of equal shape follow each other. Where
            both are the same tensor, each similarity is computed once.
        both: the keys of each pair are anchors as well, with the pair's anchors as their keys, and follow them.
        mask: which keys are excluded.
        tile: edge of the tiles. By default what suits the device, and a small matrix may be materialized once a second
            reduction needs autograd.
        bound: bound of the absolute similarities; by default computed, on the CPU.
        engine: ``chunks`` if a loss on these is best computed a chunk of anchors at a time, see
            :mod:`counterpoint.engine.chunks`.
        forced: whether that engine has been asked for; a matrix is then never materialized.

    >>> cp.TileNegatives([(torch.eye(2), torch.eye(2))]).mean(lambda s: s).T
    tensor([[0.5000, 0.5000]])
    """

    def __init__(
        self,
        pairs: Sequence[tuple[Tensor, Tensor]],
        both: bool = False,
        mask: Mask | None = None,
        tile: int | None = None,
        bound: float | None = None,
        engine: str = "tiles",
        forced: bool = False,
    ) -> None:
        left, right = pairs[0]
        self.pairs: Sequence[tuple[Tensor, Tensor]] = pairs
        self.both: bool = both
        self.mask: Mask = mask or Mask()
        self.tile: int | None = tile
        self.engine: str = engine
        self.forced: bool = forced
        self.like: Tensor = left
        self._bound, self._reduced = bound, False
        self.anchors: int = len(pairs) * (len(left) + both * len(right))
        self.cacheable: bool = tile is None and not forced and self.anchors * len(right) <= CACHED
        self.guide: Any = None
        self._dense: MatrixNegatives | None = None

    def blocks(self, mirrored: bool = False) -> Iterator[Block]:
        """Yield each pair and, if its keys are anchors too, the same exchanged; ``mirrored``, both at once."""
        start = 0
        guides = [None] * len(self.pairs) if self.guide is None else self.guide.pairs
        for (left, right), guide in zip(self.pairs, guides, strict=True):
            stop = start + len(left) + (len(right) if mirrored and self.both else 0)
            yield Block(slice(start, stop), left, right, self.mask, guide)
            if self.both and not mirrored:
                start, stop = stop, stop + len(right)
                exchanged = None if guide is None else (guide[1], guide[0])
                yield Block(slice(start, stop), right, left, self.mask.transposed(), exchanged)
            start = stop

    def bound(self) -> float:
        """Return a bound of the absolute similarities; infinite if not known without synchronizing."""
        if self._bound is None and self.like.device.type == "cpu":
            norms = [[torch.linalg.vector_norm(x.detach(), dim=1).amax() for x in pair] for pair in self.pairs]
            self._bound = max(float(a * b) for a, b in norms)
        return math.inf if self._bound is None else self._bound

    def shape(self, functions: Functions) -> tuple[int, int]:
        """Return the rows and columns of a tile."""
        traced, (left, right) = isinstance(functions, Traced), self.pairs[0]
        if self.tile is not None or left.device.type != "cpu":
            return self.tile or EDGES[traced], self.tile or EDGES[traced]
        edge = (EDGES_CPU if torch.get_num_threads() == 1 else EDGES_THREADS)[traced]
        if left is right:
            edge = min(edge, math.ceil(len(left) / 2))  # a single tile would compute every pair twice
        return edge, edge

    def buffers(self) -> tuple[Workspace | None, Tensor | None]:
        """Return buffers for all tiles of the next reduction, None to store those that pay, and for keys' gradient."""
        return None, None

    @cached_property
    def count(self) -> Value:  # type: ignore[override]
        """The number of negatives, each as often as it counts; by similarities, counted in a pass of its own."""
        if self.mask.limits is not None or self.mask.strength:
            self.count = 1.0  # so that the mean is the sum  # pyright: ignore[reportIncompatibleVariableOverride]
            with torch.no_grad():
                return self.reduce(Mean, _of_one(torch.ones_like))[0]
        counts = [block.mask.count(len(block.left), len(block.right), self.like) for block in self.blocks()]
        per_anchor = [c for c in counts if isinstance(c, Tensor)]
        return torch.cat(per_anchor) if per_anchor else counts[0]

    def excluding(self, most: Tensor, guide: Negatives | None = None, exempt: int = 0) -> Negatives:
        kept = self._masked(limits=Limits(most, exempt=len(self.pairs[0][1]) - exempt if exempt else None))
        kept.guide = guide
        return kept

    def tilted(self, strength: float) -> TileNegatives:
        return self._masked(strength=strength)

    def _masked(self, **changes: Any) -> TileNegatives:
        changed = copy(self)
        changed.mask, changed._reduced, changed._dense = replace(self.mask, **changes), False, None
        vars(changed).pop("count", None)
        return changed

    def weighted(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``f`` plus the log-weight of :meth:`tilted`, for a log-sum-exp."""

        def sums(s: Any, *others: Any) -> Any:
            found, tilt = f(s, *others), self.mask.strength * s.detach()
            return tuple(x + tilt for x in found) if isinstance(found, tuple) else found + tilt

        return sums if self.mask.strength else f

    def check_limits(self, left: Value) -> None:
        """Raise if limits exclude all negatives of an anchor; ``left`` is positive for all others."""
        if self.mask.limits is not None and not self.optional:
            self.valid: Value = self.valid * checks.require_negatives(left, LIMITED)

    def dense(self) -> MatrixNegatives:
        """Return the same negatives as a matrix."""
        matrix, limits = MatrixNegatives.of(self.pairs, self.mask, self.both, *self.buffers()), self.mask.limits
        if self.mask.strength:
            matrix = matrix.tilted(self.mask.strength)
        if limits is not None:
            guide = None if self.guide is None else MatrixNegatives.of(self.guide.pairs, Mask(), self.both)
            exempt = 0 if limits.exempt is None else len(self.pairs[0][1]) - limits.exempt
            matrix = matrix.excluding(limits.most, guide, exempt)
        self.check_limits(matrix.count)
        matrix.group, matrix.guide = self.group, self.guide
        return self._with_count(matrix)

    def materialized(self) -> Negatives:
        if self.cacheable and self._dense is None:
            with torch.enable_grad():
                self._dense = self.dense()
        return self if self._dense is None else self._with_count(self._dense)

    def _with_count(self, matrix: MatrixNegatives) -> MatrixNegatives:
        if "count" in self.__dict__:  # it may have been set
            matrix.count = self.count
        return matrix

    def logsumexp(self, f: Callable[..., Any], *per_anchor: Tensor, guided: bool = False) -> Any:
        if guided and self.guide is not None:
            return self._reduce_traced("logsumexp", f, per_anchor, True)
        f = with_own_guide(f) if guided else f
        quadratic = Quadratics.of(self.weighted(f), per_anchor, self.anchors, self.like.dtype)
        if quadratic is None or quadratic[0].after:
            return self._reduce_traced("logsumexp", f, per_anchor)
        functions, constants = quadratic
        safe = functions.bounded(self.bound(), SAFE - self.mask.largest_log_weight)
        return with_constants(constants, self._reduce(SumExp if safe else LogSumExp, functions))

    def mean(self, f: Callable[..., Any], *per_anchor: Tensor, guided: bool = False) -> Any:
        if guided and self.guide is not None:
            return self._reduce_traced("mean", f, per_anchor, True)
        f = with_own_guide(f) if guided else f
        functions, _ = Quadratics.of(f, per_anchor, self.anchors, self.like.dtype) or (None, [])
        if functions is not None and functions.after == "relu":
            return self._reduce(Mean, functions)[0]
        if functions is not None and functions.after == "softplus" and not self.mask.strength:
            softplus = Softplus.of_linear(functions, self.like.device, self.bound())
            if softplus is not None:
                return self._reduce(MeanSoftplus, softplus)[0]
        return self._reduce_traced("mean", f, per_anchor)

    # an inner solve starts with the maximum; both must use one matrix, for equal rounding
    def max(self) -> Tensor:
        return self.materialized().max() if self.cacheable else self._reduce(Max, _of_one(lambda s: s))[0]

    def min(self) -> Tensor:
        return self.materialized().min() if self.cacheable else -self._reduce(Max, _of_one(lambda s: -s))[0]

    def _reduce_traced(
        self, reduction: str, f: Callable[..., Any], per_anchor: tuple[Tensor, ...], guided: bool = False
    ) -> Any:
        """Compute the ``logsumexp`` or the ``mean`` of a function that autograd differentiates."""
        if self.cacheable and self._reduced:
            return getattr(self.materialized(), reduction)(f, *per_anchor, guided=guided)
        self._reduced = True
        accumulator, own = (LogSumExp, self.weighted(f)) if reduction == "logsumexp" else (Mean, f)
        functions = Traced.of(own, per_anchor, self.like, accumulator.unit, guided)
        if functions is None:  # not a function of a tile alone
            return getattr(self.dense(), reduction)(f, *per_anchor, guided=guided)
        results = self._reduce(accumulator, functions)
        return results if functions.is_tuple else results[0]

    def _reduce(self, accumulator: type[Accumulator], functions: Functions) -> tuple[Tensor, ...]:
        count = self.count if accumulator.averages else 1.0  # ahead of the reduction that needs it
        results = self.reduce(accumulator, functions)
        self.check_limits(count if accumulator.averages else results[0].detach() > -math.inf)
        return results

    def reduce(self, accumulator: type[Accumulator], functions: Functions) -> tuple[Tensor, ...]:
        """Reduce the functions over all tiles, ``(anchors, 1)`` each."""
        parts, uniform = [], functions.uniform and accumulator is not Max
        for rows, left, right, mask, guide in self.blocks(mirrored=uniform):
            same = left is right and not self.both
            own, count = functions.for_rows(rows), rows_of(self.count, rows) if accumulator.averages else 1.0
            if (limits := mask.limits) is not None:
                limits = replace(limits, most=limits.most[rows], guide=guide, scale=own.scale, offset=own.offset)
                mask = replace(mask, limits=limits)
            if mask.strength:  # log-sum-exps have it in their functions
                mask = replace(mask, strength=mask.strength if accumulator.averages else 0.0)
            if isinstance(own, Traced) and own.guided:
                own = replace(own, guide=guide)
            mirrored = uniform and (self.both or same)
            tile_pass = TilePass(own, accumulator, mask, count, mirrored, same, self.shape(own), *self.buffers())
            parts.append(ReduceTiles.apply(tile_pass, left, None if same else right, *own.tensors))
        return tuple(map(torch.cat, zip(*parts, strict=True))) if len(parts) > 1 else parts[0]


def _of_one(f: Callable[[Tensor], Tensor]) -> Traced:
    """Return a function of the similarity alone."""
    return Traced(f, (), (), (), 1.0, 1, False)
