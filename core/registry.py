"""Find objectives by name: the built-in ones, yours, and those of installed packages."""

from __future__ import annotations

from importlib import import_module, metadata
from typing import Any

from .names import unknown_objective

registry: dict[str, type[Any]] = {}
"""Every named objective that has been defined so far. Read it through :func:`known`."""

BUILT_IN = f"{__package__}.objectives"


def known() -> dict[str, type[Any]]:
    """Return the registry after importing the built-in objectives."""
    import_module(BUILT_IN)
    return registry


def register(name: str, cls: type[Any]) -> None:
    """Register a class under ``name``, or raise if another class has that name.

    Defining the same class again replaces it, as when a notebook cell runs twice.
    """
    registered = (registry if cls.__module__.startswith(BUILT_IN) else known()).get(name)
    if registered and (registered.__module__, registered.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(
            f"{cls.__name__}: the name {name!r} is taken by {registered.__module__}.{registered.__qualname__}."
        )
    registry[name] = cls


def kind(name: str) -> type[Any]:
    """Return the class with that name: built in, defined by you, or registered by an installed package.

    Packages register objectives as entry points of the group ``counterpoint.objectives``, each naming a class.
    """
    if name not in known():
        for entry in metadata.entry_points(group="counterpoint.objectives"):
            entry.load()
    if name not in registry:
        raise ValueError(unknown_objective(name, {n: c.__name__ for n, c in registry.items()}))
    return registry[name]
