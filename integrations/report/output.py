"""The formats of a report, and its files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from ..store.files import atomic, finite
from ..store.run import Run
from . import plots
from .page import html
from .summary import Report, summarise
from .tables import TITLE, as_csv, markdown, plain, terminal

RENDER: dict[str, Callable[[Report], str]] = {
    "terminal": terminal,
    "markdown": markdown,
    "html": html,
    "csv": as_csv,
    "json": lambda report: json.dumps(plain(report), indent=1, allow_nan=False),
}


def show(runs: Sequence[Run], as_json: bool) -> None:
    """Print what a ``train`` command found: the runs as JSON, or the report of all their results."""
    if as_json:
        print(json.dumps([finite(run.flat()) for run in runs], indent=1, allow_nan=False))
    elif runs:
        metrics = list(dict.fromkeys(name for run in runs for name in run.record["result"]))
        print(terminal(summarise(runs, metrics=metrics)))


def write(
    report: Report,
    folder: str | Path,
    formats: Sequence[str] = ("markdown", "csv", "json", "html"),
    title: str = TITLE,
    intro: str = "",
    pictures: bool = True,
    lead: str = "",
) -> Iterator[Path]:
    """Write the report in these formats, and its plots as PNG; yield each file when it is complete.

    ``title``, ``intro`` and ``lead`` are those of the page.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    render: dict[str, Callable[[Report], str]] = {**RENDER, "html": partial(html, title=title, intro=intro, lead=lead)}
    for name in formats:
        path = folder / f"report.{'md' if name == 'markdown' else name}"
        with atomic(path) as file:
            file.write(render[name](report).encode() + b"\n")
        yield path
    try:
        yield from plots.draw(report, folder) if pictures else ()
    except ImportError as error:
        print(f"no pictures: {error}", file=sys.stderr)
