"""``counterpoint advise``; the parser needs no torch."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from textwrap import fill

from .. import flags
from ..domain import check, defaults
from .settings import Settings

WIDTH = 100
LEGEND = (
    "[atlas: ...] is the evidence: points of accuracy that a row gains on data whose faults are known, see "
    "docs/atlas.md. The oracle knows the labels."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``counterpoint advise``."""
    add = parser.add_argument
    data = "a.npy b.npy (two views), a text file of pairs with tabs, or a folder of images"
    add("data", nargs="+", type=Path, help=data)
    ids = "ids or labels of the samples, -1 or ? where unknown: .npy, or a word per line (none)"
    add("--ids", type=Path, metavar="FILE", help=ids)
    add("--negatives", type=Path, metavar="FILE", help="hard negatives of a.npy, an array of N x n x width (none)")
    add("--negative-ids", type=Path, metavar="FILE", help="their ids, an array of N x n (none)")
    flags.add_settings(parser, Settings)
    add("--json", action="store_true", help="print JSON")
    parser.set_defaults(check=_check)


def _check(arguments: argparse.Namespace) -> None:
    check(Settings, defaults(Settings) | flags.chosen(arguments, Settings))
    for path in (*arguments.data, arguments.ids, arguments.negatives, arguments.negative_ids):
        if path is not None and not path.exists():
            raise ValueError(f"{path}: no such file or folder.")
    if len(arguments.data) > 2:
        raise ValueError(f"expected one file or folder, or two arrays, got {len(arguments.data)}.")
    if arguments.model is not None:
        from ..sentence.locate import find

        find(arguments.model)


def command(arguments: argparse.Namespace) -> int:
    """Measure, and print sentences with their evidence."""
    from .advice import advise
    from .data import read
    from .measure import measure

    settings = Settings(**flags.chosen(arguments, Settings))
    measured = measure(
        read(arguments.data, arguments.ids, arguments.negatives, arguments.negative_ids, settings), settings
    )
    advice = advise(measured)
    if arguments.json:
        print(json.dumps({"measured": measured, "advice": advice}, indent=1))
        return 0
    print(f"{measured['samples']} samples, {measured['width']} {measured['features']}")
    for one in advice:
        print("\n" + fill(one["text"], WIDTH))
        for line in one["evidence"]:
            print(fill(line, WIDTH, initial_indent="    ", subsequent_indent="    "))
    if any(one["evidence"] for one in advice):
        print("\n" + fill(LEGEND, WIDTH))
    return 0
