"""The images of a run: training, probing, validation, reporting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..domain import check_choice
from . import sources
from .image_set import ImageSet
from .settings import KEEP, PARTS


class Data(NamedTuple):
    """The images to train on, to fit probes on, to validate on, and to report on."""

    train: ImageSet
    labelled: ImageSet
    validation: ImageSet
    test: ImageSet


def prepare(arguments: Mapping[str, Any]) -> Data:
    """Load and check the data of a cell.

    With ``part="tune"`` the validation images are reported on, and the test split is not loaded.
    """
    for name, known in (("part", PARTS), ("keep", KEEP)):
        check_choice(name, arguments[name], known)
    options = (arguments["size"], None, arguments["classes"])
    train, validation = sources.load(arguments["dataset"], "train", *options).hold_out(arguments["validation"])
    if arguments["subset"] is not None:
        train = train.draw(arguments["subset"])
    labelled, validation = train.with_classes(), validation.with_classes()
    test = validation
    if arguments["dataset"] == "mnist-cifar":  # the probe must not learn the class from the digits
        labelled = sources.mnist_cifar("ood-train")
        if arguments["part"] == "tune":
            labelled, test = labelled.hold_out(arguments["validation"])
    if arguments["part"] == "report":
        test = sources.load(arguments["dataset"], "test", *options)
    return Data(train, labelled, validation, test)
