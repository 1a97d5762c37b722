"""Statistics of paired seeds: an interval, a test, and a correction for many tests. Plain torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist

import torch
from torch import Tensor

EXACT = 16  # pairs up to which all sign flips are enumerated
DRAWS = 20_000
FEW = 7  # pairs up to which an interval is Student's


def bootstrap_interval(differences: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """An interval for the mean difference; NaN with fewer than two pairs.

    From resampled pairs, the same in every call: the percentile interval with its tails taken so much further out that,
    for normal differences, its length is that of the t interval (Hesterberg 2015, the expanded percentile interval).
    Up to 7 pairs it is the t interval itself, as the mean of resampled pairs never lies outside of the pairs, and three
    of them, say, have the true mean between them in 3 of 4 cases only.
    """
    x = torch.tensor(differences, dtype=torch.float64)
    n = len(x)
    if n < 2:
        return math.nan, math.nan
    reach = _t_quantile((1 + level) / 2, n - 1)
    if n <= FEW:
        mean, half = float(x.mean()), reach * float(x.std()) / math.sqrt(n)
        return mean - half, mean + half
    tail = NormalDist().cdf(-math.sqrt(n / (n - 1)) * reach)
    picks = torch.randint(n, (DRAWS, n), generator=torch.Generator().manual_seed(0))
    low, high = x[picks].mean(1).quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return low, high


def sign_flip_p(differences: Sequence[float]) -> float:
    """The two-sided p-value of "no difference" under random signs of the paired differences; NaN without any.

    Exact, over all signs, for up to 16 pairs; from 20 000 draws, the same in every call, above. With ``n`` pairs it is
    at least ``2^(1 - n)``.
    """
    x = torch.tensor(differences, dtype=torch.float64)
    n = len(x)
    if n == 0:
        return math.nan
    seen = x.sum().abs() - 1e-12 * x.abs().sum()  # ties count, whatever the rounding
    if n <= EXACT:
        signs = 1 - 2 * (torch.arange(2**n).unsqueeze(1) >> torch.arange(n) & 1).double()
        return float(((signs @ x).abs() >= seen).double().mean())
    signs = 1 - 2 * torch.randint(2, (DRAWS, n), generator=torch.Generator().manual_seed(0)).double()
    return (1 + int(((signs @ x).abs() >= seen).sum())) / (1 + DRAWS)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's correction: p-values that may each be compared with the level of all tests together. NaN stay NaN."""
    corrected, most = list(p), 0.0
    order = sorted((i for i in range(len(p)) if not math.isnan(p[i])), key=lambda i: p[i])
    for rank, i in enumerate(order):
        most = max(most, min(1.0, p[i] * (len(order) - rank)))
        corrected[i] = most
    return corrected


@cache
def _t_quantile(probability: float, freedom: int) -> float:
    """A quantile above 1/2 of Student's t: of ``a`` in ``t = sqrt(freedom) tan(a)`` the density is a cosine's power."""
    angle = torch.linspace(0, math.pi / 2, 200_001, dtype=torch.float64)
    below: Tensor = torch.cumulative_trapezoid(angle.cos() ** (freedom - 1), angle)
    at = int(torch.searchsorted(below, (2 * probability - 1) * below[-1]))
    return math.sqrt(freedom) * math.tan(float(angle[at + 1]))
