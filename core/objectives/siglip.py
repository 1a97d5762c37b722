"""SigLIP: every pair is a binary classification of its own."""

from torch import Tensor

from ..batch.scores import Negatives
from ..hyper import Real
from ..objective import Objective
from ..values import host_values
from .infonce import softplus


class SigLIP(Objective, name="siglip"):
    """The sigmoid loss: positives should score above a bias, negatives below it.

    ``log(1 + e^{-(p / t + b)}) + sum_j log(1 + e^{s_j / t + b})``. No softmax couples the negatives of an anchor. The
    paper trains scale and bias together with the encoders::

        cp.SigLIP(cp.Learned(0.1, low=0.01), cp.Learned(-10.0, low=-100.0, high=0.0))

    Pairs are ``one_way``, images with texts, each counted once. Of several positives, the average counts.

    Paper: Zhai et al. 2023, https://arxiv.org/abs/2303.15343.

    >>> import torch, counterpoint as cp
    >>> cp.SigLIP(0.1, -10)(torch.eye(4), torch.eye(4))
    tensor(0.6933)
    """

    formula = "log(1 + e^{-(p / t + b)}) + sum_j log(1 + e^{s_j / t + b})"
    use = "images and texts, in batches whose negatives should not compete with one another"
    tune_first = "learned t and bias; else t, then bias"
    cost = "a softplus in place of an exponential"
    pairing = "one_way"

    temperature: Real = Real("t", above=0, default=0.1, always=True, doc="``t`` > 0, 1 over the paper's scale ``t'``.")
    bias: Real = Real("b", default=-10.0, doc="Added to all ``s / t``; about minus the log of the number of negatives.")

    def per_anchor(self, pos: Tensor, neg: Negatives) -> Tensor:
        t, b = self.temperature, host_values().get("every bias", self.bias)
        scale = 1 / t  # of a tensor, a quotient of all pairs costs twice as much
        log_odds: Tensor = neg.mean(lambda s: softplus(s * scale + b)) * neg.count
        return softplus(-(pos / t + b)) + log_odds
