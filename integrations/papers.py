"""The numbers that papers print, from ``papers.toml``."""

from __future__ import annotations

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

    >>> numbers("graph", "MUTAG")["ADNCE"]
    (89.04, 1.3)
    """
    return {method: (mean, sd) for method, (mean, sd) in _everything().get(domain, {}).get(dataset, {}).items()}
