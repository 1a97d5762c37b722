"""Reduce negatives on a GPU, in Triton: no similarity ever leaves the chip.

For functions that are at most quadratic in the similarity, ``f(s) = a s^2 + b s + c``, which covers InfoNCE, DCL, HCL,
ADNCE with Gaussian weights, means, variances and distances; a sum may be one of their relu (the polarization of
distances) or softplus (SigLIP). The kernels themselves are in :mod:`counterpoint.experimental.kernels`.

What is detached within ``f`` (ADNCE's weights) makes its derivative differ from that of its value, so the derivative
``f'(s) = p s + q`` is passed beside it.

Products of float32 follow ``torch.set_float32_matmul_precision``: exact with ``highest``, the default, three TF32
products with ``high``, one with ``medium``. Half precision is multiplied as it is, and accumulated in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from counterpoint import checks
from counterpoint.engine.tiles import Mask

from . import kernels

MAX_WIDTH = 1024  # the gradient of 16 rows takes a quarter of a multiprocessor's registers
H100 = 227 * 1024  # bytes of shared memory of an H100 or H200
GUIDE_STEP = 32  # columns of a guide's embeddings that are multiplied at a time
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_PRECISION = {"highest": "ieee", "high": "tf32x3", "medium": "tf32"}


# ---- block sizes -------------------------------------------------------------------------------


class Blocks(NamedTuple):
    """How a kernel divides its work.

    Attributes:
        owned, iterated: rows of a program's own block, and of the blocks that it iterates over.
        columns: those of the embeddings, rounded up to a power of two.
        step: columns that are multiplied at a time; 0: all, of an own block that stays in shared memory.
        warps: of a program.
    """

    owned: int
    iterated: int
    columns: int
    step: int
    warps: int = 8


def blocks(
    backward: bool, width: int, dtype: torch.dtype, precision: str, guided: bool = False, shared_memory: int = H100
) -> Blocks:
    """Return block sizes with which a kernel keeps what it accumulates in registers.

    In the backward pass these are gradients as wide as the embeddings. Exact products of float32 need registers for
    their operands as well, TF32 products for copies, and a guide's similarities for themselves.
    ``tests/support/compile_triton.py`` prints what the compiler makes of these sizes.
    """
    columns, half = max(16, triton.next_power_of_2(width)), dtype.itemsize == 2
    exact = precision in ("ieee", "widened")
    if not backward:
        owned, iterated = (64, 32) if guided or (exact and not half) else (128, 64)
    elif half and not guided:
        owned, iterated = min(128, 32768 // columns), max(16, min(64, 8192 // columns))
    elif exact and not half:
        owned, iterated = max(16, min(64, 8192 // columns)), 16
    else:
        owned, iterated = max(16, min(64, 16384 // columns)), max(16, min(32, 4096 // columns))
    resident = (owned + 3 * iterated) * columns * dtype.itemsize  # the compiler loads blocks ahead
    if half and resident <= shared_memory and (backward or columns <= 256):
        return Blocks(owned, iterated, columns, 0)
    return Blocks(owned, iterated, columns, 64 if half else 32)


@cache
def _shared_memory(device: torch.device) -> int:
    """Return the bytes of shared memory."""
    if device.type != "cuda":
        return H100
    size: int = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)["max_shared_mem"]
    return size


def fits(device: torch.device, width: int, dtype: torch.dtype) -> bool:
    """Return whether :func:`reduce` can take embeddings of this width in this type."""
    return dtype in _DTYPES and width <= MAX_WIDTH and _is_supported(device)


@cache
def _is_supported(device: torch.device) -> bool:
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 0)


def _precision() -> str:
    """Return ``PRECISION`` of the kernels."""
    if not isinstance(kernels.forward, triton.runtime.JITFunction):  # interpreted
        return "widened"
    return _PRECISION[torch.get_float32_matmul_precision()]


# ---- the function ------------------------------------------------------------------------------


def _centered(value: Tensor) -> tuple[Tensor, Tensor]:
    """Rewrite squares ``a (s - b)^2`` as ``a u^2`` with ``u = s - b``; return the coefficients, and ``b`` or zero."""
    x2, x1, x0 = value.unbind(1)
    center = torch.where(x2 == 0, torch.zeros_like(x1), -x1 / (2 * x2))
    square = (x0 - x2 * center**2).abs() <= 1e-6 * x0.abs()
    center = torch.where(square, center, torch.zeros_like(center))
    return torch.where((center != 0).unsqueeze(1), torch.stack([x2, 0 * x1, 0 * x0], 1), value), center


@dataclass(frozen=True)
class Reduction:
    """``log sum_j exp f(s_ij)``, or ``sum_j f(s_ij)``, over the keys ``j`` that are negatives of anchor ``i``.

    Args:
        mask: which keys count for these anchors, and how often.
        summed: the sum of ``f`` instead of the log-sum-exp.
        after: what is summed instead of ``f``: its ``relu`` or its ``softplus``.
    """

    mask: Mask
    summed: bool = False
    after: str = ""

    def forward(self, anchors: Tensor, keys: Tensor, value: Tensor) -> Tensor:
        """Return ``(functions, M)``, in float32; see :func:`reduce`."""
        anchors, keys, value = anchors.contiguous(), keys.contiguous(), value.contiguous()
        size, pointers, numbers, constants = self._launch(anchors, keys, value, False)
        out = torch.empty(len(value), len(anchors), dtype=torch.float32, device=anchors.device)
        squares = self.summed and not self.after
        coefficients, center = _centered(value) if squares else (value, value)  # the latter is unused
        kernels.forward[(triton.cdiv(len(anchors), size.owned),)](
            *pointers, coefficients, center, out, *numbers, SQUARES=squares, **constants
        )
        return out

    def backward(
        self, anchors: Tensor, keys: Tensor, value: Tensor, slope: Tensor, out: Tensor, upstream: Tensor,
        needed: Sequence[bool],
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
        """Return the gradients of the anchors, the keys and ``value``, in float32, as far as they are ``needed``.

        Args:
            out: the results, over these keys or over more.
            upstream: their gradient.
        """
        anchors, keys, value, slope = (x.contiguous() for x in (anchors, keys, value, slope))
        size, pointers, numbers, constants = self._launch(anchors, keys, value, True)
        saved = (*pointers, value, slope, out.contiguous(), upstream.contiguous())
        d_anchors = d_keys = d_value = None
        if needed[0] or needed[2]:
            d_anchors = torch.empty(anchors.shape, dtype=torch.float32, device=anchors.device)
            rows = len(anchors) if needed[2] else 0
            moments = torch.empty(len(value), 3, rows, dtype=torch.float32, device=anchors.device)
            kernels.backward_anchors[(triton.cdiv(len(anchors), size.owned),)](
                *saved, d_anchors, moments, *numbers, LEARNED=needed[2], **constants
            )
            d_value = moments.sum_to_size(value.shape) if needed[2] else None
        if needed[1]:
            d_keys = torch.zeros(keys.shape, dtype=torch.float32, device=anchors.device)  # the last may not count
            kernels.backward_keys[(triton.cdiv(len(keys), size.owned),)](*saved, d_keys, *numbers, **constants)
        return d_anchors, d_keys, d_value

    def _launch(
        self, anchors: Tensor, keys: Tensor, value: Tensor, backward: bool
    ) -> tuple[Blocks, Any, Any, dict[str, Any]]:
        """Return the sizes of blocks, and what all kernels are passed: tensors, numbers and constants."""
        mask, (M, d), N, precision = self.mask, anchors.shape, len(keys), _precision()
        # 1. tensors of the anchors and of the keys; a kernel needs a pointer even where it has no use for it
        ids, weight, limits = mask.as_ids(M, N, anchors.device), mask.log_weight, mask.limits
        row_ids, key_ids = (anchors, keys) if ids is None else (x.contiguous() for x in ids)
        log_weight = keys if weight is None else weight[1].float().contiguous()
        most = anchors if limits is None else limits.most.float().contiguous()
        compared = limits.guide if limits is not None and limits.guide is not None else None
        guide = (anchors, keys) if compared is None else tuple(x.detach().contiguous() for x in compared)
        memory = _shared_memory(anchors.device)
        size = blocks(backward, d, anchors.dtype, precision, compared is not None, memory)
        # 2. hard negatives; without a period, none is an anchor's own
        period, own = (1, N) if mask.period is None else (mask.period, mask.own)
        if not mask.foreign and (mask.period is None or not mask.owned):
            N = min(N, mask.own)
        hard = "own" if not mask.foreign else "all" if mask.owned else "foreign"
        of_own = bool(mask.own_weight) and mask.owned and mask.period is not None
        weights = ("both" if of_own else "keys") if weight is not None else "own" if of_own else ""
        exempt = N if limits is None or limits.exempt is None else limits.exempt
        numbers = M, N, d, guide[0].shape[1], float(mask.own_weight), period, mask.first, own, exempt
        constants = {
            "TWO": len(value) == 2, "SUM": self.summed, "AFTER": self.after, "PER_ANCHOR": value.shape[2] > 1,
            "IDS": ids is not None, "LIMITS": "" if limits is None else "model" if compared is None else "guide",
            "WEIGHTS": weights, "HARD": hard, "PRECISION": precision, "GUIDE_STEP": GUIDE_STEP, "OWNED": size.owned,
            "ITERATED": size.iterated, "BLOCK_D": size.columns, "STEP": size.step, "num_warps": size.warps,
        }  # fmt: skip
        return size, (anchors, keys, row_ids, key_ids, log_weight, most, *guide), numbers, constants


class _Reduce(checks.Once):
    """See :func:`reduce`."""

    @staticmethod
    def forward(ctx: Any, anchors: Tensor, keys: Tensor, value: Tensor, slope: Tensor, reduction: Reduction) -> Tensor:
        out = reduction.forward(anchors, keys, value)
        ctx.reduction = reduction
        ctx.save_for_backward(anchors, keys, value, slope, out)
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        checks.refuse_second_derivative()
        saved = ctx.saved_tensors
        d_anchors, d_keys, d_value = ctx.reduction.backward(*saved, upstream, ctx.needs_input_grad)
        d_anchors, d_keys = (None if x is None else x.to(saved[0].dtype) for x in (d_anchors, d_keys))
        return d_anchors, d_keys, d_value, None, None


def reduce(anchors: Tensor, keys: Tensor, value: Tensor, slope: Tensor, reduction: Reduction) -> Tensor:
    """Reduce functions of the similarities of anchors and keys.

    Args:
        anchors, keys: ``(M, d)`` and ``(N, d)`` with ``d`` of at most 1024, whose inner products are the similarities.
        value: ``(functions, 3, M)``, or ``(functions, 3, 1)`` if it is the same for all anchors: ``a``, ``b`` and
            ``c`` of one or two functions ``f(s) = a s^2 + b s + c``. Its gradient is exact.
        slope: ``(functions, 2, M or 1)``: ``p`` and ``q`` of their derivatives with respect to ``s``.
        reduction: how, and over which keys.

    Returns:
        ``(functions, M)``, in float32.
    """
    out: Tensor = _Reduce.apply(anchors, keys, value, slope, reduction)
    return out
