"""Elementwise functions of a similarity that autograd differentiates, tile by tile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

from .. import checks
from ..values import Values, host_values, with_host_values
from .mask import Tile, Workspace, by_guide


@dataclass(frozen=True)
class Traced:
    """Any elementwise functions, differentiated by autograd within a tile; the methods are those of ``Quadratics``.

    The backward pass calls ``f`` again, when a schedule is at its next step: with the tensors of the forward pass.
    """

    f: Callable[..., Any]
    per_anchor: tuple[Tensor, ...]  # further arguments of f, (anchors, 1) each
    captured: tuple[Tensor, ...]  # that f closes over and that require a gradient, in the order of their use
    constants: tuple[Tensor, ...]  # those that require none
    unit: float  # factor of the results
    number: int  # of results
    is_tuple: bool
    host: Values = field(default_factory=host_values)  # its scale and bias, which the call installed in its thread
    guided: bool = False  # whether the second argument of f is the similarity by a guide
    guide: tuple[Tensor, Tensor] | None = None  # its embeddings of a block's anchors and keys
    scale: float = 1.0
    offset: float = 0.0

    @staticmethod
    def of(
        f: Callable[..., Any], per_anchor: tuple[Tensor, ...], like: Tensor, unit: float, guided: bool = False
    ) -> Traced | None:
        """Trace ``f``; None if it closes over tensors with dimensions, or hides its closure from torch."""
        pair = [like.new_zeros(1, 1)] * (1 + guided)
        args = [x.detach().requires_grad_() for x in (*pair, *(p[:1] for p in per_anchor))]
        with torch.enable_grad(), _Captured(args) as trace:
            output = f(*args)
        checks.require_elementwise(output, args[0])
        is_tuple = isinstance(output, tuple)
        results = output if is_tuple else (output,)
        hidden = any(x.requires_grad and id(x) not in trace.known for x in results)
        if hidden or any(x.numel() > 1 or x.dim() > 1 for x in trace.captured):
            return None
        captured, constants = tuple(trace.captured), tuple(trace.constants)
        return Traced(f, per_anchor, captured, constants, unit, len(results), is_tuple, guided=guided)

    @property
    def uniform(self) -> bool:
        return not self.per_anchor

    @property
    def tensors(self) -> list[Tensor]:
        return [*self.per_anchor, *self.captured]

    def with_tensors(self, tensors: Sequence[Tensor]) -> Traced:
        n = len(self.per_anchor)
        return replace(self, per_anchor=tuple(tensors[:n]), captured=tuple(tensors[n:]))

    def for_rows(self, rows: slice) -> Traced:
        return replace(self, per_anchor=tuple(p[rows] for p in self.per_anchor))

    def fold_slope(self, k: int, gradient: Tensor) -> Tensor:
        return gradient

    def evaluate(self, s: Tensor, tile: Tile, workspace: Workspace) -> Iterator[tuple[int, Tensor]]:
        output = self.f(s, *self._by_guide(tile, workspace), *(p[tile.rows] for p in self.per_anchor))
        for k, x in enumerate(output if isinstance(output, tuple) else (output,)):
            yield k, x * self.unit

    def backpropagate(
        self, s: Tensor, tile: Tile, workspace: Workspace, value_gradient: Callable[[int, Tensor], Tensor]
    ) -> tuple[Tensor | None, list[Tensor]]:
        # 1. leaves for this tile
        s, *rest = (x.detach().requires_grad_() for x in (s, *(p[tile.rows] for p in self.per_anchor), *self.captured))
        args = (s, *self._by_guide(tile, workspace), *rest[: len(self.per_anchor)])
        # 2. values, with the leaves, and the constants of the forward pass, in place of what f closes over
        closed = _Captured(args, (rest[len(self.per_anchor) :], self.constants))
        replaced = closed if self.captured or self.constants else nullcontext()
        with torch.enable_grad(), with_host_values(self.host), replaced:
            output = self.f(*args)
        results = output if isinstance(output, tuple) else (output,)
        # 3. gradients
        pairs = [(x, value_gradient(k, x.detach() * self.unit)) for k, x in enumerate(results) if x.requires_grad]
        if not pairs:
            return None, []
        outputs, weights = zip(*pairs, strict=True)
        gradients = torch.autograd.grad(outputs, (s, *rest), weights, allow_unused=True)
        ds, *others = (torch.zeros_like(x) if g is None else g for x, g in zip((s, *rest), gradients, strict=True))
        return ds, others

    def _by_guide(self, tile: Tile, workspace: Workspace) -> tuple[Tensor, ...]:
        return () if self.guide is None else (by_guide(self.guide, tile, workspace),)


class _Captured(TorchFunctionMode):
    """Records the tensors that a function closes over, or replaces them: those with a gradient, and the others."""

    def __init__(
        self, args: Sequence[Tensor], replacements: tuple[Sequence[Tensor], Sequence[Tensor]] | None = None
    ) -> None:
        super().__init__()
        self.captured: list[Tensor] = []
        self.constants: list[Tensor] = []
        self.replacements = replacements
        self.known = {id(x): x for x in args}  # references, so that no id is used twice

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not torch.is_grad_enabled():  # the inside of a torch.autograd.Function, whose result is a captured tensor
            return func(*args, **(kwargs or {}))
        args, kwargs = tree_map(self._record, (args, kwargs or {}))
        result = func(*args, **kwargs)
        self.known.update((id(x), x) for x in tree_flatten(result)[0])
        return result

    def _record(self, x: Any) -> Any:
        if not isinstance(x, Tensor) or id(x) in self.known:
            return x
        recorded = self.captured if x.requires_grad else self.constants
        place = next((k for k, other in enumerate(recorded) if other is x), len(recorded))
        if place == len(recorded):
            recorded.append(x)
        return x if self.replacements is None else self.replacements[not x.requires_grad][place]
