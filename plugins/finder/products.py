"""Products of two tensors, however they are written: ``a @ b.T``, ``einsum``, ``cosine_similarity``, sums, ..."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from string import ascii_lowercase, ascii_uppercase
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
    matmul __matmul__ __rmatmul__ mm mv bmm linear einsum inner addmm baddbmm cosine_similarity cdist sum mean mul
    __mul__ __rmul__ multiply tensordot
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
    frames: tuple[FrameType, ...]  # of the call, from the innermost outwards; the first alone but for rows
    again: Callable[..., Tensor]  # of a and b
    cosine: bool = False
    factor: float = 1.0  # of ``again``
    lengths: Tensor | None = None  # what it was divided by later, to be cosines

    def values(self) -> Tensor:
        """Compute the similarities again, in float64."""
        product = self.again(self.a.detach().double(), self.b.detach().double())
        return product if self.lengths is None else product / self.lengths


def operands(name: str, func: Any, args: Any, kwargs: Any, elementwise: Mapping[Node, Any]) -> Any:
    """Return ``a, b, kind, again, cosine`` of a product, and its factor; None if it is not one of embeddings."""
    if name in ("sum", "mean"):
        return _sum(name, elementwise, *args, **kwargs)
    if name == "einsum":
        return _einsum(*args) if isinstance(args[0], str) else None
    if name == "tensordot":
        return _tensordot(*args, **kwargs)
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)][:3]
    x, y = tensors[-2:] if name in ("addmm", "baddbmm") else [*tensors, None, None][:2]
    if x is None or y is None:
        return None
    if name == "__rmatmul__":
        x, y = y, x
    if name == "cosine_similarity":
        return _cosine(x, y, kwargs.get("dim", args[2] if len(args) > 2 else 1))
    if min(x.dim(), y.dim()) < 1 or x.shape[-1] == 1:  # of lengths, not of embeddings
        return None
    if name == "cdist":
        return x, y, "distance", torch.cdist, False
    if x.dim() == y.dim() == 1:
        return x, y, "rows", torch.dot, False
    turned = name in ("linear", "inner") or y.dim() == 1
    return x, y if turned else y.mT, "matrix", lambda a, b: a @ (b if b.dim() == 1 else b.mT), False


def _sum(name: str, elementwise: Mapping[Node, Any], x: Any, dims: Any = None, *_: Any, **kwargs: Any) -> Any:
    """As :func:`operands`, for the sum or mean of an elementwise product over its last dimension."""
    node = x.grad_fn if isinstance(x, Tensor) else None
    factor = _number(node) if node is not None and node not in elementwise else 1.0  # (a * b / t).sum(-1)
    if node is None or factor is None:
        return None
    above = node.next_functions[0][0] if node.next_functions else None
    pair = elementwise.get(node) or (elementwise.get(above) if above is not None else None)
    dims = kwargs.get("dim", dims)
    dim = dims[0] if isinstance(dims, (tuple, list)) and len(dims) == 1 else dims
    if pair is None or not isinstance(dim, int) or dim not in (-1, x.dim() - 1):
        return None
    if any(not each.requires_grad and bool(((each == 0) | (each == 1)).all()) for each in pair):
        return None  # a mask selects entries
    factor = factor / x.shape[-1] if name == "mean" else factor
    kind = "rows" if pair[0].shape == pair[1].shape else "matrix"
    return *pair, kind, lambda a, b: factor * (a * b).sum(-1), False, factor


def _number(node: Node) -> float | None:
    """Return the number that a node of autograd multiplies a tensor by, or None."""
    name, other = node.name(), getattr(node, "_saved_other", None)
    if name not in ("DivBackward0", "MulBackward0") or not isinstance(other, Tensor) or other.numel() != 1:
        return None
    number = float(other.detach())
    return 1 / number if name == "DivBackward0" else number


def _einsum(equation: str, *tensors: Any) -> Any:
    """As :func:`operands`, if dimensions are contracted; tensors after the second are factors of that one."""
    tensors = tuple(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors
    left, arrow, right = equation.replace(" ", "").partition("->")
    right = right if arrow else "".join(c for c in sorted(left) if left.count(c) == 1)
    x, _, others = left.partition(",")
    y, *more = others.split(",")
    inner = "".join(c for c in x if c in y and c not in right)
    if "." in left or not inner or any(len({*z}) < len(z) for z in (x, y)) or not {*"".join(more)} <= {*y}:
        return None
    one, two = ("".join(c for c in term if c not in inner) for term in (x, y))
    a = torch.einsum(f"{x}->{one}{inner}", tensors[0]).flatten(len(one))
    b = torch.einsum(f"{others}->{two}{inner}", *tensors[1:]).flatten(len(two))
    again = functools.partial(torch.einsum, f"{one}{inner[0]},{two}{inner[0]}->{right}")
    return a, b, "rows" if {*one} == {*two} else "matrix", again, False


def _cosine(x: Tensor, y: Tensor, dim: int) -> Any:
    dim -= max(x.dim(), y.dim()) if dim >= 0 else 0
    if -dim > min(x.dim(), y.dim()):
        return None
    x, y = (z.movedim(dim, -1) for z in (x, y))
    return x, y, "rows" if x.shape == y.shape else "matrix", functools.partial(torch.cosine_similarity, dim=-1), True


def _tensordot(a: Tensor, b: Tensor, dims: Any = 2, **_: Any) -> Any:
    """As :func:`operands`, written as an ``einsum``."""
    if isinstance(dims, int):
        dims = range(a.dim() - dims, a.dim()), range(dims)
    x, y = ascii_lowercase[: a.dim()], [*ascii_uppercase[: b.dim()]]
    for i, j in zip(*(at if hasattr(at, "__len__") else [at] for at in dims), strict=True):
        y[j] = x[i]
    right = "".join(c for c in (*x, *y) if (c in x) != (c in y))
    return _einsum(f"{x},{''.join(y)}->{right}", a, b)
