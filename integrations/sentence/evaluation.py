"""The evaluations of a model: semantic textual similarity, transfer tasks and retrieval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import beir, encode, retrieval, sts, transfer
from .data import Pairs, load_sts
from .settings import STS, TRANSFER


def load_dev(name: str) -> Pairs | beir.Collection:
    """Load the data whose score selects checkpoints: an STS set, or the split ``dev`` of a retrieval collection."""
    return load_sts(name) if name in STS else beir.read(beir.find(name), "dev")


def dev_metric(name: str) -> str:
    """Return the name of the score on this data in results and logs."""
    return name if name in STS else f"{Path(name).name} dev {retrieval.HEADLINE}"


def dev_score(model: Any, dev: Pairs | beir.Collection) -> float | None:
    """Spearman's correlation, or nDCG@10, times 100; None if undefined."""
    if isinstance(dev, beir.Collection):
        return retrieval.score(model, dev).metrics[retrieval.HEADLINE]
    texts = [*dev.first, *dev.second]
    return sts.score(dev, encode.Embeddings(encode.encoder(model), texts, progress=False)).spearman


def evaluate(model: Any, names: Sequence[str], shares: dict[str, float] | None = None) -> dict[str, float]:
    """The model's scores on STS sets, transfer tasks and retrieval collections by name.

    With all of SimCSE's seven sets, their average too; of a collection :data:`retrieval.METRICS`.
    ``shares`` receives the share of the largest class of each transfer task.
    """
    scores: dict[str, float] = {}
    if sets := [name for name in names if name in STS]:
        report = sts.evaluate(model, sets, progress=False)
        scores |= {name: math.nan if s.spearman is None else s.spearman for name, s in report.sets.items()}
        scores |= {} if report.average is None else {"average": report.average}
    if tasks := [name for name in names if name in TRANSFER]:
        task_scores = transfer.evaluate(model, tasks, progress=False).tasks
        scores |= {name: task.accuracy for name, task in task_scores.items()}
        if shares is not None:
            shares |= {name: task.majority for name, task in task_scores.items()}
        scores |= {f"{name} F1": task.f1 for name, task in task_scores.items() if task.f1 is not None}
    if collections := [name for name in names if name not in (*STS, *TRANSFER)]:
        found = retrieval.evaluate(model, collections, progress=False).collections
        scores |= {f"{name} {metric}": x for name, one in found.items() for metric, x in one.metrics.items()}
    return scores
