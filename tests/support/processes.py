"""Processes for tests: ranks of a process group and fresh interpreters, forked from a server that has imported torch;
and commands."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import signal
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch.fx.experimental.symbolic_shapes"])

# Seconds that a test waits for another process before it fails, on a machine that may have twenty times the work.
PATIENCE = 900.0


def run(work: Callable[..., Any], folder: Path, world: int, *args: Any, fails: bool = False) -> list[Any]:
    """Return what ``work(rank, *args)`` returned in each process, or what it raised if it ``fails`` (None: killed).

    ``work`` is a function that other processes can import.
    """
    args = (work, str(folder), world, args)
    running = [CONTEXT.Process(target=_run_rank, args=(rank, *args), daemon=True) for rank in range(world)]
    for process in running:
        process.start()
    for process in running:
        process.join(PATIENCE)
    assert all(process.exitcode is not None for process in running), "a process hangs"
    results = [torch.load(path) if (path := folder / f"{rank}.pt").exists() else None for rank in range(world)]
    if not fails:
        assert [process.exitcode for process in running] == [0] * world, results
    return results


def _run_rank(rank: int, work: Callable[..., Any], folder: str, world: int, args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=PATIENCE)
    if world > 1:
        dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=world, timeout=limit)
    path = Path(folder, f"{rank}.pt")
    try:
        result = work(rank, *args)
    except Exception as error:
        torch.save({"error": type(error).__name__, "text": str(error), "trace": traceback.format_exc()}, path)
        raise SystemExit(1) from error
    torch.save(result, path)
    if world > 1:
        dist.destroy_process_group()


def fresh(code: str) -> str:
    """Return what an interpreter prints that has imported torch, but nothing of counterpoint."""
    with tempfile.NamedTemporaryFile("r") as output:
        process = CONTEXT.Process(target=_execute, args=(code, output.name), daemon=True)
        process.start()
        process.join(PATIENCE)
        printed = output.read()
    assert process.exitcode == 0, printed
    return printed.strip()


def _execute(code: str, output: str) -> None:
    file = os.open(output, os.O_WRONLY)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.chdir("/")
    exec(code, {"__name__": "__main__"})


def part(sizes: list[int], rank: int) -> slice:
    """Return the samples of one process."""
    first = sum(sizes[:rank])
    return slice(first, first + sizes[rank])


def session(command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """Start a command as a terminal does: in a process group that receives Ctrl-C even if this process ignores it."""

    def reset_signals() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, start_new_session=True, preexec_fn=reset_signals, **(pipes | options))
