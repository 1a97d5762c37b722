"""The trackers by name, and whether their packages are installed; imports none of them, and no torch."""

from __future__ import annotations

from importlib.util import find_spec

from counterpoint.install import install
from counterpoint.names import check_known

NAMES = ("wandb", "trackio", "mlflow", "tensorboard")  # of the trackers and of their packages


def check_installed(name: str) -> None:
    """Raise ``ValueError`` for an unknown tracker, and ``ImportError`` with what installs it if it is missing."""
    check_known("--track: unknown tracker", name, NAMES)
    try:
        missing = find_spec(name) is None
    except ValueError:  # a module without a spec, or None in its place
        missing = True
    if missing:
        raise ImportError(f"--track {name}: {name} is not installed: {install('track')}")
