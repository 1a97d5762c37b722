"""What an objective can ask of its negatives.

An objective sees ``pos``, a tensor ``(anchors, P)``, and ``neg``, a :class:`Negatives`. It asks ``neg`` for
log-sum-exps, means and maxima of functions of the similarity, never for the similarities themselves, so that the same
objective runs on a matrix (:mod:`counterpoint.engine.matrix`), in tiles and in chunks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..hyper import Value
from .distributed import ProcessGroup

# Logarithm of the largest share of a key before its own weight, which may be as small as e^-80.
HIGHEST = 80.0

# Exponents that are smaller, relative to the largest, are below rounding; their exponentials would be denormals.
LOWEST = -60.0


class Negatives(ABC):
    """Each anchor's negative similarities, which can be reduced but not read.

    The functions ``f`` are elementwise: ``f(s)`` maps a block of similarities to a tensor of its shape, or to
    a tuple of such tensors, which are then reduced in one pass. ``f`` may close over numbers and tensors without
    dimensions only. Pass what differs from anchor to anchor beside it, as ``(anchors, 1)`` tensors, which arrive as
    further arguments, sliced to the block: ``neg.mean(lambda s, m: (s - m) ** 2, m)``. Every reduction has the shape
    ``(anchors, 1)``, which broadcasts against ``pos``.

    The anchors may be only those of this process: for statistics of the whole batch use :meth:`across` and
    :meth:`batch_mean`.

    >>> import torch, counterpoint as cp
    >>> neg: cp.Negatives = cp.MatrixNegatives(torch.tensor([[0.1, 0.4, 0.7]]))
    >>> neg.logsumexp(lambda s: s / 0.5)
    tensor([[2.0152]])
    """

    engine: str = "matrix"
    group: ProcessGroup | None = None
    optional: bool = False
    """Whether an anchor may have none, because others are joined to these."""
    valid: Value = 1.0
    """Factor of the loss, ``(anchors, 1)``: NaN for anchors without negatives where no error can be raised."""
    count: Value
    """Number of negatives per anchor: a float if it is the same for all, else ``(anchors, 1)``."""

    @property
    def log_count(self) -> Value:
        return self.count.log() if isinstance(self.count, Tensor) else math.log(self.count)

    @abstractmethod
    def logsumexp(self, f: Callable[..., Any], *per_anchor: Tensor) -> Any:
        """Compute ``log sum_j exp f(s_j)``."""

    @abstractmethod
    def mean(self, f: Callable[..., Any], *per_anchor: Tensor) -> Any:
        """Compute ``mean_j f(s_j)``."""

    @abstractmethod
    def max(self) -> Tensor:
        """Return the largest similarity; its gradient is shared evenly among ties."""

    @abstractmethod
    def min(self) -> Tensor:
        """Return the smallest similarity."""

    @torch.no_grad()
    def moments(self, b: Tensor, top: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Describe the distribution ``Q ~ e^{b s}`` over an anchor's negatives, without gradient.

        Args:
            b: ``(anchors, 1)``, at least 0.
            top: the largest similarities; all results are of ``s - top``.

        Returns:
            ``log mean_j e^{b s_j}``, and mean, variance and third central moment under ``Q``, ``(anchors, 1)`` each.
        """
        total, first, second, third = self._powers(b, top)
        mean, square = first / total, second / total
        return total.log(), mean, square - mean**2, third / total - 3 * mean * square + 2 * mean**3

    def _powers(self, b: Tensor, top: Tensor) -> tuple[Tensor, ...]:
        """Compute ``mean_j e^{b x_j} x_j^n`` of ``x = s - top``, for ``n`` from 0 to 3."""

        def powers(s: Tensor, b: Tensor, m: Tensor) -> tuple[Tensor, ...]:
            x = s - m
            w = (b * x).clamp(min=LOWEST).exp()
            return w, w * x, w * x**2, w * x**3

        return self.mean(powers, b, top)  # type: ignore[no-any-return]

    def excluding(self, most: Tensor, guide: Negatives | None = None, exempt: int = 0) -> Negatives:
        """Return the negatives whose similarity is at most ``most``, ``(anchors, 1)``.

        Args:
            most: a constant for autograd.
            guide: the same anchors and keys by other embeddings, whose similarities are compared instead.
            exempt: so many keys, the last, stay.
        """
        raise TypeError(f"{type(self).__name__}: negatives of this kind cannot be excluded by their similarity.")

    def materialized(self) -> Negatives:
        """Return the same negatives as a matrix, if that is small enough."""
        return self

    def split(self) -> Sequence[Negatives]:
        """Return the negatives of blocks of anchors, if these can be reduced separately."""
        return [self]

    def across(self, x: Tensor, op: str = "sum") -> Tensor:
        """Reduce ``x`` by ``sum``, ``min`` or ``max`` over the processes that share the batch, without gradient."""
        return x if self.group is None else self.group.all_reduce(x, op)

    def batch_mean(self, x: Tensor) -> Tensor:
        """Average ``(anchors, 1)`` values over the anchors of the whole batch, without gradient."""
        return (x.mean() if self.group is None else self.group.mean(x)).detach()

    def variance(self) -> Tensor:
        """Compute the population variance, by deviations from the mean rather than by a difference of moments."""
        mean = self.mean(lambda s: s)
        return self.mean(lambda s, m: (s - m) ** 2, mean)  # type: ignore[no-any-return]

    def expectation(self, log_weight: Callable[[Tensor], Tensor], f: Callable[[Tensor], Tensor]) -> Tensor:
        """Compute ``sum_j w_j f(s_j) / sum_j w_j`` with constant weights ``w = exp(log_weight)``."""
        total = self.logsumexp(lambda s: log_weight(s.detach()))

        def weighted(s: Tensor, total: Tensor) -> Tensor:
            # that of an excluded key is unbounded, and infinity times its zero gradient would be NaN; that of a key
            # that counts less than once may exceed one
            return (log_weight(s.detach()) - total).clamp(max=HIGHEST).exp() * f(s)

        return self.mean(weighted, total) * self.count  # type: ignore[no-any-return]
