"""``counterpoint report``: tables, tests, plain sentences and pictures from folders of runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..report.summary import summarise
from ..report.write import RENDER, write
from ..store.run import find_runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUNS", help="folders of runs, at any depth")
    add("--baseline", metavar="SPEC", help="the row that the others are compared with (InfoNCE, where there is one)")
    add("--metric", action="append", default=[], metavar="NAME", help="a result, may be repeated (the first there is)")
    add("--lower", action="store_true", help="small numbers are the good ones")
    add("--out", type=Path, metavar="FOLDER", help="write report.html, .md, .csv and .json, and pictures")
    add("--format", choices=RENDER, default="terminal", help="of what is printed (%(default)s)")
    add("--json", dest="format", action="store_const", const="json", help="print JSON")


def command(given: argparse.Namespace) -> int:
    found = find_runs(given.runs)
    if not found:
        raise ValueError(f"no runs in {', '.join(map(str, given.runs))}: no folder there has a run.json.")
    report = summarise(found, baseline=given.baseline, metrics=given.metric, lower=given.lower)
    print(RENDER[given.format](report))
    if given.out is not None:
        for path in write(report, given.out):
            print(f"wrote {path}", file=sys.stderr)
    return 0
