"""What negatives in tiles share: which kind of function gets which kind of reduction."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..hyper import Value
from .accumulators import Accumulator, LogSumExp, Max, Mean, MeanSoftplus, SumExp
from .functions import Traced
from .negatives import DenseNegatives, Negatives
from .passes import EDGES_CPU, Functions
from .quadratic import SAFE, Quadratics, is_zero
from .softplus import Softplus
from .tiles import Limits, Mask

# edges of the tiles of quadratic and of traced functions
EDGES_THREADS = (1024, 512)
EDGES = (4096, 2048)

LIMITED = "false_negatives= excludes every key; empty='zero' gives these anchors a loss of zero"
_ONES = Traced(torch.ones_like, (), (), (), 1.0, 1, False)


class TiledNegatives(Negatives):
    """Negatives whose similarities are computed tile by tile, and recomputed in the backward pass.

    Args:
        like: any of the embeddings.
        anchors: number of anchors.
        mask, tile, bound: as in :class:`counterpoint.StreamedNegatives`.
        cacheable: whether the similarities may be materialized as well, once a second reduction needs autograd.
    """

    def __init__(
        self, like: Tensor, anchors: int, mask: Mask, tile: int | None, bound: float | None, cacheable: bool
    ) -> None:
        self.like, self.anchors, self.mask, self.tile = like, anchors, mask, tile
        self._bound, self._cacheable = bound, cacheable
        self._reduced = False
        self._matrix: DenseNegatives | None = None
        self._count: Value | None = None
        self.guide: Any = None
        self.structural: Value = 0.0
        """Number of keys that ids and positions leave; subclasses set it."""

    @property
    def count(self) -> Value:
        """The number of negatives; their weights and limits are counted in a pass of its own, on first use."""
        if self._count is None and self.mask.log_weight is None and self.mask.limits is None:
            self._count = self.structural
        elif self._count is None:
            self._count = 1.0  # so that the mean below is the sum
            with torch.no_grad():
                self._count = self._sum_of_weights()
        return self._count

    @count.setter
    def count(self, value: Value) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._count = value
        if self._matrix is not None:
            self._matrix.count = value

    def _sum_of_weights(self) -> Tensor:
        return self.reduce(Mean, _ONES, True)[0]

    def excluding(self, most: Tensor, guide: Negatives | None = None, exempt: int = 0) -> Negatives:
        kept = copy(self)
        kept.mask, kept.guide = replace(self.mask, limits=Limits(most, exempt=self._first_exempt(exempt))), guide
        kept._reduced, kept._matrix, kept._count = False, None, None
        return kept

    def _first_exempt(self, exempt: int) -> int | None:
        """Return the key from which on all are exempt from limits."""
        raise NotImplementedError

    def _reduce(self, accumulator: type[Accumulator], functions: Functions, uniform: bool) -> tuple[Tensor, ...]:
        count = self.count if accumulator.averages else 1.0  # ahead of the reduction that needs it
        results = self.reduce(accumulator, functions, uniform)
        self._check_limits(count if accumulator.averages else results[0].detach() > -math.inf)
        return results

    def _check_limits(self, left: Value) -> None:
        if self.mask.limits is not None and not self.optional:
            self.check_left(left)

    def check_left(self, left: Value) -> None:
        """Raise if limits exclude all negatives of an anchor; ``left`` is positive for all others."""
        self.valid = self.valid * checks.has_negatives(left, LIMITED)

    @abstractmethod
    def reduce(self, accumulator: type[Accumulator], functions: Functions, uniform: bool) -> tuple[Tensor, ...]:
        """Reduce the functions over all tiles, ``(anchors, 1)`` each; ``uniform``: they are the same for all."""

    @abstractmethod
    def dense(self) -> DenseNegatives:
        """Return the same negatives, as a matrix."""

    def bound(self) -> float:
        """Return a bound of the absolute similarities; infinite if not known without synchronizing."""
        return math.inf if self._bound is None else self._bound

    def edge(self, functions: Functions) -> int:
        """Return the edge of the tiles."""
        traced = isinstance(functions, Traced)
        if self.tile is not None or self.like.device.type != "cpu":
            return self.tile or EDGES[traced]
        return (EDGES_CPU if torch.get_num_threads() == 1 else EDGES_THREADS)[traced]

    def logsumexp(self, f: Callable[..., Any], *per_anchor: Tensor) -> Any:
        quadratic = Quadratics.of(f, per_anchor, self.anchors, self.like.dtype)
        if quadratic is None or quadratic[0].after:
            return self._reduce_traced(LogSumExp, f, per_anchor, lambda dense: dense.logsumexp(f, *per_anchor))
        functions, constants = quadratic
        safe = functions.bounded(self.bound(), SAFE - self.mask.largest_log_weight)
        return with_constants(constants, self._reduce(SumExp if safe else LogSumExp, functions, functions.uniform))

    def mean(self, f: Callable[..., Any], *per_anchor: Tensor) -> Any:
        quadratic, softplus = Quadratics.of(f, per_anchor, self.anchors, self.like.dtype), None
        if quadratic is not None:
            functions, constants = quadratic
            if functions.after == "relu":
                return with_constants(constants, self._reduce(Mean, functions, functions.uniform))
            if functions.after == "softplus":
                softplus = Softplus.of(f, per_anchor, self.like, self.bound())
        if softplus is not None:
            return self._reduce(MeanSoftplus, softplus, True)[0]
        return self._reduce_traced(Mean, f, per_anchor, lambda dense: dense.mean(f, *per_anchor))

    def max(self) -> Tensor:
        return self._reduce_traced(Max, lambda s: s, (), lambda dense: dense.max())  # type: ignore[no-any-return]

    def min(self) -> Tensor:
        return -self._reduce_traced(Max, lambda s: -s, (), lambda dense: -dense.min())  # type: ignore[no-any-return]

    def split(self) -> Sequence[Negatives]:
        return self.materialized().split() if self._cacheable else [self]

    def materialized(self) -> Negatives:
        if not self._cacheable:
            return self
        if self._matrix is None:
            with torch.enable_grad():
                self._matrix = self._whole()
        return self._matrix

    def _whole(self) -> DenseNegatives:
        matrix = self.dense()
        self._check_limits(matrix.count)
        matrix.group = self.group
        if self._count is not None:  # it may have been set
            matrix.count = self._count
        return matrix

    def _reduce_traced(
        self,
        accumulator: type[Accumulator],
        f: Callable[..., Any],
        per_anchor: tuple[Tensor, ...],
        of_matrix: Callable[[Negatives], Any],
    ) -> Any:
        # the inner solve starts with the maximum; both must use one matrix, for equal rounding
        if self._cacheable and (self._reduced or accumulator is Max):
            return of_matrix(self.materialized())
        self._reduced = True
        functions = Traced.of(f, per_anchor, self.like, accumulator.unit)
        if functions is None:  # not a function of a tile alone
            return of_matrix(self._whole())
        results = self._reduce(accumulator, functions, functions.uniform and accumulator is not Max)
        return results if functions.is_tuple else results[0]


def with_constants(constants: Sequence[Value], reduced: Sequence[Tensor]) -> Any:
    """Add the constant terms to the results; return the only one, or a tuple."""
    results = [x if is_zero(c) else x + c for x, c in zip(reduced, constants, strict=True)]
    return results[0] if len(results) == 1 else tuple(results)
