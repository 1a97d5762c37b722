"""Graph encoders for the hub: ``PublishedEncoder.from_pretrained("owner/name")``."""

from ..hub.encoder import Published
from ..store.run import Run
from . import training
from .model import Encoder


class PublishedEncoder(Encoder, Published):
    """An encoder with its configuration."""


def publish(run: Run) -> PublishedEncoder:
    if run.arguments["encoder"] == "none":
        raise ValueError(f"{run.path}: {run.name} has no encoder.")
    weights = training.restore(run).encoder.state_dict()
    width = next(value for value in weights.values() if value.dim() == 2).shape[1]
    published = PublishedEncoder(width, run.arguments["hidden"], run.arguments["layers"])
    published.load_state_dict(weights)
    return published.eval()


load = PublishedEncoder.load
