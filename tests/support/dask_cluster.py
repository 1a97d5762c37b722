"""A Dask cluster on this machine: processes of a scheduler and two workers."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import contextmanager

import pytest


@contextmanager
def dask(folder, before=()):
    """A scheduler and two workers, each a process; yields the address.

    Args:
        folder: for their files.
        before: words before the command of the workers.
    """
    distributed = pytest.importorskip("distributed", reason="needs counterpoint-losses[cluster]")
    command, file = [sys.executable, "-m", "dask"], folder / "scheduler.json"
    scheduler = ["scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
    worker = ["worker", "--scheduler-file", str(file), "--nworkers", "2", "--nthreads", "1", "--no-dashboard"]
    processes = []
    try:
        for name, words in (("scheduler", [*command, *scheduler]), ("worker", [*before, *command, *worker])):
            with (folder / f"{name}.log").open("wb") as log:
                processes.append(subprocess.Popen(words, stdout=log, stderr=log, cwd=folder))
            while not file.exists():
                assert processes[0].poll() is None, (folder / "scheduler.log").read_text()
                time.sleep(0.1)
        with distributed.Client(scheduler_file=str(file), set_as_default=False) as client:
            client.wait_for_workers(2, timeout=300)
            address = client.scheduler.address
        yield f"dask:{address}"
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(60)
