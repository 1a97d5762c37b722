"""A report as one page that needs neither script nor file nor network; light and dark, at any width.

``page.html.jinja`` is the page. Plots are those of :mod:`counterpoint.integrations.report.plots`, as SVG within it:
their grays follow the page's ink, and a row has the same number, color and dash everywhere. Autoescape is on.
"""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import Environment, StrictUndefined  # torch itself requires it
from markupsafe import Markup, escape

from counterpoint.diagnose.plots import figure

from ..store.cell import HOST
from ..store.run import Embeddings, Run
from . import plots
from .summary import Column, Report
from .tables import LEGEND, TITLE, opening, tables, together

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE, SMALL = 3.6, 1.7  # inches: the width of a phone, and half of it
GREY = re.compile(r"(fill|stroke): #([0-9a-f]{2})\2\2(?![0-9a-f])")


class Plot(NamedTuple):
    """A plot with its caption, or with the row that it is about; without matplotlib the caption alone."""

    svg: Markup
    caption: str = ""
    row: str = ""


def html(report: Report, title: str = TITLE, intro: str = "", lead: str = "") -> str:
    """Return the page as text.

    Args:
        report: what it shows.
        title: its heading.
        intro: a paragraph of plain text under the title.
        lead: a sentence above all others, with the picture of the first column alone.
    """
    folder = Path(__file__).parent
    environment = Environment(autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)
    environment.filters["breakable"] = lambda name: Markup(re.sub(r"([,:(])", r"\1<wbr>", str(escape(name))))
    environment.globals["zip"] = zip
    pictures = Pictures(report)
    runs = [run for column in report.columns for run in column.runs]
    return environment.from_string((folder / "page.html.jinja").read_text(encoding="utf-8")).render(
        title=title,
        intro=intro,
        lead=lead,
        notes=report.notes,
        opening=list(map(pictures.opening, report.columns, opening(report))),
        together=together(report),
        profiles=list(pictures.profiles(report)),
        style=Markup((folder / "report.css").read_text(encoding="utf-8")),
        tables=list(tables(report)),
        pictures=pictures,
        origin=_origin,
        looks=pictures.looks,
        legend=LEGEND.format("★"),
        versions=_versions(runs),
        systems="; ".join(dict.fromkeys(map(_system, runs))),
    )


class Pictures:
    """Draws the plots of a page; ``missing`` says why there are none."""

    def __init__(self, report: Report) -> None:
        rows = (row for column in report.columns for row in column.cells)
        self.looks = plots.styles(rows, (row for column in report.columns for row in column.checks))
        self.number = count()  # of plots, so that ids in them are unique
        self.missing = ""
        try:
            figure()
        except ImportError as error:
            self.missing = str(error)

    def draw(
        self,
        draw: Callable[..., None],
        alt: str,
        caption: str,
        height: float = 2.7,
        width: float = WIDE,
        row: str = "",
        **options: Any,
    ) -> Plot:
        """Return what ``draw(axes, **options)`` draws."""
        if self.missing:
            return Plot(Markup(""), caption)
        drawing = figure(width, height)
        axes = drawing.add_subplot()
        draw(axes, **options)
        axes.set_title("")
        axes.set_ylabel("")
        return Plot(Markup(svg(drawing, alt, f"p{next(self.number)}-")), caption, row)

    def opening(self, column: Column, sentence: str) -> Plot:
        """Draw the differences to the baseline, or every seed without one."""
        shown = replace(column, cells={row: column.cells[row] for row in column.compared or column.cells})
        draw_rows = plots.draw_differences if column.compared else plots.draw_values

        def draw(axes: Axes) -> None:
            draw_rows(axes, shown, self.looks)
            plots.name_rows(axes, shown.cells, 18)

        content = "difference to the baseline" if column.compared else column.metric
        alt = f"each row's {content}; the sentence below has the numbers"
        return self.draw(draw, alt, sentence, 0.9 + 0.32 * len(shown.cells))

    def profiles(self, report: Report) -> Iterator[Plot]:
        """Draw the scores of tasks that share a scale."""
        for pooled in report.pooled if not self.missing else ():
            if pooled.scores:
                alt = "share of runs above each score, a line per row"
                caption = f"share of runs above each {pooled.metric}, over all tasks: a higher line is better"
                yield self.draw(plots.draw_profile, alt, caption, pooled=pooled, looks=self.looks)

    def figures(self, column: Column) -> Iterator[Plot]:
        """Draw values, differences, learning curves and training weights of a column."""
        if self.missing:
            return
        draw = partial(self.draw, looks=self.looks)
        tall = 1.0 + 0.24 * len(column.cells)
        papers = ", diamonds papers" * any(cell.paper for cell in column.cells.values())
        alt = f"every seed's {column.metric} on {column.dataset}, row by row; the table has the means"
        caption = f"{column.metric}: a dot per seed, bars are means{papers}; do the rows overlap?"
        yield draw(plots.draw_values, alt, caption, tall, column=column)
        if column.compared:
            alt = f"each row's difference to {column.baseline}; the table has the numbers"
            caption = "minus the baseline: filled where the interval leaves 0 (different); gray is the margin"
            yield draw(plots.draw_differences, alt, caption, tall, column=column)
        for key in plots.curves(column):
            caption = f"{key} while training, mean and standard deviation over seeds: has it leveled off?"
            caption += " Each objective has its own scale." * (key == "loss")
            yield draw(
                plots.draw_curve, f"curves of {key} over training, a line per row", caption, column=column, key=key
            )
        specs = {row: cell.runs[0].arguments["objective"] for row, cell in column.cells.items()}
        if specs := {row: spec for row, spec in specs.items() if spec not in (None, HOST)}:
            alt = "training weight over the similarity of a negative, a line per objective"
            caption = (
                "how hard an objective pushes a negative away (dL/ds), by its similarity: steep ones focus on the "
            )
            yield draw(plots.draw_training_weights, alt, caption + "hard", specs=specs)

    def galleries(self, column: Column) -> Iterator[tuple[str, list[Plot]]]:
        """Draw the embeddings that each row's first seed has stored; yield a caption, and a plot per row."""
        stored: dict[str, Embeddings] = {}
        for row, cell in column.cells.items() if not self.missing else ():
            first = min(cell.runs, key=lambda run: int(run.arguments["seed"]))
            if (embeddings := first.embeddings()) is not None:
                stored[row] = embeddings
                seed = first.arguments["seed"]
        if not stored:
            return
        some = next(iter(stored.values()))
        caption = f"Embeddings of seed {seed} in the plane of their two first principal components, by {some.about}: "
        caption += f"{', '.join(some.names)}. Classes that form clumps of their own are easy to tell apart"
        yield caption, list(self._small(plots.draw_plane, stored, SMALL, "embeddings in a plane, colored by class, of"))
        caption = f"Distances (1 - cos) / 2 between embeddings of seed {seed}: the same class dashed, "
        caption += "the margin of dp gray. The less the two lines overlap, the better"
        alt = "histogram of distances within and between classes, of"
        yield caption, list(self._small(plots.draw_histogram, stored, 1.5, alt))

    def _small(
        self, draw: Callable[[Axes, Embeddings], None], stored: dict[str, Embeddings], height: float, alt: str
    ) -> Iterator[Plot]:
        def draw_small(axes: Axes, embeddings: Embeddings) -> None:
            draw(axes, embeddings)
            axes.set_xlabel("")
            axes.tick_params(labelsize=7)

        for row, embeddings in stored.items():
            yield self.draw(draw_small, f"{alt} {row}", "", height, SMALL, row, embeddings=embeddings)


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
    text = GREY.sub(lambda grey: f"{grey[1]}: currentColor; {grey[1]}-opacity: {1 - int(grey[2], 16) / 255:.2f}", text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)  # in the page's font
    text = text.replace("<text ", '<text fill="currentColor" ')
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(alt)}" ', 1)


def _origin(column: Column) -> dict[str, Any]:
    """Return how the runs came about: their commands, the settings that all share, notes on the data."""
    runs, first = column.runs, column.runs[0].arguments
    shared = {name: value for name, value in first.items() if all(run.arguments.get(name) == value for run in runs)}
    return {
        "commands": dict.fromkeys(map(_command, runs)),
        "shared": {name: json.dumps(value) for name, value in shared.items()},
        "notes": dict.fromkeys(str(run.details["note"]) for run in runs if run.details.get("note")),
    }


def _command(run: Run) -> str:
    words = shlex.split(run.record.get("command") or "unknown")
    return shlex.join([Path(words[0]).name, *words[1:]])


def _versions(runs: Iterable[Run]) -> str:
    by_name: dict[str, set[str]] = {}
    for run in runs:
        for name, version in run.record.get("versions", {}).items():
            by_name.setdefault(name, set()).add(version)
    return ", ".join(f"{name} {' and '.join(sorted(versions))}" for name, versions in by_name.items())


def _system(run: Run) -> str:
    host = run.record.get("host", {})
    return ", ".join([host.get("system", "?"), *host.get("devices", ())])
