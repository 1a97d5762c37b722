"""The GPU kernels of :mod:`counterpoint.engine.triton`.

As in FlashAttention, a program loads a block of anchors, iterates over blocks of keys, and updates a running maximum
and sum per anchor and function; the backward pass recomputes the similarities. Sums of squares are computed from
differences, not from powers of ``s``: of nearly equal similarities, a variance would otherwise be rounding noise, and
negative at times.

Which keys count, and how often, is decided within a tile: by equal ids (``IDS``), by the largest similarity that an
anchor's negatives may have (``LIMITED``), by log-weights (``WEIGHTS``: of the ``keys``, of an anchor's ``own`` hard
negatives, or ``both``), and by whose hard negatives count (``HARD``: ``all``, the anchor's ``own``, or the ``foreign``
ones).
"""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST = tl.constexpr(-3.0e38)  # finite, so that no difference of two is NaN
COUNTS = ["period", "first", "own", "exempt"]  # integers that change from batch to batch


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
def _is_own(rows, cols, period, first, own):
    """Return where a key is one of the anchor's own hard negatives."""
    return ((rows + first) % period)[:, None] == tl.where(cols >= own, cols % period, -1)[None, :]


@triton.jit
def _negatives(
    rows, cols, s, row_ids, key_ids, limit, M, N, period, first, own, exempt,
    IDS: tl.constexpr, LIMITED: tl.constexpr, HARD: tl.constexpr,
):  # fmt: skip
    """Return where a tile has negatives, given its similarities."""
    keep = (rows < M)[:, None] & (cols < N)[None, :]
    if IDS:
        a = tl.load(row_ids + rows, mask=rows < M, other=-1)
        b = tl.load(key_ids + cols, mask=cols < N, other=-1)
        keep = keep & (a[:, None] != b[None, :])
    if LIMITED:
        most = tl.load(limit + rows, mask=rows < M, other=0.0)
        keep = keep & ((s <= most[:, None]) | (cols >= exempt)[None, :])
    if HARD == "own":
        keep = keep & ((cols < own)[None, :] | _is_own(rows, cols, period, first, own))
    if HARD == "foreign":
        keep = keep & (_is_own(rows, cols, period, first, own) == 0)
    return keep


@triton.jit
def _log_weights(rows, cols, log_weight, N, own_weight, period, first, own, WEIGHTS: tl.constexpr):
    """Load the log-weights of the keys, (1, BLOCK_N), or of the pairs, (BLOCK_M, BLOCK_N)."""
    if WEIGHTS == "keys":
        return tl.load(log_weight + cols, mask=cols < N, other=0.0)[None, :]
    elif WEIGHTS == "own":
        return tl.where(_is_own(rows, cols, period, first, own), own_weight, 0.0)
    elif WEIGHTS == "both":
        of_own = tl.where(_is_own(rows, cols, period, first, own), own_weight, 0.0)
        return of_own + tl.load(log_weight + cols, mask=cols < N, other=0.0)[None, :]
    else:
        return 0.0


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
def _accumulate(row_max, row_sum, x, w, keep, SUM: tl.constexpr, WEIGHTS: tl.constexpr):
    """Add a tile to a running sum, or to a running maximum and sum of exponentials (online softmax)."""
    if SUM:
        if WEIGHTS != "":
            x = x * tl.exp(w)
        return row_max, row_sum + tl.sum(tl.where(keep, x, 0.0), 1)
    else:
        if WEIGHTS != "":
            x = x + w
        x = tl.where(keep, x, LOWEST)
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
    value, out, upstream, F: tl.constexpr, rows, M, s, w, keep,
    SUM: tl.constexpr, RELU: tl.constexpr, PER_ANCHOR: tl.constexpr, WEIGHTS: tl.constexpr,
):  # fmt: skip
    """Compute ``dL/df`` of each pair."""
    g = tl.load(upstream + F * M + rows, mask=rows < M, other=0.0)[:, None]
    if SUM:
        if RELU:
            keep = keep & (_value(value, F, rows, M, s, PER_ANCHOR, RELU) > 0.0)
        if WEIGHTS != "":
            g = g * tl.exp(w)
        return tl.where(keep, g, 0.0)
    else:
        lse = tl.load(out + F * M + rows, mask=rows < M, other=0.0)[:, None]
        x = _value(value, F, rows, M, s, PER_ANCHOR, RELU)
        if WEIGHTS != "":
            x = x + w
        p = tl.exp(tl.minimum(x - lse, 0.0))  # a share is at most one; without negatives, it would be anything
        return tl.where(keep, g * p, 0.0)


# ---- kernels -----------------------------------------------------------------------------------
# q: anchors (M, d); k: keys (N, d); row_ids, limit: (M,); key_ids, log_weight: (N,)
# value: (functions, 3, M or 1); slope: (functions, 2, M or 1); out, upstream: (functions, M)
# j % period is the sample of hard negative j, from key ``own`` on, and (i + first) % period that of anchor i; limits
# leave all keys from ``exempt`` on


@triton.jit(do_not_specialize=COUNTS)
def forward(
    anchors, keys, row_ids, key_ids, log_weight, limit, value, center, out,
    M, N, d, own_weight, period, first, own, exempt,
    TWO: tl.constexpr, SUM: tl.constexpr, RELU: tl.constexpr, PER_ANCHOR: tl.constexpr, IDS: tl.constexpr,
    LIMITED: tl.constexpr, WEIGHTS: tl.constexpr, HARD: tl.constexpr,
    SQUARES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    # 1. a block of anchors, and its running statistics
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    q = _load_block(anchors, rows, M, d, BLOCK_D)  # (BLOCK_M, BLOCK_D)
    max0 = tl.full((BLOCK_M,), LOWEST, tl.float32)
    max1 = tl.full((BLOCK_M,), LOWEST, tl.float32)
    sum0 = tl.zeros((BLOCK_M,), tl.float32)
    sum1 = tl.zeros((BLOCK_M,), tl.float32)
    for start in range(0, N, BLOCK_N):
        # 2. similarities to a block of keys
        cols = start + tl.arange(0, BLOCK_N)
        s = _similarities(q, _load_block(keys, cols, N, d, BLOCK_D), PRECISION)  # (BLOCK_M, BLOCK_N)
        keep = _negatives(rows, cols, s, row_ids, key_ids, limit, M, N, period, first, own, exempt, IDS, LIMITED, HARD)
        w = _log_weights(rows, cols, log_weight, N, own_weight, period, first, own, WEIGHTS)
        # 3. functions of them
        u = _shifted(center, 0, rows, M, s, PER_ANCHOR, SQUARES)
        x = _value(value, 0, rows, M, u, PER_ANCHOR, RELU)
        max0, sum0 = _accumulate(max0, sum0, x, w, keep, SUM, WEIGHTS)
        if TWO:
            u = _shifted(center, 1, rows, M, s, PER_ANCHOR, SQUARES)
            x = _value(value, 1, rows, M, u, PER_ANCHOR, RELU)
            max1, sum1 = _accumulate(max1, sum1, x, w, keep, SUM, WEIGHTS)
    # 4. log-sum-exps or sums
    tl.store(out + rows, _result(max0, sum0, SUM), mask=rows < M)
    if TWO:
        tl.store(out + M + rows, _result(max1, sum1, SUM), mask=rows < M)


@triton.jit(do_not_specialize=COUNTS)
def backward_anchors(
    anchors, keys, row_ids, key_ids, log_weight, limit, value, slope, out, upstream, d_anchors, moments,
    M, N, d, own_weight, period, first, own, exempt,
    TWO: tl.constexpr, SUM: tl.constexpr, RELU: tl.constexpr, PER_ANCHOR: tl.constexpr, IDS: tl.constexpr,
    LIMITED: tl.constexpr, WEIGHTS: tl.constexpr, HARD: tl.constexpr,
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
        keep = _negatives(rows, cols, s, row_ids, key_ids, limit, M, N, period, first, own, exempt, IDS, LIMITED, HARD)
        w = _log_weights(rows, cols, log_weight, N, own_weight, period, first, own, WEIGHTS)
        # 3. their gradient
        g = _value_gradient(value, out, upstream, 0, rows, M, s, w, keep, SUM, RELU, PER_ANCHOR, WEIGHTS)
        ds = g * _slope(slope, 0, rows, M, s, PER_ANCHOR)
        if LEARNED:
            a0 += tl.sum(g, 1)
            a1 += tl.sum(g * s, 1)
            a2 += tl.sum(g * s * s, 1)
        if TWO:
            g = _value_gradient(value, out, upstream, 1, rows, M, s, w, keep, SUM, RELU, PER_ANCHOR, WEIGHTS)
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


@triton.jit(do_not_specialize=COUNTS)
def backward_keys(
    anchors, keys, row_ids, key_ids, log_weight, limit, value, slope, out, upstream, d_keys,
    M, N, d, own_weight, period, first, own, exempt,
    TWO: tl.constexpr, SUM: tl.constexpr, RELU: tl.constexpr, PER_ANCHOR: tl.constexpr, IDS: tl.constexpr,
    LIMITED: tl.constexpr, WEIGHTS: tl.constexpr, HARD: tl.constexpr,
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
        keep = _negatives(rows, cols, s, row_ids, key_ids, limit, M, N, period, first, own, exempt, IDS, LIMITED, HARD)
        w = _log_weights(rows, cols, log_weight, N, own_weight, period, first, own, WEIGHTS)
        # 3. their gradient
        g = _value_gradient(value, out, upstream, 0, rows, M, s, w, keep, SUM, RELU, PER_ANCHOR, WEIGHTS)
        ds = g * _slope(slope, 0, rows, M, s, PER_ANCHOR)
        if TWO:
            g = _value_gradient(value, out, upstream, 1, rows, M, s, w, keep, SUM, RELU, PER_ANCHOR, WEIGHTS)
            ds += g * _slope(slope, 1, rows, M, s, PER_ANCHOR)
        # 4. dk
        dk += _weighted_sum(tl.trans(ds), q, PRECISION)
    _store_block(d_keys, cols, N, d, dk, BLOCK_D)
