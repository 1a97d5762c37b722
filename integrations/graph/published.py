"""Graph encoders for the hub: ``PublishedEncoder.from_pretrained("owner/name")``."""

from __future__ import annotations

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import contextlib
import io
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from counterpoint.install import install

from ..store.run import Run
from . import training
from .model import Encoder

try:
    from huggingface_hub import PyTorchModelHubMixin
except ImportError as error:
    raise ImportError(f"the hub needs huggingface_hub: {install('hub')}") from error

PIPELINE = "graph-ml"


class PublishedEncoder(nn.Module, PyTorchModelHubMixin):  # type: ignore[misc]
    """An encoder with its configuration; arguments and inputs are those of :class:`~.model.Encoder`."""

    def __init__(self, width: int, hidden: int = 32, layers: int = 3) -> None:
        super().__init__()
        self.encoder = Encoder(width, hidden, layers)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, batch_size: int | None = None) -> Tensor:
        return self.encoder(x, edge_index, batch, batch_size)  # type: ignore[no-any-return]


def publish(run: Run) -> PublishedEncoder:
    """The trained encoder of a run."""
    if run.arguments["encoder"] == "none":
        raise ValueError(f"{run.path}: {run.name} has no encoder.")
    encoder = training.restore(run).encoder
    width = next(value for value in encoder.state_dict().values() if value.dim() == 2).shape[1]
    published = PublishedEncoder(width, run.arguments["hidden"], run.arguments["layers"])
    published.encoder.load_state_dict(encoder.state_dict())
    return published.eval()


def load(folder: str | Path) -> Any:
    """The encoder of a published run, from its safetensors."""
    with contextlib.redirect_stdout(io.StringIO()):  # which may be the JSON of a command
        return PublishedEncoder.from_pretrained(str(folder)).encoder.eval()
