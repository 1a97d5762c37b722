"""``counterpoint mine``: hard negatives for pairs, by sentence-transformers' ``mine_hard_negatives``.

A model embeds the queries and all candidates, and each query gets the most similar candidates that are not known to be
its positives. Many of them may be false: leave out those close to the positive with ``--margin``, or mask them in
training with ``--false-negatives``.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

from .. import flags
from .settings import POOLING, POOLINGS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``counterpoint mine``."""
    add = parser.add_argument
    add("data", help="pairs: .csv, .tsv, .jsonl, .parquet, or a BEIR folder, all of whose documents are candidates")
    add("model", help="a SentenceTransformer, or a checkpoint of transformers: it looks for the negatives")
    out = "the .jsonl to write, for train sentence (required)"
    add("--out", type=flags.file, required=True, metavar="FILE", help=out)
    add("--columns", nargs=2, metavar=("QUERY", "POSITIVE"), help="columns of the file (the first two of text)")
    add("--negatives", type=flags.whole(1), default=5, metavar="N", help="for each pair (%(default)s)")
    skip = "most similar candidates to leave out (%(default)s)"
    add("--skip", type=flags.whole(0), default=0, metavar="N", help=skip)
    add("--margin", type=float, metavar="X", help="least gap between the positive's similarity and a negative's (none)")
    add("--relative-margin", type=float, metavar="X", help="the same, as a share of the positive's similarity (none)")
    add("--pooling", choices=POOLINGS, help=POOLING)
    add("--batch", type=flags.whole(1), default=64, metavar="N", help="texts embedded at a time (%(default)s)")
    flags.add_device(parser)
    add("--json", action="store_true", help="print JSON")
    parser.set_defaults(check=_check)


def _check(arguments: argparse.Namespace) -> None:
    from .data import check
    from .locate import find

    check(arguments.data)
    if arguments.out.suffix != ".jsonl":
        raise ValueError(f"--out: expected a name that ends in .jsonl, got {arguments.out}.")
    find(arguments.model)


def _pairs(data: str | Path, columns: tuple[str, str] | None) -> Any:
    """Read the queries and positives, or raise what is wrong with them."""
    from .data import load

    samples, _ = load(data, "auto", columns)
    if len(samples.column_names) < 2:
        raise ValueError(f"{data}: expected columns of queries and positives, got {samples.column_names[0]!r} alone.")
    return samples.select_columns(samples.column_names[:2])


def mine(
    data: str | Path, model: Any, columns: tuple[str, str] | None = None, negatives: int = 5, **options: Any
) -> Any:
    """Return a ``datasets.Dataset`` of each pair with its hard negatives; pairs without enough of them are left out.

    Args:
        data: pairs, see :func:`.data.load`. Candidates are the second column, or all documents of a BEIR folder.
        model: a SentenceTransformer.
        columns: of queries and positives; by default the first two of text.
        negatives: how many for each pair, the most similar first.
        options: of ``sentence_transformers.util.mine_hard_negatives``, such as ``relative_margin``.
    """
    from sentence_transformers.util import mine_hard_negatives

    from . import retrieval
    from .data import find

    folder = find(data)
    candidates = [*retrieval.read(folder, "train").documents.values()] if retrieval.is_collection(folder) else None
    options = {"corpus": candidates, "num_negatives": negatives, "output_format": "n-tuple", **options}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"std\(\)")  # it prints statistics even of no negatives
        mined = mine_hard_negatives(_pairs(data, columns), model, **options)
    if not len(mined):
        raise ValueError(f"{data}: no pair has {negatives} negatives that the settings allow; ask for fewer.")
    return mined


def command(arguments: argparse.Namespace) -> int:
    """Mine, and write the file."""
    from .. import store
    from . import encode

    _pairs(arguments.data, arguments.columns)  # before the model, which takes longer
    model = encode.load(arguments.model, arguments.pooling, device=arguments.device)
    mined = mine(
        arguments.data,
        model,
        arguments.columns,
        arguments.negatives,
        range_min=arguments.skip,
        absolute_margin=arguments.margin,
        relative_margin=arguments.relative_margin,
        batch_size=arguments.batch,
        verbose=not arguments.json,
    )
    with store.atomic(arguments.out) as file:
        file.writelines((json.dumps(row, ensure_ascii=False) + "\n").encode() for row in mined)
    if arguments.json:
        print(json.dumps({"rows": len(mined), "columns": mined.column_names, "file": str(arguments.out)}))
    else:
        print(f"wrote {arguments.out}: {len(mined)} pairs with {arguments.negatives} hard negatives each; next:")
        print(f"  counterpoint train sentence --data {arguments.out} --model {arguments.model}")
    return 0
