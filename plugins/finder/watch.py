"""Watch a script compute its loss: products of embeddings, and the softmax, exponentials and losses that follow them.

A ``TorchFunctionMode`` sees every call of torch by its public name. Two kinds are recorded: *products* of two tensors
(``a @ b.T``, ``einsum``, ``cosine_similarity``, ``(a * b).sum(-1)``, ...), and *sinks*, which turn logits into a loss
(``cross_entropy``, ``log_softmax``, ``logsumexp``, ``exp``, ...). Which products a sink was computed from is read off
autograd's graph: only operations that move, scale, mask or join entries may lie between them, so that a classifier's
logits do not lead to a product of embeddings. ``backward`` is where a step ends.
"""

from __future__ import annotations

import inspect
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import _get_sequence_nr as next_number  # type: ignore[attr-defined]
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.overrides import TorchFunctionMode

from ..sites import caller, is_own, names_at
from .frames import Place, arguments, frames, parameter_name, place
from .products import DIFFERENCES, FACTORS, MATRICES, PRODUCTS, Product, name_of, operands, tolerance_of, words
from .recognise import keys_of

SINKS = {"cross_entropy": "cross entropy", "exp": "exponentials", "exp_": "exponentials"}
SINKS |= {name: name for name in ("nll_loss", "log_softmax", "logsumexp")} | {"log": "logarithm of a softmax"}
SINKS |= dict.fromkeys(("logsigmoid", "log_sigmoid", "softplus", "binary_cross_entropy_with_logits"), "binary logits")
# what may lie between a product and the logits: it moves, scales, masks, shifts or joins entries
_MOVES = words(
    """
    Div Mul Add Sub Rsub Neg T Transpose Permute View ReshapeAlias UnsafeView Cat Stack Slice Select Index
    IndexSelect Gather MaskedFill MaskedSelect Where SWhere Squeeze Unsqueeze Expand Diagonal Clone ToCopy Copy
    CopySlices AsStrided Unbind Split SplitWithSizes Repeat Clamp ClampMin ClampMax Max Amax Alias Tril Triu Scatter
    IndexPut MaskedScatter FillDiagonal Exp Softplus Sigmoid Reciprocal Unfold Concat Flip Roll Topk Sort Detach Pow
    Sqrt Rsqrt Sum LinalgVectorNorm Norm Maximum Log Log1P Mean Logsumexp Acos Acosh
    """
)
_set_stance: Any = getattr(torch.compiler, "set_stance", lambda _: None)  # new in torch 2.6


@dataclass
class Walk:
    """The part of autograd's graph above a tensor in which entries are only moved, scaled, masked or joined."""

    products: list[Product] = field(default_factory=list)
    scalars: list[Tensor] = field(default_factory=list)  # learned numbers
    parameters: list[Tensor] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    data: bool = False  # whether anything else lies above: layers, lookups
    nodes: set[Node] = field(default_factory=set)


@dataclass
class Sink:
    """A call that turns logits into a loss, or into a part of one."""

    kind: str
    place: Place
    x: Tensor
    output: Tensor
    walk: Walk
    labels: Tensor | None = None
    options: dict[str, Any] = field(default_factory=dict)
    frames: list[tuple[FrameType, dict[str, Tensor]]] = field(default_factory=list)
    """Frames of the call, from the innermost outwards, with their arguments as passed."""
    at_call: dict[FrameType, set[str]] = field(default_factory=dict)  # the names that each frame had
    scale_names: dict[str, Tensor] = field(default_factory=dict)  # variables that hold one number with a gradient
    names: dict[int, str] = field(default_factory=dict)  # of learned numbers, by id
    alike: dict[str, Tensor] = field(default_factory=dict)  # variables of the shape of the logits, at the call
    soft_edges: dict[str, GradientEdge] = field(default_factory=dict)  # of those, and labels, that have a gradient
    edge: GradientEdge | None = None  # of the output
    keys: int = -1  # the dimension along which they compete

    @property
    def tolerance(self) -> float:
        """The largest relative difference that rounding explains, under autocast also where logits are float32."""
        return tolerance_of(self.x, self.walk.nodes)


class EnoughError(SystemExit):
    """End a script that has been watched for long enough; no ``except Exception`` stops it."""


class Watch(TorchFunctionMode):
    """Record products, sinks and scalars until ``backward`` is called, then let ``at_backward`` judge them.

    That gets the watch and the tensor that is differentiated, before autograd runs. With ``products_only``, record no
    sinks, for callers that know where the loss is.
    """

    def __init__(self, at_backward: Callable[[Watch, Tensor], None], products_only: bool = False) -> None:
        super().__init__()
        self.at_backward, self.products_only = at_backward, products_only
        self.products: dict[Node, Product] = {}
        self.elementwise: OrderedDict[Node, tuple[Tensor, Tensor]] = OrderedDict()
        self.unlinked: list[Any] = []  # the last product in a custom Function, whose output has a graph only afterwards
        self.sinks: list[Sink] = []
        self.scalars: list[Tensor] = []  # numbers computed behind a sink
        self.softmax_inputs: dict[Node, tuple[Tensor, Place]] = {}
        self.passed: dict[FrameType, dict[str, Tensor]] = {}  # arguments, before the frame could assign to them
        self.made: dict[FrameType, tuple[int, int]] = {}  # in a call: autograd's number of the first node, and the next
        self.retained: list[Tensor] = []  # by retain_grad()
        self.survey: dict[tuple[str, str], int] = {}
        self.errors: list[str] = []  # of sinks that could not be judged
        self.backwards = 0
        self.waited = 0  # backward passes that have kept their graph, since the last that has not
        self._backward = torch.autograd.backward

    def start(self) -> None:
        """Watch from now on, in this thread."""
        torch.autograd.backward = self._watched_backward
        torch.jit._state.disable()
        _set_stance("force_eager")
        self.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> bool:
        """Stop watching; return False if that is not possible now, inside a mode that the script has entered."""
        if torch.overrides._get_current_function_mode() is not self:
            return False
        torch.autograd.backward = self._backward
        torch.jit._state.enable()
        _set_stance("default")
        self.__exit__(None, None, None)
        return True

    def _watched_backward(self, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        self._end_step(tensors, bool(args[1] if len(args) > 1 else kwargs.get("retain_graph")))
        return self._backward(tensors, *args, **kwargs)

    def _end_step(self, tensors: Any, retains: bool = False) -> None:
        roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        self.backwards += 1
        with torch._C.DisableTorchFunction(), same_grad(self.retained):
            for root in roots:
                if root.numel() == 1 and root.requires_grad:
                    self.at_backward(self, root)
            if retains and self.waited < 4:  # other losses of this graph may have backward passes of their own
                sums, sinks, self.sinks = [root.sum() for root in roots if root.requires_grad], self.sinks, []
                with suppress(RuntimeError):  # as of reentrant checkpoints, which refuse autograd.grad
                    logits = [sink.x for sink in sinks]
                    reached = torch.autograd.grad(sums, logits, retain_graph=True, allow_unused=True) if logits else ()
                    self.sinks = [sink for sink, gradient in zip(sinks, reached, strict=True) if gradient is None]
                self.waited += 1
                return
        self.waited = 0
        stores = (self.products, self.elementwise, self.sinks, self.scalars, self.softmax_inputs, self.retained)
        for store in (*stores, self.passed, self.made, self.unlinked):
            store.clear()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        watched = torch.is_grad_enabled() and not self.products_only
        if name == "retain_grad":
            self.retained.append(args[0])
        frees = name == "grad" and not (kwargs.get("retain_graph") or kwargs.get("create_graph"))
        if frees and watched and not is_own(caller()) and any(isinstance(x, nn.Parameter) for x in args[1]):
            self._end_step(args[0])  # in place of backward(); not so for inputs that are attacked
        stack, first = [*frames()] if watched else [], next_number()
        for frame in itertools.takewhile(lambda frame: frame not in self.passed, stack):
            self.passed[frame] = arguments(frame)  # now, as ``z = normalize(z)`` assigns to them
        if self.unlinked and args and args[0] is self.unlinked[-1] and self.unlinked[-1].grad_fn is not None:
            self._product(*self.unlinked)
            self.unlinked = []
        out = self._sink(name, func, args, kwargs) if watched and name in SINKS else func(*args, **kwargs)
        for frame in stack:
            self.made[frame] = self.made.get(frame, (first, 0))[0], next_number()
        if frees and self.products_only:
            for store in () if is_own(caller()) else (self.products, self.elementwise):
                store.clear()  # a step ends where its graph is freed
        elif name == "softmax" or name == "log_softmax":
            if isinstance(out, Tensor) and out.grad_fn is not None and out.dim() == 2:
                self.softmax_inputs[out.grad_fn] = (*args, kwargs.get("input"))[0], place(next(frames()))
        elif name in PRODUCTS:
            if name in MATRICES and not torch.is_grad_enabled():
                self.unlinked = [name, args, kwargs, out]
            elif isinstance(out, Tensor) and out.grad_fn is not None and args:
                of_one = name == "einsum" and len(args) < 3 and (isinstance(args[1], Tensor) or len(args[1]) < 2)
                if out._is_view() and not of_one:
                    out = out.clone()  # an edit of a view in place would cut its node out of the graph
                self._product(name, args, kwargs, out)
        elif name.endswith("_loss") and isinstance(out, Tensor) and out.requires_grad:
            self._count(f"{name} of {tuple(args[0].shape) if isinstance(args[0], Tensor) else '?'}")
        is_number = isinstance(out, Tensor) and out.numel() == 1 and out.grad_fn is not None
        if is_number and (self.sinks or self.products_only):
            self.scalars.append(out.detach().clone())
        return out

    def _product(self, name: str, args: Any, kwargs: Any, out: Tensor) -> None:
        x, y = [*args, *kwargs.values(), None][:2]
        are_two = name in FACTORS | DIFFERENCES and isinstance(x, Tensor) and isinstance(y, Tensor)
        if are_two and min(x.dim(), y.dim()) > (name in FACTORS) and x.shape[-1] == y.shape[-1] > 1:
            self.elementwise[out.grad_fn] = x, y  # type: ignore[index]
            while len(self.elementwise) > 32:
                self.elementwise.popitem(last=False)
        found = operands(name, args, kwargs, out, self.products, self.elementwise)
        if found is None:
            return
        a, b, kind, *how = found
        edge, stack = get_gradient_edge(out), frames()
        first = next(stack)
        outer = () if self.products_only else (first, *itertools.islice(stack, 7 * (kind == "rows")))
        self.products[edge.node] = Product(kind, a, b, edge, place(first), outer, *how)

    def _sink(self, name: str, func: Any, args: Any, kwargs: Any) -> Tensor:
        x = args[0] if args else kwargs.get("input", kwargs.get("self"))
        walk = None
        if isinstance(x, Tensor) and x.grad_fn is not None and x.dim() > 0:
            between = {"log": {"Softmax", "Sigmoid", "Tanh"}, "nll_loss": {"LogSoftmax", "Tanh"}}
            walk = self.walk(x, between.get(name, {"Tanh"}))
            if name == "exp_":
                x = x.clone()  # its graph is that before the change
        out: Tensor = func(*args, **kwargs)
        if walk is None or (name == "log" and not walk.names & {"Softmax", "Sigmoid"}):
            return out
        kind = "binary logits" if name == "log" and "Softmax" not in walk.names else SINKS[name]
        rows = kind == "binary logits" and name[:6] != "binary" and all(each.kind == "rows" for each in walk.products)
        if rows and not are_labeled(x, walk.products):
            return out  # of ranked pairs, BPR's
        if x.is_complex() or all(self.is_head(product) for product in walk.products):
            single = x.shape[-1] > 1 and {product.b.shape[:-1] for product in walk.products} == {(1,)}
            of = ", scores that a layer computes one by one" if single else ", a product with parameters"
            self._count(f"{kind} of {tuple(x.shape)}{', complex' if x.is_complex() else of * bool(walk.products)}")
            return out
        sink = self.sink(kind, x, out.detach().clone(), walk)  # it may be changed in place
        sink.edge = get_gradient_edge(out)
        if name in ("log_softmax", "logsumexp") and x.dim() > 2:
            sink.keys = keys_of(x, args[1:], **kwargs) or -1
        if name in ("cross_entropy", "nll_loss"):
            options = inspect.signature(func).bind(*args, **kwargs).arguments
            labels, _ = options.pop("target"), options.pop("input")
            sink.labels, sink.options = labels, options
            if labels.requires_grad:
                sink.soft_edges["labels"] = get_gradient_edge(labels)
        if name in ("nll_loss", "log") and kind != "binary logits":
            inputs = reversed(self.softmax_inputs.items())
            sink.x, at = next((found for node, found in inputs if node in walk.nodes), (x, None))
            if name == "nll_loss" and ("LogSoftmax" not in str(x.grad_fn) or not at or at.file != sink.place.file):
                return out  # what has computed the probabilities is a sink by itself
            sink.place = at if at and name == "log" else sink.place
        self._count(f"{kind} of {tuple(x.shape)}, a product of embeddings")
        self.sinks.append(sink)
        return out

    def sink(self, kind: str, x: Tensor, output: Tensor, walk: Walk) -> Sink:
        """Return a sink with the names that the script's frames have for it."""
        stack = list(frames())
        sink = Sink(kind, place(stack[0]), x, output, walk)
        sink.frames += [(f, self.passed.get(f, {})) for f in stack[:8]]
        sink.at_call = {f: {*f.f_locals} for f in stack}
        for frame in reversed(stack[:3]):
            for name, value in frame.f_locals.items():
                if isinstance(value, Tensor) and value.numel() == 1 and value.requires_grad:
                    sink.scale_names[name] = value.detach()
        if kind in ("log_softmax", "logsumexp") and x.dim() > 1:
            tensors = {n: y for n, y in names_at(stack[0]).items() if isinstance(y, Tensor) and y.is_floating_point()}
            tensors |= {f"{n}.T": y.T for n, y in tensors.items() if y.dim() == 2 and y.shape[::-1] == x.shape}
            sink.alike = {n: y.detach().to(torch.double, copy=True) for n, y in tensors.items() if y.shape == x.shape}
            trained = [n for n in sink.alike if tensors[n].requires_grad]
            sink.soft_edges = {n: get_gradient_edge(tensors[n.removesuffix(".T")]) for n in trained}
        learned = list(walk.scalars)
        for product in walk.products:
            for operand in (product.a, product.b):
                learned += self.walk(operand).scalars
        if learned:
            sink.names = {id(parameter): parameter_name(parameter, stack) for parameter in learned}
        return sink

    def pairs(self) -> Iterator[Product]:
        """Yield the similarities of pairs of embeddings that are in no sink: ``- positive / t`` is added to a loss."""
        known = {id(product) for sink in self.sinks for product in sink.walk.products}
        for product in self.products.values():
            inner = (each for x in (product.a, product.b) for each in self.walk(x).products)
            if product.kind == "rows" and not known & {id(product), *map(id, inner)} and not self.is_head(product):
                yield product

    def is_head(self, product: Product) -> bool:
        """Whether the columns are parameters, as in a layer that classifies, and not a table with positives, too."""

        def only_parameters(x: Tensor) -> bool:
            found = self.walk(x)
            inner = (operand for p in found.products for operand in (p.a, p.b))
            return bool(found.parameters) and not found.data and all(map(only_parameters, inner))

        if not only_parameters(product.b) or only_parameters(product.a):
            return False
        pairs = (x for p in self.products.values() if p.kind == "rows" for x in (p.a, p.b))
        table = {id(x) for x in self.walk(product.b).parameters}
        return not any(table & {id(x) for x in self.walk(pair).parameters} for pair in pairs)

    def _count(self, what: str) -> None:
        key = (place(next(frames())).short, what)
        self.survey[key] = self.survey.get(key, 0) + 1

    def walk(self, x: Tensor, more: set[str] = frozenset()) -> Walk:  # type: ignore[assignment]
        """Return the graph above ``x``; nodes named ``more`` may also lie between."""
        found = Walk()
        todo: list[Node] = [x.grad_fn] if x.grad_fn is not None else []
        seen = found.nodes
        if isinstance(x, nn.Parameter):
            found.parameters.append(x)
        while todo and len(seen) < 400:
            node = todo.pop()
            if node in seen:
                continue
            seen.add(node)
            if node in self.products:
                found.products.append(self.products[node])
                continue
            name = name_of(node)
            found.names.add(name)
            if name == "AccumulateGrad":
                variable = node.variable  # type: ignore[attr-defined]
                found.data |= not isinstance(variable, nn.Parameter)  # a leaf, as cached embeddings are
                (found.scalars if variable.numel() == 1 else found.parameters).append(variable)
            elif name in _MOVES or name in more:
                above = [n for n, _ in node.next_functions if n is not None]
                found.data |= name in ("Index", "IndexSelect", "Gather")  # lookups
                todo += above
            else:
                found.data = True
        return found


def are_labeled(x: Tensor, products: Sequence[Product]) -> bool:
    """Return whether binary logits are similarities of one product, times labels of 1 and -1."""
    if len(products) != 1:
        return False
    (slope,) = torch.autograd.grad(x.sum(), products[0].edge, retain_graph=True, allow_unused=True)
    return slope is not None and slope.shape == x.shape and bool((slope > 0).any() & (slope < 0).any())


@contextmanager
def same_grad(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Leave ``.grad`` of these tensors as it is, though what is computed from them is differentiated meanwhile."""
    before = [x.grad for x in tensors]
    try:
        yield
    finally:
        for x, grad in zip(tensors, before, strict=True):
            x.grad = grad
