"""The pairing ``queue``: an anchor is compared with further keys, a queue (MoCo) or documents.

For ``(B, m, d)`` views, the positives are the ``m (m - 1)`` pairs of different views, the negatives those of the first.
"""

import torch
from torch import Tensor

from .. import checks
from ..engine.mask import Mask
from ..engine.matrix import MatrixNegatives, matrix_of
from .batch import Batch
from .options import Keys
from .scores import Scores, counted_positives, has_zeros, masked_negatives


def queue(batch: Batch) -> Scores:
    """Score queries with their keys, and with the queue; or with documents."""
    if batch.queue is None:
        raise ValueError("the pairing queue needs queue=.")
    if batch.queue.positives is not None:
        return _documents(batch, batch.queue, batch.queue.positives)
    if len(batch.raw) != 2:
        hint = "several of both are two tensors (batch, views, width)"
        raise ValueError(f"queue= goes with two views, query and key, got {len(batch.raw)}; {hint}.")
    both = batch.normalized_view(0), batch.normalized_view(1).detach()
    query, key = (z if z.dim() == 3 else z.unsqueeze(1) for z in both)
    views, anchors = query.shape[1], query[:, 0]
    # min over j != l: a key of the same view is not a positive in Algorithm 2
    pairs = [(j, i) for j in range(views) for i in range(views) if i != j or views == 1]
    pos, pos_mask = torch.stack([(query[:, j] * key[:, i]).sum(-1) for j, i in pairs], 1), None
    bank, mask = batch.queue, _mask_of_bank(batch, batch.queue)
    labels = None if batch.labels is None else mask.ids
    neg = masked_negatives(batch, [(anchors, bank.embeddings)], mask, engine="" if labels is None else "matrix")
    if labels is not None:
        matrix, same = matrix_of(neg), labels[0].unsqueeze(1) == labels[1]
        pos, pos_mask = torch.cat([pos, matrix], 1), torch.cat([torch.ones_like(pos, dtype=torch.bool), same], 1)
    return Scores(pos, neg, pos_mask, view_count=max(views, 2))


def _mask_of_bank(batch: Batch, bank: Keys) -> Mask:
    """Return which keys of a queue, or of the documents of all processes, count for a query."""
    ids = None if bank.ids is None or batch.ids is None else (batch.ids, batch.all_documents(bank.ids))
    keys = None if bank.log_q is None else -batch.all_documents(bank.log_q)
    weight = None if keys is None else (keys.new_zeros(batch.size), keys)
    return Mask(ids=ids, positives=bank.positives, log_weight=weight, zeros=has_zeros(weight))


def _documents(batch: Batch, bank: Keys, positives: Tensor) -> Scores:
    """Score queries and the documents of all processes, of which a query's positives are in its own process."""
    queries, rows, missing = batch.normalized_view(0), positives.clamp(min=0), positives < 0
    neg = masked_negatives(batch, [(queries, batch.all_documents(bank.embeddings))], _mask_of_bank(batch, bank))
    if isinstance(neg, MatrixNegatives):
        pos = neg.matrix.gather(1, rows)
    else:
        pos = (queries.unsqueeze(1) * bank.embeddings[rows]).sum(-1)
    if batch.group is None and checks.wanted(missing) and not bool(missing.any()):
        return Scores(pos, neg)
    any_positive = (~missing).any() if batch.group is None else batch.group.all_reduce((~missing).any().long()) > 0
    error = "documents: positives: expected a positive of at least one query, got none."
    pos_mask, counted = counted_positives(~missing, pos.dtype, error, any_positive)
    return Scores(pos, neg, pos_mask, anchor_factor=counted)
