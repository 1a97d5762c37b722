"""``counterpoint train sentence``, ``counterpoint eval sts`` and ``counterpoint eval transfer``."""

from __future__ import annotations

import argparse
import json
import sys
from time import perf_counter
from typing import Any

from .. import report
from ..command import flags
from . import corpus, encode, sts, transfer
from .data import ENVIRONMENT, SEVEN, STS, TRANSFER
from .presets import PRESETS, preset

# flag: what argparse needs beside its help, and the help
_SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "model": ({}, "a folder or a name on the hub"),
    "revision": ({}, "of a model on the hub"),
    "pooling": ({"choices": encode.POOLINGS}, "what makes one vector of a text, for a checkpoint that does not say"),
    "head": ({"choices": ("none", "training", "kept")}, "SimCSE's dense layer and tanh: none, training only, or kept"),
    "positives": ({"choices": corpus.POSITIVES}, "what a sample is: a text and itself, columns, neighbours in a text"),
    "columns": ({"nargs": "+"}, "columns of the file, in this order"),
    "views": ({"type": int}, "how often a text is embedded; by default what the objective asks for"),
    "word_dropout": ({"type": float}, "share of word pieces that each view leaves out"),
    "max_length": ({"type": int}, "word pieces of a text in training"),
    "steps": ({"type": int}, "instead of epochs"),
    "batch": ({"type": int}, "samples per step"),
    "mini_batch": ({"type": int}, "samples embedded at a time, with a gradient cache; for batches that do not fit"),
    "lr": ({"type": float}, "learning rate of AdamW"),
    "schedule": ({"choices": ("linear", "constant", "cosine")}, "of the learning rate"),
    "warmup": ({"type": float}, "share of the steps"),
    "weight_decay": ({"type": float}, "of AdamW"),
    "negative_weight": ({"type": float}, "SimCSE's weight of a sample's own hard negatives, added to their logit"),
    "epsilon": ({"type": float}, "size of IntNaCl's attack, on word embeddings"),
    "mixed": ({"type": int}, "IntNaCl's mixed views per sample, of embeddings"),
    "precision": ({"choices": ("fp32", "bf16", "fp16")}, "of the arithmetic"),
    "dev": ({"choices": ("none", *STS)}, "what chooses the checkpoint; none takes the last"),
    "every": ({"type": int}, "steps between two looks at it"),
    "save": ({"type": int}, "steps between two checkpoints; 0 for none"),
}


def train_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_arguments(parser, "epochs", PRESETS)
    parser.set_defaults(objective=None, epochs=None, data=None)
    for action in parser._actions:
        if action.dest == "data":
            action.required, action.metavar = True, "FILE"
            action.help = "what to train on: .txt, .csv, .tsv, .jsonl, .parquet, or owner/name on the hub"
    for name, (how, said) in _SETTINGS.items():
        shown = {} if "choices" in how else {"metavar": "N" if "type" in how else "NAME"}
        parser.add_argument(f"--{name.replace('_', '-')}", **(how | shown | {"help": said}))
    parser.add_argument("--static", action="store_true", default=None, help="train the table of word pieces alone")
    tests: dict[str, Any] = {"choices": (*STS, *TRANSFER), "metavar": "SET"}
    parser.add_argument("--test", nargs="*", **tests, help="sets and tasks to score the model on; all seven if bare")
    parser.add_argument("--sts", metavar="FOLDER", help=f"where the STS sets are, or hub (${ENVIRONMENT}, else hub)")


def train_command(given: argparse.Namespace) -> int:
    """Trains every objective with every seed."""
    from . import training

    flags.use_data("sts", given.sts)
    if given.test == []:
        given.test = list(SEVEN)
    recipe = preset(given.preset) if given.preset else None
    settings: dict[str, Any] = {**recipe.settings} if recipe else {}
    settings |= {k: v for k, v in vars(given).items() if k in training.DEFAULTS and v is not None}
    if settings.get("dev") == "none":
        settings["dev"] = None
    specs = given.objective or [recipe.objective if recipe else "infonce:t=0.05"]
    cells = []
    for seed in range(given.seed, given.seed + given.seeds):
        cells += [training.cell(str(given.data), spec, seed, **settings) for spec in specs]
        if cells[0]["dev"] or cells[0]["test"]:
            cells.append(training.untrained(str(given.data), seed, **settings))
    # what is wrong with the data is said before anything is trained
    corpus.load(str(given.data), cells[0]["positives"], cells[0]["columns"])
    found, code = flags.run_asked(training.train, cells, given, "sentence")
    report.show(found, given.json)
    if not given.json:
        for run in found:
            if run.arguments["objective"] is not None:
                print(f"{run.title}: {run.path / 'model'}")
    return code


def _eval_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", help="a SentenceTransformer, a checkpoint of transformers, or the folder of a run")
    add(
        "--pooling", choices=encode.POOLINGS, help="what makes one vector of a text, for a checkpoint that does not say"
    )
    add(
        "--max-length", type=flags.whole(1), metavar="N", help="word pieces of a text; by default the model's own limit"
    )
    add("--revision", metavar="NAME", help="of a model on the hub")
    add("--data", metavar="FOLDER", help=f"sts/ and transfer/, or SentEval's data, or hub (${ENVIRONMENT}, else hub)")
    add("--batch", type=flags.whole(1), default=64, metavar="N", help="texts embedded at a time (%(default)s)")
    add("--device", type=flags.device, help="cpu, cuda, cuda:1, ... or auto; by default the best there is")
    add("--json", action="store_true", help="print JSON")


def _model(given: argparse.Namespace) -> Any:
    how = {"device": given.device, "revision": given.revision, "max_length": given.max_length}
    return encode.load(given.model, given.pooling, **how)


def sts_arguments(parser: argparse.ArgumentParser) -> None:
    _eval_arguments(parser)
    add = parser.add_argument
    add("--sets", nargs="+", choices=STS, default=[*SEVEN, "SICKR-all"], metavar="SET", help=", ".join(STS))
    add("--subsets", action="store_true", help="each subset of a year, and Pearson's correlation")
    add("--plot", metavar="FILE", help="draw the distances between the sentences of STS-B, as a PNG")


def sts_command(given: argparse.Namespace) -> int:
    """Prints SimCSE's table."""
    start = perf_counter()
    model = _model(given)
    loaded = perf_counter()
    found = sts.evaluate(
        model, given.sets, given.data, batch_size=given.batch, progress=not given.json, plot=given.plot
    )
    found.seconds |= {"load model": loaded - start, "total": perf_counter() - start}
    if given.json:
        print(json.dumps(found.to_dict(), indent=1))
        return 0
    print(sts.text(found, given.subsets))
    if given.plot:
        print(f"wrote {given.plot}", file=sys.stderr)
    return 0


def transfer_arguments(parser: argparse.ArgumentParser) -> None:
    _eval_arguments(parser)
    add = parser.add_argument
    add("--tasks", nargs="+", choices=TRANSFER, default=list(TRANSFER), metavar="TASK", help=", ".join(TRANSFER))
    add("--jobs", type=flags.whole(1), default=1, metavar="N", help="processes that fit classifiers (%(default)s)")


def transfer_command(given: argparse.Namespace) -> int:
    """Prints SentEval's table."""
    found = transfer.evaluate(
        _model(given), given.tasks, given.data, batch_size=given.batch, jobs=given.jobs, progress=not given.json
    )
    print(json.dumps(found.to_dict(), indent=1) if given.json else transfer.text(found))
    return 0
