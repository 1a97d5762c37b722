"""Where the grids of a study are trained: ``--jobs`` and ``--on`` of their parsers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from counterpoint.integrations import flags
from counterpoint.integrations.store.grid import run_grid
from counterpoint.integrations.store.run import Run

AGAIN = ", tuned again"
"""The end of the name of a placebo: the first row once more, whose setting other seeds choose."""


def tuning_seeds(row: str, count: int) -> range:
    """The seeds that choose the setting of a row; they are never reported."""
    first = 2000 if row.endswith(AGAIN) else 1000
    return range(first, first + count)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that :class:`Grids` reads."""
    flags.add_places(parser)


class Grids:
    """The grids of a study, one after the other; what a later one trains may depend on results of the earlier ones.

    Args:
        arguments: the parsed command line; None trains everything in this process.
        progress: show progress on stderr.
    """

    def __init__(self, arguments: argparse.Namespace | None = None, progress: bool = True) -> None:
        known = vars(arguments) if arguments is not None else {}
        self.jobs, self.on, self.progress = known.get("jobs", 1), known.get("on", "local"), progress

    def run(self, train: Callable[[Run], None], cells: Sequence[Mapping[str, Any]], root: str | Path) -> list[Run]:
        """Train what is not done of a grid and return its runs, as ``run_grid`` does."""
        return run_grid(train, cells, root, jobs=self.jobs, executor=self.on, progress=self.progress)
