"""Images: SimCLR, MoCo and CMC with any objective, on lightly's and Lightning's own parts, and what their encoders are
worth.

In a lightly code base the parts can be had one by one::

    from .. import image

    data = image.load("cifar10")                                    # or a folder of images
    module = image.Pretraining(image.build("simclr", "adnce:t=0.4,mu=0.7,sigma=0.5"), image.recipe("cifar"))
    image.pretrain(module, data, epochs=100, device="cuda")
    print(image.evaluate(module.method.encoder, data, image.load("cifar10", "test"), ["knn", "linear", "robust"]))
"""

try:
    import lightly.loss  # noqa: F401
    import lightning  # noqa: F401
    import sklearn  # noqa: F401
    import torchvision  # noqa: F401
except ImportError as error:
    raise ImportError(
        'images need lightly, Lightning, torchvision and scikit-learn: pip install "counterpoint[image]"'
    ) from error

from .augment import RECIPES, Recipe, recipe
from .data import ImageSet, load, mnist_cifar
from .evaluation import (
    PROBES,
    Settings,
    attacked_accuracy,
    distance_by_class,
    distance_histogram,
    evaluate,
    features,
    finetune,
    knn,
    linear_accuracy,
    linear_probe,
    robust,
    shifted,
    shifts,
    similarity_statistics,
)
from .model import CMC, METHODS, Encoder, MoCo, SimCLR, SwAV, build, to_lab
from .presets import PRESETS, preset
from .training import Pretraining, loader, pretrain, restore, train

__all__ = [
    "CMC",
    "METHODS",
    "PRESETS",
    "PROBES",
    "RECIPES",
    "Encoder",
    "ImageSet",
    "MoCo",
    "Pretraining",
    "Recipe",
    "Settings",
    "SimCLR",
    "SwAV",
    "attacked_accuracy",
    "build",
    "distance_by_class",
    "distance_histogram",
    "evaluate",
    "features",
    "finetune",
    "knn",
    "linear_accuracy",
    "linear_probe",
    "load",
    "loader",
    "mnist_cifar",
    "preset",
    "pretrain",
    "recipe",
    "restore",
    "robust",
    "shifted",
    "shifts",
    "similarity_statistics",
    "to_lab",
    "train",
]
