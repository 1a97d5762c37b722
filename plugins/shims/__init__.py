"""Shims for old clones on today's packages: one module of :class:`~counterpoint.plugins.host.Shim` per host.

``counterpoint inject`` applies a host's shims by itself. By hand, apply them before you import the host's modules; a
fork of SimCSE, for example, runs on today's transformers with::

    from counterpoint.plugins import shims
    from counterpoint.plugins.shims import simcse

    shims.apply(simcse.shims("prompt_bert"))  # the fork's package with models.py and trainers.py
"""

from __future__ import annotations

import importlib
import re
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .. import registry

if TYPE_CHECKING:
    from ..host import Shim


def curing(error: BaseException, folder: Path) -> Iterator[tuple[str, Shim]]:
    """Yield the shims that the traceback of a script in ``folder`` names, each behind the value of ``--shims``."""
    text = "".join(traceback.format_exception(error))
    models = (file for file in folder.glob("*/models.py") if "def cl_forward(" in file.read_text(errors="replace"))
    forks = [f"simcse:{file.parent.name}".removesuffix(":simcse") for file in models]
    for name in ("cpu", *registry.BUILT_IN):
        for shim in of(name):
            if "_" in shim.name and re.search(rf"\b{shim.name}\b", text):
                yield from ((value, shim) for value in (forks if name == "simcse" else [name]))


def of(name: str) -> tuple[Shim, ...]:
    """Return the shims of a host, or those of ``cpu``."""
    return importlib.import_module(f"{__name__}.cpu").SHIMS if name == "cpu" else registry.load(name).shims


def apply(shims: Iterable[Shim]) -> list[Shim]:
    """Apply those shims that the installed packages need, and return them."""
    return [shim for shim in shims if shim.apply()]
