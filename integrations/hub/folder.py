"""The folder that is pushed: weights as safetensors, configuration, the run's record, and the card."""

from __future__ import annotations

import json
from pathlib import Path

from ..domain import domain
from ..store.files import atomic, signed
from ..store.run import Run
from .card import card, without_folders

DOMAINS = ("sentence", "image", "graph")
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
RECORD = ("arguments", "status", "result", "details", "versions", "command", "data", "axis")  # not the machine


def check(run: Run) -> None:
    """Raise ``ValueError`` unless the run has a trained encoder that can be published."""
    if run.arguments["domain"] not in DOMAINS:
        raise ValueError(f"{run.path}: a run of {run.arguments['domain']}; expected one of {', '.join(DOMAINS)}.")
    if not run.done:
        raise ValueError(f"{run.path}: not finished; the command that trains it resumes it.")


def write(run: Run, name: str, folder: Path) -> Path:
    """Write the folder of a run; return it.

    Args:
        run: a finished run of sentences, images or graphs.
        name: ``owner/name`` on the hub, for the card.
        folder: is created; files of the same names are replaced.
    """
    check(run)
    published = domain(run.arguments["domain"]).module("published")
    model = published.publish(run)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(str(folder))
    if pickled := [path.name for path in folder.rglob("*") if path.suffix in PICKLED]:
        raise ValueError(f"{folder}: {pickled[0]} is pickled; expected safetensors only.")
    record = signed({key: without_folders(run.record.get(key)) for key in RECORD})
    _write(folder / "run.json", json.dumps(record, indent=1) + "\n")
    images = run.arguments["domain"] == "image"
    size = json.loads((folder / "config.json").read_text(encoding="utf-8"))["size"] if images else None
    _write(folder / "README.md", card(run, name, published.PIPELINE, size))
    return folder


def _write(path: Path, text: str) -> None:
    with atomic(path) as file:
        file.write(text.encode())
