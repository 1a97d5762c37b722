"""alpha-CL: the pair-weighting baseline that ADNCE compares with."""

from __future__ import annotations

from torch import Tensor

from ..engine.negatives import Negatives
from ..hyper import Flag, Number, Real
from ..objective import Objective


class AlphaCL(Objective, name="alphacl"):
    """alpha-CL-direct: a linear loss with hand-made weights on the negatives.

    ``sum_j w_j / W (s_j - p)`` with ``w_j = e^{-(1 - s_j)^power / t}``, ``W = sum_j w_j``; the weights pass no
    gradient. ``normalize=False`` is the unnormalised ``W (1 - p) - sum_j w_j (1 - s_j)``.

    Args:
        temperature: ``t`` > 0.
        power: exponent of the distance, > 0. (The official code passes it in an argument called ``tau_plus``.)
        normalize: divide by the sum of the weights.

    Paper: Tian 2022; the code is that of Wu et al. 2023 (``a_cl`` and ``a_cl2``).
    """

    formula = "sum_j w_j / W (s_j - p),  w = e^{-(1 - s)^power / t}"
    paper = "Tian 2022, understanding deep contrastive learning via coordinate-wise optimization"

    temperature = Real("t", 0, open_low=True, always=True)
    power = Real("power", 0, open_low=True)
    normalize = Flag("normalize")

    def __init__(self, temperature: Number = 0.5, power: Number = 4.0, normalize: bool = True) -> None:
        super().__init__(temperature=temperature, power=power, normalize=normalize)

    def per_anchor(self, pos: Tensor, neg: Negatives) -> Tensor:
        def log_w(s: Tensor) -> Tensor:
            # rounding can make a cosine exceed one, where a fractional power would be NaN
            distance: Tensor = (1 - s).clamp(min=0) ** self.power
            return -distance / self.temperature  # type: ignore[no-any-return]

        if self.normalize:
            return neg.expectation(log_w, lambda s: s) - pos
        total = neg.mean(lambda s: log_w(s.detach()).exp()) * neg.count
        pulled = neg.mean(lambda s: log_w(s.detach()).exp() * (1 - s)) * neg.count
        return total * (1 - pos) - pulled  # type: ignore[no-any-return]
