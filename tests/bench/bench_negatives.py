"""What masks and weights cost: InfoNCE with each, forward and backward, over InfoNCE without.

    python -m tests.bench.bench_negatives [--size 4096] [--pairing one_way] [--rounds 9]
    python -m tests.bench.bench_negatives --size 32768 --memory

CPU time of one thread. A round runs all contestants forwards and then backwards, and each round begins with another;
ratios are taken within a round, and their medians and quartiles shown, so that load on the machine cancels.
``plain + product`` is the least that a guide can cost: InfoNCE without one, and the product of the guide's embeddings.
``--memory`` shows the most that a call takes beyond the embeddings and their gradients, each in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

import counterpoint as cp
from tests.bench.losses import status

FLOOR = "plain + product"


def contestants(size: int, width: int) -> tuple[list[torch.Tensor], dict[str, dict[str, Any]]]:
    draw = torch.Generator().manual_seed(0)
    first = torch.randn(size, width, generator=draw)
    views = [first, first + torch.randn(size, width, generator=draw)]
    guide = tuple(view + 0.2 * torch.randn(size, width, generator=draw) for view in views)
    own, log_q = {"false_negatives": cp.margin(0.1)}, {"log_q": torch.rand(size, generator=draw) - 8}
    ways: dict[str, dict[str, Any]] = {
        "plain": {},
        "ids": {"ids": torch.arange(size)},
        "margin": own,
        "log_q": log_q,
        "margin and log_q": {**own, **log_q},
        "guide": {**own, "guide": guide},
    }
    return [view.requires_grad_() for view in views], ways


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--pairing", default="one_way")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    views, ways = contestants(args.size, args.width)
    loss_fn, names, (g1, g2) = cp.InfoNCE(0.1), [*ways, FLOOR], ways["guide"]["guide"]
    if args.memory_of:
        for view in views:
            view.grad = torch.zeros_like(view)
        small = [view[:4096] for view in views]  # what is loaded and kept once
        loss_fn(*small, pairing=args.pairing).backward()
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
        before = status("VmRSS")
        loss_fn(*views, pairing=args.pairing, **ways[args.memory_of]).backward()
        print(status("VmHWM") - before)
        return
    if args.memory:
        for name in ways:
            command = [sys.executable, "-m", "tests.bench.bench_negatives", "--memory-of", name]
            command += ["--size", str(args.size), "--width", str(args.width), "--pairing", args.pairing]
            returned = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}  # what is freed is not held
            found = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | returned)
            print(f"{name:18}{int(found.stdout) / 1e6:8.1f} MB", flush=True)
        return
    ratios: dict[str, list[float]] = {name: [] for name in names}

    def seconds(name: str) -> float:
        start = time.process_time()
        loss_fn(*views, pairing=args.pairing, **ways.get(name, {})).backward()
        if name == FLOOR:
            for rows in g1.split(256):
                rows @ g2.T
        return time.process_time() - start

    for name in names:
        seconds(name)
    for number in range(args.rounds):
        first = number % len(names)
        order = names[first:] + names[:first]
        total = dict.fromkeys(names, 0.0)
        for name in order + order[::-1]:
            total[name] += seconds(name)
        for name in names:
            ratios[name].append(total[name] / total["plain"])
    for name, values in ratios.items():
        low, median, high = statistics.quantiles(values, n=4)
        print(f"{name:18}{median:6.2f}   ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
