"""The functions of a similarity that are summed over tiles, and their gradients.

* Functions that are at most quadratic (InfoNCE, DCL, HCL, Gaussian ADNCE), or such cut off at zero (the polarisation of
  distances), are found out by calling them with a :class:`Quadratic`; their tiles need neither autograd nor new memory
  (:class:`Quadratics`).
* All others go through autograd, tile by tile (:class:`Traced`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..hyper import Value
from .tiles import Scratch, Tile

LOG2E = 1 / math.log(2)

SAFE = 60.0  # sums of e^x neither overflow nor vanish for |x| up to here

# A steeper curve than this loses digits when its square is multiplied out.
CURVED = 16.0


class Quadratic:
    """``v0 + v1 s + v2 s^2``: what comes out of a function of ``s`` that is called with one.

    The derivative ``d0 + d1 s`` is kept beside the value, since ``detach`` makes it another function. Coefficients are
    floats, or tensors with their history. What a quadratic cannot be used for raises; such a function is none. A
    ``hill`` counts only where it is positive, and nothing more can be done with it.
    """

    def __init__(self, value: Sequence[Value], slope: Sequence[Value], dtype: torch.dtype, hill: bool = False) -> None:
        if len(value) > 3 or len(slope) > 2:
            raise TypeError("not quadratic")
        self.value, self.slope, self.dtype, self.hill = (*value,), (*slope,), dtype, hill

    def _made(self, value: Sequence[Value], slope: Sequence[Value], hill: bool = False) -> Quadratic:
        if self.hill:
            raise TypeError("not quadratic")
        return Quadratic(value, slope, self.dtype, hill)

    def _other(self, other: Any) -> Quadratic:
        if isinstance(other, Quadratic):
            return other._made(other.value, other.slope)
        return self._made([other.to(self.dtype) if isinstance(other, Tensor) else float(other)], [])

    def __add__(self, other: Any) -> Quadratic:
        other = self._other(other)
        return self._made(_sum(self.value, other.value), _sum(self.slope, other.slope))

    def __mul__(self, other: Any) -> Quadratic:
        other = self._other(other)
        slope = _sum(_product(self.slope, other.value), _product(self.value, other.slope))
        return self._made(_product(self.value, other.value), slope)

    def __truediv__(self, other: Any) -> Quadratic:
        return self * (1 / self._other(other).value[0] if isinstance(other, Tensor) else 1 / float(other))

    def __pow__(self, power: Any) -> Quadratic:
        if isinstance(power, Tensor) or power not in (1, 2):
            raise TypeError("not quadratic")
        return self * self if power == 2 else self

    def __neg__(self) -> Quadratic:
        return self * -1.0

    def __sub__(self, other: Any) -> Quadratic:
        return self + -self._other(other)

    def __rsub__(self, other: Any) -> Quadratic:
        return self._other(other) + -self

    __radd__, __rmul__ = __add__, __mul__

    def square(self) -> Quadratic:
        return self * self

    def relu(self) -> Quadratic:
        return self._made(self.value, self.slope, hill=True)

    def clamp(self, **limits: Any) -> Quadratic:
        if limits != {"min": 0}:
            raise TypeError("not quadratic")
        return self.relu()

    def detach(self) -> Quadratic:
        return self._made([_detached(v) for v in self.value], [])

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """``tensor - s``, ``torch.square(s)`` and the like."""
        if kwargs:
            raise TypeError("not quadratic")
        name = {"subtract": "sub", "multiply": "mul", "div": "truediv", "negative": "neg"}.get(func.__name__)
        name, swapped = (name or func.__name__).strip("_"), not isinstance(args[0], Quadratic)
        if swapped:
            name, args = {"add": "radd", "mul": "rmul", "sub": "rsub", "rsub": "sub"}[name], args[::-1]
        return getattr(args[0], name if name in ("square", "relu", "detach") else f"__{name}__")(*args[1:])


def is_zero(x: Value) -> bool:
    """Known to be zero, without a look at a tensor."""
    return not isinstance(x, Tensor) and x == 0


def _sum(a: Sequence[Value], b: Sequence[Value]) -> list[Value]:
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    return [x + shorter[k] if k < len(shorter) else x for k, x in enumerate(longer)]


def _product(a: Sequence[Value], b: Sequence[Value]) -> list[Value]:
    """Coefficients of the product of two polynomials; what is known to be zero does not raise the degree."""
    found: list[Value] = []
    for i, x in enumerate(a):
        for k, y in enumerate(b):
            if not is_zero(x) and not is_zero(y):
                found += [0.0] * (i + k + 1 - len(found))
                found[i + k] = found[i + k] + x * y
    return found


def _detached(x: Value) -> Value:
    return x.detach() if isinstance(x, Tensor) else x


def rows_of(x: Value, rows: slice) -> Value:
    return x[rows] if isinstance(x, Tensor) and x.numel() > 1 else x


def _magnitude(x: Value, unknown: float) -> float:
    """The largest absolute value; ``unknown`` where the host would have to wait for it."""
    if not isinstance(x, Tensor):
        return abs(x)
    return float(x.detach().abs().max()) if x.device.type == "cpu" else unknown


@dataclass(frozen=True)
class Quadratics:
    """Exponents that are quadratic, for one log-sum-exp each; their constant terms are added outside.

    Args:
        values: ``v1, v2`` of each.
        slopes: ``d0, d1`` of each.
        hill: the constant term of a single function, no exponent, that counts only where it is positive.
    """

    values: Sequence[Sequence[Value]]
    slopes: Sequence[Sequence[Value]]
    hill: float | None = None

    @staticmethod
    def of(
        f: Callable[..., Any], per_anchor: tuple[Tensor, ...], anchors: int, dtype: torch.dtype
    ) -> tuple[Quadratics, list[Value]] | None:
        """What ``f`` is, and its constant terms."""
        try:
            terms = f(Quadratic([0.0, 1.0], [1.0], dtype), *per_anchor)
            found: list[Quadratic] = [*terms] if isinstance(terms, tuple) else [terms]
            values = [[*q.value, 0.0, 0.0, 0.0][:3] for q in found]
            slopes = [[*map(_detached, q.slope), 0.0, 0.0][:2] for q in found]
        except Exception:  # whatever f does that a quadratic cannot; where f is at fault, its next call says so
            return None
        tensors = [x for row in [*values, *slopes] for x in row if isinstance(x, Tensor)]
        if any(x.numel() > 1 and x.shape != (anchors, 1) for x in tensors):
            return None
        if any(_magnitude(v[2], 0.0) > CURVED for v in values):
            return None
        made, constants = Quadratics([v[1:] for v in values], slopes), [v[0] for v in values]
        if not any(q.hill for q in found):
            return made, constants
        if len(found) > 1 or tensors or isinstance(constants[0], Tensor):
            return None
        return replace(made, hill=constants[0]), [0.0]

    @property
    def functions(self) -> int:
        return len(self.values)

    @property
    def uniform(self) -> bool:
        """The same for all anchors."""
        every = [x for row in [*self.values, *self.slopes] for x in row]
        return all(not isinstance(x, Tensor) or x.numel() == 1 for x in every)

    @property
    def tensors(self) -> list[Tensor]:
        """What gradients may go to beside the embeddings."""
        return [v for row in self.values for v in row if isinstance(v, Tensor)]

    def bound(self, tensors: Sequence[Tensor]) -> Quadratics:
        """With these in the place of its own."""
        rest = iter(tensors)
        return replace(self, values=[[next(rest) if isinstance(v, Tensor) else v for v in row] for row in self.values])

    def cut(self, rows: slice) -> Quadratics:
        values, slopes = ([[rows_of(v, rows) for v in row] for row in part] for part in (self.values, self.slopes))
        return replace(self, values=values, slopes=slopes)

    def bounded(self, reach: float, limit: float) -> bool:
        """Whether ``|v1 s + v2 s^2|`` is known to be at most ``limit`` wherever ``|s| <= reach``."""
        most = (sum(_magnitude(v, math.inf) * reach**n for n, v in enumerate(row, 1)) for row in self.values)
        return all(x <= limit for x in most)

    def packed(self, constants: Sequence[Value], like: Tensor) -> tuple[Tensor, Tensor]:
        """Coefficients of the values and of the slopes, highest power first, as the GPU kernels take them."""
        every = [x for row in [*self.values, *self.slopes, constants] for x in row]
        columns = max(x.numel() if isinstance(x, Tensor) else 1 for x in every)

        def pack(rows: Sequence[Sequence[Value]]) -> Tensor:
            return torch.stack([torch.stack([spread(x) for x in reversed(row)]) for row in rows])

        def spread(x: Value) -> Tensor:
            if isinstance(x, Tensor):
                return x.to(like.device, torch.float32).reshape(-1).expand(columns)
            return torch.full((columns,), x, dtype=torch.float32, device=like.device)

        return pack([(c, *row) for c, row in zip(constants, self.values, strict=True)]), pack(self.slopes)

    @property
    def scale(self) -> float:
        """What the product of embeddings is multiplied by to be the value already, if it can; else 1."""
        (v1, v2), *more = self.values
        if more or self.hill is not None or isinstance(v1, Tensor) or not is_zero(v2) or not self._constant(0):
            return 1.0
        return v1 * LOG2E

    def _constant(self, k: int) -> bool:
        """Whether the gradient needs only the slope, and that has one value per anchor."""
        return is_zero(self.slopes[k][1]) and not any(isinstance(v, Tensor) for v in self.values[k])

    def fold(self, k: int, gradient: Tensor) -> Tensor:
        """The gradient of a log-sum-exp, with the slope if that is constant."""
        slope = self.slopes[k][0] if self._constant(k) else 1.0
        return gradient * (slope.squeeze(1) if isinstance(slope, Tensor) and slope.dim() else slope)

    def values_of(self, s: Tensor, tile: Tile, scratch: Scratch, pulled: bool) -> Iterator[tuple[int, Tensor]]:
        """Each value, exponents in units of ``log 2``, to be overwritten at will."""
        if self.scale != 1.0:
            yield 0, s
            return
        unit = LOG2E if self.hill is None else 1.0
        for k, row in enumerate(self.values):
            v1, v2 = (rows_of(v, tile.rows) for v in row)
            if pulled and is_zero(self.slopes[k][0]) and is_zero(self.slopes[k][1]) and self._constant(k):
                continue
            x = scratch(f"x{k}" if pulled else "x", s.shape)
            if is_zero(v2):
                torch.mul(s, v1 * unit, out=x)
            else:
                torch.mul(s, v2 * unit, out=x).add_(v1 * unit).mul_(s)
            yield k, x if self.hill is None else x.add_(self.hill).relu_()

    def pull(
        self, s: Tensor, tile: Tile, scratch: Scratch, weigh: Callable[[int, Tensor], Tensor]
    ) -> tuple[Tensor | None, list[Tensor]]:
        """``dL/ds`` of a tile, and of the tensors; ``weigh`` turns a value into ``dL/d value``."""
        total, found = None, []
        for k, x in self.values_of(s, tile, scratch, pulled=True):
            inside = None if self.hill is None else torch.sign(x, out=scratch("inside", x.shape))
            c = weigh(k, x)
            if inside is not None:
                c.mul_(inside)
            part = c
            for v in self.values[k]:
                if any(isinstance(x, Tensor) for x in self.values[k]):
                    part = torch.mul(part, s, out=scratch("part", s.shape))  # dL/dv is c s for v1 and c s^2 for v2
                if isinstance(v, Tensor):
                    found.append(part.sum(1, keepdim=True) if v.numel() > 1 else part.sum().expand(v.shape))
            if not self._constant(k):
                d0, d1 = (rows_of(d, tile.rows) for d in self.slopes[k])
                c = c.mul_(d0 if is_zero(d1) else torch.mul(s, d1, out=scratch("slope", s.shape)).add_(d0))
            total = c if total is None else total.add_(c)
        return total, found
