"""Evaluate a trained encoder: probes, transfer, attacks, shifted images, and statistics of its features."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import nn

from ..domain import check_choice, majority
from .attacks import robust
from .augment import Recipe
from .image_set import ImageSet
from .probes import accuracies, count_classes, features, finetune, knn, linear_accuracy, linear_probe
from .settings import PROBES, EvaluationSettings
from .sources import SPLITS, load


def check_probes(probes: Iterable[str], train: ImageSet, test: ImageSet, settings: EvaluationSettings) -> list[str]:
    """Check the names of probes, and return those that the data allow: without classes only ``transfer``.

    Loads the data sets to transfer to, so that a missing one is an error before training.
    """
    probes = list(probes)
    for probe in probes:
        check_choice("probe", probe, PROBES)
    if "transfer" in probes and not settings.transfer:
        raise ValueError("probe transfer: name the data sets to transfer to.")
    for name in settings.transfer if "transfer" in probes else ():
        load(name, "test", square_size(train))
    if train.labelled and len(train.y.unique()) < 2:
        message = f"{train.name}: all images have the same class, so that accuracies say nothing about an encoder"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    return probes if train.labelled and test.labelled else [probe for probe in probes if probe == "transfer"]


def evaluate(
    encoder: nn.Module,
    train: ImageSet,
    test: ImageSet,
    probes: Sequence[str] = ("knn", "linear"),
    settings: EvaluationSettings | None = None,
    seed: int = 0,
    shares: dict[str, float] | None = None,
) -> dict[str, float]:
    """Compute accuracies in percent; classifiers are fitted on ``train`` and tested on ``test``.

    ``shares`` receives, for each accuracy on images as they are, the share of the largest class among them.

    ===========  ====================================================================================================
    probe        numbers
    ===========  ====================================================================================================
    ``knn``      ``knn``
    ``linear``   ``linear``, and with more than five classes ``linear_top5``
    ``robust``   ``fgsm@e`` and ``pgd@e`` of the linear probe at each epsilon ``e``, and ``clean`` on the same images
    ``shifted``  ``aug1`` to ``aug5``: linear probes on modified images, see :func:`shifts`
    ``finetune`` ``finetune``: all weights and a linear layer, trained with classes
    ``transfer`` ``transfer:NAME``: a linear probe on another data set; with ``finetune`` also ``finetune:NAME``
    ===========  ====================================================================================================
    """
    settings = settings or EvaluationSettings()
    probes = check_probes(probes, train, test, settings)
    results: dict[str, float] = {}
    classes = count_classes(train, test)
    if {"knn", "linear", "robust"}.intersection(probes):
        z, z_test = features(encoder, train.x), features(encoder, test.x)
    if "knn" in probes:
        results["knn"] = knn(z, train.y, z_test, test.y, settings.k, settings.temperature)
    if {"linear", "robust"}.intersection(probes):
        probe = linear_probe(z, train.y, classes, settings, seed)
        top = accuracies(probe, z_test, test.y)
        if "linear" in probes:
            results |= {"linear": top[0]} | ({"linear_top5": top[1]} if classes > 5 else {})
        if "robust" in probes:
            attacked = test.draw(min(settings.attacked or len(test), len(test)))
            network = nn.Sequential(encoder, probe)
            results |= robust(network, attacked.x, attacked.y, settings, seed)
    if "shifted" in probes:
        for name, recipe in shifts(train.size).items():
            pair = [shifted(data, recipe, settings.shift_seed + i) for i, data in enumerate((train, test))]
            results[name] = linear_accuracy(encoder, pair[0], pair[1], settings, seed)
    if "finetune" in probes:
        results["finetune"] = finetune(encoder, train, test, settings, seed)
    if shares is not None and results:
        accuracies_of = [name for name in results if name in ("knn", "linear", "finetune") or name.startswith("aug")]
        shares |= dict.fromkeys(accuracies_of, majority(test.y.tolist()))
    for name in settings.transfer if "transfer" in probes else ():
        other = [load(name, split, square_size(train)) for split in SPLITS]
        results[f"transfer:{name}"] = linear_accuracy(encoder, other[0], other[1], settings, seed)
        if "finetune" in probes:
            results[f"finetune:{name}"] = finetune(encoder, other[0], other[1], settings, seed)
        if shares is not None:
            shares |= dict.fromkeys((f"transfer:{name}", f"finetune:{name}"), majority(other[1].y.tolist()))
    return results


def square_size(data: ImageSet) -> int | None:
    """The size to load another set with; None, its own size, if these images are not square."""
    return data.size[0] if data.size[0] == data.size[1] else None


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
        "aug5": replace(nothing, grey=full.grey, flip=full.flip, jitter_prob=full.jitter_prob),
    }


def shifted(data: ImageSet, recipe: Recipe, seed: int = 0) -> ImageSet:
    """Transform each image once, with a fixed seed."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.cat([(255 * recipe(part, generator)).round().byte() for part in data.x.split(1000)])
    return replace(data, x=x)
