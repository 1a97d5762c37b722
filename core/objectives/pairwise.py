"""Losses with another function of each pair than the exponential: SigLIP, and PSL and DrRL for recommenders."""

import math
from typing import Literal

import torch
from torch import Tensor

from ..base import Objective
from ..batch.scores import Negatives
from ..hyper import Choice, Real
from ..values import host_values
from .infonce import softplus

LEAST = 1e-30  # in place of a surrogate of zero, which has no logarithm


class SigLIP(Objective, name="siglip"):
    """The sigmoid loss: positives should score above a bias, negatives below it.

    ``log(1 + e^{-(p / t + b)}) + sum_j log(1 + e^{s_j / t + b})``. No softmax couples the negatives of an anchor. The
    paper trains both, ``cp.SigLIP(cp.Learned(0.1, low=0.01), cp.Learned(-10.0, low=-100.0, high=0.0))``. Pairs are
    ``one_way``, images with texts, each counted once. Of several positives, the average counts.

    Paper: Zhai et al. 2023, https://arxiv.org/abs/2303.15343.

    >>> cp.SigLIP(0.1, -10)(torch.eye(4), torch.eye(4))
    tensor(0.6933)
    """

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


class PSL(Objective, name="psl"):
    """Pairwise softmax loss: in place of the exponential, a surrogate that false negatives cannot dominate.

    ``log mean_j sigma((s_j - p) / 2)^{1/t},  sigma(d) = tanh(d) + 1``, or ``max(0, d + 1)``, or ``arctan(d) + 1``.

    Paper: Yang et al. 2024, Eq. (8), https://arxiv.org/abs/2411.00163.

    >>> cp.PSL(0.5)(torch.eye(4), torch.eye(4))
    tensor(-1.2402)
    """

    use = "recommenders with false negatives"
    tune_first = "t (.02 to .2), then the surrogate"
    cost = "a hyperbolic tangent for each pair and positive"
    on_cosines = True

    temperature: Real = Real("t", above=0, default=0.1, always=True, doc="``t`` > 0, the paper's ``tau*``.")
    surrogate: Choice[Literal["tanh", "relu", "atan"]] = Choice(
        "tanh", "relu", "atan", default="tanh", doc="``sigma``, less one."
    )

    def per_anchor(self, pos: Tensor, neg: Negatives) -> Tensor:
        scale = 1 / self.temperature

        def log_sigma(s: Tensor, p: Tensor) -> Tensor:
            d = (s - p) / 2
            if self.surrogate == "tanh":
                return (torch.nn.functional.logsigmoid(2 * d) + math.log(2)) * scale
            return ((d if self.surrogate == "relu" else d.atan()) + 1).clamp(min=LEAST).log() * scale

        return torch.cat([neg.logsumexp(log_sigma, p) for p in pos.split(1, 1)], 1) - neg.log_count


class DrRL(Objective, name="drrl"):
    """Rényi-robust loss: between softmax, which false negatives dominate, and a hinge, which ignores most negatives.

    ``1 - p + m + (mean_j (eps + weight (s_j - m)_+)^{w*})^{1/w*},  w* = omega / (omega - 1)``, the dual of the order
    ``omega`` of the divergence. The authors train an ``m`` for each user; ``m=learned(0.5,-1,1)`` is one for all.

    Paper: Zhang et al. 2025, https://arxiv.org/abs/2506.15120.

    >>> cp.DrRL(margin=0.2)(torch.eye(4), torch.eye(4))
    tensor(0.3000)
    """

    use = "positives are sometimes wrong pairs; recommenders with false negatives"
    tune_first = "m (0 to .8) or learned, then weight (1 to 100), then omega (1.2 to 5)"
    cost = "less than two powers for each pair"
    on_cosines = True

    margin: Real = Real("m", default=0.5, always=True, doc="``m``, above which negatives count.")
    omega: Real = Real(above=1, default=2.0, doc="Order of the divergence, > 1; large ones are the hinge.")
    weight: Real = Real(above=0, default=1.0, doc="Weight of the negatives, > 0.")
    epsilon: Real = Real(above=0, default=0.1, doc="Keeps the gradient finite where no negative exceeds ``m``.")

    def per_anchor(self, pos: Tensor, neg: Negatives) -> Tensor:
        dual, margin, weight, epsilon = self.omega / (self.omega - 1), self.margin, self.weight, self.epsilon
        log_power = neg.logsumexp(lambda s: dual * (epsilon + weight * torch.relu(s - margin)).log()) - neg.log_count
        return 1 - pos + margin + (log_power / dual).exp()  # type: ignore[no-any-return]
