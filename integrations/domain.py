"""The interface of a domain: its settings, the names of its data, its tuning, and functions that every domain has.

Each domain is a package; CONTRIBUTING.md lists the modules and verbs that they share, under "A domain".
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, stdev
from types import ModuleType
from typing import Any, TypeVar

from counterpoint.install import install
from counterpoint.names import check_known

C = TypeVar("C", bound=type)


@dataclass(frozen=True)
class Preset:
    """A recipe of a paper."""

    objective: str | None  # the spec; None where no objective is trained
    settings: Mapping[str, Any]  # what differs from the defaults of the domain's Settings


def majority(labels: Iterable[object]) -> float:
    """Return the share of the most frequent label in percent: the accuracy of a classifier that knows nothing else."""
    counts = Counter(labels)
    return 100 * max(counts.values()) / counts.total()


@dataclass(frozen=True)
class About:
    """A setting's flag of the command line, and its range."""

    help: str = ""  # the default is appended
    type: Callable[[str], object] | None = None  # reads the flag's text; the type of the default, so needed for None
    choices: Sequence[str] = ()  # the words that are allowed
    low: float | None = None  # at least this
    above: float | None = None  # above this
    below: float | None = None
    high: float | None = None
    nargs: str | None = None  # of argparse, "+" for a list
    metavar: str | None = None
    flag: bool = True  # False for settings that no flag sets


def setting(default: Any, help: str = "", **about: Any) -> Any:
    """Define a field of a domain's ``Settings``: its default, copied if it is a list or a dict, and :class:`About`."""
    metadata = {"about": About(help, **about)}
    if isinstance(default, (list, dict)):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def known_settings(cls: C) -> C:
    """Let a dataclass name the closest setting for one that it does not have."""
    made: Any = cls
    init, known = made.__init__, [f.name for f in fields(cls)]

    @wraps(init)
    def checked(self: Any, *args: Any, **given: Any) -> None:
        for name in given:
            check_known(f"{cls.__name__}: unknown setting", name, known, TypeError)
        init(self, *args, **given)

    made.__init__ = checked
    return cls


def about(setting_field: Field[object]) -> About:
    """Return the description of a field's flag."""
    return setting_field.metadata["about"]  # type: ignore[no-any-return]


def defaults(settings: type) -> dict[str, object]:
    """The default of every setting, by name."""
    return {f.name: default(f) for f in fields(settings)}


def default(setting_field: Field[object]) -> object:
    return setting_field.default if setting_field.default_factory is MISSING else setting_field.default_factory()


def check(settings: type, values: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for the first value that the field's choices or range do not allow.

    A setting may be None if that is its default. Numbers without a range need only be finite.
    """
    for f in fields(settings):
        value, limits = values[f.name], about(f)
        if value is None and default(f) is None:
            continue
        kind = limits.type or type(default(f))
        if limits.choices:
            for choice in value if limits.nargs else [value]:
                check_choice(f.name, choice, limits.choices)
        elif kind is int and limits.low is not None:
            check_whole(f"{f.name}: expected", value, int(limits.low))
        elif kind is float:
            _check_range(f.name, value, limits)


def _check_range(name: str, value: object, limits: About) -> None:
    low, above, below, high = limits.low, limits.above, limits.below, limits.high
    x = value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    inside = math.isfinite(x) and (low is None or x >= low) and (above is None or x > above)
    if not (inside and (below is None or x < below) and (high is None or x <= high)):
        left = f"{low:g} <= " if low is not None else f"{above:g} < " if above is not None else ""
        right = f" < {below:g}" if below is not None else f" <= {high:g}" if high is not None else ""
        range_ = f" with {left}{name}{right}" if left or right else ""
        raise ValueError(f"{name} must be a finite number{range_}, got {value!r}.")


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raise ``ValueError`` with the nearest choice unless ``value`` is one of them."""
    check_known(f"{name}: unknown {name}", value, choices)


def check_whole(what: str, value: object, low: int) -> None:
    """Raise ``ValueError``, a message that begins with ``what``, unless this is a whole number of at least ``low``."""
    if not isinstance(value, int) or value < low:
        raise ValueError(f"{what} a whole number of at least {low}, got {value!r}.")


@dataclass(frozen=True)
class Domain:
    """The declaration of a domain for the shared commands."""

    name: str  # of the package, and of ``domain`` in cells
    settings: type  # the dataclass of a cell's settings
    dataset: str  # the flag that names the data, ``data`` of ``--data``
    default_dataset: str | None  # what is used without that flag; None if the flag is required
    held_out: Mapping[str, object] = field(default_factory=dict)  # settings for tuning: a run sees no test data
    reported: Sequence[str] = ()  # flags of ``train`` under which it reports on test data
    grids: Mapping[str, Sequence[float]] = field(default_factory=dict)  # what ``tune`` tries, from the papers

    def module(self, name: str) -> ModuleType:
        return import_module(f"counterpoint.integrations.{self.name}.{name}")

    def train(self, run: object) -> None:
        """Train a run; its frameworks, whose import takes seconds, are not imported if all runs are done."""
        self.module("training").train(run)


NAMES = ("graph", "image", "sentence", "control")


def defined(package: str, folder: str, pattern: str) -> list[tuple[str, str]]:
    """Return the module and the name of each definition in the files of a package, whose import takes seconds."""
    spec = find_spec(package)
    files = sorted(Path((spec.submodule_search_locations or [""])[0], folder).glob("*.py")) if spec else []
    return [(file.stem, name) for file in files for name in re.findall(pattern, file.read_text(encoding="utf-8"))]


def accuracy_tables(values: Iterable[tuple[str, str, str, float]], counted: str) -> Iterator[str]:
    """Write a table for each data set: means and deviations by probe and row, of ``(data set, probe, row, value)``."""
    tables: dict[str, dict[str, dict[str, list[float]]]] = {}
    for title, probe, row, value in values:
        tables.setdefault(title, {}).setdefault(probe, {}).setdefault(row, []).append(value)
    for title, probes in tables.items():
        yield f"{title}: accuracy in % ± deviation (number of {counted})"
        widths = max(map(len, probes)), max(len(row) for rows in probes.values() for row in rows)
        for probe, rows in probes.items():
            for n, (row, each) in enumerate(rows.items()):
                spread = f" ± {stdev(each):.2f}" if len(each) > 1 else ""
                yield f"  {probe * (not n):{widths[0]}}  {row:{widths[1]}}  {mean(each):6.2f}{spread} ({len(each)})"


def domain(name: str) -> Domain:
    """Look up a domain, one of :data:`NAMES`."""
    return import_module(f"counterpoint.integrations.{name}.settings").DOMAIN  # type: ignore[no-any-return]


def require(who_needs: str, extra: str, *modules: str) -> None:
    """Raise ``ImportError``, which begins with ``who_needs``, unless the modules of an extra can be found."""
    if missing := [module for module in modules if find_spec(module) is None]:
        raise ImportError(f"{who_needs} {' and '.join(missing)}: {install(extra)}")
