"""Runs that ``counterpoint push`` wrote to the Hugging Face hub: ``hf://owner/name`` or ``hf://owner/name@revision``.

Only the files that are needed to read such a run are fetched, so that nothing is unpickled.
"""

from __future__ import annotations

from pathlib import Path

from counterpoint.install import install

FILES = ("run.json", "config.json", "model.safetensors")


def fetch(reference: str) -> Path:
    """Return the folder of a published run; raise ``ValueError`` if there is none of that name, or no answer."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ImportError(f"{reference} needs huggingface_hub: {install('hub')}") from error

    name, _, revision = reference.removeprefix("hf://").partition("@")
    try:
        folder = Path(snapshot_download(name, revision=revision or None, allow_patterns=list(FILES)))
    except (OSError, ValueError) as error:  # those of the hub are among these
        raise ValueError(f"{reference}: cannot be fetched ({str(error).strip().partition(chr(10))[0]})") from error
    if missing := [file for file in FILES if not (folder / file).is_file()]:
        raise ValueError(f"{reference}: no run that counterpoint push wrote; it lacks {', '.join(missing)}")
    return folder
