"""Negatives that are never held: similarities are made tile by tile, reduced, and made again for the gradient.

Memory is ``O(anchors x width + tile^2)`` instead of ``O(anchors x keys)``, and a tile stays in the cache while it is
worked on. Where the keys are anchors too, a tile is made once and reduced along its rows and its columns.

* *Functions* that are at most quadratic in the similarity (InfoNCE, DCL, HCL, Gaussian ADNCE) are found out by calling
  them with a :class:`Quadratic`; their tiles need neither autograd nor new memory. All others go through autograd,
  tile by tile (:class:`Traced`).
* *Log-sum-exps* are sums of ``2^x`` as they stand where ``|x|`` is known to be small (a cosine and a temperature of at
  least 1/60). Else every row carries its running maximum, and what lies ``2^-58`` below that counts as ``2^-58``.
  Gradients of anchors that are ``1e-16`` of the largest are dropped. Both are below rounding, and keep out numbers
  that CPUs need a hundred times longer for.

Gradients are exact, and sums are made in an order that does not depend on the number of threads. They cannot be
differentiated again. On a GPU, quadratics go to :mod:`counterpoint.fused`.
"""

from __future__ import annotations

import importlib
import itertools
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

from counterpoint.hyper import Value
from counterpoint.scores import DenseNegatives, Negatives

LOG2E = 1 / math.log(2)
SAFE = 60.0  # sums of e^x neither overflow nor vanish for |x| up to here
FLOOR = -58.0
NEGLIGIBLE = 1e-16
# A steeper curve than this loses digits when its square is multiplied out.
CURVED = 16.0
# Where autograd is needed anyway, and more than once, up to so many pairs are kept: a matrix of 64 MB.
KEPT = 2**24
# Edges of tiles, of quadratics and where autograd holds several: 1 MB of float32 fits a core's cache; an accelerator
# wants more at once.
EDGES_CPU, EDGES = (512, 256), (4096, 2048)
BLOCK = 1024  # rows that are normalised together
ONCE = (
    "streamed negatives have no second derivative (create_graph=True): call the objective with tile=0, which keeps "
    "the matrix of similarities."
)
FUSED = {"cuda"}  # devices that have kernels in which no similarity leaves the chip


class Tile(NamedTuple):
    """A rectangle of similarities; ``columns`` is where its keys stand among the anchors, if they are some."""

    rows: slice
    keys: slice
    columns: slice | None
    diagonal: bool = False


# ---- which keys count --------------------------------------------------------------------------


@dataclass(frozen=True)
class Mask:
    """Which keys are no negatives of an anchor, and which count more than once.

    Args:
        period: key ``j`` is no negative of anchor ``i`` where ``j - i`` is a multiple of it (its own sample).
        ids: of anchors and of keys; replaces that rule: equal ids are no negatives.
        shared: the rule holds for the keys before this one, by default for all.
        own: from this key on, those whose ``j - i`` is a multiple of ``period`` count ``exp(own_weight)`` times.
        own_weight: see there.
    """

    period: int | None = None
    ids: tuple[Tensor, Tensor] | None = None
    shared: int | None = None
    own: int = 0
    own_weight: float = 0.0

    @staticmethod
    def of(
        samples: int,
        views: int,
        hard: int = 0,
        weight: float = 0.0,
        ids: tuple[Tensor, Tensor] | None = None,
        hard_ids: Tensor | None = None,
        own: bool = True,
    ) -> Mask:
        """For keys that are views of the same samples, one view after the other.

        Args:
            samples: how many there are.
            views: how many views, of which an anchor's own ones are no negatives.
            hard: how many hard negatives of each sample follow, arranged like views.
            weight: added to the logits of an anchor's own hard negatives.
            ids: of the anchors and of the samples; equal ones are no negatives.
            hard_ids: of the hard negatives, sample by sample.
            own: whether the anchors are of these samples, which begin with theirs.
        """
        found = Mask(samples if own else None)
        if hard:
            inside = samples * views
            found = replace(found, shared=None if hard_ids is not None else inside, own=inside, own_weight=weight)
        if ids is not None:
            mine, known = ids[0], ids[1].repeat(views)
            if hard:
                further = known.new_zeros(samples, hard) if hard_ids is None else hard_ids.view(samples, hard)
                known = torch.cat([known, further.T.flatten()])
            found = replace(found, ids=(mine, known))
        return found

    def turned(self) -> Mask:
        """The mask of keys as anchors and anchors as keys."""
        return self if self.ids is None else replace(self, ids=(self.ids[1], self.ids[0]))

    def drop(self, x: Tensor, tile: Tile, value: float) -> Tensor:
        """Overwrites what is no negative."""
        inside = x if self.shared is None else x[:, : max(0, self.shared - tile.keys.start)]
        if self.ids is not None:
            theirs = self.ids[1][tile.keys][: inside.shape[1]]
            inside.masked_fill_(self.ids[0][tile.rows].unsqueeze(1) == theirs, value)
        else:
            for diagonal in self._diagonals(inside, tile.keys.start - tile.rows.start):
                diagonal.fill_(value)
        return x

    def weigh(self, x: Tensor, tile: Tile, unit: float | None) -> Tensor:
        """Counts an anchor's own keys as often as they shall: ``x`` is a summand, or a logarithm in this unit."""
        if self.own_weight:
            first = max(0, self.own - tile.keys.start)
            for diagonal in self._diagonals(x[:, first:], tile.keys.start + first - tile.rows.start):
                if unit is None:
                    diagonal.mul_(math.exp(self.own_weight))
                else:
                    diagonal.add_(self.own_weight * unit)
        return x

    def _diagonals(self, x: Tensor, ahead: int) -> Iterator[Tensor]:
        """The diagonals on which ``j - i`` is a multiple of the period; the first key is ``ahead`` of the first row."""
        if self.period is not None and x.numel():
            low, high = 1 - x.shape[0] + ahead, x.shape[1] - 1 + ahead
            for step in range(-(-low // self.period), high // self.period + 1):
                yield x.diagonal(step * self.period - ahead)

    def keyed(self, rows: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
        """Numbers of the anchors and of the keys: a key with an anchor's own is none of its negatives."""
        shared = keys if self.shared is None else self.shared
        if self.ids is not None:
            mine, theirs = (ids.long() for ids in self.ids)
        elif self.period is not None:
            mine, theirs = (torch.arange(n, device=device) % self.period for n in (rows, keys))
        else:
            return None
        if shared < keys:
            nobody = (mine.min() - 1).expand(keys - shared)
            theirs = torch.cat([theirs[:shared], nobody])
        return mine, theirs

    def dense(self, matrix: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """``skip``, ``drop`` and ``log_weight`` of :class:`DenseNegatives`."""
        skip = drop = weight = None
        (rows, keys), device = matrix.shape, matrix.device
        shared = keys if self.shared is None else self.shared
        if self.ids is not None:
            drop = self.ids[0].unsqueeze(1) == self.ids[1]
            drop[:, shared:] = False
        elif self.period is not None:
            first = torch.arange(rows, device=device).unsqueeze(1) % self.period
            skip = first + torch.arange(0, shared, self.period, device=device)
        if self.own_weight:
            whole = Tile(slice(0, rows), slice(0, keys), None)
            weight = self.weigh(torch.zeros_like(matrix), whole, 1.0)
        return skip, drop, weight

    def count(self, rows: int, keys: int, dtype: torch.dtype) -> Value:
        """How many negatives an anchor has, ``(anchors, 1)`` where they differ."""
        shared = keys if self.shared is None else self.shared
        own = (keys - self.own) // self.period if self.period and self.own_weight else 0
        more = math.expm1(self.own_weight)
        if self.ids is None:
            return float(keys - (shared // self.period if self.period else 0)) + more * own
        mine, theirs = self.ids[0].contiguous(), self.ids[1][:shared].sort().values
        count = keys - torch.searchsorted(theirs, mine, right=True) + torch.searchsorted(theirs, mine)
        counted = torch.full_like(count, own)
        if own and self.period and shared > self.own:
            counted = (self.ids[1][self.own :].view(-1, self.period)[:, :rows] != mine).sum(0)
        return (count.to(dtype) + more * counted.to(dtype)).unsqueeze(1)


# ---- functions ---------------------------------------------------------------------------------


class Quadratic:
    """``v0 + v1 s + v2 s^2``: what comes out of a function of ``s`` that is called with one.

    The derivative ``d0 + d1 s`` is kept beside the value, since ``detach`` makes it another function. Coefficients are
    floats, or tensors with their history. What a quadratic cannot be used for raises; such a function is none.
    """

    def __init__(self, value: Sequence[Value], slope: Sequence[Value], dtype: torch.dtype) -> None:
        if len(value) > 3 or len(slope) > 2:
            raise TypeError("not quadratic")
        self.value, self.slope, self.dtype = (*value,), (*slope,), dtype

    def _made(self, value: Sequence[Value], slope: Sequence[Value]) -> Quadratic:
        return Quadratic(value, slope, self.dtype)

    def _other(self, other: Any) -> Quadratic:
        if isinstance(other, Quadratic):
            return other
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
        return getattr(args[0], name if name in ("square", "detach") else f"__{name}__")(*args[1:])


def _zero(x: Value) -> bool:
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
            if not _zero(x) and not _zero(y):
                found += [0.0] * (i + k + 1 - len(found))
                found[i + k] = found[i + k] + x * y
    return found


def _detached(x: Value) -> Value:
    return x.detach() if isinstance(x, Tensor) else x


def _rows(x: Value, rows: slice) -> Value:
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
    """

    values: Sequence[Sequence[Value]]
    slopes: Sequence[Sequence[Value]]

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
        return Quadratics([v[1:] for v in values], slopes), [v[0] for v in values]

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
        return Quadratics(*([[_rows(v, rows) for v in row] for row in part] for part in (self.values, self.slopes)))

    def bounded(self, reach: float) -> bool:
        """Whether ``|v1 s + v2 s^2|`` is known to be safe wherever ``|s| <= reach``."""
        return all(sum(_magnitude(v, math.inf) * reach**n for n, v in enumerate(row, 1)) <= SAFE for row in self.values)

    def packed(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Coefficients of the values and of the slopes, highest power first: what :mod:`counterpoint.fused` takes."""
        every = [x for row in [*self.values, *self.slopes] for x in row]
        columns = max(x.numel() if isinstance(x, Tensor) else 1 for x in every)

        def pack(rows: Sequence[Sequence[Value]]) -> Tensor:
            return torch.stack([torch.stack([spread(x) for x in reversed(row)]) for row in rows])

        def spread(x: Value) -> Tensor:
            if isinstance(x, Tensor):
                return x.to(torch.float32).reshape(-1).expand(columns)
            return torch.full((columns,), x, dtype=torch.float32, device=like.device)

        return pack([(0.0, *row) for row in self.values]), pack(self.slopes)

    @property
    def scale(self) -> float:
        """What the product of embeddings is multiplied by to be the value already, if it can; else 1."""
        (v1, v2), *more = self.values
        return 1.0 if more or isinstance(v1, Tensor) or not _zero(v2) or not self._constant(0) else v1 * LOG2E

    def _constant(self, k: int) -> bool:
        """Whether the gradient needs only the slope, and that has one value per anchor."""
        return _zero(self.slopes[k][1]) and not any(isinstance(v, Tensor) for v in self.values[k])

    def fold(self, k: int, gradient: Tensor) -> Tensor:
        """The gradient of a log-sum-exp, with the slope if that is constant."""
        slope = self.slopes[k][0] if self._constant(k) else 1.0
        return gradient * (slope.squeeze(1) if isinstance(slope, Tensor) and slope.dim() else slope)

    def values_of(self, s: Tensor, tile: Tile, scratch: Scratch, pulled: bool) -> Iterator[tuple[int, Tensor]]:
        """Each value, in units of ``log 2``, to be overwritten at will."""
        if self.scale != 1.0:
            yield 0, s
            return
        for k, row in enumerate(self.values):
            v1, v2 = (_rows(v, tile.rows) for v in row)
            if pulled and _zero(self.slopes[k][0]) and _zero(self.slopes[k][1]) and self._constant(k):
                continue
            x = scratch(f"x{k}" if pulled else "x", s.shape)
            if _zero(v2):
                yield k, torch.mul(s, v1 * LOG2E, out=x)
            else:
                yield k, torch.mul(s, v2 * LOG2E, out=x).add_(v1 * LOG2E).mul_(s)

    def pull(
        self, s: Tensor, tile: Tile, scratch: Scratch, weigh: Callable[[int, Tensor], Tensor]
    ) -> tuple[Tensor | None, list[Tensor]]:
        """``dL/ds`` of a tile, and of the tensors; ``weigh`` turns a value into ``dL/d value``."""
        total, found = None, []
        for k, x in self.values_of(s, tile, scratch, pulled=True):
            c = weigh(k, x)
            part = c
            for v in self.values[k]:
                if any(isinstance(x, Tensor) for x in self.values[k]):
                    part = torch.mul(part, s, out=scratch("part", s.shape))  # dL/dv is c s for v1 and c s^2 for v2
                if isinstance(v, Tensor):
                    found.append(part.sum(1, keepdim=True) if v.numel() > 1 else part.sum().expand(v.shape))
            if not self._constant(k):
                d0, d1 = (_rows(d, tile.rows) for d in self.slopes[k])
                c = c.mul_(d0 if _zero(d1) else torch.mul(s, d1, out=scratch("slope", s.shape)).add_(d0))
            total = c if total is None else total.add_(c)
        return total, found


@dataclass(frozen=True)
class Traced:
    """Any elementwise functions, differentiated by autograd within a tile.

    Args:
        f: the function, of one result or a tuple of them.
        per_anchor: its further arguments.
        captured: the tensors that it closes over and that require a gradient, in the order of their use.
        unit: what the results are multiplied by.
        functions: how many results.
        several: they are a tuple.
    """

    f: Callable[..., Any]
    per_anchor: tuple[Tensor, ...]
    captured: tuple[Tensor, ...]
    unit: float
    functions: int
    several: bool

    @staticmethod
    def of(f: Callable[..., Any], per_anchor: tuple[Tensor, ...], like: Tensor, unit: float) -> Traced | None:
        """None if ``f`` closes over more than numbers, or hides what it closes over from torch."""
        given = [x.detach().requires_grad_() for x in (like.new_zeros(1, 1), *(p[:1] for p in per_anchor))]
        with torch.enable_grad(), _Captured(given) as seen:
            results = f(*given)
        several = isinstance(results, tuple)
        found = results if several else (results,)
        hidden = any(x.requires_grad and id(x) not in seen.known for x in found)
        if hidden or any(x.numel() > 1 or x.dim() > 1 for x in seen.captured):
            return None
        return Traced(f, per_anchor, tuple(seen.captured), unit, len(found), several)

    @property
    def uniform(self) -> bool:
        return not self.per_anchor

    @property
    def tensors(self) -> list[Tensor]:
        return [*self.per_anchor, *self.captured]

    def bound(self, tensors: Sequence[Tensor]) -> Traced:
        n = len(self.per_anchor)
        return replace(self, per_anchor=tuple(tensors[:n]), captured=tuple(tensors[n:]))

    def cut(self, rows: slice) -> Traced:
        return replace(self, per_anchor=tuple(p[rows] for p in self.per_anchor))

    @property
    def scale(self) -> float:
        return 1.0

    def fold(self, k: int, gradient: Tensor) -> Tensor:
        return gradient

    def values_of(self, s: Tensor, tile: Tile, scratch: Scratch, pulled: bool) -> Iterator[tuple[int, Tensor]]:
        results = self.f(s, *(p[tile.rows] for p in self.per_anchor))
        for k, x in enumerate(results if isinstance(results, tuple) else (results,)):
            yield k, x * self.unit

    def pull(
        self, s: Tensor, tile: Tile, scratch: Scratch, weigh: Callable[[int, Tensor], Tensor]
    ) -> tuple[Tensor | None, list[Tensor]]:
        s, *rest = (x.detach().requires_grad_() for x in (s, *(p[tile.rows] for p in self.per_anchor), *self.captured))
        given = (s, *rest[: len(self.per_anchor)])
        with torch.enable_grad(), _Captured(given, rest[len(self.per_anchor) :]) if self.captured else nullcontext():
            results = self.f(*given)
        results = results if isinstance(results, tuple) else (results,)
        pulls = [(x, weigh(k, x.detach() * self.unit)) for k, x in enumerate(results) if x.requires_grad]
        if not pulls:
            return None, []
        outputs, weights = zip(*pulls, strict=True)
        found = torch.autograd.grad(outputs, (s, *rest), weights, allow_unused=True)
        total, *others = (torch.zeros_like(x) if g is None else g for x, g in zip((s, *rest), found, strict=True))
        return total, others


class _Captured(TorchFunctionMode):
    """Notes the tensors that a function closes over and that require a gradient, or puts others in their place."""

    def __init__(self, given: Sequence[Tensor], instead: Sequence[Tensor] | None = None) -> None:
        super().__init__()
        self.captured: list[Tensor] = []
        self.instead = instead
        self.known = {id(x): x for x in given}  # holds them, so that no id is used twice

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not torch.is_grad_enabled():  # the inside of a torch.autograd.Function, whose result is a captured tensor
            return func(*args, **(kwargs or {}))
        args, kwargs = tree_map(self._see, (args, kwargs or {}))
        result = func(*args, **kwargs)
        self.known.update((id(x), x) for x in tree_flatten(result)[0])
        return result

    def _see(self, x: Any) -> Any:
        if not isinstance(x, Tensor) or not x.requires_grad or id(x) in self.known:
            return x
        place = next((k for k, other in enumerate(self.captured) if other is x), len(self.captured))
        if place == len(self.captured):
            self.captured.append(x)
        return x if self.instead is None else self.instead[place]


# ---- reductions --------------------------------------------------------------------------------


class Scratch(threading.local):
    """Memory for tiles, one set per thread."""

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.held: dict[str, Tensor] = {}

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        size = math.prod(shape)
        if name not in self.held or self.held[name].numel() < size:
            self.held[name] = self.like.new_empty(size)
        return self.held[name][:size].view(shape)


class Reduction:
    """What is done with the values of tiles: a row of ``state`` per function, a column per anchor."""

    unit = 1.0

    def __init__(self, mask: Mask, count: Value, state: Sequence[Tensor]) -> None:
        self.mask, self.count, self.state = mask, count, state

    @classmethod
    def start(cls, functions: int, anchors: int, like: Tensor) -> list[Tensor]:
        raise NotImplementedError

    def add(self, k: int, x: Tensor, tile: Tile, scratch: Scratch) -> None:
        """Takes in the ``k``-th value of a tile."""
        raise NotImplementedError

    def result(self) -> Tensor:
        return self.state[0]

    def prepare(self, gradients: Tensor) -> Tensor:
        """Gradients per function and anchor, with the factors that are the same in all tiles."""
        return gradients

    def weigh(self, k: int, x: Tensor, gradient: Tensor, tile: Tile, scratch: Scratch) -> Tensor:
        """``dL/d value`` of a tile, in the place of the value."""
        raise NotImplementedError

    def _outer(self, w: Tensor, tile: Tile, out: Tensor) -> Tensor:
        """What a pair gets as its row's and, where its key is an anchor too, as its column's."""
        rows = w[tile.rows].unsqueeze(1)
        return rows if tile.columns is None else torch.add(rows, w[tile.columns], out=out)

    @staticmethod
    def _axes(tile: Tile) -> list[tuple[int, slice]]:
        """The dimensions to reduce, and whom the results belong to."""
        return [(1, tile.rows)] + ([(0, tile.columns)] if tile.columns is not None and not tile.diagonal else [])


class Mean(Reduction):
    """``mean_j x_j``."""

    @classmethod
    def start(cls, functions: int, anchors: int, like: Tensor) -> list[Tensor]:
        return [like.new_zeros(functions, anchors)]

    def add(self, k: int, x: Tensor, tile: Tile, scratch: Scratch) -> None:
        x = self.mask.drop(self.mask.weigh(x, tile, None), tile, 0.0)
        for dim, mine in self._axes(tile):
            self.state[0][k, mine] += x.sum(dim)

    def result(self) -> Tensor:
        return self.prepare(self.state[0])

    def prepare(self, gradients: Tensor) -> Tensor:
        return gradients / (self.count.squeeze(1) if isinstance(self.count, Tensor) else self.count)

    def weigh(self, k: int, x: Tensor, gradient: Tensor, tile: Tile, scratch: Scratch) -> Tensor:
        w = self._outer(gradient, tile, x)
        x = w if w is x else x.copy_(w)
        return self.mask.drop(self.mask.weigh(x, tile, None), tile, 0.0)


class SumExp(Mean):
    """``log sum_j 2^x_j`` for values that are known to be small."""

    unit = LOG2E

    def add(self, k: int, x: Tensor, tile: Tile, scratch: Scratch) -> None:
        super().add(k, x.exp2_(), tile, scratch)

    def result(self) -> Tensor:
        return self.state[0].log()

    def prepare(self, gradients: Tensor) -> Tensor:
        return gradients / self.state[0].clamp(min=torch.finfo(gradients.dtype).tiny)

    def weigh(self, k: int, x: Tensor, gradient: Tensor, tile: Tile, scratch: Scratch) -> Tensor:
        x.exp2_().mul_(self._outer(gradient, tile, scratch("outer", x.shape)))
        return self.mask.drop(self.mask.weigh(x, tile, None), tile, 0.0)


class LogSumExp(Reduction):
    """``log sum_j 2^x_j`` for any values: the largest so far, and the sum relative to it."""

    unit = LOG2E

    @classmethod
    def start(cls, functions: int, anchors: int, like: Tensor) -> list[Tensor]:
        lowest = torch.finfo(like.dtype).min / 4
        return [like.new_full((functions, anchors), lowest), like.new_zeros(functions, anchors)]

    def add(self, k: int, x: Tensor, tile: Tile, scratch: Scratch) -> None:
        top, total = self.state[0][k], self.state[1][k]
        x = self.mask.drop(self.mask.weigh(x, tile, self.unit), tile, torch.finfo(x.dtype).min / 4)
        for dim, mine in self._axes(tile):
            new = torch.maximum(top[mine], x.amax(dim))
            share = torch.sub(x, new.unsqueeze(dim), out=scratch("share", x.shape)).clamp_(min=FLOOR).exp2_()
            total[mine] *= (top[mine] - new).exp2_()
            total[mine] += self.mask.drop(share, tile, 0.0).sum(dim)
            top[mine] = new

    def result(self) -> Tensor:
        found = self.state[0] + self.state[1].log2()
        found = found.masked_fill(self.state[0] <= torch.finfo(found.dtype).min / 4, -math.inf)
        self.state = [found]
        return found / LOG2E

    def weigh(self, k: int, x: Tensor, gradient: Tensor, tile: Tile, scratch: Scratch) -> Tensor:
        total, g, x = self.state[0][k], gradient, self.mask.weigh(x, tile, self.unit)
        theirs = None
        if tile.columns is not None:
            theirs = torch.sub(x, total[tile.columns], out=scratch("share", x.shape))
            theirs.clamp_(min=FLOOR).exp2_().mul_(g[tile.columns])
        x.sub_(total[tile.rows].unsqueeze(1)).clamp_(min=FLOOR).exp2_().mul_(g[tile.rows].unsqueeze(1))
        return self.mask.drop(x if theirs is None else x.add_(theirs), tile, 0.0)


class Max(Reduction):
    """The largest value; ties share its gradient."""

    @classmethod
    def start(cls, functions: int, anchors: int, like: Tensor) -> list[Tensor]:
        return [like.new_full((functions, anchors), -math.inf), like.new_zeros(functions, anchors)]

    def add(self, k: int, x: Tensor, tile: Tile, scratch: Scratch) -> None:
        top, ties = self.state[0][k], self.state[1][k]
        x = self.mask.drop(x, tile, -math.inf)
        new = torch.maximum(top[tile.rows], x.amax(1))
        ties[tile.rows] *= top[tile.rows] == new
        ties[tile.rows] += (x == new.unsqueeze(1)).sum(1)
        top[tile.rows] = new

    def prepare(self, gradients: Tensor) -> Tensor:
        return gradients / self.state[1].clamp(min=1)

    def weigh(self, k: int, x: Tensor, gradient: Tensor, tile: Tile, scratch: Scratch) -> Tensor:
        x = self.mask.drop(x, tile, -math.inf)
        return x.eq_(self.state[0][k][tile.rows].unsqueeze(1)).mul_(gradient[tile.rows].unsqueeze(1))


# ---- passes over the tiles -----------------------------------------------------------------------


@dataclass(frozen=True)
class Pass:
    """One reduction of one block of anchors and keys.

    Args:
        terms: the functions.
        reduction: what is done with them.
        mask: which keys count.
        count: how many, for means.
        mirrored: the keys are anchors too.
        same: anchors and keys are one tensor.
        edge: length of a tile's sides.
    """

    terms: Quadratics | Traced
    reduction: type[Reduction]
    mask: Mask
    count: Value
    mirrored: bool
    same: bool
    edge: int

    def rounds(self, rows: int, keys: int) -> Iterator[list[list[Tile]]]:
        """All tiles, in rounds whose members touch different anchors and keys, so that threads can share a round."""
        height, width = (-(-n // self.edge) for n in (rows, keys))
        steps = max(height, width)
        for step in range(steps):
            if not self.same:
                pairs = [[(i, (i + step) % steps)] for i in range(height) if (i + step) % steps < width]
            else:  # tiles (i, j) and (j, i) touch the same anchors: one tile if mirrored, else one after the other
                found = [(i, (step - i) % steps) for i in range(height) if i <= (step - i) % steps]
                pairs = [[(i, j)] if self.mirrored or i == j else [(i, j), (j, i)] for i, j in found]
            yield [[self._tile(i, j, rows, keys) for i, j in some] for some in pairs]

    def _tile(self, i: int, j: int, rows: int, keys: int) -> Tile:
        mine = slice(i * self.edge, min(rows, (i + 1) * self.edge))
        theirs = slice(j * self.edge, min(keys, (j + 1) * self.edge))
        if not self.mirrored:
            return Tile(mine, theirs, None)
        ahead = 0 if self.same else rows
        return Tile(mine, theirs, slice(theirs.start + ahead, theirs.stop + ahead), self.same and i == j)

    def each(self, work: Callable[[int, Tile], None], rows: int, keys: int, device: torch.device) -> None:
        """Does ``work`` for all tiles, which are numbered."""
        threads = torch.get_num_threads() if device.type == "cpu" else 1
        # fewer blocks than that leave threads idle; then each operation is parallel in itself
        run = _workers(threads, os.getpid()).map if threads > 1 and rows // self.edge >= 2 * threads else map

        def some(tiles: list[tuple[int, Tile]]) -> None:
            # matters of the thread; backward may be called inside autocast, which would round products
            with torch.no_grad(), torch.autocast(device.type, enabled=False):
                for number, tile in tiles:
                    work(number, tile)

        number = itertools.count()
        for members in self.rounds(rows, keys):
            for _ in run(some, [[(next(number), tile) for tile in tiles] for tiles in members]):
                pass

    def tiles(self, rows: int, keys: int) -> int:
        return -(-rows // self.edge) * -(-keys // self.edge)

    def product(self, left: Tensor, right: Tensor, tile: Tile, scratch: Scratch, new: bool = False) -> Tensor:
        """Similarities of a tile, in scratch memory unless they shall stay."""
        a, b = left[tile.rows], right[tile.keys]
        shape = a.shape[0], b.shape[0]
        out = a.new_empty(shape) if new else scratch("s", shape)
        if self.terms.scale != 1.0:
            a = torch.mul(a, self.terms.scale, out=scratch("scaled", a.shape))
        return torch.mm(a, b.t(), out=out)


@cache
def _workers(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads of this process in which torch itself uses one thread each."""
    ready = threading.Barrier(threads + 1)

    def begin() -> None:
        torch.set_num_threads(1)
        ready.wait()

    pool = ThreadPoolExecutor(threads, "counterpoint", begin)
    for _ in range(threads):
        pool.submit(int)
    ready.wait()
    torch.set_num_threads(threads)  # what begin() has set counts for new threads as well
    return pool


class Reduce(torch.autograd.Function):
    """A :class:`Pass` as a function of embeddings, and of the tensors that its terms hold."""

    @staticmethod
    def forward(ctx: Any, job: Pass, left: Tensor, other: Tensor | None, *tensors: Tensor) -> Any:
        right, terms = left if other is None else other, job.terms.bound(tensors)
        anchors = len(left) + (len(right) if job.mirrored and not job.same else 0)
        scratch, kept = Scratch(left), {}
        # The first tile, and as many as take no more than the embeddings, are kept for the gradient: their products or,
        # if that is all that is needed of them, what is summed.
        size = left.numel() + (0 if job.same else right.numel())
        room = max(1, size // job.edge**2) if any(ctx.needs_input_grad) else 0
        summed = job.reduction is SumExp and terms.scale != 1.0
        reduction = job.reduction(job.mask, job.count, job.reduction.start(terms.functions, anchors, left))

        def work(number: int, tile: Tile) -> None:
            s = job.product(left, right, tile, scratch, number < room)
            if number < room:
                kept[number] = s if summed or terms.scale == 1.0 else s.clone()
            for k, x in terms.values_of(s, tile, scratch, pulled=False):
                reduction.add(k, x, tile, scratch)

        job.each(work, left.shape[0], right.shape[0], left.device)
        result = reduction.result()
        ctx.job, ctx.summed = job, summed
        ctx.set_materialize_grads(False)
        ctx.kept = len(kept)
        ctx.save_for_backward(left, other, *(kept[n] for n in range(len(kept))), *tensors, *reduction.state)
        return tuple(row.unsqueeze(1) for row in result.unbind())

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(ONCE)
        job: Pass = ctx.job
        left, other, *rest = ctx.saved_tensors
        right = left if other is None else other
        kept, rest = rest[: ctx.kept], rest[ctx.kept :]
        tensors, state = rest[: len(job.terms.tensors)], rest[len(job.terms.tensors) :]
        terms, scratch, reduction = job.terms.bound(tensors), Scratch(left), job.reduction(job.mask, job.count, state)
        gradients, largest = _limited(given)
        folded = [terms.fold(k, g) for k, g in enumerate(reduction.prepare(gradients).unbind())]

        to_left, to_right = (None, None)
        if ctx.needs_input_grad[1]:
            to_left = torch.zeros_like(left)
        if job.same:
            to_right = to_left
        elif ctx.needs_input_grad[2]:
            to_right = torch.zeros_like(right)
        to_tensors = [torch.zeros_like(t) for t in tensors]
        # what all tiles add to is added at the end, in their order, so that threads change nothing
        sums = [t.new_zeros(job.tiles(left.shape[0], right.shape[0])) for t in tensors]

        def pulled(number: int, tile: Tile) -> tuple[Tensor | None, list[Tensor]]:
            if number >= len(kept):
                s = job.product(left, right, tile, scratch)
            else:
                x = kept[number]
                s = scratch("s", x.shape)
                if ctx.summed:
                    w = reduction._outer(folded[0], tile, scratch("outer", x.shape))
                    return torch.mul(x, w, out=s), []
                s.copy_(x)
            return terms.pull(s, tile, scratch, lambda k, x: reduction.weigh(k, x, folded[k], tile, scratch))

        def work(number: int, tile: Tile) -> None:
            total, found = pulled(number, tile)
            if total is not None and to_left is not None:
                to_left[tile.rows].addmm_(total, right[tile.keys])
            if total is not None and to_right is not None and not tile.diagonal:
                to_right[tile.keys].addmm_(total.t(), left[tile.rows])
            for mine, shares, part in zip(to_tensors, sums, found, strict=False):
                if mine.numel() > 1:
                    mine[tile.rows] += part
                else:  # a mirrored tile on the diagonal has every pair twice
                    shares[number] = part.squeeze() / 2 if tile.diagonal else part.squeeze()

        job.each(work, left.shape[0], right.shape[0], left.device)
        for mine, shares in zip(to_tensors, sums, strict=True):
            if mine.numel() == 1:
                mine += shares.sum()
        for x in {id(x): x for x in (to_left, to_right, *to_tensors) if x is not None}.values():
            x *= largest
        return None, to_left, to_right if other is not None else None, *to_tensors


def _limited(given: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
    """Gradients per function and anchor, relative to the largest and without the negligible; and the largest."""
    like = next(g for g in given if g is not None)
    gradients = torch.stack([torch.zeros_like(like) if g is None else g for g in given]).squeeze(2)
    largest = gradients.abs().amax().clamp(min=torch.finfo(gradients.dtype).tiny)
    return torch.nn.functional.hardshrink(gradients / largest, NEGLIGIBLE), largest


# ---- the negatives -------------------------------------------------------------------------------


def _with(constants: Sequence[Value], reduced: Sequence[Tensor]) -> Any:
    """Results with their constant terms; the only one, or a tuple."""
    found = [x if _zero(c) else x + c for x, c in zip(reduced, constants, strict=True)]
    return found[0] if len(found) == 1 else tuple(found)


@cache
def _kernels() -> Any:
    """:mod:`counterpoint.fused`, or None where Triton is not installed or is not for this kind of GPU."""
    if torch.version.hip is not None:
        return None
    try:
        return importlib.import_module("counterpoint.fused")
    except ImportError:
        return None


class StreamedNegatives(Negatives):
    """Negatives of which only the embeddings are kept.

    Args:
        blocks: anchors ``(n, width)`` and their keys ``(N, width)``; several of equal shape follow each other. Where
            both are the same tensor, each pair is looked at once.
        both: the keys of each block are anchors as well, with the block's anchors as their keys, and come after them.
        mask: which keys are no negatives.
        tile: edge of the tiles. By default what suits the device; then a GPU uses :mod:`counterpoint.fused` where that
            can be, and a small matrix may be kept as well, once a second reduction needs autograd.
        reach: no similarity is larger in absolute value; by default it is looked up, on the CPU.
        half: the type in which the fused kernels multiply the embeddings, if not in their own.
    """

    def __init__(
        self,
        blocks: Sequence[tuple[Tensor, Tensor]],
        both: bool = False,
        mask: Mask | None = None,
        tile: int | None = None,
        reach: float | None = None,
        half: torch.dtype | None = None,
    ) -> None:
        self.blocks, self.both, self.mask = blocks, both, mask or Mask()
        left, right = blocks[0]
        self.anchors = len(blocks) * (left.shape[0] + both * right.shape[0])
        self.tile, self.half = tile, half
        self._reach = reach
        self.pairs = self.anchors * right.shape[0]
        self._keepable = tile is None and self.pairs <= KEPT
        self._visited = False
        self._kept: DenseNegatives | None = None
        counts = [self.mask.count(left.shape[0], right.shape[0], left.dtype)]
        if both:
            counts.append(self.mask.turned().count(right.shape[0], left.shape[0], left.dtype))
        each = [c for c in counts if isinstance(c, Tensor)]
        self._count = torch.cat(each).repeat(len(blocks), 1) if each else counts[0]

    @property
    def count(self) -> Value:
        return self._count

    def reach(self) -> float:
        """A bound of the absolute similarities; infinite where the host would have to wait for it."""
        if self._reach is None and self.blocks[0][0].device.type == "cpu":
            lengths = [[torch.linalg.vector_norm(x.detach(), dim=1).amax() for x in block] for block in self.blocks]
            self._reach = max(float(a * b) for a, b in lengths)
        return math.inf if self._reach is None else self._reach

    def logsumexp(self, f: Callable[..., Any], *per_anchor: Tensor) -> Any:
        quadratic = Quadratics.of(f, per_anchor, self.anchors, self.blocks[0][0].dtype)
        if quadratic is None:
            return self._traced(LogSumExp, f, per_anchor, lambda dense: dense.logsumexp(f, *per_anchor))
        terms, constants = quadratic
        if self._fusable(terms):
            return _with(constants, self._fused(terms, summed=False))
        safe = terms.bounded(self.reach()) and abs(self.mask.own_weight) <= SAFE
        return _with(constants, self._reduce(SumExp if safe else LogSumExp, terms, terms.uniform))

    def mean(self, f: Callable[..., Any], *per_anchor: Tensor) -> Any:
        if self.blocks[0][0].device.type in FUSED:
            quadratic = Quadratics.of(f, per_anchor, self.anchors, self.blocks[0][0].dtype)
            if quadratic is not None and self._fusable(quadratic[0]):
                terms, constants = quadratic
                return _with(constants, [x / self.count for x in self._fused(terms, summed=True)])
        return self._traced(Mean, f, per_anchor, lambda dense: dense.mean(f, *per_anchor))

    def max(self) -> Tensor:
        return self._traced(Max, lambda s: s, (), lambda dense: dense.max())  # type: ignore[no-any-return]

    def min(self) -> Tensor:
        return -self._traced(Max, lambda s: -s, (), lambda dense: -dense.min())  # type: ignore[no-any-return]

    def _traced(
        self,
        reduction: type[Reduction],
        f: Callable[..., Any],
        per_anchor: tuple[Tensor, ...],
        otherwise: Callable[[DenseNegatives], Any],
    ) -> Any:
        # a maximum announces an inner solve; besides, what is compared with it has to be rounded as it was
        if self._keepable and (self._visited or reduction is Max):
            if self._kept is None:
                with torch.enable_grad():
                    self._kept = self.dense()
            return otherwise(self._kept)
        self._visited = True
        terms = Traced.of(f, per_anchor, self.blocks[0][0], reduction.unit)
        if terms is None:  # no tile can stand for the whole
            return otherwise(self.dense())
        found = self._reduce(reduction, terms, terms.uniform and reduction is not Max)
        return found if terms.several else found[0]

    def _fusable(self, terms: Quadratics) -> bool:
        left = self.blocks[0][0]
        if left.device.type not in FUSED or self.tile is not None or self.mask.own_weight:
            return False
        kernels = _kernels()
        return kernels is not None and kernels.takes(left, terms.functions)

    def _fused(self, terms: Quadratics, summed: bool) -> Sequence[Tensor]:
        """Log-sum-exps or sums by :mod:`counterpoint.fused`."""
        parts, start = [], 0
        for left, right in self.blocks:
            turns = [(left, right, self.mask), (right, left, self.mask.turned())]
            for a, b, mask in turns[: 1 + self.both]:
                rows = slice(start, start + len(a))
                numbers = mask.keyed(len(a), len(b), a.device)
                kept = a, b
                if self.half is not None:
                    kept = a.to(self.half), b.to(self.half)
                parts.append(_kernels().reduce(*kept, *terms.cut(rows).packed(a), numbers, summed))
                start = rows.stop
        return torch.cat(parts, 1).unsqueeze(2).unbind()

    def edge(self, terms: Quadratics | Traced) -> int:
        """The length of a tile's sides."""
        edges = EDGES_CPU if self.blocks[0][0].device.type == "cpu" else EDGES
        return self.tile or edges[isinstance(terms, Traced)]

    def _reduce(self, reduction: type[Reduction], terms: Quadratics | Traced, uniform: bool) -> tuple[Tensor, ...]:
        parts, start, edge = [], 0, self.edge(terms)
        for left, right in self.blocks:
            turns = [(left, right, self.mask)]
            if self.both and not uniform:
                turns.append((right, left, self.mask.turned()))
            for a, b, mask in turns:
                same = a is b
                stop = start + len(a) + (len(b) if self.both and uniform else 0)
                rows = slice(start, stop)
                mine, count = terms.cut(rows), self.count
                job = Pass(mine, reduction, mask, _rows(count, rows), uniform and (self.both or same), same, edge)
                parts.append(Reduce.apply(job, a, None if same else b, *mine.tensors))
                start = stop
        return tuple(torch.cat(p) if len(p) > 1 else p[0] for p in zip(*parts, strict=True))

    def dense(self) -> DenseNegatives:
        """The same negatives, kept as a matrix."""
        matrices, masks = [], []
        for left, right in self.blocks:
            matrix = left @ right.T
            matrices += [matrix, matrix.T] if self.both else [matrix]
            masks += [self.mask, self.mask.turned()] if self.both else [self.mask]
        found = zip(*(mask.dense(matrix) for mask, matrix in zip(masks, matrices, strict=True)), strict=True)
        skip, drop, weight = (None if x[0] is None else torch.cat(x) if len(x) > 1 else x[0] for x in found)
        return DenseNegatives(torch.cat(matrices) if len(matrices) > 1 else matrices[0], skip, drop, weight)


# ---- embeddings ----------------------------------------------------------------------------------


class Unit(torch.autograd.Function):
    """:func:`counterpoint.pairing.unit` of several views, under one another, in blocks and with little to remember."""

    @staticmethod
    def forward(ctx: Any, eps: float, *views: Tensor) -> Tensor:
        z = torch.cat(views)
        z = z.to(torch.promote_types(z.dtype, torch.float32))
        length = torch.linalg.vector_norm(z, dim=1, keepdim=True)
        scale = torch.where(length > eps, 1 / length.clamp(min=eps), torch.zeros_like(length))
        ctx.save_for_backward(z.mul_(scale), scale)
        ctx.dtype, ctx.each = views[0].dtype, views[0].shape[0]
        return z

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        z, scale = ctx.saved_tensors
        out = torch.empty_like(z, dtype=ctx.dtype)
        for part, g, mine, by in zip(*(x.split(BLOCK) for x in (out, gradient, z, scale)), strict=True):
            along = (g * mine).sum(1, keepdim=True)
            part.copy_(torch.addcmul(g, mine, along, value=-1).mul_(by))
        return None, *out.split(ctx.each)


class Others(torch.autograd.Function):
    """``(m n, m - 1)`` similarities of each of ``m`` views of ``n`` samples to the sample's other views."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, m: int) -> Tensor:
        ctx.save_for_backward(z)
        ctx.m = m
        views = z.split(len(z) // m)
        found = z.new_empty(m, views[0].shape[0], m - 1)
        for a, b in itertools.combinations(range(m), 2):
            pairs = zip(views[a].split(BLOCK), views[b].split(BLOCK), strict=True)
            found[a, :, b - 1] = found[b, :, a] = torch.cat([(x * y).sum(1) for x, y in pairs])
        return found.flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (z,) = ctx.saved_tensors
        m, out = ctx.m, torch.zeros_like(z)
        views, gradients, outs = (x.split(len(z) // m) for x in (z, gradient, out))
        for a, b in itertools.combinations(range(m), 2):
            weight = (gradients[a][:, b - 1] + gradients[b][:, a]).unsqueeze(1)
            outs[a].addcmul_(views[b], weight)
            outs[b].addcmul_(views[a], weight)
        return out, None
