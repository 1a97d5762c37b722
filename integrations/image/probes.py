"""Probes of a trained encoder: nearest neighbors and linear classifiers on frozen features, and fine-tuning."""

from __future__ import annotations

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import copy

import torch
import torch.nn.functional as F
from lightly.utils.benchmarking import knn_predict
from lightly.utils.scheduler import CosineWarmupScheduler
from torch import Tensor, nn

from counterpoint.views import evaluation_mode

from .. import store
from .augment import Recipe
from .image_set import ImageSet
from .settings import EvaluationSettings


def count_classes(*sets: ImageSet) -> int:
    return max(max(int(data.y.max()) + 1, len(data.classes)) for data in sets)


def device_of(module: nn.Module) -> torch.device:
    return next(module.parameters()).device


def as_floats(x: Tensor) -> Tensor:
    """Pixels in ``[0, 1]``, of ``uint8`` images or of such pixels."""
    return x.float() / 255 if x.dtype == torch.uint8 else x


@torch.no_grad()
def features(encoder: nn.Module, x: Tensor, batch: int = 500) -> Tensor:
    """Compute ``(N, width)`` features of images, ``uint8`` or in ``[0, 1]``, on the encoder's device."""
    device = device_of(encoder)
    with evaluation_mode(encoder):
        parts = store.track(x.split(batch), "features, batches", -(-len(x) // batch))
        return torch.cat([encoder(as_floats(part.to(device))).float() for part in parts])


def knn(z: Tensor, y: Tensor, z_test: Tensor, y_test: Tensor, k: int = 200, temperature: float = 0.1) -> float:
    """Accuracy of ``k`` nearest neighbors by cosine, weighted by ``exp(cos / temperature)``.

    Wu et al. 2018, https://arxiv.org/abs/1805.01978.
    """
    bank, y = F.normalize(z).T, y.to(z.device)
    k = min(k, len(z))
    correct = 0
    for part, truth in zip(z_test.split(1000), y_test.to(z.device).split(1000), strict=True):
        ranked = knn_predict(F.normalize(part), bank, y, int(y.max()) + 1, k, temperature)
        correct += int((ranked[:, 0] == truth).sum())
    return 100 * correct / len(z_test)


def linear_probe(
    z: Tensor, y: Tensor, classes: int, settings: EvaluationSettings | None = None, seed: int = 0
) -> nn.Module:
    """Fit a linear classifier to features; :class:`EvaluationSettings` has the two protocols.

    Both standardize the features; the returned module includes the standardization.
    """
    settings = settings or EvaluationSettings()
    z, y = z.detach().float(), y.to(z.device)
    standardize = _Standardize(z)
    inputs, layer = standardize(z), nn.Linear(z.shape[1], classes).to(z.device)
    if settings.protocol == "lbfgs":
        _fit_lbfgs(layer, inputs, y, settings.penalty)
    else:
        _fit_adam(layer, inputs, y, settings.probe_epochs, seed)
    return nn.Sequential(standardize, layer.requires_grad_(False)).eval()


class _Standardize(nn.Module):
    mean: Tensor
    std: Tensor

    def __init__(self, z: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", z.mean(0))
        self.register_buffer("std", z.std(0, unbiased=False).clamp(min=1e-6))

    def forward(self, z: Tensor) -> Tensor:
        return (z - self.mean) / self.std


def _fit_lbfgs(layer: nn.Linear, z: Tensor, y: Tensor, penalty: float) -> None:
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    solver = torch.optim.LBFGS(
        layer.parameters(), max_iter=300, tolerance_grad=1e-5, history_size=20, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        solver.zero_grad()
        loss = F.cross_entropy(layer(z), y) + penalty / 2 * layer.weight.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        solver.step(closure)


def _fit_adam(layer: nn.Linear, z: Tensor, y: Tensor, epochs: int, seed: int) -> None:
    order = torch.Generator().manual_seed(seed)
    nn.init.normal_(layer.weight, std=0.01, generator=order if z.device.type == "cpu" else None)
    nn.init.zeros_(layer.bias)
    adam = torch.optim.Adam(layer.parameters(), lr=1e-3, weight_decay=1e-6)
    with torch.enable_grad():
        for _ in range(epochs):
            for rows in torch.randperm(len(z), generator=order).to(z.device).split(512):
                adam.zero_grad()
                F.cross_entropy(layer(z[rows]), y[rows]).backward()
                adam.step()


@torch.no_grad()
def accuracies(classifier: nn.Module, z: Tensor, y: Tensor) -> tuple[float, float]:
    """Top-1 and top-5 accuracy in percent."""
    top = classifier(z).topk(min(5, classifier(z[:1]).shape[1]), dim=1).indices
    hits = top == y.to(z.device).unsqueeze(1)
    return 100 * int(hits[:, 0].sum()) / len(y), 100 * int(hits.any(1).sum()) / len(y)


def linear_accuracy(
    encoder: nn.Module, train: ImageSet, test: ImageSet, settings: EvaluationSettings | None = None, seed: int = 0
) -> float:
    """Accuracy of a linear probe on a data set; on another one than the encoder was trained on, this is transfer."""
    probe = linear_probe(features(encoder, train.x), train.y, count_classes(train, test), settings, seed)
    return accuracies(probe, features(encoder, test.x), test.y)[0]


def finetune(
    encoder: nn.Module,
    train: ImageSet,
    test: ImageSet,
    settings: EvaluationSettings | None = None,
    seed: int = 0,
    batch: int = 64,
) -> float:
    """Accuracy of a copy of the encoder and a linear layer, fine-tuned with classes (ArCL, section 6.2)

    SGD with Nesterov momentum .9, a cosine schedule, random crops and flips.
    """
    settings = settings or EvaluationSettings()
    device = device_of(encoder)
    torch.manual_seed(seed)
    width = features(encoder, train.x[:2]).shape[1]
    network = nn.Sequential(copy.deepcopy(encoder), nn.Linear(width, count_classes(train, test)).to(device)).train()
    sgd = torch.optim.SGD(network.parameters(), lr=settings.finetune_lr, momentum=0.9, nesterov=True)
    schedule = CosineWarmupScheduler(sgd, 0, settings.finetune_steps)
    recipe = Recipe(train.size, jitter_prob=0.0, grey=0.0)
    generator = torch.Generator().manual_seed(seed)
    rows = torch.empty(0, dtype=torch.long)
    for _ in store.track(range(settings.finetune_steps), "fine-tuning, steps", settings.finetune_steps):
        if len(rows) < min(batch, len(train)):
            rows = torch.randperm(len(train), generator=generator)
        batch_rows, rows = rows[:batch], rows[batch:]
        x, y = train.x[batch_rows].to(device), train.y[batch_rows].to(device)
        loss = F.cross_entropy(network(recipe(x, generator)), y)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        schedule.step()
    return accuracies(nn.Identity(), features(network, test.x), test.y)[0]
