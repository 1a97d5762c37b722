"""Products of two tensors, however they are written: ``a @ b.T``, ``einsum``, ``cosine_similarity``, distances, ..."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_lowercase, ascii_uppercase
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node
from torch.nn.functional import bilinear, normalize

from .frames import Place


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MATRICES = words("matmul __matmul__ mm mv bmm linear einsum inner addmm baddbmm cosine_similarity tensordot")
DIFFERENCES, FACTORS = words("sub subtract sub_"), words("mul __mul__ __rmul__ multiply")
_MEASURES = FACTORS | words(
    "sub subtract sub_ add add_ sum mean norm linalg_norm linalg_vector_norm sqrt sqrt_ pow square addmm_ einsum div"
)
PRODUCTS = MATRICES | _MEASURES | {"cdist", "pairwise_distance", "bilinear"}
# from a distance, or cosines, to the difference or the inner product that they are computed from
_STEPS = words("Sum Mean Pow Mul Div Abs Neg Sqrt Clamp ClampMin Add Sub Rsub Addmm LinalgVectorNorm Norm View T")
# by the order of the norm, and its power; no norm: cosines
_POWERS = {(2, 1): "distances", (2, 2): "squared distances", (1, 1): "L1 distances", (0, 1): ""}


@dataclass
class Product:
    """A product of two tensors: ``out = function(*args)``, of which autograd's node is kept, not the values."""

    kind: str  # matrix or rows (one number per row)
    a: Tensor
    b: Tensor
    edge: GradientEdge
    place: Place
    frames: tuple[FrameType, ...]  # of the call, from the innermost outwards; the first alone but for rows
    again: Callable[..., Tensor]  # of a and b
    cosine: bool = False
    factor: float = 1.0  # of ``again``: of distances below zero, as similarities are the negative ones
    distance: str | None = None  # in words, "" for cosines, if values say so that later calls have computed

    def values(self) -> Tensor:
        """Compute the similarities again, in float64."""
        return self.again(self.a.detach().double(), self.b.detach().double())


def operands(name: str, args: Any, kwargs: Any, out: Tensor, *before: Mapping[Node, Any]) -> Any:
    """Return a product but edge, place and frames, or None; ``before`` are earlier ones, and elementwise operands."""
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)][:3]
    if name in _MEASURES and (found := _by_values(name, out, tensors, *before)) is not None:
        return found
    if name in ("sum", "mean"):
        return _sum(name, before[1], *args, **kwargs)
    if name == "einsum":
        return _einsum(*args) if isinstance(args[0], str) else None
    if name in _MEASURES:
        return None
    if name == "tensordot":
        return _tensordot(*args, **kwargs)
    x, y = tensors[-2:] if name in ("addmm", "baddbmm") else [*tensors, None, None][:2]
    if x is None or y is None:
        return None
    if name == "bilinear":  # a discriminator
        weight = tensors[2].detach().double()
        return (x, y, "rows", lambda a, b: bilinear(a, b, weight), False) if len(weight) == 1 else None
    if name == "cosine_similarity":
        return _cosine(x, y, kwargs.get("dim", args[2] if len(args) > 2 else 1))
    if min(x.dim(), y.dim()) < 1 or x.shape[-1] == 1:  # of lengths, not of embeddings
        return None
    if name in ("cdist", "pairwise_distance"):
        order = kwargs.get("p", args[2] if len(args) > 2 else 2)
        return _as_measured(out, x, y, (order, 1)) if (order, 1) in _POWERS else None
    if x.dim() == y.dim() == 1:
        return x, y, "rows", torch.dot, False
    turned = name in ("linear", "inner") or y.dim() == 1
    return x, y if turned else y.mT, "matrix", lambda a, b: a @ (b if b.dim() == 1 else b.mT), False


def _sum(name: str, elementwise: Mapping[Node, Any], x: Any, dims: Any = None, *_: Any, **kwargs: Any) -> Any:
    """As :func:`operands`, for the sum or mean of an elementwise product over its last dimension."""
    node = x.grad_fn if isinstance(x, Tensor) else None
    factor = number_of(node) if node is not None and node not in elementwise else 1.0  # (a * b / t).sum(-1)
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


def as_rows(x: Tensor) -> Tensor:
    """Return ``(n, 1, k)`` or ``(n, k, 1)``, each anchor by its own keys, as a matrix; other tensors as they are."""
    return x.flatten(1) if x.dim() == 3 and 1 in x.shape[1:] else x


def name_of(node: Node) -> str:
    """The operation of a node of autograd."""
    return node.name().rpartition("::")[2].partition("Backward")[0]


def tolerance_of(x: Tensor, nodes: Iterable[Node] = ()) -> float:
    """Return the largest relative difference that rounding explains in the precision of ``x`` and of these nodes."""
    dtypes = {x.dtype, *(y.dtype for node in nodes for y in getattr(node, "_input_metadata", ()))}
    return max({torch.float64: 1e-6, torch.float32: 1e-3}.get(dtype, 5e-2) for dtype in dtypes)


def number_of(node: Node) -> float | None:
    """Return the number that a node of autograd multiplies a tensor by, or None."""
    saved = [getattr(node, f"_saved_{side}", None) for side in ("other", "self") if name_of(node) in ("Div", "Mul")]
    numbers = [float(x.detach()) for x in saved if isinstance(x, Tensor) and x.numel() == 1]
    return None if not numbers else 1 / numbers[0] if name_of(node) == "Div" else numbers[0]


def _einsum(equation: str, *tensors: Any) -> Any:
    """As :func:`operands`, if dimensions are contracted; tensors after the second are factors of that one."""
    tensors = tuple(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors
    left, arrow, right = equation.replace(" ", "").partition("->")
    right = right if arrow else "".join(c for c in sorted(left) if c.isalpha() and left.count(c) == 1)
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


def _by_values(name: str, out: Tensor, of: Sequence[Tensor], products: Any, elementwise: Any) -> Any:
    """As :func:`operands`, if ``out`` has the values of distances or cosines of tensors that it is computed from."""
    pairs = [(of[1], of[2].mT, False)] if name == "addmm_" else []
    todo = [node for x in (out, *of) if (node := x.grad_fn) is not None]
    for node in todo:
        product, kind = products.get(node), name_of(node)
        above = dict.fromkeys(each for each, _ in node.next_functions if each is not None)
        if product is not None and not product.cosine:
            factor = number_of(product.a.grad_fn) if product.a.grad_fn is not None else None  # 2 * a @ b.T
            sides = [product.a, *([product.a / factor] if factor else [])]
            pairs += [(side, product.b, not product.distance) for side in sides]
        elif kind == "Sub" and node in elementwise:
            pairs.append((*elementwise[node], False))
        elif kind in _STEPS and len(todo) < 16 and (len(above) == 1 or number_of(node) is None):  # no learned number
            todo += above
    if not pairs or not out.numel() or any(a.is_complex() for a, *_ in pairs):
        return None
    rounding = 1e-3 if out.dtype in (torch.float32, torch.float64) else 5e-2
    value, tolerance = float(out[(0,) * out.dim()].detach()), rounding * float(out.detach().abs().max())
    for (a, b, is_inner), which in itertools.product(pairs, _POWERS):
        with contextlib.suppress(RuntimeError, TypeError, IndexError):  # other shapes, layouts and numbers
            x, y = (z[(0,) * (z.dim() - 1)].detach().double() for z in (a, b))
            first = float(_between(x, y, (), which, 1.0))
            for factor in (1.0, -1.0, 1 / a.shape[-1]):
                if abs(factor * first - value) <= tolerance:
                    sizes = [x.detach().norm(dim=-1) for x in (a, b) if is_inner and which in ((2, 2), (0, 1))]
                    even = [bool(x.max() - x.min() <= rounding * x.max()) for x in sizes]  # as in 2 - 2 cos
                    if (not even or not all(even)) and _agree(out.detach(), a, b, which, factor, tolerance):
                        return _as_measured(out, a, b, which, factor)
    return None


def _agree(out: Tensor, a: Tensor, b: Tensor, which: tuple[int, int], factor: float, tolerance: float) -> bool:
    """Compare one row first: linear layers get here by chance, and all their distances take seconds."""
    are_pairs = min(a.dim(), b.dim()) > 1 < out.shape[-1] and out.shape[:-1] == a.shape[:-1] and out.dim() >= b.dim()
    matrices = [x[(0,) * (x.dim() - 2)] for x in (out, a, b)] if are_pairs else []
    row = [(matrices[0][:1], matrices[1][:1], matrices[2])] if are_pairs else []
    return all(
        bool((_between(x.detach().double(), y.detach().double(), z.shape, which, factor) - z).abs().max() <= tolerance)
        for z, x, y in (*row, (out, a, b))
    )


def _between(a: Tensor, b: Tensor, shape: Sequence[int], which: tuple[int, int], factor: float) -> Tensor:
    """Compare rows of tensors that are broadcast, or all pairs of rows as ``cdist`` does; times a factor."""
    are_pairs, (order, power) = len(shape) >= max(a.dim(), b.dim()) and shape[-1] > 1, which
    if not order:
        a, b = normalize(a, dim=-1), normalize(b, dim=-1)
        return (factor * (a @ b.mT if are_pairs else (a * b).sum(-1))).view(shape)
    every = torch.cdist(a, b, order) if are_pairs else torch.linalg.vector_norm(a - b, order, -1)
    return (factor * every**power).view(shape)


def _as_measured(out: Tensor, a: Tensor, b: Tensor, which: tuple[int, int], factor: float = 1.0) -> Any:
    """As :func:`operands`, by the values of a result: similarities are cosines, or the negative distances."""
    a, b = (b, a) if b.dim() > 2 and b.shape[-2] == 1 else (a, b)
    rows = a.shape == b.shape and out.numel() * a.shape[-1] == a.numel() and 0 not in (*a.stride(), *b.stride())
    again = functools.partial(_between, shape=out.shape, which=which, factor=factor)
    return a, b, "rows" if rows else "matrix", again, not which[0], -factor if which[0] else factor, _POWERS[which]


def _tensordot(a: Tensor, b: Tensor, dims: Any = 2, **_: Any) -> Any:
    """As :func:`operands`, written as an ``einsum``."""
    if isinstance(dims, int):
        dims = range(a.dim() - dims, a.dim()), range(dims)
    x, y = ascii_lowercase[: a.dim()], [*ascii_uppercase[: b.dim()]]
    for i, j in zip(*(at if hasattr(at, "__len__") else [at] for at in dims), strict=True):
        y[j] = x[i]
    return _einsum(f"{x},{''.join(y)}->{''.join(c for c in (*x, *y) if (c in x) != (c in y))}", a, b)
