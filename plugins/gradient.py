"""The seam in the gradient: what the backward pass brings to the logits of the host's own loss is replaced.

Let ``g`` be the gradient that reaches the logits, and ``G`` the gradient of our form of the host's loss, computed from
the same logits. If ``g = w * G``, with one weight ``w`` for all anchors that count, the logits get ``w`` times the
gradient of the objective instead. A mean, a factor, an accumulation and the scale of a ``GradScaler`` are all in ``w``;
other terms of the loss are not touched; and it does not matter how the loss is written or who calls ``backward``.

That ``g = w * G`` holds is checked in every step: it is the proof that the objective replaces the whole loss of these
logits. Wrong positives, targets that change during training, and a second term of the same logits are errors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from counterpoint.objective import Objective, as_objective
from counterpoint.vectors import widen

from .host import DifferenceError, Seam, SeamError, is_first_process
from .verify import GRADIENTS, NEAR_ZERO, ROUNDING, precision_of

UNDERFLOW = 60.0  # exponents that are smaller, relative to the largest of their row, may have no gradient


@dataclass
class Logits:
    """The logits of one call of the host's loss.

    Attributes:
        seam: of this run.
        site: whose calls share schedules and statistics of the objective.
        where: the line, in words.
        own: the spec of the host's own loss.
        positives: the column of each anchor's positive, or booleans or numbers of the shape of the logits; None until
            they are known, and the host's own gradient then stays.
        options: ``scale=`` and further arguments of ``from_logits``.
        keys: the dimension along which keys compete.
        both: the loss is the mean of those of rows and of columns.
        flipped: booleans, where the logits have the other sign: those of negatives in binary losses.
    """

    seam: Seam
    site: object
    where: str
    own: str
    positives: Tensor | None
    options: dict[str, Any] = field(default_factory=dict)
    keys: int = -1
    both: bool = False
    flipped: Tensor | None = None

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the same logits, whose gradient is replaced."""
        out: Tensor = _Replaced.apply(self, precision_of([logits]), logits, *self.learned)
        return out

    def hook(self, logits: Tensor) -> None:
        """Replace the whole gradient of these logits, also that of what else the host takes from them.

        No gradient can be passed on to a learned scale from here.
        """
        self.options = {k: v.detach() if isinstance(v, Tensor) else v for k, v in self.options.items()}
        dtype, values, version = precision_of([logits]), logits.detach(), logits._version

        def replaced(g: Tensor) -> Tensor | None:
            if values._version != version:
                raise SeamError(f"the logits at {self.where} were changed in place after the loss had taken them")
            return self.gradients(dtype, g, values, self.learned)[0]

        logits.register_hook(replaced)

    @property
    def learned(self) -> list[Tensor]:
        """The host's scale and bias, as far as they are tensors."""
        return [x for x in self.options.values() if isinstance(x, Tensor)]

    def gradients(
        self, dtype: torch.dtype, g: Tensor, logits: Tensor, learned: Sequence[Tensor]
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of the logits and of the host's learned scale and bias.

        Args:
            dtype: the precision of the host's loss.
            g: its gradient.
            logits: of the call.
            learned: the scale and the bias, as far as they are tensors.
        """
        seam, unchanged = self.seam, (g, *(None for _ in learned))
        if self.positives is None or not bool(g.any()):
            return unchanged
        verifies, trains_own = seam.verifies, seam.uses_own_loss
        seam.count()
        if not bool(g.isfinite().all()):  # a GradScaler drops such a step
            return unchanged
        if trains_own and not verifies and seam.report is None:
            return unchanged
        x, wide = widen(self._oriented(logits)), widen(self._oriented(g))
        weights, x, positives = self._proved(wide, x, dtype)
        loss_fn = seam.objective(self.own, criterion=self.site).to(x.device)
        if seam.report is not None and is_first_process():
            with torch.no_grad():
                line = loss_fn.report(x, positives, call="from_logits", **self.options)
            with seam.report.open("a") as file:
                file.write(json.dumps({"step": seam.start + seam.calls, **line}) + "\n")
        if trains_own:
            return unchanged
        counted = weights != 0
        if loss_fn.couples_anchors and not bool(counted.all()):
            ignored = 0 if positives.shape == x.shape else self.options.get("ignore_index", -100)
            several = positives.dim() > counted.dim()
            positives = positives.masked_fill((~counted).unsqueeze(-1) if several else ~counted, ignored)
        leaves = [x.requires_grad_(), *(each.detach().requires_grad_() for each in learned)]
        found = torch.autograd.grad(self._loss(loss_fn, leaves, positives, weights), leaves, allow_unused=True)
        ours, *others = (None if f is None else f.to(like.dtype) for f, like in zip(found, (g, *learned), strict=True))
        return (None if ours is None else self._flip(ours).movedim(-1, self.keys), *others)

    def _oriented(self, x: Tensor) -> Tensor:
        """Put keys last, and give binary logits the sign of their similarities."""
        return self._flip(x.movedim(self.keys, -1))

    def _flip(self, x: Tensor) -> Tensor:
        return x if self.flipped is None else torch.where(self.flipped, -x, x)

    def _loss(self, loss_fn: Objective, leaves: Sequence[Tensor], positives: Tensor, weights: Tensor) -> Tensor:
        """Sum the losses of the anchors times their weights."""
        x, *learned = leaves
        given = iter(learned)
        options = {k: next(given) if isinstance(v, Tensor) else v for k, v in self.options.items()}
        with torch.enable_grad():
            ways = [x, x.mT] if self.both else [x]
            try:
                parts = [loss_fn.from_logits(y, positives, empty="warn", reduction="none", **options) for y in ways]
            except ValueError as error:
                raise SeamError(f"{loss_fn} cannot be computed at {self.where}: {error}") from error
            return torch.stack([(weights * part).sum() for part in parts]).mean()

    # ---- the proof -----------------------------------------------------------------------------

    def _proved(self, g: Tensor, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Return the weights of the anchors, the logits with what the host leaves out masked, and the positives.

        Raises:
            DifferenceError: the gradient is not that of the host's own loss.
        """
        positives = self.positives
        assert positives is not None
        own, ones, tried = as_objective(self.own), torch.ones_like(g[..., 0]), []
        learned, allowed = [x.detach() for x in self.learned], GRADIENTS * ROUNDING[dtype]
        # entries without a gradient are left out by the host, unless their exponential is too small to have one
        near = x > x.amax(-1, keepdim=True) - UNDERFLOW
        left_out = (g == 0) & near & (g != 0).any(-1, keepdim=True)
        for y in [x, x.masked_fill(left_out, -torch.inf)] if bool(left_out.any()) else [x]:
            leaf = y.detach().requires_grad_()
            value = self._loss(own, [leaf, *learned], positives, ones)
            (expected,) = torch.autograd.grad(value, leaf)
            digits = min(
                1.0, abs(float(value.detach())) / ones.numel() / NEAR_ZERO
            )  # fewer where the loss is near zero
            for weights in self._weights(g, expected):
                error = digits * float((g - weights.unsqueeze(-1) * expected).abs().max() / g.abs().max())
                tried.append((error, weights, y))
                if error <= allowed:
                    self.seam.proofs, self.seam.worst = self.seam.proofs + 1, max(self.seam.worst, error)
                    return weights, y, positives
        error, weights, y = min(tried, key=lambda each: each[0])
        message = (
            f"in call {self.seam.calls}, the gradient at {self.where} is not that of {self.own}: they differ by "
            f"{error:.2g} of the largest entry, where {str(dtype).removeprefix('torch.')} explains {allowed:.2g}"
        )
        if not self.seam.options.get("allow_drift"):
            raise DifferenceError(f"{message}. {self.seam.if_wrong}")
        self.seam.notes[f"{self.where}, allowed"] = message
        return weights, y, positives

    def _weights(self, g: Tensor, expected: Tensor) -> list[Tensor]:
        """Return the weights that may fit: one for all anchors, or for those with a gradient."""
        counted = (g != 0).any(-1)
        some = [] if self.both or bool(counted.all()) else [counted]
        weights = []
        for rows in (torch.ones_like(counted), *some):
            part = expected * rows.unsqueeze(-1)
            one = (g * part).sum() / (part * part).sum().clamp(min=torch.finfo(g.dtype).tiny)
            weights.append(one * rows)
        return weights


class _Replaced(torch.autograd.Function):
    """The identity, with another gradient. It copies, as hosts may change the result in place."""

    @staticmethod
    def forward(ctx: Any, call: Logits, dtype: torch.dtype, logits: Tensor, *learned: Tensor) -> Tensor:
        ctx.call, ctx.dtype = call, dtype
        ctx.save_for_backward(logits, *learned)
        return logits.clone()

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        logits, *learned = ctx.saved_tensors
        with torch.autocast(logits.device.type, enabled=False):
            return (None, None, *ctx.call.gradients(ctx.dtype, g, logits.detach(), learned))
