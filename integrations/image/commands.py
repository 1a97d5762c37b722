"""``counterpoint train image`` and ``counterpoint eval image``; the parsers need neither torch nor a framework."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from counterpoint.names import check_known

from .. import flags
from ..domain import check, defaults
from .presets import PRESETS, preset
from .settings import DATASETS, PROBES, EvaluationSettings, Settings, check_backbone, check_batch, check_dataset

if TYPE_CHECKING:
    from ..store.run import Run
    from .image_set import ImageSet

WIDTH = 120  # of a table
DEFAULT_PROBES = ("knn", "linear")


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
    name = arguments.data or "digits"
    check_dataset(name)
    chosen = {**defaults(Settings), **settings(arguments, name)}
    check(Settings, chosen)
    check_backbone(chosen["backbone"])
    check_batch(name, chosen)


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
    probe, transfer = (
        [word for words in option or () for word in words] for option in (arguments.probe, arguments.transfer)
    )
    settings = flags.chosen(arguments, EvaluationSettings) | ({"transfer": transfer} if transfer else {})
    probe = probe or list(DEFAULT_PROBES)
    for name in transfer:
        check_dataset(name)
    EvaluationSettings(**settings)
    return probe + ["transfer"] * bool(transfer and "transfer" not in probe), settings


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
    from . import evaluation, sources
    from .data import prepare

    probes, typed = _evaluation(arguments)
    options = EvaluationSettings(**typed)
    results: list[dict[str, Any]] = []
    rows: dict[str, list[dict[str, float]]] = {}
    note = ""

    def evaluate(run: Run) -> tuple[ImageSet, dict[str, float]]:
        _, train, _, test = prepare({**run.arguments, "part": "report"})
        if arguments.data:
            size = evaluation.square_size(train)
            train, test = (sources.load(arguments.data, split, size).with_classes() for split in sources.SPLITS)
        encoder = _encoder(run).to(arguments.device)
        return test, evaluation.evaluate(encoder, train, test, probes, options, run.arguments["seed"])

    for run, (test, result) in flags.each(runs, evaluate):
        if not result:
            raise ValueError(f"{test.name} has no classes to evaluate on; name a data set that has, --data")
        about = {"data": test.name, "name": run.name, "seed": run.arguments["seed"], "run": run.address}
        results.append({**about, **result})
        rows.setdefault(run.name, []).append(result)
        note = test.note
    print(json.dumps(results, indent=1) if arguments.json else "\n".join(table(results[0]["data"], rows, note)))
    return 0


def table(dataset: str, rows: dict[str, list[dict[str, float]]], note: str = "") -> list[str]:
    """Mean and standard deviation of each row over its runs, in as many blocks of columns as needed."""
    columns = list(dict.fromkeys(name for results in rows.values() for result in results for name in result))
    width = max(map(len, (*rows, "accuracy, %")))
    each = max(map(len, (*columns, "00.00 ± 0.00")))
    fitting = max(1, (WIDTH - width - len("    runs")) // (each + 2))
    lines = [f"{dataset}{f' ({note})' if note else ''}"]
    for start in range(0, len(columns), fitting):
        block = columns[start : start + fitting]
        lines.append(f"  {'accuracy, %':{width}}  {'  '.join(f'{name:>{each}}' for name in block)}  runs")
        for name, results in rows.items():
            cells = (_spread([result[column] for result in results if column in result]) for column in block)
            lines.append(f"  {name:{width}}  {'  '.join(f'{cell:>{each}}' for cell in cells)}  {len(results):4}")
    return lines


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def _encoder(run: Run) -> Any:
    """The trained encoder of a run, also of one that was fetched from the hub."""
    from ..store.published import is_published

    if is_published(run.path):
        from . import published

        return published.load(run.path)
    from . import training

    return training.restore(run).encoder
