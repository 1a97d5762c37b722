"""The formats of a report, and its files.

A page needs neither script nor file nor network; it is light and dark, at any width. ``page.html.jinja`` has its layout
and its words, with autoescape. Plots are those of :mod:`counterpoint.integrations.report.plots`, as SVG within it:
their grays follow the page's ink, and a row has the same number, color and dash everywhere.
"""

import io
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined  # torch itself requires it
from markupsafe import Markup, escape

from counterpoint.diagnose import figure

from ..store.files import atomic, finite
from ..store.run import Run
from . import plots
from .summary import Column, Report, summarise
from .tables import TITLE, latex, legend, markdown, opening, plain, tables, terminal, together

ENDINGS = {"markdown": "md", "json": "json", "html": "html", "latex": "tex"}
WIDE = 3.6  # inches: the width of a phone
GREY = re.compile(r"(fill|stroke): #([0-9a-f]{2})\2\2(?![0-9a-f])")


def html(report: Report, /, title: str = TITLE, intro: str = "") -> str:
    """Return the page as text; ``intro`` is a paragraph of plain text under the title."""
    folder, number, missing = Path(__file__).parent, count(), ""
    try:
        figure()
    except ImportError as error:
        missing = str(error)

    def draw(name: str, alt: str, height: float = 2.7, **content: object) -> Markup:
        """Return the picture that a function of :mod:`.plots` draws; ``alt`` describes it."""
        drawing = figure(WIDE, height)
        axes = drawing.add_subplot()
        getattr(plots, f"draw_{name}")(axes, **content)
        axes.set_title("")
        axes.set_ylabel("")
        return Markup(svg(drawing, alt, f"p{next(number)}-"))

    environment = Environment(autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)
    environment.filters["breakable"] = lambda name: Markup(re.sub(r"([,:(])", r"\1<wbr>", str(escape(name))))
    environment.globals |= {"zip": zip, "draw": draw, "curves": plots.curves, "origin": _origin}
    columns, runs = report.columns, [run for column in report.columns for run in column.runs]
    checks = (row for column in columns for row in column.checks)
    return environment.from_string((folder / "page.html.jinja").read_text(encoding="utf-8")).render(
        title=title,
        intro=intro,
        notes=report.notes,
        opening=list(zip(columns, opening(report), strict=True)),
        together=together(report),
        style=Markup((folder / "report.css").read_text(encoding="utf-8")),
        tables=list(tables(report, "{} ★ best")),
        looks=plots.styles((row for column in columns for row in column.cells), checks),
        missing=missing,
        legend=legend(report, "★"),
        **_made_with(runs),
    )


def svg(drawing: Any, alt: str, prefix: str) -> str:
    """Return a figure as an element of the page: text as text, grays as shades of the page's ink, unique ids."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix, "font.family": "sans-serif"}):
        drawing.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r'\bid="', f'id="{prefix}', text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}", text)
    text = GREY.sub(lambda grey: f"{grey[1]}: currentColor; {grey[1]}-opacity: {1 - int(grey[2], 16) / 255:.2f}", text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)  # in the page's font
    text = text.replace("<text ", '<text fill="currentColor" ')
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(alt)}" ', 1)


def _origin(column: Column) -> dict[str, object]:
    """Return how the runs came about: their commands, the settings that all share, notes on the data."""
    runs, first = column.runs, column.runs[0].arguments
    typed = (shlex.split(run.record.get("command") or "unknown") for run in runs)
    shared = {name: value for name, value in first.items() if all(run.arguments.get(name) == value for run in runs)}
    return {
        "commands": {shlex.join([Path(words[0]).name, *words[1:]]): None for words in typed},
        "shared": {name: json.dumps(value) for name, value in shared.items()},
        "notes": dict.fromkeys(str(run.details["note"]) for run in runs if run.details.get("note")),
    }


def _made_with(runs: Iterable[Run]) -> dict[str, str]:
    """Return the versions of the packages that the runs used, and the machines that they ran on."""
    by_name: dict[str, set[str]] = {}
    machines: dict[str, None] = {}
    for run in runs:
        host = run.record.get("host", {})
        machines[", ".join([host.get("system", "?"), *host.get("devices", ())])] = None
        for name, version in run.record.get("versions", {}).items():
            by_name.setdefault(name, set()).add(version)
    versions = ", ".join(f"{name} {' and '.join(sorted(some))}" for name, some in by_name.items())
    return {"versions": versions, "systems": "; ".join(machines)}


RENDER: dict[str, Callable[[Report], str]] = {
    "terminal": terminal,
    "markdown": markdown,
    "html": html,
    "latex": latex,
    "json": lambda report: json.dumps(plain(report), indent=1, allow_nan=False),
}


def show(runs: Sequence[Run], as_json: bool) -> None:
    """Print the results of a ``train`` command: the runs as JSON, or the report of all their results."""
    if as_json:
        print(json.dumps([finite(run.flat()) for run in runs], indent=1, allow_nan=False))
    elif runs:
        metrics = list(dict.fromkeys(name for run in runs for name in run.record["result"]))
        print(terminal(summarise(runs, metrics=metrics)))


def write(report: Report, folder: str | Path, formats: Sequence[str] = tuple(ENDINGS), **words: str) -> Iterator[Path]:
    """Write the report in these formats, LaTeX with a picture of each table; yield each file when it is complete.

    ``words`` are those of :func:`html`.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    render: dict[str, Callable[[Report], str]] = {**RENDER, "html": partial(html, **words)}
    for name in formats:
        path = folder / f"report.{ENDINGS[name]}"
        with atomic(path) as file:
            file.write(render[name](report).encode() + b"\n")
        yield path
    with suppress(ImportError):  # the page says that matplotlib is missing
        for number, column in enumerate(report.columns if "latex" in formats else (), 1):
            drawing = figure(WIDE, 0.9 + 0.32 * len(column.compared or column.cells))
            plots.draw_opening(drawing.add_subplot(), column, plots.styles(column.cells, column.checks))
            plots.save(drawing, path := folder / f"figure-{number}.pdf")
            yield path
