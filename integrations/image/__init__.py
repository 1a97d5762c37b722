"""Images: SimCLR and MoCo with any objective, on lightly and Lightning, and the evaluation of their encoders.

Use the parts in your own code::

    from counterpoint.integrations import image

    data = image.load("cifar10")                                    # or a folder of images
    settings = image.Settings(method="simclr", backbone="resnet18", epochs=100, device="cuda")
    module = image.Pretraining(image.build(settings, "adnce:t=0.4,mu=0.7,sigma=0.5"), image.recipe("cifar"))
    image.pretrain(module, data)
    print(image.evaluate(module.method.encoder, data, image.load("cifar10", "test"), ["knn", "linear", "robust"]))
"""

from typing import TYPE_CHECKING

from counterpoint.names import lazy

if TYPE_CHECKING:
    from .augment import RECIPES, Recipe, recipe
    from .data import load
    from .evaluation import evaluate, features, knn, linear_probe, robust, shifted, shifts
    from .image_set import ImageSet
    from .model import Encoder, MoCo, SimCLR, build
    from .presets import PRESETS, preset
    from .pretraining import Pretraining, pretrain
    from .settings import METHODS, PROBES, EvaluationSettings, Settings
    from .training import restore, train

__all__ = [
    "METHODS", "PRESETS", "PROBES", "RECIPES", "Encoder", "EvaluationSettings", "ImageSet", "MoCo",
    "Pretraining", "Recipe", "Settings", "SimCLR", "build", "evaluate", "features", "knn",
    "linear_probe", "load", "preset", "pretrain", "recipe", "restore",
    "robust", "shifted", "shifts", "train",
]  # fmt: skip

_MODULES = ("settings", "presets", "augment", "image_set", "data", "model", "evaluation", "pretraining", "training")
__getattr__ = lazy(__name__, _MODULES, __all__)
