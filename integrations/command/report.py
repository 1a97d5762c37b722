"""``counterpoint report``: tables, tests, plain sentences and plots from folders of runs."""

import argparse
import sys
from pathlib import Path
from typing import Any

from counterpoint.names import check_known
from counterpoint.plugins.printing import print_lines

from .. import flags, items

FORMATS = ("terminal", "markdown", "html", "latex", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags; this module imports torch only when the command runs."""
    add = parser.add_argument
    add("runs", nargs="*", type=flags.runs, metavar="RUNS", help="folders of runs, at any depth, or their URLs")
    add("--baseline", metavar="SPEC", help="the row to compare the others with (InfoNCE, if there is one)")
    add("--metric", action="append", default=[], metavar="NAME", help="a result; repeatable (the first)")
    margin = "differences that do not matter (half a point of 100: .5 of percents)"
    add("--margin", type=float, metavar="X", help=margin)
    scores = "scores per test item: npy:FILE or jsonl:FILE:ID:SCORE in the folder of each run; without runs, one for "
    scores += "each model, as in NAME=npy:FILE (none)"
    add("--items", nargs="+", type=items.parse, default=[], metavar="ITEMS", help=scores)
    add("--lower", action="store_true", help="smaller numbers are better")
    out = "write report.html, .md, .json, the tables of a paper, .tex, and their pictures, .pdf, to this folder (none)"
    add("--out", type=flags.folder, metavar="FOLDER", help=out)
    add("--format", choices=FORMATS, default="terminal", help="what to print (%(default)s)")
    add("--json", dest="format", action="store_const", const="json", help="print JSON")
    parser.set_defaults(check=_check)


def _check(arguments: argparse.Namespace) -> None:
    flags.check_runs(arguments.runs)
    if (len(arguments.items) > 1) == bool(arguments.runs):
        several = "folders of runs, or --items of two models or more"
        what = "one file beside folders of runs" if arguments.runs else several
        raise ValueError(f"expected {what}, got {len(arguments.items)} of --items.")
    for source in arguments.items:
        if arguments.runs:
            items.relative(source.place)
        elif not Path(source.place).is_file():
            raise ValueError(f"{source.text}: no such file.")


def _of_files(arguments: argparse.Namespace) -> Any:
    """Compare the items of models that no run of a store has trained."""
    from .. import report
    from ..report.items import compare_items

    names = [each.name if each.text.startswith(f"{each.name}=") else each.place for each in arguments.items]
    models = {n: {0: items.read(Path(each.place), each.what)} for n, each in zip(names, arguments.items, strict=True)}
    if len(models) < len(arguments.items):
        raise ValueError("--items: two models have the same name; name them, as in a=npy:scores.npy.")
    baseline = arguments.baseline or next(iter(models))
    check_known("unknown baseline", baseline, models)
    title = ":".join(arguments.items[0].what.split(":")[1:]) or "scores"
    return report.Report([], [], items=[compare_items(title, baseline, models, arguments.margin, seeds=False)])


def _of_runs(arguments: argparse.Namespace) -> Any:
    """Summarise runs, with the notes, the baseline and the items that their comparisons have kept."""
    from .. import report, store
    from ..compare.notes import read_notes

    runs = store.find_runs(arguments.runs)
    several = [*read_notes(runs)]
    searched = {name: kept["baseline"] for kept in several if kept.get("baseline") for name in kept["runs"]}
    options = {"metrics": arguments.metric, "lower": arguments.lower, "margin": arguments.margin}
    summary = report.summarise(runs, baseline=arguments.baseline, searched=searched, **options)
    alone = len({(column.dataset, column.setting) for column in summary.columns}) == 1  # else others share rows' names
    common = {*several[0]["notes"]}.intersection(*(kept["notes"] for kept in several)) if alone and several else set()
    for kept in several:
        about = kept.get("title", kept["about"]) + f", {len(kept['runs'])} runs" * (len(several) > 1)
        notes = [note if note in common else f"{about}: {note}" for note in kept["notes"]]
        summary.notes[:0] = [note for note in notes if note not in summary.notes]
        for column in summary.columns:
            own = [
                row for row, cell in column.cells.items() if {run.folder.name for run in cell.runs} <= {*kept["runs"]}
            ]
            summary.remarks.update({(column.title, row): kept["remarks"][row] for row in own if row in kept["remarks"]})
        if kept.get("items") and not arguments.items:
            try:
                found = report.over_items(summary, items.parse(kept["items"]), arguments.margin, kept["about"])
                summary.items.extend([*found])
            except (ValueError, argparse.ArgumentTypeError) as error:  # of runs that were copied without their files
                summary.notes.append(f"no verdicts over items: {error}")
    for source in arguments.items:
        summary.items.extend(report.over_items(summary, source, arguments.margin))
    return summary


def command(arguments: argparse.Namespace) -> int:
    """Print the report, and write its files if ``--out`` is given."""
    from .. import report

    summary = _of_runs(arguments) if arguments.runs else _of_files(arguments)
    print(report.RENDER[arguments.format](summary))
    if arguments.out is not None:
        for path in report.write(summary, arguments.out):
            print_lines(f"wrote {path}", file=sys.stderr)
    return 0
