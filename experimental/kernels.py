"""The GPU kernels of :mod:`counterpoint.experimental.triton`.

As in FlashAttention, a program loads a block of anchors, iterates over blocks of keys, and updates a running maximum
and sum per anchor; the backward pass recomputes the similarities.

Keys with the anchor's id are excluded (``IDS``), and keys may have log-weights (``WEIGHTS``). ``SOFTPLUS``: instead of
a log-sum-exp, the sum of the softplus of the function.

A tile has its program's own rows first: anchors by keys, but keys by anchors where the keys have the gradient, so that
its weights are multiplied as they lie in registers. So ``rows`` and ``cols``, the numbers of the anchors and of the
keys, have two dimensions, one of which is 1.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST = tl.constexpr(-3.0e38)  # finite, so that no difference of two is NaN


# ---- parts of kernels --------------------------------------------------------------------------
# Triton compiles code after an early return, so constexpr branches need an explicit else.


@triton.jit
def _load_block(pointer, numbers, count, d, first, BLOCK_D: tl.constexpr):
    """Load rows of embeddings, (len(numbers), BLOCK_D), from column ``first`` on."""
    columns = first + tl.arange(0, BLOCK_D)
    inside = (numbers < count)[:, None] & (columns < d)[None, :]
    return tl.load(pointer + numbers.to(tl.int64)[:, None] * d + columns[None, :], mask=inside, other=0.0)


@triton.jit
def _store_block(pointer, numbers, count, d, x, BLOCK_D: tl.constexpr):
    columns = tl.arange(0, BLOCK_D)
    inside = (numbers < count)[:, None] & (columns < d)[None, :]
    tl.store(pointer + numbers.to(tl.int64)[:, None] * d + columns[None, :], x, mask=inside)


@triton.jit
def _similarities(x, y, PRECISION: tl.constexpr):
    """Compute ``x y^T``."""
    if PRECISION == "widened":  # the interpreter cannot multiply bfloat16
        return tl.dot(x.to(tl.float32), tl.trans(y.to(tl.float32)), input_precision="ieee")
    else:
        return tl.dot(x, tl.trans(y), input_precision=PRECISION)


@triton.jit
def _similarities_in_steps(
    left, i, n_left, right, j, n_right, d,
    BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the similarities of rows ``i`` and ``j``, so many columns at a time: embeddings of any width."""
    s = tl.zeros((BLOCK_I, BLOCK_J), tl.float32)
    for first in range(0, d, STEP):
        x = _load_block(left, i, n_left, d, first, STEP)
        s += _similarities(x, _load_block(right, j, n_right, d, first, STEP), PRECISION)
    return s


@triton.jit
def _weighted_sum(ds, x, PRECISION: tl.constexpr):
    """Compute ``ds x``, the sum of embeddings weighted by the gradients of their similarities."""
    if PRECISION == "widened":
        return tl.dot(ds, x.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(ds.to(x.dtype), x, input_precision=PRECISION)


@triton.jit
def _negatives(rows, cols, row_ids, key_ids, M, N, IDS: tl.constexpr):
    """Return where a tile has negatives."""
    keep = (rows < M) & (cols < N)
    if IDS:
        a = tl.load(row_ids + rows, mask=rows < M, other=-1)
        b = tl.load(key_ids + cols, mask=cols < N, other=-1)
        keep = keep & (a != b)
    return keep


@triton.jit
def _log_weights(cols, log_weight, N, WEIGHTS: tl.constexpr):
    """Load the log-weights of the keys."""
    if WEIGHTS:
        return tl.load(log_weight + cols, mask=cols < N, other=0.0)
    else:
        return 0.0


@triton.jit
def _coefficient(pointer, index, rows, M, PER_ANCHOR: tl.constexpr):
    """Load a coefficient of each row from ``(coefficients, M)``, or of all rows from ``(coefficients, 1)``."""
    if PER_ANCHOR:
        return tl.load(pointer + index * M + rows, mask=rows < M, other=0.0)
    else:
        return tl.load(pointer + index)


@triton.jit
def _quadratic(value, rows, M, s, PER_ANCHOR: tl.constexpr):
    """Compute ``f(s)``."""
    a = _coefficient(value, 0, rows, M, PER_ANCHOR)
    b = _coefficient(value, 1, rows, M, PER_ANCHOR)
    return (a * s + b) * s + _coefficient(value, 2, rows, M, PER_ANCHOR)


@triton.jit
def _softplus(x):
    """Compute ``log(1 + e^x)``, of a very negative ``x`` to all digits of ``e^x``."""
    e = tl.exp(-tl.abs(x))
    z = e / (2.0 + e)  # log(1 + e) = 2 artanh z, whose series converges fast for z of at most 1/3
    w = z * z
    series = 1.0 + w * (1 / 3 + w * (1 / 5 + w * (1 / 7 + w * (1 / 9 + w * (1 / 11 + w * (1 / 13 + w / 15))))))
    return tl.maximum(x, 0.0) + 2.0 * z * series


@triton.jit
def _slope(slope, rows, M, s, PER_ANCHOR: tl.constexpr):
    """Compute ``f'(s)``."""
    p = _coefficient(slope, 0, rows, M, PER_ANCHOR)
    return p * s + _coefficient(slope, 1, rows, M, PER_ANCHOR)


@triton.jit
def _accumulate(row_max, row_sum, x, w, keep, SOFTPLUS: tl.constexpr):
    """Add a tile to a running sum, or to a running maximum and sum of exponentials (online softmax)."""
    if SOFTPLUS:
        return row_max, row_sum + tl.sum(tl.where(keep, _softplus(x) * tl.exp(w), 0.0), 1)
    else:
        x = tl.where(keep, x + w, LOWEST)
        new_max = tl.maximum(row_max, tl.max(x, 1))
        p = tl.where(keep, tl.exp(x - new_max[:, None]), 0.0)
        return new_max, row_sum * tl.exp(row_max - new_max) + tl.sum(p, 1)


@triton.jit
def _result(row_max, row_sum, SOFTPLUS: tl.constexpr):
    if SOFTPLUS:
        return row_sum
    else:
        return row_max + tl.log(row_sum)


@triton.jit
def _value_gradient(value, out, upstream, rows, M, s, w, keep, SOFTPLUS: tl.constexpr, PER_ANCHOR: tl.constexpr):
    """Compute ``dL/df`` of each pair."""
    g = tl.load(upstream + rows, mask=rows < M, other=0.0)
    x = _quadratic(value, rows, M, s, PER_ANCHOR)
    if SOFTPLUS:
        return tl.where(keep, g * tl.sigmoid(x) * tl.exp(w), 0.0)
    else:
        lse = tl.load(out + rows, mask=rows < M, other=0.0)
        p = tl.exp(tl.minimum(x + w - lse, 0.0))  # a share is at most one; without negatives, it would be anything
        return tl.where(keep, g * p, 0.0)


# ---- kernels -----------------------------------------------------------------------------------
# anchors: (M, d); keys: (N, d); row_ids: (M,); key_ids, log_weight: (N,)
# value: (3, M or 1); slope: (2, M or 1); out, upstream: (M,)
# STEP: columns that are multiplied at a time, 0: all


@triton.jit
def forward(
    anchors, keys, row_ids, key_ids, log_weight, value, out, M, N, d,
    SOFTPLUS: tl.constexpr, PER_ANCHOR: tl.constexpr, IDS: tl.constexpr, WEIGHTS: tl.constexpr,
    OWNED: tl.constexpr, ITERATED: tl.constexpr, BLOCK_D: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # 1. a block of anchors, and its running statistics
    i = tl.program_id(0) * OWNED + tl.arange(0, OWNED)
    rows = i[:, None]
    q = _load_block(anchors, i, M, d, 0, BLOCK_D)  # (OWNED, BLOCK_D)
    row_max = tl.full((OWNED,), LOWEST, tl.float32)
    row_sum = tl.zeros((OWNED,), tl.float32)
    for start in range(0, N, ITERATED):
        # 2. similarities to a block of keys, (OWNED, ITERATED)
        j = start + tl.arange(0, ITERATED)
        cols = j[None, :]
        if STEP:
            s = _similarities_in_steps(anchors, i, M, keys, j, N, d, OWNED, ITERATED, STEP, PRECISION)
        else:
            s = _similarities(q, _load_block(keys, j, N, d, 0, BLOCK_D), PRECISION)
        keep = _negatives(rows, cols, row_ids, key_ids, M, N, IDS)
        w = _log_weights(cols, log_weight, N, WEIGHTS)
        # 3. functions of them
        x = _quadratic(value, rows, M, s, PER_ANCHOR)
        row_max, row_sum = _accumulate(row_max, row_sum, x, w, keep, SOFTPLUS)
    # 4. log-sum-exps, or sums
    tl.store(out + i, _result(row_max, row_sum, SOFTPLUS), mask=i < M)


@triton.jit
def backward_anchors(
    anchors, keys, row_ids, key_ids, log_weight, value, slope, out, upstream, d_anchors, moments, M, N, d,
    SOFTPLUS: tl.constexpr, PER_ANCHOR: tl.constexpr, IDS: tl.constexpr, WEIGHTS: tl.constexpr,
    LEARNED: tl.constexpr,
    OWNED: tl.constexpr, ITERATED: tl.constexpr, BLOCK_D: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # 1. a block of anchors; moments sum_j g s^n of the value gradients g are those of the coefficients
    i = tl.program_id(0) * OWNED + tl.arange(0, OWNED)
    rows = i[:, None]
    q = _load_block(anchors, i, M, d, 0, BLOCK_D)  # (OWNED, BLOCK_D)
    dq = tl.zeros((OWNED, BLOCK_D), tl.float32)
    a0 = tl.zeros((OWNED,), tl.float32)
    a1, a2 = a0, a0
    for start in range(0, N, ITERATED):
        # 2. recompute similarities to a block of keys, (OWNED, ITERATED)
        j = start + tl.arange(0, ITERATED)
        cols = j[None, :]
        k = _load_block(keys, j, N, d, 0, BLOCK_D)  # (ITERATED, BLOCK_D)
        if STEP:
            s = _similarities_in_steps(anchors, i, M, keys, j, N, d, OWNED, ITERATED, STEP, PRECISION)
        else:
            s = _similarities(q, k, PRECISION)
        keep = _negatives(rows, cols, row_ids, key_ids, M, N, IDS)
        w = _log_weights(cols, log_weight, N, WEIGHTS)
        # 3. their gradient
        g = _value_gradient(value, out, upstream, rows, M, s, w, keep, SOFTPLUS, PER_ANCHOR)
        ds = g * _slope(slope, rows, M, s, PER_ANCHOR)
        if LEARNED:
            a0 += tl.sum(g, 1)
            a1 += tl.sum(g * s, 1)
            a2 += tl.sum(g * s * s, 1)
        # 4. dq
        dq += _weighted_sum(ds, k, PRECISION)
    _store_block(d_anchors, i, M, d, dq, BLOCK_D)
    if LEARNED:
        tl.store(moments + i, a2, mask=i < M)
        tl.store(moments + M + i, a1, mask=i < M)
        tl.store(moments + 2 * M + i, a0, mask=i < M)


@triton.jit
def backward_keys(
    anchors, keys, row_ids, key_ids, log_weight, value, slope, out, upstream, d_keys, M, N, d,
    SOFTPLUS: tl.constexpr, PER_ANCHOR: tl.constexpr, IDS: tl.constexpr, WEIGHTS: tl.constexpr,
    OWNED: tl.constexpr, ITERATED: tl.constexpr, BLOCK_D: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # 1. a block of keys
    j = tl.program_id(0) * OWNED + tl.arange(0, OWNED)
    cols = j[:, None]
    k = _load_block(keys, j, N, d, 0, BLOCK_D)  # (OWNED, BLOCK_D)
    dk = tl.zeros((OWNED, BLOCK_D), tl.float32)
    for start in range(0, M, ITERATED):
        # 2. recompute similarities to a block of anchors, (OWNED, ITERATED)
        i = start + tl.arange(0, ITERATED)
        rows = i[None, :]
        q = _load_block(anchors, i, M, d, 0, BLOCK_D)  # (ITERATED, BLOCK_D)
        if STEP:
            s = _similarities_in_steps(keys, j, N, anchors, i, M, d, OWNED, ITERATED, STEP, PRECISION)
        else:
            s = _similarities(k, q, PRECISION)
        keep = _negatives(rows, cols, row_ids, key_ids, M, N, IDS)
        w = _log_weights(cols, log_weight, N, WEIGHTS)
        # 3. their gradient
        g = _value_gradient(value, out, upstream, rows, M, s, w, keep, SOFTPLUS, PER_ANCHOR)
        ds = g * _slope(slope, rows, M, s, PER_ANCHOR)
        # 4. dk
        dk += _weighted_sum(ds, q, PRECISION)
    _store_block(d_keys, j, N, d, dk, BLOCK_D)
