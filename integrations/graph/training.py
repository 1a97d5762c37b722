"""Pre-training without labels, in your own loop or as a run that can be interrupted."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import counterpoint as cp

from .. import store
from ..domain import majority
from ..store.run import Run
from .augment import augmentation
from .data import GraphSet, bag_of_nodes, prepare
from .evaluation import evaluate
from .model import Encoder, Pretraining, embed
from .settings import BAG, UNTRAINED, bag, cell, untrained

__all__ = ["BAG", "UNTRAINED", "bag", "build", "cell", "pretrain", "restore", "train", "untrained"]

SAVE_EVERY = 10.0  # seconds between checkpoints
OFFICIAL_EVERY = 10  # epochs between the evaluations in GraphCL's code
BEST_LOOK = "best look"  # the best of these: what choosing the epoch on the test folds themselves would report


def batches(count: int, size: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Yield the indices of each step of an epoch in random order; a last batch of one graph is left out."""
    yield from (index for index in torch.randperm(count, generator=generator).split(size) if len(index) > 1)


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
    """Train with Adam, as GraphCL does. Batches are drawn anew in each epoch; GraphCL's stay the same.

    Args:
        data, seed: the graphs, whose classes are not used, and the seed of their order.
        epochs, batch: passes over the data, and graphs per step, at least 2.
        run: logs losses, stores checkpoints, and continues from the last one after an interruption.
        after: called with the number of epochs after each of them; the numbers it returns are logged with the loss.
    """
    if not isinstance(batch, int) or batch < 2 or len(data) < 2:
        raise ValueError(f"batch: at least 2 graphs are needed to compare, got {batch!r} of {len(data)} graphs.")
    if not lr > 0 or not isinstance(epochs, int) or epochs < 0:
        raise ValueError(f"pretrain: expected lr > 0 and a whole number of epochs, got lr={lr!r}, epochs={epochs!r}.")
    order = torch.Generator().manual_seed(seed)
    streams = {id(augment.generator): augment.generator for augment in model.augment}  # views may share one
    generators = [order, *(stream for stream in streams.values() if stream is not None)]
    adam = torch.optim.Adam(model.parameters(), lr=lr)
    start = 0
    if run is not None and (state := run.load()) is not None:
        model.load_state_dict(state["model"])
        adam.load_state_dict(state["optimizer"])
        for generator, generator_state in zip(generators, state["generators"], strict=True):
            generator.set_state(generator_state)
        store.set_rng_state(state["rng"])
        start = state["step"]
    model.train()
    reports: dict[str, float] = {}
    steps = sum(1 for _ in batches(len(data), batch, torch.Generator()))
    hooks = cp.log_reports(model, reports.update, every=steps)
    saved, remaining = time.monotonic(), range(start, epochs)
    for epoch in remaining if run is None else run.track(remaining, total=epochs):
        total = 0.0
        for index in batches(len(data), batch, order):
            loss = model(data.batch(index))
            adam.zero_grad()
            loss.backward()
            adam.step()
            total += float(loss.detach()) * len(index)
        numbers = {} if after is None else after(epoch + 1)
        if run is None:
            continue
        run.log(epoch + 1, loss=total / len(data), **numbers, **reports)
        if epoch + 1 == epochs or time.monotonic() - saved >= SAVE_EVERY:
            state = {"model": model.state_dict(), "optimizer": adam.state_dict(), "rng": store.rng_state()}
            state["generators"] = [generator.get_state() for generator in generators]
            run.save(state, epoch + 1)
            saved = time.monotonic()
    hooks.close()


def build(arguments: dict[str, Any], width: int) -> Pretraining:
    """Build a cell's untrained model for nodes of ``width`` features. The seed determines it and the views."""
    torch.manual_seed(arguments["seed"])
    encoder = Encoder(width, arguments["hidden"], arguments["layers"])
    objective = arguments["objective"] or "infonce"
    views = max(2, cp.objective(objective).views or 2)
    # one random stream per view, so that the first views do not depend on how many the objective asks for
    name, hops = arguments["augment"], arguments["hops"]
    augments = [augmentation(name, 1000 * (arguments["seed"] + 1) + view, hops=hops) for view in range(1, views)]
    return Pretraining(encoder, objective, augments, arguments["pairing"]).to(arguments["device"])


def train(run: Run) -> None:
    """Train and evaluate one cell; pass it to :func:`~counterpoint.integrations.store.run_grid`."""
    arguments = run.arguments
    data, rows, y = prepare(arguments)
    run.data(data.checksum)
    run.counts("epoch")
    probe = (y, arguments["probe"], arguments["folds"], arguments["seed"])
    share = majority(y.tolist())
    if arguments["encoder"] == "none":
        evaluation = evaluate(bag_of_nodes(data)[rows], *probe)
        run.finish({"accuracy": evaluation.accuracy}, folds=evaluation.folds, majority={"accuracy": share})
        return
    model = build(arguments, data.x.shape[1])
    official = arguments["protocol"] == "official"

    def look(epoch: int) -> dict[str, float]:
        if epoch < arguments["epochs"] and not (official and epoch % OFFICIAL_EVERY == 0):
            return {}
        evaluation = evaluate(embed(model.encoder, data)[rows], *probe)
        return {"accuracy": evaluation.accuracy, **{f"fold{k}": x for k, x in enumerate(evaluation.folds)}}

    if arguments["epochs"]:
        pretrain(model, data, arguments["epochs"], arguments["batch"], arguments["lr"], arguments["seed"], run, look)
    else:
        run.log(0, **look(0))
        run.save({"model": model.state_dict()}, 0)
    looks = [line for line in run.metrics() if "accuracy" in line]
    last, best = looks[-1], max(looks, key=lambda line: line["accuracy"])
    result = {"accuracy": last["accuracy"], **({BEST_LOOK: best["accuracy"]} if official else {})}
    run.export(model.encoder)
    folds = [last[f"fold{k}"] for k in range(arguments["folds"])]
    run.finish(result, epoch=last["step"], folds=folds, majority=dict.fromkeys(result, share))


def restore(run: Run | str | Path) -> Pretraining:
    """The trained model of a run or of its folder, on the CPU; needs no data."""
    run = Run.read(run)
    if (state := run.load()) is None:
        raise ValueError(f"{run.path}: it has no checkpoint")
    weights = next(value for name, value in state["model"].items() if name.startswith("encoder.") and value.dim() == 2)
    model = build({**run.arguments, "device": "cpu"}, weights.shape[1])
    model.load_state_dict(state["model"])
    return model
