"""Which samples are the same: by ids, texts or rows, or by embeddings that are equal but for rounding."""

from collections.abc import Collection, Mapping, Sequence, Set
from functools import reduce
from hashlib import blake2b
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, distributed

from ..engine.distributed import Gather, gather, resolve
from ..vectors import widen

_EQUAL = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def numbered(values: Any, group: Gather, dtype: torch.dtype | None = None) -> Tensor:
    """Return an integer for each row or value, the same for equal ones, also in other processes of ``group``."""
    if isinstance(values, Mapping) and "input_ids" in values:  # what tokenizers return
        values = values["input_ids"]
    if not isinstance(values, Tensor):
        listed = isinstance(values, Collection) and not isinstance(values, (str, bytes, Mapping, Set))
        if not listed or not all(isinstance(value, (str, bytes, Integral)) for value in values):
            got = type(values).__name__
            raise TypeError(f"treatment: expected a tensor, or a list of texts or whole numbers, got {got}.")
        texts = (repr(value).encode() for value in values)
        return torch.tensor([int.from_bytes(blake2b(x, digest_size=8).digest(), "little", signed=True) for x in texts])
    if values.dim() < (2 if values.is_floating_point() else 1):
        raise TypeError(f"treatment: expected whole numbers or rows, got {values.dtype} of shape {(*values.shape,)}.")
    if values.is_floating_point():
        values = values.detach()
        handle = resolve(group) if group else None
        every = _equal_rows(gather(values, handle) if handle else values, _EQUAL[dtype or values.dtype])
        return _own(every, len(values), handle)
    if values.dim() == 1:
        return values
    rows = values.flatten(1).long()
    odd = torch.randint(2**62, (rows.shape[1],), generator=torch.Generator().manual_seed(0)) * 2 + 1
    return (rows * odd.to(rows.device)).sum(1)  # a hash of 64 bits: it overflows


def _equal_rows(x: Tensor, rounding: float) -> Tensor:
    """Number the rows ``(n, d)`` so that those equal but for ``rounding``, relative to the largest entry, are one."""
    x = widen(x)
    direction = torch.randn(x.shape[1], generator=torch.Generator().manual_seed(0)).to(x)
    order = (x @ direction).argsort()  # equal rows are neighbors
    ordered = x[order]
    differs = (ordered[1:] - ordered[:-1]).abs().amax(1) > rounding * x.abs().amax()
    return torch.zeros_like(order).scatter(0, order[1:], differs.long().cumsum(0))


def equal_pairs(anchors: Any, keys: Any, shape: tuple[int, ...], what: str) -> Tensor:
    """Return which keys are the same as an anchor, ``(anchors, keys)``, given a value or a row for each of both."""
    if (len(anchors), len(keys)) != tuple(shape):
        raise ValueError(f"{what}: expected {shape[0]} and {shape[1]} values, got {len(anchors)} and {len(keys)}.")
    if isinstance(anchors, Tensor) and anchors.is_floating_point():
        both = numbered(torch.cat([anchors, keys]), False)
        return both[: len(anchors)].unsqueeze(1) == both[len(anchors) :]
    return numbered(anchors, False).unsqueeze(1) == numbered(keys, False)


def merged(a: Tensor, b: Tensor) -> Tensor:
    """Number samples so that those with one number in ``a``, or in ``b``, have one number, also through others."""
    number = torch.arange(len(a), device=a.device)
    groups = [torch.unique(x.to(a.device), return_inverse=True)[1] for x in (a, b)]
    while True:
        before = number
        for group in groups:
            number = torch.full_like(number, len(a)).scatter_reduce(0, group, number, "amin")[group]
        if torch.equal(before, number):
            return number


def merged_of_all(numbers: Sequence[Tensor], group: Gather) -> Tensor:
    """Merge the numbers of this process's samples with those of all processes; return this process's."""
    handle = resolve(group) if group else None
    every = [gather(x, handle) for x in numbers] if handle else numbers
    return _own(reduce(merged, every), len(numbers[0]), handle)


def _own(every: Tensor, count: int, handle: Any) -> Tensor:
    """Return the rows of this process, ``count`` of them."""
    sizes: Any = gather(torch.tensor([count], device=every.device), handle) if handle else []
    return every[int(sum(sizes[: distributed.get_rank(handle) if handle else 0])) :][:count]


def is_part(values: Tensor, keys: int) -> bool:
    """Return whether the values are those of this process, and the keys those of all."""
    return distributed.is_initialized() and len(values) < keys == len(values) * distributed.get_world_size()


def spread(values: Tensor, columns: Tensor, counted: Tensor, keys: int, what: str) -> Tensor:
    """Return a number for each key, given one per key, per anchor, or per sample of two views.

    ``columns`` are the positives of the anchors that are ``counted``. Keys of which nothing is known have their own.
    """
    anchors = len(columns)
    if is_part(values, keys):
        every = gather(values)
        own = {2 * len(values): values.repeat(2), len(values): values, keys: every}.get(anchors, every[columns])
        fits_all = torch.equal(every[columns][counted], own[counted])  # else its own keys are as many as all samples
        values = every if bool(gather(values.new_tensor([fits_all])).all()) else values
    if 2 * len(values) == anchors:
        both = [values.repeat(2), values.repeat_interleave(2)]
        fits = [two for two in both if keys != anchors or torch.equal(two[columns][counted], two[counted])]
        if not fits or (keys == anchors and not torch.equal(fits[0], fits[-1])):
            raise ValueError(f"{what}: the {len(values)} values fit {'n' * (not fits)}either order of two views.")
        values = fits[0]
    if len(values) == keys:
        return values
    if len(values) != anchors:
        raise ValueError(f"{what}: expected one value for each of {anchors} anchors or {keys} keys, got {len(values)}.")
    groups = torch.unique(values, return_inverse=True)[1]
    number = (anchors + torch.arange(keys, device=values.device)).scatter(0, columns[counted], groups[counted])
    if not torch.equal(number[columns[counted]], groups[counted]):
        raise ValueError(f"{what}: anchors with one positive have several values: expected one per key, {keys} in all.")
    return number


def positives_of(s: Tensor, labels: Tensor | None, ignore_index: int) -> Tensor:
    """Return which logits are of positives, of the shape of the logits; in rows to ignore, none."""
    if labels is None:
        return torch.eye(*s.shape[-2:], dtype=torch.bool, device=s.device).expand(s.shape)
    if labels.shape == s.shape:
        return labels > 0 if labels.is_floating_point() else labels
    counted = labels != ignore_index
    columns = labels.where(counted, 0).long().unsqueeze(-1)
    return torch.zeros_like(s, dtype=torch.bool).scatter(-1, columns, True) & counted.unsqueeze(-1)
