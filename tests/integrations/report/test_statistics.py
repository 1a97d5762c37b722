"""Verdicts on paired seeds: against scipy, against each other, and against what a simulation says of them."""

from __future__ import annotations

import importlib.util
import itertools
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from counterpoint.install import install
from counterpoint.integrations.report import statistics
from counterpoint.integrations.report.statistics import compare, effect_size, pool, random_effects

BENCH = Path(__file__).parents[2] / "bench"


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, BENCH / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def bench():
    return loaded("bench_statistics")


def test_tuning_makes_differences_that_more_tuning_seeds_remove():
    """Of settings that are worth the same, tables name at most 5 %; otherwise the fewer tuning seeds, the more."""
    simulate = loaded("bench_tuning").simulate
    assert simulate([0, 0, 0], tuning=1, seeds=20, repetitions=4000, seed=0)["luck"] < 0.06
    one, many = (simulate([0, 0.5, 1], tuning, seeds=20, repetitions=4000, seed=0) for tuning in (1, 200))
    assert one["luck"] > 0.4
    assert one["kept"] > 0.5 * one["luck"]
    assert many["luck"] < 0.06
    assert many["apart"] < 0.01


def table(seed, rows, seeds, effects=0.0):
    """A baseline and rows with noise, per seed."""
    x = np.random.default_rng(seed).normal(60, 1, (rows + 1, seeds))
    x[1:] += np.broadcast_to(effects, rows)[:, None]
    base, *others = (dict(enumerate(values)) for values in x.tolist())
    return base, {f"row {i}": values for i, values in enumerate(others)}


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(3, 9), st.floats(0, 6), st.floats(0, 8))
def test_interval_verdict_and_p_value_never_disagree(seed, rows, seeds, effect, margin):
    base, others = table(seed, rows, seeds, np.linspace(0, effect, rows))
    verdicts = list(compare(base, others, margin).values())
    assume(all(abs(v.corrected - 0.05) > 1e-9 for v in verdicts))
    for v in verdicts:
        excludes = v.low > 0 or v.high < 0
        within = -margin <= v.low and v.high <= margin
        assert (v.kind == "different") == excludes == (v.corrected < 0.05)
        assert (v.kind == "equivalent") == (within and not excludes)
        assert v.low < v.difference < v.high
        assert 1 - 0.05 - 1e-12 <= v.level <= 1 - 0.05 / rows + 1e-12
        x = v.difference / (v.sd / math.sqrt(seeds))
        assert v.p == pytest.approx(2 * scipy.stats.t.sf(abs(x), seeds - 1))
        half = v.sd / math.sqrt(seeds) * scipy.stats.t.isf((1 - v.level) / 2, seeds - 1)
        assert v.high - v.low == pytest.approx(2 * half)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 5), st.floats(0, 5))
def test_the_correction_is_the_closed_test_of_bonferroni(seed, rows, effect):
    """A row is different when Bonferroni finds a difference in each set of rows that it is in."""
    verdicts = list(compare(*table(seed, rows, 4, np.linspace(0, effect, rows))).values())
    for i, v in enumerate(verdicts):
        rest = [j for j in range(rows) if j != i]
        sets = [(i, *more) for k in range(rows) for more in itertools.combinations(rest, k)]
        expected = max(min(1.0, len(one) * min(verdicts[j].p for j in one)) for one in sets)
        assert v.corrected == pytest.approx(expected)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.floats(0.1, 10), st.floats(-50, 50))
def test_verdicts_know_no_unit_sign_or_order(seed, unit, shift):
    base, others = table(seed, 4, 5, [0, 1, 2, 4])
    first = compare(base, others, 1.5)
    changed = {
        row: {s: -unit * x + shift for s, x in reversed(values.items())} for row, values in reversed(others.items())
    }
    again = compare({s: -unit * x + shift for s, x in base.items()}, changed, 1.5 * unit)
    for row, v in first.items():
        assert again[row].kind == v.kind
        assert (again[row].low, again[row].high) == pytest.approx((-unit * v.high, -unit * v.low), abs=1e-6)
        assert again[row].detectable == pytest.approx(unit * v.detectable, rel=1e-6)


def test_only_shared_seeds_are_paired_and_three_are_needed():
    base, others = table(0, 1, 6, 3.0)
    values = {"all": others["row 0"], "two": {0: 1.0, 1: 2.0, 7: 3.0}, "one": {5: 1.0}, "none": {9: 1.0}}
    verdicts = compare(base, values)
    assert {row: v.pairs for row, v in verdicts.items()} == {"all": 6, "two": 2, "one": 1}
    assert verdicts["all"] == compare(base, {"all": values["all"]})["all"]  # untested rows are not in the family
    for row in ("two", "one"):
        v = verdicts[row]
        assert v.kind == "cannot tell"
        assert all(map(math.isnan, (v.low, v.high, v.level, v.p, v.corrected, v.detectable)))
    assert compare({}, values) == compare(base, {}) == {}


def test_equal_differences_mean_steps_not_certainty():
    """One test sample more in each of three seeds proves nothing; in each of ten it does."""
    for seeds, kind in ((3, "cannot tell"), (5, "different"), (10, "different")):
        base = {seed: 60.0 + seed for seed in range(seeds)}
        rows = {"same": base, "one sample": {seed: x + 0.28 for seed, x in base.items()}}
        verdicts = compare(base, rows, 0.5)
        assert verdicts["one sample"].kind == kind
        assert verdicts["same"].kind == "equivalent"
        assert (verdicts["same"].low, verdicts["same"].high, verdicts["same"].p) == (0, 0, 1)


@pytest.mark.parametrize(("options", "said"), [({"margin": -1}, "margin=-1"), ({"margin": math.nan}, "margin=nan")])
def test_bad_settings_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        compare({0: 1.0}, {"a": {0: 2.0}}, **options)


@pytest.mark.parametrize(("pairs", "tests"), [(3, 1), (5, 5), (10, 10), (20, 2)])
def test_the_detectable_difference_is_found_with_the_power_it_names(pairs, tests):
    x = np.random.default_rng(0).normal(effect_size(pairs, tests), 1, (20_000, pairs))
    p = scipy.stats.ttest_1samp(x, 0, axis=1).pvalue
    assert (p < 0.05 / tests).mean() == pytest.approx(0.8, abs=4.5 * math.sqrt(0.16 / 20_000))


@pytest.mark.parametrize(("difference", "margin", "size"), [(0.6, 0, 0.6), (0.2, 1, 0.8), (1.02, 1, 1.02)])
def test_so_many_more_pairs_would_tell(difference, margin, size):
    noise = np.random.default_rng(0).normal(size=6)
    gaps = difference + (noise - noise.mean()) / noise.std(ddof=1)
    verdict = compare(dict.fromkeys(range(6), 0.0), {"a": dict(enumerate(gaps))}, margin)["a"]
    assert verdict.kind == "cannot tell"
    enough = 6 + verdict.missing
    assert effect_size(enough) <= size < effect_size(enough - 1)
    assert compare({0: 1.0, 1: 2.0, 2: 4.0}, {"a": {0: 2.0, 1: 1.0, 2: 4.0}})["a"].missing == statistics.MANY


def test_rounding_is_not_a_difference():
    verdict = compare({0: 0.3, 1: 0.3, 2: 0.6}, {"a": {0: 0.1 + 0.2, 1: 0.1 + 0.2, 2: 0.6}})["a"]
    assert (verdict.kind, verdict.difference) == ("equivalent", 0)


def test_without_scipy(monkeypatch):
    for module in ("scipy", "scipy.stats"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=re.escape(install("report"))):
        compare({0: 1.0}, {"a": {0: 2.0}})


# ---- the simulation that docs/reports.md quotes ------------------------------------------------


def below(rate, promised, repetitions):
    return rate <= promised + 4.5 * math.sqrt(promised * (1 - promised) / repetitions)


@pytest.mark.parametrize("noise", ["normal", "skewed runs", "heavy tails", "in steps"])
def test_errors_are_as_rare_as_promised(bench, noise):
    for rows, seeds in ((2, 3), (5, 3), (10, 5)):
        found = bench.simulate(noise, rows, seeds, 2000, 0)
        for kind in ("error", "error beside others", "false ="):
            assert below(found[kind], 0.05, 2000), (kind, rows, seeds)
        assert found["covered"] >= 0.95
    assert found["power 4"] > 0.9  # 10 rows, 5 seeds
    if noise == "normal":
        assert found["error"] > 0.03  # and not timid: rows share a baseline, so a little below 5 %


# ---- several data sets and tasks ---------------------------------------------------------------


def test_random_effects_by_hand():
    """Of trials of BCG vaccine, log relative risks: statsmodels' combine_effects(method_re="iterated", use_t=True)."""
    y = [-0.8893, -1.5854, -1.3481, -1.4416, -0.2175, -0.7861, -1.6209, 0.0120, -0.4694, -1.3713, -0.3394, 0.4459,
         -0.0173]  # fmt: skip
    v = [0.3256, 0.1946, 0.4154, 0.0200, 0.0512, 0.0069, 0.2230, 0.0040, 0.0564, 0.0730, 0.0124, 0.5325, 0.0714]
    assert random_effects(y, v) == pytest.approx((-0.7149703, 0.1808945), abs=1e-7)


def test_equal_precision_is_the_t_interval_of_the_means():
    y = np.random.default_rng(0).normal(0, 5, 6)
    mean, error = random_effects(y, [0.01] * 6)
    assert (mean, error) == pytest.approx((y.mean(), y.std(ddof=1) / math.sqrt(6)), rel=1e-6)
    same, exact = random_effects([2.0, 2.0, 2.0], [0.3, 0.6, 0.3])
    assert (same, exact) == pytest.approx((2.0, math.sqrt(1 / (1 / 0.3 + 1 / 0.6 + 1 / 0.3))))
    assert random_effects([1.0, 2.0, 3.0], [0.0, 0.0, 0.0]) == pytest.approx((2.0, 1 / math.sqrt(3)), rel=1e-6)


def test_pooled_verdicts_need_three_data_sets():
    sets = [compare(*table(seed, 2, 5, [5.0, 0.0]), margin=3.0) for seed in range(4)]
    rows = {row: [found[row] for found in sets] for row in sets[0]}
    pooled = pool(rows | {"rare": rows["row 0"][:2]}, margin=3.0)
    assert {row: (v.kind, v.pairs) for row, v in pooled.items()} == {
        "row 0": ("different", 4), "row 1": ("equivalent", 4),
    }  # fmt: skip
    assert pooled["row 0"].low < 5 < pooled["row 0"].high
    assert pool({}) == {}
