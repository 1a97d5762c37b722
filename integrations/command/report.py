"""``counterpoint report``: tables, tests, plain sentences and plots from folders of runs."""

from __future__ import annotations

import argparse
import sys

from .. import flags

FORMATS = ("terminal", "markdown", "html", "latex", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags; this module imports torch only when the command runs."""
    add = parser.add_argument
    add("runs", nargs="+", type=flags.runs, metavar="RUNS", help="folders of runs, at any depth, or their URLs")
    add("--baseline", metavar="SPEC", help="the row to compare the others with (InfoNCE, if there is one)")
    add("--metric", action="append", default=[], metavar="NAME", help="a result; repeatable (the first)")
    margin = "differences that do not matter (half a point of 100: .5 of percents)"
    add("--margin", type=float, metavar="X", help=margin)
    add("--lower", action="store_true", help="smaller numbers are better")
    out = "write report.html, .md and .json, and plots to this folder (none)"
    add("--out", type=flags.folder, metavar="FOLDER", help=out)
    add("--format", choices=FORMATS, default="terminal", help="what to print (%(default)s)")
    add("--json", dest="format", action="store_const", const="json", help="print JSON")
    parser.set_defaults(check=lambda arguments: flags.check_runs(arguments.runs))


def command(arguments: argparse.Namespace) -> int:
    """Print the report, and write its files if ``--out`` is given."""
    from .. import report, store

    runs = store.find_runs(arguments.runs)
    options = {"metrics": arguments.metric, "lower": arguments.lower, "margin": arguments.margin}
    summary = report.summarise(runs, baseline=arguments.baseline, **options)
    print(report.RENDER[arguments.format](summary))
    if arguments.out is not None:
        for path in report.write(summary, arguments.out):
            print(f"wrote {path}", file=sys.stderr)
    return 0
