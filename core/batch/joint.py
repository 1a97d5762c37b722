"""The pairing ``joint``: an anchor's negatives come from several directions, in one denominator.

With queries ``q`` (the first view), documents ``d`` (the second) and hard negatives ``h``, sample ``i`` has as
negatives, by ``directions=``:

===================  ==============================================================================================
``query_to_doc``     ``s(q_i, d_j)``, ``j != i``, and ``s(q_i, h)`` of all samples; always included
``query_to_query``   ``s(q_i, q_j)``, ``j != i``
``doc_to_query``     ``s(d_i, q_j)``, ``j != i``. The positive, ``j = i``, counts a second time in the denominator
``doc_to_doc``       ``s(d_i, d_j)``, ``j != i``, and ``s(d_i, h)`` of the other samples
``doc_to_positive``  ``doc_to_doc`` without hard negatives (GISTEmbed)
===================  ==============================================================================================

All but the last are GTE's improved contrastive loss. ``hardness=(which, strength)`` says which negatives of
``query_to_doc`` count ``e^{strength s}`` times, with ``s`` as a constant: ``in_batch_negatives`` are all but the
sample's own hard ones, ``hard_negatives`` only these, ``all_negatives`` both.

Papers: GTE, https://arxiv.org/abs/2308.03281, and, for hardness, LLaVE, https://arxiv.org/abs/2503.04812.
"""

from .. import checks
from ..engine.joined import joined
from ..engine.matrix import Negatives
from .batch import Batch
from .options import HARDNESS
from .scores import Scores, negatives_of, own_negatives


def joint(batch: Batch) -> Scores:
    """Score the first view with the second one, and with negatives of all directions."""
    views = batch.normalized()
    queries, docs = views[:1], views[1:]
    every = None if batch.negatives is None else batch.negatives.embeddings
    hard = every if batch.negatives is not None and batch.negatives.shared else None
    all_hard = 0 if hard is None else hard.shape[1] * batch.total
    mode, strength = batch.hardness or ("", 0.0)
    of_batch, of_own = (strength if mode in (which, "all_negatives") else 0.0 for which in HARDNESS[:2])
    further = [d for d in batch.directions if d != "query_to_doc"]
    parts: list[tuple[Negatives, int]]
    if every is None or of_batch == of_own:
        neg = negatives_of(batch, [(queries, docs)], hard=every, optional=bool(further))
        hard_keys = 0 if every is None else every.shape[1] * batch.total
        parts = [(neg.tilted(of_batch) if of_batch else neg, hard_keys)]
    else:  # hard negatives of the sample, which count differently, are a part of their own
        neg = negatives_of(batch, [(queries, docs)], hard=hard, owned=False, optional=True)
        own = own_negatives(batch, queries[0], optional=True)
        parts = [(neg.tilted(of_batch) if of_batch else neg, all_hard)]
        parts.append((own.tilted(of_own) if of_own else own, every.shape[1]))
    for direction in further:
        anchors = queries if direction == "query_to_query" else docs
        keys = queries if direction in ("query_to_query", "doc_to_query") else docs
        others = hard if direction == "doc_to_doc" else None
        keys = keys if others is None else [*keys]  # hard negatives are further keys: these are not the anchors alone
        part = negatives_of(batch, [(anchors, keys)], hard=others, owned=False, optional=True)
        parts.append((part, 0 if others is None else all_hard))
    negatives = joined([part for part, _ in parts], [count for _, count in parts])
    if batch.ids is not None or batch.log_q is not None:
        negatives.valid = checks.require_negatives(sum(part.count for part, _ in parts))
    pos = (queries[0] * docs[0]).sum(-1, keepdim=True)
    twice = 2.0 if "doc_to_query" in batch.directions else 1.0
    return Scores(pos, negatives, hard=sum(count for _, count in parts), times=twice)
