"""The runs of a grid: cells, training, and restoring a trained encoder."""

import json
import math
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .. import store
from ..domain import defaults, majority
from ..store.run import Run
from . import data, evaluation, model
from .augment import recipe
from .model import Method
from .pretraining import Pretraining, batches, pretrain
from .settings import EvaluationSettings, Settings

UNTRAINED = "untrained encoder"


def cell(dataset: str, objective: str | None, seed: int, **changes: object) -> dict[str, object]:
    """The arguments of one run: the defaults of :class:`~.settings.Settings`, changed as given, and ``label``.

    The objective is a spec; None for the encoder before training. For the data set see :func:`~.data.load`.
    """
    store.check_names(changes, (*defaults(Settings), "label"))
    settings = defaults(Settings) | changes
    settings["augment"] = settings["augment"] or ("digits" if dataset == "digits" else "cifar")
    if settings["size"] is None:  # restoring needs a folder's own size, but not the folder
        settings["size"] = data.own_size(dataset)
    Settings.of(settings)
    return {"domain": "image", "dataset": dataset, "objective": objective, "seed": seed, **settings}


def untrained(dataset: str, seed: int, **changes: object) -> dict[str, object]:
    """The cell of the encoder before training."""
    return cell(dataset, None, seed, **{**changes, "label": UNTRAINED, "epochs": 0, "views": None})


def build(arguments: Mapping[str, Any], size: int) -> Pretraining:
    """Build the untrained module of a cell. The seed alone determines the encoder, not the objective."""
    torch.manual_seed(arguments["seed"])
    method = model.build(Settings.of(arguments), arguments["objective"], size)
    return Pretraining(method, recipe(arguments["augment"], size), arguments["seed"])


def allowed_probes(arguments: Mapping[str, Any], images: data.Data) -> list[str]:
    """The probes of a cell that its data allow: most need classes."""
    return evaluation.check_probes(arguments["probe"], images.labelled, images.test)


def check(cells: Iterable[Mapping[str, Any]]) -> None:
    """Raise the errors of every cell's arguments before the first one trains."""
    for arguments in {json.dumps({**arguments, "seed": 0}): arguments for arguments in cells}.values():
        images = data.prepare(arguments)
        allowed_probes(arguments, images)
        batches(images.train, build(arguments, images.train.size[0]))


def train(run: Run) -> None:
    """Train and evaluate one cell; pass it to :func:`~counterpoint.integrations.store.run_grid`."""
    arguments = run.arguments
    images = data.prepare(arguments)
    run.data(store.checksum(*(part.checksum for part in images)))
    run.counts("epoch")
    settings = EvaluationSettings(**arguments["evaluation"])
    probes = allowed_probes(arguments, images)
    module = build(arguments, images.train.size[0])
    neighbors = partial(evaluation.evaluate, probes=["knn"], settings=settings)
    watch = partial(neighbors, train=images.labelled, test=images.validation)
    pretrain(module, images.train, run, watch if images.validation.labelled else None)
    if arguments["epochs"] == 0:
        run.save({"state_dict": module.state_dict()}, 0)
    module.to(arguments["device"])
    encoder = module.method.encoder
    result = evaluation.evaluate(encoder, images.labelled, images.test, probes, settings, arguments["seed"])
    losses = [line["loss"] for line in run.metrics() if "loss" in line]
    share = majority(images.test.y.tolist())
    shares = {name: share for name in result if name in ("knn", "linear") or name.startswith("aug")}
    run.export(encoder)
    run.finish(result or {"loss": losses[-1] if losses else math.nan}, note=images.test.note, majority=shares)


def restore(run: Run | str | Path) -> Method:
    """The trained method of a run or of its folder, from its last checkpoint; needs no data."""
    run = Run.read(run)
    if (state := run.load()) is None:
        raise ValueError(f"{run.path}: no checkpoint.")
    module = build(run.arguments, data.image_size(run.arguments["dataset"], run.arguments["size"]))
    module.load_state_dict(state["state_dict"])
    return module.method.eval()
