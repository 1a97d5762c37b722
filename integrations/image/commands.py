"""``counterpoint train image`` and ``counterpoint eval image``; the parsers need neither torch nor a framework."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from counterpoint.names import check_known

from .. import flags
from .presets import PRESETS, preset
from .settings import DATASETS, DOMAIN, PROBES, EvaluationSettings, Settings, check_cell, check_dataset

if TYPE_CHECKING:
    from ..store.run import Run
    from .image_set import ImageSet

DEFAULT_PROBES = ["knn", "linear"]


def train_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``counterpoint train image``."""
    flags.add_arguments(parser, "infonce", Settings, PRESETS)
    parser.add_argument("--data", metavar="DATA", help=f"{', '.join(DATASETS)} or a folder of images (digits)")
    flags.add_root(parser)
    flags.add_settings(parser.add_argument_group("training"), Settings)
    _add_evaluation(parser.add_argument_group("evaluation"))
    parser.set_defaults(check=_check_train)


def _check_train(arguments: argparse.Namespace) -> None:
    """Raise what is wrong with names and folders; called before torch is imported."""
    flags.use_root(arguments)
    dataset = arguments.data or "digits"
    check_dataset(dataset)
    check_cell(dataset, settings(arguments, dataset))


def _add_evaluation(parser: argparse._ActionsContainer) -> None:
    add = parser.add_argument
    probes = f"{', '.join(PROBES)} ({' '.join(DEFAULT_PROBES)})"
    add("--probe", nargs="+", type=_probes, metavar="PROBE", help=probes)
    add("--transfer", nargs="+", type=_words, metavar="DATA", help="data sets to transfer to (none)")
    add("--epsilons", nargs="+", type=float, metavar="E", help="sizes of attacks (0.002 0.008 0.032)")
    flags.add_settings(parser, EvaluationSettings)


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _probes(text: str) -> list[str]:
    for word in _words(text):
        check_known("unknown probe", word, PROBES, argparse.ArgumentTypeError)
    return _words(text)


def _evaluation(arguments: argparse.Namespace) -> tuple[list[str], dict[str, Any]]:
    """The probes, and the settings of the evaluation that were typed."""
    probe, transfer = (list(chain.from_iterable(words or ())) for words in (arguments.probe, arguments.transfer))
    for name in transfer:
        check_dataset(name)
    settings = flags.chosen(arguments, EvaluationSettings) | ({"transfer": transfer} if transfer else {})
    EvaluationSettings(**settings)
    return (probe or DEFAULT_PROBES) + ["transfer"] * bool(transfer and "transfer" not in probe), settings


def settings(arguments: argparse.Namespace, dataset: str) -> dict[str, Any]:
    """The settings that the preset and the flags give to the cells of a data set."""
    small = {"backbone": "conv4"} if dataset == "digits" else {}
    recipe = preset(arguments.preset, dataset).settings if arguments.preset else {}
    probe, evaluation = _evaluation(arguments)
    evaluation = {**recipe.get("evaluation", {}), **evaluation}
    chosen = flags.chosen(arguments, Settings)
    return {**small, **recipe, **chosen, "probe": probe, "evaluation": evaluation}


def train_command(arguments: argparse.Namespace) -> int:
    """Train every objective, and print the table beside the encoder before training."""
    from .. import report
    from ..trackers.grid import run_cells
    from . import training
    from .data import prepare

    dataset = arguments.data or "digits"
    changes = settings(arguments, dataset)
    default = preset(arguments.preset, dataset).objective if arguments.preset else "infonce"
    if changes.get("method") == "swav":
        default = None
    objectives: list[str | None] = arguments.objective or [default]
    if dataset not in DATASETS and Path(dataset).is_dir():
        dataset = str(Path(dataset).resolve())
    cells: list[dict[str, Any]] = []
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        cells.append(training.untrained(dataset, seed, **changes))
        cells += [training.cell(dataset, spec, seed, **changes) for spec in objectives]
    training.check(cells)
    if not training.allowed_probes(cells[0], prepare(cells[0])):  # no probe, and without training no loss either
        cells = [cell for cell in cells if cell.get("label") != training.UNTRAINED]
    runs, code = run_cells(training.train, cells, arguments, "train image")
    report.show(runs, arguments.json)
    if runs and not arguments.json:
        note = runs[0].details.get("note")
        print(f"{f'{Path(dataset).name}: {note}; ' if note else ''}runs are in {arguments.out}")
    return code


def eval_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``counterpoint eval image``."""
    add = parser.add_argument
    add("runs", nargs="+", type=flags.runs, help="folders of runs, at any depth, their URLs, or hf://owner/name")
    add("--data", metavar="DATA", help="data set to evaluate on (what each run was trained on)")
    flags.add_root(parser)
    _add_evaluation(parser)
    flags.add_device(parser)
    add("--json", action="store_true", help="print JSON")
    parser.set_defaults(check=_check_eval)


def _check_eval(arguments: argparse.Namespace) -> None:
    flags.use_root(arguments)
    flags.check_runs(arguments.runs)
    check_dataset(arguments.data or "digits")
    _evaluation(arguments)


def eval_command(arguments: argparse.Namespace) -> int:
    """Evaluate the encoders of finished runs."""
    runs = flags.finished(arguments.runs, "image")  # before the frameworks, which take longer
    from .data import SPLITS, load, prepare
    from .evaluation import evaluate, square_size

    probes, typed = _evaluation(arguments)
    options = EvaluationSettings(**typed)

    def measure(run: Run) -> tuple[ImageSet, dict[str, float]]:
        _, train, _, test = prepare({**run.arguments, "part": "report"})
        if arguments.data:
            train, test = (load(arguments.data, split, square_size(train)).with_classes() for split in SPLITS)
        encoder = _encoder(run).to(arguments.device)
        return test, evaluate(encoder, train, test, probes, options, run.arguments["seed"])

    rows: list[dict[str, Any]] = []
    values: dict[str, dict[str, list[float]]] = {}  # of each number, by row
    title = ""
    for run, (test, result) in flags.each(runs, measure):
        if not result:
            raise ValueError(f"{test.name} has no classes to evaluate on; name a data set that has, --data")
        rows.append({"data": test.name, "name": run.name, "seed": run.arguments["seed"], "run": run.address, **result})
        for name, value in result.items():
            values.setdefault(name, {}).setdefault(run.name, []).append(value)
        title = title or test.name + (f" ({test.note})" if test.note else "")
    print(json.dumps(rows, indent=1) if arguments.json else "\n".join(_table(title, values)))
    return 0


def _table(title: str, values: Mapping[str, Mapping[str, Sequence[float]]]) -> Iterator[str]:
    yield f"{title}: accuracy in % ± deviation (number of runs)"
    width = max(len(row) for rows in values.values() for row in rows)
    for name, rows in values.items():
        yield f"  {name}"
        for row, each in rows.items():
            spread = f" ± {stdev(each):.2f}" if len(each) > 1 else ""
            yield f"    {row:{width}}  {mean(each):6.2f}{spread} ({len(each)})"


def _encoder(run: Run) -> Any:
    """The trained encoder of a run, also of one that was fetched from the hub."""
    from ..store.published import is_published

    if is_published(run.path):
        return DOMAIN.module("published").load(run.path)
    return DOMAIN.module("training").restore(run).encoder
