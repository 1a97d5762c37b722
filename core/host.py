"""The scale and the bias of a host's logits: they belong to a call, to its thread and to its backward pass."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

from torch import Tensor, nn

Value = float | Tensor
"""What formulas compute with: a Python float or a zero-dimensional tensor."""


class Moving(nn.Module):
    """A number that is not constant; calling it returns its current value."""

    def bounds(self) -> tuple[float, float]:
        """Return the smallest and the largest value."""
        raise NotImplementedError

    def spec(self) -> str:
        """Return its text in specs."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.spec()


class FromHost(Moving):
    """A temperature or a bias that comes with the logits of a host.

    A temperature is one over ``scale=`` of :meth:`counterpoint.Objective.from_logits`, a bias is its ``bias=``; if they
    are learned, they keep their gradient. Specs write ``t=host`` and ``b=host``.

    >>> import torch, counterpoint as cp
    >>> log_scale = torch.tensor(3.0, requires_grad=True)
    >>> cosines = torch.eye(4) - 0.1
    >>> cp.ADNCE("host").from_logits(log_scale.exp() * cosines, scale=log_scale.exp()).backward()
    >>> bool(log_scale.grad)
    True
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

    def bounds(self) -> tuple[float, float]:
        return (math.nextafter(0, 1) if self.name == "temperature" else -math.inf), math.inf

    def spec(self) -> str:
        return "host"


Values = dict[Any, Value]
"""``temperature`` and ``bias`` of a host, ``every bias`` of :func:`at_scale`, and trained numbers by their identity."""

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
    values: Values = {} if scale is None else {"temperature": 1 / scale}
    if bias is not None:
        values |= {"bias": bias, "every bias": bias} if every_bias else {"bias": bias}
    return with_host_values({**host_values(), **values})


def given_by_host(module: nn.Module) -> list[Tensor]:
    """Return the tensors of a host that temperatures and biases of a module are at present."""
    names = {part.name for part in module.modules() if isinstance(part, FromHost)} | {"every bias"}
    found = {id(value): value for name, value in host_values().items() if name in names}
    return [value for value in found.values() if isinstance(value, Tensor)]
