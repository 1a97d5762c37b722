"""The model of a run and its loss: SimCSE's head, word dropout and static embeddings."""

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
from collections.abc import Mapping
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, StaticEmbedding
from torch import Tensor, nn

import counterpoint as cp
from counterpoint.plugins.sentence_transformers import CachedContrastiveLoss, ContrastiveLoss

from .. import store
from . import encode


def build(arguments: Mapping[str, Any]) -> SentenceTransformer:
    """Return the SentenceTransformer of a cell before training; the seed fixes its new weights."""
    store.seed_everything(arguments["seed"])
    name, revision, pooling = arguments["model"], arguments["revision"], arguments["pooling"]
    if arguments["static"] and pooling is None and not encode.has_pooling(name, revision):
        pooling = "mean"  # any will do, as static() uses the embedding layer only
    model = encode.load(name, pooling, device=arguments["device"], revision=revision)
    if arguments["static"]:
        model = static(model)
    if arguments["head"] != "none":
        width = model.get_embedding_dimension()
        weight, bias = torch.randn(width, width) * 0.02, torch.zeros(width)  # BERT's initialization
        model.append(Dense(width, width, init_weight=weight, init_bias=bias).to(model.device))
    if arguments["word_dropout"]:
        model.register_forward_pre_hook(WordDropout(arguments["word_dropout"]))
    return model


def static(model: SentenceTransformer) -> SentenceTransformer:
    """Return a SentenceTransformer that averages a model's word-piece embeddings, which can be trained, sans layers."""
    layer = model[0].embedding if isinstance(model[0], StaticEmbedding) else model[0].model.get_input_embeddings()
    pieces = StaticEmbedding(model.tokenizer, embedding_weights=layer.weight.detach().clone())
    pieces.tokenizer.no_truncation()  # its limit is that of the layers
    pieces.embedding.sparse = True
    return SentenceTransformer(modules=[pieces], device=str(model.device))


def make_loss(model: SentenceTransformer, arguments: Mapping[str, Any]) -> ContrastiveLoss:
    objective = cp.objective(arguments["objective"])
    options = {name: arguments[name] for name in ("negative_weight", "duplicates", "false_negatives", "guide")}
    if options["guide"] is not None:
        options["guide"] = encode.load(options["guide"], device=arguments["device"])
    options["views"] = arguments["views"] or objective.views or 2
    if (mini_batch := arguments["mini_batch"]) is not None:
        return CachedContrastiveLoss(model, objective, mini_batch_size=mini_batch, **options)
    return ContrastiveLoss(model, objective, **options)


class WordDropout:
    """Drop each word piece with probability ``0 <= p < 1``, in training only; at least one of a text is kept.

    Attach it to a SentenceTransformer with ``model.register_forward_pre_hook(WordDropout(0.1))``; every view is then
    sampled separately. It works on padded batches, where it masks pieces but not the special tokens at the ends, and on
    ``StaticEmbedding``'s lists of pieces. ConSERT (https://arxiv.org/abs/2105.11741) calls it token cutoff.
    """

    def __init__(self, p: float) -> None:
        if not 0 <= p < 1:
            raise ValueError(f"word dropout: expected 0 <= p < 1, got {p!r}.")
        self.p = p

    def __call__(self, model: nn.Module, arguments: tuple[dict[str, Tensor], ...]) -> tuple[object, ...] | None:
        if not model.training or not self.p:
            return None
        features, *rest = arguments
        pieces = features["input_ids" if "offsets" in features else "attention_mask"]
        keep = torch.rand(pieces.shape, device=pieces.device) >= self.p
        return (features | (_drop_listed if "offsets" in features else _drop_padded)(features, keep), *rest)


def _drop_padded(features: dict[str, Tensor], keep: Tensor) -> dict[str, Tensor]:
    mask = features["attention_mask"].bool()
    # the first and the last piece of each text are special
    inner = mask & mask.roll(1, 1) & mask.roll(-1, 1)
    inner[:, 0] = inner[:, -1] = False
    keep |= ~inner
    lonely = ~(keep & inner).any(1, keepdim=True)
    return {"attention_mask": (mask & (keep | lonely)).to(features["attention_mask"].dtype)}


def _drop_listed(features: dict[str, Tensor], keep: Tensor) -> dict[str, Tensor]:
    ids, offsets = features["input_ids"], features["offsets"]
    lengths = torch.diff(offsets, append=offsets.new_tensor([len(ids)]))
    text = torch.repeat_interleave(torch.arange(len(offsets), device=ids.device), lengths)
    pieces = torch.zeros_like(offsets).index_add_(0, text, keep.to(offsets.dtype))
    keep |= (pieces == 0)[text]
    pieces = torch.where(pieces == 0, lengths, pieces)
    return {"input_ids": ids[keep], "offsets": pieces.cumsum(0) - pieces}
