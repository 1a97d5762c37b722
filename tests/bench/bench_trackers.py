"""What a tracker costs the demo: ``python tests/bench/bench_trackers.py [tensorboard ...] [--pairs N]``.

Trains the demo's runs of a domain with and without the tracker, in pairs whose order alternates, after one of each.
Prints medians of the paired differences, with quartiles: of the time that the runs take, at the end of which they wait
for what is still to be sent, and of the processor time of the process that trains. For wandb set
``WANDB_MODE=offline``.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from counterpoint.integrations import store, trackers
from counterpoint.integrations.command import demo

MEASURED = ("runs", "processor")


def seconds(names: list[str], cells: list[dict[str, Any]]) -> tuple[float, ...]:
    """Seconds that a grid takes with these trackers, as :data:`MEASURED` lists them."""
    with tempfile.TemporaryDirectory() as folder:
        train = trackers.tracked(partial(demo.train, cache=Path(folder) / "frames"), names)
        wall, own = time.perf_counter(), time.process_time()
        store.run_grid(train, cells, Path(folder) / "runs", progress=False)
        return time.perf_counter() - wall, time.process_time() - own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["tensorboard"])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--domain", default="graph")
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cells = list(demo.cells(arguments.domain, demo.ROWS, list(range(arguments.seeds))))
    for name in arguments.names:
        trackers.check([name])
        for names in ([], [name]):
            seconds(names, cells)
        with_it, without = [], []
        for pair in range(arguments.pairs):
            took = {bool(names): seconds(names, cells) for names in ([[], [name]] if pair % 2 == 0 else [[name], []])}
            with_it.append(took[True])
            without.append(took[False])
        print(f"{name}: {len(cells)} runs, {arguments.pairs} pairs, load {os.getloadavg()[0]:.1f}")
        for what, a, b in zip(MEASURED, zip(*with_it, strict=True), zip(*without, strict=True), strict=True):
            low, middle, high = quantiles([x - y for x, y in zip(a, b, strict=True)], n=4)
            of, share = median(b), ""
            if of > 0:
                share = f", {100 * middle / of:.1f}% ({100 * low / of:.1f} to {100 * high / of:.1f}) of {of:.2f} s"
            print(f"  {what}: {middle:.2f} s ({low:.2f} to {high:.2f}){share}", flush=True)


if __name__ == "__main__":
    main()
