"""``counterpoint train image`` and ``counterpoint eval image``; the parsers need neither torch nor a framework."""

import argparse
import json
from itertools import chain
from pathlib import Path
from typing import Any

from counterpoint.names import check_known

from .. import flags
from ..domain import accuracy_tables
from .presets import PRESETS, preset
from .settings import DATASETS, PROBES, EvaluationSettings, Settings, check_cell, check_dataset

DEFAULT_PROBES = ["knn", "linear"]


def train_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_arguments(parser, "infonce", Settings, PRESETS)
    parser.add_argument("--data", metavar="DATA", help=f"{', '.join(DATASETS)} or a folder of images (digits)")
    flags.add_root(parser)
    flags.add_settings(parser.add_argument_group("training"), Settings)
    _add_evaluation(parser.add_argument_group("evaluation"))
    parser.set_defaults(check=_check_train)


def _check_train(arguments: argparse.Namespace) -> None:
    """Raise errors of names and folders; called before torch is imported."""
    flags.use_root(arguments)
    dataset = arguments.data or "digits"
    check_dataset(dataset)
    check_cell(dataset, settings(arguments, dataset))


def _add_evaluation(parser: argparse._ActionsContainer) -> None:
    add = parser.add_argument
    add("--probe", nargs="+", type=_probes, metavar="PROBE", help=f"{', '.join(PROBES)} ({' '.join(DEFAULT_PROBES)})")
    add("--epsilons", nargs="+", type=float, metavar="E", help="sizes of attacks (0.002 0.008 0.032)")
    flags.add_settings(parser, EvaluationSettings)


def _probes(text: str) -> list[str]:
    words = [word for word in text.split(",") if word]
    for word in words:
        check_known("unknown probe", word, PROBES, argparse.ArgumentTypeError)
    return words


def _evaluation(arguments: argparse.Namespace) -> tuple[list[str], dict[str, Any]]:
    """The probes, and the settings of the evaluation that were typed."""
    settings = flags.chosen(arguments, EvaluationSettings)
    EvaluationSettings(**settings)
    return list(chain.from_iterable(arguments.probe or ())) or DEFAULT_PROBES, settings


def settings(arguments: argparse.Namespace, dataset: str) -> dict[str, Any]:
    """The settings that the preset and the flags give to the cells of a data set."""
    small = {"backbone": "conv4"} if dataset == "digits" else {}
    recipe = preset(arguments.preset, dataset).settings if arguments.preset else {}
    probe, evaluation = _evaluation(arguments)
    evaluation = {**recipe.get("evaluation", {}), **evaluation}
    return {**small, **recipe, **flags.chosen(arguments, Settings), "probe": probe, "evaluation": evaluation}


def train_command(arguments: argparse.Namespace) -> int:
    """Train every objective, and print the table beside the encoder before training."""
    from .. import report
    from . import training
    from .data import prepare

    dataset = arguments.data or "digits"
    changes = settings(arguments, dataset)
    default = preset(arguments.preset, dataset).objective if arguments.preset else "infonce"
    if dataset not in DATASETS and Path(dataset).is_dir():
        dataset = str(Path(dataset).resolve())
    cells: list[dict[str, object]] = []
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        cells.append(training.untrained(dataset, seed, **changes))
        cells += [training.cell(dataset, spec, seed, **changes) for spec in arguments.objective or [default]]
    training.check(cells)
    if not training.allowed_probes(cells[0], prepare(cells[0])):  # no probe, and without training no loss either
        cells = [cell for cell in cells if cell.get("label") != training.UNTRAINED]
    runs, code = flags.run_cells(training.train, cells, arguments, "train image")
    report.show(runs, arguments.json)
    if runs and not arguments.json:
        note = runs[0].details.get("note")
        print(f"{f'{Path(dataset).name}: {note}; ' if note else ''}runs are in {arguments.out}")
    return code


def eval_arguments(parser: argparse.ArgumentParser) -> None:
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
    from ..store.run import Run
    from .data import SPLITS, load, prepare
    from .evaluation import evaluate
    from .image_set import ImageSet

    probes, typed = _evaluation(arguments)

    def measure(run: Run) -> tuple[ImageSet, dict[str, float]]:
        _, train, _, test = prepare({**run.arguments, "part": "report"})
        if arguments.data:
            train, test = (load(arguments.data, split, train.size[0]).with_classes() for split in SPLITS)
        encoder = flags.encoder_of(run).to(arguments.device)
        return test, evaluate(encoder, train, test, probes, EvaluationSettings(**typed), run.arguments["seed"])

    rows = []
    values: list[tuple[str, str, str, float]] = []
    for run, (test, result) in flags.each(runs, measure):
        if not result:
            raise ValueError(f"{test.name} has no classes to evaluate on; name a data set that has, --data")
        rows.append({"data": test.name, "name": run.name, "seed": run.arguments["seed"], "run": run.address, **result})
        title = test.name + (f" ({test.note})" if test.note else "")
        values += [(title, name, run.name, value) for name, value in result.items()]
    print(json.dumps(rows, indent=1) if arguments.json else "\n".join(accuracy_tables(values, "runs")))
    return 0
