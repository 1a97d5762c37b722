"""The frameworks for sentences, imported when they are used; the error names the extra if one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from counterpoint.install import install


def framework(name: str) -> Any:
    """Import a module of a framework."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        raise ImportError(f"sentences need {package}: {install('sentence')}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Hide transformers' progress bars about reading and writing files; those of downloads stay."""
    logging, hub = framework("transformers.utils.logging"), framework("huggingface_hub.utils")
    bars, downloads = logging.is_progress_bar_enabled(), not hub.are_progress_bars_disabled()
    logging.disable_progress_bar()
    if downloads:
        hub.enable_progress_bars()
    try:
        yield
    finally:
        if bars:
            logging.enable_progress_bar()
        if not downloads:
            hub.disable_progress_bars()


framework("numpy")  # torch works without it, this package does not
