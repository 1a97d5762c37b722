"""Reductions over negatives on a GPU, in Triton: no similarity ever leaves the chip.

For functions that are at most quadratic in the similarity, ``f(s) = a s^2 + b s + c``, which covers InfoNCE, DCL, HCL,
ADNCE with Gaussian weights, means, variances and distances; sums may count it only where it is positive (the
polarisation of distances). A program holds a block of anchors, runs over the keys, and keeps a running maximum and sum
per anchor and function. The backward pass computes the similarities again.

What is detached within ``f`` (ADNCE's weights) makes its derivative another one than that of its value, so the
derivative ``f'(s) = p s + q`` is given beside it. Sums of squares are made of differences, not of powers of ``s``: of
nearly equal similarities, a variance would be nothing but rounding, and negative at times.

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

from .passes import ONCE

WIDEST = 1024  # embeddings wider than this do not fit
H100 = 227 * 1024  # bytes of memory on the chip of an H100 or H200
_TYPES = (torch.float32, torch.bfloat16, torch.float16)
_PRECISION = {"highest": "ieee", "high": "tf32x3", "medium": "tf32"}
_EMPTY = tl.constexpr(-3.0e38)  # finite, so that no difference of two is NaN


# A helper's constant conditions need their else: Triton compiles what follows an early return all the same.


@triton.jit
def _vectors(pointer, rows, count, d, bd: tl.constexpr):
    deep = tl.arange(0, bd)
    inside = (rows < count)[:, None] & (deep < d)[None, :]
    return tl.load(pointer + rows.to(tl.int64)[:, None] * d + deep[None, :], mask=inside, other=0.0)


@triton.jit
def _similar(a, k, how: tl.constexpr):
    if how == "widened":  # the interpreter cannot multiply bfloat16
        return tl.dot(a.to(tl.float32), tl.trans(k.to(tl.float32)), input_precision="ieee")
    else:
        return tl.dot(a, tl.trans(k), input_precision=how)


@triton.jit
def _product(g, z, how: tl.constexpr):
    if how == "widened":
        return tl.dot(g, z.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(g.to(z.dtype), z, input_precision=how)


@triton.jit
def _kept(rows, columns, row_ids, key_ids, n, m, masked: tl.constexpr):
    """Where a tile holds negatives."""
    keep = (rows < n)[:, None] & (columns < m)[None, :]
    if masked:
        mine = tl.load(row_ids + rows, mask=rows < n, other=-1)
        theirs = tl.load(key_ids + columns, mask=columns < m, other=-1)
        keep = keep & (mine[:, None] != theirs[None, :])
    return keep


@triton.jit
def _of_row(pointer, which, rows, n, wide: tl.constexpr):
    """A number of each row, or the one that all rows share: of ``(numbers, n)``, or of ``(numbers, 1)``."""
    if wide:
        return tl.load(pointer + which * n + rows, mask=rows < n, other=0.0)[:, None]
    else:
        return tl.load(pointer + which)


@triton.jit
def _at(value, f: tl.constexpr, rows, n, s, wide: tl.constexpr, hill: tl.constexpr):
    """``f(s)``."""
    x2 = _of_row(value, 3 * f, rows, n, wide)
    x1 = _of_row(value, 3 * f + 1, rows, n, wide)
    x = (x2 * s + x1) * s + _of_row(value, 3 * f + 2, rows, n, wide)
    if hill:
        x = tl.maximum(x, 0.0)
    return x


@triton.jit
def _beyond(centre, f: tl.constexpr, rows, n, s, wide: tl.constexpr, squares: tl.constexpr):
    """``s``, or how far it is from the centre of a square."""
    if squares:
        return s - _of_row(centre, f, rows, n, wide)
    else:
        return s


@triton.jit
def _slope(slope, f: tl.constexpr, rows, n, s, wide: tl.constexpr):
    """``f'(s)``."""
    return _of_row(slope, 2 * f, rows, n, wide) * s + _of_row(slope, 2 * f + 1, rows, n, wide)


@triton.jit
def _fold(top, total, x, keep, summed: tl.constexpr):
    """Takes a tile into a running sum, or into a running maximum and sum of exponentials."""
    if summed:
        return top, total + tl.sum(tl.where(keep, x, 0.0), 1)
    else:
        x = tl.where(keep, x, _EMPTY)
        new = tl.maximum(top, tl.max(x, 1))
        terms = tl.where(keep, tl.exp(x - new[:, None]), 0.0)
        return new, total * tl.exp(top - new) + tl.sum(terms, 1)


@triton.jit
def _closed(top, total, summed: tl.constexpr):
    if summed:
        return total
    else:
        return top + tl.log(total)


@triton.jit
def _forward(
    anchors, keys, row_ids, key_ids, value, centre, out, n, m, d,
    two: tl.constexpr, summed: tl.constexpr, hill: tl.constexpr, wide: tl.constexpr, masked: tl.constexpr,
    squares: tl.constexpr, bn: tl.constexpr, bm: tl.constexpr, bd: tl.constexpr, how: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * bn + tl.arange(0, bn)
    a = _vectors(anchors, rows, n, d, bd)
    top = tl.full((bn,), _EMPTY, tl.float32)
    other_top = tl.full((bn,), _EMPTY, tl.float32)
    total = tl.zeros((bn,), tl.float32)
    other = tl.zeros((bn,), tl.float32)
    for start in range(0, m, bm):
        columns = start + tl.arange(0, bm)
        s = _similar(a, _vectors(keys, columns, m, d, bd), how)
        keep = _kept(rows, columns, row_ids, key_ids, n, m, masked)
        u = _beyond(centre, 0, rows, n, s, wide, squares)
        top, total = _fold(top, total, _at(value, 0, rows, n, u, wide, hill), keep, summed)
        if two:
            u = _beyond(centre, 1, rows, n, s, wide, squares)
            other_top, other = _fold(other_top, other, _at(value, 1, rows, n, u, wide, hill), keep, summed)
    tl.store(out + rows, _closed(top, total, summed), mask=rows < n)
    if two:
        tl.store(out + n + rows, _closed(other_top, other, summed), mask=rows < n)


@triton.jit
def _weight(
    value, out, upstream, f: tl.constexpr, rows, n, s, keep,
    summed: tl.constexpr, hill: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    """The derivative of the loss with respect to ``f(s)``."""
    up = tl.load(upstream + f * n + rows, mask=rows < n, other=0.0)[:, None]
    if summed:
        if hill:
            keep = keep & (_at(value, f, rows, n, s, wide, hill) > 0.0)
        return tl.where(keep, up, 0.0)
    else:
        done = tl.load(out + f * n + rows, mask=rows < n, other=0.0)[:, None]
        # a share is at most one; where nothing is kept, it could be anything
        share = tl.exp(tl.minimum(_at(value, f, rows, n, s, wide, hill) - done, 0.0))
        return tl.where(keep, up * share, 0.0)


@triton.jit
def _backward_anchors(
    anchors, keys, row_ids, key_ids, value, slope, out, upstream, gradient, moments, n, m, d,
    two: tl.constexpr, summed: tl.constexpr, hill: tl.constexpr, wide: tl.constexpr, masked: tl.constexpr,
    learned: tl.constexpr, bn: tl.constexpr, bm: tl.constexpr, bd: tl.constexpr, how: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * bn + tl.arange(0, bn)
    a = _vectors(anchors, rows, n, d, bd)
    total = tl.zeros((bn, bd), tl.float32)
    m0 = tl.zeros((bn,), tl.float32)
    m1, m2, o0, o1, o2 = m0, m0, m0, m0, m0
    for start in range(0, m, bm):
        columns = start + tl.arange(0, bm)
        k = _vectors(keys, columns, m, d, bd)
        s = _similar(a, k, how)
        keep = _kept(rows, columns, row_ids, key_ids, n, m, masked)
        w = _weight(value, out, upstream, 0, rows, n, s, keep, summed, hill, wide)
        g = w * _slope(slope, 0, rows, n, s, wide)
        if learned:
            m0 += tl.sum(w, 1)
            m1 += tl.sum(w * s, 1)
            m2 += tl.sum(w * s * s, 1)
        if two:
            w = _weight(value, out, upstream, 1, rows, n, s, keep, summed, hill, wide)
            g += w * _slope(slope, 1, rows, n, s, wide)
            if learned:
                o0 += tl.sum(w, 1)
                o1 += tl.sum(w * s, 1)
                o2 += tl.sum(w * s * s, 1)
        total += _product(g, k, how)
    deep = tl.arange(0, bd)
    inside = (rows < n)[:, None] & (deep < d)[None, :]
    tl.store(gradient + rows.to(tl.int64)[:, None] * d + deep[None, :], total, mask=inside)
    if learned:
        tl.store(moments + rows, m2, mask=rows < n)
        tl.store(moments + n + rows, m1, mask=rows < n)
        tl.store(moments + 2 * n + rows, m0, mask=rows < n)
        if two:
            tl.store(moments + 3 * n + rows, o2, mask=rows < n)
            tl.store(moments + 4 * n + rows, o1, mask=rows < n)
            tl.store(moments + 5 * n + rows, o0, mask=rows < n)


@triton.jit
def _backward_keys(
    anchors, keys, row_ids, key_ids, value, slope, out, upstream, gradient, n, m, d,
    two: tl.constexpr, summed: tl.constexpr, hill: tl.constexpr, wide: tl.constexpr, masked: tl.constexpr,
    bn: tl.constexpr, bm: tl.constexpr, bd: tl.constexpr, how: tl.constexpr,
):  # fmt: skip
    columns = tl.program_id(0) * bm + tl.arange(0, bm)
    k = _vectors(keys, columns, m, d, bd)
    total = tl.zeros((bm, bd), tl.float32)
    for start in range(0, n, bn):
        rows = start + tl.arange(0, bn)
        a = _vectors(anchors, rows, n, d, bd)
        s = _similar(a, k, how)
        keep = _kept(rows, columns, row_ids, key_ids, n, m, masked)
        g = _weight(value, out, upstream, 0, rows, n, s, keep, summed, hill, wide) * _slope(slope, 0, rows, n, s, wide)
        if two:
            w = _weight(value, out, upstream, 1, rows, n, s, keep, summed, hill, wide)
            g += w * _slope(slope, 1, rows, n, s, wide)
        total += _product(tl.trans(g), a, how)
    deep = tl.arange(0, bd)
    inside = (columns < m)[:, None] & (deep < d)[None, :]
    tl.store(gradient + columns.to(tl.int64)[:, None] * d + deep[None, :], total, mask=inside)


def _smaller(room: int) -> int:
    """By how much blocks are smaller than an H100's: its memory, half of that (A100), less (consumer cards)."""
    return 1 if room >= H100 else 2 if room >= H100 // 2 else 4


def _blocks(width: int, dtype: torch.dtype, how: str, room: int) -> tuple[int, int, int]:
    """Sizes of the block that is held, of the one that passes by, and of the width.

    Both blocks share the on-chip memory, ``room`` bytes, where three TF32 products need everything several times. What
    is accumulated takes half of the registers of eight warps. ``tests/support/compile_triton.py`` checks it.
    """
    bd = max(16, triton.next_power_of_2(width))
    row = bd * dtype.itemsize * (4 if how == "tf32x3" else 1)
    less = _smaller(room)
    held = min(128, 32768 // bd, 131072 // less // row) if row <= 2048 // less else 16
    return max(16, held), max(16, min(64, 32768 // less // row)), bd


@cache
def _room(device: torch.device) -> int:
    """Bytes of on-chip memory."""
    if device.type != "cuda":
        return H100
    found: int = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)["max_shared_mem"]
    return found


def widest(dtype: torch.dtype, room: int) -> int:
    """The widest embeddings for which there is room."""
    return min(WIDEST, WIDEST * 4 // dtype.itemsize // _smaller(room))


def takes(z: Tensor, functions: int) -> bool:
    """Whether :func:`reduce` can take such embeddings and so many functions."""
    return functions <= 2 and z.dtype in _TYPES and z.shape[1] <= widest(z.dtype, _room(z.device))


def _how(anchors: Tensor) -> str:
    """How :func:`_similar` multiplies."""
    if _interpreted():
        return "widened"
    how = _PRECISION[torch.get_float32_matmul_precision()]
    wide = anchors.shape[1] > WIDEST // 2 and anchors.dtype == torch.float32
    return "ieee" if how == "tf32x3" and wide else how  # there is no room for it


def _centred(value: Tensor) -> tuple[Tensor, Tensor]:
    """Squares ``a (s - b)^2`` as ``a u^2`` with ``u = s - b``, all else as it is, and ``b`` or zero."""
    x2, x1, x0 = value.unbind(1)
    centre = torch.where(x2 == 0, torch.zeros_like(x1), -x1 / (2 * x2))
    square = (x0 - x2 * centre**2).abs() <= 1e-6 * x0.abs()
    centre = torch.where(square, centre, torch.zeros_like(centre))
    return torch.where((centre != 0).unsqueeze(1), torch.stack([x2, 0 * x1, 0 * x0], 1), value), centre


class _Reduce(torch.autograd.Function):
    """See :func:`reduce`."""

    @staticmethod
    def forward(
        ctx: Any,
        anchors: Tensor,
        keys: Tensor,
        value: Tensor,
        slope: Tensor,
        ids: tuple[Tensor, Tensor] | None,
        summed: bool,
        hill: bool,
    ) -> Tensor:
        anchors, keys = anchors.contiguous(), keys.contiguous()
        row_ids, key_ids = ids if ids is not None else (anchors, keys)  # a pointer must be given, and is not read
        how = _how(anchors)
        held, passing, bd = _blocks(anchors.shape[1], anchors.dtype, how, _room(anchors.device))
        n, functions = len(anchors), len(value)
        ctx.constants = {
            "two": functions == 2,
            "summed": summed,
            "hill": hill,
            "wide": value.shape[2] > 1,
            "masked": ids is not None,
            "bd": bd,
            "how": how,
        }
        value, slope = value.contiguous(), slope.contiguous()
        out = torch.empty(functions, n, dtype=torch.float32, device=anchors.device)
        squares = summed and not hill
        numbers, centre = _centred(value) if squares else (value, value)  # the second is not read
        _forward[(triton.cdiv(n, held),)](
            anchors, keys, row_ids, key_ids, numbers, centre, out, n, len(keys), anchors.shape[1],
            squares=squares, bn=held, bm=passing, num_warps=8, **ctx.constants,
        )  # fmt: skip
        ctx.save_for_backward(anchors, keys, row_ids, key_ids, value, slope, out)
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(ONCE)
        anchors, keys, *_, value, _, _ = saved = ctx.saved_tensors
        held, passing, _ = _blocks(anchors.shape[1], anchors.dtype, ctx.constants["how"], _room(anchors.device))
        n, m, d = len(anchors), len(keys), anchors.shape[1]
        upstream = upstream.contiguous()
        needed = ctx.needs_input_grad
        to_anchors = to_keys = to_value = None
        if needed[0] or needed[2]:
            to_anchors = torch.empty(n, d, dtype=torch.float32, device=anchors.device)
            moments = torch.empty(len(value), 3, n if needed[2] else 0, dtype=torch.float32, device=anchors.device)
            _backward_anchors[(triton.cdiv(n, held),)](
                *saved, upstream, to_anchors, moments, n, m, d,
                learned=needed[2], bn=held, bm=passing, num_warps=8, **ctx.constants,
            )  # fmt: skip
            to_anchors = to_anchors.to(anchors.dtype)
            to_value = moments.sum_to_size(value.shape) if needed[2] else None
        if needed[1]:
            to_keys = torch.empty(m, d, dtype=torch.float32, device=anchors.device)
            _backward_keys[(triton.cdiv(m, held),)](
                *saved, upstream, to_keys, n, m, d, bn=passing, bm=held, num_warps=8, **ctx.constants
            )
            to_keys = to_keys.to(keys.dtype)
        return to_anchors, to_keys, to_value, None, None, None, None


def _interpreted() -> bool:
    return not isinstance(_forward, triton.runtime.JITFunction)


def reduce(
    anchors: Tensor,
    keys: Tensor,
    value: Tensor,
    slope: Tensor,
    ids: tuple[Tensor, Tensor] | None = None,
    summed: bool = False,
    hill: bool = False,
) -> Tensor:
    """``log sum_j exp f(s_ij)``, or ``sum_j f(s_ij)``, over the keys ``j`` that are negatives of anchor ``i``.

    Args:
        anchors, keys: ``(n, d)`` and ``(m, d)`` with ``d`` up to 1024, whose inner products are the similarities.
        value: ``(functions, 3, n)``, or ``(functions, 3, 1)`` if it is the same for all anchors: ``a``, ``b`` and
            ``c`` of one or two functions ``f(s) = a s^2 + b s + c``. Its gradient is exact.
        slope: ``(functions, 2, n or 1)``: ``p`` and ``q`` of their derivatives with respect to ``s``.
        ids: integers ``(n,)`` and ``(m,)``; a key with the anchor's own is none of its negatives.
        summed: the sum of ``f`` instead.
        hill: of ``max(0, f)``; only for a sum.

    Returns:
        ``(functions, n)``, in float32.
    """
    out: Tensor = _Reduce.apply(anchors, keys, value, slope, ids, summed, hill)
    return out
