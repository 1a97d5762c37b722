"""Image encoders for the hub: ``PublishedEncoder.from_pretrained("owner/name")``, and their ``export``."""

from __future__ import annotations

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import contextlib
import io
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from counterpoint.install import install

from ..store.run import Run
from . import training
from .data import image_size
from .model import Encoder

try:
    from huggingface_hub import PyTorchModelHubMixin
except ImportError as error:
    raise ImportError(f"the hub needs huggingface_hub: {install('hub')}") from error

PIPELINE = "image-feature-extraction"


class PublishedEncoder(nn.Module, PyTorchModelHubMixin):  # type: ignore[misc]
    """An encoder with its configuration: maps images in ``[0, 1]``, ``(B, 3, H, W)``, to ``(B, width)`` features.

    Args:
        backbone, size: as in :class:`~.model.Encoder`.
        channels: of the first layer of ``conv4``.
    """

    def __init__(self, backbone: str, size: int, channels: int = 32) -> None:
        super().__init__()
        self.encoder = Encoder(backbone, size, channels)

    def forward(self, images: Tensor) -> Tensor:
        return self.encoder(images)  # type: ignore[no-any-return]


def publish(run: Run) -> PublishedEncoder:
    """The trained encoder of a run."""
    arguments = run.arguments
    size = image_size(arguments["dataset"], arguments["size"])
    published = PublishedEncoder(arguments["backbone"], size, arguments["channels"])
    published.encoder.load_state_dict(training.restore(run).encoder.state_dict())
    return published.eval()


def load(folder: str | Path) -> Any:
    """The encoder of a published run, from its safetensors."""
    with contextlib.redirect_stdout(io.StringIO()):  # which may be the JSON of a command
        return PublishedEncoder.from_pretrained(str(folder)).encoder.eval()


exported = publish  # the module to export


def samples(run: Run) -> list[tuple[Tensor, ...]]:
    """Inputs of the encoder, in two batches of different size."""
    size = image_size(run.arguments["dataset"], run.arguments["size"])
    generator = torch.Generator().manual_seed(0)
    return [(torch.rand(count, 3, size, size, generator=generator),) for count in (2, 5)]
