"""The planted part of ``counterpoint demo``: made-up points of which it is known what helps, and where nothing can.

A point is its class, a position of its own, and noise that is new in each view, mixed nonlinearly. With few classes
many negatives are false, and known classes, passed as ``ids``, repair that. Where each point is a class of its own,
there is nothing to repair. The score is the share of new points whose nearest other view is of the same class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import counterpoint as cp

from ..store.run import Run

CLASSES = {"4 classes, known to one row": 4, "no class twice": None}
KNOWN = "InfoNCE, classes known"
TRAINING, NEW, BATCH, WIDTH = 1500, 500, 64, 64


def cells(objectives: Mapping[str, str], seeds: Sequence[int], quick: bool) -> Iterator[dict[str, Any]]:
    """Yield the cells of both data sets: the encoder before training, objectives, InfoNCE with known classes."""
    specs = {label: template.format(t="0.2", denominator="") for label, template in objectives.items()}
    rows = {"untrained encoder": None, **specs, KNOWN: "infonce:t=0.2"}
    for dataset, seed in product(CLASSES, seeds):
        for label, spec in rows.items():
            steps = 0 if spec is None else 4 if quick else 150
            names = {} if label == spec else {"label": label}
            cell = {"domain": "planted", "dataset": dataset, "objective": spec, **names, "seed": seed}
            yield {**cell, "steps": steps, "ids": label == KNOWN}


def train(run: Run, cache: Path) -> None:
    """Train one cell, and score it."""
    arguments, classes = run.arguments, CLASSES[run.arguments["dataset"]]
    run.load()
    generator = torch.Generator().manual_seed(arguments["seed"])

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    points = TRAINING + NEW
    y = torch.arange(points) if classes is None else torch.randint(classes, (points,), generator=generator)
    known = normal(points, 32) if classes is None else torch.cat([normal(classes, 8)[y], normal(points, 24)], 1)
    first, second = normal(48, WIDTH) / 3.5, normal(WIDTH, WIDTH) / 8

    def view(rows: Tensor) -> Tensor:
        jitter = torch.zeros(32).index_fill(0, torch.arange(8), 0.5)
        x = torch.cat([known[rows] + jitter * normal(len(rows), 32), normal(len(rows), 16)], 1)
        return torch.tanh(x @ first) @ second

    torch.manual_seed(arguments["seed"])
    encoder = nn.Sequential(nn.Linear(WIDTH, 96), nn.ReLU(), nn.Linear(96, 16))
    objective, adam = cp.objective(arguments["objective"] or "infonce"), torch.optim.Adam(encoder.parameters(), 3e-3)
    for step in range(arguments["steps"]):
        rows = torch.randperm(TRAINING, generator=generator)[:BATCH]
        views = [encoder(view(rows)) for _ in range(objective.views or 2)]
        loss = objective(*views, ids=y[rows] if arguments["ids"] else None)
        adam.zero_grad()
        loss.backward()
        adam.step()
        if step % 10 == 9:
            run.log(step + 1, loss=float(loss.detach()))
    new = torch.arange(TRAINING, points)
    with torch.no_grad():
        z, other = (nn.functional.normalize(encoder(view(new))) for _ in range(2))
    similarities = z @ other.T
    if classes is not None:
        similarities.fill_diagonal_(-1)
    nearest = similarities.argmax(1)
    run.finish({"accuracy": 100 * float((y[new][nearest] == y[new]).float().mean())})
