"""Shims for old clones on today's packages: one module of :class:`~counterpoint.plugins.host.Shim` per host.

``counterpoint inject`` applies a host's shims by itself. By hand, apply them before you import the host's modules; a
fork of SimCSE, for example, runs on today's transformers with::

    from counterpoint.plugins import shims
    from counterpoint.plugins.shims import simcse

    shims.apply(simcse.shims("prompt_bert"))  # the fork's package with models.py and trainers.py
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..host import Shim


def apply(shims: Iterable[Shim]) -> list[Shim]:
    """Apply those shims that the installed packages need, and return them."""
    return [shim for shim in shims if shim.apply()]
