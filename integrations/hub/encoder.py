"""The base class of published encoders."""

import contextlib
import io
from pathlib import Path
from typing import Any

from counterpoint.install import install

try:
    from huggingface_hub import PyTorchModelHubMixin
except ImportError as error:
    raise ImportError(f"the hub needs huggingface_hub: {install('hub')}") from error


class Published(PyTorchModelHubMixin):  # type: ignore[misc]
    """An encoder that its weights and its arguments, in a folder or on the hub, can restore."""

    @classmethod
    def load(cls, folder: str | Path) -> Any:
        """The encoder of a published run, from its safetensors."""
        with contextlib.redirect_stdout(io.StringIO()):  # which may be the JSON of a command
            encoder: Any = cls.from_pretrained(str(folder))
            return encoder.eval()
