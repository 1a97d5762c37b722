"""What the flags of :func:`counterpoint.integrations.flags.add_runs` and ``add_cells`` do: train the runs of a grid."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..flags import ARRAY

if TYPE_CHECKING:
    from ..store.grid import Later
    from ..store.run import Run


def run_cells(
    train: Callable[[Run], None] | Later,
    cells: Iterable[Mapping[str, Any]],
    arguments: argparse.Namespace,
    command: str,
    failed: bool = False,
) -> tuple[list[Run], int]:
    """Run cells as the flags of :func:`add_runs` say; returns the finished runs and the exit code.

    Failures go to stderr; with ``failed``, their runs are returned too.
    """
    from ..store.grid import GridError, Later, run_grid
    from ..trackers import check, publish, tracked

    check(arguments.track)
    _say_where(arguments.track, arguments.out)
    cells = _chosen_cells(list(cells), arguments)
    load = train.load if isinstance(train, Later) else lambda: train
    later = Later(lambda: tracked(load(), arguments.track))
    try:
        runs = run_grid(later, cells, arguments.out, **grid_options(arguments))
        publish(arguments.track, runs, arguments.out)
        _send_events(arguments.track, arguments.out)
        return runs, 0
    except GridError as error:
        print(f"counterpoint {command}: {error}", file=sys.stderr)
        return [run for run in error.runs if failed or run.done], 1


def _say_where(trackers: Sequence[str], out: str | Path) -> None:
    """Say which files of trackers stay on this machine where the store is a URL."""
    from ..store.mirror import working_folder
    from ..store.objects import is_url

    if not is_url(out):
        return
    folder = working_folder(out)
    offline = os.environ.get("WANDB_MODE") == "offline" and not os.environ.get("WANDB_DIR")
    for name, used, place, hint in (
        ("mlflow", not os.environ.get("MLFLOW_TRACKING_URI"), folder / "mlflow", "MLFLOW_TRACKING_URI names a server"),
        ("wandb", offline, folder / "wandb", "WANDB_DIR names another folder"),
    ):
        if name in trackers and used:
            note = f"--track {name}: its files stay on the machine that trains, in {place}; {hint}"
            print(note, file=sys.stderr)


def _send_events(trackers: Sequence[str], out: str | Path) -> None:
    """Send TensorBoard's events of the report; those of the runs are in their folders."""
    from ..store.mirror import send, working_folder
    from ..store.objects import is_url

    if "tensorboard" in trackers and is_url(out):
        send(working_folder(out) / "tensorboard", f"{out}/tensorboard")


def grid_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the flags of :func:`add_runs` tell ``run_grid``."""
    options = {"jobs": arguments.jobs, "executor": arguments.on, "resume": arguments.resume}
    return {**options, "progress": not arguments.json}


def _chosen_cells(cells: list[Mapping[str, Any]], arguments: argparse.Namespace) -> list[Mapping[str, Any]]:
    """The cells that ``--cell`` chooses, or all; with ``--list-cells``, print them and exit."""
    number = cell_number(arguments)
    listed = getattr(arguments, "list_cells", False)
    if number is None and not listed:
        return cells
    from ..store.grid import distinct

    runs = distinct(arguments.out, cells)
    if listed:
        rows = [{"cell": i, "run": run.title, "folder": run.address} for i, run in enumerate(runs)]
        print(
            json.dumps(rows, indent=1) if arguments.json else "\n".join(f"{row['cell']}  {row['run']}" for row in rows)
        )
        raise SystemExit(0)
    assert number is not None
    if number >= len(runs):
        raise ValueError(f"--cell: expected a number from 0 to {len(runs) - 1}, got {number}.")
    return [runs[number].arguments]


def cell_number(arguments: argparse.Namespace) -> int | None:
    """The number that ``--cell`` gives, there or in ``$SLURM_ARRAY_TASK_ID``; None without the flag."""
    number: int | None = getattr(arguments, "cell", None)
    if number != ARRAY:
        return number
    text = os.environ.get("SLURM_ARRAY_TASK_ID", "")
    if not text.isdecimal():
        raise ValueError(f"--cell: expected a number, there or in $SLURM_ARRAY_TASK_ID, got {text!r}.")
    return int(text)
