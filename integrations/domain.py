"""What a domain is: its settings, how its data is named, how it is tuned, and the functions that every domain has.

Each domain is a package; CONTRIBUTING.md lists the modules and verbs that they share, under "A domain".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from importlib import import_module
from typing import Any

from counterpoint.names import check_known


@dataclass(frozen=True)
class Preset:
    """A recipe of a paper."""

    objective: str | None  # the spec; None where no objective is trained
    settings: Mapping[str, Any]  # what differs from the defaults of the domain's Settings
    sources: Mapping[str, str] = field(default_factory=dict)  # where each of these stands in the paper or its code


def majority(labels: Iterable[Any]) -> float:
    """Return the share of the most frequent label in percent: the accuracy of a classifier that knows nothing else."""
    counts = Counter(labels)
    return 100 * max(counts.values()) / counts.total()


def setting(
    default: Any,
    help: str = "",
    *,
    type: Callable[[str], Any] | None = None,
    choices: Sequence[str] = (),
    low: float | None = None,
    above: float | None = None,
    below: float | None = None,
    high: float | None = None,
    nargs: str | None = None,
    metavar: str | None = None,
    flag: bool = True,
) -> Any:
    """A field of a domain's ``Settings``: its default and the flag of the command line that sets it.

    Args:
        default: a list or a dict is copied for each instance.
        help: help of the flag; the default is appended.
        type: reads the flag's text; by default the type of ``default``, so give it where that is None.
        choices: the words that are allowed.
        low, above, below, high: the value is at least ``low``, above ``above``, below ``below`` and at most ``high``.
        nargs: of argparse, ``"+"`` for a list.
        metavar: placeholder of the value in ``--help``.
        flag: False for settings that no flag sets.
    """
    metadata = {"help": help, "type": type, "choices": tuple(choices), "low": low, "above": above}
    metadata |= {"below": below, "high": high, "nargs": nargs, "metavar": metavar, "flag": flag}
    if isinstance(default, (list, dict)):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def defaults(settings: type) -> dict[str, Any]:
    """The default of every setting, by name."""
    return {f.name: default(f) for f in fields(settings)}


def default(setting_field: Field[Any]) -> Any:
    """The default of a field."""
    if setting_field.default_factory is MISSING:
        return setting_field.default
    return setting_field.default_factory()


def check(settings: type, values: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for the first value that the field's choices or range do not allow.

    A setting may be None if that is its default. Numbers without a range need only be finite.
    """
    for f in fields(settings):
        value, about = values[f.name], f.metadata
        if value is None and default(f) is None:
            continue
        if about["choices"]:
            for choice in value if about["nargs"] else [value]:
                check_choice(f.name, choice, about["choices"])
            continue
        kind = about["type"] or type(default(f))
        if kind is int and about["low"] is not None:
            check_whole(f"{f.name}: expected", value, about["low"])
        if kind is float:
            _check_range(f.name, value, **{name: about[name] for name in ("low", "above", "below", "high")})


def _check_range(
    name: str, value: Any, low: float | None, above: float | None, below: float | None, high: float | None
) -> None:
    inside = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    inside = inside and (low is None or value >= low) and (above is None or value > above)
    if not (inside and (below is None or value < below) and (high is None or value <= high)):
        left = f"{low:g} <= " if low is not None else f"{above:g} < " if above is not None else ""
        right = f" < {below:g}" if below is not None else f" <= {high:g}" if high is not None else ""
        range_ = f" with {left}{name}{right}" if left or right else ""
        raise ValueError(f"{name} must be a finite number{range_}, got {value!r}.")


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    """Raise ``ValueError`` with the nearest choice unless ``value`` is one of them."""
    check_known(f"{name}: unknown {name}", value, choices)


def check_whole(what: str, value: Any, low: int) -> None:
    """Raise ``ValueError``, a message that begins with ``what``, unless this is a whole number of at least ``low``."""
    if not isinstance(value, int) or value < low:
        raise ValueError(f"{what} a whole number of at least {low}, got {value!r}.")


@dataclass(frozen=True)
class Domain:
    """What the shared commands need to know about a domain."""

    name: str  # of the package, and of ``domain`` in cells
    settings: type  # the dataclass of a cell's settings
    dataset: str  # the flag that names the data, ``data`` of ``--data``
    default_dataset: str | None  # what is used without that flag; None if the flag is required
    folder: str | None = None  # the flag that names the folder of data sets, if there is one
    held_out: Mapping[str, Any] = field(default_factory=dict)  # settings for tuning: a run sees no test data
    reported: Sequence[str] = ()  # flags of ``train`` under which it reports on test data
    grids: Mapping[str, Sequence[float]] = field(default_factory=dict)  # what ``tune`` tries, from the papers

    def module(self, name: str) -> Any:
        """Import a module of the domain's package."""
        return import_module(f"counterpoint.integrations.{self.name}.{name}")


NAMES = ("graph", "image", "sentence", "control")


def domain(name: str) -> Domain:
    """Look up a domain, one of :data:`NAMES`."""
    return import_module(f"counterpoint.integrations.{name}.settings").DOMAIN  # type: ignore[no-any-return]
