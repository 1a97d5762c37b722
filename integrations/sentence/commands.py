"""``counterpoint train sentence``, and ``counterpoint eval sts``, ``transfer``, ``retrieval`` and ``mteb``."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

from .. import flags
from ..domain import defaults
from .presets import PRESETS, preset
from .settings import ENVIRONMENT, POOLINGS, SEVEN, STS, TRANSFER, Settings, check_settings


def _normalized(path: str) -> str:
    """Name a file in one way: ``./x.txt`` and ``x.txt`` are one run."""
    return str(Path(path))


def train_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``counterpoint train sentence``."""
    flags.add_arguments(parser, "infonce:t=0.05", Settings, PRESETS)
    data = "training data: .txt, .csv, .tsv, .jsonl, .parquet, or owner/name on the hub (required)"
    parser.add_argument("--data", type=_normalized, required=True, metavar="FILE", help=data)
    flags.add_settings(parser.add_argument_group("training"), Settings)
    flags.add_root(parser, f"folder of the STS sets, or hub (${ENVIRONMENT}, else hub)")
    parser.set_defaults(check=_check_train)


def _check_train(arguments: argparse.Namespace) -> None:
    """Raise what is wrong with settings, files and the model's name; called before torch is imported."""
    from . import beir, corpus
    from .locate import find

    flags.use_root(arguments)
    cell = {**defaults(Settings), **settings(arguments, arguments.data), "device": arguments.device}
    corpus.check(arguments.data, cell["positives"])
    check_settings(cell)
    beir.check_sets("dev", [cell["dev"] or STS[0]], STS)
    beir.check_sets("test", cell["test"] or (), (*STS, *TRANSFER))
    find(cell["model"], cell["revision"])
    if cell["guide"] is not None:
        find(cell["guide"])


def settings(arguments: argparse.Namespace, dataset: str) -> dict[str, Any]:
    """The settings that the preset and the flags give to a cell."""
    recipe = preset(arguments.preset).settings if arguments.preset else {}
    changes = {**recipe, **flags.chosen(arguments, Settings)}
    if changes.get("test") == []:
        changes["test"] = list(SEVEN)
    if changes.get("dev") == "none":
        changes["dev"] = None
    return changes


def train_command(arguments: argparse.Namespace) -> int:
    """Train every objective with every seed, and print the table."""
    from .. import report
    from ..trackers.grid import run_cells
    from .data import load_samples

    changes = settings(arguments, arguments.data)
    load_samples({**defaults(Settings), **changes, "file": arguments.data})  # before the frameworks, which take longer
    from . import training

    specs = arguments.objective or [preset(arguments.preset).objective if arguments.preset else "infonce:t=0.05"]
    cells = []
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        cells += [training.cell(arguments.data, spec, seed, **changes) for spec in specs]
        if cells[0]["dev"] or cells[0]["test"]:
            cells.append(training.untrained(arguments.data, seed, **changes))
    runs, code = run_cells(training.train, cells, arguments, "train sentence")
    report.show(runs, arguments.json)
    if not arguments.json:
        for run in runs:
            if run.arguments["objective"] is not None:
                print(f"{run.title}: {run.address}/model")
    return code


def _eval_arguments(parser: argparse.ArgumentParser, root: bool = True) -> None:
    add = parser.add_argument
    add("model", help="a SentenceTransformer, a checkpoint of transformers, or the folder of a run")
    how = "how tokens become one vector, for a checkpoint that does not define it (the model's own)"
    add("--pooling", choices=POOLINGS, help=how)
    add("--max-length", type=flags.whole(1), metavar="N", help="word pieces of a text (the model's limit)")
    add("--revision", metavar="NAME", help="revision of a model on the hub (the newest)")
    if root:
        folders = f"sts/ and transfer/, or SentEval's data, or hub (${ENVIRONMENT}, else hub)"
        flags.add_root(parser, folders)
    add("--batch", type=flags.whole(1), default=64, metavar="N", help="texts embedded at a time (%(default)s)")
    flags.add_device(parser)
    add("--json", action="store_true", help="print JSON")
    parser.set_defaults(check=_check_eval)


def _check_eval(arguments: argparse.Namespace) -> None:
    from .locate import find

    flags.check_root(arguments.root)
    find(arguments.model, arguments.revision)


def _load(arguments: argparse.Namespace) -> Any:
    from ..store.progress import print_line
    from . import encode

    if not arguments.json:
        print_line(f"loading {arguments.model}")
    options = {name: getattr(arguments, name) for name in ("device", "revision", "max_length")}
    return encode.load(arguments.model, arguments.pooling, **options)


def sts_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``counterpoint eval sts``."""
    _eval_arguments(parser)
    add = parser.add_argument
    add(
        "--sets",
        nargs="+",
        choices=STS,
        default=[*SEVEN, "SICKR-all"],
        metavar="SET",
        help=f"{', '.join(STS)} (the first eight)",
    )
    add("--subsets", action="store_true", help="each subset of a year, and Pearson's correlation")
    add(
        "--plot",
        type=flags.file,
        metavar="FILE",
        help="draw the distances between the sentences of STS-B, as a PNG (none)",
    )


def sts_command(arguments: argparse.Namespace) -> int:
    """Print SimCSE's table."""
    from . import sts

    start = perf_counter()
    model = _load(arguments)
    load_seconds = perf_counter() - start
    options = {"batch_size": arguments.batch, "progress": not arguments.json, "plot": arguments.plot}
    report = sts.evaluate(model, arguments.sets, arguments.root, **options)
    report.seconds |= {"load model": load_seconds, "total": perf_counter() - start}
    if arguments.json:
        print(json.dumps(asdict(report), indent=1))
        return 0
    print(sts.text(report, arguments.subsets))
    if arguments.plot:
        print(f"wrote {arguments.plot}", file=sys.stderr)
    return 0


def transfer_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``counterpoint eval transfer``."""
    _eval_arguments(parser)
    add = parser.add_argument
    add(
        "--tasks",
        nargs="+",
        choices=TRANSFER,
        default=list(TRANSFER),
        metavar="TASK",
        help=f"{', '.join(TRANSFER)} (all)",
    )
    add("--jobs", type=flags.whole(1), default=1, metavar="N", help="processes that fit classifiers (%(default)s)")


def transfer_command(arguments: argparse.Namespace) -> int:
    """Print SentEval's table."""
    from . import transfer

    options = {"batch_size": arguments.batch, "jobs": arguments.jobs, "progress": not arguments.json}
    report = transfer.evaluate(_load(arguments), arguments.tasks, arguments.root, **options)
    print(json.dumps(asdict(report), indent=1) if arguments.json else transfer.text(report))
    return 0


def retrieval_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``counterpoint eval retrieval``."""
    _eval_arguments(parser, root=False)
    what = f"BEIR folders, names of those in ${ENVIRONMENT}/retrieval, nano or nano:NAME (all of the latter, else nano)"
    parser.add_argument("--data", nargs="+", default=[], metavar="DATA", help=what)
    parser.set_defaults(check=_check_retrieval)


def _check_retrieval(arguments: argparse.Namespace) -> None:
    """Raise what is wrong with the names of model and collections; called before torch is imported."""
    from . import beir
    from .locate import find

    beir.check(arguments.data)
    find(arguments.model, arguments.revision)


def retrieval_command(arguments: argparse.Namespace) -> int:
    """Print the scores of each collection."""
    from . import retrieval

    options = {"batch_size": arguments.batch, "progress": not arguments.json}
    report = retrieval.evaluate(_load(arguments), arguments.data, **options)
    print(json.dumps(asdict(report), indent=1) if arguments.json else retrieval.text(report))
    return 0


def mteb_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``counterpoint eval mteb``."""
    _eval_arguments(parser, root=False)
    add = parser.add_argument
    names = "mteb's names of tasks (Banking77Classification) or benchmarks ('MTEB(eng, v2)')"
    add("--tasks", nargs="+", required=True, metavar="NAME", help=names)
    folder = f"sts/ and intents/ replace downloads; hub for none (${ENVIRONMENT}, else hub)"
    flags.add_root(parser, folder)
    add("--out", type=flags.folder, metavar="FOLDER", help="keep mteb's results here, and go on from them (none)")


def mteb_command(arguments: argparse.Namespace) -> int:
    """Print mteb's score of each task."""
    from . import mteb_tasks

    mteb_tasks.find(arguments.tasks)  # before the model
    options = {"batch_size": arguments.batch, "out": arguments.out, "progress": not arguments.json}
    report = mteb_tasks.evaluate(_load(arguments), arguments.tasks, arguments.root, **options)
    print(json.dumps(asdict(report), indent=1) if arguments.json else mteb_tasks.text(report))
    return 0
