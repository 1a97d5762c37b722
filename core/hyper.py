"""Hyper-parameters: their names, defaults and ranges, and values that change during training.

A number is constant, a :class:`Schedule` follows the training step, and a :class:`Learned` value is trained. Every
:class:`Real` that is not ``fixed`` accepts all three; specs write them as ``0.5``, ``schedule(0.5,0.1,1000)`` and
``learned(0.07,0.005,1)``.
"""

from __future__ import annotations

import math
import numbers
import warnings
from dataclasses import KW_ONLY, dataclass
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeGuard, get_args, overload

import torch
from torch import Tensor, nn
from typing_extensions import Self, TypeVar

from . import checks
from .host import FromHost, Moving, host_values
from .host import Value as Value
from .names import check_known
from .names import nearest as nearest


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether ``value`` is a finite real number; booleans do not count as numbers."""
    try:
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer larger than every float
        return False


Shape = Literal["linear", "cosine"]


class Schedule(Moving):
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

    def __init__(self, start: float, end: float, steps: int, shape: Shape = "linear") -> None:
        super().__init__()
        for name, value in (("start", start), ("end", end)):
            if not is_number(value):
                raise ValueError(f"Schedule: {name} must be a finite number, got {value!r}.")
        if not is_number(steps) or steps != int(steps):
            raise ValueError(f"Schedule: steps must be a whole number, got {steps!r}.")
        if steps < 1:
            raise ValueError(f"Schedule: steps must be at least 1, got {int(steps)}.")
        check_known("Schedule: unknown shape", shape, get_args(Shape))
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
        return min(self.start, self.end), max(self.start, self.end)

    def spec(self) -> str:
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
        outward = ((x <= ctx.low) & (grad > 0)) | ((x >= ctx.high) & (grad < 0))
        return grad.masked_fill(outward, 0.0), None, None


class Learned(Moving):
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
        return self.low, self.high

    def spec(self) -> str:
        parameter = float(next(self.parameters()).detach())
        value = float(f"{math.exp(parameter) if self.low > 0 else parameter:.6g}")
        return f"learned({number(min(max(value, self.low), self.high))},{number(self.low)},{number(self.high)})"


def learned_values(module: nn.Module) -> tuple[dict[int, Tensor], list[nn.Parameter]]:
    """Return the values of the :class:`Learned` numbers of a module by their identity, and all other parameters.

    A loss that is differentiated before its own gradient is known must be differentiated with respect to the values:
    whether a number at its limit may move depends on the sign of the whole gradient.
    """
    learned = [part for part in module.modules() if isinstance(part, Learned)]
    own = {id(p) for part in learned for p in part.parameters()}
    return {id(part): part() for part in learned}, [p for p in module.parameters() if id(p) not in own]


Number = float | Schedule | Learned
"""What a schedulable hyper-parameter accepts."""


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


MAX_TEMPERATURE = 5.0
"""Divided by more than this, any two cosines differ by less than 0.4."""


def warn_of_scales(objective: nn.Module) -> None:
    """Warn of temperatures that start so high that cosines hardly differ: most likely they are scales of logits."""
    for part in objective.modules():
        temperature = vars(part).get("_hyper", {}).get("temperature")
        start = getattr(temperature, "start", temperature)
        if isinstance(start, float) and start > MAX_TEMPERATURE:
            warnings.warn(
                f"{type(part).__name__}: expected a temperature of at most {MAX_TEMPERATURE:g} for cosines, got "
                f"{number(start)}. If this is a scale of logits, the temperature is 1/{number(start)}.",
                stacklevel=5,  # where the objective is called
            )


T = TypeVar("T", default=Number, contravariant=True)
V = TypeVar("V", default=Value, covariant=True)
W = TypeVar("W", bound=str, default=str, contravariant=True)

REQUIRED: Any = Parameter.empty
"""The default of a hyper-parameter that has none."""


@dataclass(eq=False)
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

    short: str = ""
    _: KW_ONLY
    default: Any = REQUIRED
    doc: str = ""
    always: bool = False
    kw_only: bool = False

    def __post_init__(self) -> None:
        self.kw_only = self.kw_only or self.default is REQUIRED

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
            # only values that move get here
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


@dataclass(eq=False)
class Real(Hyper[T, V]):
    """A number in an interval, or one of ``words`` (``"auto"``), or None if ``optional``.

    It also accepts a :class:`Schedule` or a :class:`Learned` value unless it is ``fixed``, as ``whole`` numbers are.

    Args:
        low, high: The smallest and the largest value.
        above, below: Limits that are not values themselves.

    >>> import counterpoint as cp
    >>> class Scaled(cp.Objective):
    ...     scale: cp.Real = cp.Real("s", above=0, default=1.0)
    >>> Scaled(s=0.5).scale
    0.5
    """

    _: KW_ONLY
    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    words: tuple[str, ...] = ()
    optional: bool = False
    fixed: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fixed = self.fixed or self.whole

    def expected(self) -> str:
        left = f"{number(self.above)} < " if self.above > -math.inf else ""
        left = f"{number(self.low)} <= " if self.low > -math.inf else left
        right = f" < {number(self.below)}" if self.below < math.inf else ""
        right = f" <= {number(self.high)}" if self.high < math.inf else right
        kind = "a whole number" if self.whole else "a finite number"
        words = [f'"{word}"' for word in (*self.words, *(["host"] if self.name in FromHost.missing else []))]
        interval = f" with {left}{self.name}{right}" if left or right else ""
        return " or ".join([kind + interval, *words, *(["None"] if self.optional else [])])

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high and self.above < value < self.below

    def check(self, value: Any, where: str) -> Any:
        if (value is None and self.optional) or (isinstance(value, str) and value in self.words):
            return value
        if self.name in FromHost.missing and isinstance(value, str) and value == "host":
            return FromHost(self.name)
        if isinstance(value, FromHost) and value.name == self.name:
            return value
        if isinstance(value, (Schedule, Learned)) and not self.fixed:
            if not all(map(self.contains, value.bounds())):
                raise ValueError(f"{where}: {self.name} must be {self.expected()}, got {value.spec()}.")
            return value
        if not is_number(value) or not self.contains(value) or (self.whole and value != int(value)):
            raise self.fail(value, where)
        return int(value) if self.whole else float(value)


class Choice(Hyper[W, str]):
    """One of a few words.

    Annotate it with their type, for instance ``Choice[Literal["mean", "sum"]]``, and type checkers know them.

    >>> import counterpoint as cp
    >>> class Averaged(cp.Objective):
    ...     average: cp.Choice = cp.Choice("mean", "sum", default="mean")
    >>> Averaged("sum").average
    'sum'
    """

    def __init__(self, *options: str, **settings: Any) -> None:
        super().__init__(**settings)
        self.options = options

    def expected(self) -> str:
        return "one of " + ", ".join(self.options)

    def check(self, value: Any, where: str) -> Any:
        if not isinstance(value, str):
            raise self.fail(value, where)
        check_known(f"{where}: unknown {self.name}", value, self.options)
        return value


class Flag(Hyper[bool, bool]):
    """True or False.

    >>> import counterpoint as cp
    >>> class Centered(cp.Objective):
    ...     center: cp.Flag = cp.Flag(default=True)
    >>> Centered(center=False).center
    False
    """

    def expected(self) -> str:
        return "True or False"

    def check(self, value: Any, where: str) -> Any:
        if not isinstance(value, bool):
            raise self.fail(value, where)
        return value


def number(value: float) -> str:
    """Write a number as the shortest text that reads back as the same number: ``0.5``, ``1``, ``1e-05``."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


def text(value: Any) -> str:
    """Write a hyper-parameter's value as in a spec."""
    if isinstance(value, Moving):
        return value.spec()
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return number(value) if isinstance(value, (int, float)) else str(value)


def bounds(value: Any) -> tuple[float, float]:
    """Return the smallest and the largest value that a number, a Schedule or a Learned value takes."""
    return value.bounds() if isinstance(value, Moving) else (float(value), float(value))


def current(value: Any) -> Value:
    """Return the current value of a number, a Schedule or a Learned value."""
    return value() if isinstance(value, Moving) else value  # type: ignore[no-any-return]


def log(value: Value) -> Value:
    """Return the logarithm of a float or a tensor; ``log(0)`` is minus infinity for both."""
    if isinstance(value, Tensor):
        return value.log()
    return math.log(value) if value > 0 else -math.inf
