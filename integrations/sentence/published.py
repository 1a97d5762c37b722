"""SentenceTransformers for the hub."""

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
from sentence_transformers import SentenceTransformer

from ..store.run import Run
from . import training


def publish(run: Run) -> SentenceTransformer:
    """Return the trained SentenceTransformer of a run, on the CPU."""
    return training.restore(run).to("cpu").eval()
