"""The model of a run and its loss: SimCSE's head, word dropout and static embeddings on a SentenceTransformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, StaticEmbedding

import counterpoint as cp
from counterpoint.plugins.sentence_transformers import CachedContrastiveLoss, ContrastiveLoss

from .. import store
from . import encode
from .noise import PerturbedContrastiveLoss, WordDropout
from .settings import OPTIONAL


def build(arguments: Mapping[str, Any]) -> Any:
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


def static(model: Any) -> Any:
    """Return a SentenceTransformer that averages a model's word-piece embeddings, which can be trained, sans layers."""
    layer = model[0].embedding if isinstance(model[0], StaticEmbedding) else model[0].model.get_input_embeddings()
    pieces = StaticEmbedding(model.tokenizer, embedding_weights=layer.weight.detach().clone())
    pieces.tokenizer.no_truncation()  # its limit is that of the layers
    pieces.embedding.sparse = True
    return SentenceTransformer(modules=[pieces], device=str(model.device))


def without_head(model: Any) -> Any:
    """Return the same modules without the last one, the head that SimCSE trains with but does not keep."""
    return SentenceTransformer(modules=list(model)[:-1], device=model.device)


def make_loss(model: Any, arguments: Mapping[str, Any]) -> ContrastiveLoss:
    """Return the loss of a cell."""
    objective = cp.objective(arguments["objective"])
    views = arguments["views"] or objective.views or 2
    options = {"views": views, "negative_weight": arguments["negative_weight"]}
    options |= {name: arguments[name] for name in OPTIONAL if name in arguments}
    if "guide" in options:
        options["guide"] = encode.load(options["guide"], device=arguments["device"])
    epsilon, mixed, mini_batch = arguments["epsilon"], arguments["mixed"], arguments["mini_batch"]
    if epsilon is not None or mixed:
        return PerturbedContrastiveLoss(model, objective, epsilon=epsilon, mixed=mixed, **options)
    if mini_batch is not None:
        return CachedContrastiveLoss(model, objective, mini_batch_size=mini_batch, **options)
    return ContrastiveLoss(model, objective, **options)
