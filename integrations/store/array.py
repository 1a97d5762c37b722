"""The run of a grid that a job of an array trains; imports no torch."""

from __future__ import annotations

import os
from argparse import Namespace

ARRAY = -1  # --cell without a number


def cell_number(arguments: Namespace) -> int | None:
    """Return the number that ``--cell`` gives, there or in ``$SLURM_ARRAY_TASK_ID``; None without the flag."""
    number: int | None = getattr(arguments, "cell", None)
    if number != ARRAY:
        return number
    text = os.environ.get("SLURM_ARRAY_TASK_ID", "")
    if not text.isdecimal():
        raise ValueError(f"--cell: expected a number, there or in $SLURM_ARRAY_TASK_ID, got {text!r}.")
    return int(text)
