"""SentenceTransformers for the hub, and as modules that can be exported."""

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
from typing import Any

import torch
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from torch import Tensor, nn

from ..store.run import Run
from . import training

PIPELINE = "sentence-similarity"
TEXTS = (
    ["a text", "another text, which is longer than that"],
    ["one", "two words", "three words here", "and a text of several words", "a", "b c"],
)


class Embed(nn.Module):
    """A SentenceTransformer as a function of ``input_ids`` and ``attention_mask``, ``(B, T)``, without a tokenizer."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        features: dict[str, Tensor] = {"input_ids": input_ids, "attention_mask": attention_mask}
        for module in self.model:
            features = module(features)
        return features["sentence_embedding"]


def publish(run: Run) -> Any:
    """Return the trained SentenceTransformer of a run, on the CPU."""
    return training.restore(run).to("cpu").eval()


def exported(run: Run) -> nn.Module:
    """Return the module to export."""
    model = publish(run)
    if isinstance(model[0], StaticEmbedding):
        raise ValueError(f"{run.path}: a static model is a table of word pieces, in encoder.safetensors of the run.")
    return Embed(model).eval()


def samples(run: Run) -> list[tuple[Tensor, ...]]:
    """Return inputs of :class:`Embed`, in two batches of different size and length."""
    model = publish(run)
    tokens = [model.preprocess(texts) for texts in TEXTS]
    batches = [(each["input_ids"], each["attention_mask"]) for each in tokens]
    return [tuple(torch.as_tensor(part) for part in batch) for batch in batches]
