"""Accuracy under attack: FGSM and PGD on pixels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import counterpoint as cp
from counterpoint.views import evaluation_mode

from .. import store
from .probes import as_floats, device_of
from .settings import EvaluationSettings

Attack = Callable[[Callable[[Tensor], Tensor], Tensor], list[Tensor]]
"""From a loss and images to one or several perturbations of the images."""


def robust(
    classifier: nn.Module,
    x: Tensor,
    y: Tensor,
    settings: EvaluationSettings | None = None,
    seed: int = 0,
    batch: int = 250,
) -> dict[str, float]:
    """Accuracies under attack, ``fgsm@epsilon`` and ``pgd@epsilon``, and ``clean`` without an attack.

    FGSM: https://arxiv.org/abs/1412.6572, PGD: https://arxiv.org/abs/1706.06083. PGD starts at ``restarts`` random
    points; an image counts as correct if it is classified correctly from each of them. The classifier maps images in
    ``[0, 1]`` to logits; ``x`` is such images, or ``uint8``.
    """
    settings = settings or EvaluationSettings()
    accuracies = {"clean": attacked_accuracy(classifier, x, y, None, batch)}
    for epsilon in settings.epsilons:
        generator = torch.Generator(device_of(classifier)).manual_seed(seed)
        options = (epsilon, settings.step, settings.steps, True, (0.0, 1.0), generator)
        fgsm = partial(_perturbed, cp.views.fgsm, 1, (epsilon, (0.0, 1.0)))
        for name, attack in (("fgsm", fgsm), ("pgd", partial(_perturbed, cp.views.pgd, settings.restarts, options))):
            accuracies[f"{name}@{epsilon:g}"] = attacked_accuracy(classifier, x, y, attack if epsilon else None, batch)
    return accuracies


def _perturbed(
    attack: Callable[..., Tensor], times: int, options: Sequence[Any], loss: Callable[[Tensor], Tensor], x: Tensor
) -> list[Tensor]:
    return [attack(loss, x, *options) for _ in range(times)]


def attacked_accuracy(classifier: nn.Module, x: Tensor, y: Tensor, attack: Attack | None, batch: int = 250) -> float:
    """Percent of images that are classified correctly under each of the attack's perturbations."""
    device = device_of(classifier)
    correct = 0
    with evaluation_mode(classifier):
        parts = list(zip(x.split(batch), y.split(batch), strict=True))
        for part, truth in parts if attack is None else store.track(parts, "attacks, batches", len(parts)):
            clean, truth = as_floats(part.to(device)), truth.to(device)

            def loss(inputs: Tensor, truth: Tensor = truth) -> Tensor:
                return F.cross_entropy(classifier(inputs), truth, reduction="sum")

            images = [clean] if attack is None else attack(loss, clean)
            with torch.no_grad():
                correct += int(torch.stack([classifier(image).argmax(1) == truth for image in images]).all(0).sum())
    return 100 * correct / len(x)
