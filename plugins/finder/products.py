"""Products of two tensors, however they are written: ``a @ b.T``, ``einsum``, ``cosine_similarity``, sums, ..."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from .frames import Place


def words(text: str) -> frozenset[str]:
    """Split a table of names."""
    return frozenset(text.split())


PRODUCTS = words(
    """
    matmul __matmul__ __rmatmul__ mm bmm linear einsum inner addmm baddbmm cosine_similarity cdist sum mul __mul__
    __rmul__ multiply tensordot
    """
)


@dataclass
class Product:
    """A product of two tensors: ``out = function(*args)``, of which autograd's node is kept, not the values."""

    kind: str  # matrix, rows (one number per row) or distance
    a: Tensor
    b: Tensor
    edge: GradientEdge
    place: Place
    again: Callable[..., Tensor]  # of a and b
    cosine: bool = False
    lengths: Tensor | None = None  # what it was divided by later, to be cosines
    frames: tuple[FrameType, ...] = ()  # of the call, from the innermost outwards; kept for rows only

    def values(self) -> Tensor:
        """Compute the similarities again, in float64."""
        product = self.again(self.a.detach().double(), self.b.detach().double())
        return product if self.lengths is None else product / self.lengths


def operands(name: str, func: Any, args: Any, kwargs: Any, elementwise: Mapping[Node, Any]) -> Any:
    """Return ``a, b, kind, again, cosine`` of a product, or None if it is not one of embeddings."""
    if name == "sum":
        pair = elementwise.get(args[0].grad_fn) if isinstance(args[0], Tensor) and args[0].grad_fn else None
        dims = kwargs.get("dim", args[1] if len(args) > 1 else None)
        dim = dims[0] if isinstance(dims, (tuple, list)) and len(dims) == 1 else dims
        if pair is None or not isinstance(dim, int) or dim not in (-1, args[0].dim() - 1):
            return None
        if any(not x.requires_grad and bool(((x == 0) | (x == 1)).all()) for x in pair):
            return None  # a mask selects entries
        return *pair, _broadcast_kind(*pair), lambda a, b: (a * b).sum(-1), False
    if name == "einsum":
        operands = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
        if not isinstance(args[0], str) or len(operands) != 2:
            return None
        left, _, right = args[0].replace(" ", "").partition("->")
        first, _, second = left.partition(",")
        shared = set(first) & set(second)
        if "." in left or not shared - set(right):
            return None
        free = [set(term) - shared for term in (first, second)]
        again = functools.partial(torch.einsum, args[0])
        if not free[0] and not free[1]:
            return *operands, "rows", again, False
        if [len(letters) for letters in (*free, shared - set(right))] != [1, 1, 1]:
            return None
        (inner,) = shared - set(right)
        at = first.index(inner), second.index(inner)
        a, b = (x.movedim(i, -1) for x, i in zip(operands, at, strict=True))
        return a, b, "matrix", lambda a, b: again(a.movedim(-1, at[0]), b.movedim(-1, at[1])), False
    if name == "tensordot":
        return _tensordot(*args, **kwargs)
    tensors = [x for x in args if isinstance(x, Tensor)][:3]
    x, y = tensors[-2:] if name in ("addmm", "baddbmm") else [*tensors, None, None][:2]
    if name == "__rmatmul__":
        x, y = y, x
    if x is None or y is None:
        y = y if y is not None else kwargs.get("x2", kwargs.get("other", kwargs.get("mat2", kwargs.get("weight"))))
        if x is None or y is None:
            return None
    if name == "cosine_similarity":
        dim = kwargs.get("dim", args[2] if len(args) > 2 else 1)
        dim -= max(x.dim(), y.dim()) if dim >= 0 else 0
        if -dim > min(x.dim(), y.dim()):
            return None
        x, y = (z.movedim(dim, -1) for z in (x, y))
        return x, y, _broadcast_kind(x, y), lambda a, b: torch.cosine_similarity(a, b, dim=-1), True
    if min(x.dim(), y.dim()) < 2 or x.shape[-1] == 1:  # of lengths, not of embeddings
        return None
    if name == "cdist":
        return x, y, "distance", torch.cdist, False
    return x, y if name in ("linear", "inner") else y.mT, "matrix", lambda a, b: a @ b.mT, False


def _tensordot(a: Tensor, b: Tensor, dims: Any = 2, **_: Any) -> Any:
    """As :func:`operands`, if one dimension of embeddings is contracted; ones beside it do not matter."""
    if isinstance(dims, int):
        dims = range(a.dim() - dims, a.dim()), range(dims)
    rows, shape = [], []
    for x, given in zip((a, b), dims, strict=True):
        inner = [i % x.dim() for i in (given if hasattr(given, "__len__") else [given])]
        outer = [i for i in range(x.dim()) if i not in inner]
        if any(sum(x.shape[i] > 1 for i in some) != 1 for some in (inner, outer)):
            return None
        rows.append(x.permute(*outer, *inner).flatten(0, len(outer) - 1).flatten(1))
        shape += [x.shape[i] for i in outer]
    return *rows, "matrix", lambda a, b: (a @ b.mT).reshape(shape), False


def _broadcast_kind(a: Tensor, b: Tensor) -> str:
    return "rows" if a.shape == b.shape else "matrix"
