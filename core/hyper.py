"""Hyper-parameters: ranges, names, and values that change while training.

One way for all of them: a number is constant, a :class:`Schedule` moves with the training step, a
:class:`Learned` value is trained. All three are accepted wherever a schedulable number is, and print
in specs as ``0.5``, ``schedule(0.5,0.1,1000)`` and ``learned(0.07,0.005,1)``.
"""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

Value = float | Tensor
"""What formulas compute with: a Python float, or a tensor without dimensions."""


def nearest(name: str, known: Iterable[str]) -> str:
    """``' Did you mean "adnce"?'`` for a near miss, and the list of what is known."""
    known = list(dict.fromkeys(known))
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5) or [k for k in known if k == name.lower()]
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{hint} Known: {', '.join(known)}."


def is_number(value: Any) -> bool:
    """A finite int or float; True and False are no numbers here."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


class Schedule(nn.Module):
    """A number that goes from ``start`` to ``end`` within ``steps`` training calls, then stays.

    The step is a buffer: it is saved with ``state_dict`` and advances by one whenever the objective
    that holds it is called in training mode with gradients enabled.

    Args:
        start: value before the first training call.
        end: value after ``steps`` training calls.
        steps: number of training calls, at least 1.
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
        if shape not in ("linear", "cosine"):
            raise ValueError(f"Schedule: unknown shape {shape!r}.{nearest(str(shape), ('linear', 'cosine'))}")
        self.start, self.end, self.steps, self.shape = float(start), float(end), int(steps), shape
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def forward(self) -> Tensor:
        done = (self.step / self.steps).clamp(max=1.0)
        if self.shape == "cosine":
            done = 0.5 - 0.5 * torch.cos(math.pi * done)
        return self.start + (self.end - self.start) * done

    def advance(self) -> None:
        # rebound, not changed in place: a compiled backward may recompute the value from the step it was called with
        self.step = self.step + 1

    def bounds(self) -> tuple[float, float]:
        return min(self.start, self.end), max(self.start, self.end)

    def __repr__(self) -> str:
        return self.spec()

    def spec(self) -> str:
        tail = "" if self.shape == "linear" else f",{self.shape}"
        return f"schedule({number(self.start)},{number(self.end)},{self.steps}{tail})"


class _Clip(torch.autograd.Function):
    """Clamp whose gradient vanishes only where a descent step would leave the interval further."""

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
        leaving = ((x <= ctx.low) & (grad > 0)) | ((x >= ctx.high) & (grad < 0))
        return grad.masked_fill(leaving, 0.0), None, None


class Learned(nn.Module):
    """A trained number, kept within ``[low, high]``.

    It is stored as its logarithm, as CLIP's temperature is, so that steps are relative; unlike a plain
    clamp, the gradient that leads back into the interval is never lost.

    Args:
        init: first value, positive.
        low: smallest value, positive.
        high: largest value.

    >>> import counterpoint as cp
    >>> loss_fn = cp.InfoNCE(cp.Learned(0.07, low=0.01, high=1.0))
    >>> [name for name, _ in loss_fn.named_parameters()]
    ['_temperature.log_value']
    """

    def __init__(self, init: float, low: float = 1e-3, high: float = 1e3) -> None:
        super().__init__()
        if not (is_number(init) and is_number(low) and is_number(high) and 0 < low <= init <= high):
            raise ValueError(
                f"Learned: expected 0 < low <= init <= high, got init={init!r}, low={low!r}, high={high!r}."
            )
        self.low, self.high = float(low), float(high)
        self.log_value = nn.Parameter(torch.tensor(math.log(init)))

    def forward(self) -> Tensor:
        value: Tensor = _Clip.apply(self.log_value, math.log(self.low), math.log(self.high))
        return value.exp()

    def bounds(self) -> tuple[float, float]:
        return self.low, self.high

    def __repr__(self) -> str:
        return self.spec()

    def spec(self) -> str:
        now = float(f"{math.exp(float(self.log_value.detach())):.6g}")
        return f"learned({number(min(max(now, self.low), self.high))},{number(self.low)},{number(self.high)})"


Number = float | Schedule | Learned
"""What a schedulable hyper-parameter accepts."""


class Tracked(nn.Module):
    """A statistic of the batches seen in training, as an exponential moving average.

    The first training batch sets it; later ones move it by ``1 - momentum``. Before any training call
    it equals the present batch's value, so that evaluation alone never depends on hidden state.
    """

    value: Tensor

    def __init__(self, momentum: float = 0.9) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("value", torch.full((), math.nan))

    def forward(self, new: Tensor) -> Tensor:
        new, old = new.detach(), self.value.to(new.dtype)
        moved = torch.where(old.isnan(), new, self.momentum * old + (1 - self.momentum) * new)
        if self.training and torch.is_grad_enabled():
            self.value = moved.to(self.value.dtype)  # rebound for the same reason as Schedule.step
            return moved
        return torch.where(old.isnan(), new, old)


class Hyper:
    """A hyper-parameter of an objective: a read-only attribute with a name, a short name and a check.

    Args:
        short: the name in specs (``t`` for ``temperature``).
        always: printed in specs even at its default.
    """

    name: str

    def __init__(self, short: str = "", *, always: bool = False) -> None:
        self.short, self.always = short, always

    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self.short = name, self.short or name

    def __get__(self, objective: Any, owner: Any = None) -> Any:
        # constants lie in the objective itself and are found there first; this is for those that move
        return self if objective is None else objective._hyper[self.name]()

    def check(self, value: Any, where: str) -> Any:
        raise NotImplementedError

    def expected(self) -> str:
        raise NotImplementedError

    def fail(self, value: Any, where: str) -> Exception:
        kind = ValueError if isinstance(value, (numbers.Real, str)) else TypeError
        hint = " A number that is trained is a Learned(...)." if isinstance(value, Tensor) else ""
        return kind(f"{where}: {self.name} must be {self.expected()}, got {value!r}.{hint}")


class Real(Hyper):
    """A number in an interval; ``words`` are accepted beside numbers (``"auto"``), ``None`` if ``optional``."""

    def __init__(
        self,
        short: str = "",
        low: float = -math.inf,
        high: float = math.inf,
        *,
        open_low: bool = False,
        open_high: bool = False,
        words: tuple[str, ...] = (),
        optional: bool = False,
        fixed: bool = False,
        always: bool = False,
    ) -> None:
        super().__init__(short, always=always)
        self.low, self.high, self.open_low, self.open_high = low, high, open_low, open_high
        self.words, self.optional, self.fixed = words, optional, fixed

    def expected(self) -> str:
        left = "" if self.low == -math.inf else f"{number(self.low)} {'<' if self.open_low else '<='} "
        right = "" if self.high == math.inf else f" {'<' if self.open_high else '<='} {number(self.high)}"
        text = "a finite number" + (f" with {left}{self.name}{right}" if left or right else "")
        for word in self.words:
            text += f' or "{word}"'
        return text + (" or None" if self.optional else "")

    def inside(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below

    def check(self, value: Any, where: str) -> Any:
        if (value is None and self.optional) or (isinstance(value, str) and value in self.words):
            return value
        if isinstance(value, (Schedule, Learned)) and not self.fixed:
            if not all(map(self.inside, value.bounds())):
                raise ValueError(f"{where}: {self.name} must be {self.expected()}, got {value.spec()}.")
            return value
        if not is_number(value) or not self.inside(float(value)):
            raise self.fail(value, where)
        return float(value)


class Whole(Hyper):
    """A whole number of at least ``low``, or None."""

    def __init__(self, short: str = "", low: int = 1) -> None:
        super().__init__(short)
        self.low = low

    def expected(self) -> str:
        return f"a whole number of at least {self.low} or None"

    def check(self, value: Any, where: str) -> Any:
        if value is None:
            return value
        if not is_number(value) or value != int(value) or value < self.low:
            raise self.fail(value, where)
        return int(value)


class Choice(Hyper):
    """One of a few words."""

    def __init__(self, *options: str, short: str = "", always: bool = False) -> None:
        super().__init__(short, always=always)
        self.options = options

    def expected(self) -> str:
        return "one of " + ", ".join(self.options)

    def check(self, value: Any, where: str) -> Any:
        if not isinstance(value, str):
            raise self.fail(value, where)
        if value not in self.options:
            raise ValueError(f"{where}: unknown {self.name} {value!r}.{nearest(value, self.options)}")
        return value


class Flag(Hyper):
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
    """The shortest text that reads back as the same number: ``0.5``, ``1``, ``1e-05``."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


def text(value: Any) -> str:
    """A hyper-parameter's value as it stands in a spec."""
    if isinstance(value, (Schedule, Learned)):
        return value.spec()
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return number(value) if isinstance(value, (int, float)) else str(value)


def bounds(value: Any) -> tuple[float, float]:
    """The smallest and the largest that a number, a Schedule or a Learned value will be."""
    return value.bounds() if isinstance(value, (Schedule, Learned)) else (float(value), float(value))


def log(value: Value) -> Value:
    """Logarithm of a float or a tensor; ``log(0)`` is minus infinity, as it is for tensors."""
    if isinstance(value, Tensor):
        return value.log()
    return math.log(value) if value > 0 else -math.inf
