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
    read: dict[str, Any] = tomllib.loads((Path(__file__).parent / "papers.toml").read_text(encoding="utf-8"))
    return read


def numbers(domain: str, dataset: str) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation (NaN if none is printed) of each method that a paper has for this data set.

    >>> numbers("graph", "MUTAG")["ADNCE"]
    (89.04, 1.3)
    """
    rows = _everything().get(domain, {}).get(dataset, {})
    return {method: (mean, sd[0] if sd else math.nan) for method, (mean, *sd) in rows.items()}
