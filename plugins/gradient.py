"""The seam in the gradient: what the backward pass of the host's own loss brings to logits or embeddings is replaced.

Let ``g`` be the gradient that reaches the logits, and ``G`` the gradient of our form of the host's loss, computed from
the same logits. If ``g = w * G``, with one weight ``w`` for all anchors that count, the logits get ``w`` times the
gradient of the objective instead; embeddings, likewise. A mean, a factor, an accumulation and the scale of a
``GradScaler`` are all in ``w``; other terms of the loss are not touched; and it does not matter how the loss is written
or who calls ``backward``.

That ``g = w * G`` holds is checked in every step: it is the proof that the objective replaces the whole loss of these
tensors. Wrong positives, targets that change during training, and a second term of the same logits are errors.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from counterpoint.batch.ready_made import MASKED
from counterpoint.host import FromHost
from counterpoint.objective import Objective, as_objective
from counterpoint.vectors import widen

from .finder.recognise import UNDERFLOW, positives_by_gradient
from .host import OWN_LOSS, DifferenceError, Seam, SeamError, is_first_process
from .verify import GRADIENTS, NEAR_ZERO, ROUNDING, along, gradients, precision_of

CHANGED = "were changed in place after the loss had taken them"
LOGITS = {torch.float64: 1e-4, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""The largest relative difference of gradients at the logits: these are the same numbers, so that little is rounded."""


class Replaced(ABC):
    """Tensors that the host's own loss is a function of, whose gradient is replaced.

    Attributes:
        seam: of this run.
        site: whose calls share schedules and statistics of the objective.
        where: the line, in words.
        own: the spec of the host's own loss.
        learned: tensors that our losses depend on beside these, such as the host's scale.
    """

    seam: Seam
    site: object
    where: str
    own: str
    learned: list[Tensor]

    def __call__(self, *tensors: Tensor) -> Any:
        """Return the same tensors, a single one as it is, with another gradient."""
        out = _Replace.apply(self, precision_of(tensors), len(tensors), *tensors, *self.learned)
        return out[0] if len(tensors) == 1 else out

    @property
    def known(self) -> bool:
        """Whether everything is known that our losses need; until then, the host's own gradient stays."""
        return True

    @abstractmethod
    def proved(self, g: Sequence[Tensor], tensors: Sequence[Tensor], dtype: torch.dtype) -> Callable[..., Any]:
        """Return a function of the objective that computes the gradients that replace ``g``.

        Raises:
            DifferenceError: ``g`` is not the gradient of the host's own loss.
        """

    @abstractmethod
    def report(self, loss_fn: Objective, tensors: Sequence[Tensor]) -> dict[str, float]:
        """Return what the objective sees."""

    def gradients(self, dtype: torch.dtype, g: Sequence[Tensor], tensors: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """Return the gradients of the tensors, and of the learned ones.

        Args:
            dtype: the precision of the host's loss.
            g: its gradient.
            tensors: as the host got them.
        """
        seam, unchanged = self.seam, (*g, *(None for _ in self.learned))
        if not self.known or not any(bool(each.any()) for each in g):
            return unchanged
        verifies, trains_own = seam.verifies, seam.uses_own_loss
        seam.count()
        if not all(bool(each.isfinite().all()) for each in g):  # a GradScaler drops such a step
            return unchanged
        if trains_own and not verifies and seam.report is None:
            return unchanged
        ours = self.proved(g, tensors, dtype)
        # the call is counted, so that the seam would return the objective in the last step of --verify
        loss_fn = as_objective(self.own) if trains_own else seam.objective(self.own, criterion=self.site)
        loss_fn = loss_fn.to(tensors[0].device)
        if seam.report is not None and is_first_process():
            with torch.no_grad():
                line = self.report(loss_fn, tensors)
            with seam.report.open("a") as file:
                file.write(json.dumps({"step": seam.start + seam.calls, **line}) + "\n")
        if trains_own:
            return unchanged
        found = ours(loss_fn)
        like = (*tensors, *self.learned)
        return [None if f is None else f.to(x.dtype) for f, x in zip(found, like, strict=True)]

    def conclude(self, error: float, dtype: torch.dtype, allowed: float) -> None:
        """Note how well the gradient is that of the host's own loss, or raise an error."""
        seam = self.seam
        if error <= allowed:
            seam.proofs, seam.worst = seam.proofs + 1, max(seam.worst, error)
            return
        message = (
            f"in call {seam.calls}, the gradient at {self.where} is not that of {self.own}: they differ by "
            f"{error:.2g} of the largest entry, where {str(dtype).removeprefix('torch.')} explains {allowed:.2g}"
        )
        if not seam.options.get("allow_drift"):
            raise DifferenceError(f"{message}. {seam.if_wrong}")
        seam.notes[f"{self.where}, allowed"] = message


def digits(value: float) -> float:
    """Return the share of digits of a loss's gradient: one near zero is a difference of nearly equal numbers."""
    return min(1.0, abs(value) / NEAR_ZERO)


def _largest(tensors: Iterable[Tensor]) -> float:
    return max((float(x.abs().max()) for x in tensors), default=0.0)


class Embeddings(Replaced):
    """The arguments of a function of embeddings.

    Args:
        seam, site, where, own: see :class:`Replaced`; without ``own``, nothing is compared, and the weight is that of
            what the function returns, see :meth:`returned`.
        loss: computes the loss of an objective from the tensors.
        described: the same for :meth:`report`.
    """

    def __init__(
        self,
        seam: Seam,
        where: str,
        own: str | None,
        loss: Callable[[Objective, Sequence[Tensor]], Tensor],
        described: Callable[[Objective, Sequence[Tensor]], dict[str, float]],
    ) -> None:
        self.seam, self.site, self.where, self.own, self.learned = seam, None, where, own or OWN_LOSS, []
        self.loss, self.described = loss, described
        self.weight: float | None = None

    def returned(self, loss: Tensor) -> None:
        """Take the weight from the gradient of what the function has returned."""
        loss.register_hook(lambda g: setattr(self, "weight", float(g.sum())))

    def report(self, loss_fn: Objective, tensors: Sequence[Tensor]) -> dict[str, float]:
        return self.described(loss_fn, tensors)

    def proved(self, g: Sequence[Tensor], tensors: Sequence[Tensor], dtype: torch.dtype) -> Callable[..., Any]:
        weight = self.weight
        if self.own != OWN_LOSS:
            value, expected = self._gradients(as_objective(self.own), tensors)
            theirs = [along(each, x) for each, x in zip(g, tensors, strict=True)]
            products, squares = (
                sum(float((a * b).sum()) for a, b in zip(expected, c, strict=True)) for c in (theirs, expected)
            )
            weight = products / max(squares, 1e-60)
            error = max(
                _largest((a - weight * b) for a, b in zip(theirs, expected, strict=True) if chosen(a))
                / max(_largest(a for a in theirs if chosen(a)), 1e-60)
                # a learned scale sums over anchors, so that its gradient is larger than that of any embedding
                for chosen in (lambda a: a.dim() > 1, lambda a: True)
            )
            self.conclude(digits(value) * error, dtype, GRADIENTS * ROUNDING[dtype])
        if weight is None:
            raise SeamError(f"{self.where}: the weight of its loss is not known; --own says what it computes")
        factor = weight
        return lambda loss_fn: [factor * each for each in self._gradients(loss_fn, tensors)[1]]

    def _gradients(self, loss_fn: Objective, tensors: Sequence[Tensor]) -> tuple[float, list[Tensor]]:
        leaves = [x.detach().requires_grad_() for x in tensors]
        with torch.enable_grad():
            try:
                value = self.loss(loss_fn, leaves)
            except ValueError as error:
                raise SeamError(f"{loss_fn} cannot be computed here: {error}") from error
        return float(value.detach()), gradients(value, leaves)


class Logits(Replaced):
    """The logits of one call of the host's loss.

    Args:
        seam, site, where, own: see :class:`Replaced`.
        positives: the column of each anchor's positive, or booleans or numbers of the shape of the logits; None until
            they are known.
        options: ``scale=`` and further arguments of ``from_logits``.
        keys: the dimension along which keys compete.
        both: the loss is the mean of those of rows and of columns.
        flipped: booleans, where the logits have the other sign: those of negatives in binary losses.
        apart: the host takes the positives from another tensor, so that these logits get the gradient of its sum
            of exponentials alone. What the positives are is then not proved.
        later: what the host multiplies these logits by later, in their precision, which rounds the exponents.
        deduced: in each step, the positives are the entries whose gradient is not that of a negative.
    """

    def __init__(
        self,
        seam: Seam,
        site: object,
        where: str,
        own: str,
        positives: Tensor | None,
        options: dict[str, Any] | None = None,
        keys: int = -1,
        both: bool = False,
        flipped: Tensor | None = None,
        apart: bool = False,
        later: float = 0.0,
        deduced: bool = False,
    ) -> None:
        self.seam, self.site, self.where, self.own, self.positives = seam, site, where, own, positives
        self.deduced = deduced
        self.options, self.keys, self.both, self.flipped = options or {}, keys, both, flipped
        self.apart, self.later = apart, later

    @property
    def known(self) -> bool:
        return self.positives is not None or self.deduced

    @property
    def learned(self) -> list[Tensor]:  # type: ignore[override]
        """The host's scale and bias, as far as they are tensors."""
        return [x for x in self.options.values() if isinstance(x, Tensor)]

    def hook(self, logits: Tensor) -> None:
        """Replace the whole gradient of these logits, also that of what else the host takes from them.

        No gradient can be passed on to a learned scale from here.
        """
        self.options = {k: v.detach() if isinstance(v, Tensor) else v for k, v in self.options.items()}
        dtype, values, version = precision_of([logits]), logits.detach(), logits._version

        def replaced(g: Tensor) -> Tensor | None:
            if values._version != version:
                raise SeamError(f"the logits at {self.where} {CHANGED}")
            found = self.gradients(dtype, [g.detach()], [values])[0]
            # with create_graph=True, what takes a second derivative must not take it for a constant
            return _Once.apply(found, g) if found is not None and g.requires_grad else found

        logits.register_hook(replaced)

    def report(self, loss_fn: Objective, tensors: Sequence[Tensor]) -> dict[str, float]:
        x = widen(self._oriented(tensors[0]))
        return loss_fn.report(x, self.positives, call="from_logits", **self.options)

    def proved(self, g: Sequence[Tensor], tensors: Sequence[Tensor], dtype: torch.dtype) -> Callable[..., Any]:
        gradient, x = widen(self._oriented(g[0])), widen(self._oriented(tensors[0]))
        if self.deduced:
            self.positives = positives_by_gradient(self._scaled(x), gradient, LOGITS[dtype])
            # a positive of probability one has no gradient
            self.positives |= torch.zeros_like(self.positives).scatter(-1, x.argmax(-1, keepdim=True), True) & (
                ~self.positives.any(-1, keepdim=True)
            )
        weights, x = self._fit(gradient, x, dtype)
        counted, positives = weights != 0, self.positives
        assert positives is not None

        def ours(loss_fn: Objective) -> list[Tensor | None]:
            rows = positives
            if loss_fn.couples_anchors and not bool(counted.all()):
                several = rows.dim() > counted.dim()
                ignored = 0 if several else self.options.get("ignore_index", -100)
                rows = rows.masked_fill((~counted).unsqueeze(-1) if several else ~counted, ignored)
            leaves = [x.requires_grad_(), *(each.detach().requires_grad_() for each in self.learned)]
            first, *others = torch.autograd.grad(self._loss(loss_fn, leaves, rows, weights), leaves, allow_unused=True)
            return [None if first is None else self._flip(first).movedim(-1, self.keys), *others]

        return ours

    def _oriented(self, x: Tensor) -> Tensor:
        """Put keys last, and give binary logits the sign of their similarities."""
        return self._flip(x.movedim(self.keys, -1))

    def _flip(self, x: Tensor) -> Tensor:
        return x if self.flipped is None else torch.where(self.flipped, -x, x)

    def _scaled(self, x: Tensor) -> Tensor:
        """Return the exponents of the host's own loss."""
        own = as_objective(self.own)
        if any(isinstance(part, FromHost) for part in own.modules()):
            return x
        return x / (float(self.options.get("scale", 1.0)) * float(vars(own).get("temperature", 1.0)))

    def _loss(self, loss_fn: Objective, leaves: Sequence[Tensor], positives: Tensor, weights: Tensor) -> Tensor:
        """Sum the losses of the anchors times their weights."""
        x, *learned = leaves
        given = iter(learned)
        options: dict[str, Any] = {k: next(given) if isinstance(v, Tensor) else v for k, v in self.options.items()}
        with torch.enable_grad():
            # one call, by which schedules and statistics move once
            ways = torch.stack([x, x.mT]) if self.both else x
            try:
                parts = loss_fn.from_logits(
                    ways,
                    positives.expand(2, *positives.shape) if self.both else positives,
                    empty="warn",
                    reduction="none",
                    **options,
                )
            except ValueError as error:
                raise SeamError(f"{loss_fn} cannot be computed at {self.where}: {error}") from error
            if self.apart:  # their gradient is in these losses, and the host adds it elsewhere
                parts = parts + x.gather(-1, positives.unsqueeze(-1)).squeeze(-1)
            return (weights * parts).sum() / (2 if self.both else 1)

    def _fit(self, g: Tensor, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the weights of the anchors, and the logits with what the host leaves out masked."""
        positives = self.positives
        assert positives is not None
        if self.both and x.shape[-2] != x.shape[-1]:
            raise SeamError(f"{self.where}: --way both: expected as many rows as columns, got {tuple(x.shape)}")
        own, ones, tried = as_objective(self.own), torch.ones_like(g[..., 0]), []

        def expected_of(y: Tensor) -> tuple[float, Tensor]:
            leaves = [y.detach().requires_grad_(), *(each.detach() for each in self.learned)]
            value = self._loss(own, leaves, positives, ones)
            return float(value.detach()) / ones.numel(), torch.autograd.grad(value, leaves[:1])[0]

        whole = expected_of(x)
        # zeros that no rounding explains are what the host leaves out: anchors, and keys but for their exponentials
        smallest = 2 * torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
        missing = (g == 0) & ((_weight(g, whole[1]) * whole[1]).abs() > smallest) & (whole[1].abs() > smallest)
        counted = (g != 0).any(-1) | ~missing.any(-1)
        near = x > x.amax(-1, keepdim=True) - UNDERFLOW
        left_out = missing & near & (g != 0).any(-1, keepdim=True) & ~self._are_positives(g)
        candidates = [(x, whole, bool(left_out.any()))]
        if candidates[0][2]:
            y = x.masked_fill(left_out, -torch.inf)
            candidates.insert(0, (y, expected_of(y), False))
        for y, (value, expected), ignores in candidates:
            some = [] if self.both or bool(counted.all()) else [counted]
            for rows in (*some, torch.ones_like(counted)):
                weights = _weight(g, expected * rows.unsqueeze(-1)) * rows
                error = float((g - weights.unsqueeze(-1) * expected).abs().max() / g.abs().max())
                # of two that fit, that without the zeros
                worse = ROUNDING[dtype] / 10 * (ignores + (bool(some) and rows is not counted))
                tried.append((error + worse if error == error else torch.inf, digits(value) * error, weights, y))
        _, error, weights, y = min(tried, key=lambda each: each[0])
        largest = float(x.masked_fill(x <= MASKED, 0.0).abs().max())
        self.conclude(error, dtype, LOGITS[dtype] + torch.finfo(dtype).eps * self.later * largest)
        return weights, y

    def _are_positives(self, g: Tensor) -> Tensor:
        """Return booleans of the shape of ``g``."""
        positives = self.positives
        assert positives is not None
        if positives.dim() == g.dim():
            return positives != 0
        columns = positives.long().clamp(0, g.shape[-1] - 1).unsqueeze(-1)
        return torch.zeros_like(g, dtype=torch.bool).scatter(-1, columns, True)


def _weight(g: Tensor, expected: Tensor) -> Tensor:
    """Return the number that brings ``expected`` closest to ``g``."""
    return (g * expected).sum() / (expected * expected).sum().clamp(min=torch.finfo(g.dtype).tiny)


class _Replace(torch.autograd.Function):
    """The identity, with another gradient. It copies, as hosts may change the results in place."""

    @staticmethod
    def forward(ctx: Any, call: Replaced, dtype: torch.dtype, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.call, ctx.dtype, ctx.count = call, dtype, count
        ctx.save_for_backward(*tensors[:count])
        return tuple(x.clone() for x in tensors[:count])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *g: Tensor) -> tuple[Tensor | None, ...]:
        try:
            tensors = [x.detach() for x in ctx.saved_tensors]
        except RuntimeError as error:
            if "inplace operation" not in str(error):
                raise
            raise SeamError(f"the tensors at {ctx.call.where} {CHANGED}") from error
        with torch.autocast(tensors[0].device.type, enabled=False):
            return (None, None, None, *ctx.call.gradients(ctx.dtype, g, tensors))


class _Once(torch.autograd.Function):
    """The gradient ``found`` that stands for ``g``, which has no second derivative."""

    @staticmethod
    def forward(ctx: Any, found: Tensor, g: Tensor) -> Tensor:
        return found.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *g: Tensor) -> tuple[Tensor | None, ...]:
        return None, g[0]
