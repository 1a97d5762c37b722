"""A batch that several processes share: they agree on its settings first, and one that refuses its input ends all."""

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from ..engine.distributed import Gather, ProcessGroup, exchange, resolve
from .batch import Batch
from .options import BatchOptions, Keys, View
from .pairings import pairing_in_force

LEARNED = "the objective and its learned numbers (let DistributedDataParallel contain it, or average their gradients)"


def gathered_batch(
    views: Sequence[View], gather: Gather, objective: nn.Module, **options: Unpack[BatchOptions]
) -> Batch:
    """Join this process's part of a batch with those of the other processes, which must have the same settings."""
    group = resolve(gather)
    if group is None:
        return Batch(views, **options)
    try:
        batch = Batch(views, **options)
        batch.check_finite()
        if batch.guide is not None:
            batch.guide.check_finite()
        documents = next((x for x in views if isinstance(x, Keys)), None)
        # rounded, since GPUs of two kinds may update equal numbers to slightly different ones
        learned = [f"{x.item():.4g}" for x in objective.parameters() if x.numel() == 1]
        facts = _facts(batch, documents, options) | {LEARNED: crc32(repr((objective, learned)).encode())}
    except Exception:
        exchange(group, [0])  # no samples: the other processes stop too
        raise
    rows = exchange(group, [batch.size, 0 if documents is None else len(documents.embeddings), *facts.values()])
    refused = [str(rank) for rank, row in enumerate(rows) if row[0] == 0]
    if refused:
        raise RuntimeError(f"gather: the batch of rank {', '.join(refused)} was refused; the error there says why.")
    for name, values in zip(facts, list(zip(*rows, strict=True))[2:], strict=True):
        if len(set(values)) > 1:
            listed = ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(values))
            here = f"; here it is {objective}" * (name == LEARNED)
            raise ValueError(f"gather: processes must agree on {name}, got {listed}{here}.")
    batch.join(*(ProcessGroup(group, [row[i] for row in rows]) for i in range(1 if documents is None else 2)))
    return batch


def _facts(batch: Batch, documents: Keys | None, options: BatchOptions) -> dict[str, int]:
    """Return the settings that all processes must share, by name: every argument but the choice of an engine."""
    pairing_in_force(batch, "single")  # refuses unknown pairings
    known: dict[str, Any] = {**dict.fromkeys(BatchOptions.__annotations__), **options, "engine": None}
    for name, keys in (("queue", known.pop("queue")), ("negatives", known.pop("negatives")), ("documents", documents)):
        fields: dict[str, Any] = dict.fromkeys(Keys._fields) if keys is None else Keys.of(keys)._asdict()
        known |= {f"{name}: {field}": x for field, x in fields.items()}
    hard, bank = (keys and keys.embeddings for keys in (batch.negatives, batch.queue))
    embeddings = (*batch.raw, hard, batch.adversarial, batch.mixed, bank)
    trained = sum((x is not None and x.requires_grad) << i for i, x in enumerate(embeddings))
    return {
        "the number of views": len(batch.raw),
        "the width of embeddings": batch.width,
        "bits of embeddings": torch.finfo(batch.dtype).bits,
        "which embeddings have a gradient": trained,
        **{f"{name}=": _fact(name, x, batch.size) for name, x in known.items()},
    }


def _fact(name: str, x: Any, size: int) -> int:
    """Return how many numbers a tensor has per sample, how many rows a queue, 1 for documents; else a checksum."""
    if isinstance(x, (list, tuple)) and x and isinstance(x[0], Tensor):
        x = x[0]
    if isinstance(x, Tensor):
        return 1 if "documents" in name else len(x) if name.startswith("queue") else max(1, x.numel() // size)
    return 0 if x is None else crc32(repr(x).encode())
