"""The same small budget of tuning for every objective, on a validation metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import counterpoint as cp

from ..command import tune
from ..store.run import TUNING, Run
from .settings import HOST, Settings

# what is tried of parameters without a grid of their own in every domain
GRIDS = {"temperature": (0.05, 0.1, 0.2, 0.5, 1.0), "mu": (0.3, 0.5, 0.7, 0.9), "sigma": (0.5, 1.0), **tune.GRIDS}


def tuned(
    specs: Sequence[str],
    settings: Settings,
    make_cell: Callable[..., Mapping[str, Any]],
    run_cells: Callable[[Sequence[Mapping[str, Any]]], Sequence[Run]],
) -> dict[str, str]:
    """Return the best spec that the search from each objective has found; what has nothing to tune is left out.

    Args:
        specs: of the objectives to start from.
        settings: those of the comparison.
        make_cell: makes a cell from a spec, a seed and more.
        run_cells: runs cells, and returns their runs, failed ones too.
    """
    assert settings.tune_metric is not None
    name, sign = settings.tune_metric.name, -1 if settings.lower else 1

    def measure(specs: list[str]) -> dict[str, float]:
        runs = run_cells([make_cell(spec, tune.FIRST_SEED, purpose=TUNING) for spec in specs])
        return {spec: sign * (run.result or {}).get(name, math.nan) for spec, run in zip(specs, runs, strict=True)}

    best = {}
    for spec in specs:
        grids = {} if spec == HOST else _grids(spec, settings)
        if not grids:
            continue
        best[spec], scores = tune.search(spec, grids, settings.tune, measure)
        if math.isnan(scores[best[spec]]):
            raise ValueError(f"--tune: all runs of {spec} have failed.")
    return best


def _grids(spec: str, settings: Settings) -> dict[str, tuple[float, ...]]:
    """Return the values to try of the parameters that a spec has."""
    names = set(tune.parameters(cp.objective(spec).to_dict()))
    wanted = GRIDS if settings.grid is None else {tune.long(name): values for name, values in settings.grid}
    own = {name: values for name, values in wanted.items() if name in names}
    return tune.grids_of(spec, "", own) if own else {}
