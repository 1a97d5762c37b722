"""Tokenized columns of texts, as sentence-transformers gives them to a loss: equal texts, and a guide's embeddings."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from counterpoint.batch.same import merged, numbered
from counterpoint.checks import require_ids

Features = dict[str, Tensor]


def tokens(features: Features) -> list[tuple[int, ...]]:
    """Return the tokens of each text of a column, without padding."""
    ids = features["input_ids"]
    if "cu_seq_lens_q" in features:  # texts behind one another
        bounds = features["cu_seq_lens_q"].tolist()
    elif "offsets" in features:  # of static embeddings
        bounds = [*features["offsets"].tolist(), ids.numel()]
    else:
        rows, masks = ids.tolist(), features["attention_mask"].tolist()
        return [tuple(x for x, kept in zip(*pair, strict=True) if kept) for pair in zip(rows, masks, strict=True)]
    flat = ids.flatten().tolist()
    return [tuple(flat[start:end]) for start, end in pairwise(bounds)]


def equal_texts(columns: Sequence[Features], negatives: Sequence[Features] = ()) -> tuple[Tensor, Tensor | None]:
    """Number samples so that those with a text in common have the same number, and their hard negatives alike.

    Args:
        columns: the views of the samples. Samples that share a text with a third one belong together as well.
        negatives: columns of hard negatives.

    Returns:
        ``ids``, ``(B,)``, and ``negative_ids``, ``(B, columns)``: that of the sample which has the same text, or a
        number of its own; None without hard negatives.
    """
    every = [numbered([*map(repr, tokens(column))], False) for column in (*columns, *negatives)]
    count, device = len(every[0]), columns[0]["input_ids"].device
    samples = torch.arange(count).repeat(len(columns))
    own = torch.arange(count, count * (1 + len(negatives)))
    ids = merged(torch.cat(every), torch.cat([samples, own])).to(device)
    return ids[:count], ids[len(samples) :].view(-1, count).T if negatives else None


def with_ids(ids: Tensor, hard_ids: Tensor | None, given: Tensor) -> tuple[Tensor, Tensor | None]:
    """Merge the numbers of :func:`equal_texts` with ids of the samples; hard negatives have those of equal texts."""
    given = require_ids(given, "labels", len(ids))
    hard = ids[:0] if hard_ids is None else hard_ids.flatten()
    apart = given.max() + 1 + torch.arange(len(hard)).to(given)
    both = merged(torch.cat([ids, hard]), torch.cat([given.to(ids), apart.to(ids)]))
    return both[: len(ids)], None if hard_ids is None else both[len(ids) :].view_as(hard_ids)


class Guide:
    """A model that embeds, without gradient, the batch of another one, ``model``, whose tokens the batch has."""

    def __init__(self, guide: Any, model: Any) -> None:
        for name, one in (("guide", guide), ("model", model)):
            if not hasattr(getattr(one, "tokenizer", None), "get_vocab"):
                expected = "a SentenceTransformer or another model with a tokenizer"
                load = f": SentenceTransformer({one!r})" if isinstance(one, str) else ""
                raise TypeError(f"{name}: expected {expected}, got {type(one).__name__}{load}.")
        self.guide, self.model = guide, model
        if guide is not model:  # a model that guides itself is trained
            guide.eval().requires_grad_(False)
        judging, trained = guide.tokenizer, model.tokenizer
        same = type(judging) is type(trained) and judging.get_vocab() == trained.get_vocab()
        self.same_tokens = same and (guide.max_seq_length or 0) >= (model.max_seq_length or 0)

    @torch.no_grad()
    def __call__(self, columns: Sequence[Features]) -> list[Tensor]:
        """Return the embeddings of each column, ``(B, width)``; other models read the texts anew."""
        if self.guide is not self.model:
            self.guide.eval()
        embedded = []
        for column in columns:
            features = dict(column) if self.same_tokens else self._read(column)
            moved = {k: v.to(self.guide.device) if isinstance(v, Tensor) else v for k, v in features.items()}
            embedded.append(self.guide(moved)["sentence_embedding"].to(column["input_ids"].device))
        return embedded

    def _read(self, column: Features) -> dict[str, Any]:
        tokenizer = self.model.tokenizer  # of transformers, or of tokenizers for static embeddings
        decode = tokenizer.batch_decode if hasattr(tokenizer, "batch_decode") else tokenizer.decode_batch
        words = decode([list(row) for row in tokens(column)], skip_special_tokens=True)
        features: dict[str, Any] = self.guide.preprocess(words)
        return features
