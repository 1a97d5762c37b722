"""Accuracy under attack: FGSM and PGD on pixels."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import counterpoint as cp

from .. import store
from .probes import as_floats, device_of, evaluation_mode
from .settings import EvaluationSettings


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
    points; an image counts as correct if it is classified correctly from each of them.

    Args:
        classifier: from images in ``[0, 1]`` to logits.
        x, y: images, ``uint8`` or in ``[0, 1]``, and their classes.
    """
    settings = settings or EvaluationSettings()
    accuracies = {"clean": attacked_accuracy(classifier, x, y, None, batch)}
    for epsilon in settings.epsilons:
        generator = torch.Generator(device_of(classifier)).manual_seed(seed)

        def fgsm(loss: Callable[[Tensor], Tensor], part: Tensor, epsilon: float = epsilon) -> list[Tensor]:
            return [cp.views.fgsm(loss, part, epsilon, (0.0, 1.0))]

        def pgd(
            loss: Callable[[Tensor], Tensor],
            part: Tensor,
            epsilon: float = epsilon,
            generator: torch.Generator = generator,
        ) -> list[Tensor]:
            options = (settings.step, settings.steps, True, (0.0, 1.0), generator)
            return [cp.views.pgd(loss, part, epsilon, *options) for _ in range(settings.restarts)]

        for name, attack in (("fgsm", fgsm), ("pgd", pgd)):
            accuracies[f"{name}@{epsilon:g}"] = attacked_accuracy(classifier, x, y, attack if epsilon else None, batch)
    return accuracies


def attacked_accuracy(
    classifier: nn.Module,
    x: Tensor,
    y: Tensor,
    attack: Callable[[Callable[[Tensor], Tensor], Tensor], list[Tensor]] | None,
    batch: int = 250,
) -> float:
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
