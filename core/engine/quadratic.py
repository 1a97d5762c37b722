"""Functions that are at most quadratic in the similarity, with their gradients in closed form.

InfoNCE, DCL, HCL, Gaussian ADNCE, the polarization of distances, which is cut off at zero, and SigLIP's softplus are
recognized by calling their function with a :class:`Quadratic`. Their tiles need neither autograd nor new memory
(:class:`Quadratics`). All other functions go through autograd (:class:`counterpoint.engine.functions.Traced`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..values import Value
from .mask import LOG2E, Tile, Workspace

SAFE = 60.0  # sums of e^x neither overflow nor vanish for |x| of at most this

# Largest coefficient of s^2: with a larger one, multiplying a square out loses digits.
MAX_CURVATURE = 16.0


class Quadratic:
    """``v0 + v1 s + v2 s^2``: the result of a quadratic function of ``s`` that is called with one.

    The derivative ``d0 + d1 s`` is stored beside the value, since ``detach`` makes it another function. Coefficients
    are floats, or tensors with their autograd history. Other operations raise, so that a function that uses them is not
    recognized. ``after`` is ``relu`` or ``softplus`` if that is the last operation.
    """

    def __init__(self, value: Sequence[Value], slope: Sequence[Value], dtype: torch.dtype, after: str = "") -> None:
        if len(value) > 3 or len(slope) > 2:
            raise TypeError("not quadratic")
        self.value: tuple[Value, ...] = (*value,)
        self.slope: tuple[Value, ...] = (*slope,)
        self.dtype: torch.dtype = dtype
        self.after: str = after

    def _with(self, value: Sequence[Value], slope: Sequence[Value], after: str = "") -> Quadratic:
        if self.after:
            raise TypeError("not quadratic")
        return Quadratic(value, slope, self.dtype, after)

    def _operand(self, other: Any) -> Quadratic:
        if isinstance(other, Quadratic):
            return other._with(other.value, other.slope)
        return self._with([other.to(self.dtype) if isinstance(other, Tensor) else float(other)], [])

    def __add__(self, other: Any) -> Quadratic:
        other = self._operand(other)
        return self._with(_sum(self.value, other.value), _sum(self.slope, other.slope))

    def __mul__(self, other: Any) -> Quadratic:
        if isinstance(other, float):
            return self._with([v * other for v in self.value], [d * other for d in self.slope])
        other = self._operand(other)
        slope = _sum(_product(self.slope, other.value), _product(self.value, other.slope))
        return self._with(_product(self.value, other.value), slope)

    def __truediv__(self, other: Any) -> Quadratic:
        return self * (1 / self._operand(other).value[0] if isinstance(other, Tensor) else 1 / float(other))

    def __pow__(self, power: Any) -> Quadratic:
        if isinstance(power, Tensor) or power not in (1, 2):
            raise TypeError("not quadratic")
        return self * self if power == 2 else self

    def __neg__(self) -> Quadratic:
        return self * -1.0

    def __sub__(self, other: Any) -> Quadratic:
        return self + -self._operand(other)

    def __rsub__(self, other: Any) -> Quadratic:
        return self._operand(other) + -self

    __radd__, __rmul__ = __add__, __mul__

    def square(self) -> Quadratic:
        return self * self

    def relu(self) -> Quadratic:
        return self._with(self.value, self.slope, "relu")

    def softplus(self, beta: float = 1.0, threshold: float = 20.0) -> Quadratic:
        if beta != 1.0 or threshold < 37.0:  # a lower threshold shows in float64
            raise TypeError("not quadratic")
        return self._with(self.value, self.slope, "softplus")

    def clamp(self, **limits: Any) -> Quadratic:
        if limits != {"min": 0}:
            raise TypeError("not quadratic")
        return self.relu()

    def detach(self) -> Quadratic:
        return self._with([_detached(v) for v in self.value], [])

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Handle ``tensor - s``, ``torch.square(s)`` and the like."""
        if func is torch.nn.functional.softplus:
            return args[0].softplus(*args[1:], **(kwargs or {}))
        if kwargs:
            raise TypeError("not quadratic")
        name = {"subtract": "sub", "multiply": "mul", "div": "truediv", "negative": "neg"}.get(func.__name__)
        name, swapped = (name or func.__name__).strip("_"), not isinstance(args[0], Quadratic)
        if swapped:
            name, args = {"add": "radd", "mul": "rmul", "sub": "rsub", "rsub": "sub"}[name], args[::-1]
        return getattr(args[0], name if name in ("square", "relu", "detach") else f"__{name}__")(*args[1:])


def is_zero(x: Value) -> bool:
    """Return whether ``x`` is known to be zero without synchronizing."""
    return not isinstance(x, Tensor) and x == 0


def _sum(a: Sequence[Value], b: Sequence[Value]) -> list[Value]:
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    return [x + shorter[k] if k < len(shorter) else x for k, x in enumerate(longer)]


def _product(a: Sequence[Value], b: Sequence[Value]) -> list[Value]:
    """Return the coefficients of the product of two polynomials; a known zero does not raise the degree."""
    product: list[Value] = []
    for i, x in enumerate(a):
        for k, y in enumerate(b):
            if not is_zero(x) and not is_zero(y):
                product += [0.0] * (i + k + 1 - len(product))
                product[i + k] = product[i + k] + x * y
    return product


def _detached(x: Value) -> Value:
    return x.detach() if isinstance(x, Tensor) else x


def rows_of(x: Value, rows: slice) -> Value:
    """Select the rows of a tensor ``(anchors, 1)``; return other values as they are."""
    return x[rows] if isinstance(x, Tensor) and x.numel() > 1 else x


def _magnitude(x: Value, unknown: float) -> float:
    """Return the largest absolute value, or ``unknown`` where reading it would synchronize."""
    if not isinstance(x, Tensor):
        return abs(x)
    return float(x.detach().abs().max()) if x.device.type == "cpu" else unknown


@dataclass(frozen=True)
class Quadratics:
    """Quadratic functions, each the exponent of a log-sum-exp; their constant terms are added afterwards.

    Or a single one whose ``relu`` or ``softplus`` is summed, such as ``max(0, v0 + v1 s + v2 s^2)``. A softplus is for
    the GPU kernels; in tiles, it is a :class:`Softplus`.
    """

    values: Sequence[Sequence[Value]]  # v1, v2 of each
    slopes: Sequence[Sequence[Value]]  # d0, d1 of each
    after: str = ""  # relu or softplus
    inside: Value = 0.0  # v0 of that; a number for relu
    offset: float = 0.0  # that the product adds to the similarities times scale

    @staticmethod
    def of(
        f: Callable[..., Any], per_anchor: tuple[Tensor, ...], anchors: int, dtype: torch.dtype
    ) -> tuple[Quadratics, list[Value]] | None:
        """Trace ``f``; return its quadratic functions and their constant terms, or None if they are not quadratic."""
        try:
            output = f(Quadratic([0.0, 1.0], [1.0], dtype), *per_anchor)
            results: list[Quadratic] = [*output] if isinstance(output, tuple) else [output]
            rows = [(*[*q.value, 0.0, 0.0, 0.0][:3], *[*map(_detached, q.slope), 0.0, 0.0][:2]) for q in results]
        except Exception:  # whatever f does that a quadratic cannot; an error of f itself is raised by its next call
            return None
        tensors = [x for row in rows for x in row if isinstance(x, Tensor)]
        if any(x.numel() > 1 and x.shape != (anchors, 1) for x in tensors):
            return None
        if any(_magnitude(row[2], 0.0) > MAX_CURVATURE for row in rows):
            return None
        functions = Quadratics([row[1:3] for row in rows], [row[3:] for row in rows])
        constants = [row[0] for row in rows]
        after = {q.after for q in results}
        if after == {""}:
            return functions, constants
        if len(results) > 1 or ("relu" in after and (tensors or isinstance(constants[0], Tensor))):
            return None
        return replace(functions, after=results[0].after, inside=constants[0]), [0.0]

    @property
    def number(self) -> int:
        return len(self.values)

    @property
    def uniform(self) -> bool:
        """Whether the functions are the same for all anchors."""
        coefficients = [x for row in [*self.values, *self.slopes] for x in row]
        return all(not isinstance(x, Tensor) or x.numel() == 1 for x in coefficients)

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors, beside the embeddings, that may get a gradient."""
        return [v for row in (*self.values, [self.inside]) for v in row if isinstance(v, Tensor)]

    def with_tensors(self, tensors: Sequence[Tensor]) -> Quadratics:
        """Return the same functions of other ``tensors``."""
        rest = iter(tensors)
        values = [[next(rest) if isinstance(v, Tensor) else v for v in row] for row in self.values]
        return replace(self, values=values, inside=next(rest, self.inside))

    def for_rows(self, rows: slice) -> Quadratics:
        """Return the functions of some of the anchors."""
        values, slopes = ([[rows_of(v, rows) for v in row] for row in part] for part in (self.values, self.slopes))
        return replace(self, values=values, slopes=slopes)

    def bounded(self, bound: float, limit: float) -> bool:
        """Return whether ``|v1 s + v2 s^2|`` is known to be at most ``limit`` wherever ``|s| <= bound``."""
        of = [(_magnitude(v1, math.inf), _magnitude(v2, math.inf)) for v1, v2 in self.values]
        return all(v1 * bound + v2 * bound**2 <= limit for v1, v2 in of)

    @property
    def scale(self) -> float:
        """Factor of the similarities that makes them the values; 1 if there is none."""
        (v1, v2), *more = self.values
        if more or self.after or isinstance(v1, Tensor) or not is_zero(v2) or not self._constant(0):
            return 1.0
        return v1 * LOG2E

    def _constant(self, k: int) -> bool:
        """Return whether the gradient needs only the slope, which has one value per anchor."""
        return is_zero(self.slopes[k][1]) and not any(isinstance(v, Tensor) for v in self.values[k])

    @property
    def fixed(self) -> list[tuple[float, float, float]] | None:
        """Return ``v1, v2, d0`` of each function if these are numbers, and its slope is constant."""
        rows: list[Any] = [(*value, *slope) for value, slope in zip(self.values, self.slopes, strict=True)]
        numbers = not any(isinstance(x, Tensor) for row in rows for x in row)
        constant = numbers and not self.after and all(d1 == 0 for *_, d1 in rows)
        return [(v1, v2, d0) for v1, v2, d0, _ in rows] if constant else None

    def fold_slope(self, k: int, gradient: Tensor) -> Tensor:
        """Multiply the gradient of result ``k`` by its derivative where that is constant."""
        slope = self.slopes[k][0] if self._constant(k) else 1.0
        return gradient * (slope.squeeze(1) if isinstance(slope, Tensor) and slope.dim() else slope)

    def evaluate(
        self, s: Tensor, tile: Tile, workspace: Workspace, backward: bool = False
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield the number and the values of each function, exponents in units of ``log 2``; you may overwrite them.

        In the backward pass, each function has a buffer of its own, and functions without gradient are left out.
        """
        if self.scale != 1.0:
            yield 0, s
            return
        unit = 1.0 if self.after else LOG2E
        for k, row in enumerate(self.values):
            v1, v2 = (rows_of(v, tile.rows) for v in row)
            if backward and is_zero(self.slopes[k][0]) and is_zero(self.slopes[k][1]) and self._constant(k):
                continue
            x = workspace(f"x{k}" if backward else "x", s.shape)
            if isinstance(v2, Tensor):
                torch.mul(s, v2 * unit, out=x).add_(v1 * unit).mul_(s)
            else:
                torch.mul(s, v1 * unit, out=x)
                x = x.addcmul_(s, s, value=v2 * unit) if v2 else x
            yield k, x.add_(self.inside).relu_() if self.after else x

    def backpropagate(
        self, s: Tensor, tile: Tile, workspace: Workspace, value_gradient: Callable[[int, Tensor], Tensor]
    ) -> tuple[Tensor | None, list[Tensor]]:
        """Compute ``dL/ds`` of a tile, and the gradients of ``tensors``.

        ``value_gradient`` maps the number of a function and its values, as in :meth:`evaluate`, to ``dL/d f(s)``.
        """
        ds, d_tensors = None, []
        for k, x in self.evaluate(s, tile, workspace, backward=True):
            # 1. dL/d value, zero where relu is
            positive = torch.sign(x, out=workspace("positive", x.shape)) if self.after else None
            dx = value_gradient(k, x)
            if positive is not None:
                dx.mul_(positive)
            # 2. dL/dv, the sum of dx s for v1 and of dx s^2 for v2
            part = dx
            for v in self.values[k]:
                if any(isinstance(x, Tensor) for x in self.values[k]):
                    part = torch.mul(part, s, out=workspace("part", s.shape))
                if isinstance(v, Tensor):
                    d_tensors.append(part.sum(1, keepdim=True) if v.numel() > 1 else part.sum().expand(v.shape))
            # 3. dL/ds, with the slope d0 + d1 s
            if not self._constant(k):
                d0, d1 = (rows_of(d, tile.rows) for d in self.slopes[k])
                dx = dx.mul_(d0 if is_zero(d1) else torch.mul(s, d1, out=workspace("slope", s.shape)).add_(d0))
            ds = dx if ds is None else ds.add_(dx)
        return ds, d_tensors


class Softplus(Quadratics):
    """``log(1 + e^{v0 + v1 s})``, the loss of each pair of SigLIP, with numbers that are the same for all anchors.

    One exponential per pair serves both passes: it is stored, its ``log1p`` is the value, and ``e / (1 + e)`` the
    derivative.
    """

    @staticmethod
    def of_linear(function: Quadratics, device: torch.device, bound: float) -> Softplus | None:
        """Return the softplus of a linear function; None of another one, or if exponentials may overflow or vanish."""
        ((v1, v2),), ((d0, d1),), v0 = function.values, function.slopes, function.inside
        if device.type != "cpu" or not (is_zero(v2) and is_zero(d1)):  # reading a tensor would synchronize
            return None
        if any(isinstance(v, Tensor) and v.numel() > 1 for v in (v1, d0, v0)):
            return None
        slope, intercept = float(_detached(v1)), float(_detached(v0))
        partly_detached = slope != float(_detached(d0))
        if partly_detached or slope == 0.0 or abs(slope) * bound + abs(intercept) > SAFE:
            return None
        return Softplus(function.values, function.slopes, "softplus", v0, intercept * LOG2E)

    @property
    def slope(self) -> float:
        return float(_detached(self.values[0][0]))

    @property
    def scale(self) -> float:
        return self.slope * LOG2E

    def fold_slope(self, k: int, gradient: Tensor) -> Tensor:
        return gradient * self.slope

    def evaluate(
        self, s: Tensor, tile: Tile, workspace: Workspace, backward: bool = False
    ) -> Iterator[tuple[int, Tensor]]:
        yield 0, s

    def backpropagate(
        self, s: Tensor, tile: Tile, workspace: Workspace, value_gradient: Callable[[int, Tensor], Tensor]
    ) -> tuple[Tensor | None, list[Tensor]]:
        return value_gradient(0, s), []

    def add_gradients(self, d_tensors: Sequence[Tensor], total: Tensor, product: Tensor) -> None:
        """Add the gradients of ``tensors``, given the sums over all pairs of ``dL/ds`` and of ``s dL/ds``."""
        sums = [x for x, v in ((product, self.values[0][0]), (total, self.inside)) if isinstance(v, Tensor)]
        for d, x in zip(d_tensors, sums, strict=True):
            d += (x / self.slope).reshape(d.shape)


def with_constants(constants: Sequence[Value], reduced: Sequence[Tensor]) -> Any:
    """Add the constant terms to the results; return the only one, or a tuple."""
    results = [x if is_zero(c) else x + c for x, c in zip(reduced, constants, strict=True)]
    return results[0] if len(results) == 1 else tuple(results)
