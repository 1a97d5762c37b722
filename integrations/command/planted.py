"""The planted part of ``counterpoint demo``: images of digits where it is known what helps, and where nothing can.

With four digits, one in four negatives is false, and known classes, passed as ``ids``, repair that. Where each image is
a class of its own, there is nothing to repair. A view is the image, shifted by a pixel at most, with a tenth of its
pixels erased, and noise. The score is the share of new images whose nearest other view is of the same class.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

import torch
from torch import Tensor, nn

import counterpoint as cp

from ..domain import require
from ..store.run import Run

CLASSES = {"4 digits, known to one row": 4, "each image its own class": None}
KNOWN = "InfoNCE, classes known"
BATCH, SIDE, PAIRS = 64, 8, 4  # pairs of views to score


def check() -> None:
    """Raise ``ImportError`` if the images, which scikit-learn has, are not here."""
    require("its images need", "image", "sklearn")


def cells(objectives: Mapping[str, str], seeds: Sequence[int], quick: bool) -> Iterator[dict[str, object]]:
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
    from sklearn.datasets import load_digits

    arguments, classes = run.arguments, CLASSES[run.arguments["dataset"]]
    run.load()
    generator = torch.Generator().manual_seed(arguments["seed"])
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=generator)
    images = torch.tensor(digits.images, dtype=torch.float32)[order] / 16
    y = torch.arange(len(order)) if classes is None else torch.tensor(digits.target)[order]
    if classes is not None:
        images, y = images[y < classes], y[y < classes]
    training = 3 * len(y) // 4

    shifted = nn.functional.unfold(images.unsqueeze(1), SIDE, padding=1) - 0.3  # each image moved in nine ways

    def view(rows: Tensor) -> Tensor:
        x = shifted[rows, :, torch.randint(shifted.shape[2], (len(rows),), generator=generator)]
        seen = torch.rand(x.shape, generator=generator) > 0.1
        return x.where(seen, torch.tensor(-0.3)) + 0.1 * torch.randn(x.shape, generator=generator)

    torch.manual_seed(arguments["seed"])
    encoder = nn.Sequential(nn.Linear(SIDE * SIDE, 96), nn.ReLU(), nn.Linear(96, 16))
    objective, adam = cp.objective(arguments["objective"] or "infonce"), torch.optim.Adam(encoder.parameters(), 3e-3)
    for step in range(arguments["steps"]):
        rows = torch.randperm(training, generator=generator)[:BATCH]
        views = [encoder(view(rows)) for _ in range(objective.views or 2)]
        loss = objective(*views, ids=y[rows] if arguments["ids"] else None)
        adam.zero_grad()
        loss.backward()
        adam.step()
        if step % 10 == 9:
            run.log(step + 1, loss=float(loss.detach()))
    new, right = torch.arange(training, len(y)), []
    with torch.no_grad():
        for _ in range(PAIRS):
            z, other = (nn.functional.normalize(encoder(view(new))) for _ in range(2))
            similarities = z @ other.T
            if classes is not None:
                similarities.fill_diagonal_(-1)
            right.append(y[new][similarities.argmax(1)] == y[new])
    run.finish({"accuracy": 100 * float(torch.stack(right).float().mean())})
