"""``counterpoint train graph`` and ``counterpoint eval tu``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from counterpoint.batch.pairings import PAIRINGS

from .. import report, store
from ..command import flags
from ..store.run import Run
from . import training
from .augment import AUGMENTATIONS
from .data import FEATURES, GraphSet, bag_of_nodes
from .evaluation import PROBES, evaluate
from .model import embed
from .presets import PRESETS, preset
from .training import BAG, DEFAULTS, PARTS, PROTOCOLS, UNTRAINED


def train_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_arguments(parser, "epochs", PRESETS)
    parser.set_defaults(objective=None, epochs=None)
    add = parser.add_argument
    add("--dataset", nargs="+", default=["demo"], metavar="NAME", help="TU data sets, or demo (demo)")
    choices: dict[str, Iterable[str]] = {"augment": AUGMENTATIONS, "features": FEATURES}
    choices |= {"pairing": [name for name in PAIRINGS if name != "queue"]}  # which nothing here fills
    choices |= {"probe": PROBES, "protocol": PROTOCOLS, "part": PARTS}
    for name, options in choices.items():
        add(f"--{name}", choices=list(options), help=f"{HELP[name]} ({DEFAULTS[name]})")
    for name, low in (("batch", 2), ("layers", 1), ("hidden", 1), ("folds", 2), ("hops", 1)):
        add(f"--{name}", type=flags.whole(low), metavar="N", help=f"{HELP[name]} ({DEFAULTS[name]})")
    add("--lr", type=float, help=f"learning rate of Adam ({DEFAULTS['lr']})")


HELP = {
    "augment": "how the views are made",
    "pairing": "who is compared with whom",
    "features": "of nodes",
    "probe": "classifier that the embeddings are judged by",
    "protocol": "inner: by --probe; official: by GraphCL's kernel SVM, and the best of its looks at them beside",
    "part": "graphs whose classes are used: all, or 30 %% to tune on, or the other 70 %% to report",
    "batch": "graphs per step",
    "layers": "of the encoder",
    "hidden": "width of each layer",
    "folds": "test folds",
    "hops": "reach of subgraphs; 1 is the official code's",
}


def train_command(given: argparse.Namespace) -> int:
    """Trains every objective on every data set, and prints the table with what needs no training."""
    flags.use_data("data", given.data)
    cells: list[dict[str, Any]] = []
    for dataset in given.dataset:
        spec, settings = preset(given.preset or "graphcl", dataset)
        settings |= {name: value for name, value in vars(given).items() if name in DEFAULTS and value is not None}
        if settings.get("protocol") == "official":
            settings = {"probe": "svc", **settings}
        first = training.cell(dataset, None, given.seed, **settings)
        training.prepared(first)  # what is wrong with the data is said before anything is trained
        for seed in range(given.seed, given.seed + given.seeds):
            cells += [training.bag(dataset, seed, **settings), training.untrained(dataset, seed, **settings)]
            cells += [training.cell(dataset, one, seed, **settings) for one in given.objective or [spec]]
    found, code = flags.run_asked(training.train, cells, given, "graph")
    report.show(found, given.json)
    return code


def eval_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", nargs="+", type=Path, help="folders of runs, or folders that hold such")
    add("--dataset", metavar="NAME", help="TU data set to evaluate on; by default what each run was trained on")
    add("--probe", nargs="+", choices=list(PROBES), default=["svm"], help="classifiers (svm)")
    add("--folds", type=flags.whole(2), default=10, metavar="N", help="test folds (%(default)s)")
    add("--seeds", type=flags.whole(1), default=5, metavar="N", help="how often the folds are drawn anew (%(default)s)")
    add("--data", type=Path, metavar="FOLDER", help="data sets ($COUNTERPOINT_DATA)")
    add("--json", action="store_true", help="print JSON")


def eval_command(given: argparse.Namespace) -> int:
    """Evaluates the encoders of finished runs, beside what needs no training."""
    flags.use_data("data", given.data)
    embeddings: dict[tuple[str, str, str], tuple[GraphSet, Any]] = {}
    for run in _finished(given.runs):
        data = training.loaded(given.dataset or run.arguments["dataset"], run.arguments["features"])
        for (name, which), z in _embeddings(run, data).items():
            embeddings[data.name, name, which] = data, z  # runs share what needs no training
    found: list[dict[str, Any]] = []
    for (dataset, name, which), (data, z) in store.track(embeddings.items(), "evaluated", len(embeddings)):
        for probe, seed in product(given.probe, range(given.seeds)):
            result = evaluate(z, data.y, probe, given.folds, seed)
            one = {"dataset": dataset, "name": name, "which": which, "probe": probe, "seed": seed}
            found.append({**one, "accuracy": result.accuracy, "folds": result.folds})
    if given.json:
        print(json.dumps(found, indent=1))
        return 0
    for dataset, probe in dict.fromkeys((one["dataset"], one["probe"]) for one in found):
        rows: dict[str, list[float]] = {}
        for one in found:
            if (one["dataset"], one["probe"]) == (dataset, probe):
                rows.setdefault(one["name"], []).append(one["accuracy"])
        width = max(map(len, rows))
        print(f"{dataset}, {probe}: accuracy in %, and over how many encoders and draws of folds")
        for name, values in rows.items():
            spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
            print(f"  {name:{width}}  {mean(values):6.2f}{spread} ({len(values)})")
    return 0


def _finished(folders: Iterable[Path]) -> list[Run]:
    found = [run for run in store.find_runs(folders) if run.done and run.arguments.get("epochs")]
    if not found:
        raise ValueError(f"no finished run of an encoder in {', '.join(map(str, folders))}")
    if wrong := [run.path for run in found if run.arguments["domain"] != "graph"]:
        raise ValueError(f"{wrong[0]} is no run of graphs")
    return found


def _embeddings(run: Run, data: GraphSet) -> dict[tuple[str, str], Any]:
    """Of a run's encoder, of the same one untrained, and of none at all, by name and by what makes them different."""
    try:
        model = training.build({**run.arguments, "device": "cpu"}, data)  # wherever it was trained
        start = embed(model.encoder, data)
        if (state := run.load()) is None:
            raise ValueError(f"{run.path}: it has no checkpoint")
        model.load_state_dict(state["model"])
    except RuntimeError as error:
        message = f"{run.path}: trained on {run.arguments['dataset']}, its encoder does not fit {data.name}"
        raise ValueError(message) from error
    like = {name: run.arguments[name] for name in ("seed", "layers", "hidden", "features")}
    return {
        (BAG, like["features"]): bag_of_nodes(data),
        (UNTRAINED, json.dumps(like)): start,
        (run.name, str(run.path)): embed(model.encoder, data),
    }
