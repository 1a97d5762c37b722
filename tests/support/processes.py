"""Processes for tests: those that train together, from a server that has torch loaded; and commands at a terminal."""

from __future__ import annotations

import datetime
import multiprocessing
import signal
import subprocess
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch.fx.experimental.symbolic_shapes", "counterpoint"])
TIMEOUT = 60.0


def run(
    work: Callable[..., Any], folder: Path, world: int, *args: Any, timeout: float = TIMEOUT, fails: bool = False
) -> list[Any]:
    """What ``work(rank, *args)`` returned in each process, or, if it ``fails``, what it raised (None: it was killed).

    ``work`` is a function of a module that can be imported by name.
    """
    args = (work, str(folder), world, timeout, args)
    running = [CONTEXT.Process(target=_one, args=(rank, *args), daemon=True) for rank in range(world)]
    for process in running:
        process.start()
    for process in running:
        process.join(600)
    assert all(process.exitcode is not None for process in running), "a process hangs"
    found = [torch.load(path) if (path := folder / f"{rank}.pt").exists() else None for rank in range(world)]
    if not fails:
        assert [process.exitcode for process in running] == [0] * world, found
    return found


def _one(rank: int, work: Callable[..., Any], folder: str, world: int, timeout: float, args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=timeout)
    if world > 1:
        dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=world, timeout=limit)
    path = Path(folder, f"{rank}.pt")
    try:
        found = work(rank, *args)
    except Exception as error:
        torch.save({"error": type(error).__name__, "text": str(error), "trace": traceback.format_exc()}, path)
        raise SystemExit(1) from error
    torch.save(found, path)
    if world > 1:
        dist.destroy_process_group()


def part(sizes: list[int], rank: int) -> slice:
    """The samples of one process."""
    first = sum(sizes[:rank])
    return slice(first, first + sizes[rank])


def session(command: Sequence[str], **how: Any) -> subprocess.Popen[str]:
    """A command as a terminal starts it: a group of its own, that hears Ctrl-C even if this process does not."""

    def hear() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, start_new_session=True, preexec_fn=hear, **(pipes | how))
