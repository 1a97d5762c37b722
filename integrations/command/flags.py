"""The flags that all domains share."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

import counterpoint as cp

from ..store.grid import GridError, run_grid
from ..store.run import Run


def run_asked(
    train: Callable[[Run], None], cells: Iterable[dict[str, Any]], given: argparse.Namespace, domain: str
) -> tuple[list[Run], int]:
    """Runs what a ``train`` command was asked for: what is finished, and the exit code. Failures are said."""
    try:
        return run_grid(train, cells, given.out, jobs=given.jobs, resume=given.resume, progress=not given.json), 0
    except GridError as error:
        print(f"counterpoint train {domain}: {error}", file=sys.stderr)
        return [run for run in error.runs if run.done], 1


def use_data(flag: str, folder: str | Path | None) -> None:
    """Sets the folder of data sets that a flag names, for the processes that train too; ``hub`` is none."""
    if folder is not None:
        if str(folder) != "hub" and not Path(folder).is_dir():
            raise ValueError(f"--{flag}: {folder} is no folder")
        os.environ["COUNTERPOINT_DATA"] = str(folder)


def add_arguments(parser: argparse.ArgumentParser, length: str | None = "epochs", presets: Iterable[str] = ()) -> None:
    """Adds the flags that every domain has. ``parser.set_defaults(...)`` afterwards sets a domain's own defaults.

    Args:
        length: what training is measured in, ``epochs`` or ``steps``; None where that is not to be chosen.
        presets: names of the recipes to choose from.
    """
    add = parser.add_argument
    say = "one or more (the preset's, else infonce)"
    add("--objective", nargs="+", type=_spec, metavar="SPEC", default=["infonce"], help=say)
    add("--seed", type=whole(0), default=0, metavar="K", help="of the first run (%(default)s)")
    add("--seeds", type=whole(1), default=1, metavar="N", help="runs per objective, seeds K to K+N-1 (%(default)s)")
    if length:
        add(f"--{length}", type=whole(0), metavar="N", help=f"{length} of training")
    if names := list(presets):
        add("--preset", choices=names, help="settings of a paper; flags that are given win over it")
    add("--out", type=Path, default=Path("runs"), metavar="FOLDER", help="where the runs are kept (%(default)s)")
    data = os.environ.get("COUNTERPOINT_DATA")
    add("--data", type=Path, default=data and Path(data), metavar="FOLDER", help="data sets ($COUNTERPOINT_DATA)")
    add("--device", type=device, default="cpu", help="cpu, cuda, cuda:1, ... or auto (%(default)s)")
    add("--jobs", type=whole(1), default=1, metavar="N", help="runs at a time (%(default)s)")
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", default=True, help="go on where runs stopped (the default)")
    again.add_argument("--fresh", dest="resume", action="store_false", help="delete these runs first")
    add("--json", action="store_true", help="print JSON")


def _spec(text: str) -> str:
    try:
        return str(cp.objective(text))
    except (TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def whole(low: int) -> Callable[[str], int]:
    """What reads a whole number of at least ``low`` from a command line."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < low:
            raise argparse.ArgumentTypeError(f"expected a whole number of at least {low}, got {text!r}")
        return int(text)

    return read


def device(text: str) -> str:
    """The device that a command line names."""
    if text == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=text)
    except (AssertionError, RuntimeError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be used: {str(error).partition(chr(10))[0]}") from None
    return text
