"""Elementwise functions of a similarity that go through autograd, tile by tile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

from .negatives import elementwise
from .tiles import Scratch, Tile


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
        elementwise(results, given[0])
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
