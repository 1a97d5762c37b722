"""Image encoders for the hub: ``PublishedEncoder.from_pretrained("owner/name")``, and their ``export``."""

import torch
from torch import Tensor

from ..hub.encoder import Published
from ..store.run import Run
from . import training
from .data import image_size
from .model import Encoder

PIPELINE = "image-feature-extraction"


class PublishedEncoder(Encoder, Published):
    """An encoder with its configuration."""


def publish(run: Run) -> PublishedEncoder:
    """The trained encoder of a run."""
    arguments = run.arguments
    size = image_size(arguments["dataset"], arguments["size"])
    published = PublishedEncoder(arguments["backbone"], size, arguments["channels"])
    published.load_state_dict(training.restore(run).encoder.state_dict())
    return published.eval()


load = PublishedEncoder.load
exported = publish  # the module to export


def samples(run: Run) -> list[tuple[Tensor, ...]]:
    """Inputs of the encoder, in two batches of different size."""
    size = image_size(run.arguments["dataset"], run.arguments["size"])
    generator = torch.Generator().manual_seed(0)
    return [(torch.rand(count, 3, size, size, generator=generator),) for count in (2, 5)]
