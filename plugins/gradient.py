"""The seam in the gradient: replace the gradient that the host's own loss brings to logits or embeddings.

Let ``g`` be the gradient that reaches the logits, and ``G`` the gradient of our form of the host's loss, computed from
the same logits. If ``g = w * G``, with one weight ``w`` for all anchors that count, the logits get ``w`` times the
gradient of the objective instead; embeddings, likewise. A mean, a factor, an accumulation and the scale of a
``GradScaler`` are all in ``w``; other terms of the loss are not touched; and it does not matter how the loss is written
or who calls ``backward``.

That ``g = w * G`` holds is checked in every step, but for some of those in which a function returns its loss, from
which ``w`` follows (see :mod:`counterpoint.plugins.embeddings`): it is the proof that the objective replaces the whole
loss of these tensors. Wrong positives, targets that change during training, and a second term of the same logits are
errors.
"""

import functools
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from counterpoint.base import Objective, as_objective
from counterpoint.batch.ready_made import MASKED, columns_of
from counterpoint.hyper import warn_of_scales
from counterpoint.objectives.infonce import DCL
from counterpoint.treatments import Treatment
from counterpoint.values import FromHost
from counterpoint.vectors import widen

from .finder.recognise import HALF, UNDERFLOW, digits, exact_sums, other_denominator, positives_by_gradient, weights_of
from .host import DifferenceError, Seam, SeamError, is_first_process
from .later import add_later

CHANGED = "were changed in place after the loss had taken them"
ROUNDING = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""The largest relative difference of losses that are computed in these precisions."""
LOGITS = {torch.float64: 1e-4, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""The largest relative difference of gradients at the logits: these are the same numbers, so that little is rounded."""
LOOKS, RARE = (10, 100, 1000), 0.05  # calls, share of anchors
FLOORED = "prior= took out more than there was"
OFTEN = "at {:.0%} of the anchors in call {} of the loss; usual late in training, else compare a smaller one"
CROSS_ENTROPY = "infonce:t=host"  # of scaled logits, whose gradient is softmax minus one-hot whatever the scale is


def precision_of(tensors: Iterable[object]) -> torch.dtype:
    """Return the lowest precision in which a loss of these tensors is computed here."""
    floating = [x for x in tensors if isinstance(x, Tensor) and x.is_floating_point()]
    devices = {x.device.type for x in floating if torch.is_autocast_enabled(x.device.type)}
    dtypes = {x.dtype for x in floating} | {torch.get_autocast_dtype(device) for device in devices}
    return max(dtypes & ROUNDING.keys(), key=ROUNDING.__getitem__, default=torch.float32)


@functools.lru_cache
def own_loss(spec: str) -> Objective:
    """Return the host's own loss, which has no state."""
    return as_objective(spec)


class Replaced(ABC):
    """Tensors that the host's own loss is a function of, whose gradient is replaced."""

    seam: Seam  # of this run
    site: object  # whose calls share schedules and statistics of the objective
    where: str  # the line, in words
    kind: str  # what the tensors are, in words
    own: str  # the spec of the host's own loss
    learned: list[Tensor]  # which our losses depend on beside these, such as the host's scale
    told: dict[str, Any]  # what the treatment that trains is told of
    known: bool = True  # whether everything is known that our losses need; until then, the host's own gradient stays

    def __call__(self, *tensors: Tensor) -> Any:
        """Return the same tensors, a single one as it is, with another gradient."""
        out = _Replace.apply(self, precision_of(tensors), len(tensors), *tensors, *self.learned)
        return out[0] if len(tensors) == 1 else out

    @abstractmethod
    def proved(self, g: Sequence[Tensor], tensors: Sequence[Tensor], dtype: torch.dtype) -> Callable[..., Any]:
        """Return a function of the objective that computes the gradients that replace ``g``.

        Raises:
            DifferenceError: ``g`` is not the gradient of the host's own loss.
        """

    @abstractmethod
    def report(self, loss_fn: Objective, tensors: Sequence[Tensor]) -> dict[str, float]:
        """Return the objective's report of the batch."""

    def gradients(self, dtype: torch.dtype, g: Sequence[Tensor], tensors: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """Return the gradients of the tensors, and of the learned ones; ``dtype`` and ``g`` are of the host's loss."""
        seam, unchanged = self.seam, (*g, *(None for _ in self.learned))
        if not self.known or not any(bool(each.any()) for each in g):
            return unchanged
        verifies, trains_own = seam.verifies, seam.uses_own_loss
        seam.count()
        if not all(bool(each.isfinite().all()) for each in g):  # a GradScaler drops such a step
            return unchanged
        if not seam.first:  # weighted, as the entries of a softmax alone sum to nearly the same for all seeds
            weighted = ((x.double() * each)[each != 0] for x, each in zip(tensors, g, strict=True))
            seam.first = float(sum(each.abs().sum() for each in weighted))
        if trains_own and not verifies and seam.report is None:
            return unchanged
        found = self.trained(self.proved(g, tensors, dtype), tensors, trains_own)
        return unchanged if trains_own else found

    def passed_on(self, found: Sequence[Tensor | None], count: int = 1) -> Sequence[Tensor | None]:
        """Pass on the gradients of learned tensors that were not known when the host's loss was computed."""
        for x, more in zip(self.learned, found[count:], strict=True):
            if more is not None and x.requires_grad:
                add_later(x, more)
        return found[:count]

    def trained(self, ours: Callable[..., Any], tensors: Sequence[Tensor], own: bool = False) -> list[Tensor | None]:
        """Report on the batch, and return the gradients of ``ours``; none where the host's own loss trains."""
        seam = self.seam
        loss_fn = own_loss(self.own) if own else seam.objective(self.site, self.own)
        loss_fn = loss_fn.to(tensors[0].device)
        if seam.report is not None:
            with torch.no_grad():
                line = self.report(loss_fn, tensors)  # in every process, since some gather
            if is_first_process():
                line |= {"verify": True} if seam.calls <= seam.verify else {}  # of the host's own loss
                with seam.report.open("a") as file:
                    file.write(json.dumps({"step": seam.start + seam.calls, **line}) + "\n")
        if not own and seam.calls in LOOKS and any(isinstance(part, DCL) for part in loss_fn.modules()):
            with torch.no_grad():
                numbers = self.report(loss_fn, tensors)
            floored = max((x for name, x in numbers.items() if "clamp_rate" in name), default=0.0)
            if floored > RARE:
                seam.notes[f"{self.where}, {'the default ' * ('prior' not in seam.spec)}{FLOORED}"] = OFTEN.format(
                    floored, seam.calls
                )
        pairs = () if own else zip(ours(loss_fn), (*tensors, *self.learned), strict=True)
        return [None if f is None else f.to(x.dtype) for f, x in pairs]

    def _told(self, loss_fn: Objective) -> dict[str, Any]:
        return self.told if isinstance(loss_fn, Treatment) else {}

    def conclude(self, error: float, dtype: torch.dtype, allowed: float) -> None:
        """Note how well the gradient is that of the host's own loss, or raise an error."""
        seam = self.seam
        if error <= allowed:
            seam.proofs, seam.worst, seam.proved_at = seam.proofs + 1, max(seam.worst, error), self.kind
            return
        message = (
            f"in call {seam.calls}, the gradient at {self.where} is not that of {self.own}: they differ by "
            f"{error:.2g} of the largest entry, where {str(dtype).removeprefix('torch.')} explains {allowed:.2g}"
        )
        if not seam.options.get("allow_drift"):
            raise DifferenceError(f"{message}. {seam.if_wrong}")
        seam.notes[f"{self.where}, allowed"] = message


@dataclass(eq=False)
class Logits(Replaced):
    """The logits of one call of the host's loss."""

    kind = "logits"
    seam: Seam
    site: object
    where: str
    own: str
    # the column of each anchor's positive, or booleans or numbers of the shape of the logits; None until they are known
    positives: Tensor | None
    options: dict[str, Any] = field(default_factory=dict)  # ``scale=`` and further arguments of ``from_logits``
    keys: int = -1  # the dimension along which keys compete
    both: bool = False  # the loss is the mean of those of rows and of columns
    flipped: Tensor | None = None  # booleans, where logits have the other sign: those of negatives in binary losses
    # the host takes the positives from another tensor, so that these logits get the gradient of its sum of exponentials
    # alone; what the positives are is then not proved
    apart: bool = False
    later: float = 0.0  # what the host multiplies these logits by later, in their precision, which rounds the exponents
    deduced: bool = False  # in each step, the positives are the entries whose gradient is not that of a negative
    told: dict[str, Any] = field(default_factory=dict)
    # soft targets (..., anchors, keys), whose largest are the positives, columns; a row may sum to any number, its
    # weight, and counts if that is not zero
    targets: Tensor | None = None
    scaled: bool = True  # the scale is in these numbers; else the host multiplies them by it afterwards
    floor: float = torch.inf  # logits that are so much smaller than the largest of their row are masked
    values: Sequence[float] = ()  # numbers that the script has computed in this step, as far as they are known

    def __post_init__(self) -> None:
        self.told = {{"labels": "classes"}.get(k, k): v for k, v in self.told.items()}
        self.targets = None if self.targets is None else widen(self.targets.detach())
        self.arrived_at_sums: Tensor | None = None
        self.arrived: Tensor | None = None  # at the losses of the anchors, if the host weights these by itself

    @property
    def known(self) -> bool:  # type: ignore[override]
        return self.positives is not None or self.deduced

    @property
    def learned(self) -> list[Tensor]:  # type: ignore[override]
        """The host's scale and bias, as far as they are tensors."""
        return [x for x in self.options.values() if isinstance(x, Tensor)]

    def returned(self, loss: Tensor) -> Tensor:
        """Return the result of the host's call; if that is a loss per anchor, keep the gradient that arrives there."""
        if loss.dim() and loss.requires_grad:
            name = "arrived_at_sums" if self.apart else "arrived"
            loss.register_hook(lambda g: setattr(self, name, widen(g.detach())))
        return loss

    def hook(self, logits: Tensor) -> None:
        """Replace the whole gradient of these logits, other uses by the host included."""
        dtype, values, version = precision_of([logits]), logits.detach(), logits._version

        def replaced(g: Tensor) -> Tensor | None:
            if values._version != version:
                raise SeamError(f"the logits at {self.where} {CHANGED}")
            (found,) = self.passed_on(self.gradients(dtype, [g.detach()], [values]))
            return Once.apply(found, g) if found is not None and g.requires_grad else found

        logits.register_hook(replaced)

    def report(self, loss_fn: Objective, tensors: Sequence[Tensor]) -> dict[str, float]:
        x = self._values(tensors[0])
        x = x if self.scaled else x * self.options["scale"]
        how = {**self.options, **self._told(loss_fn), "targets": self.targets}
        return loss_fn.report(x, self.positives, call="from_logits", **how)

    def proved(self, g: Sequence[Tensor], tensors: Sequence[Tensor], dtype: torch.dtype) -> Callable[..., Any]:
        gradient, x = widen(self._oriented(g[0])), self._values(tensors[0])
        if self.deduced:
            exponents = self._scaled(x)
            self.positives = gradient < 0 if self.both else positives_by_gradient(exponents, gradient, LOGITS[dtype])
            # a positive of probability one has no gradient
            none = ~self.positives.any(-1, keepdim=True)
            self.positives |= torch.zeros_like(self.positives).scatter(-1, x.argmax(-1, keepdim=True), none)
        weights, x = self._fit(gradient, x, dtype)
        sums = weights if self.arrived_at_sums is None else self.arrived_at_sums
        if sums.shape == weights.shape and torch.allclose(weights, sums, LOGITS[dtype], 0.0):
            weights = sums  # to the last digit, so that what the host adds elsewhere may cancel it
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
            if not self.scaled and others:  # the host's loss brings its own gradient to them, too
                theirs = torch.autograd.grad(self._loss(own_loss(self.own), leaves, positives, weights), leaves)[1:]
                others = [-b if a is None else a - b for a, b in zip(others, theirs, strict=True)]
            return [None if first is None else self._flip(first).movedim(-1, self.keys), *others]

        return ours

    def _oriented(self, x: Tensor) -> Tensor:
        """Put keys last, and give binary logits the sign of their similarities."""
        return self._flip(x.movedim(self.keys, -1))

    def _values(self, x: Tensor) -> Tensor:
        x = widen(self._oriented(x))
        return x.masked_fill(x < x.amax(-1, keepdim=True) - self.floor, -torch.inf) if x.shape[-1] else x

    def _flip(self, x: Tensor) -> Tensor:
        return x if self.flipped is None else torch.where(self.flipped, -x, x)

    def _scaled(self, x: Tensor) -> Tensor:
        """Return the exponents of the host's own loss."""
        own = as_objective(self.own)
        x = x if self.scaled else x * torch.as_tensor(self.options["scale"]).detach()
        if any(isinstance(part, FromHost) for part in own.modules()):
            return x
        return x / (float(self.options.get("scale", 1.0)) * float(vars(own).get("temperature", 1.0)))

    def _loss(self, loss_fn: Objective, leaves: Sequence[Tensor], positives: Tensor, weights: Tensor) -> Tensor:
        """Sum the losses of the anchors times their weights."""
        x, *learned = leaves
        given = iter(learned)
        options: dict[str, Any] = {k: next(given) if isinstance(v, Tensor) else v for k, v in self.options.items()}
        with torch.enable_grad():
            scale = torch.as_tensor(self.options.get("scale", 1.0)).detach().max()
            if "_checked_scale" not in vars(loss_fn) and bool(scale > 1):
                warn_of_scales(loss_fn)
            for part in loss_fn.modules():
                vars(part)["_checked_scale"] = True  # here, it is measured
            if not self.scaled:  # of a masked entry, the scale would get zero times infinity
                x = (x.masked_fill(masked := x.isneginf(), 0.0) * options["scale"]).masked_fill(masked, -torch.inf)
            # one call, by which schedules and statistics move once
            ways, targets, labels = (torch.stack([x, x.mT]) if self.both else x), self.targets, positives
            if self.both and targets is not None:
                targets = torch.stack([targets, targets.mT])
                labels = columns_of(targets)
            elif self.both:
                labels = positives.expand(2, *positives.shape)
            try:
                options |= {**self._told(loss_fn), "targets": targets}
                parts = loss_fn.from_logits(ways, labels, empty="warn", reduction="none", **options)
            except (TypeError, ValueError) as error:
                raise SeamError(f"{loss_fn} cannot be computed at {self.where}: {error}") from error
            if targets is not None:
                parts = parts * targets.sum(-1)
            if self.apart:  # their gradient is in these losses, and the host adds it elsewhere
                parts = parts + x.gather(-1, positives.unsqueeze(-1)).squeeze(-1)
            return (weights * parts).sum() / (2 if self.both else 1)

    def _fit(self, g: Tensor, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the weights of the anchors, and the logits with the entries masked that the host leaves out."""
        positives = self.positives
        assert positives is not None
        if self.both and x.shape[-2] != x.shape[-1]:
            raise SeamError(f"{self.where}: --way both: expected as many rows as columns, got {tuple(x.shape)}")
        own, ones, tried = own_loss(self.own), torch.ones_like(g[..., 0]), []
        if self.arrived is not None and not bool((self.arrived == self.arrived.flatten()[0]).all()):
            ones = self.arrived
            self.seam.notes[f"{self.where}, anchors"] = "they keep the weights that the script gives their losses"
        largest = float(x.masked_fill(x <= MASKED, 0.0).abs().max())
        allowed = LOGITS[dtype] + torch.finfo(dtype).eps * self.later * largest
        smallest = 2 * torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps

        def missing(*expected: Tensor) -> Tensor:
            """Zeros that no rounding explains, which the host leaves out: anchors, keys but for their exponentials."""
            return functools.reduce(torch.logical_and, (each.abs() > smallest for each in expected), g == 0)

        if self.own == CROSS_ENTROPY and self.scaled and not (self.both or self.apart or self.flipped is not None):
            targets = self._are_positives(g).to(g.dtype) if self.targets is None else self.targets
            expected = ones.unsqueeze(-1) * (torch.softmax(x, -1) * targets.sum(-1, keepdim=True) - targets)
            if LOGITS[dtype] > HALF and self.targets is None:
                g = exact_sums(x, g, targets != 0, dtype)
            weight = _weight(g, expected)
            error = float((g - weight * expected).abs().max() / g.abs().max())
            if error <= allowed and not bool(missing(weight * expected, expected).any()):
                self.conclude(error, dtype, allowed)
                return weight * ones, x

        def expected_of(y: Tensor) -> tuple[float, Tensor]:
            leaves = [y.detach().requires_grad_(), *(each.detach() for each in self.learned)]
            value = self._loss(own, leaves, positives, ones)
            return float(value.detach() / ones.abs().sum()), torch.autograd.grad(value, leaves[:1])[0]

        whole = expected_of(x)
        without = missing(_weight(g, whole[1]) * whole[1], whole[1])
        counted = (g != 0).any(-1) | ~without.any(-1)
        near = x > x.amax(-1, keepdim=True) - UNDERFLOW
        left_out = without & near & (g != 0).any(-1, keepdim=True) & ~self._are_positives(g)
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
                tried.append((error + worse if error == error else torch.inf, digits(value) * error, weights * ones, y))
        _, error, weights, y = min(tried, key=lambda each: each[0])
        weighs = self.seam.options.get("weighted") and error > allowed and not self.both
        if weighs and (each := weights_of(g.flatten(0, -2), whole[1].flatten(0, -2), allowed)) is not None:
            each = each.view(*ones.shape, 1)
            weights, error, y = each.squeeze(-1) * ones, float((g - each * whole[1]).abs().max() / g.abs().max()), x
            leaves = [x.detach().requires_grad_(), *self.learned]
            losses = functools.partial(self._loss, leaves=leaves, positives=positives)
            if not self.apart and (wrong := other_denominator(own, losses, leaves[0], g, allowed, self.values)):
                raise DifferenceError(f"in call {self.seam.calls}, the weighted losses at {self.where} {wrong}")
        self.conclude(error, dtype, allowed)
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
        ctx.call, ctx.dtype, ctx.count, ctx.alone = call, dtype, count, len(tensors) == count
        ctx.save_for_backward(*tensors[:count])
        return tuple(x.clone() for x in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> tuple[Tensor | None, ...]:
        try:
            tensors = [x.detach() for x in ctx.saved_tensors]
        except RuntimeError as error:
            if "inplace operation" not in str(error):
                raise
            raise SeamError(f"the tensors at {ctx.call.where} {CHANGED}") from error
        with torch.no_grad(), torch.autocast(tensors[0].device.type, enabled=False):
            found = ctx.call.gradients(ctx.dtype, [each.detach() for each in g], tensors)
            found = ctx.call.passed_on(found, ctx.count) if ctx.alone else found
        if torch.is_grad_enabled():  # create_graph=True
            found = [None if f is None else Once.apply(f, *g) for f in found]
        return (None, None, None, *found)


class Once(torch.autograd.Function):
    """The gradient ``found`` that stands for ``g``. With ``create_graph=True`` it must not be taken for a constant."""

    @staticmethod
    def forward(ctx: Any, found: Tensor, *g: Tensor) -> Tensor:
        return found.clone()

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> tuple[Tensor | None, ...]:
        raise SeamError("the gradient of the host's loss is replaced, and has no second derivative")
