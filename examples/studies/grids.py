"""Where the grids of a study are trained: ``--jobs``, ``--on``, ``--list-cells`` and ``--cell`` of their parsers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from counterpoint.integrations import flags
from counterpoint.integrations.store.array import cell_number
from counterpoint.integrations.store.grid import distinct, run_grid
from counterpoint.integrations.store.run import Run


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that :class:`Grids` reads."""
    flags.add_places(parser)
    flags.add_cells(parser)


class Grids:
    """The grids of a study, one after the other; what a later one trains may depend on results of the earlier ones.

    Their runs are numbered through. ``--list-cells`` prints those of the grids that are finished and of the next one;
    ``--cell`` trains one of these.

    Args:
        arguments: the parsed command line; None trains everything in this process.
        progress: show progress on stderr.
    """

    def __init__(self, arguments: argparse.Namespace | None = None, progress: bool = True) -> None:
        known = vars(arguments) if arguments is not None else {}
        self.jobs, self.on, self.listed = known.get("jobs", 1), known.get("on", "local"), known.get("list_cells", False)
        self.number = None if arguments is None else cell_number(arguments)
        self.progress, self.count = progress, 0

    def run(
        self, train: Callable[[Run], None], cells: Sequence[Mapping[str, Any]], root: str | Path, last: bool = False
    ) -> list[Run]:
        """Train what is not done of a grid and return its runs, as ``run_grid`` does.

        With ``--list-cells`` or ``--cell``, end the program if this grid is not finished, or the last one.
        """
        if self.number is not None or self.listed:
            self._one(train, cells, root, last)
        return run_grid(train, cells, root, jobs=self.jobs, executor=self.on, progress=self.progress)

    def _one(
        self, train: Callable[[Run], None], cells: Sequence[Mapping[str, Any]], root: str | Path, last: bool
    ) -> None:
        """Print the numbers of this grid's runs, or train one of them; return if all of them are done."""
        runs, first = distinct(root, cells), self.count
        self.count += len(runs)
        if self.listed:
            print(*(f"{i}  {run.title}" for i, run in enumerate(runs, first)), sep="\n")
        elif self.number is not None and self.number < self.count:
            cell = runs[self.number - first].arguments
            run_grid(train, [cell], root, executor=self.on, progress=self.progress)
            raise SystemExit(0)
        finished = all(run.done for run in runs)
        if finished and not last:
            return
        if self.listed:
            raise SystemExit(0)
        hint = "" if finished else "; what follows depends on the results of these"
        raise ValueError(f"--cell: expected a number from 0 to {self.count - 1}, got {self.number}{hint}.")
