"""``counterpoint train image`` and ``counterpoint eval image``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from .. import report, store
from ..command import flags
from ..store.run import Run
from . import data, evaluation, training
from .augment import RECIPES
from .model import METHODS
from .presets import PRESETS, preset
from .training import DEFAULTS, KEEP, OPTIMIZERS, PARTS, PATHS

WIDTH = 120  # of a table
CHOICES: dict[str, tuple[Iterable[str], str]] = {
    "method": (METHODS, "how encoders are trained"),
    "augment": (RECIPES, "distribution of views (cifar; digits for digits)"),
    "path": (PATHS, "augment whole batches, or single images with lightly's transforms"),
    "optimizer": (OPTIMIZERS, "of the pre-training"),
    "part": (PARTS, "what is reported: test images, or validation images to tune on"),
    "keep": (KEEP, "which encoder is evaluated: the last, or the best by validation kNN, see --watch"),
}
WHOLE = {
    "channels": "of the first layer of conv4",
    "size": "pixels of an image (the data set's own)",
    "views": "views of each image (what the objective asks for, or 2)",
    "batch": "images per step",
    "warmup": "epochs in which the learning rate rises",
    "width": "of the projection",
    "queue": "keys in MoCo's queue",
    "mixed": "mixed views for MixNCA and IntNaCl, M - 1",
    "subset": "train on so many images, balanced",
    "watch": "validation kNN every so many epochs, 0 for never",
    "devices": "how many of them",
    "workers": "processes that load, for --path per-image",
}
REAL = {
    "lr": "learning rate; adam's by default, where MoCo has 0.03 for sgd and SimCLR 0.3 * batch / 256 for lars",
    "weight-decay": "of the pre-training",
    "momentum": "of MoCo's key encoder",
    "epsilon": "size of the attacks of adversarial views",
    "false-negatives": "share of pairs of one class that remain negatives; below 1 looks at classes",
    "validation": "share of the training images that is held out for --watch and --part tune",
}
EVALUATION = {
    "protocol": "of the linear probe: lbfgs, or the papers' adam",
    "probe_epochs": "of --protocol adam",
    "attacked": "attack so many test images",
    "restarts": "of PGD",
    "finetune_steps": "of --probe finetune",
}


def train_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_arguments(parser, "epochs", PRESETS)
    parser.set_defaults(objective=None, data=None)
    given = parser._option_string_actions["--data"]  # of all domains; here it is the data set, or a folder of images
    given.metavar, given.help, given.type = "DATA", f"{', '.join(data.NAMES)} or a folder of images (digits)", str
    add = parser.add_argument
    _root(parser)
    add(
        "--backbone", metavar="NAME", help="conv4, or any of torchvision.models, or timm:NAME (resnet18; digits: conv4)"
    )
    for name, (options, said) in CHOICES.items():
        add(f"--{name}", choices=list(options), help=f"{said}{_default(name)}")
    for name, said in WHOLE.items():
        add(f"--{name}", type=int, metavar="N", help=f"{said}{_default(name)}")
    for name, said in REAL.items():
        add(f"--{name}", type=float, metavar="X", help=f"{said}{_default(name)}")
    add("--classes", type=_lines, metavar="FILE", help="names of the classes to keep, a line each (ImageNet-100)")
    add("--cosine", action="store_true", default=None, help="let the learning rate fall as a cosine")
    add("--precision", metavar="P", help=f"Lightning's, such as bf16-mixed{_default('precision')}")
    _probes(parser, ["knn", "linear"])


def _default(name: str) -> str:
    value = DEFAULTS.get(name.replace("-", "_"))
    return "" if value is None else f" ({value})"


def _root(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", type=Path, metavar="FOLDER", help="where data sets lie ($COUNTERPOINT_DATA)")


def _probes(parser: argparse.ArgumentParser, default: Sequence[str]) -> None:
    add = parser.add_argument
    said = f"{', '.join(evaluation.PROBES)} ({' '.join(default)})"
    add("--probe", nargs="+", type=_words, metavar="PROBE", help=said)
    add("--transfer", nargs="+", type=_words, metavar="DATA", help="data sets to transfer to")
    add("--epsilons", nargs="+", type=float, metavar="E", help="sizes of attacks (0.002 0.008 0.032)")
    for name, said in EVALUATION.items():
        kind = str if name == "protocol" else int
        add(f"--{name.replace('_', '-')}", type=kind, metavar="N" if kind is int else "NAME", help=said)


def _lines(text: str) -> list[str]:
    try:
        return [line.strip() for line in Path(text).read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _flat(words: Iterable[Iterable[str]] | None) -> list[str]:
    return [word for some in words or () for word in some]


def _evaluation(given: argparse.Namespace) -> dict[str, Any]:
    found = {name: getattr(given, name) for name in (*EVALUATION, "epsilons") if getattr(given, name) is not None}
    if given.transfer:
        found["transfer"] = _flat(given.transfer)
    return found


def train_command(given: argparse.Namespace) -> int:
    """Trains every objective, and prints the table with the encoder as it starts."""
    flags.use_data("root", given.root)
    dataset = given.data or "digits"
    names = [name for name in DEFAULTS if name not in ("probe", "evaluation")]
    settings: dict[str, Any] = {"backbone": "conv4"} if dataset == "digits" else {}
    objectives: list[str | None] = given.objective or ["infonce"]
    if given.preset:
        spec, more = preset(given.preset, dataset)
        settings |= more
        objectives = given.objective or [spec]
    settings |= {name: getattr(given, name) for name in names if getattr(given, name, None) is not None}
    settings["device"] = given.device
    settings["probe"] = _flat(given.probe) or list(DEFAULTS["probe"])
    if given.transfer and "transfer" not in settings["probe"]:
        settings["probe"].append("transfer")
    settings["evaluation"] = {**settings.get("evaluation", {}), **_evaluation(given)}
    if settings.get("method") == "swav" and not given.objective:
        objectives = [None]
    if Path(dataset).is_dir():
        dataset = str(Path(dataset).resolve())
    cells: list[dict[str, Any]] = []
    for seed in range(given.seed, given.seed + given.seeds):
        cells.append(training.untrained(dataset, seed, **settings))
        cells += [training.cell(dataset, spec, seed, **settings) for spec in objectives]
    training.check(cells)
    if not training.probes_of(
        cells[0], training.prepare(cells[0])
    ):  # nothing can be said about an encoder that has not been trained
        cells = [one for one in cells if one.get("label") != training.UNTRAINED]
    found, code = flags.run_asked(training.train, cells, given, "image")
    report.show(found, given.json)
    if found and not given.json:
        note = found[0].details.get("note")
        print(f"{f'{Path(dataset).name}: {note}; ' if note else ''}runs are in {given.out}")
    return code


def eval_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", nargs="+", type=Path, help="folders of runs, or folders that hold such")
    add("--data", metavar="DATA", help="data set to evaluate on; by default what each run was trained on")
    _root(parser)
    _probes(parser, ["knn", "linear"])
    add("--device", type=flags.device, default="cpu", help="cpu, cuda, cuda:1, ... or auto (%(default)s)")
    add("--json", action="store_true", help="print JSON")


def eval_command(given: argparse.Namespace) -> int:
    """Evaluates the encoders of finished runs."""
    flags.use_data("root", given.root)
    settings = evaluation.Settings(**_evaluation(given))
    probes = _flat(given.probe) or list(DEFAULTS["probe"])
    probes += ["transfer"] * bool(given.transfer and "transfer" not in probes)
    found: list[dict[str, Any]] = []
    rows: dict[str, list[dict[str, float]]] = {}
    note = ""
    for run in _finished(given.runs):
        _, train, _, test = training.prepare({**run.arguments, "part": "report"})
        if given.data:
            size = evaluation.square(train)
            train, test = (data.load(given.data, split, size).with_classes() for split in data.SPLITS)
        encoder = training.restore(run).encoder.to(given.device)
        result = evaluation.evaluate(encoder, train, test, probes, settings, run.arguments["seed"])
        if not result:
            raise ValueError(f"{test.name} has no classes to evaluate on; name a data set that has, --data")
        found.append(
            {"data": test.name, "name": run.name, "seed": run.arguments["seed"], "run": str(run.path), **result}
        )
        rows.setdefault(run.name, []).append(result)
        note = test.note
    if given.json:
        print(json.dumps(found, indent=1))
    else:
        print("\n".join(table(found[0]["data"], rows, note)))
    return 0


def _finished(folders: Iterable[Path]) -> list[Run]:
    found = [run for run in store.find_runs(folders) if run.done]
    if wrong := [run.path for run in found if run.arguments["domain"] != "image"]:
        raise ValueError(f"{wrong[0]} is no run of images")
    if not found:
        raise ValueError(f"no finished run in {', '.join(map(str, folders))}")
    return found


def table(dataset: str, rows: dict[str, list[dict[str, float]]], note: str = "") -> list[str]:
    """Mean and standard deviation of each row over its runs, in as many blocks of columns as needed.

    ``counterpoint report`` compares them.
    """
    columns = list(dict.fromkeys(name for results in rows.values() for one in results for name in one))
    width = max(map(len, (*rows, "accuracy, %")))
    each = max(map(len, (*columns, "00.00 ± 0.00")))
    fitting = max(1, (WIDTH - width - len("    runs")) // (each + 2))
    lines = [f"{dataset}{f' ({note})' if note else ''}"]
    for start in range(0, len(columns), fitting):
        block = columns[start : start + fitting]
        lines.append(f"  {'accuracy, %':{width}}  {'  '.join(f'{name:>{each}}' for name in block)}  runs")
        for name, results in rows.items():
            cells = (_spread([one[column] for one in results if column in one]) for column in block)
            lines.append(f"  {name:{width}}  {'  '.join(f'{cell:>{each}}' for cell in cells)}  {len(results):4}")
    return lines


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")
