"""The numbers that papers print, from ``papers.toml``."""

from __future__ import annotations

import math
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@lru_cache
def _everything() -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / "papers.toml").read_text(encoding="utf-8"))


def numbers(domain: str, dataset: str) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation of each method that a paper has for this data set, empty if none has.

    The standard deviation is NaN where the paper has none.

    >>> numbers("graph", "MUTAG")["ADNCE"]
    (89.04, 1.3)
    """
    found = _everything().get(domain, {}).get(dataset, {})
    return {method: (mean, sd[0] if sd else math.nan) for method, (mean, *sd) in found.items()}
