"""Pre-training without labels, in a loop of your own or as a run that can be interrupted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import torch
from sklearn.model_selection import StratifiedShuffleSplit

import counterpoint as cp
from counterpoint.hyper import nearest

from .. import store
from ..store.run import Run
from .augment import augmentation
from .data import GraphSet, bag_of_nodes, load
from .evaluation import checked, evaluate
from .model import Encoder, Pretraining, embed

UNTRAINED, BAG = "untrained encoder", "bag of nodes"
SAVE_EVERY = 10.0  # seconds between checkpoints
HELD_OUT = 0.3
OFFICIAL_EVERY = 10  # epochs between the looks at the test folds in GraphCL's code
BEST_LOOK = "best look"  # the best of them on the test folds themselves: what choosing by it would have given
PARTS = ("all", "tune", "report")
PROTOCOLS = ("inner", "official")

DEFAULTS: dict[str, Any] = {
    "encoder": "gin",
    "augment": "random2",
    "hops": None,
    "pairing": "one_way",
    "features": "auto",
    "epochs": 20,
    "batch": 128,
    "lr": 0.01,
    "hidden": 32,
    "layers": 3,
    "probe": "svm",
    "folds": 10,
    "part": "all",
    "protocol": "inner",
    "device": "cpu",
}
"""What a cell's arguments are if it does not say otherwise: GraphCL's scripts, and a linear SVM."""


def batches(count: int, size: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """The graphs of each step of an epoch, in an order that changes; a last graph that would be alone is left out."""
    for index in torch.randperm(count, generator=generator).split(size):
        if len(index) > 1:
            yield index


def pretrain(
    model: Pretraining,
    data: GraphSet,
    epochs: int = 20,
    batch: int = 128,
    lr: float = 0.01,
    seed: int = 0,
    run: Run | None = None,
    after: Callable[[int], dict[str, float]] | None = None,
) -> None:
    """Trains with Adam, as GraphCL does; its batches, which stay the same for all epochs there, change here.

    Args:
        model: what is trained.
        data: what on; its classes are not looked at.
        epochs: times that each graph is seen, at least 0.
        batch: graphs per step, at least 2.
        lr: learning rate, > 0.
        seed: of the order of the graphs.
        run: where losses and checkpoints go, and where training goes on after an interruption.
        after: called with the number of epochs after each of them; the numbers it returns are logged with the loss.
    """
    if not isinstance(batch, int) or batch < 2 or len(data) < 2:
        raise ValueError(f"batch: at least 2 graphs are needed to compare, got {batch!r} of {len(data)} graphs.")
    if not lr > 0 or not isinstance(epochs, int) or epochs < 0:
        raise ValueError(f"pretrain: expected lr > 0 and a whole number of epochs, got lr={lr!r}, epochs={epochs!r}.")
    order = torch.Generator().manual_seed(seed)
    generators = [order, *_generators(model)]
    adam = torch.optim.Adam(model.parameters(), lr=lr)
    start = 0
    if run is not None and (state := run.load()) is not None:
        model.load_state_dict(state["model"])
        adam.load_state_dict(state["optimizer"])
        for generator, at in zip(generators, state["generators"], strict=True):
            generator.set_state(at)
        store.set_rng_state(state["rng"])
        start = state["step"]
    model.train()
    saved, epoch_numbers = time.monotonic(), range(start, epochs)
    for epoch in epoch_numbers if run is None else run.track(epoch_numbers, total=epochs):
        total = 0.0
        for index in batches(len(data), batch, order):
            loss = model(data.batch(index))
            adam.zero_grad()
            loss.backward()
            adam.step()
            total += float(loss.detach()) * len(index)
        numbers = {} if after is None else after(epoch + 1)
        if run is not None:
            run.log(epoch + 1, loss=total / len(data), **numbers)
        if run is not None and (epoch + 1 == epochs or time.monotonic() - saved >= SAVE_EVERY):
            states = [generator.get_state() for generator in generators]
            state = {"model": model.state_dict(), "optimizer": adam.state_dict(), "generators": states}
            run.save({**state, "rng": store.rng_state()}, epoch + 1)
            saved = time.monotonic()


def _generators(model: Pretraining) -> list[torch.Generator]:
    """The sources of random numbers of a model's augmentations and mixtures, each once."""
    found = [augment.generator for augment in model.augment] + [model.generator]
    return list({id(one): one for one in found if one is not None}.values())


# ---- a cell of a grid --------------------------------------------------------------------------


def cell(dataset: str, objective: str | None, seed: int, **changes: Any) -> dict[str, Any]:
    """The arguments of one run; what is not changed is as in :data:`DEFAULTS`."""
    store.check_names(changes, (*DEFAULTS, "label"))
    return {"domain": "graph", "dataset": dataset, "objective": objective, "seed": seed, **DEFAULTS, **changes}


def untrained(dataset: str, seed: int, **changes: Any) -> dict[str, Any]:
    """The cell of the encoder as it starts."""
    return cell(dataset, None, seed, **{**changes, "label": UNTRAINED, "epochs": 0})


def bag(dataset: str, seed: int, **changes: Any) -> dict[str, Any]:
    """The cell that has no encoder at all, see :func:`bag_of_nodes`."""
    return cell(dataset, None, seed, **{**changes, "label": BAG, "encoder": "none", "epochs": 0})


def build(arguments: dict[str, Any], data: GraphSet) -> Pretraining:
    """The model of a cell as it starts. The seed fixes it, and the views, whatever the objective."""
    seed = arguments["seed"]
    torch.manual_seed(seed)
    encoder = Encoder(data.x.shape[1], arguments["hidden"], arguments["layers"])
    objective = arguments["objective"] or "infonce"
    views = max(2, cp.objective(objective).views or 2)
    # a stream of random numbers per view: the first are the same whether an objective asks for more or not
    streams = [torch.Generator().manual_seed(1000 * (seed + 1) + view) for view in range(views)]
    augments = [augmentation(arguments["augment"], one, hops=arguments["hops"]) for one in streams[1:]]
    model = Pretraining(encoder, objective, augments, arguments["pairing"], generator=streams[0])
    return model.to(arguments["device"])


@lru_cache(maxsize=2)
def loaded(dataset: str, features: str) -> GraphSet:
    """As :func:`load`, read once per process."""
    return load(dataset, features)


def prepared(arguments: dict[str, Any]) -> tuple[GraphSet, Any, Any]:
    """A cell's graphs, the numbers of those whose classes are used, and these classes, checked."""
    data = loaded(arguments["dataset"], arguments["features"])
    rows = part(data, arguments["part"])
    y = data.y[rows].numpy()
    checked(y.reshape(-1, 1), y, arguments["folds"])
    return data, rows, y


def train(run: Run) -> None:
    """Trains and evaluates one cell; the training function for :func:`~counterpoint.integrations.store.run_grid`."""
    given = run.arguments
    data, rows, y = prepared(given)
    run.data(data.checksum)
    run.counts("epoch")
    if given["encoder"] == "none":
        found = evaluate(bag_of_nodes(data)[rows], y, given["probe"], given["folds"], given["seed"])
        run.finish({"accuracy": found.accuracy}, folds=found.folds)
        return
    model = build(given, data)
    official = given["protocol"] == "official"

    def look(epoch: int) -> dict[str, float]:
        if epoch < given["epochs"] and not (official and epoch % OFFICIAL_EVERY == 0):
            return {}
        found = evaluate(embed(model.encoder, data)[rows], y, given["probe"], given["folds"], given["seed"])
        return {"accuracy": found.accuracy, **{f"fold{k}": one for k, one in enumerate(found.folds)}}

    if given["epochs"]:
        pretrain(model, data, given["epochs"], given["batch"], given["lr"], given["seed"], run, look)
    else:
        run.log(0, **look(0))
        run.save({"model": model.state_dict()}, 0)
    looks = [line for line in run.metrics() if "accuracy" in line]
    last, best = looks[-1], max(looks, key=lambda line: line["accuracy"])
    result = {"accuracy": last["accuracy"], **({BEST_LOOK: best["accuracy"]} if official else {})}
    run.finish(result, epoch=last["step"], folds=[last[f"fold{k}"] for k in range(given["folds"])])


def part(data: GraphSet, name: str) -> Any:
    """The graphs whose classes are used: ``all``, or the stratified 30 % to ``tune`` on, or the rest to ``report``."""
    if name not in PARTS:
        raise ValueError(f"part: unknown part {name!r}.{nearest(str(name), PARTS)}")
    rows = torch.arange(len(data)).numpy()
    if name == "all":
        return rows
    reported, held_out = next(StratifiedShuffleSplit(1, test_size=HELD_OUT, random_state=0).split(rows, data.y.numpy()))
    return sorted(held_out if name == "tune" else reported)
