"""What a domain is: its settings, how its data is named, how it is tuned, and the functions that every domain has.

Each domain is a package with the same modules and the same verbs:

=================  ==================================================================================================
``settings.py``    ``Settings``, a field per argument of a cell, and ``DOMAIN``; imports neither torch nor a framework
``presets.py``     ``preset(name, dataset)``: the recipes of the papers
``data.py``        ``prepare(arguments)``: the data of a cell, loaded and checked
``model.py``       encoders and what trains them
``training.py``    ``cell``, ``untrained``, ``build``, ``train(run)``, ``restore(run)``
``evaluation.py``  ``evaluate``: the field's protocol
``commands.py``    what ``counterpoint train`` and ``counterpoint eval`` add for this domain
=================  ==================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Preset:
    """A recipe of a paper.

    Attributes:
        objective: the spec; None where no objective is trained.
        settings: what differs from the defaults of the domain's ``Settings``.
        sources: where ``objective`` and each setting stand in the paper or its code.
    """

    objective: str | None
    settings: Mapping[str, Any]
    sources: Mapping[str, str] = field(default_factory=dict)


def setting(
    default: Any,
    help: str = "",
    *,
    type: Callable[[str], Any] | None = None,
    choices: Sequence[str] = (),
    metavar: str | None = None,
    flag: bool = True,
) -> Any:
    """A field of a domain's ``Settings``: its default and the flag of the command line that sets it.

    Args:
        default: a list or a dict is copied for each instance.
        help: of the flag; the default is appended.
        type: reads the flag's text; for numbers by default the type of ``default``.
        choices: the words that are allowed.
        metavar: how ``--help`` calls the value.
        flag: False for settings that no flag sets.
    """
    metadata = {"help": help, "type": type, "choices": tuple(choices), "metavar": metavar, "flag": flag}
    if isinstance(default, (list, dict)):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def defaults(settings: type) -> dict[str, Any]:
    """The default of every setting, by name."""
    return {one.name: _default(one) for one in fields(settings)}


def _default(one: Field[Any]) -> Any:
    return one.default if one.default_factory is MISSING else one.default_factory()


@dataclass(frozen=True)
class Domain:
    """One domain, as the commands that serve all of them see it.

    Attributes:
        name: of the package, and of ``domain`` in cells.
        settings: the dataclass of a cell's settings.
        dataset: the flag that names the data, ``dataset`` of ``--dataset``.
        default_dataset: what that flag is without being given; None if it must be.
        folder: the flag that names the folder of data sets, if there is one.
        held_out: settings under which a run sees no test data, for tuning.
        reported: flags of ``train`` under which it reports on test data.
        grids: what ``tune`` tries of each parameter, from the papers.
    """

    name: str
    settings: type
    dataset: str
    default_dataset: str | None
    folder: str | None = None
    held_out: Mapping[str, Any] = field(default_factory=dict)
    reported: Sequence[str] = ()
    grids: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def module(self, name: str) -> Any:
        """A module of the domain's package, imported when it is asked for."""
        return import_module(f"counterpoint.integrations.{self.name}.{name}")


NAMES = ("sentence", "graph", "image", "control")


def domain(name: str) -> Domain:
    """The domain of that name."""
    found: Domain = import_module(f"counterpoint.integrations.{name}.settings").DOMAIN
    return found
