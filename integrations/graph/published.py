"""Graph encoders for the hub: ``PublishedEncoder.from_pretrained("owner/name")``."""

from typing import Any

from ..hub.encoder import Published
from ..store.run import Run
from . import training
from .model import Encoder

PIPELINE = "graph-ml"


class PublishedEncoder(Encoder, Published):
    """An encoder with its configuration."""


def publish(run: Run) -> PublishedEncoder:
    """The trained encoder of a run."""
    if run.arguments["encoder"] == "none":
        raise ValueError(f"{run.path}: {run.name} has no encoder.")
    encoder: Any = training.restore(run).encoder
    width = encoder.convolutions[0].nn.in_channels
    published = PublishedEncoder(width, run.arguments["hidden"], run.arguments["layers"])
    published.load_state_dict(encoder.state_dict())
    return published.eval()


load = PublishedEncoder.load
