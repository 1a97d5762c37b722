"""The formats of a report, and its files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..store.files import atomic, finite
from ..store.run import Run
from .summary import Report, summarise
from .tables import TITLE, as_csv, markdown, plain, terminal


def html(report: Report, title: str = TITLE, intro: str = "") -> str:
    """The report as a page, see :mod:`counterpoint.integrations.report.page`."""
    from . import page

    return page.page(report, title, intro)


RENDER: dict[str, Callable[[Report], str]] = {
    "terminal": terminal,
    "markdown": markdown,
    "html": html,
    "csv": as_csv,
    "json": lambda report: json.dumps(plain(report), indent=1, allow_nan=False),
}


def show(found: Sequence[Run], as_json: bool) -> None:
    """What a ``train`` command prints: the runs for machines, or the report of all their results for people."""
    if as_json:
        print(json.dumps([finite(run.flat()) for run in found], indent=1, allow_nan=False))
    elif found:
        metrics = list(dict.fromkeys(name for run in found for name in run.record["result"]))
        print(terminal(summarise(found, metrics=metrics)))


def write(
    report: Report,
    folder: str | Path,
    formats: Sequence[str] = ("markdown", "csv", "json", "html"),
    title: str = TITLE,
    intro: str = "",
    pictures: bool = True,
) -> Iterator[Path]:
    """Writes the report in these formats, and the pictures as PNG; yields the files as they are done.

    ``title`` and ``intro`` are the page's.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in formats:
        path = folder / f"report.{'md' if name == 'markdown' else name}"
        text = html(report, title, intro) if name == "html" else RENDER[name](report)
        with atomic(path) as file:
            file.write(text.encode() + b"\n")
        yield path
    if not pictures:
        return
    from . import plots

    try:
        yield from plots.draw(report, folder)
    except ImportError as error:
        print(f"no pictures: {error}", file=sys.stderr)
