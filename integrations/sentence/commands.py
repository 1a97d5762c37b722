"""``counterpoint train sentence``, and ``counterpoint eval sts``, ``transfer``, ``retrieval`` and ``mteb``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ..command import flags
from ..domain import defaults
from .files import ENVIRONMENT
from .presets import PRESETS, preset
from .settings import POOLINGS, SEVEN, STS, TRANSFER, Settings, check_settings

# ---- counterpoint train sentence ----------------------------------------------------------------


def train_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``counterpoint train sentence``."""
    flags.add_arguments(parser, "infonce:t=0.05", Settings, PRESETS)
    data = parser._option_string_actions["--data"]  # elsewhere the folder of data sets
    data.required, data.default, data.metavar = True, None, "FILE"
    data.type = lambda path: str(Path(path))  # ./x.txt and x.txt are one run
    data.help = "training data: .txt, .csv, .tsv, .jsonl, .parquet, or owner/name on the hub (required)"
    flags.add_settings(parser, Settings)
    parser.add_argument("--sts", metavar="FOLDER", help=f"folder of the STS sets, or hub (${ENVIRONMENT}, else hub)")
    flags.add_cells(parser)
    flags.add_config(parser)
    parser.set_defaults(check=_check_train)


def _check_train(arguments: argparse.Namespace) -> None:
    """Raise what is wrong with settings, files and the model's name; called before torch is imported."""
    from .data import check
    from .locate import find

    flags.use_data("sts", arguments.sts)
    cell = {**defaults(Settings), **settings(arguments, arguments.data), "device": arguments.device}
    check(arguments.data, cell["positives"])
    check_settings(cell)
    find(cell["model"], cell["revision"])
    if cell["guide"] is not None:
        find(cell["guide"])


def settings(arguments: argparse.Namespace, dataset: str) -> dict[str, Any]:
    """Return the settings that the preset and the flags give to a cell."""
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
    from .data import prepare

    changes = settings(arguments, arguments.data)
    prepare({**defaults(Settings), **changes, "file": arguments.data})  # before the frameworks, which take longer
    from . import training

    specs = arguments.objective or [preset(arguments.preset).objective if arguments.preset else "infonce:t=0.05"]
    cells = []
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        cells += [training.cell(arguments.data, spec, seed, **changes) for spec in specs]
        if cells[0]["dev"] or cells[0]["test"]:
            cells.append(training.untrained(arguments.data, seed, **changes))
    runs, code = flags.run_cells(training.train, cells, arguments, "train sentence")
    report.show(runs, arguments.json)
    if not arguments.json:
        for run in runs:
            if run.arguments["objective"] is not None:
                print(f"{run.title}: {run.address}/model")
    return code


# ---- counterpoint eval --------------------------------------------------------------------------


def _add_model(parser: argparse.ArgumentParser, data: str, **options: Any) -> Callable[..., Any]:
    """Add the flags of every evaluation, and return the method that adds further ones."""
    add = parser.add_argument
    add("model", help="a SentenceTransformer, a checkpoint of transformers, or the folder of a run")
    how = "how tokens become one vector, for a checkpoint that does not define it (the model's own)"
    add("--pooling", choices=POOLINGS, help=how)
    add("--max-length", type=flags.whole(1), metavar="N", help="word pieces of a text (the model's limit)")
    add("--revision", metavar="NAME", help="revision of a model on the hub (the newest)")
    add("--data", help=data, **({"metavar": "FOLDER"} | options))
    add("--batch", type=flags.whole(1), default=64, metavar="N", help="texts embedded at a time (%(default)s)")
    flags.add_device(parser)
    add("--json", action="store_true", help="print JSON")
    parser.set_defaults(check=_check_eval)
    return add


def _check_eval(arguments: argparse.Namespace) -> None:
    """Raise what is wrong with the names of data and model; called before torch is imported."""
    from . import beir
    from .locate import find

    if isinstance(arguments.data, list):
        beir.check(arguments.data)
    elif arguments.data not in (None, "hub") and not Path(arguments.data).expanduser().is_dir():
        raise ValueError(f"--data: {arguments.data} is not a folder")
    find(arguments.model, arguments.revision)


def _evaluate(
    arguments: argparse.Namespace,
    evaluate: Callable[..., Any],
    text: Callable[[Any], str],
    names: Sequence[str],
    **options: Any,
) -> int:
    """Load the model, evaluate it on the named sets or tasks, and print the report."""
    from ..store.progress import print_line
    from . import encode

    if not arguments.json:
        print_line(f"loading {arguments.model}")
    load = {name: getattr(arguments, name) for name in ("device", "revision", "max_length")}
    model = encode.load(arguments.model, arguments.pooling, **load)
    report = evaluate(model, names, batch_size=arguments.batch, progress=not arguments.json, **options)
    print(json.dumps(asdict(report), indent=1) if arguments.json else text(report))
    return 0


def sts_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``counterpoint eval sts``."""
    add = _add_model(parser, f"sts/, or SentEval's data, or hub (${ENVIRONMENT}, else hub)")
    names, default = f"{', '.join(STS)} (the first eight)", [*SEVEN, "SICKR-all"]
    add("--sets", nargs="+", choices=STS, default=default, metavar="SET", help=names)
    add("--subsets", action="store_true", help="each subset of a year, and Pearson's correlation")
    plot = "draw the distances between the sentences of STS-B, as a PNG (none)"
    add("--plot", type=flags.file, metavar="FILE", help=plot)


def sts_command(arguments: argparse.Namespace) -> int:
    """Print SimCSE's table."""
    from .sts import evaluate, text

    text = partial(text, subsets=arguments.subsets)
    code = _evaluate(arguments, evaluate, text, arguments.sets, data=arguments.data, plot=arguments.plot)
    if arguments.plot and not arguments.json:
        print(f"wrote {arguments.plot}", file=sys.stderr)
    return code


def transfer_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``counterpoint eval transfer``."""
    add = _add_model(parser, f"transfer/, or SentEval's data (${ENVIRONMENT})")
    names = f"{', '.join(TRANSFER)} (all)"
    add("--tasks", nargs="+", choices=TRANSFER, default=list(TRANSFER), metavar="TASK", help=names)
    add("--jobs", type=flags.whole(1), default=1, metavar="N", help="processes that fit classifiers (%(default)s)")


def transfer_command(arguments: argparse.Namespace) -> int:
    """Print SentEval's table."""
    from .transfer import evaluate, text

    return _evaluate(arguments, evaluate, text, arguments.tasks, data=arguments.data, jobs=arguments.jobs)


def retrieval_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``counterpoint eval retrieval``."""
    names = (
        f"BEIR folders, names of those in ${ENVIRONMENT}/retrieval, nano or nano:NAME (all of the latter, else nano)"
    )
    _add_model(parser, names, nargs="+", default=[], metavar="DATA")


def retrieval_command(arguments: argparse.Namespace) -> int:
    """Print the scores of each collection."""
    from .retrieval import evaluate, text

    return _evaluate(arguments, evaluate, text, arguments.data)


def mteb_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``counterpoint eval mteb``."""
    add = _add_model(parser, f"sts/ and intents/ replace downloads; hub for none (${ENVIRONMENT}, else hub)")
    names = "mteb's names of tasks (Banking77Classification) or benchmarks ('MTEB(eng, v2)')"
    add("--tasks", nargs="+", required=True, metavar="NAME", help=names)
    add("--out", type=flags.folder, metavar="FOLDER", help="keep mteb's results here, and go on from them (none)")


def mteb_command(arguments: argparse.Namespace) -> int:
    """Print mteb's score of each task."""
    from .mteb_tasks import evaluate, find, text

    find(arguments.tasks)  # before the model
    return _evaluate(arguments, evaluate, text, arguments.tasks, data=arguments.data, out=arguments.out)
