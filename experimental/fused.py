"""Negatives that Triton kernels reduce on a GPU: ``engine="fused"``."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from counterpoint.engine.accumulators import Accumulator
from counterpoint.engine.passes import Functions
from counterpoint.engine.quadratic import Quadratics, rows_of
from counterpoint.engine.streamed import StreamedNegatives
from counterpoint.engine.tiled import with_constants
from counterpoint.engine.tiles import Mask
from counterpoint.hyper import Value

DEVICES = {"cuda"}

_ONES = Quadratics([[0.0, 0.0]], [[0.0, 0.0]])


@cache
def kernels() -> Any:
    """Return :mod:`counterpoint.experimental.triton`, or None where Triton is missing or does not support the GPU."""
    if torch.version.hip is not None:
        return None
    try:
        return importlib.import_module("counterpoint.experimental.triton")
    except ImportError:
        return None


class FusedNegatives(StreamedNegatives):
    """Negatives whose similarities never leave the GPU's chip.

    Functions must be at most quadratic in the similarity, or a softplus of these; all others raise.

    Args:
        blocks, both, mask, bound: as for :class:`counterpoint.StreamedNegatives`.
        half: the type in which embeddings are multiplied, if not their own.
    """

    engine = "fused"

    def __init__(
        self,
        blocks: Sequence[tuple[Tensor, Tensor]],
        both: bool = False,
        mask: Mask | None = None,
        bound: float | None = None,
        half: torch.dtype | None = None,
    ) -> None:
        super().__init__(blocks, both, mask, None, bound)
        self._cacheable, self.half = False, half

    @property
    def multiplied(self) -> torch.dtype:
        """The type in which embeddings are multiplied.

        Keys that meet a limit up to rounding stay, whatever the engine; so embeddings that are compared with limits,
        the model's or a guide's, are multiplied in their own type.
        """
        limited = self.mask.limits is not None and self.guide is None
        return self.like.dtype if self.half is None or limited else self.half

    def logsumexp(self, f: Callable[..., Any], *per_anchor: Tensor) -> Any:
        functions, constants = self._quadratics(f, per_anchor, after=False)
        reduced = self._by_kernels(functions)
        self._check_limits(reduced[0].detach() > -math.inf)
        return with_constants(constants, reduced)

    def mean(self, f: Callable[..., Any], *per_anchor: Tensor) -> Any:
        # sums are computed with their constants: squares must stay whole
        functions, constants = self._quadratics(f, per_anchor, after=True)
        self._check_limits(self.count)
        sums = self._by_kernels(functions, [functions.inside] if functions.after else constants)
        return with_constants([0.0] * functions.number, [x / self.count for x in sums])

    def reduce(self, accumulator: type[Accumulator], functions: Functions, uniform: bool) -> tuple[Tensor, ...]:
        raise self._unsupported()

    def _sum_of_weights(self) -> Tensor:
        return self._by_kernels(_ONES, [1.0])[0]

    def _quadratics(self, f: Callable[..., Any], per_anchor: tuple[Tensor, ...], after: bool) -> Any:
        quadratic = Quadratics.of(f, per_anchor, self.anchors, self.like.dtype)
        if quadratic is None or quadratic[0].number > 2 or (quadratic[0].after and not after):
            raise self._unsupported()
        return quadratic

    def _by_kernels(self, functions: Quadratics, summed: Sequence[Value] = ()) -> Sequence[Tensor]:
        """Compute log-sum-exps or, given the constant terms of functions to be ``summed``, sums."""
        parts, triton, device = [], kernels(), self.like.device
        if device.type not in DEVICES or not (triton and triton.fits(device, self.like.shape[1], self.multiplied)):
            raise self._unsupported()
        for rows, anchors, keys, mask in self._directions():
            constants = [rows_of(c, rows) for c in summed] or [0.0] * functions.number
            reduction = triton.Reduction(mask, bool(summed), functions.after)
            value, slope = packed(functions.for_rows(rows), constants, anchors)
            parts.append(triton.reduce(anchors.to(self.multiplied), keys.to(self.multiplied), value, slope, reduction))
        return torch.cat(parts, 1).unsqueeze(2).unbind()

    def _directions(self) -> Iterator[tuple[slice, Tensor, Tensor, Mask]]:
        """Yield anchors and keys, one way after the other: the rows of the result, both, and which keys count."""
        start = 0
        for (left, right), guide in zip(self.blocks, self.guides(), strict=True):
            ways = [(left, right, self.mask, guide)]
            if self.both:
                ways.append((right, left, self.mask.transposed(), guide and (guide[1], guide[0])))
            for anchors, keys, mask, compared in ways:
                rows = slice(start, start + len(anchors))
                limits = mask.limits and mask.limits.for_block(rows, compared, 1.0)
                yield rows, anchors, keys, replace(mask, limits=limits)
                start = rows.stop

    def _unsupported(self) -> ValueError:
        return ValueError(
            "engine='fused': GPU kernels need a GPU that Triton supports, embeddings that fit on it (at most 1024 "
            "wide), and functions that are at most quadratic in the similarity, or a softplus of these; got "
            f"{self.like.dtype} embeddings of width {self.like.shape[1]} on {self.like.device.type!r}: use "
            "engine='tiles' or 'auto'."
        )


def packed(functions: Quadratics, constants: Sequence[Value], like: Tensor) -> tuple[Tensor, Tensor]:
    """Pack the coefficients of the values and of the slopes, highest power first, as the kernels take them."""
    coefficients = [x for row in [*functions.values, *functions.slopes, constants] for x in row]
    columns = max(x.numel() if isinstance(x, Tensor) else 1 for x in coefficients)

    def pack(rows: Sequence[Sequence[Value]]) -> Tensor:
        return torch.stack([torch.stack([spread(x) for x in reversed(row)]) for row in rows])

    def spread(x: Value) -> Tensor:
        if isinstance(x, Tensor):
            return x.to(like.device, torch.float32).reshape(-1).expand(columns)
        return torch.full((columns,), x, dtype=torch.float32, device=like.device)

    return pack([(c, *row) for c, row in zip(constants, functions.values, strict=True)]), pack(functions.slopes)
