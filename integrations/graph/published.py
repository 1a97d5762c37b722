"""Graph encoders for the hub: ``PublishedEncoder.from_pretrained("owner/name")``."""

from __future__ import annotations

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import contextlib
import io
from pathlib import Path
from typing import Any

from counterpoint.install import install

from ..store.run import Run
from . import training
from .model import Encoder

try:
    from huggingface_hub import PyTorchModelHubMixin
except ImportError as error:
    raise ImportError(f"the hub needs huggingface_hub: {install('hub')}") from error

PIPELINE = "graph-ml"


class PublishedEncoder(Encoder, PyTorchModelHubMixin):  # type: ignore[misc]
    """An encoder that its weights and its arguments, in a folder or on the hub, can restore."""


def publish(run: Run) -> PublishedEncoder:
    """The trained encoder of a run."""
    if run.arguments["encoder"] == "none":
        raise ValueError(f"{run.path}: {run.name} has no encoder.")
    encoder: Any = training.restore(run).encoder
    published = PublishedEncoder(
        encoder.convolutions[0].nn.in_channels, run.arguments["hidden"], run.arguments["layers"]
    )
    published.load_state_dict(encoder.state_dict())
    return published.eval()


def load(folder: str | Path) -> Any:
    """The encoder of a published run, from its safetensors."""
    with contextlib.redirect_stdout(io.StringIO()):  # which may be the JSON of a command
        return PublishedEncoder.from_pretrained(str(folder)).eval()
