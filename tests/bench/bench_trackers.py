"""What a tracker costs a run of the demo: ``python tests/bench/bench_trackers.py [tensorboard ...] [--pairs N]``.

Runs of one cell of the demo's graphs, with and without the tracker, in pairs whose order alternates, after a first one
of each that imports and sets up. Prints the median of the paired differences of this process's processor time, and
their quartiles; a server and wandb's own process are not in it. For wandb set ``WANDB_MODE=offline``.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median, quantiles

import torch

from counterpoint.integrations import store, trackers
from counterpoint.integrations.command import demo


def seconds(names: list[str], cell: dict[str, object]) -> float:
    """Processor seconds that a grid of one run takes, with these trackers."""
    with tempfile.TemporaryDirectory() as folder:
        train = trackers.tracked(partial(demo.train, cache=Path(folder) / "frames"), names)
        start = time.process_time()
        store.run_grid(train, [cell], Path(folder) / "runs", progress=False)
        return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["tensorboard"])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--domain", default="graph")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cell = list(demo.cells(arguments.domain, {"InfoNCE": demo.ROWS["InfoNCE"]}, [0]))[-1]
    for name in arguments.names:
        trackers.check([name])
        for names in ([], [name]):
            seconds(names, cell)
        differences, plain = [], []
        for pair in range(arguments.pairs):
            order = [[], [name]] if pair % 2 == 0 else [[name], []]
            took = {len(names): seconds(names, cell) for names in order}
            plain.append(took[0])
            differences.append(took[1] - took[0])
        low, _, high = quantiles(differences, n=4)
        share = 100 / median(plain)
        load = os.getloadavg()[0]
        print(
            f"{name}: {1000 * median(differences):.0f} ms ({1000 * low:.0f} to {1000 * high:.0f}) of "
            f"{median(plain):.2f} s, {share * median(differences):.1f}% ({share * low:.1f} to {share * high:.1f}); "
            f"{arguments.pairs} pairs, load {load:.1f}"
        )


if __name__ == "__main__":
    main()
