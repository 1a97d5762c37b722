"""``counterpoint advise``; the parser needs no torch."""

import argparse
import csv
import json
from pathlib import Path
from textwrap import wrap

from counterpoint.plugins.printing import print_lines

from .. import flags
from ..domain import check, defaults
from .settings import Settings

WIDTH = 100
LEGEND = (
    "[atlas: ...] is the evidence: points of accuracy that a row gains on data whose faults are known, see "
    "The atlas in the documentation. The oracle knows the labels."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    data = "a.npy b.npy (two views), a text file of pairs with tabs (then hard negatives), or a folder of images"
    add("data", nargs="+", type=Path, help=data)
    ids = "ids or labels of the samples, -1 or ? where unknown: .npy, or a word per line (none)"
    add("--ids", type=Path, metavar="FILE", help=ids)
    negatives = "hard negatives of a.npy, an array of N x n x width; those of texts are columns of their file (none)"
    add("--negatives", type=Path, metavar="FILE", help=negatives)
    add("--negative-ids", type=Path, metavar="FILE", help="their ids, an array of N x n, or a word per line (none)")
    batches = "the batch in which you train each sample, or its topic: .npy, or a word per line (random batches)"
    add("--batches", type=Path, metavar="FILE", help=batches)
    rows = "list suspects, ranked, in this .csv or .jsonl: lines of text from 1, as in Excel; rows of arrays from 0"
    add("--rows", type=flags.file, metavar="FILE", help=f"{rows} (none)")
    flags.add_settings(parser, Settings)
    add("--json", action="store_true", help="print JSON")
    parser.set_defaults(check=_check)


def _check(arguments: argparse.Namespace) -> None:
    check(Settings, defaults(Settings) | flags.chosen(arguments, Settings))
    for path in (*arguments.data, arguments.ids, arguments.negatives, arguments.negative_ids, arguments.batches):
        if path is not None and not path.exists():
            raise ValueError(f"{path}: no such file or folder.")
        if path is not None and not (any(path.iterdir()) if path.is_dir() else path.stat().st_size):
            raise ValueError(f"{path} is empty.")
    if len(arguments.data) > 2:
        raise ValueError(f"expected one file or folder, or two arrays, got {len(arguments.data)}.")
    if arguments.rows is not None and arguments.rows.suffix not in (".csv", ".jsonl"):
        raise ValueError(f"--rows {arguments.rows}: expected a .csv or .jsonl file.")
    if arguments.rows is not None and arguments.data[0].is_dir() and not (arguments.data[0] / "corpus.jsonl").exists():
        raise ValueError("--rows: lists lines of texts and rows of arrays; for images, embed them and pass two arrays.")
    if arguments.model is not None:
        from ..sentence.locate import find

        find(arguments.model)


def command(arguments: argparse.Namespace) -> int:
    """Measure, and print sentences with their evidence."""
    from .advice import advise, race_command, treatments
    from .data import read
    from .measure import measure

    settings = Settings(**flags.chosen(arguments, Settings))
    known = {name: getattr(arguments, name) for name in ("ids", "negatives", "negative_ids", "batches")}
    measured, suspects = measure(read(arguments.data, settings, **known), settings)
    if arguments.rows is not None:
        with arguments.rows.open("w", encoding="utf-8", newline="") as file:
            unit = "row" if len(arguments.data) == 2 else "pair" if arguments.data[0].is_dir() else "line"
            columns = ["kind", unit, f"other_{unit}", "score"]
            if arguments.rows.suffix == ".csv":
                csv.writer(file).writerows([columns, *(one.values() for one in suspects)])
            else:
                file.writelines(json.dumps(dict(zip(columns, one.values(), strict=True))) + "\n" for one in suspects)
    advice, proposed = advise(measured), treatments(measured)
    race = race_command(proposed)
    if arguments.json:
        print(json.dumps({"measured": measured, "advice": advice, "treatments": proposed, "command": race}, indent=1))
        return 0
    print_lines(f"{measured['samples']} samples, {measured['width']} columns of {measured['features']}")
    for one in advice:
        print_lines("", *wrap(one["text"], WIDTH))
        for line in one["evidence"]:
            print_lines(*wrap(line, WIDTH, initial_indent="    ", subsequent_indent="    "))
    if any(one["evidence"] for one in advice):
        print_lines("", *wrap(LEGEND, WIDTH))
    print_lines("", "Try at equal compute, with the flags, length and metric of your script:", "", f"    {race}")
    named = "and, with their names in your script, which counterpoint inject auto -- train.py lists (guide: another "
    named += "encoder's embeddings of the batch). "
    if measured.get("modality") == "text":
        named += "These are sentence-transformers' names; its guide is ContrastiveLoss(guide=). "
    named += "Ids that are class labels supervise training:"
    doubt = "  (not found to gain on such data)" * any("known ids were not" in one["text"] for one in advice)
    if with_names := [x for x in proposed if x not in race]:
        print_lines("", *wrap(named, WIDTH), "", *(f"    {one}{doubt * ('; ids=' in one)}" for one in with_names))
    return 0
