"""A report as one page that needs neither script nor file nor network; light and dark, at any width.

``page.html.jinja`` is the page. Plots are those of :mod:`counterpoint.integrations.report.plots`, as SVG within it:
their grays follow the page's ink, and a row has the same number, color and dash everywhere. Autoescape is on.
"""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, repeat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jinja2 import Environment, StrictUndefined  # torch itself requires it
from markupsafe import Markup, escape

from counterpoint.diagnose.plots import figure

from ..store.cell import HOST
from ..store.run import Embeddings, Run
from . import plots
from .plots import Style
from .summary import Column, Report
from .tables import LEGEND, TITLE, Table, opening, tables
from .words import pooled_reading

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE, SMALL = 3.6, 1.7  # inches: the width of a phone, and half of it
GREY = re.compile(r"(fill|stroke): #([0-9a-f]{2})\2\2(?![0-9a-f])")
TEMPLATE = Path(__file__).with_name("page.html.jinja")
STYLE = Path(__file__).with_name("report.css")


class Plot(NamedTuple):
    """A plot with its caption, or with the row that it is about."""

    svg: Markup
    caption: str = ""
    row: str = ""


class Gallery(NamedTuple):
    """Small plots of one kind, a row each."""

    caption: str
    figures: list[Plot]


class Origin(NamedTuple):
    """How the runs of a column came about: the commands, the settings that all share, notes on the data."""

    runs: int
    commands: list[str]
    shared: dict[str, str]
    notes: list[str]


class Section(NamedTuple):
    """A table with its plots; ``no_plots`` says why there are none."""

    table: Table
    figures: Sequence[Plot] = ()
    galleries: Sequence[Gallery] = ()
    origin: Origin | None = None
    no_plots: str = ""


def page(report: Report, title: str = TITLE, intro: str = "", lead: str = "") -> str:
    """Return the page as text.

    Args:
        report: what it shows.
        title: its heading.
        intro: a paragraph of plain text under the title.
        lead: a sentence above all others, with the picture of the first column alone.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)
    environment.filters["breakable"] = _breakable
    environment.globals["zip"] = zip
    checks = [row for column in report.columns for row in column.checks]
    looks = plots.styles((row for column in report.columns for row in column.cells), checks)
    runs = [run for column in report.columns for members in column.runs.values() for run in members]
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        title=title,
        intro=intro,
        lead=lead,
        notes=report.notes,
        opening=list(map(_opening, count(), report.columns, opening(report), repeat(looks))),
        together=list(map(pooled_reading, report.pooled)),
        profiles=list(_profiles(report, looks)),
        style=Markup(STYLE.read_text(encoding="utf-8")),
        sections=[_section(i, table, looks) for i, table in enumerate(tables(report))],
        looks=looks,
        legend=LEGEND.format("★"),
        versions=_versions(runs),
        systems=_systems(runs),
    )


def _section(number: int, table: Table, looks: dict[str, Style]) -> Section:
    if len(table.columns) > 1:
        return Section(table)
    (column,) = table.columns
    origin = _origin(column)
    try:
        figures = list(_figures(column, looks, f"f{number}"))
        return Section(table, figures, list(_galleries(column, f"f{number}")), origin)
    except ImportError as error:
        return Section(table, origin=origin, no_plots=str(error))


def _opening(number: int, column: Column, sentence: str, looks: dict[str, Style]) -> Plot:
    """The picture of a column with its sentence: differences to the baseline, or every seed without one."""
    shown = replace(column, cells={row: column.cells[row] for row in column.compared or column.cells})
    draw_rows = plots.draw_differences if column.compared else plots.draw_values

    def draw(axes: Axes) -> None:
        draw_rows(axes, shown, looks)
        plots.name_rows(axes, shown.cells, 18)

    what = "difference to the baseline" if column.compared else column.metric
    alt = f"each row's {what}; the sentence below has the numbers"
    try:
        svg = _draw(draw, WIDE, 0.9 + 0.32 * len(shown.cells), alt, f"o{number}-")
    except ImportError:
        svg = Markup("")
    return Plot(svg, sentence)


def _profiles(report: Report, looks: dict[str, Style]) -> Iterator[Plot]:
    for i, pooled in enumerate(report.pooled):
        if pooled.scores:
            alt = "share of runs above each score, a line per row"
            caption = f"share of runs above each {pooled.metric}, over all tasks: a higher line is better"
            try:
                yield Plot(
                    _draw(partial(plots.draw_profile, pooled=pooled, looks=looks), WIDE, 2.7, alt, f"p{i}-"), caption
                )
            except ImportError:
                return


def _breakable(name: str) -> Markup:
    """Let a spec break after its separators."""
    return Markup(re.sub(r"([,:(])", r"\1<wbr>", str(escape(name))))


# ---- plots -------------------------------------------------------------------------------------


def _figures(column: Column, looks: dict[str, Style], prefix: str) -> Iterator[Plot]:
    """Yield the plots of a column: values, differences, learning curves, training weights."""
    tall = 1.0 + 0.24 * len(column.cells)
    panels: list[tuple[str, str, float, Callable[[Axes], None]]] = []  # caption, alternative text, height, draw
    has_paper = any(cell.paper for cell in column.cells.values())
    caption = f"{column.metric}: a dot per seed, bars are means{', diamonds papers' * has_paper}; do the rows overlap?"
    alt = f"every seed's {column.metric} on {column.dataset}, row by row; the table has the means"
    panels.append((caption, alt, tall, partial(plots.draw_values, column=column, looks=looks)))
    if column.compared:
        caption = "minus the baseline: filled where the interval leaves 0 (different); gray is the margin"
        alt = f"each row's difference to {column.baseline}; the table has the numbers"
        panels.append((caption, alt, tall, partial(plots.draw_differences, column=column, looks=looks)))
    for key in plots.curves(column):
        caption = f"{key} while training, mean and standard deviation over seeds: has it leveled off?"
        caption += " Each objective has its own scale." * (key == "loss")
        alt = f"curves of {key} over training, a line per row"
        panels.append((caption, alt, 2.7, partial(plots.draw_curve, column=column, key=key, looks=looks)))
    known = {row: runs for row, runs in column.runs.items() if runs[0].arguments["objective"] != HOST}
    specs = [(row, runs[0].arguments["objective"]) for row, runs in known.items()]
    if specs := [(row, spec) for row, spec in specs if spec is not None]:
        caption = (
            "how hard an objective pushes a negative away (dL/ds), by its similarity: steep ones focus on the hard"
        )
        alt = "training weight over the similarity of a negative, a line per objective"
        panels.append((caption, alt, 2.7, partial(plots.draw_training_weights, rows=specs, looks=looks)))
    for i, (caption, alt, height, draw) in enumerate(panels):
        yield Plot(_draw(draw, WIDE, height, alt, f"{prefix}-{i}-"), caption)


def _galleries(column: Column, prefix: str) -> Iterator[Gallery]:
    """Yield plots of the embeddings that each row's first seed has stored."""
    first = {row: min(column.runs[row], key=lambda run: int(run.arguments["seed"])) for row in column.cells}
    stored = {row: z for row, run in first.items() if (z := run.embeddings()) is not None}
    if not stored:
        return
    row, embeddings = next(iter(stored.items()))
    seed, classes = first[row].arguments["seed"], f"{embeddings.about}: {', '.join(embeddings.names)}"
    caption = f"Embeddings of seed {seed} in the plane of their two first principal components, by {classes}. "
    caption += "Classes that form clumps of their own are easy to tell apart"
    alt = "embeddings in a plane, colored by class, of"
    yield _gallery(stored, plots.draw_plane, SMALL, caption, alt, f"{prefix}-em")
    caption = f"Distances (1 - cos) / 2 between embeddings of seed {seed}: the same class dashed, "
    caption += "the margin of dp gray. The less the two lines overlap, the better"
    alt = "histogram of distances within and between classes, of"
    yield _gallery(stored, plots.draw_histogram, 1.5, caption, alt, f"{prefix}-hi")


def _gallery(
    stored: Mapping[str, Embeddings],
    draw: Callable[[Axes, Embeddings], None],
    height: float,
    caption: str,
    alt: str,
    prefix: str,
) -> Gallery:
    def draw_small(axes: Axes, embeddings: Embeddings) -> None:
        draw(axes, embeddings)
        axes.set_xlabel("")
        axes.tick_params(labelsize=7)

    small = [
        Plot(_draw(partial(draw_small, embeddings=z), SMALL, height, f"{alt} {row}", f"{prefix}{i}-"), row=row)
        for i, (row, z) in enumerate(stored.items())
    ]
    return Gallery(caption, small)


def _draw(draw: Callable[[Axes], None], width: float, height: float, alt: str, prefix: str) -> Markup:
    drawing = figure(width, height)
    axes = drawing.add_subplot()
    draw(axes)
    axes.set_title("")
    axes.set_ylabel("")
    return Markup(svg(drawing, alt, prefix))


def svg(drawing: Figure, alt: str, prefix: str) -> str:
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
    text = GREY.sub(_ink, text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)  # in the page's font
    text = text.replace("<text ", '<text fill="currentColor" ')
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(alt)}" ', 1)


def _ink(grey: re.Match[str]) -> str:
    opacity = 1 - int(grey[2], 16) / 255
    return f"{grey[1]}: currentColor; {grey[1]}-opacity: {opacity:.2f}"


# ---- origin ------------------------------------------------------------------------------------


def _origin(column: Column) -> Origin:
    runs = [run for members in column.runs.values() for run in members]
    shared = {
        name: json.dumps(value)
        for name, value in runs[0].arguments.items()
        if all(run.arguments.get(name) == value for run in runs)
    }
    notes = dict.fromkeys(str(run.details["note"]) for run in runs if run.details.get("note"))
    return Origin(len(runs), list(dict.fromkeys(map(_command, runs))), shared, list(notes))


def _command(run: Run) -> str:
    words = shlex.split(run.record.get("command") or "unknown")
    return shlex.join([Path(words[0]).name, *words[1:]])


def _versions(runs: Sequence[Run]) -> str:
    by_name: dict[str, set[str]] = {}
    for run in runs:
        for name, version in run.record.get("versions", {}).items():
            by_name.setdefault(name, set()).add(version)
    return ", ".join(f"{name} {' and '.join(sorted(versions))}" for name, versions in by_name.items())


def _systems(runs: Sequence[Run]) -> str:
    hosts = (run.record.get("host", {}) for run in runs)
    return "; ".join(dict.fromkeys(", ".join([host.get("system", "?"), *host.get("devices", ())]) for host in hosts))
