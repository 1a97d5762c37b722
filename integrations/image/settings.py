"""The settings of an image run and of its evaluation, and the domain; imports neither torch nor a framework."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from counterpoint.names import closest, nearest

from ..domain import Domain, check, defaults, defined, known_settings, setting

# a test compares the augmentations with the recipes that exist
METHODS = ("simclr", "moco")
BACKBONES = ("conv4", "resnet8")  # small ones, beside those of torchvision
AUGMENTATIONS = ("cifar", "cifar-blur", "simclr", "moco", "digits", "none")
PARTS = ("tune", "report")
PROBES = ("knn", "linear", "robust", "shifted")
PROTOCOLS = ("lbfgs", "adam")
_VALIDATION = "share of training images that no run trains on: for --watch and --part tune"


class Source(NamedTuple):
    """A data set that is known by name."""

    size: int = 64  # pixels of its images; of sets with many sizes, the default
    images: int | None = None  # to train on, for an error before anything heavy is imported
    torchvision: str | None = None  # the class that downloads it,
    splits: tuple[Mapping[str, object], Mapping[str, object]] = ({}, {})  # and its arguments to train and to test


_BY_TRAIN = ({"train": True}, {"train": False})
_BY_SPLIT = ({"split": "train"}, {"split": "test"})
_TRAINVAL = ({"split": "trainval"}, {"split": "test"})
# the sets that the papers train on, and the small sets of ArCL's Table 3
DATASETS = {
    "digits": Source(16, 1_287),
    "cifar10": Source(32, 50_000, "CIFAR10", _BY_TRAIN),
    "cifar100": Source(32, 50_000, "CIFAR100", _BY_TRAIN),
    "stl10": Source(96, 5_000, "STL10", _BY_SPLIT),
    "stl10-unlabelled": Source(96, 105_000, "STL10", ({"split": "train+unlabeled"}, {"split": "test"})),
    "mnist": Source(32, 60_000, "MNIST", _BY_TRAIN),
    "aircraft": Source(64, 6_667, "FGVCAircraft", _TRAINVAL),
    "cars": Source(64, 8_144, "StanfordCars", _BY_SPLIT),
    "dtd": Source(64, 1_880, "DTD", _BY_SPLIT),
    "flowers": Source(64, 1_020, "Flowers102", _BY_SPLIT),
    "food": Source(64, 75_750, "Food101", _BY_SPLIT),
    "pets": Source(64, 3_680, "OxfordIIITPet", _TRAINVAL),
}


def check_dataset(name: str) -> None:
    """Raise ``ValueError`` unless this is the name of a data set or a folder."""
    if name not in DATASETS and not Path(name).is_dir():
        folders = [path.name for path in Path().iterdir() if path.is_dir()]
        hint = closest(name, [*folders, *DATASETS]) or nearest(name, DATASETS)
        raise ValueError(f"data: {name!r} is neither a data set nor a folder.{hint}")


def check_backbone(name: str) -> None:
    """Raise ``ValueError`` unless this is one of ours or a classifier of torchvision."""
    known = [name for _, name in defined("torchvision", "models", r"(?ms)^@register_model\(.*?^def (\w+)")]
    if known and name not in (*BACKBONES, *known):
        expected = f"Expected {' or '.join(BACKBONES)}, or a classifier of torchvision.models."
        raise ValueError(f"backbone: unknown {name!r}.{closest(name, known)} {expected}")


def check_fits(name: str, batch: int, count: int) -> None:
    """Raise ``ValueError`` unless a step fits into this many training images."""
    if batch > count:
        data = f"{name} with {count} to train on"
        raise ValueError(f"batch: {batch} images do not fit into {data}; give --batch {count} or less.")


@known_settings
@dataclass(frozen=True)
class Settings:
    """The settings of a run; by default SimCLR as in the code of DCL, HCL and ADNCE.

    Below 1, ``false_negatives`` requires and uses classes (ADNCE's Figure 1, debiased positives' Figure 2): an image
    keeps its class with probability ``sqrt(1 - share)``, and images that keep the same class are not compared. So 0
    and 1 are exact, and values between hold on average.
    """

    # images
    size: int | None = setting(None, "pixels of an image (the data set's own)", type=int, low=1)
    subset: int | None = setting(None, "train on this many images, balanced (all)", type=int, low=1)
    validation: float = setting(0.1, _VALIDATION, above=0, below=1)
    part: str = setting("report", "images to report on: test images, or validation images to tune on", choices=PARTS)
    # views
    augment: str | None = setting(None, "distribution of views (cifar; digits for digits)", choices=AUGMENTATIONS)
    views: int | None = setting(None, "views of each image (what the objective asks for, or 2)", type=int, low=2)
    epsilon: float = setting(0.03, "size of the attacks of adversarial views", above=0)
    mixed: int = setting(4, "mixed views for MixNCA and IntNaCl, M - 1", low=1)
    # method and network
    method: str = setting("simclr", "how encoders are trained", choices=METHODS)
    backbone: str = setting("resnet18", "conv4, resnet8 or one of torchvision.models; digits: conv4", metavar="NAME")
    channels: int = setting(32, "channels of the first layer of conv4 and resnet8", low=1)
    width: int = setting(128, "width of the projection", low=1)
    queue: int = setting(4096, "keys in MoCo's queue", low=1)
    momentum: float = setting(0.999, "momentum of MoCo's key encoder", low=0, high=1)
    false_negatives: float = setting(1.0, "share of pairs of one class that stay negatives", low=0, high=1)
    # optimization
    epochs: int = setting(100, low=0, flag=False)
    batch: int = setting(256, "images per step", low=2)
    lr: float = setting(1e-3, "learning rate; MoCo has 0.03 for sgd, SimCLR 0.3 * batch / 256 for lars", above=0)
    optimizer: str = setting("adam", "optimizer of the pre-training", choices=("adam", "sgd", "lars"))
    weight_decay: float = setting(1e-6, "weight decay of the pre-training", low=0)
    cosine: bool = setting(False, "decay the learning rate with a cosine")
    warmup: int = setting(0, "epochs in which the learning rate rises", low=0)
    watch: int = setting(0, "validation kNN after every so many epochs, 0 for never", low=0)
    # machine
    device: str = setting("cpu", flag=False)
    precision: str = setting("32-true", "Lightning's, such as bf16-mixed", metavar="P")
    # evaluation
    probe: Sequence[str] = setting(["knn", "linear"], flag=False)
    evaluation: Mapping[str, Any] = setting({}, flag=False)  # what differs from the defaults of EvaluationSettings

    def __post_init__(self) -> None:
        check(Settings, vars(self))
        if self.optimizer == "lars" and self.weight_decay == 0:
            raise ValueError("weight_decay: expected more than 0 with lars, which scales only parameters that decay.")
        if self.false_negatives < 1 and self.method != "simclr":
            raise ValueError("false_negatives: only simclr knows the classes of all keys.")

    @classmethod
    def of(cls, cell: Mapping[str, Any]) -> "Settings":
        """The settings of a cell."""
        return cls(**{name: cell[name] for name in defaults(cls)})


def check_cell(dataset: str, changes: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for settings that cannot be trained, as far as that shows before torch is imported."""
    settings = Settings(**changes)
    check_backbone(settings.backbone)
    if dataset in DATASETS and (count := DATASETS[dataset].images):
        count -= max(1, round(settings.validation * count))
        check_fits(dataset, settings.batch, min(count, settings.subset or count))


@known_settings
@dataclass(frozen=True)
class EvaluationSettings:
    """How an encoder is evaluated.

    The linear probe's protocol ``lbfgs`` solves the regularized problem; ``adam`` is the papers': a rate of 1e-3 for
    ``probe_epochs`` epochs (ArCL 100, IntNaCl 1000). The attack PGD has IntNaCl's settings; its tables are at an
    epsilon of .002.
    """

    # linear probe and nearest neighbors
    protocol: str = setting("lbfgs", "protocol of the linear probe: lbfgs, or the papers' adam", choices=PROTOCOLS)
    probe_epochs: int = setting(100, "epochs of --protocol adam", low=1)
    penalty: float = setting(1e-3, "weight of |w|^2 / 2 beside the mean loss of lbfgs", low=0, flag=False)
    k: int = setting(200, "nearest neighbors", low=1, flag=False)
    temperature: float = setting(0.1, "of the neighbors' weights exp(cos / temperature)", above=0, flag=False)
    # attacks
    epsilons: Sequence[float] = setting((0.002, 0.008, 0.032), "largest changes of a pixel under attack", flag=False)
    step: float = setting(1e-2, "length of a step of PGD", above=0, flag=False)
    steps: int = setting(10, "steps of PGD", low=1, flag=False)
    restarts: int = setting(2, "random restarts of PGD", low=1)
    attacked: int | None = setting(None, "attack this many test images (all)", type=int, low=1)
    # shifted images
    shift_seed: int = setting(0, "of the shifted images, which are the same for every encoder", flag=False)

    def __post_init__(self) -> None:
        check(EvaluationSettings, vars(self))
        given = self.epsilons if isinstance(self.epsilons, Iterable) else [self.epsilons]
        object.__setattr__(self, "epsilons", given := tuple(map(float, given)))
        if wrong := [epsilon for epsilon in given if not 0 <= epsilon <= 1]:
            raise ValueError(f"epsilons: changes of pixels from 0 to 1, such as 8/255, got {wrong[0]!r}.")


DOMAIN = Domain(
    "image",
    Settings,
    dataset="data",
    default_dataset="digits",
    held_out={"part": "tune", "probe": ["knn"]},
    grids={  # ADNCE, Table 6
        "temperature": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6),
        "mu": (0.5, 0.6, 0.7, 0.8, 0.9),
        "sigma": (0.5, 1.0),
    },
)
