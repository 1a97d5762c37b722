"""Statistics of paired seeds: an interval, a test, and a correction for many tests. They need scipy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from statistics import NormalDist, fmean, stdev
from typing import Any

from counterpoint.install import install

EXACT = 16  # up to so many pairs, the test enumerates all sign flips
DRAWS = 20_000
FEW = 7  # up to so many pairs, the interval is Student's

MISSING = f"intervals and tests need scipy: {install('report')}"


def available() -> bool:
    """Return whether scipy is installed."""
    return find_spec("scipy") is not None


def _stats() -> Any:
    try:
        from scipy import stats
    except ImportError as error:
        raise ImportError(MISSING) from error
    return stats


def bootstrap_interval(differences: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Return an interval for the mean difference; NaN with fewer than two pairs.

    Up to 7 pairs it is Student's t interval: the mean of resampled pairs never lies outside of the pairs, and three of
    them, say, have the true mean between them in only 3 of 4 cases. Above, it is the percentile interval of resampled
    pairs, with a fixed seed, whose tails are chosen such that for normal differences its length is that of the t
    interval (the expanded percentile interval, Hesterberg 2015, https://arxiv.org/abs/1411.5279).
    """
    n = len(differences)
    if n < 2:
        return math.nan, math.nan
    stats = _stats()
    quantile = float(stats.t.ppf((1 + level) / 2, n - 1))
    if n <= FEW:
        mean, half = fmean(differences), quantile * stdev(differences) / math.sqrt(n)
        return mean - half, mean + half
    tail = NormalDist().cdf(-math.sqrt(n / (n - 1)) * quantile)
    percentile = {"confidence_level": 1 - 2 * tail, "method": "percentile"}
    low, high = stats.bootstrap((differences,), _mean, n_resamples=DRAWS, rng=0, **percentile).confidence_interval
    return float(low), float(high)


def sign_flip_p(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of "no difference" under random signs of the differences; NaN without any.

    Exact, over all signs, for up to 16 pairs; from 20 000 draws with a fixed seed above. With ``n`` pairs it is at
    least ``2^(1 - n)``.
    """
    n = len(differences)
    if n < 2:
        return 1.0 if n else math.nan
    scale = sum(map(abs, differences)) or 1.0

    def distance(signed: Any, axis: int) -> Any:
        return (abs(signed.sum(axis)) / scale).round(12)  # equal sums are ties, whatever their rounding errors

    settings: dict[str, Any] = {"permutation_type": "samples", "alternative": "greater", "vectorized": True, "rng": 0}
    draws = math.inf if n <= EXACT else DRAWS
    return float(_stats().permutation_test((differences,), distance, n_resamples=draws, **settings).pvalue)


def holm(p: Sequence[float]) -> list[float]:
    """Return Holm's corrected p-values, each comparable with the level of all tests together; NaN stay NaN."""
    corrected, largest = list(p), 0.0
    order = sorted((i for i in range(len(p)) if not math.isnan(p[i])), key=lambda i: p[i])
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, p[i] * (len(order) - rank)))
        corrected[i] = largest
    return corrected


def _mean(x: Any, axis: int) -> Any:
    return x.mean(axis)
