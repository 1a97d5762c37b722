"""Time of one epoch of graph pre-training, augmentation included: median over epochs, after one to warm up.

    python tests/bench/bench_graph.py                                    # PROTEINS, batch 128, two threads
    python tests/bench/bench_graph.py --dataset demo --augment random2 --threads 1

PROTEINS needs $COUNTERPOINT_DATA, or a download.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from itertools import pairwise

import torch

from counterpoint.integrations import graph


def epoch_times(data: graph.GraphSet, spec: str, augment: str, batch: int, epochs: int) -> dict[str, list[float]]:
    """Seconds of each epoch: on the clock, and of the CPU."""
    torch.manual_seed(0)
    model = graph.Pretraining(graph.Encoder(data.x.shape[1]), spec, graph.augmentation(augment, 0))
    marks: list[tuple[float, float]] = []

    def mark(_: int) -> dict[str, float]:
        marks.append((time.perf_counter(), time.process_time()))
        return {}

    graph.pretrain(model, data, epochs + 1, batch, after=mark)
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(marks)]
    return {"wall": [wall for wall, _ in steps], "cpu": [cpu for _, cpu in steps]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--dataset", default="PROTEINS")
    add("--objective", default="infonce:t=0.2,denominator=negatives")
    add("--augment", default="random4", choices=list(graph.AUGMENTATIONS))
    add("--batch", type=int, default=128)
    add("--epochs", type=int, default=10)
    add("--threads", type=int, default=2)
    add("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    data = graph.load(given.dataset)
    found = epoch_times(data, given.objective, given.augment, given.batch, given.epochs)
    if given.json:
        print(json.dumps({**vars(given), **found}))
        return
    wall, cpu = (statistics.median(found[name]) for name in ("wall", "cpu"))
    print(f"{given.dataset}, {len(data)} graphs, batch {given.batch}, {given.augment}, {given.threads} threads:")
    print(f"an epoch takes {wall:.3f} s ({cpu:.3f} s of CPU), {len(data) / wall:.0f} graphs a second")


if __name__ == "__main__":
    main()
