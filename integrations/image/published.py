"""Image encoders for the hub: ``PublishedEncoder.from_pretrained("owner/name")``."""

from ..hub.encoder import Published
from ..store.run import Run
from . import training
from .data import image_size
from .model import Encoder


class PublishedEncoder(Encoder, Published):
    """An encoder with its configuration."""


def publish(run: Run) -> PublishedEncoder:
    arguments = run.arguments
    size = image_size(arguments["dataset"], arguments["size"])
    published = PublishedEncoder(arguments["backbone"], size, arguments["channels"])
    published.load_state_dict(training.restore(run).encoder.state_dict())
    return published.eval()


load = PublishedEncoder.load
