"""Verdicts on paired seeds: different, equivalent or cannot tell, with intervals that agree. They need scipy.

Each row of a table is compared with its baseline by a paired t-test from 3 seeds on, corrected for the rows after Holm.
The interval beside a verdict is at the level of that verdict, so it excludes 0 exactly where the row is different, and
a row is equivalent exactly where its interval contains 0 and lies within the margin (two one-sided tests).
``tests/bench/bench_statistics.py`` simulates how often this errs and what it finds.
"""

import math
from bisect import bisect_left
from collections import namedtuple
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from statistics import fmean, stdev
from types import ModuleType
from typing import Any, Literal

from counterpoint.install import install

Kind = Literal["different", "equivalent", "cannot tell"]

ALPHA = 0.05
FEWEST = 3  # pairs from which on there is a test
POWER = 0.8
MANY = 1000  # pairs beyond which nobody trains

MISSING = f"intervals and tests need scipy: {install('report')}"


def available() -> bool:
    """Return whether scipy is installed."""
    return find_spec("scipy") is not None


def _stats() -> ModuleType:
    if not available():
        raise ImportError(MISSING)
    return import_module("scipy.stats")


@dataclass(frozen=True)
class Verdict:
    """A row minus the baseline over the seeds that both have; NaN where fewer than 3 pairs allow no test.

    ``level`` is that of the interval ``low`` to ``high``, ``corrected`` the p-value after Holm, and ``detectable`` the
    smallest true difference that so many pairs of the observed standard deviation ``sd`` find with 80 % power.
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
    sd: float

    @property
    def tested(self) -> bool:
        return not math.isnan(self.p)

    @property
    def different(self) -> bool:
        return self.kind == "different"

    @property
    def word(self) -> str:
        """What sentences and tables say: ``kind``, or in which direction it is different."""
        if self.kind == "equivalent" and self.difference == self.sd == 0:
            return "the same numbers"
        return self.kind if not self.different else "higher" if self.difference > 0 else "lower"

    @property
    def within(self) -> bool:
        """Whether the interval lies within the margin; rows that are different may have it too."""
        return -self.margin <= self.low and self.high <= self.margin

    @property
    def missing(self) -> int:
        """About how many more pairs would tell, at 80 % power, if the difference stays; ``MANY`` if that is too few.

        They find the difference, or leave it as far within the margin.
        """
        tests, size = round(ALPHA / (1 - self.level)), max(abs(self.difference), self.margin - abs(self.difference))
        spread = float(_steps(self.difference, self.sd))
        counts = range(self.pairs + 1, self.pairs + MANY)
        return 1 + bisect_left(counts, True, key=lambda pairs: effect_size(pairs, tests) * spread <= size)


# arrays of the shape of the mean differences: a table of rows, or tables of rows along the last axis
Judged = namedtuple("Judged", ["kind", "low", "high", "level", "p", "corrected"])


def compare(
    baseline: Mapping[int, float], rows: Mapping[str, Mapping[int, float]], margin: float = 0.0, *, test: bool = True
) -> dict[str, Verdict]:
    """Return the verdict on each row that shares a seed with the baseline; the rows are one family of tests.

    Args:
        baseline: its value per seed.
        rows: the values per seed of each row.
        margin: differences within it are of no interest; with 0 only rows that never differ are equivalent.
        test: False computes the differences alone, which does not need scipy.

    >>> values = {"hcl": {0: 61.0, 1: 62.5, 2: 60.8}, "dcl": {0: 59.9, 1: 61.1, 2: 60.2}}
    >>> {row: verdict.kind for row, verdict in compare({0: 60.0, 1: 61.4, 2: 59.9}, values).items()}
    {'hcl': 'different', 'dcl': 'cannot tell'}
    """
    if not margin >= 0:
        raise ValueError(f"margin={margin}: expected a number of at least 0.")
    summaries = {}
    for row, values in rows.items():
        pairs = [(x, baseline[seed]) for seed, x in values.items() if seed in baseline]
        if gaps := [0.0 if math.isclose(x, y, rel_tol=1e-12) else x - y for x, y in pairs]:
            summaries[row] = fmean(gaps), stdev(gaps) if len(gaps) > 1 else math.nan, len(gaps)
    return _verdicts(summaries, margin, test)


def _verdicts(rows: Mapping[str, tuple[float, float, int]], margin: float, test: bool = True) -> dict[str, Verdict]:
    """Return the verdicts on rows of a mean difference, the standard deviation of a pair's, and a number of pairs."""
    if not rows:
        return {}
    means, sds, counts = zip(*rows.values(), strict=True)
    judged = judge(means, sds, counts, margin) if test else None
    tests = sum(pairs >= FEWEST for pairs in counts)
    verdicts = {}
    for i, (row, (mean, sd, pairs)) in enumerate(rows.items()):
        kind: Kind = "cannot tell"
        low = high = level = p = corrected = detectable = math.nan
        if judged is not None and pairs >= FEWEST:
            kind, low, high, level, p, corrected = (array[i].item() for array in judged)
            detectable = float(_steps(mean, sd)) * effect_size(pairs, tests)
        verdicts[row] = Verdict(kind, mean, low, high, level, p, corrected, margin, detectable, pairs, sd)
    return verdicts


def judge(mean: Any, sd: Any, pairs: Any, margin: float = 0.0) -> Judged:
    """Judge rows by their mean differences, the standard deviations of these, and their numbers of pairs.

    The last axis is the family; further axes are further tables. Intervals are Bonferroni's, so that they hold
    together, except where only a later step of Holm finds a row: there the interval is at the level of that step.
    Differences that are all equal mean that the metric has steps rather than that there is no noise; see ``_steps``.
    """
    import numpy as np

    t = _stats().t
    mean, sd, pairs = np.broadcast_arrays(*(np.asarray(x, float) for x in (mean, sd, pairs)))
    tested = pairs >= FEWEST
    freedom, error = np.where(tested, pairs - 1, np.nan), _steps(mean, sd) / np.sqrt(pairs)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * t.sf(np.where(mean == 0, 0, abs(mean) / error), freedom)
    order = np.argsort(p, axis=-1)  # NaN last
    rank = np.argsort(order, axis=-1)
    tests = np.maximum(tested.sum(-1, keepdims=True), 1)
    remaining = np.maximum(tests - rank, 1)
    steps = np.take_along_axis(np.minimum(p * remaining, 1), order, -1)
    corrected = np.take_along_axis(np.maximum.accumulate(steps, axis=-1), rank, -1)
    later = (corrected <= ALPHA) & (p * tests > ALPHA)  # found, but not at the first step
    outside = ALPHA / np.where(later, remaining, tests)
    half = error * t.isf(outside / 2, freedom)
    low, high = mean - half, mean + half
    within = (-margin <= low) & (high <= margin)
    kind = np.select([corrected <= ALPHA, within], ["different", "equivalent"], "cannot tell")
    return Judged(kind, low, high, 1 - outside, p, corrected)


def _steps(mean: Any, sd: Any) -> Any:
    """Return the standard deviation, or where it is 0 that of numbers rounded to steps as large as their difference."""
    import numpy as np

    return np.where(sd <= 1e-9 * abs(mean), abs(mean) / 6**0.5, sd)


@cache
def effect_size(pairs: int, tests: int = 1) -> float:
    """Return the true difference, in standard deviations of a pair's, that is found with 80 % power."""
    from scipy.optimize import brentq

    stats, freedom = _stats(), pairs - 1
    critical = stats.t.isf(ALPHA / tests / 2, freedom)
    root = brentq(lambda shift: stats.nct.sf(critical, freedom, shift) - POWER, 0, 20 * critical)
    return float(root) / math.sqrt(pairs)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return Student's 95 % interval of the mean of at least two values."""
    half = float(_stats().t.isf(ALPHA / 2, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def pool(rows: Mapping[str, Sequence[Verdict]], margin: float = 0.0) -> dict[str, Verdict]:
    """Return the verdict on each row over all its data sets; those with fewer than 3 are left out.

    A random-effects mean with the variance between data sets after Paule and Mandel and the interval of Hartung, Knapp,
    Sidik and Jonkman (https://doi.org/10.1186/1471-2288-14-25), never shorter than that of a common effect. ``pairs``
    counts data sets, and ``sd`` is the interval's standard error times their root, so that it reads as that of one.
    """
    summaries = {}
    for row, verdicts in rows.items():
        known = [v for v in verdicts if v.pairs >= FEWEST]
        if len(known) >= FEWEST:
            mean, error = random_effects([v.difference for v in known], [v.sd**2 / v.pairs for v in known])
            summaries[row] = mean, error * math.sqrt(len(known)), len(known)
    return _verdicts(summaries, margin)


def random_effects(effects: Sequence[float], variances: Sequence[float]) -> tuple[float, float]:
    """Return the random-effects mean of at least two data sets and its Hartung-Knapp standard error."""
    import numpy as np
    from scipy.optimize import brentq

    y, v = np.asarray(effects, float), np.asarray(variances, float)
    spread, freedom = float(((y - y.mean()) ** 2).sum()), len(y) - 1
    if spread == 0:
        return float(y[0]), float((1 / (1 / v).sum()) ** 0.5 if v.all() else 0.0)

    def weighted(between: float) -> tuple[float, float, float]:
        weights = 1 / (v + between)
        mean = float((weights * y).sum() / weights.sum())
        return mean, float((weights * (y - mean) ** 2).sum()), float(weights.sum())

    # Paule and Mandel: the variance between data sets with which the weighted squares are as large as expected
    low, high = (0.0 if v.all() else spread * 1e-12), spread
    between = brentq(lambda x: weighted(x)[1] - freedom, low, high) if weighted(low)[1] > freedom else low
    mean, squares, weight = weighted(between)
    return mean, math.sqrt(max(1.0, squares / freedom) / weight)
