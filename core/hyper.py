"""Hyper-parameters: their names, defaults and ranges, and values that change during training.

A number is constant, a :class:`Schedule` follows the training step, and a :class:`Learned` value is trained. Every
:class:`Real` that is not ``fixed`` accepts all three; specs write them as ``0.5``, ``schedule(0.5,0.1,1000)`` and
``learned(0.07,0.005,1)``.
"""

from __future__ import annotations

import inspect
import math
import numbers
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeGuard, overload

import torch
from torch import Tensor, nn
from typing_extensions import Self, TypeVar

from . import checks
from .names import check_known
from .names import nearest as nearest

Value = float | Tensor
"""What formulas compute with: a Python float or a zero-dimensional tensor."""


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether ``value`` is a finite real number; booleans do not count as numbers."""
    try:
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer larger than every float
        return False


class Schedule(nn.Module):
    """A number that moves from ``start`` to ``end`` over ``steps`` training calls and stays there.

    The step is a buffer: ``state_dict`` saves it, and it advances by one whenever you call the objective in training
    mode with gradients enabled.

    Args:
        start: Value before the first training call.
        end: Value after ``steps`` training calls.
        steps: Number of training calls, at least 1.
        shape: ``"linear"`` or ``"cosine"``.

    >>> import counterpoint as cp
    >>> cp.InfoNCE(cp.Schedule(0.5, 0.1, 1000))
    infonce:t=schedule(0.5,0.1,1000),denominator=with_positive
    """

    step: Tensor

    def __init__(self, start: float, end: float, steps: int, shape: str = "linear") -> None:
        super().__init__()
        for name, value in (("start", start), ("end", end)):
            if not is_number(value):
                raise ValueError(f"Schedule: {name} must be a finite number, got {value!r}.")
        if not is_number(steps) or steps != int(steps):
            raise ValueError(f"Schedule: steps must be a whole number, got {steps!r}.")
        if steps < 1:
            raise ValueError(f"Schedule: steps must be at least 1, got {int(steps)}.")
        check_known("Schedule: unknown shape", shape, ("linear", "cosine"))
        self.start, self.end, self.steps, self.shape = float(start), float(end), int(steps), shape
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
        """Return the smallest and the largest value."""
        return min(self.start, self.end), max(self.start, self.end)

    def spec(self) -> str:
        shape = "" if self.shape == "linear" else f",{self.shape}"
        return f"schedule({number(self.start)},{number(self.end)},{self.steps}{shape})"

    __repr__ = spec


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
        outward = ((x <= ctx.low) & (grad > 0)) | ((x >= ctx.high) & (grad < 0))
        return grad.masked_fill(outward, 0.0), None, None


class Learned(nn.Module):
    """A trained number, clamped to ``[low, high]``.

    If ``low`` is positive, the parameter is the logarithm, as for CLIP's temperature, so that steps are relative;
    otherwise it is the number itself, as for SigLIP's bias. Unlike a plain clamp, it keeps the gradient that points
    back into the interval.

    Args:
        init: Initial value.
        low: Smallest value.
        high: Largest value.

    >>> import counterpoint as cp
    >>> loss_fn = cp.InfoNCE(cp.Learned(0.07, low=0.01, high=1.0))
    >>> [name for name, _ in loss_fn.named_parameters()]
    ['_temperature.log_value']
    """

    def __init__(self, init: float, low: float = 1e-3, high: float = 1e3) -> None:
        super().__init__()
        if not (is_number(init) and is_number(low) and is_number(high) and low <= init <= high):
            hint = " A value that may be negative needs low= and high= too." if is_number(init) and init <= 0 else ""
            raise ValueError(
                f"Learned: expected low <= init <= high, got init={init!r}, low={low!r}, high={high!r}.{hint}"
            )
        self.start, self.low, self.high = float(init), float(low), float(high)
        if self.low > 0:
            self.log_value = nn.Parameter(torch.tensor(math.log(init)))
        else:
            self.value = nn.Parameter(torch.tensor(float(init)))

    def forward(self) -> Tensor:
        if not checks.compiling() and (held := host_values().get(id(self))) is not None:
            return held  # type: ignore[return-value]
        if self.low <= 0:
            return _Clip.apply(self.value, self.low, self.high)  # type: ignore[no-any-return]
        value: Tensor = _Clip.apply(self.log_value, math.log(self.low), math.log(self.high))
        return value.exp()

    def bounds(self) -> tuple[float, float]:
        """Return the smallest and the largest value."""
        return self.low, self.high

    def spec(self) -> str:
        parameter = float(next(self.parameters()).detach())
        value = float(f"{math.exp(parameter) if self.low > 0 else parameter:.6g}")
        return f"learned({number(min(max(value, self.low), self.high))},{number(self.low)},{number(self.high)})"

    __repr__ = spec


class FromScale(nn.Module):
    """The temperature of logits: one over the ``scale=`` of :meth:`counterpoint.Objective.from_logits`.

    Specs write it as ``t=host``. If the scale is learned, it keeps its gradient.

    >>> import torch, counterpoint as cp
    >>> log_scale = torch.tensor(3.0, requires_grad=True)
    >>> cosines = torch.eye(4) - 0.1
    >>> cp.ADNCE("host").from_logits(log_scale.exp() * cosines, scale=log_scale.exp()).backward()
    >>> bool(log_scale.grad)
    True
    """

    missing = 'temperature "host" is one over the scale of logits: expected a call of from_logits.'

    def forward(self) -> Value:
        value = host_values().get(id(self))
        if value is None:
            raise ValueError(self.missing)
        return value

    def bounds(self) -> tuple[float, float]:
        """Return the smallest and the largest value."""
        return math.nextafter(0, 1), math.inf

    def __repr__(self) -> str:
        return self.spec()

    def spec(self) -> str:
        return HOST


class FromBias(FromScale):
    """The bias of logits: ``bias=`` of :meth:`counterpoint.Objective.from_logits`. Specs write it as ``b=host``."""

    missing = 'bias "host" is that of logits: expected a call of from_logits with bias=.'

    def bounds(self) -> tuple[float, float]:
        """Return the smallest and the largest value."""
        return -math.inf, math.inf


def given_by_host(module: nn.Module) -> list[Tensor]:
    """Return the host's own tensors that temperatures and biases of parts are at present."""
    values = host_values()
    found = (values.get(id(part)) for part in module.modules()) if values else ()
    return [value for value in found if isinstance(value, Tensor)]


def learned_values(module: nn.Module) -> tuple[dict[int, Tensor], list[nn.Parameter]]:
    """Return the values of the :class:`Learned` numbers of a module by their identity, and all other parameters.

    A loss that is differentiated before its own gradient is known must be differentiated with respect to the values:
    whether a number at its limit may move depends on the sign of the whole gradient.
    """
    learned = [part for part in module.modules() if isinstance(part, Learned)]
    own = {id(p) for part in learned for p in part.parameters()}
    return {id(part): part() for part in learned}, [p for p in module.parameters() if id(p) not in own]


_calls = threading.local()


def host_values() -> dict[int, Value]:
    """Return the host's scale and bias in this thread's call, by the identity of the module that reads them."""
    return getattr(_calls, "values", {})


@contextmanager
def with_host_values(values: dict[int, Value]) -> Iterator[None]:
    """Let modules read these values, in this thread; a backward pass installs those of its forward pass."""
    before = host_values()
    _calls.values = values
    try:
        yield
    finally:
        _calls.values = before


def copied_host_values(module: nn.Module, copied: nn.Module) -> dict[int, Value]:
    """Return the host's values of this thread's call for a copy of a module."""
    values, pairs = host_values(), zip(module.modules(), copied.modules(), strict=True)
    return {id(new): values[id(old)] for old, new in pairs if id(old) in values}


@contextmanager
def at_scale(
    module: nn.Module, scale: Value | None, bias: Value | None = None, biased: type[nn.Module] | None = None
) -> Iterator[None]:
    """Let temperatures that come :class:`FromScale` be one over ``scale``, and biases :class:`FromBias` ``bias``.

    Parts of the type ``biased`` have that bias, too, in place of their own.
    """
    values = dict(host_values())
    for part in module.modules():
        if isinstance(part, FromBias) or (biased is not None and isinstance(part, biased)):
            if bias is not None:
                values[id(part)] = bias
        elif isinstance(part, FromScale) and scale is not None:
            values[id(part)] = 1 / scale
    with with_host_values(values):
        yield


Number = float | Schedule | Learned
"""What a schedulable hyper-parameter accepts."""

HOST = "host"
"""The temperature that is :class:`FromScale`, and the objective that is a host's own loss."""
_FROM_HOST: dict[str, type[FromScale]] = {"t": FromScale, "b": FromBias}


class Tracked(nn.Module):
    """The exponential moving average of a statistic of the training batches.

    The first training batch sets it; each later one counts ``1 - momentum``. Before the first training call it is the
    current batch's value, so that evaluation alone does not depend on hidden state.
    """

    value: Tensor

    def __init__(self, momentum: float = 0.9) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("value", torch.full((), math.nan))

    def forward(self, current: Tensor) -> Tensor:
        current, average = current.detach(), self.value.to(current.dtype)
        updated = torch.where(average.isnan(), current, self.momentum * average + (1 - self.momentum) * current)
        if self.training and torch.is_grad_enabled():
            self.value = updated.to(self.value.dtype)  # not in place, for the same reason as Schedule.step
            return updated
        return torch.where(average.isnan(), current, average)


T = TypeVar("T", default=Number)
V = TypeVar("V", default=Any)

REQUIRED: Any = inspect.Parameter.empty
"""The default of a hyper-parameter that has none."""


class Hyper(Generic[T, V]):
    """A hyper-parameter of an objective: a read-only attribute that accepts a ``T`` and reads as a ``V``.

    Args:
        short: Name in specs (``t`` for ``temperature``); by default the attribute's name.
        default: Value if the caller passes none; without a default the parameter is required.
        doc: One sentence for the ``Args`` section of the objective's docstring.
        always: Print it in specs even at its default.
        kw_only: Pass it by name; type checkers require that, and positional parameters come first. A parameter
            without a default is always keyword-only.
    """

    name: str

    def __init__(
        self, short: str = "", *, default: Any = REQUIRED, doc: str = "", always: bool = False, kw_only: bool = False
    ) -> None:
        self.short, self.default, self.doc, self.always = short, default, doc, always
        self.kw_only = kw_only or default is REQUIRED

    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self.short = name, self.short or name

    if TYPE_CHECKING:  # at run time this stays a non-data descriptor: constants live in the instance's __dict__

        @overload
        def __get__(self, objective: None, owner: Any = None) -> Self: ...
        @overload
        def __get__(self, objective: object, owner: Any = None) -> V: ...
        def __get__(self, objective: Any, owner: Any = None) -> Any: ...
        def __set__(self, objective: Any, value: T) -> None: ...

    else:

        def __get__(self, objective, owner=None):
            # only schedules and learned values get here
            return self if objective is None else objective._hyper[self.name]()

    def check(self, value: Any, where: str) -> Any:
        """Return ``value`` in its canonical type, or raise an error that names the objective ``where``."""
        raise NotImplementedError

    def expected(self) -> str:
        """Describe the accepted values."""
        raise NotImplementedError

    def fail(self, value: Any, where: str) -> Exception:
        kind = ValueError if isinstance(value, (numbers.Real, str)) else TypeError
        hint = " To train a number, pass a Learned(...)." if isinstance(value, Tensor) else ""
        return kind(f"{where}: {self.name} must be {self.expected()}, got {value!r}.{hint}")


class Real(Hyper[T, Any]):
    """A number in an interval, or one of ``words`` (``"auto"``), or None if ``optional``.

    It also accepts a :class:`Schedule` or a :class:`Learned` value unless ``fixed``.
    """

    def __init__(
        self,
        short: str = "",
        low: float = -math.inf,
        high: float = math.inf,
        *,
        default: T = REQUIRED,
        doc: str = "",
        open_low: bool = False,
        open_high: bool = False,
        words: tuple[str, ...] = (),
        optional: bool = False,
        fixed: bool = False,
        always: bool = False,
        kw_only: bool = False,
    ) -> None:
        super().__init__(short, default=default, doc=doc, always=always, kw_only=kw_only)
        self.low, self.high, self.open_low, self.open_high = low, high, open_low, open_high
        self.words, self.optional, self.fixed = words, optional, fixed

    def expected(self) -> str:
        left = "" if self.low == -math.inf else f"{number(self.low)} {'<' if self.open_low else '<='} "
        right = "" if self.high == math.inf else f" {'<' if self.open_high else '<='} {number(self.high)}"
        text = "a finite number" + (f" with {left}{self.name}{right}" if left or right else "")
        for word in (*self.words, *([HOST] if self.short in _FROM_HOST else [])):
            text += f' or "{word}"'
        return text + (" or None" if self.optional else "")

    def contains(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below

    def check(self, value: Any, where: str) -> Any:
        if (value is None and self.optional) or (isinstance(value, str) and value in self.words):
            return value
        if self.short in _FROM_HOST and isinstance(value, str) and value == HOST:
            return _FROM_HOST[self.short]()
        if isinstance(value, (Schedule, Learned, FromScale)) and not self.fixed:
            if not all(map(self.contains, value.bounds())):
                raise ValueError(f"{where}: {self.name} must be {self.expected()}, got {value.spec()}.")
            return value
        if not is_number(value) or not self.contains(float(value)):
            raise self.fail(value, where)
        return float(value)


class Whole(Hyper[int | None, int | None]):
    """A whole number of at least ``low``, or None."""

    def __init__(
        self, short: str = "", low: int = 1, *, default: int | None = REQUIRED, doc: str = "", kw_only: bool = False
    ) -> None:
        super().__init__(short, default=default, doc=doc, kw_only=kw_only)
        self.low = low

    def expected(self) -> str:
        return f"a whole number of at least {self.low} or None"

    def check(self, value: Any, where: str) -> Any:
        if value is None:
            return value
        if not is_number(value) or value != int(value) or value < self.low:
            raise self.fail(value, where)
        return int(value)


class Choice(Hyper[str, str]):
    """One of a few words."""

    def __init__(
        self,
        *options: str,
        short: str = "",
        default: str = REQUIRED,
        doc: str = "",
        always: bool = False,
        kw_only: bool = False,
    ) -> None:
        super().__init__(short, default=default, doc=doc, always=always, kw_only=kw_only)
        self.options = options

    def expected(self) -> str:
        return "one of " + ", ".join(self.options)

    def check(self, value: Any, where: str) -> Any:
        if not isinstance(value, str):
            raise self.fail(value, where)
        check_known(f"{where}: unknown {self.name}", value, self.options)
        return value


class Flag(Hyper[bool, bool]):
    """True or False."""

    def expected(self) -> str:
        return "True or False"

    def check(self, value: Any, where: str) -> Any:
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if not isinstance(value, bool):
            raise self.fail(value, where)
        return value


def number(value: float) -> str:
    """Write a number as the shortest text that reads back as the same number: ``0.5``, ``1``, ``1e-05``."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


def text(value: Any) -> str:
    """Write a hyper-parameter's value as in a spec."""
    if isinstance(value, (Schedule, Learned, FromScale)):
        return value.spec()
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return number(value) if isinstance(value, (int, float)) else str(value)


def bounds(value: Any) -> tuple[float, float]:
    """Return the smallest and the largest value that a number, a Schedule or a Learned value takes."""
    return value.bounds() if isinstance(value, (Schedule, Learned, FromScale)) else (float(value), float(value))


def current(value: Any) -> Value:
    """Return the current value of a number, a Schedule or a Learned value."""
    return value() if isinstance(value, nn.Module) else value  # type: ignore[no-any-return]


def log(value: Value) -> Value:
    """Return the logarithm of a float or a tensor; ``log(0)`` is minus infinity for both."""
    if isinstance(value, Tensor):
        return value.log()
    return math.log(value) if value > 0 else -math.inf
