"""Negatives that Triton kernels reduce on a GPU: ``engine="fused"``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from counterpoint.engine.mask import Mask
from counterpoint.engine.passes import Accumulator, Functions
from counterpoint.engine.quadratic import Quadratics, rows_of, with_constants
from counterpoint.engine.tiles import TileNegatives
from counterpoint.values import Value

try:
    from . import triton
except ImportError:  # Triton is missing, or does not support this machine
    triton = None  # type: ignore[assignment]

DEVICES = {"cuda"}


class FusedNegatives(TileNegatives):
    """Negatives whose similarities never leave the GPU's chip.

    Log-sum-exps of functions that are at most quadratic in the similarity, and means of the softplus of one; all others
    raise, and so do ``false_negatives=`` and hard negatives that do not count as all others.

    Args:
        pairs, both, mask, bound: as for :class:`counterpoint.TileNegatives`.
        half: the type in which embeddings are multiplied, if not their own.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[Tensor, Tensor]],
        both: bool = False,
        mask: Mask | None = None,
        bound: float | None = None,
        half: torch.dtype | None = None,
    ) -> None:
        super().__init__(pairs, both, mask, None, bound, "fused", True)
        self.multiplied = self.like.dtype if half is None else half

    def logsumexp(self, f: Callable[..., Any], *per_anchor: Tensor, guided: bool = False) -> Any:
        if guided:
            raise self._unsupported()
        functions, constants = self._quadratics(self.weighted(f), per_anchor, "")
        return with_constants(constants, self._by_kernels(functions, [0.0] * functions.number))

    def mean(self, f: Callable[..., Any], *per_anchor: Tensor, guided: bool = False) -> Any:
        if guided or self.mask.strength:
            raise self._unsupported()
        functions, _ = self._quadratics(f, per_anchor, "softplus")
        return self._by_kernels(functions, [functions.inside])[0] / self.count

    def reduce(self, accumulator: type[Accumulator], functions: Functions) -> tuple[Tensor, ...]:
        raise self._unsupported()

    def _quadratics(self, f: Callable[..., Any], per_anchor: tuple[Tensor, ...], after: str) -> Any:
        quadratic = Quadratics.of(f, per_anchor, self.anchors, self.like.dtype)
        if quadratic is None or quadratic[0].after != after:
            raise self._unsupported()
        return quadratic

    def _by_kernels(self, functions: Quadratics, constants: Sequence[Value]) -> Sequence[Tensor]:
        """Compute log-sum-exps, or the sum of a softplus of a function, ``(anchors, 1)`` each."""
        parts, device, width = [], self.like.device, self.like.shape[1]
        if device.type not in DEVICES or triton is None or not triton.fits(device, width, self.multiplied):
            raise self._unsupported()
        mask = self.mask
        if mask.limits is not None or mask.positives is not None or not mask.others or mask.own_log_weight:
            raise self._unsupported()
        for rows, left, right, mask, _ in self.blocks():
            own, weight = functions.for_rows(rows), None if mask.log_weight is None else mask.log_weight[1]
            left, right = (x.to(self.multiplied) for x in (left, right))
            ids, found = ids_of(mask, len(left), len(right), device), []
            for c, value, slope in zip(constants, own.values, own.slopes, strict=True):
                packed = pack([*reversed(value), rows_of(c, rows), *reversed(slope)], device)
                given = (left, right, packed[:3], packed[3:].detach(), ids, weight, bool(functions.after))
                found.append(triton.reduce(*given))
            parts.append(torch.stack(found))
        return torch.cat(parts, 1).unsqueeze(2).unbind()

    def _unsupported(self) -> ValueError:
        return ValueError(
            "engine='fused': GPU kernels need a GPU that Triton supports, embeddings that fit on it (at most 1024 "
            "wide), and log-sum-exps of functions that are at most quadratic in the similarity, or the mean of the "
            "softplus of one, without false_negatives=, documents and weights of a sample's own hard negatives; got "
            f"{self.like.dtype} embeddings of width {self.like.shape[1]} on {self.like.device.type!r}: use "
            "engine='tiles' or 'auto'."
        )


def ids_of(mask: Mask, rows: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Return integers of the anchors and of the keys, equal where a key is excluded."""
    if mask.ids is not None or mask.period is None:
        return mask.ids
    key_ids = torch.arange(keys, device=device) % mask.period
    if mask.hard is not None:
        key_ids[mask.hard :] = -1
    return (torch.arange(rows, device=device) + mask.first) % mask.period, key_ids


def pack(coefficients: Sequence[Value], device: torch.device) -> Tensor:
    """Stack coefficients that may differ between anchors, ``(coefficients, anchors or 1)``."""
    columns = [torch.as_tensor(x, dtype=torch.float32, device=device).reshape(-1) for x in coefficients]
    return torch.stack(torch.broadcast_tensors(*columns))
