"""Values of hyper-parameters that are not constant: scheduled, learned, tracked, or those of a host.

Calling one returns its current value; its ``repr`` is its text in specs. A host's belong to a call and its thread.
"""

import math
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from . import checks
from .names import check_known

Value = float | Tensor  # what formulas compute with; tensors are one number, or (anchors, 1)
Shape = Literal["linear", "cosine"]


class FromHost(nn.Module):
    """A temperature or a bias that comes with the logits of a host.

    A temperature is one over ``scale=`` of :meth:`counterpoint.Objective.from_logits`, a bias is its ``bias=``; trained
    ones keep their gradient. In specs it is ``t=host`` or ``b=host``, in Python ``cp.InfoNCE("host")``.
    """

    missing: ClassVar[dict[str, str]] = {
        "temperature": 'temperature "host" is one over the scale of logits: expected a call of from_logits.',
        "bias": 'bias "host" is that of logits: expected a call of from_logits with bias=.',
    }

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self) -> Value:
        value = host_values().get(self.name)
        if value is None:
            raise ValueError(self.missing[self.name])
        return value

    def __repr__(self) -> str:
        return "host"


# "temperature" and "bias" of a host, "every bias" of at_scale, and trained numbers by their identity
Values = dict[Any, Value]
_calls = threading.local()


def host_values() -> Values:
    """Return the values of this thread's call."""
    return getattr(_calls, "values", {})


@contextmanager
def with_host_values(values: Values) -> Iterator[None]:
    """Install the values of a call, in this thread; a backward pass installs those of its forward pass."""
    before = host_values()
    _calls.values = values
    try:
        yield
    finally:
        _calls.values = before


def at_scale(scale: Value | None, bias: Value | None = None, every_bias: bool = False) -> AbstractContextManager[None]:
    """Let temperatures that come :class:`FromHost` be one over ``scale``, and biases, or every bias, ``bias``."""
    scale, bias = (x.reshape(()) if isinstance(x, Tensor) and x.numel() == 1 else x for x in (scale, bias))
    values: Values = {} if scale is None else {"temperature": 1 / scale}
    if bias is not None:
        values |= dict.fromkeys(("bias", "every bias") if every_bias else ("bias",), bias)
    return with_host_values({**host_values(), **values})


def given_by_host(module: nn.Module) -> list[Tensor]:
    """Return the tensors of a host that temperatures and biases of a module are at present."""
    names = {part.name for part in module.modules() if isinstance(part, FromHost)} | {"every bias"}
    found = {id(value): value for name, value in host_values().items() if name in names}
    return [value for value in found.values() if isinstance(value, Tensor)]


class Schedule(nn.Module):
    """A number that moves from ``start`` to ``end`` over ``steps`` training calls, at least 1, and stays there.

    It moves linearly or, with ``shape="cosine"``, as half a cosine. The step is a buffer, which advances whenever you
    call the objective in training mode with gradients enabled.

    >>> cp.InfoNCE(cp.Schedule(0.5, 0.1, 1000))
    infonce:t=schedule(0.5,0.1,1000),denominator=with_positive
    """

    step: Tensor

    def __init__(self, start: float, end: float, steps: int, shape: Shape = "linear") -> None:
        super().__init__()
        for name, value in (("start", start), ("end", end)):
            if not checks.is_number(value):
                raise ValueError(f"Schedule: {name} must be a finite number, got {value!r}.")
        if not checks.is_number(steps) or steps != int(steps) or steps < 1:
            raise ValueError(f"Schedule: steps must be a whole number, at least 1, got {steps!r}.")
        check_known("Schedule: unknown shape", shape, get_args(Shape))
        self.start: float = float(start)
        self.end: float = float(end)
        self.steps: int = int(steps)
        self.shape: Shape = shape
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def forward(self) -> Tensor:
        progress = (self.step / self.steps).clamp(max=1.0)
        if self.shape == "cosine":
            progress = 0.5 - 0.5 * torch.cos(math.pi * progress)
        return self.start + (self.end - self.start) * progress

    def advance(self) -> None:
        # not in place: a compiled backward pass may recompute the value from the step of its forward pass
        self.step = self.step + 1

    def bounds(self) -> tuple[float, float]:
        return min(self.start, self.end), max(self.start, self.end)

    def __repr__(self) -> str:
        shape = "" if self.shape == "linear" else f",{self.shape}"
        return f"schedule({number(self.start)},{number(self.end)},{self.steps}{shape})"


class _Clip(torch.autograd.Function):
    """Clamp; its gradient is zero only where a descent step would move further out of the interval."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, low: float, high: float) -> Tensor:
        return x.clamp(low, high)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        x, ctx.low, ctx.high = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return grad.masked_fill(((x <= ctx.low) & (grad > 0)) | ((x >= ctx.high) & (grad < 0)), 0.0), None, None


class Learned(nn.Module):
    """A trained number that begins at ``init``, clamped to ``[low, high]``.

    If ``low`` is positive, the parameter is the logarithm, as for CLIP's temperature, so that steps are relative;
    otherwise it is the number itself, as for SigLIP's bias. Gradients that point back into the interval stay.

    >>> loss_fn = cp.InfoNCE(cp.Learned(0.07, low=0.01, high=1.0))
    >>> [name for name, _ in loss_fn.named_parameters()]
    ['_temperature.log_value']
    """

    def __init__(self, init: float, low: float = 1e-3, high: float = 1e3) -> None:
        super().__init__()
        if not (all(map(checks.is_number, (init, low, high))) and low <= init <= high):
            hint = " A value that may be negative needs low= and high= too." * (checks.is_number(init) and init <= 0)
            got = f"got init={init!r}, low={low!r}, high={high!r}"
            raise ValueError(f"Learned: expected low <= init <= high, {got}.{hint}")
        self.start: float = float(init)
        self.low: float = float(low)
        self.high: float = float(high)
        if self.low > 0:
            self.log_value: nn.Parameter = nn.Parameter(torch.tensor(math.log(init)))
        else:
            self.value: nn.Parameter = nn.Parameter(torch.tensor(float(init)))

    def forward(self) -> Tensor:
        if not checks.compiling() and (held := host_values().get(id(self))) is not None:
            return held  # type: ignore[return-value]
        if self.low <= 0:
            return _Clip.apply(self.value, self.low, self.high)  # type: ignore[no-any-return]
        return _Clip.apply(self.log_value, math.log(self.low), math.log(self.high)).exp()  # type: ignore[no-any-return]

    def bounds(self) -> tuple[float, float]:
        return self.low, self.high

    def __repr__(self) -> str:
        parameter = float(next(self.parameters()).detach())
        value = float(f"{math.exp(parameter) if self.low > 0 else parameter:.6g}")
        return f"learned({number(min(max(value, self.low), self.high))},{number(self.low)},{number(self.high)})"


def learned_values(module: nn.Module) -> tuple[dict[int, Tensor], list[nn.Parameter]]:
    """Return the values of the :class:`Learned` numbers of a module by their identity, and all other parameters."""
    # a number at its limit may move or not by the sign of the whole gradient, which is not known before
    learned = [part for part in module.modules() if isinstance(part, Learned)]
    own = {id(p) for part in learned for p in part.parameters()}
    return {id(part): part() for part in learned}, [p for p in module.parameters() if id(p) not in own]


Number = float | Schedule | Learned  # what a hyper-parameter accepts that is not fixed


class Tracked(nn.Module):
    """The moving average of a statistic: the first training batch sets it; each later one counts a tenth.

    Before that it is the current batch's, so that evaluation alone does not depend on hidden state.
    """

    momentum: float = 0.9
    value: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("value", torch.full((), math.nan))

    def forward(self, current: Tensor) -> Tensor:
        current, average = current.detach(), self.value.to(current.dtype)
        updated = torch.where(average.isnan(), current, self.momentum * average + (1 - self.momentum) * current)
        if self.training and torch.is_grad_enabled():
            self.value = kept(updated.to(self.value.dtype), self.value)  # not in place, as Schedule.step
            return updated
        return torch.where(average.isnan(), current, average)


def kept(new: Tensor, old: Tensor) -> Tensor:
    """Return a module's new state; raise where torch.vmap would leave a tensor that nothing outside of it can read."""
    if not checks.compiling() and _mapped(new) and not _mapped(old):
        why = "each of the mapped calls has statistics of its own, which training cannot keep"
        hint = "call in a loop, call loss_fn.eval(), or map the state as well, with torch.func.functional_call"
        raise RuntimeError(f"torch.vmap: {why}: {hint}.")
    return new


def _mapped(x: Tensor) -> bool:
    functorch = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    inside = functorch.is_functorch_wrapped_tensor(x)
    return inside and (functorch.is_batchedtensor(x) or _mapped(functorch.get_unwrapped(x)))


def number(value: float) -> str:
    """Write a number as the shortest text that reads back as the same number: ``0.5``, ``1``, ``1e-05``."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


def text(value: Any) -> str:
    """Write a hyper-parameter's value as in a spec."""
    if isinstance(value, tuple):
        return f"[{','.join(map(text, value))}]"
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return number(value) if isinstance(value, (int, float)) else str(value)


def bounds(value: Any) -> tuple[float, float]:
    """Return the smallest and the largest value that a number, a Schedule or a Learned value takes."""
    return value.bounds() if isinstance(value, (Schedule, Learned)) else (float(value), float(value))


def current(value: Any) -> Value:
    """Return the current value of a number, a Schedule or a Learned value."""
    return value() if isinstance(value, nn.Module) else value  # type: ignore[no-any-return]


def log(value: Value) -> Value:
    """Return the logarithm of a float or a tensor; ``log(0)`` is minus infinity for both."""
    if isinstance(value, Tensor):
        return value.log()
    return math.log(value) if value > 0 else -math.inf
