"""A batch that several processes share: exchange what they have to agree on, before they compute.

A process that refuses its input ends the others with an error that names it. One that dies ends them with an error of
the process group, at the latest after the group's timeout.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import torch
from torch import Tensor
from typing_extensions import Unpack

from ..engine.distributed import Gather, ProcessGroup, exchange, resolve
from .batch import Batch
from .options import BatchOptions
from .pairings import PAIRINGS, pairing_in_force


def gathered_batch(views: Sequence[Tensor], gather: Gather, **options: Unpack[BatchOptions]) -> Batch:
    """Join this process's part of a batch with those of the other processes.

    Args:
        views: the embeddings of this process's samples.
        gather: see :mod:`counterpoint.engine.distributed`.
        options: as for :class:`Batch`, for this process's samples; the queue is common to all processes.
    """
    group = resolve(gather)
    if group is None:
        return Batch(views, **options)
    try:
        batch = Batch(views, **options)
        batch.check_finite()
        if batch.guide is not None:
            batch.guide.check_finite()
        facts = _facts(batch)
    except Exception:
        exchange(group, [0])  # no samples: the other processes stop too
        raise
    rows = exchange(group, [batch.size, *facts.values()])
    refused = [str(rank) for rank, row in enumerate(rows) if row[0] == 0]
    if refused:
        raise RuntimeError(f"gather: the batch of rank {', '.join(refused)} was refused; the error there says why.")
    for name, values in zip(facts, list(zip(*rows, strict=True))[1:], strict=True):
        if len(set(values)) > 1:
            listed = ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(values))
            raise ValueError(f"gather: processes must agree on {name}, got {listed}.")
    batch.join(ProcessGroup(group, [row[0] for row in rows]))
    return batch


def _facts(batch: Batch) -> dict[str, int]:
    """Return what processes that share a batch must agree on, by name."""
    names, chosen = list(PAIRINGS), batch.pairing
    pairing_in_force(batch, "single")  # refuses unknown pairings
    pairings = [chosen if isinstance(chosen, str) else (chosen or {}).get(name, name) for name in names]
    embeddings = (*batch.raw, batch.negatives, batch.adversarial, batch.mixed)
    facts = {
        "the number of views": len(batch.raw),
        "the width of embeddings": batch.width,
        "bits of embeddings": torch.finfo(batch.dtype).bits,
        "which embeddings have a gradient": sum(
            (x is not None and x.requires_grad) << i for i, x in enumerate(embeddings)
        ),
        "pairing=": int("".join(str(names.index(name)) for name in pairings)),  # a digit per pairing
        "normalize=": int(batch.normalize),
        "the rows of queue=": 0 if batch.queue is None else len(batch.queue),
    }
    for name, x in (("negatives", batch.negatives), ("adversarial", batch.adversarial), ("mixed", batch.mixed)):
        facts[f"{name}= per sample"] = 0 if x is None else x.shape[1]
    known = {"labels=": batch.labels, "ids=": batch.ids, "ids of negatives=": batch.negative_ids}
    known |= {"log_q=": batch.log_weight, "log_q of negatives=": batch.negative_log_weight}
    facts |= {f"whether there are {name}": int(x is not None) for name, x in known.items()}
    facts["the width of guide="] = 0 if batch.guide is None else batch.guide.width
    excluding = "false_negatives=, empty=, in_batch= and whether negatives= are shared"
    facts[excluding] = crc32(repr((batch.rules, batch.empty, batch.in_batch, batch.shared)).encode())
    joint = batch.directions, batch.hardness
    facts["directions= and hardness="] = crc32(repr(joint).encode())
    return facts
