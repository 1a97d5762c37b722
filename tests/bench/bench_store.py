"""Seconds that large stores take: ``python tests/bench/bench_store.py``.

A report over 1,000,000 metric lines, and the start of a grid of 10,000 cells that are all finished.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from counterpoint.integrations import store
from counterpoint.integrations.command.main import main
from counterpoint.integrations.store.files import signed


def fill(root: Path, seeds: int, lines: int) -> list[dict[str, object]]:
    """Write finished runs of two objectives, with this many metric lines each; return their cells."""
    shared = {"domain": "toy", "dataset": "points", "steps": lines}
    specs = ("infonce:t=0.2", "hcl:t=0.2")
    cells = [{**shared, "objective": spec, "seed": seed} for spec in specs for seed in range(seeds)]
    for cell in cells:
        run = store.Run(root, cell)
        run.path.mkdir(parents=True)
        record = {"arguments": run.arguments, "status": "done", "result": {"accuracy": 70.0 + cell["seed"] % 7}}  # type: ignore[operator]
        (run.path / "run.json").write_text(json.dumps(signed(record)))
        text = "".join(
            f'{{"step": {step}, "loss": {1 / step}, "uniformity": {-1.5 / step}}}\n' for step in range(1, lines + 1)
        )
        (run.path / "metrics.jsonl").write_text(text)
    return cells


def forbidden(run: store.Run) -> None:
    raise AssertionError(f"{run.path} is finished")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder), 5, 100_000)
        start = time.perf_counter()
        assert main(["report", folder, "--out", f"{folder}/page"]) == 0
        print(f"report over 1,000,000 metric lines: {time.perf_counter() - start:.1f} s", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        cells = fill(Path(folder), 5_000, 0)
        start = time.perf_counter()
        store.run_grid(forbidden, cells, folder, progress=False)
        print(f"start of a grid of 10,000 finished cells: {time.perf_counter() - start:.1f} s", file=sys.stderr)
