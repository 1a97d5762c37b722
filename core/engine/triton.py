"""Reduce negatives on a GPU, in Triton: no similarity ever leaves the chip.

For functions that are at most quadratic in the similarity, ``f(s) = a s^2 + b s + c``, which covers InfoNCE, DCL, HCL,
ADNCE with Gaussian weights, means, variances and distances; sums may apply a relu (the polarization of distances). As
in FlashAttention, a program loads a block of anchors, iterates over blocks of keys, and updates a running maximum and
sum per anchor and function; the backward pass recomputes the similarities.

What is detached within ``f`` (ADNCE's weights) makes its derivative differ from that of its value, so the derivative
``f'(s) = p s + q`` is passed beside it. Sums of squares are computed from differences, not from powers of ``s``: of
nearly equal similarities, a variance would otherwise be rounding noise, and negative at times.

Products of float32 follow ``torch.set_float32_matmul_precision``: exact with ``highest``, the default, three TF32
products with ``high``, one with ``medium``. Half precision is multiplied as it is, and accumulated in float32.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import checks

MAX_WIDTH = 1024  # wider embeddings do not fit
H100 = 227 * 1024  # bytes of shared memory of an H100 or H200
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_PRECISION = {"highest": "ieee", "high": "tf32x3", "medium": "tf32"}
_LOWEST = tl.constexpr(-3.0e38)  # finite, so that no difference of two is NaN


# ---- parts of kernels --------------------------------------------------------------------------
# Triton compiles code after an early return, so constexpr branches need an explicit else.


@triton.jit
def _load_block(pointer, rows, n_rows, d, BLOCK_D: tl.constexpr):
    """Load rows of embeddings, (len(rows), BLOCK_D)."""
    cols = tl.arange(0, BLOCK_D)
    inside = (rows < n_rows)[:, None] & (cols < d)[None, :]
    return tl.load(pointer + rows.to(tl.int64)[:, None] * d + cols[None, :], mask=inside, other=0.0)


@triton.jit
def _store_block(pointer, rows, n_rows, d, x, BLOCK_D: tl.constexpr):
    cols = tl.arange(0, BLOCK_D)
    inside = (rows < n_rows)[:, None] & (cols < d)[None, :]
    tl.store(pointer + rows.to(tl.int64)[:, None] * d + cols[None, :], x, mask=inside)


@triton.jit
def _similarities(q, k, PRECISION: tl.constexpr):
    """Compute ``q k^T``, (BLOCK_M, BLOCK_N)."""
    if PRECISION == "widened":  # the interpreter cannot multiply bfloat16
        return tl.dot(q.to(tl.float32), tl.trans(k.to(tl.float32)), input_precision="ieee")
    else:
        return tl.dot(q, tl.trans(k), input_precision=PRECISION)


@triton.jit
def _weighted_sum(ds, x, PRECISION: tl.constexpr):
    """Compute ``ds x``, the sum of embeddings weighted by the gradients of their similarities."""
    if PRECISION == "widened":
        return tl.dot(ds, x.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(ds.to(x.dtype), x, input_precision=PRECISION)


@triton.jit
def _negatives(rows, cols, row_ids, key_ids, M, N, MASKED: tl.constexpr):
    """Return where a tile has negatives."""
    keep = (rows < M)[:, None] & (cols < N)[None, :]
    if MASKED:
        a = tl.load(row_ids + rows, mask=rows < M, other=-1)
        b = tl.load(key_ids + cols, mask=cols < N, other=-1)
        keep = keep & (a[:, None] != b[None, :])
    return keep


@triton.jit
def _coefficient(pointer, index, rows, M, PER_ANCHOR: tl.constexpr):
    """Load a coefficient of each row from ``(coefficients, M)``, or of all rows from ``(coefficients, 1)``."""
    if PER_ANCHOR:
        return tl.load(pointer + index * M + rows, mask=rows < M, other=0.0)[:, None]
    else:
        return tl.load(pointer + index)


@triton.jit
def _value(value, F: tl.constexpr, rows, M, s, PER_ANCHOR: tl.constexpr, RELU: tl.constexpr):
    """Compute ``f(s)``."""
    a = _coefficient(value, 3 * F, rows, M, PER_ANCHOR)
    b = _coefficient(value, 3 * F + 1, rows, M, PER_ANCHOR)
    x = (a * s + b) * s + _coefficient(value, 3 * F + 2, rows, M, PER_ANCHOR)
    if RELU:
        x = tl.maximum(x, 0.0)
    return x


@triton.jit
def _shifted(center, F: tl.constexpr, rows, M, s, PER_ANCHOR: tl.constexpr, SQUARES: tl.constexpr):
    """Return ``s``, or its difference from the center of a square."""
    if SQUARES:
        return s - _coefficient(center, F, rows, M, PER_ANCHOR)
    else:
        return s


@triton.jit
def _slope(slope, F: tl.constexpr, rows, M, s, PER_ANCHOR: tl.constexpr):
    """Compute ``f'(s)``."""
    p = _coefficient(slope, 2 * F, rows, M, PER_ANCHOR)
    return p * s + _coefficient(slope, 2 * F + 1, rows, M, PER_ANCHOR)


@triton.jit
def _accumulate(row_max, row_sum, x, keep, SUM: tl.constexpr):
    """Add a tile to a running sum, or to a running maximum and sum of exponentials (online softmax)."""
    if SUM:
        return row_max, row_sum + tl.sum(tl.where(keep, x, 0.0), 1)
    else:
        x = tl.where(keep, x, _LOWEST)
        new_max = tl.maximum(row_max, tl.max(x, 1))
        p = tl.where(keep, tl.exp(x - new_max[:, None]), 0.0)
        return new_max, row_sum * tl.exp(row_max - new_max) + tl.sum(p, 1)


@triton.jit
def _result(row_max, row_sum, SUM: tl.constexpr):
    if SUM:
        return row_sum
    else:
        return row_max + tl.log(row_sum)


@triton.jit
def _value_gradient(
    value, out, upstream, F: tl.constexpr, rows, M, s, keep,
    SUM: tl.constexpr, RELU: tl.constexpr, PER_ANCHOR: tl.constexpr,
):  # fmt: skip
    """Compute ``dL/df`` of each pair."""
    g = tl.load(upstream + F * M + rows, mask=rows < M, other=0.0)[:, None]
    if SUM:
        if RELU:
            keep = keep & (_value(value, F, rows, M, s, PER_ANCHOR, RELU) > 0.0)
        return tl.where(keep, g, 0.0)
    else:
        lse = tl.load(out + F * M + rows, mask=rows < M, other=0.0)[:, None]
        # a share is at most one; without negatives, it would be anything
        p = tl.exp(tl.minimum(_value(value, F, rows, M, s, PER_ANCHOR, RELU) - lse, 0.0))
        return tl.where(keep, g * p, 0.0)


# ---- kernels -----------------------------------------------------------------------------------
# q: anchors (M, d); k: keys (N, d); value: (functions, 3, M or 1); slope: (functions, 2, M or 1); out: (functions, M)


@triton.jit
def _forward(
    anchors, keys, row_ids, key_ids, value, center, out, M, N, d,
    TWO: tl.constexpr, SUM: tl.constexpr, RELU: tl.constexpr, PER_ANCHOR: tl.constexpr, MASKED: tl.constexpr,
    SQUARES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    # 1. a block of anchors, and its running statistics
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    q = _load_block(anchors, rows, M, d, BLOCK_D)  # (BLOCK_M, BLOCK_D)
    max0 = tl.full((BLOCK_M,), _LOWEST, tl.float32)
    max1 = tl.full((BLOCK_M,), _LOWEST, tl.float32)
    sum0 = tl.zeros((BLOCK_M,), tl.float32)
    sum1 = tl.zeros((BLOCK_M,), tl.float32)
    for start in range(0, N, BLOCK_N):
        # 2. similarities to a block of keys
        cols = start + tl.arange(0, BLOCK_N)
        s = _similarities(q, _load_block(keys, cols, N, d, BLOCK_D), PRECISION)  # (BLOCK_M, BLOCK_N)
        keep = _negatives(rows, cols, row_ids, key_ids, M, N, MASKED)
        # 3. functions of them
        u = _shifted(center, 0, rows, M, s, PER_ANCHOR, SQUARES)
        max0, sum0 = _accumulate(max0, sum0, _value(value, 0, rows, M, u, PER_ANCHOR, RELU), keep, SUM)
        if TWO:
            u = _shifted(center, 1, rows, M, s, PER_ANCHOR, SQUARES)
            max1, sum1 = _accumulate(max1, sum1, _value(value, 1, rows, M, u, PER_ANCHOR, RELU), keep, SUM)
    # 4. log-sum-exps or sums
    tl.store(out + rows, _result(max0, sum0, SUM), mask=rows < M)
    if TWO:
        tl.store(out + M + rows, _result(max1, sum1, SUM), mask=rows < M)


@triton.jit
def _backward_anchors(
    anchors, keys, row_ids, key_ids, value, slope, out, upstream, d_anchors, moments, M, N, d,
    TWO: tl.constexpr, SUM: tl.constexpr, RELU: tl.constexpr, PER_ANCHOR: tl.constexpr, MASKED: tl.constexpr,
    LEARNED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    # 1. a block of anchors; moments sum_j g s^n of the value gradients g are those of the coefficients
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    q = _load_block(anchors, rows, M, d, BLOCK_D)  # (BLOCK_M, BLOCK_D)
    dq = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    a0 = tl.zeros((BLOCK_M,), tl.float32)
    a1, a2, b0, b1, b2 = a0, a0, a0, a0, a0
    for start in range(0, N, BLOCK_N):
        # 2. recompute similarities to a block of keys
        cols = start + tl.arange(0, BLOCK_N)
        k = _load_block(keys, cols, N, d, BLOCK_D)  # (BLOCK_N, BLOCK_D)
        s = _similarities(q, k, PRECISION)  # (BLOCK_M, BLOCK_N)
        keep = _negatives(rows, cols, row_ids, key_ids, M, N, MASKED)
        # 3. their gradient
        g = _value_gradient(value, out, upstream, 0, rows, M, s, keep, SUM, RELU, PER_ANCHOR)
        ds = g * _slope(slope, 0, rows, M, s, PER_ANCHOR)
        if LEARNED:
            a0 += tl.sum(g, 1)
            a1 += tl.sum(g * s, 1)
            a2 += tl.sum(g * s * s, 1)
        if TWO:
            g = _value_gradient(value, out, upstream, 1, rows, M, s, keep, SUM, RELU, PER_ANCHOR)
            ds += g * _slope(slope, 1, rows, M, s, PER_ANCHOR)
            if LEARNED:
                b0 += tl.sum(g, 1)
                b1 += tl.sum(g * s, 1)
                b2 += tl.sum(g * s * s, 1)
        # 4. dq
        dq += _weighted_sum(ds, k, PRECISION)
    _store_block(d_anchors, rows, M, d, dq, BLOCK_D)
    if LEARNED:
        tl.store(moments + rows, a2, mask=rows < M)
        tl.store(moments + M + rows, a1, mask=rows < M)
        tl.store(moments + 2 * M + rows, a0, mask=rows < M)
        if TWO:
            tl.store(moments + 3 * M + rows, b2, mask=rows < M)
            tl.store(moments + 4 * M + rows, b1, mask=rows < M)
            tl.store(moments + 5 * M + rows, b0, mask=rows < M)


@triton.jit
def _backward_keys(
    anchors, keys, row_ids, key_ids, value, slope, out, upstream, d_keys, M, N, d,
    TWO: tl.constexpr, SUM: tl.constexpr, RELU: tl.constexpr, PER_ANCHOR: tl.constexpr, MASKED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # 1. a block of keys
    cols = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = _load_block(keys, cols, N, d, BLOCK_D)  # (BLOCK_N, BLOCK_D)
    dk = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    for start in range(0, M, BLOCK_M):
        # 2. recompute similarities to a block of anchors
        rows = start + tl.arange(0, BLOCK_M)
        q = _load_block(anchors, rows, M, d, BLOCK_D)  # (BLOCK_M, BLOCK_D)
        s = _similarities(q, k, PRECISION)  # (BLOCK_M, BLOCK_N)
        keep = _negatives(rows, cols, row_ids, key_ids, M, N, MASKED)
        # 3. their gradient
        g = _value_gradient(value, out, upstream, 0, rows, M, s, keep, SUM, RELU, PER_ANCHOR)
        ds = g * _slope(slope, 0, rows, M, s, PER_ANCHOR)
        if TWO:
            g = _value_gradient(value, out, upstream, 1, rows, M, s, keep, SUM, RELU, PER_ANCHOR)
            ds += g * _slope(slope, 1, rows, M, s, PER_ANCHOR)
        # 4. dk
        dk += _weighted_sum(tl.trans(ds), q, PRECISION)
    _store_block(d_keys, cols, N, d, dk, BLOCK_D)


# ---- block sizes -------------------------------------------------------------------------------


def _reduction_of_blocks(shared_memory: int) -> int:
    """Return the factor by which blocks are smaller than on an H100: 2 with half of its memory (A100), else 4."""
    return 1 if shared_memory >= H100 else 2 if shared_memory >= H100 // 2 else 4


def _block_sizes(width: int, dtype: torch.dtype, precision: str, shared_memory: int) -> tuple[int, int, int]:
    """Return the rows of a program's own block and of the blocks that it iterates over, and their columns.

    Both blocks share ``shared_memory`` bytes, where three TF32 products need several copies. The accumulator takes
    half of the registers of eight warps. ``tests/support/compile_triton.py`` checks that they fit.
    """
    block_d = max(16, triton.next_power_of_2(width))
    row = block_d * dtype.itemsize * (4 if precision == "tf32x3" else 1)
    less = _reduction_of_blocks(shared_memory)
    owned = min(128, 32768 // block_d, 131072 // less // row) if row <= 2048 // less else 16
    return max(16, owned), max(16, min(64, 32768 // less // row)), block_d


@cache
def _shared_memory(device: torch.device) -> int:
    """Return the bytes of shared memory."""
    if device.type != "cuda":
        return H100
    size: int = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)["max_shared_mem"]
    return size


def max_width(dtype: torch.dtype, shared_memory: int) -> int:
    """Return the largest width of embeddings that fits."""
    return min(MAX_WIDTH, MAX_WIDTH * 4 // dtype.itemsize // _reduction_of_blocks(shared_memory))


def takes(z: Tensor, functions: int) -> bool:
    """Return whether :func:`reduce` can take such embeddings and so many functions."""
    return functions <= 2 and z.dtype in _DTYPES and z.shape[1] <= max_width(z.dtype, _shared_memory(z.device))


def _precision(anchors: Tensor) -> str:
    """Return ``PRECISION`` of the kernels."""
    if not isinstance(_forward, triton.runtime.JITFunction):  # interpreted
        return "widened"
    precision = _PRECISION[torch.get_float32_matmul_precision()]
    wide = anchors.shape[1] > MAX_WIDTH // 2 and anchors.dtype == torch.float32
    return "ieee" if precision == "tf32x3" and wide else precision  # its copies do not fit


# ---- the function ------------------------------------------------------------------------------


def _centered(value: Tensor) -> tuple[Tensor, Tensor]:
    """Rewrite squares ``a (s - b)^2`` as ``a u^2`` with ``u = s - b``; return the coefficients, and ``b`` or zero."""
    x2, x1, x0 = value.unbind(1)
    center = torch.where(x2 == 0, torch.zeros_like(x1), -x1 / (2 * x2))
    square = (x0 - x2 * center**2).abs() <= 1e-6 * x0.abs()
    center = torch.where(square, center, torch.zeros_like(center))
    return torch.where((center != 0).unsqueeze(1), torch.stack([x2, 0 * x1, 0 * x0], 1), value), center


class _Reduce(checks.Once):
    """See :func:`reduce`."""

    @staticmethod
    def forward(
        ctx: Any, anchors: Tensor, keys: Tensor, value: Tensor, slope: Tensor,
        ids: tuple[Tensor, Tensor] | None, summed: bool, relu: bool,
    ) -> Tensor:  # fmt: skip
        anchors, keys = anchors.contiguous(), keys.contiguous()
        row_ids, key_ids = ids if ids is not None else (anchors, keys)  # unused, but a kernel needs a pointer
        precision = _precision(anchors)
        M, d, functions = *anchors.shape, len(value)
        owned, iterated, block_d = _block_sizes(d, anchors.dtype, precision, _shared_memory(anchors.device))
        ctx.constants = {
            "TWO": functions == 2, "SUM": summed, "RELU": relu, "PER_ANCHOR": value.shape[2] > 1,
            "MASKED": ids is not None, "BLOCK_D": block_d, "PRECISION": precision,
        }  # fmt: skip
        value, slope = value.contiguous(), slope.contiguous()
        out = torch.empty(functions, M, dtype=torch.float32, device=anchors.device)
        squares = summed and not relu
        coefficients, center = _centered(value) if squares else (value, value)  # the latter is unused
        _forward[(triton.cdiv(M, owned),)](
            anchors, keys, row_ids, key_ids, coefficients, center, out, M, len(keys), d,
            SQUARES=squares, BLOCK_M=owned, BLOCK_N=iterated, num_warps=8, **ctx.constants,
        )  # fmt: skip
        ctx.save_for_backward(anchors, keys, row_ids, key_ids, value, slope, out)
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        checks.refuse_second_derivative()
        anchors, keys, *_, value, _, _ = saved = ctx.saved_tensors
        M, N, d = len(anchors), len(keys), anchors.shape[1]
        owned, iterated, _ = _block_sizes(d, anchors.dtype, ctx.constants["PRECISION"], _shared_memory(anchors.device))
        upstream = upstream.contiguous()
        needed = ctx.needs_input_grad
        d_anchors = d_keys = d_value = None
        if needed[0] or needed[2]:
            d_anchors = torch.empty(M, d, dtype=torch.float32, device=anchors.device)
            moments = torch.empty(len(value), 3, M if needed[2] else 0, dtype=torch.float32, device=anchors.device)
            _backward_anchors[(triton.cdiv(M, owned),)](
                *saved, upstream, d_anchors, moments, M, N, d,
                LEARNED=needed[2], BLOCK_M=owned, BLOCK_N=iterated, num_warps=8, **ctx.constants,
            )  # fmt: skip
            d_anchors = d_anchors.to(anchors.dtype)
            d_value = moments.sum_to_size(value.shape) if needed[2] else None
        if needed[1]:
            d_keys = torch.empty(N, d, dtype=torch.float32, device=anchors.device)
            _backward_keys[(triton.cdiv(N, owned),)](
                *saved, upstream, d_keys, M, N, d, BLOCK_M=iterated, BLOCK_N=owned, num_warps=8, **ctx.constants
            )
            d_keys = d_keys.to(keys.dtype)
        return d_anchors, d_keys, d_value, None, None, None, None


def reduce(
    anchors: Tensor, keys: Tensor, value: Tensor, slope: Tensor,
    ids: tuple[Tensor, Tensor] | None = None, summed: bool = False, relu: bool = False,
) -> Tensor:  # fmt: skip
    """Compute ``log sum_j exp f(s_ij)``, or ``sum_j f(s_ij)``, over the keys ``j`` that are negatives of anchor ``i``.

    Args:
        anchors, keys: ``(M, d)`` and ``(N, d)`` with ``d`` of at most 1024, whose inner products are the similarities.
        value: ``(functions, 3, M)``, or ``(functions, 3, 1)`` if it is the same for all anchors: ``a``, ``b`` and
            ``c`` of one or two functions ``f(s) = a s^2 + b s + c``. Its gradient is exact.
        slope: ``(functions, 2, M or 1)``: ``p`` and ``q`` of their derivatives with respect to ``s``.
        ids: integers ``(M,)`` and ``(N,)``; keys with the anchor's id are excluded.
        summed: the sum of ``f`` instead.
        relu: of ``max(0, f)``; only for a sum.

    Returns:
        ``(functions, M)``, in float32.
    """
    out: Tensor = _Reduce.apply(anchors, keys, value, slope, ids, summed, relu)
    return out
