"""The hosts that ``counterpoint inject`` knows, by name. Listing the names imports neither a plugin nor torch."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from counterpoint.install import install
from counterpoint.names import check_known

from .arguments import is_spec

if TYPE_CHECKING:
    from .host import Host

BUILT_IN = (
    "simcse", "graphcl", "adnce_image", "curl", "moco", "lightly", "sentence_transformers", "clip", "pyg", "logits",
    "function", "auto",
)  # fmt: skip
GROUP = "counterpoint.hosts"


def names() -> list[str]:
    """Return the built-in hosts, and those that packages register as entry points ``counterpoint.hosts``."""
    return [*BUILT_IN, *(entry.name for entry in metadata.entry_points(group=GROUP) if entry.name not in BUILT_IN)]


def check(name: str, error: Callable[[str], Exception] = ValueError) -> None:
    """Raise ``error`` unless this is the name of a host: often it is that of an objective, or of the script."""
    if is_spec(name):
        raise error(f"unknown host '{name}': it is an objective, as in: auto --objective {name} -- train.py")
    if name.endswith(".py"):
        raise error(f"unknown host '{name}': the host comes first, and the script behind --, as in: auto -- {name}")
    hint = "" if get_close_matches(name, names(), 1, 0.7) else " `auto` finds the loss of any script."
    check_known("unknown host", name, names(), error, hint)


def load(name: str) -> Host:
    """Return the host of that name. Only its own plugin is imported, so that a broken one affects no other."""
    from .host import SeamError

    check(name, SeamError)
    if name in BUILT_IN:
        return importlib.import_module(f"{__package__}.{name}").HOST  # type: ignore[no-any-return]
    (entry, *_) = metadata.entry_points(group=GROUP, name=name)
    return entry.load()  # type: ignore[no-any-return]


def find(name: str, folder: Path, force: bool = False) -> Host:
    """Return the host of that name; raise a ``SeamError`` if ``folder`` is a clone of something else, or ``force``."""
    from .host import SeamError

    host = load(name)
    if host.package and importlib.util.find_spec(host.package) is None:
        remedy = install(host.extra) if host.extra else f"pip install {host.package}"
        raise SeamError(f"{name}: the package {host.package} is not installed: {remedy}")
    if host.markers and not force and not host.recognises(folder):
        similar = [other for other in names() if load(other).recognises(folder)]
        hint = f"it looks like {' or '.join(similar)}" if similar else "it looks like none of the known hosts"
        raise SeamError(
            f"{folder} is not a clone of {host.title}: {hint}. Run this in the clone's folder; for a fork that has the "
            "same functions add --force; for any other script there are `counterpoint inject auto`, which finds its "
            "loss, and the hosts logits and function."
        )
    return host
