"""Train the grid of a command, as its flags say, and send it to trackers."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..store.grid import GridError, Later, chosen, grid_options, run_grid
from ..store.place import is_url
from ..store.run import Run
from .sending import check, publish, tracked


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
    if is_url(arguments.out):
        _say_where(arguments.track, arguments.out)
    some = chosen([*cells], arguments)
    load = train.load if isinstance(train, Later) else lambda: train
    later = Later(lambda: tracked(load(), arguments.track))
    try:
        runs = run_grid(later, some, arguments.out, **grid_options(arguments))
        publish(arguments.track, runs, arguments.out)
        return runs, 0
    except GridError as error:
        print(f"counterpoint {command}: {error}", file=sys.stderr)
        return [run for run in error.runs if failed or run.done], 1


def _say_where(trackers: Sequence[str], out: str | Path) -> None:
    """Say which files of trackers stay on this machine where the store is a URL."""
    from ..store.transport import local

    offline = os.environ.get("WANDB_MODE") == "offline" and not os.environ.get("WANDB_DIR")
    for name, used, hint in (
        ("mlflow", not os.environ.get("MLFLOW_TRACKING_URI"), "MLFLOW_TRACKING_URI names a server"),
        ("wandb", offline, "WANDB_DIR names another folder"),
    ):
        if name in trackers and used:
            note = f"--track {name}: its files stay on the machine that trains, in {local(out) / name}; {hint}"
            print(note, file=sys.stderr)
