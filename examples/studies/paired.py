"""Compare the results of methods seed by seed, as ``counterpoint report`` does."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from counterpoint.integrations.report import words
from counterpoint.integrations.report.statistics import Verdict
from counterpoint.integrations.report.statistics import compare as judge


def compare(values: Mapping[str, Sequence[float]], first: str, checks: Collection[str] = ()) -> dict[str, Any]:
    """Return the verdict on each row minus the first, as plain data.

    Args:
        values: per row a number per seed, in percent, in the same order of seeds.
        checks: rows that train nothing, each in a family of its own.
    """
    by_seed = {row: dict(enumerate(numbers)) for row, numbers in values.items()}
    base = by_seed.pop(first)
    families = [{row: by_seed[row]} for row in by_seed if row in checks]
    families.append({row: seeds for row, seeds in by_seed.items() if row not in checks})
    verdicts = [judge(base, family, margin=0.5) for family in families]
    return {row: dataclasses.asdict(verdict) for found in verdicts for row, verdict in found.items()}


def said(versus: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the verdicts in words."""
    return "; ".join(words.verdicts({row: Verdict(**one) for row, one in versus.items()}, 1))


NOTE = (
    "in brackets 95% intervals, corrected for the rows as the verdicts are (paired t-tests, Holm); equivalent within "
    "half a point"
)
