"""Runs that ``counterpoint push`` wrote to the Hugging Face hub: ``hf://owner/name`` or ``hf://owner/name@revision``.

A published run is a folder with ``run.json``, ``config.json`` and ``model.safetensors``, and can be read like a run.
Only these files are fetched, so that nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from counterpoint.install import install

from .place import plain

PREFIX = "hf://"
FILES = ("run.json", "config.json", "model.safetensors")


def is_published(path: Path) -> bool:
    """Return whether a folder is that of a published run, which has no checkpoint."""
    return all((path / name).is_file() for name in FILES)


def local(places: Iterable[str | Path]) -> list[str | Path]:
    """Replace references to the hub by folders of this machine, fetching what is not cached; other URLs stay."""
    return [fetch(str(place)) if str(place).startswith(PREFIX) else plain(place) for place in places]


def fetch(reference: str) -> Path:
    """Return the folder of a published run; raise ``ValueError`` if there is none of that name, or no answer."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils import HfHubHTTPError, HFValidationError
    except ImportError as error:
        raise ImportError(f"{reference} needs huggingface_hub: {install('hub')}") from error

    name, _, revision = reference.removeprefix(PREFIX).partition("@")
    try:
        folder = Path(snapshot_download(name, revision=revision or None, allow_patterns=list(FILES)))
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"{reference}: cannot be fetched ({reason})") from error
    if missing := [file for file in FILES if not (folder / file).is_file()]:
        raise ValueError(f"{reference}: no run that counterpoint push wrote; it lacks {', '.join(missing)}")
    return folder
