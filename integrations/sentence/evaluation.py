"""The evaluations of a finished model: semantic textual similarity and transfer tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from . import sts, transfer
from .settings import STS, TRANSFER


def evaluate(model: Any, names: Sequence[str], shares: dict[str, float] | None = None) -> dict[str, float]:
    """The model's scores on STS sets and transfer tasks by name; with all of SimCSE's seven sets, their average too.

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
    return scores
