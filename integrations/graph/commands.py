"""``counterpoint train graph`` and ``counterpoint eval graph``; the parsers need neither torch nor PyG."""

import argparse
import json
from itertools import product
from typing import Any

from .. import flags
from ..domain import accuracy_tables, check, defaults
from .presets import PRESETS, preset
from .settings import DOMAIN, PROBES, Settings, bag, cell, check_dataset, untrained


def train_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_arguments(parser, "infonce:t=0.2,denominator=negatives", Settings, PRESETS)
    parser.add_argument("--data", nargs="+", default=["demo"], metavar="NAME", help="TU data sets, or demo (demo)")
    flags.add_root(parser)
    flags.add_settings(parser.add_argument_group("training"), Settings)
    parser.set_defaults(check=_check_train)


def _check_train(arguments: argparse.Namespace) -> None:
    """Raise errors of names and folders; called before torch is imported."""
    flags.use_root(arguments)
    for dataset in arguments.data:
        check_dataset(dataset)
        check(Settings, {**defaults(Settings), **settings(arguments, dataset)})


def settings(arguments: argparse.Namespace, dataset: str) -> dict[str, object]:
    """The settings that the preset and the flags give to the cells of a data set."""
    chosen = {**preset(arguments.preset or "graphcl", dataset).settings, **flags.chosen(arguments, Settings)}
    return {"probe": "svc", **chosen} if chosen.get("protocol") == "official" else chosen


def train_command(arguments: argparse.Namespace) -> int:
    """Train every objective on every data set, and print the table beside two baselines that need no training."""
    from .. import report

    cells = []
    for dataset in arguments.data:
        spec = preset(arguments.preset or "graphcl", dataset).objective
        changes = settings(arguments, dataset)
        for seed in range(arguments.seed, arguments.seed + arguments.seeds):
            cells += [bag(dataset, seed, **changes), untrained(dataset, seed, **changes)]
            cells += [cell(dataset, objective, seed, **changes) for objective in arguments.objective or [spec]]

    def prepare() -> None:
        for one in {one["dataset"]: one for one in cells}.values():  # wrong data is an error before any training
            DOMAIN.module("data").prepare(one)

    runs, code = flags.run_cells(DOMAIN.train, cells, arguments, "train graph", prepare=prepare)
    report.show(runs, arguments.json)
    return code


def eval_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", nargs="+", type=flags.runs, help="folders of runs, at any depth, their URLs, or hf://owner/name")
    add("--data", metavar="NAME", help="TU data set to evaluate on (what each run was trained on)")
    add("--probe", nargs="+", choices=PROBES, default=["svm"], help="classifiers (svm)")
    add("--folds", type=flags.whole(2), default=10, metavar="N", help="test folds (%(default)s)")
    add("--seeds", type=flags.whole(1), default=5, metavar="N", help="random splits into folds (%(default)s)")
    flags.add_root(parser)
    add("--json", action="store_true", help="print JSON")
    parser.set_defaults(check=_check_eval)


def _check_eval(arguments: argparse.Namespace) -> None:
    flags.use_root(arguments)
    flags.check_runs(arguments.runs)
    check_dataset(arguments.data or "demo")


def eval_command(arguments: argparse.Namespace) -> int:
    """Evaluate the encoders of finished runs beside the baselines that need no training."""
    from .. import store
    from ..store.run import Run

    runs = flags.finished(arguments.runs, "graph", lambda run: run.arguments.get("epochs"))
    from .data import bag_of_nodes, load_cached
    from .evaluation import evaluate
    from .model import embed
    from .training import BAG, UNTRAINED, build

    def embed_all(run: Run) -> dict[tuple[str, str, str], tuple[Any, Any]]:
        """Embeddings by a run's encoder, by the same one before training, and without one, each with the classes.

        The keys are the data set, the name of the row, and what tells equal names apart.
        """
        data = load_cached(arguments.data or run.arguments["dataset"], run.arguments["features"])
        encoder = flags.encoder_of(run)
        try:
            before = embed(build({**run.arguments, "device": "cpu"}, data.x.shape[1]).encoder, data)
            trained = embed(encoder, data)
        except RuntimeError as error:
            message = f"{run.address}: trained on {run.arguments['dataset']}, its encoder does not fit {data.name}"
            raise ValueError(message) from error
        shared = {name: run.arguments[name] for name in ("seed", "layers", "hidden", "features")}
        return {
            (data.name, BAG, run.arguments["features"]): (bag_of_nodes(data), data.y),
            (data.name, UNTRAINED, json.dumps(shared)): (before, data.y),
            (data.name, run.name, run.address): (trained, data.y),
        }

    embeddings: dict[tuple[str, str, str], tuple[Any, Any]] = {}
    for _, by_name in flags.each(runs, embed_all):
        embeddings |= by_name  # runs share the baselines
    rows: list[dict[str, Any]] = []
    tasks = [(one, *how) for one in embeddings for how in product(arguments.probe, range(arguments.seeds))]
    for (dataset, name, which), probe, seed in store.track(tasks, "evaluated"):
        result = evaluate(*embeddings[dataset, name, which], probe, arguments.folds, seed)
        row = {"dataset": dataset, "name": name, "which": which, "probe": probe, "seed": seed}
        rows.append({**row, "accuracy": result.accuracy, "folds": result.folds})
    values = ((row["dataset"], row["probe"], row["name"], row["accuracy"]) for row in rows)
    print(json.dumps(rows, indent=1) if arguments.json else "\n".join(accuracy_tables(values, "encoders and splits")))
    return 0
