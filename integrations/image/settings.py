"""The settings of an image run and of its evaluation, and the domain; imports neither torch nor a framework."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from counterpoint.names import nearest

from ..domain import Domain, check, check_choice, setting

# tests compare these with the names that the implementations know
METHODS = ("simclr", "moco", "cmc", "swav")
AUGMENTATIONS = ("cifar", "cifar-blur", "simclr", "moco", "digits", "none")
OPTIMIZERS = ("adam", "sgd", "lars")
PATHS = ("batched", "per-image")
PARTS = ("tune", "report")
KEEP = ("last", "best")
PROBES = ("knn", "linear", "robust", "shifted", "transfer", "finetune")
PROTOCOLS = ("lbfgs", "adam")
DOWNLOADS = (
    "cifar10", "cifar100", "mnist", "stl10", "stl10-unlabelled", "aircraft", "caltech101", "cars", "dtd", "flowers",
    "food", "pets",
)  # fmt: skip
DATASETS = (*DOWNLOADS, "digits", "mnist-cifar", "tiny-imagenet", "imagenet")
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
TRAINING_IMAGES = {
    "cifar10": 50_000, "cifar100": 50_000, "mnist": 60_000, "stl10": 5_000, "stl10-unlabelled": 105_000,
    "aircraft": 6_667, "cars": 8_144, "dtd": 1_880, "flowers": 1_020, "food": 75_750, "pets": 3_680, "digits": 1_287,
    "mnist-cifar": 10_000, "tiny-imagenet": 100_000,
}  # fmt: skip


def check_dataset(name: str) -> None:
    """Raise ``ValueError`` unless this is the name of a data set or a folder."""
    if name not in DATASETS and not Path(name).is_dir():
        raise ValueError(f"data: {name!r} is neither a data set nor a folder.{nearest(name, DATASETS)}")


def backbones() -> list[str]:
    """The classifiers of the installed torchvision, read from its files, since importing it takes seconds."""
    package = find_spec("torchvision")
    files = Path((package.submodule_search_locations or [""])[0], "models").glob("*.py") if package else ()
    pattern = re.compile(r"^@register_model\(.*?^def (\w+)", re.M | re.S)
    return sorted(name for file in files for name in pattern.findall(file.read_text(encoding="utf-8")))


def check_backbone(name: str) -> None:
    """Raise ``ValueError`` unless this is ``conv4``, a classifier of torchvision, or a name for timm to know."""
    if name == "conv4" or name.startswith("timm:"):
        return
    if (known := backbones()) and name not in known:
        close = ("conv4", *get_close_matches(str(name), known, 5, 0))
        raise ValueError(f"backbone: unknown {name!r}.{nearest(str(name), close)}")


def check_fits(name: str, batch: int, devices: int, count: int) -> None:
    """Raise ``ValueError`` unless a step of all devices fits into this many training images."""
    if batch * devices > count:
        raise ValueError(
            f"batch: {batch * devices} images do not fit into {name} with {count} to train on; "
            f"give --batch {count // devices} or less."
        )


def check_batch(name: str, settings: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for a batch larger than the data, as far as that shows without reading an image.

    Args:
        name: a data set or a folder.
        settings: of the run, all of them.
    """
    enough = 4 * settings["batch"] * settings["devices"]  # images of a folder to look at
    if (count := TRAINING_IMAGES.get(name, enough)) == enough and Path(name).is_dir():
        splits = (Path(name) / "train").is_dir()
        files = (Path(name) / "train" if splits else Path(name)).rglob("*")
        count = sum(1 for _ in islice((file for file in files if file.suffix.lower() in EXTENSIONS), enough))
        if 1 < count < enough and not splits:
            count -= max(1, count // 5)  # for testing
    if 1 < count < enough:  # a folder without images is told by sources
        count -= max(1, round(settings["validation"] * count))
        check_fits(Path(name).name, settings["batch"], settings["devices"], min(count, settings["subset"] or count))


def lines(path: str) -> list[str]:
    """The non-empty lines of a text file, for a flag that names one."""
    try:
        return [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


@dataclass(frozen=True)
class Settings:
    """The settings of a run; by default SimCLR as in the code of DCL, HCL and ADNCE."""

    method: str = setting("simclr", "how encoders are trained", choices=METHODS)
    backbone: str = setting(
        "resnet18", "conv4, or any of torchvision.models, or timm:NAME; conv4 for digits", metavar="NAME"
    )
    channels: int = setting(32, "channels of conv4's first layer", low=1)
    size: int | None = setting(None, "pixels of an image (the data set's own)", type=int, low=1)
    classes: Sequence[str] | None = setting(
        None, "names of the classes to keep, a line each (ImageNet-100)", type=lines, metavar="FILE"
    )
    augment: str | None = setting(None, "distribution of views (cifar; digits for digits)", choices=AUGMENTATIONS)
    path: str = setting("batched", "augment whole batches, or single images with lightly's transforms", choices=PATHS)
    views: int | None = setting(None, "views of each image (what the objective asks for, or 2)", type=int, low=2)
    epochs: int = setting(100, low=0, flag=False)
    batch: int = setting(256, "images per step", low=2)
    lr: float = setting(
        1e-3,
        "learning rate; adam's by default, where MoCo has 0.03 for sgd and SimCLR 0.3 * batch / 256 for lars",
        above=0,
    )
    optimizer: str = setting("adam", "optimizer of the pre-training", choices=OPTIMIZERS)
    weight_decay: float = setting(1e-6, "weight decay of the pre-training", low=0)
    cosine: bool = setting(False, "decay the learning rate with a cosine")
    warmup: int = setting(0, "epochs in which the learning rate rises", low=0)
    width: int = setting(128, "width of the projection", low=1)
    queue: int = setting(4096, "keys in MoCo's queue", low=1)
    momentum: float = setting(0.999, "momentum of MoCo's key encoder", low=0, high=1)
    epsilon: float = setting(0.03, "size of the attacks of adversarial views", above=0)
    mixed: int = setting(4, "mixed views for MixNCA and IntNaCl, M - 1", low=1)
    false_negatives: float = setting(
        1.0, "share of pairs of one class that remain negatives; below 1 uses the classes", low=0, high=1
    )
    subset: int | None = setting(None, "train on this many images, balanced (all)", type=int, low=1)
    validation: float = setting(
        0.1, "share of the training images held out for --watch and --part tune", above=0, below=1
    )
    watch: int = setting(0, "validation kNN after every so many epochs, 0 for never", low=0)
    keep: str = setting(
        "last", "encoder to evaluate: the last, or the best by validation kNN, see --watch", choices=KEEP
    )
    part: str = setting("report", "images to report on: test images, or validation images to tune on", choices=PARTS)
    probe: Sequence[str] = setting(["knn", "linear"], flag=False)
    evaluation: Mapping[str, Any] = setting({}, flag=False)
    precision: str = setting("32-true", "Lightning's, such as bf16-mixed", metavar="P")
    devices: int = setting(1, "number of devices", low=1)
    workers: int = setting(0, "processes that load, for --path per-image", low=0)
    device: str = setting("cpu", flag=False)


@dataclass(frozen=True)
class EvaluationSettings:
    """How an encoder is evaluated.

    The linear probe's protocol ``lbfgs`` solves the regularized problem; ``adam`` is the papers': a rate of 1e-3 for
    ``probe_epochs`` epochs (ArCL 100, IntNaCl 1000, on Tiny-ImageNet 200). The attack PGD has IntNaCl's settings; its
    tables are at an epsilon of .002. Fine-tuning is ArCL's.
    """

    protocol: str = setting("lbfgs", "protocol of the linear probe: lbfgs, or the papers' adam", choices=PROTOCOLS)
    probe_epochs: int = setting(100, "epochs of --protocol adam", low=1)
    penalty: float = setting(1e-3, "weight of |w|^2 / 2 beside the mean loss of lbfgs", low=0, flag=False)
    k: int = setting(200, "nearest neighbors", low=1, flag=False)
    temperature: float = setting(0.1, "of the neighbors' weights exp(cos / temperature)", above=0, flag=False)
    epsilons: Sequence[float] = setting((0.002, 0.008, 0.032), "largest changes of a pixel under attack", flag=False)
    step: float = setting(1e-2, "length of a step of PGD", above=0, flag=False)
    steps: int = setting(10, "steps of PGD", low=1, flag=False)
    restarts: int = setting(2, "random restarts of PGD", low=1)
    attacked: int | None = setting(None, "attack this many test images (all)", type=int, low=1)
    transfer: Sequence[str] = setting((), "data sets to transfer to", flag=False)
    finetune_steps: int = setting(5000, "steps of --probe finetune", low=1)
    finetune_lr: float = setting(0.01, "learning rate of SGD with Nesterov momentum", above=0, flag=False)
    shift_seed: int = setting(0, "of the shifted images, which are the same for every encoder", flag=False)

    def __post_init__(self) -> None:
        check_choice("protocol", self.protocol, PROTOCOLS)
        check(EvaluationSettings, vars(self))
        if negative := [epsilon for epsilon in self.epsilons if not epsilon >= 0]:
            raise ValueError(f"epsilons: an attack changes pixels by at least 0, got {negative[0]!r}.")


DOMAIN = Domain(
    "image",
    Settings,
    dataset="data",
    default_dataset="digits",
    folder="root",
    held_out={"part": "tune", "probe": ["knn"]},
    grids={  # ADNCE, Table 6
        "temperature": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6),
        "mu": (0.5, 0.6, 0.7, 0.8, 0.9),
        "sigma": (0.5, 1.0),
    },
)
