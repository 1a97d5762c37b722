"""SentenceTransformers for the hub."""

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
from typing import Any

from ..store.run import Run
from . import training

PIPELINE = "sentence-similarity"


def publish(run: Run) -> Any:
    """Return the trained SentenceTransformer of a run, on the CPU."""
    return training.restore(run).to("cpu").eval()
