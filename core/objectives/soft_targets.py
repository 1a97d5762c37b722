"""Soft targets: how similar each key should be, by a guide."""

from typing import Literal, get_args

import torch
from torch import Tensor

from ..batch.scores import Scores
from ..hyper import Choice, Real
from ..objective import Objective

Weight = Literal["softmax", "linear"]


class SoftTargets(Objective, name="soft"):
    """Cross entropy with graded targets: each key counts as a positive as much as a guide finds it similar.

    ``-sum_j w_j log(E(s_j) / sum_k E(s_k))`` over all keys, positives included, with ``E(s) = e^{s/t}``. With
    ``weight="softmax"``, ``w = softmax(g / tau)`` of the guide's similarities ``g`` (X-CLR); as ``tau`` approaches 0,
    only the key that the guide finds most similar is a positive. With ``weight="linear"``, ``w_j`` is proportional to
    ``(1 + g_j) / 2`` (CWCL). The guide is another model, ``loss_fn(z1, z2, guide=(g1, g2))``. Without one, ``g`` are
    the similarities of the model itself. Either way they are constants.

    Papers:
    Sobal et al. 2024 (X-CLR), https://arxiv.org/abs/2407.18134;
    Srinivasa et al. 2023 (CWCL), https://arxiv.org/abs/2309.14580.

    >>> import torch, counterpoint as cp
    >>> z1, z2 = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(0))
    >>> cp.SoftTargets(0.5, tau=0.1)(z1, z2, guide=(torch.eye(8), torch.eye(8)))
    tensor(2.5933)
    """

    formula = "-sum_j w_j log(E(s_j) / sum_k E(s_k)),  w = softmax(g / tau) or (1 + g) / 2"
    paper = "Sobal et al. 2024, X-CLR, https://arxiv.org/abs/2407.18134"
    use = "samples are more or less alike, and another model can tell how much"
    tune_first = "t, then tau (.02 to .2)"
    cost = "the guide's embeddings, and two sums more"
    uses_guide = True
    in_chunks = True  # several sums of two similarities each

    temperature: Real = Real("t", above=0, default=0.1, always=True, doc="``t`` > 0.")
    tau: Real = Real(above=0, default=0.1, doc="Temperature of the targets, > 0; not used by ``weight=linear``.")
    weight: Choice[Weight] = Choice(*get_args(Weight), default="softmax", kw_only=True, doc="See above.")

    def losses(self, scores: Scores) -> Tensor:
        t, neg = self.temperature, scores.neg
        pos = scores.pos if scores.v is None else scores.v  # with targets=, which are the guide
        guide_pos = pos.detach() if scores.guide_pos is None else scores.guide_pos
        log_sum = torch.logaddexp(neg.logsumexp(lambda s: s / t), scores.positives_logsumexp(pos / t))

        def surprise(s: Tensor, log_sum: Tensor) -> Tensor:
            return log_sum - s / t

        # its mean by the targets: over the negatives, then over all keys
        log_w = self._log_target(guide_pos)
        log_negatives, mean = neg.expectation(self._log_target, surprise, log_sum, guided=True)
        log_total = torch.logaddexp(log_negatives, scores.positives_logsumexp(log_w))
        share = (log_w - log_total).clamp(max=0).exp()  # entries that are not positives could exceed one
        own = scores.positives_mean(share * surprise(pos, log_sum)) * scores.positives_count()
        return own + (log_negatives - log_total).exp() * mean

    def _log_target(self, g: Tensor, *_: Tensor) -> Tensor:
        if self.weight == "softmax":
            return g / self.tau
        return ((1 + g) / 2).clamp(min=torch.finfo(g.dtype).tiny).log()
