"""What a trained encoder is worth: linear probe, nearest neighbours, fine-tuning, transfer, attacks, shifted images."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from lightly.utils.benchmarking import knn_predict
from lightly.utils.scheduler import CosineWarmupScheduler
from torch import Tensor, nn

import counterpoint as cp
from counterpoint.hyper import nearest

from .. import store
from .augment import Recipe
from .data import SPLITS, ImageSet, load

PROBES = ("knn", "linear", "robust", "shifted", "transfer", "finetune")
PROTOCOLS = ("lbfgs", "adam")


@dataclass(frozen=True)
class Settings:
    """How an encoder is evaluated.

    Args:
        protocol: of the linear probe. ``lbfgs`` solves the regularised problem; ``adam`` is the papers': the learning
            rate 1e-3 for ``probe_epochs`` epochs (ArCL 100, IntNaCl 1000, on Tiny-ImageNet 200).
        probe_epochs: of ``adam``.
        penalty: weight of ``|w|^2 / 2`` beside the mean loss of ``lbfgs``, >= 0.
        k, temperature: of the nearest neighbours, weighted by ``exp(cos / temperature)``.
        epsilons: largest changes of a pixel in ``[0, 1]`` that attacks make, >= 0. IntNaCl's tables are at .002.
        step, steps, restarts: of the attack PGD; IntNaCl's are 1e-2, 10 and 2.
        attacked: how many test images are attacked at most, at least 1; None for all.
        transfer: the data sets for ``transfer``.
        finetune_steps, finetune_lr: ArCL fine-tunes for 5000 steps of SGD with Nesterov momentum.
        shift_seed: of the shifted images, which are the same for every encoder.
    """

    protocol: str = "lbfgs"
    probe_epochs: int = 100
    penalty: float = 1e-3
    k: int = 200
    temperature: float = 0.1
    epsilons: Sequence[float] = (0.002, 0.008, 0.032)
    step: float = 1e-2
    steps: int = 10
    restarts: int = 2
    attacked: int | None = None
    transfer: Sequence[str] = ()
    finetune_steps: int = 5000
    finetune_lr: float = 0.01
    shift_seed: int = 0

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise ValueError(f"protocol: unknown protocol {self.protocol!r}.{nearest(str(self.protocol), PROTOCOLS)}")
        for name, low in (("probe_epochs", 1), ("k", 1), ("steps", 1), ("restarts", 1), ("finetune_steps", 1)):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < low:
                raise ValueError(f"{name} must be a whole number of at least {low}, got {getattr(self, name)!r}.")
        if not self.penalty >= 0 or not self.temperature > 0 or not self.step > 0 or not self.finetune_lr > 0:
            raise ValueError("Settings: expected penalty >= 0, and temperature, step and finetune_lr > 0.")
        if self.attacked is not None and self.attacked < 1:
            raise ValueError(f"attacked must be at least 1, got {self.attacked!r}.")
        if wrong := [one for one in self.epsilons if not one >= 0]:
            raise ValueError(f"epsilons: an attack changes pixels by at least 0, got {wrong[0]!r}.")


def checked(probes: Iterable[str], train: ImageSet, test: ImageSet, settings: Settings) -> list[str]:
    """The probes, if they are known and the data have classes; without classes none can be computed.

    What is to be transferred to must be there, or is fetched here, before anything is trained.
    """
    found = list(probes)
    for one in found:
        if one not in PROBES:
            raise ValueError(f"probe: unknown probe {one!r}.{nearest(str(one), PROBES)}")
    if "transfer" in found and not settings.transfer:
        raise ValueError("probe transfer: name the data sets to transfer to.")
    for name in settings.transfer if "transfer" in found else ():
        load(name, "test", square(train))
    return found if train.labelled and test.labelled else [one for one in found if one == "transfer"]


def evaluate(
    encoder: nn.Module,
    train: ImageSet,
    test: ImageSet,
    probes: Sequence[str] = ("knn", "linear"),
    settings: Settings | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """Accuracies in percent; classifiers are fitted on ``train`` and tested on ``test``.

    ===========  ====================================================================================================
    probe        numbers
    ===========  ====================================================================================================
    ``knn``      ``knn``
    ``linear``   ``linear``, and with more than five classes ``linear_top5``
    ``robust``   ``fgsm@e`` and ``pgd@e`` of the linear probe at each epsilon ``e``, and ``clean`` on the same images
    ``shifted``  ``aug1`` to ``aug5``: a linear probe trained and tested on images so modified, ArCL's Tables 1 and 2
    ``finetune`` ``finetune``: a linear layer on top, and all weights trained
    ``transfer`` ``transfer:NAME``: a linear probe on another data set; beside ``finetune`` also ``finetune:NAME``
    ===========  ====================================================================================================
    """
    settings = settings or Settings()
    probes = checked(probes, train, test, settings)
    found: dict[str, float] = {}
    classes = _classes(train, test)
    if {"knn", "linear", "robust"}.intersection(probes):
        z, z_test = features(encoder, train.x), features(encoder, test.x)
    if "knn" in probes:
        found["knn"] = knn(z, train.y, z_test, test.y, settings.k, settings.temperature)
    if {"linear", "robust"}.intersection(probes):
        probe = linear_probe(z, train.y, classes, settings, seed)
        top = accuracies(probe, z_test, test.y)
        if "linear" in probes:
            found |= {"linear": top[0]} | ({"linear_top5": top[1]} if classes > 5 else {})
        if "robust" in probes:
            attacked = test.draw(min(settings.attacked or len(test), len(test)))
            network = nn.Sequential(encoder, probe)
            found |= robust(network, attacked.x, attacked.y, settings, seed)
    if "shifted" in probes:
        for name, recipe in shifts(train.size).items():
            pair = [shifted(one, recipe, settings.shift_seed + i) for i, one in enumerate((train, test))]
            found[name] = linear_accuracy(encoder, pair[0], pair[1], settings, seed)
    if "finetune" in probes:
        found["finetune"] = finetune(encoder, train, test, settings, seed)
    for name in settings.transfer if "transfer" in probes else ():
        other = [load(name, split, square(train)) for split in SPLITS]
        found[f"transfer:{name}"] = linear_accuracy(encoder, other[0], other[1], settings, seed)
        if "finetune" in probes:
            found[f"finetune:{name}"] = finetune(encoder, other[0], other[1], settings, seed)
    return found


def square(data: ImageSet) -> int | None:
    """The size that images of another set are brought to; their own, if these are oblong."""
    return data.size[0] if data.size[0] == data.size[1] else None


def _classes(*sets: ImageSet) -> int:
    return max(max(int(one.y.max()) + 1, len(one.classes)) for one in sets)


def _device(module: nn.Module) -> torch.device:
    return next(module.parameters()).device


@torch.no_grad()
def features(encoder: nn.Module, x: Tensor, batch: int = 500) -> Tensor:
    """``(N, width)`` features of images, ``uint8`` or in ``[0, 1]``, on the encoder's device, in evaluation mode."""
    modes = [(module, module.training) for module in encoder.modules()]
    encoder.eval()
    try:
        device = _device(encoder)
        parts = store.track(x.split(batch), "features, batches", -(-len(x) // batch))
        return torch.cat([encoder(_floats(part.to(device))).float() for part in parts])
    finally:
        for module, mode in modes:
            module.training = mode


def _floats(x: Tensor) -> Tensor:
    return x.float() / 255 if x.dtype == torch.uint8 else x


# ---- on frozen features ------------------------------------------------------------------------


def knn(z: Tensor, y: Tensor, z_test: Tensor, y_test: Tensor, k: int = 200, temperature: float = 0.1) -> float:
    """Accuracy of the ``k`` nearest neighbours by cosine, weighted by ``exp(cos / temperature)`` (Wu et al. 2018)."""
    bank, y = F.normalize(z).T, y.to(z.device)
    k = min(k, len(z))
    right = 0
    for part, truth in zip(z_test.split(1000), y_test.to(z.device).split(1000), strict=True):
        said = knn_predict(F.normalize(part), bank, y, int(y.max()) + 1, k, temperature)
        right += int((said[:, 0] == truth).sum())
    return 100 * right / len(z_test)


def linear_probe(z: Tensor, y: Tensor, classes: int, settings: Settings | None = None, seed: int = 0) -> nn.Module:
    """A linear classifier of features; see :class:`Settings` for the two ways it is found.

    Both see standardised features, and the standardisation is part of what is returned.
    """
    settings = settings or Settings()
    z, y = z.detach().float(), y.to(z.device)
    scale = _Standardise(z)
    inputs, layer = scale(z), nn.Linear(z.shape[1], classes).to(z.device)
    if settings.protocol == "lbfgs":
        _minimise(layer, inputs, y, settings.penalty)
    else:
        _adam(layer, inputs, y, settings.probe_epochs, seed)
    return nn.Sequential(scale, layer.requires_grad_(False)).eval()


class _Standardise(nn.Module):
    mean: Tensor
    std: Tensor

    def __init__(self, z: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", z.mean(0))
        self.register_buffer("std", z.std(0, unbiased=False).clamp(min=1e-6))

    def forward(self, z: Tensor) -> Tensor:
        return (z - self.mean) / self.std


def _minimise(layer: nn.Linear, z: Tensor, y: Tensor, penalty: float) -> None:
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    solver = torch.optim.LBFGS(
        layer.parameters(), max_iter=300, tolerance_grad=1e-5, history_size=20, line_search_fn="strong_wolfe"
    )

    def value() -> Tensor:
        solver.zero_grad()
        loss = F.cross_entropy(layer(z), y) + penalty / 2 * layer.weight.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        solver.step(value)


def _adam(layer: nn.Linear, z: Tensor, y: Tensor, epochs: int, seed: int) -> None:
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
    """Percent of inputs whose class is the first, and among the first five."""
    said = classifier(z).topk(min(5, classifier(z[:1]).shape[1]), dim=1).indices
    hits = said == y.to(z.device).unsqueeze(1)
    return 100 * int(hits[:, 0].sum()) / len(y), 100 * int(hits.any(1).sum()) / len(y)


def linear_accuracy(
    encoder: nn.Module, train: ImageSet, test: ImageSet, settings: Settings | None = None, seed: int = 0
) -> float:
    """Accuracy of a linear probe on a data set: transfer, if the encoder was trained on another one."""
    probe = linear_probe(features(encoder, train.x), train.y, _classes(train, test), settings, seed)
    return accuracies(probe, features(encoder, test.x), test.y)[0]


# ---- all weights -------------------------------------------------------------------------------


def finetune(
    encoder: nn.Module,
    train: ImageSet,
    test: ImageSet,
    settings: Settings | None = None,
    seed: int = 0,
    batch: int = 64,
) -> float:
    """Accuracy after training a copy of the encoder and a linear layer with classes (ArCL, section 6.2).

    SGD with Nesterov momentum .9 and a cosine schedule, random crops and flips.
    """
    settings = settings or Settings()
    device = _device(encoder)
    torch.manual_seed(seed)
    width = features(encoder, train.x[:2]).shape[1]
    network = nn.Sequential(copy.deepcopy(encoder), nn.Linear(width, _classes(train, test)).to(device)).train()
    sgd = torch.optim.SGD(network.parameters(), lr=settings.finetune_lr, momentum=0.9, nesterov=True)
    schedule = CosineWarmupScheduler(sgd, 0, settings.finetune_steps)
    recipe = Recipe(train.size, jitter_prob=0.0, grey=0.0)
    generator = torch.Generator().manual_seed(seed)
    rows = torch.empty(0, dtype=torch.long)
    for _ in store.track(range(settings.finetune_steps), "fine-tuned, steps", settings.finetune_steps):
        if len(rows) < min(batch, len(train)):
            rows = torch.randperm(len(train), generator=generator)
        now, rows = rows[:batch], rows[batch:]
        loss = F.cross_entropy(network(recipe(train.x[now].to(device), generator)), train.y[now].to(device))
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        schedule.step()
    return accuracies(nn.Identity(), features(network, test.x), test.y)[0]


# ---- attacks -----------------------------------------------------------------------------------


def robust(
    classifier: nn.Module, x: Tensor, y: Tensor, settings: Settings | None = None, seed: int = 0, batch: int = 250
) -> dict[str, float]:
    """Accuracies under attack, ``fgsm@epsilon`` and ``pgd@epsilon``, and ``clean`` without.

    PGD starts at a random point ``restarts`` times; an image counts as right if it is right each time.

    Args:
        classifier: from images in ``[0, 1]`` to logits.
        x, y: images, ``uint8`` or in ``[0, 1]``, and their classes.
    """
    settings = settings or Settings()
    found = {"clean": attacked_accuracy(classifier, x, y, None, batch)}
    for epsilon in settings.epsilons:
        generator = torch.Generator(_device(classifier)).manual_seed(seed)

        def fgsm(loss: Callable[[Tensor], Tensor], part: Tensor, epsilon: float = epsilon) -> list[Tensor]:
            return [cp.views.fgsm(loss, part, epsilon, (0.0, 1.0))]

        def pgd(
            loss: Callable[[Tensor], Tensor],
            part: Tensor,
            epsilon: float = epsilon,
            generator: torch.Generator = generator,
        ) -> list[Tensor]:
            one = (settings.step, settings.steps, True, (0.0, 1.0), generator)
            return [cp.views.pgd(loss, part, epsilon, *one) for _ in range(settings.restarts)]

        for name, attack in (("fgsm", fgsm), ("pgd", pgd)):
            found[f"{name}@{epsilon:g}"] = attacked_accuracy(classifier, x, y, attack if epsilon else None, batch)
    return found


def attacked_accuracy(
    classifier: nn.Module,
    x: Tensor,
    y: Tensor,
    attack: Callable[[Callable[[Tensor], Tensor], Tensor], list[Tensor]] | None,
    batch: int = 250,
) -> float:
    """Percent of images that are classified rightly whichever of the attack's images takes their place."""
    device = _device(classifier)
    modes = [(module, module.training) for module in classifier.modules()]
    classifier.eval()
    right = 0
    try:
        parts = list(zip(x.split(batch), y.split(batch), strict=True))
        for part, truth in parts if attack is None else store.track(parts, "attacked, batches", len(parts)):
            clean, truth = _floats(part.to(device)), truth.to(device)

            def loss(inputs: Tensor, truth: Tensor = truth) -> Tensor:
                return F.cross_entropy(classifier(inputs), truth, reduction="sum")

            images = [clean] if attack is None else attack(loss, clean)
            with torch.no_grad():
                right += int(torch.stack([classifier(one).argmax(1) == truth for one in images]).all(0).sum())
    finally:
        for module, mode in modes:
            module.training = mode
    return 100 * right / len(x)


# ---- shifted images ----------------------------------------------------------------------------


def shifts(size: tuple[int, int]) -> dict[str, Recipe]:
    """The five modified sets of ArCL's Table 1, made with one transformation of SimCLR each, and with three.

    The marks of that table are not in the text of the paper that this was written from. This reading takes its rows in
    order - grey, crop, flip, jitter - for Aug 1 to 4, and all but the crop for Aug 5. It agrees with the paper's
    numbers: Aug 2 alone costs several points, Aug 3 alone is better than the original images, Aug 5 is below 1 and 4.
    """
    nothing = Recipe(size, min_scale=1.0, flip=0.0, jitter_prob=0.0, grey=0.0)
    full = Recipe(size)
    return {
        "aug1": replace(nothing, grey=full.grey),
        "aug2": replace(nothing, min_scale=full.min_scale),
        "aug3": replace(nothing, flip=full.flip),
        "aug4": replace(nothing, jitter_prob=full.jitter_prob),
        "aug5": replace(nothing, grey=full.grey, flip=full.flip, jitter_prob=full.jitter_prob),
    }


def shifted(data: ImageSet, recipe: Recipe, seed: int = 0) -> ImageSet:
    """Each image modified once, for good."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.cat([(255 * recipe(part, generator)).round().byte() for part in data.x.split(1000)])
    return replace(data, x=x)


# ---- statistics --------------------------------------------------------------------------------


def similarity_statistics(z1: Tensor, z2: Tensor) -> dict[str, float]:
    """Mean similarity of positives, and mean and variance of an anchor's negatives (ADNCE's Figure 2)."""
    found = cp.InfoNCE().report(z1, z2)
    return {name: found[name] for name in ("positive_mean", "negative_mean", "negative_variance")}


def distance_histogram(z: Tensor, bins: int = 50) -> Tensor:
    """Share of pairs whose ``(1 - cos) / 2`` lies in each of ``bins`` equal parts of ``[0, 1]`` (LMCL, Figure 2)."""
    found = cp.distances(z)
    return torch.histc(found, bins, 0, 1) / len(found)


def distance_by_class(z: Tensor, y: Tensor, bins: int = 50) -> dict[str, Any]:
    """The same, apart for pairs of one class and of two."""
    found = cp.distances(z)
    above = torch.ones(len(z), len(z), dtype=torch.bool, device=z.device).triu(1)
    same = (y.unsqueeze(0) == y.unsqueeze(1)).to(z.device)[above]
    return {
        name: torch.histc(found[rows], bins, 0, 1) / max(1, int(rows.sum()))
        for name, rows in (("same", same), ("other", ~same))
    }
