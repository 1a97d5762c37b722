"""Verdicts on paired seeds: different, equivalent or cannot tell, with intervals that agree. They need scipy.

Each row of a table is compared with its baseline by a paired t-test from 3 seeds on, corrected for the rows after Holm.
The interval beside a verdict is at the level of that verdict, so it excludes 0 exactly where the row is different, and
a row is equivalent exactly where its interval contains 0 and lies within the margin (two one-sided tests).
``tests/bench/statistics.py`` simulates how often this errs and what it finds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple

from counterpoint.install import install

Kind = Literal["different", "equivalent", "cannot tell"]

ALPHA = 0.05
FEWEST = 3  # pairs from which on there is a test
POWER = 0.8

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


@dataclass(frozen=True)
class Verdict:
    """A row minus the baseline over the seeds that both have; NaN where fewer than 3 pairs allow no test.

    ``level`` is that of the interval ``low`` to ``high``, ``corrected`` the p-value after Holm, and ``detectable`` the
    smallest true difference that so many pairs find with 80 % power, if their standard deviation is as observed.
    """

    kind: Kind
    difference: float
    low: float
    high: float
    level: float
    p: float
    corrected: float
    margin: float
    detectable: float
    pairs: int

    @property
    def different(self) -> bool:
        return self.kind == "different"

    @property
    def within(self) -> bool:
        """Whether the interval lies within the margin; rows that are different may have it too."""
        return -self.margin <= self.low and self.high <= self.margin


class Judged(NamedTuple):
    """Arrays of the shape of the mean differences: a table of rows, or tables of rows along the last axis."""

    low: Any
    high: Any
    level: Any
    p: Any
    corrected: Any
    different: Any
    equivalent: Any


def compare(
    baseline: Mapping[Any, float],
    rows: Mapping[str, Mapping[Any, float]],
    margin: float = 0.0,
    alpha: float = ALPHA,
) -> dict[str, Verdict]:
    """Return the verdict on each row that shares a seed with the baseline; the rows are one family of tests.

    Args:
        baseline: its value per seed.
        rows: the values per seed of each row.
        margin: differences within it are of no interest; with 0 only rows that never differ are equivalent.
        alpha: how often a table without any true difference may have a row that is called different.

    >>> values = {"hcl": {0: 61.0, 1: 62.5, 2: 60.8}, "dcl": {0: 59.9, 1: 61.1, 2: 60.2}}
    >>> {row: verdict.kind for row, verdict in compare({0: 60.0, 1: 61.4, 2: 59.9}, values).items()}
    {'hcl': 'different', 'dcl': 'cannot tell'}
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha={alpha}: expected a probability between 0 and 1.")
    if not margin >= 0:
        raise ValueError(f"margin={margin}: expected a number of at least 0.")
    paired = {row: [x - baseline[seed] for seed, x in values.items() if seed in baseline] for row, values in rows.items()}
    paired = {row: gaps for row, gaps in paired.items() if gaps}
    means = [fmean(gaps) for gaps in paired.values()]
    sds = [stdev(gaps) if len(gaps) > 1 else math.nan for gaps in paired.values()]
    pairs = [len(gaps) for gaps in paired.values()]
    judged = judge(means, sds, pairs, margin, alpha)
    tests = sum(n >= FEWEST for n in pairs)
    verdicts = {}
    for i, row in enumerate(paired):
        kind: Kind = "different" if judged.different[i] else "equivalent" if judged.equivalent[i] else "cannot tell"
        low, high, level, p, corrected = (float(array[i]) for array in judged[:5])
        detectable = sds[i] * effect_size(pairs[i], tests, alpha) if pairs[i] >= FEWEST else math.nan
        verdicts[row] = Verdict(kind, means[i], low, high, level, p, corrected, margin, detectable, pairs[i])
    return verdicts


def judge(mean: Any, sd: Any, pairs: Any, margin: float = 0.0, alpha: float = ALPHA) -> Judged:
    """Judge rows by their mean differences, the standard deviations of these, and their numbers of pairs.

    The last axis is the family; further axes are further tables. Intervals are Bonferroni's, so that they hold
    together, except where only a later step of Holm finds a row: there the interval is at the level of that step.
    """
    import numpy as np

    stats = _stats()
    mean, sd, pairs = np.broadcast_arrays(*(np.asarray(x, float) for x in (mean, sd, pairs)))
    tested = pairs >= FEWEST
    freedom = np.where(tested, pairs - 1, np.nan)
    error = sd / np.sqrt(pairs)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * stats.t.sf(np.where(mean == 0, 0, abs(mean) / error), freedom)
    order = np.argsort(p, axis=-1)  # NaN last
    ordered = np.take_along_axis(p, order, -1)
    tests = tested.sum(-1, keepdims=True)
    remaining = np.maximum(tests - np.arange(p.shape[-1]), 1)
    holm = np.maximum.accumulate(np.minimum(ordered * remaining, 1), axis=-1)
    later = (holm <= alpha) & (ordered * tests > alpha)  # found, but not at the first step
    share = alpha / np.where(later, remaining, np.maximum(tests, 1))
    corrected, outside = np.empty_like(p), np.empty_like(p)
    np.put_along_axis(corrected, order, holm, -1)
    np.put_along_axis(outside, order, share, -1)
    half = error * stats.t.isf(outside / 2, freedom)
    low, high = mean - half, mean + half
    different = corrected <= alpha
    equivalent = ~different & (-margin <= low) & (high <= margin)
    return Judged(low, high, np.where(tested, 1 - outside, np.nan), p, corrected, different, equivalent)


@cache
def effect_size(pairs: int, tests: int = 1, alpha: float = ALPHA, power: float = POWER) -> float:
    """Return the true difference, in standard deviations of a pair's, that is found with this power."""
    from scipy.optimize import brentq

    stats, freedom = _stats(), pairs - 1
    critical = stats.t.isf(alpha / tests / 2, freedom)
    root = brentq(lambda shift: stats.nct.sf(critical, freedom, shift) - power, 0, 20 * critical)
    return float(root) / math.sqrt(pairs)

