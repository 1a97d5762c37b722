"""The terms of a loss, as trainers log them."""

from __future__ import annotations

import torch
from torch import Tensor


class Terms(dict[str, Tensor]):
    """The weighted terms of a sum, by name. Multiplying by a number returns the scaled sum.

    The trainer logs the terms of a dict. Losses that wrap another one, such as ``MatryoshkaLoss``, multiply it.
    """

    def sum(self) -> Tensor:
        return torch.stack(list(self.values())).sum()

    def __mul__(self, weight: float | Tensor) -> Tensor:
        return self.sum() * weight

    __rmul__ = __mul__
