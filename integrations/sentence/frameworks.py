"""The frameworks for sentences, imported when they are used; the error names the extra if one is missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def framework(name: str) -> Any:
    """Import a module of a framework."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        raise ImportError(f'sentences need {package}: pip install "counterpoint[sentence]"') from error


framework("numpy")  # torch works without it, this package does not
