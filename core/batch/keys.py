"""Keys that are not views of the batch, and what is known of them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Keys(NamedTuple):
    """Further keys, for ``queue=`` or ``negatives=``, with what is known of them; a plain tensor is embeddings alone.

    Args:
        embeddings: ``(K, d)`` for a queue; ``(B, d)`` or ``(B, n, d)`` for hard negatives.
        ids: integers, one per key: ids or labels as those of the batch.
        guide: the guide's embeddings of the same keys, with any width.
        log_q: log-probability with which each key was drawn, one per key.
        shared: whether a sample's hard negatives are also those of all others.
        own_log_weight: added to the exponents of a sample's own hard negatives (SimCSE's hard-negative weight).

    >>> import torch, counterpoint as cp
    >>> z1, z2, bank = torch.randn(3, 4, 8)
    >>> queue = cp.Keys(bank, ids=torch.tensor([0, 1, 7, 8]))
    >>> cp.InfoNCE(0.1)(z1, z2, ids=torch.arange(4), queue=queue).shape
    torch.Size([])
    """

    embeddings: Tensor
    ids: Tensor | None = None
    guide: Tensor | None = None
    log_q: Tensor | None = None
    shared: bool = True
    own_log_weight: float = 0.0

    @staticmethod
    def of(value: Tensor | Keys) -> Keys:
        """Return ``value`` as keys."""
        return value if isinstance(value, Keys) else Keys(value)
