"""``log(1 + e^{v0 + v1 s})`` of similarities, the loss of each pair of SigLIP, with its gradient in closed form.

One exponential per pair serves both: it is stored, its ``log1p`` is the value, and ``e / (1 + e)`` the derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..values import Value
from .mask import LOG2E, Tile, Workspace
from .quadratic import SAFE, Quadratics, is_zero


@dataclass(frozen=True)
class Softplus:
    """A softplus of a linear function, the same for all anchors; the methods are those of ``Quadratics``.

    Args:
        slope, intercept: ``v1`` and ``v0``, numbers or tensors with one element.
    """

    slope: Value
    intercept: Value

    number = 1
    uniform = True

    @staticmethod
    def of(function: Quadratics, device: torch.device, bound: float) -> Softplus | None:
        """Return the softplus of a linear function; None of another one, or if exponentials may overflow or vanish."""
        ((slope, curvature),), ((own, bend),), intercept = function.values, function.slopes, function.inside
        if device.type != "cpu" or not (is_zero(curvature) and is_zero(bend)):  # reading a tensor would synchronize
            return None
        if any(isinstance(v, Tensor) and v.numel() > 1 for v in (slope, own, intercept)):
            return None
        if _number(slope) != _number(own):  # partly detached
            return None
        found = Softplus(slope, intercept)
        return found if found.scale != 0.0 and abs(_number(slope)) * bound + abs(_number(intercept)) <= SAFE else None

    @property
    def tensors(self) -> list[Tensor]:
        return [v for v in (self.slope, self.intercept) if isinstance(v, Tensor)]

    def with_tensors(self, tensors: Sequence[Tensor]) -> Softplus:
        rest = iter(tensors)
        slope, intercept = (next(rest) if isinstance(v, Tensor) else v for v in (self.slope, self.intercept))
        return replace(self, slope=slope, intercept=intercept)

    def for_rows(self, rows: slice) -> Softplus:
        return self

    @property
    def scale(self) -> float:
        return _number(self.slope) * LOG2E

    @property
    def offset(self) -> float:
        """The constant that the product adds to the similarities times ``scale``."""
        return _number(self.intercept) * LOG2E

    def fold_slope(self, k: int, gradient: Tensor) -> Tensor:
        return gradient * _number(self.slope)

    def evaluate(self, s: Tensor, tile: Tile, workspace: Workspace) -> Iterator[tuple[int, Tensor]]:
        yield 0, s

    def backpropagate(
        self, s: Tensor, tile: Tile, workspace: Workspace, value_gradient: Callable[[int, Tensor], Tensor]
    ) -> tuple[Tensor | None, list[Tensor]]:
        return value_gradient(0, s), []

    def add_gradients(self, d_tensors: Sequence[Tensor], total: Tensor, product: Tensor) -> None:
        """Add the gradients of ``tensors``, given the sums over all pairs of ``dL/ds`` and of ``s dL/ds``."""
        sums = [x for x, v in ((product, self.slope), (total, self.intercept)) if isinstance(v, Tensor)]
        for d, x in zip(d_tensors, sums, strict=True):
            d += (x / _number(self.slope)).reshape(d.shape)


def _number(x: Value) -> float:
    return float(x.detach() if isinstance(x, Tensor) else x)
