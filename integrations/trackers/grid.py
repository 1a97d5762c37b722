"""Train the grid of a command, as its flags say, and send it to trackers."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..store.grid import GridError, Later, grid_options, run_grid
from ..store.run import Run
from .sending import check, tracked


def run_cells(
    train: Callable[[Run], None] | Later,
    cells: Iterable[Mapping[str, Any]],
    arguments: Namespace,
    command: str,
    failed: bool = False,
) -> tuple[list[Run], int]:
    """Run cells as the flags of :func:`..flags.add_runs` say; return the finished runs and the exit code.

    Failures go to stderr; with ``failed``, their runs are returned too.
    """
    check(arguments.track)
    load = train.load if isinstance(train, Later) else lambda: train
    later = Later(lambda: tracked(load(), arguments.track))
    try:
        return run_grid(later, cells, arguments.out, **grid_options(arguments)), 0
    except GridError as error:
        print(f"counterpoint {command}: {error}", file=sys.stderr)
        return [run for run in error.runs if failed or run.done], 1
