"""Reduce negatives on a GPU, in Triton: no similarity ever leaves the chip.

For log-sum-exps of functions that are at most quadratic in the similarity, ``f(s) = a s^2 + b s + c``, which covers
InfoNCE, DCL, HCL and ADNCE with Gaussian weights, and for sums of the softplus of one (SigLIP). The kernels themselves
are in :mod:`counterpoint.experimental.kernels`.

What is detached within ``f`` (ADNCE's weights) makes its derivative differ from that of its value, so the derivative
``f'(s) = p s + q`` is passed beside it.

Products of float32 follow ``torch.set_float32_matmul_precision``: exact with ``highest``, the default, three TF32
products with ``high``, one with ``medium``. Half precision is multiplied as it is, and accumulated in float32.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from counterpoint import checks

from . import kernels

MAX_WIDTH = 1024  # the gradient of 16 rows takes a quarter of a multiprocessor's registers
H100 = 227 * 1024  # bytes of shared memory of an H100 or H200
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_PRECISION = {"highest": "ieee", "high": "tf32x3", "medium": "tf32"}

Ids = tuple[Tensor, Tensor]


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


def blocks(backward: bool, width: int, dtype: torch.dtype, precision: str, shared_memory: int = H100) -> Blocks:
    """Return block sizes with which a kernel keeps what it accumulates in registers.

    In the backward pass these are gradients as wide as the embeddings. Exact products of float32 need registers for
    their operands as well, TF32 products for copies.
    ``tests/support/compile_triton.py`` prints what the compiler makes of these sizes.
    """
    columns, half = max(16, triton.next_power_of_2(width)), dtype.itemsize == 2
    exact = precision in ("ieee", "widened")
    if not backward:
        owned, iterated = (64, 32) if exact and not half else (128, 64)
    elif half:
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


@cache
def _is_supported(device: torch.device) -> bool:
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 0)


def fits(device: torch.device, width: int, dtype: torch.dtype) -> bool:
    """Return whether :func:`reduce` can take embeddings of this width in this type."""
    return dtype in _DTYPES and width <= MAX_WIDTH and torch.version.hip is None and _is_supported(device)


def _precision() -> str:
    """Return ``PRECISION`` of the kernels."""
    if not isinstance(kernels.forward, triton.runtime.JITFunction):  # interpreted
        return "widened"
    return _PRECISION[torch.get_float32_matmul_precision()]


class _Reduce(checks.Once):
    """See :func:`reduce`."""

    @staticmethod
    def forward(
        ctx: Any, anchors: Tensor, keys: Tensor, value: Tensor, slope: Tensor,
        ids: Ids | None, log_weight: Tensor | None, softplus: bool,
    ) -> Tensor:  # fmt: skip
        anchors, keys, value, slope = (x.contiguous() for x in (anchors, keys, value, slope))
        # a kernel needs a pointer even where it has no use for it
        row_ids, key_ids = (anchors, keys) if ids is None else (x.contiguous() for x in ids)
        weight = keys if log_weight is None else log_weight.float().contiguous()
        constants = {"IDS": ids is not None, "WEIGHTS": log_weight is not None, "SOFTPLUS": softplus}
        out = torch.empty(len(anchors), dtype=torch.float32, device=anchors.device)
        size, switches = _launch(anchors, value, False)
        kernels.forward[(triton.cdiv(len(anchors), size.owned),)](
            anchors, keys, row_ids, key_ids, weight, value, out, len(anchors), *keys.shape, **constants, **switches
        )
        ctx.save_for_backward(anchors, keys, row_ids, key_ids, weight, value, slope, out)
        ctx.constants = constants
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        checks.refuse_second_derivative()
        anchors, keys, *_, value, _, _ = saved = ctx.saved_tensors
        saved = (*saved, upstream.contiguous())
        size, switches = _launch(anchors, value, True)
        sizes, constants, needed = (len(anchors), *keys.shape), ctx.constants | switches, ctx.needs_input_grad
        d_anchors = d_keys = d_value = None
        if needed[0] or needed[2]:
            d_anchors = torch.empty(anchors.shape, dtype=torch.float32, device=anchors.device)
            rows = len(anchors) if needed[2] else 0
            moments = torch.empty(3, rows, dtype=torch.float32, device=anchors.device)
            kernels.backward_anchors[(triton.cdiv(len(anchors), size.owned),)](
                *saved, d_anchors, moments, *sizes, LEARNED=needed[2], **constants
            )
            d_value = moments.sum_to_size(value.shape) if needed[2] else None
            d_anchors = d_anchors.to(anchors.dtype)
        if needed[1]:
            d_keys = torch.empty(keys.shape, dtype=torch.float32, device=anchors.device)
            kernels.backward_keys[(triton.cdiv(len(keys), size.owned),)](*saved, d_keys, *sizes, **constants)
            d_keys = d_keys.to(keys.dtype)
        return d_anchors, d_keys, d_value, None, None, None, None


def _launch(anchors: Tensor, value: Tensor, backward: bool) -> tuple[Blocks, dict[str, Any]]:
    """Return the sizes of blocks, and the constants of a kernel that follow from sizes."""
    precision = _precision()
    size = blocks(backward, anchors.shape[1], anchors.dtype, precision, _shared_memory(anchors.device))
    return size, {
        "PER_ANCHOR": value.shape[1] > 1, "PRECISION": precision, "OWNED": size.owned,
        "ITERATED": size.iterated, "BLOCK_D": size.columns, "STEP": size.step, "num_warps": size.warps,
    }  # fmt: skip


def reduce(
    anchors: Tensor,
    keys: Tensor,
    value: Tensor,
    slope: Tensor,
    ids: Ids | None = None,
    log_weight: Tensor | None = None,
    softplus: bool = False,
) -> Tensor:
    """Compute ``log sum_j exp f(s_ij)``, or the sum of the softplus of ``f``, over keys ``j`` of another id.

    Args:
        anchors, keys: ``(M, d)`` and ``(N, d)`` with ``d`` of at most 1024, whose inner products are the similarities.
        value: ``(3, M)``, or ``(3, 1)`` if it is the same for all anchors: ``a``, ``b`` and ``c`` of
            ``f(s) = a s^2 + b s + c``. Its gradient is exact.
        slope: ``(2, M or 1)``: ``p`` and ``q`` of its derivative with respect to ``s``.
        ids: of the anchors and of the keys.
        log_weight: ``(N,)``; a key counts ``exp(log_weight)`` times.
        softplus: sum the softplus of ``f`` instead.

    Returns:
        ``(M,)``, in float32.
    """
    out: Tensor = _Reduce.apply(anchors, keys, value, slope, ids, log_weight, softplus)
    return out
