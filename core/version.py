"""The version and deprecations, in a module of its own so that building needs no torch."""

import warnings
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

__version__ = "0.1.0"

P = ParamSpec("P")
R = TypeVar("R")


class Deprecated(FutureWarning):
    """A public name that will be removed; shown by default, since users rather than developers have to act."""


def deprecated(use: str, since: str, until: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function that still works, and warn its callers.

    Args:
        use: what to call instead.
        since: the version that first warned.
        until: the version that removes it, two minor versions later or more.

    >>> @deprecated("new", since="0.1", until="0.3")
    ... def old(x):
    ...     return x + 1
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        message = f"{function.__qualname__} is deprecated since {since} and leaves in {until}; use {use}."

        @wraps(function)
        def warned(*args: P.args, **kwargs: P.kwargs) -> R:
            warnings.warn(message, Deprecated, stacklevel=2)
            return function(*args, **kwargs)

        return warned

    return decorate
