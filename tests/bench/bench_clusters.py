"""Seconds that ``--on`` takes for a grid whose cells are done: ``python tests/bench/bench_clusters.py [CELLS]``.

As a call of ``run_grid``, and as a command, which also imports torch and prints the table.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from counterpoint.integrations import store
from counterpoint.integrations.graph import training
from counterpoint.integrations.store.files import signed

PLACE = "dask:tcp://127.0.0.1:1"  # nothing listens there: what is done needs no scheduler


def fill(root: Path, seeds: int) -> list[dict[str, Any]]:
    """Write the records of finished runs of ``counterpoint train graph``; return their cells."""
    rows = (lambda seed: training.bag("demo", seed), lambda seed: training.untrained("demo", seed))
    cells = [row(seed) for seed in range(seeds) for row in (*rows, trained)]
    for cell in cells:
        run = store.Run(root, cell)
        run.path.mkdir(parents=True)
        record = {"arguments": run.arguments, "status": "done", "result": {"accuracy": 70.0 + cell["seed"] % 7}}
        (run.path / "run.json").write_text(json.dumps(signed(record)))
    return cells


def trained(seed: int) -> dict[str, Any]:
    return training.cell("demo", "infonce:t=0.2,denominator=negatives", seed)


def timed(name: str, function: Callable[[], object]) -> None:
    """Print how long a call takes, and how much of that this process and its children compute."""
    start, before = time.perf_counter(), os.times()
    function()
    took, after = time.perf_counter() - start, os.times()
    computed = sum(after[:4]) - sum(before[:4])
    load = f"at load {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores"
    print(f"{name}: {took:.2f} s ({computed:.2f} s of CPU time, {load})", flush=True)


def train(root: str, seeds: int) -> None:
    """Run the command; its default rows are the three of :func:`fill`."""
    words = ["train", "graph", "--seeds", str(seeds), "--out", root, "--on", PLACE, "--json"]
    subprocess.run([sys.executable, "-m", "counterpoint", *words], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    seeds = -(-(int(sys.argv[1]) if len(sys.argv) > 1 else 1000) // 3)
    with tempfile.TemporaryDirectory() as folder:
        cells = fill(Path(folder), seeds)
        before = {path.stat().st_mtime_ns for path in Path(folder).rglob("run.json")}
        call = partial(store.run_grid, training.train, cells, folder, executor=PLACE, progress=False)
        timed(f"run_grid, {len(cells)} cells that are done", call)
        timed(f"train graph, {len(cells)} cells that are done", partial(train, folder, seeds))
        timed("train graph, 3 cells that are done", partial(train, folder, 1))
        assert before == {path.stat().st_mtime_ns for path in Path(folder).rglob("run.json")}
