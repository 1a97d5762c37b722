"""Compare the results of two methods seed by seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import ttest_rel


def compare(first: Sequence[float], other: Sequence[float]) -> dict[str, float]:
    """Return ``other - first``, paired by seed: the mean, its 95 % t interval and the p-value of the paired t test."""
    difference = np.subtract(other, first)
    mean = float(difference.mean())
    if np.ptp(difference) == 0:  # the t statistic is 0 / 0 or infinite
        return {"difference": mean, "low": mean, "high": mean, "p": float(mean == 0)}
    test = ttest_rel(other, first)
    low, high = test.confidence_interval(0.95)
    return {"difference": mean, "low": float(low), "high": float(high), "p": float(test.pvalue)}
