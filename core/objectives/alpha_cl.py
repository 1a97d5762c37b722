"""alpha-CL: the pair-weighting baseline that ADNCE compares with."""

from torch import Tensor

from ..batch.scores import Negatives
from ..hyper import Flag, Real
from ..objective import Objective


class AlphaCL(Objective, name="alphacl"):
    """alpha-CL-direct: a linear loss with explicit weights on the negatives.

    ``sum_j w_j / W (s_j - p)`` with ``w_j = e^{-(1 - s_j)^power / t}``, ``W = sum_j w_j``; the weights are constants
    (no gradient). ``normalize=False`` is the unnormalized ``W (1 - p) - sum_j w_j (1 - s_j)``.

    Paper: Tian 2022, https://arxiv.org/abs/2201.12680, as in the code of Wu et al. 2023 (``a_cl`` and ``a_cl2``).

    >>> import torch, counterpoint as cp
    >>> cp.AlphaCL(0.5, power=2)(torch.eye(4), torch.eye(4))
    tensor(-1.)
    """

    formula = "sum_j w_j / W (s_j - p),  w = e^{-(1 - s)^power / t}"
    use = "hard negatives should count more, by a power of their distance"
    tune_first = "t, then power"
    cost = "a softmax"

    temperature: Real = Real("t", above=0, default=0.5, always=True, doc="``t`` > 0.")
    power: Real = Real(above=0, default=4.0, doc="Exponent of the distance, > 0; ``tau_plus`` in the official code.")
    normalize: Flag = Flag(default=True, doc="Divide by the sum of the weights.")

    def per_anchor(self, pos: Tensor, neg: Negatives) -> Tensor:
        def log_w(s: Tensor) -> Tensor:
            # rounding can push a cosine above one, where a fractional power is NaN
            distance: Tensor = (1 - s).clamp(min=0) ** self.power
            return -distance / self.temperature

        if self.normalize:
            return neg.expectation(log_w, lambda s: s)[1] - pos
        total = neg.mean(lambda s: log_w(s.detach()).exp()) * neg.count
        pulled = neg.mean(lambda s: log_w(s.detach()).exp() * (1 - s)) * neg.count
        return total * (1 - pos) - pulled  # type: ignore[no-any-return]
