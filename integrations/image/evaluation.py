"""Evaluate a trained encoder: probes of its features, attacks and shifted images."""

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from lightly.utils.benchmarking import knn_predict
from torch import Tensor, nn
from torchvision.transforms.functional import convert_image_dtype

import counterpoint as cp
from counterpoint.views import evaluation_mode

from .. import store
from ..domain import check_choice
from .augment import Recipe
from .image_set import ImageSet
from .settings import PROBES, EvaluationSettings

DEFAULTS = EvaluationSettings()
ATTACK_BATCH = 250


def check_probes(probes: Iterable[str], train: ImageSet, test: ImageSet) -> list[str]:
    """Check the names of probes, and return those that the data allow: none without classes."""
    probes = [probes] if isinstance(probes, str) else list(probes)
    for probe in probes:
        check_choice("probe", probe, PROBES)
    if train.labelled and len(train.y.unique()) < 2:
        message = f"{train.name}: all images have the same class, so that accuracies say nothing about an encoder"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    return probes if train.labelled and test.labelled else []


def evaluate(
    encoder: nn.Module,
    train: ImageSet | tuple[Tensor, Tensor],
    test: ImageSet | tuple[Tensor, Tensor],
    probes: Sequence[str] = ("knn", "linear"),
    settings: EvaluationSettings = DEFAULTS,
    seed: int = 0,
) -> dict[str, float]:
    """Compute accuracies in percent; classifiers are fitted on ``train`` and tested on ``test``.

    Each is an image set, or a pair of images ``(N, 3, height, width)`` of ``uint8`` and their classes ``(N,)``. The
    encoder gets numbers from 0 to 1: one that was trained on normalized images must normalize them itself, as in
    ``nn.Sequential(torchvision.transforms.Normalize(mean, std), encoder)``.

    ===========  ====================================================================================================
    probe        numbers
    ===========  ====================================================================================================
    ``knn``      ``knn``, of ``settings.k`` neighbors: 200, or all images if there are fewer
    ``linear``   ``linear``, and with more than five classes ``linear_top5``
    ``robust``   ``fgsm@e`` and ``pgd@e`` of the linear probe at each epsilon ``e``, and ``clean`` on the same images
    ``shifted``  ``aug1`` to ``aug5``: linear probes on modified images, see :func:`shifts`
    ===========  ====================================================================================================
    """
    if not isinstance(settings, EvaluationSettings):
        raise TypeError(f"settings: expected EvaluationSettings(k=10), got {type(settings).__name__}.")
    train, test = map(_as_set, (train, test))
    probes = check_probes(probes, train, test)
    results: dict[str, float] = {}
    classes = max(max(int(data.y.max()) + 1, len(data.classes)) for data in (train, test))
    if {"knn", "linear", "robust"}.intersection(probes):
        z, z_test = features(encoder, train.x), features(encoder, test.x)
    if "knn" in probes:
        results["knn"] = knn(z, train.y, z_test, test.y, min(settings.k, len(z)), settings.temperature)
    if {"linear", "robust"}.intersection(probes):
        probe = linear_probe(z, train.y, classes, settings, seed)
        if "linear" in probes:
            results["linear"], top5 = _accuracies(probe(z_test), test.y)
            results |= {"linear_top5": top5} if classes > 5 else {}
        if "robust" in probes:
            attacked = test.draw(min(settings.attacked or len(test), len(test)))
            results |= robust(nn.Sequential(encoder, probe), attacked.x, attacked.y, settings, seed)
    if "shifted" in probes:
        for name, recipe in shifts(train.size).items():
            first, second = (shifted(data, recipe, settings.shift_seed + i) for i, data in enumerate((train, test)))
            z, z_test = features(encoder, first.x), features(encoder, second.x)
            results[name] = _accuracies(linear_probe(z, first.y, classes, settings, seed)(z_test), second.y)[0]
    return results


def _as_set(data: Any) -> ImageSet:
    if isinstance(data, ImageSet):
        return data
    if not (isinstance(data, (tuple, list)) and len(data) == 2):
        raise TypeError(f"expected an ImageSet, or a pair of images and classes, got {type(data).__name__}.")
    return ImageSet("images", *data)


def _accuracies(scores: Tensor, y: Tensor) -> tuple[float, float]:
    """Top-1 and top-5 accuracy in percent."""
    hits = scores.topk(min(5, scores.shape[1]), dim=1).indices == y.to(scores.device).unsqueeze(1)
    return 100 * int(hits[:, 0].sum()) / len(y), 100 * int(hits.any(1).sum()) / len(y)


@torch.no_grad()
def features(encoder: nn.Module, x: Tensor, batch: int = 500) -> Tensor:
    """Compute ``(N, width)`` features of images, ``uint8`` or in ``[0, 1]``, on the encoder's device, if it has one."""
    if not isinstance(encoder, nn.Module):
        load = "Load it: image.restore(folder).encoder for a run, or your module by load_state_dict(torch.load(file))."
        fix = "Pass a module whose forward calls it." if callable(encoder) else load
        raise TypeError(f"encoder: expected a torch.nn.Module, got {type(encoder).__name__}. {fix}")
    device = next(chain(encoder.parameters(), encoder.buffers(), [x])).device
    low, high = map(float, x.aminmax()) if x.is_floating_point() else (0.0, 1.0)
    if not (low >= 0 and high <= 1):
        raise ValueError(f"images: expected uint8, or numbers from 0 to 1, got numbers from {low:g} to {high:g}.")
    with evaluation_mode(encoder):
        parts = store.track(x.split(batch), "features, batches")
        found = [encoder(convert_image_dtype(part.to(device))) for part in parts]
    if not isinstance(found[0], Tensor) or found[0].dim() != 2:
        got = tuple(found[0].shape) if isinstance(found[0], Tensor) else type(found[0]).__name__
        raise TypeError(f"encoder: expected features (N, width) of N images, got {got}; wrap it in a module that does.")
    return _finite(torch.cat(found).float())


def _finite(z: Tensor) -> Tensor:
    if bad := int((~z.isfinite()).any(1).sum()):  # nearest neighbors would be chance, without a word
        raise ValueError(f"features: those of {bad} of {len(z)} images are NaN or infinite.")
    return z


def knn(z: Tensor, y: Tensor, z_test: Tensor, y_test: Tensor, k: int | None = None, temperature: float = 0.1) -> float:
    """Accuracy of ``k`` nearest neighbors by cosine (200, or all), weighted by ``exp(cos / temperature)``.

    Wu et al. 2018, https://arxiv.org/abs/1805.01978.
    """
    k = min(DEFAULTS.k, len(z)) if k is None else k
    if not 1 <= k <= len(z):
        raise ValueError(f"k: expected from 1 to {len(z)}, the number of samples, got {k}.")
    bank, y = F.normalize(_finite(z)).T, y.to(z.device)
    correct = 0
    for part, truth in zip(_finite(z_test).split(1000), y_test.to(z.device).split(1000), strict=True):
        ranked = knn_predict(F.normalize(part), bank, y, int(y.max()) + 1, k, temperature)
        correct += int((ranked[:, 0] == truth).sum())
    return 100 * correct / len(z_test)


class _Standardize(nn.Module):
    mean: Tensor
    std: Tensor

    def __init__(self, z: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", z.mean(0))
        self.register_buffer("std", z.std(0, unbiased=False).clamp(min=1e-6))

    def forward(self, z: Tensor) -> Tensor:
        return (z - self.mean) / self.std


@torch.enable_grad()
def linear_probe(
    z: Tensor, y: Tensor, classes: int, settings: EvaluationSettings = DEFAULTS, seed: int = 0
) -> nn.Module:
    """Fit a linear classifier to features; :class:`EvaluationSettings` has the two protocols.

    Both standardize the features; the returned module includes the standardization.
    """
    z, y = _finite(z.detach().float()), y.to(z.device)
    standardize = _Standardize(z)
    inputs, layer = standardize(z), nn.Linear(z.shape[1], classes).to(z.device)
    nn.init.zeros_(layer.bias)
    if settings.protocol == "lbfgs":
        nn.init.zeros_(layer.weight)
        solver = torch.optim.LBFGS(
            layer.parameters(), max_iter=300, tolerance_grad=1e-5, history_size=20, line_search_fn="strong_wolfe"
        )

        def closure() -> Tensor:
            solver.zero_grad()
            loss = F.cross_entropy(layer(inputs), y) + settings.penalty / 2 * layer.weight.square().sum()
            loss.backward()
            return loss

        solver.step(closure)
    else:
        order = torch.Generator().manual_seed(seed)
        nn.init.normal_(layer.weight, std=0.01, generator=order if z.device.type == "cpu" else None)
        adam = torch.optim.Adam(layer.parameters(), lr=1e-3, weight_decay=1e-6)
        for _ in range(settings.probe_epochs):
            for rows in torch.randperm(len(z), generator=order).to(z.device).split(512):
                adam.zero_grad()
                F.cross_entropy(layer(inputs[rows]), y[rows]).backward()
                adam.step()
    return nn.Sequential(standardize, layer.requires_grad_(False)).eval()


Attack = Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]  # from a loss and images to perturbed images


def robust(
    classifier: nn.Module, x: Tensor, y: Tensor, settings: EvaluationSettings = DEFAULTS, seed: int = 0
) -> dict[str, float]:
    """Accuracies under attack, ``fgsm@epsilon`` and ``pgd@epsilon``, and ``clean`` without an attack.

    FGSM: https://arxiv.org/abs/1412.6572, PGD: https://arxiv.org/abs/1706.06083. PGD starts at ``restarts`` random
    points; an image counts as correct if it is classified correctly from each of them. The classifier maps images in
    ``[0, 1]`` to logits; ``x`` is such images, or ``uint8``.
    """
    first = convert_image_dtype(x[:2].to(next(classifier.parameters()).device)).requires_grad_()
    with torch.enable_grad(), evaluation_mode(classifier):
        scores = classifier(first).sum()
    if not scores.requires_grad or torch.autograd.grad(scores, first, allow_unused=True)[0] is None:
        raise ValueError("robust: attacks need the gradient of the pixels, which the encoder cuts: is it in no_grad()?")
    accuracies = {"clean": _attacked(classifier, x, y, [lambda loss, images: images], "clean")}
    for i, epsilon in enumerate(settings.epsilons, 1):
        if epsilon == 0:
            accuracies |= {f"{name}@0": accuracies["clean"] for name in ("fgsm", "pgd")}
            continue
        box: dict[str, Any] = {"epsilon": epsilon, "clip": (0.0, 1.0)}
        generator = torch.Generator(next(classifier.parameters()).device).manual_seed(seed)
        pgd = partial(cp.views.pgd, **box, step=settings.step, steps=settings.steps, generator=generator)
        for name, attacks in {"fgsm": [partial(cp.views.fgsm, **box)], "pgd": [pgd] * settings.restarts}.items():
            title = f"{name}@{epsilon:g}, epsilon {i} of {len(settings.epsilons)}"
            accuracies[f"{name}@{epsilon:g}"] = _attacked(classifier, x, y, attacks, title)
    return accuracies


def _attacked(classifier: nn.Module, x: Tensor, y: Tensor, attacks: Sequence[Attack], title: str) -> float:
    """Percent of images that are classified correctly under each of the attacks."""
    device = next(classifier.parameters()).device
    correct = 0
    with evaluation_mode(classifier):
        parts = list(zip(x.split(ATTACK_BATCH), y.split(ATTACK_BATCH), strict=True))
        for part, truth in store.track(parts, f"{title}, {len(x)} images in batches"):
            clean, truth = convert_image_dtype(part.to(device)), truth.to(device)

            def loss(images: Tensor, truth: Tensor = truth) -> Tensor:
                return F.cross_entropy(classifier(images), truth, reduction="sum")

            attacked = [attack(loss, clean) for attack in attacks]
            with torch.no_grad():
                correct += int(torch.stack([classifier(images).argmax(1) == truth for images in attacked]).all(0).sum())
    return 100 * correct / len(x)


def shifts(size: tuple[int, int]) -> dict[str, Recipe]:
    """The transformations of the five modified sets in ArCL's Table 1 (https://arxiv.org/abs/2303.01092).

    The table's check marks did not survive in the text that we used. We read its rows in order - gray, crop, flip,
    jitter - as Aug 1 to 4, and all but the crop as Aug 5. The paper's numbers agree: Aug 2 alone costs several points,
    Aug 3 alone exceeds the original images, Aug 5 is below Aug 1 and 4.
    """
    nothing = Recipe(size, min_scale=1.0, flip=0.0, jitter_prob=0.0, grey=0.0)
    full = Recipe(size)
    return {
        "aug1": replace(nothing, grey=full.grey),
        "aug2": replace(nothing, min_scale=full.min_scale),
        "aug3": replace(nothing, flip=full.flip),
        "aug4": replace(nothing, jitter_prob=full.jitter_prob),
        "aug5": replace(full, min_scale=1.0),
    }


def shifted(data: ImageSet, recipe: Recipe, seed: int = 0) -> ImageSet:
    """Transform each image once, with a fixed seed."""
    generator = torch.Generator().manual_seed(seed)
    return replace(data, x=torch.cat([(255 * recipe(part, generator)).round().byte() for part in data.x.split(1000)]))
