"""Images: SimCLR, MoCo and CMC with any objective, on lightly and Lightning, and the evaluation of their encoders.

Use the parts in your own code::

    from counterpoint.integrations import image

    data = image.load("cifar10")                                    # or a folder of images
    module = image.Pretraining(image.build("simclr", "adnce:t=0.4,mu=0.7,sigma=0.5"), image.recipe("cifar"))
    image.pretrain(module, data, epochs=100, device="cuda")
    print(image.evaluate(module.method.encoder, data, image.load("cifar10", "test"), ["knn", "linear", "robust"]))
"""

from typing import TYPE_CHECKING

from counterpoint.names import lazy

if TYPE_CHECKING:
    from .attacks import attacked_accuracy, robust
    from .augment import RECIPES, Recipe, recipe
    from .batches import loader
    from .encoders import Encoder, to_lab
    from .evaluation import evaluate, shifted, shifts
    from .image_set import ImageSet
    from .lightning_module import Pretraining
    from .model import CMC, MoCo, SimCLR, SwAV, build
    from .presets import PRESETS, preset
    from .pretraining import pretrain
    from .probes import features, finetune, knn, linear_accuracy, linear_probe
    from .settings import METHODS, PROBES, EvaluationSettings, Settings
    from .sources import load, mnist_cifar
    from .training import restore, train

__all__ = [
    "CMC", "METHODS", "PRESETS", "PROBES", "RECIPES", "Encoder", "EvaluationSettings", "ImageSet", "MoCo",
    "Pretraining", "Recipe", "Settings", "SimCLR", "SwAV", "attacked_accuracy", "build", "evaluate", "features",
    "finetune", "knn", "linear_accuracy", "linear_probe", "load", "loader", "mnist_cifar", "preset", "pretrain",
    "recipe", "restore", "robust", "shifted", "shifts", "to_lab", "train",
]  # fmt: skip

_MODULES = (
    "settings", "presets", "augment", "image_set", "sources", "data", "encoders", "model", "batches", "probes",
    "attacks", "evaluation", "lightning_module", "pretraining", "training",
)  # fmt: skip
__getattr__ = lazy(__name__, _MODULES, __all__)
