"""The seam in the gradient of embeddings: the arguments of a loss, or the output of an encoder."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from counterpoint.base import Objective
from counterpoint.treatments import Treatment
from counterpoint.vectors import widen

from .call import Call
from .finder.frames import frames
from .finder.recognise import digits
from .gradient import CHANGED, ROUNDING, Once, Replaced, own_loss, precision_of
from .host import OWN_LOSS, Seam, SeamError, world_size
from .paths import WHERE
from .sites import names_at

__all__ = ("Call", "Embeddings")

DIFFERENCE = {torch.float64: 1e-4, torch.float32: 1e-3, torch.float16: 5e-3, torch.bfloat16: 3e-2}
"""The largest relative difference of gradients, beside what the rounding of logits explains in half precision."""

ALWAYS = 20  # comparisons that find one ratio, in succession, before only some steps are compared
GOLDEN = 0.618034  # its multiples, modulo one, are spread evenly, so that no rhythm of calls escapes
JUMP = 0.5  # of a loss, or of that which was compared last, after which it is compared again
SHARE = 0.1  # of calls that are compared then; at most 13 lie between two


@dataclass(eq=False)
class Embeddings(Replaced):
    """Embeddings, and the other tensors that a loss learns.

    Args:
        seam, where, own, site: see :class:`Replaced`; where ``own`` is ``host``, nothing is compared, and the weight is
            that of what the function returns, see :meth:`returned`.
        call: returns the call of an objective for the arguments of :meth:`__call__`.
        names: where a treatment looks up what it is told of, before the function that calls this and its callers.
    """

    kind = "embeddings"
    seam: Seam
    where: str
    own: str
    call: Callable[..., Call]
    site: object = None
    names: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.learned, self.told, self.arrived = [], {}, 0.0
        self._key: object = None  # of the ratio in seam.ratios
        self._skips = False  # the comparison
        self._dtypes = set[torch.dtype]()  # that the function computes with
        self._arguments: list[Any] = []
        self._guides: list[Any] = []  # by the encoder of the first step
        self._learning: list[int] = []  # which of them have a gradient

    def __call__(self, *arguments: Any) -> list[Any]:
        """Return the same arguments; those that have a gradient get another one."""
        at = [i for i, x in enumerate(arguments) if isinstance(x, Tensor) and x.requires_grad]
        self._arguments, self._learning = [*arguments], at
        if not at or not torch.is_grad_enabled():
            return self._arguments
        self.told = self.seam.told(lambda: names_at(next(frames())).new_child({**self.names, WHERE: self.where}))
        if self.seam.own_guide is not None:
            try:
                self._guides = self.seam.own_guide(arguments)
            except ValueError as error:
                raise SeamError(f"{self.seam.spec}: at {self.where}, {error}") from error
        tensors = [arguments[i] for i in at]
        self._key = (self.where, id(self.site), self.own, *(x.shape for x in tensors))
        replaced = super().__call__(*tensors)
        return self._with(replaced if len(at) > 1 else [replaced])

    def returned(self, loss: Any) -> Any:
        """Return the loss that the function has returned; the weight follows from the gradient that arrives there.

        Where that is enough, backward leaves out the host's own loss: unless that learns something else, too, or other
        processes take part in it.
        """
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            return loss
        seam, (ratio, steady, calls, last) = self.seam, self.seam.ratios.get(self._key, (0.0, 0, 0, 0.0))
        value = float(loss.detach()) if loss.device.type == "cpu" else last  # reading it would wait for a GPU
        alike = abs(value - last) <= JUMP * max(abs(value), abs(last))  # a function may change its weight
        self._skips = steady >= ALWAYS and alike and not seam.verifies and calls * GOLDEN % 1 >= SHARE
        seam.ratios[self._key] = ratio, steady, calls + 1, last if self._skips else value
        if self._skips and not seam.uses_own_loss and world_size() == 1 and self._takes_all_of(loss):
            return _Loss.apply(self, ratio, loss.detach(), *(self._arguments[i] for i in self._learning))
        loss.register_hook(lambda g: setattr(self, "arrived", float(g.sum())))
        computed = {x.dtype for node in self._graph(loss) for x in getattr(node, "_input_metadata", ())}
        self._dtypes = computed & DIFFERENCE.keys()  # of autocast within the function, too
        return loss

    def _graph(self, loss: Tensor) -> list[Any]:
        """Return the nodes of autograd from the loss to these tensors and to parameters."""
        nodes: list[Any] = [loss.grad_fn]
        seen = {*nodes}
        for node in nodes:  # to which the loop adds
            if getattr(node, "call", None) is not self:
                before = {each for each, _ in node.next_functions if each is not None} - seen
                nodes += before
                seen |= before
        return nodes

    def _takes_all_of(self, loss: Tensor) -> bool:
        """Return whether the loss, a number, brings a gradient to these tensors alone, and to no parameter."""
        others = [node.next_functions for node in self._graph(loss) if getattr(node, "call", None) is not self]
        return bool(loss.isfinite()) and all(any(each is not None for each, _ in above) for above in others)

    def report(self, loss_fn: Objective, tensors: Sequence[Tensor]) -> dict[str, float]:
        return self._called(tensors, loss_fn).report(loss_fn)

    def proved(self, g: Sequence[Tensor], tensors: Sequence[Tensor], dtype: torch.dtype) -> Callable[..., Any]:
        weight = self.arrived if self.own == OWN_LOSS else self._weight(g, tensors, dtype)
        return lambda loss_fn: [weight * each for each in self._gradients(loss_fn, tensors)[1]]

    def _weight(self, g: Sequence[Tensor], tensors: Sequence[Tensor], dtype: torch.dtype) -> float:
        """Return the weight of the host's own loss in ``g``: by comparison, or else from the gradient that arrived.

        What arrives at the loss that a function returns has one ratio to the weight, unless the function changes it.
        """
        ratio, steady, calls, last = self.seam.ratios.get(self._key, (0.0, 0, 0, 0.0))
        if self.arrived and self._skips:
            return ratio * self.arrived
        dtype = max({dtype, *self._dtypes}, key=DIFFERENCE.__getitem__)
        weight, error, allowed = self.fit(g, tensors, dtype)
        self.conclude(error, dtype, allowed)
        if self.arrived:
            now = weight / self.arrived
            steady = steady + 1 if abs(now - ratio) <= DIFFERENCE[dtype] * abs(now) else 0
            self.seam.ratios[self._key] = now, steady, calls, last
        return weight

    def fit(self, g: Sequence[Tensor], tensors: Sequence[Tensor], dtype: torch.dtype) -> tuple[float, float, float]:
        """Return the weight of the host's own loss in ``g``, what differs, and how much of that is rounding."""
        own = own_loss(self.own).to(tensors[0].device)
        value, expected = self._gradients(own, tensors, own=True)
        pairs = [(_along(widen(a), x), _along(b, x)) for a, b, x in zip(g, expected, tensors, strict=True)]
        weight = sum(float((a * b).sum()) for a, b in pairs) / max(sum(float((b * b).sum()) for _, b in pairs), 1e-60)

        def difference(some: Sequence[tuple[Tensor, Tensor]]) -> float:
            return _largest(a - weight * b for a, b in some) / max(_largest(a for a, _ in some), 1e-60)

        # a learned scale sums over anchors, so that its gradient is larger than that of any embedding
        error = max(difference([(a, b) for a, b in pairs if a.dim() > 1]), difference(pairs))
        half = dtype in (torch.float16, torch.bfloat16)
        rounding = torch.finfo(dtype).eps * self.call(*self._with(tensors)).largest_logit(own) if half else 0.0
        return weight, digits(value) * error, DIFFERENCE[dtype] + rounding

    def _called(self, tensors: Sequence[Tensor], loss_fn: Objective) -> Call:
        call = self.call(*self._with(tensors))
        call.options |= self._told(loss_fn)
        if self._guides and isinstance(loss_fn, Treatment):
            call.take_guide(self.call(*self._guides))
        return call

    def _with(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Return the arguments with other tensors in the place of those that have a gradient."""
        given = dict(zip(self._learning, tensors, strict=True))
        return [given.get(i, x) for i, x in enumerate(self._arguments)]

    def _gradients(
        self, loss_fn: Objective, tensors: Sequence[Tensor], own: bool = False
    ) -> tuple[float, list[Tensor]]:
        leaves = [widen(x.detach()).requires_grad_() for x in tensors]
        with torch.enable_grad():
            try:
                value = self._called(leaves, loss_fn).loss(loss_fn, own)
            except (TypeError, ValueError) as error:
                raise SeamError(f"{loss_fn} cannot be computed here: {error}") from error
        found = torch.autograd.grad(value, leaves, allow_unused=True)
        gradients = [torch.zeros_like(x) if d is None else d for x, d in zip(leaves, found, strict=True)]
        return float(value.detach()), gradients


class _Loss(torch.autograd.Function):
    """The value of a host's loss, with the gradient of the objective.

    It saves no tensors, so that a checkpoint saves as many as where the host's own loss is differentiated.
    """

    @staticmethod
    def forward(ctx: Any, call: Embeddings, ratio: float, loss: Tensor, *tensors: Tensor) -> Tensor:
        ctx.call, ctx.ratio, ctx.tensors = call, ratio, [(x.detach(), x._version) for x in tensors]
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        call, tensors = ctx.call, [x for x, _ in ctx.tensors]
        if any(x._version != version for x, version in ctx.tensors):
            raise SeamError(f"the tensors at {call.where} {CHANGED}")
        call.seam.count()
        weight = ctx.ratio * widen(g.detach()).sum()
        with torch.no_grad(), torch.autocast(tensors[0].device.type, enabled=False):
            found = call.trained(lambda fn: [weight * each for each in call._gradients(fn, tensors)[1]], tensors)
        if torch.is_grad_enabled():  # create_graph=True
            found = [Once.apply(f, g) for f in found]
        return (None, None, None, *found)


def _largest(tensors: Iterable[Tensor]) -> float:
    return max((float(x.abs().max()) for x in tensors), default=0.0)


def _along(gradient: Tensor, x: Tensor) -> Tensor:
    """Leave out the part of a gradient that changes the length of rows of unit length.

    Such rows have been normalized, so that this part goes nowhere; of two losses, one may normalize once more.
    """
    if x.dim() < 2 or x.shape[-1] < 2 or not x.numel():
        return gradient
    if float((x.norm(dim=-1) - 1).abs().max()) > ROUNDING[precision_of([x])]:
        return gradient
    return gradient - (gradient * x).sum(-1, keepdim=True) * x
