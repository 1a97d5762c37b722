"""A report as one page that needs nothing beside it, neither script nor file nor network; light and dark, any width.

Pictures are those of :mod:`counterpoint.integrations.report.plots`, as SVG within the page: their greys become the
page's own ink, and rows have one number, colour and dash everywhere. Everything that comes from runs is escaped.
"""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterpoint.diagnose.plots import figure

from ..store.run import Run
from . import plots
from .plots import Style
from .summary import Column, Report
from .tables import LEGEND, TITLE, Table, tables

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDE, SMALL = 3.6, 1.7  # inches; what fits a phone's width, and half of it
GREY = re.compile(r"(fill|stroke): #([0-9a-f]{2})\2\2(?![0-9a-f])")
STYLE = Path(__file__).with_name("report.css")


def page(report: Report, title: str = TITLE, intro: str = "") -> str:
    """The page as text.

    Args:
        report: what :func:`counterpoint.integrations.report.summarise` found.
        title: its heading.
        intro: a paragraph of plain text under it.
    """
    looks = plots.styles(row for column in report.columns for row in column.cells)
    found = list(tables(report))
    sections = [_section(i, table, looks) for i, table in enumerate(found)]
    links = "".join(f'<li><a href="#t{i}">{escape(table.title)}</a></li>' for i, table in enumerate(found))
    notes = "".join(f"<p>{escape(note)}</p>" for note in [*filter(None, [intro]), *report.notes])
    style = STYLE.read_text(encoding="utf-8")
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>",
            f"<header><h1>{escape(title)}</h1>{notes}",
            f'<nav aria-label="tables"><ul>{links}</ul></nav></header>\n<main>',
            *sections,
            f"</main>\n<footer><p>{LEGEND.format('★')}</p><p>{escape(_origin(report))}</p></footer>\n</body>\n</html>\n",
        ]
    )


def _section(number: int, table: Table, looks: dict[str, Style]) -> str:
    pictures: list[str] = []
    if len(table.columns) == 1:
        try:
            pictures = list(_pictures(table.columns[0], looks, f"f{number}"))
        except ImportError as error:
            pictures = [f"<p>No pictures: {escape(str(error))}</p>"]
    below = [f'<p class="reading">{escape(table.below)}</p>', *pictures]
    if len(table.columns) == 1:
        below.append(_made(table.columns[0]))
    rest = "\n".join(below)
    return f'<section id="t{number}">\n<h2>{escape(table.title)}</h2>\n{_table(table, looks)}\n{rest}\n</section>'


# ---- tables ------------------------------------------------------------------------------------


def _table(table: Table, looks: dict[str, Style]) -> str:
    """With roles, as narrow screens get blocks, which browsers no longer take for a table."""
    head = "".join(f'<th role="columnheader" scope="col">{escape(cell) or "objective"}</th>' for cell in table.head)
    lines = []
    for i, (name, (first, *cells)) in enumerate(zip(table.names, table.body, strict=True)):
        line = f'<th role="rowheader" scope="row">{_key(looks[name])}{_breakable(first)}</th>'
        for j, (label, cell) in enumerate(zip(table.head[1:], cells, strict=True), 1):
            best = ' <strong class="best">★ best</strong>' if (i, j) in table.best else ""
            line += f'<td role="cell" data-label="{escape(label)}">{escape(cell)}{best}</td>'
        lines.append(f'<tr role="row">{line}</tr>')
    body = "\n".join(lines)
    return (
        f'<table role="table"><thead role="rowgroup"><tr role="row">{head}</tr></thead>\n'
        f'<tbody role="rowgroup">\n{body}\n</tbody></table>'
    )


def _breakable(name: str) -> str:
    return re.sub(r"([,:(])", r"\1<wbr>", escape(name))


def _key(look: Style) -> str:
    """A row's number and line, as they are in the pictures."""
    dash = "" if look.dash == "-" else f' stroke-dasharray="{" ".join(str(2.5 * x) for x in look.dash[1])}"'
    line = f'<path d="M1 5h30" stroke="{look.colour}" stroke-width="3"{dash}/>'
    return f'<span class="key"><b>{look.number}</b><svg width="32" height="10" aria-hidden="true">{line}</svg></span> '


# ---- pictures ----------------------------------------------------------------------------------


def _pictures(column: Column, looks: dict[str, Style], prefix: str) -> Iterator[str]:
    rows = {row: of[0].arguments["objective"] for row, of in column.runs.items()}
    specs = [(row, spec) for row, spec in rows.items() if spec is not None]
    tall = 1.0 + 0.24 * len(column.cells)
    panels: list[tuple[str, str, float, Callable[[Axes], None]]] = [
        (
            f"{column.metric}: dots are seeds, bars means" + ", diamonds the papers" * _has_papers(column),
            f"every seed's {column.metric} on {column.dataset}, row by row; the table has the means",
            tall,
            partial(plots.draw_values, column=column, looks=looks),
        )
    ]
    if column.baseline is not None:
        panels.append(
            (
                "minus the baseline, with 95% intervals; filled where a difference was found",
                f"each row's difference to {column.baseline}; the table has the numbers",
                tall,
                partial(plots.draw_differences, column=column, looks=looks),
            )
        )
    for key in plots.curves(column):
        panels.append(
            (
                f"{key} while training, mean and standard deviation over seeds"
                + "; each objective has its own scale" * (key == "loss"),
                f"curves of {key} over training, a line per row",
                2.7,
                partial(plots.draw_curve, column=column, key=key, looks=looks),
            )
        )
    if specs:
        panels.append(
            (
                "training weight dL/ds of a negative, by its similarity: above 0 it is pushed away",
                "training weight over the similarity of a negative, a line per objective",
                2.7,
                partial(plots.draw_training_weights, rows=specs, looks=looks),
            )
        )
    drawn = [_figure(*panel, WIDE, f"{prefix}-{i}-") for i, panel in enumerate(panels)]
    yield f'<div class="figures">{"".join(drawn)}</div>'
    yield from _kept(column, looks, prefix)


def _kept(column: Column, looks: dict[str, Style], prefix: str) -> Iterator[str]:
    """What runs have kept of their embeddings, of each row's first seed."""
    first = {row: min(column.runs[row], key=lambda run: int(run.arguments["seed"])) for row in column.cells}
    kept = {row: found for row, run in first.items() if (found := run.embeddings()) is not None}
    if not kept:
        return
    seed = first[next(iter(kept))].arguments["seed"]
    one = next(iter(kept.values()))
    classes = f"{one.about}: {', '.join(one.names)}"
    for what, alt, width, height, draw in (
        (f"Embeddings of seed {seed} in the plane of their two first principal components, by {classes}",
         "embeddings in a plane, coloured by class, of", SMALL, SMALL, plots.draw_plane),
        (f"Distances (1 - cos) / 2 between embeddings of seed {seed}: the same class dashed, the margin of dp grey",
         "histogram of distances within and between classes, of", SMALL, 1.5, plots.draw_histogram),
    ):  # fmt: skip
        drawn = [
            _figure(row, f"{alt} {row}", height, partial(_small, draw, found), width, f"{prefix}-{alt[:2]}{i}-", look)
            for i, (row, found) in enumerate(kept.items())
            for look in [looks[row]]
        ]
        yield f'<h3>{escape(what)}</h3><div class="figures small">{"".join(drawn)}</div>'


def _small(draw: Callable[[Axes, Any], None], found: Any, axes: Axes) -> None:
    draw(axes, found)
    axes.set_xlabel("")
    axes.tick_params(labelsize=7)


def _has_papers(column: Column) -> bool:
    return any(cell.paper for cell in column.cells.values())


def _figure(
    caption: str,
    alt: str,
    height: float,
    draw: Callable[[Axes], None],
    width: float,
    prefix: str,
    look: Style | None = None,
) -> str:
    made = figure(width, height)
    axes = made.add_subplot()
    draw(axes)
    axes.set_title("")
    axes.set_ylabel("")
    said = escape(caption) if look is None else _key(look) + _breakable(caption)
    return f"<figure>{svg(made, alt, prefix)}<figcaption>{said}</figcaption></figure>"


def svg(made: Any, alt: str, prefix: str) -> str:
    """A figure as an element of the page: text as text, greys as shades of the page's ink, ids of its own."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix, "font.family": "sans-serif"}):
        made.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r'\bid="', f'id="{prefix}', text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}", text)
    text = GREY.sub(_ink, text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)  # in the page's font
    text = text.replace("<text ", '<text fill="currentColor" ')
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(alt)}" ', 1)


def _ink(found: re.Match[str]) -> str:
    shade = 1 - int(found[2], 16) / 255
    return f"{found[1]}: currentColor; {found[1]}-opacity: {shade:.2f}"


# ---- where it comes from -----------------------------------------------------------------------


def _made(column: Column) -> str:
    """The commands, and the settings that all rows share."""
    every = [run for of in column.runs.values() for run in of]
    commands = dict.fromkeys(_command(run) for run in every)
    shared = {k: v for k, v in every[0].arguments.items() if all(run.arguments.get(k) == v for run in every)}
    settings = "".join(f"<dt>{escape(k)}</dt><dd>{escape(json.dumps(v))}</dd>" for k, v in shared.items())
    shown = "\n".join(commands)
    notes = dict.fromkeys(str(run.details["note"]) for run in every if run.details.get("note"))
    said = "".join(f"<p>Data: {escape(note)}.</p>" for note in notes)
    return (
        f"{said}<details><summary>What made these {len(every)} runs</summary>"
        f"<pre><code>{escape(shown)}</code></pre><p>What all of them share:</p><dl>{settings}</dl></details>"
    )


def _command(run: Run) -> str:
    words = shlex.split(run.record.get("command") or "unknown")
    return shlex.join([Path(words[0]).name, *words[1:]])


def _origin(report: Report) -> str:
    runs = [run for column in report.columns for of in column.runs.values() for run in of]
    return f"Made with {_versions(runs)}; on {_systems(runs)}."


def _versions(runs: Sequence[Run]) -> str:
    found: dict[str, set[str]] = {}
    for run in runs:
        for name, version in run.record.get("versions", {}).items():
            found.setdefault(name, set()).add(version)
    return ", ".join(f"{name} {' and '.join(sorted(some))}" for name, some in found.items())


def _systems(runs: Iterable[Run]) -> str:
    hosts = (run.record.get("host", {}) for run in runs)
    return "; ".join(dict.fromkeys(", ".join([host.get("system", "?"), *host.get("devices", ())]) for host in hosts))
