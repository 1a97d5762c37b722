"""What masks and weights cost: InfoNCE with each, forward and backward, over InfoNCE without.

    python -m tests.bench.bench_negatives [--size 4096] [--pairing one_way] [--rounds 9]

CPU time of one thread. A round runs all contestants forwards and then backwards, and each round begins with another;
ratios are taken within a round, and their medians and quartiles shown, so that load on the machine cancels.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch

import counterpoint as cp


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
    args = parser.parse_args()
    torch.set_num_threads(1)
    views, ways = contestants(args.size, args.width)
    loss_fn, names = cp.InfoNCE(0.1), list(ways)
    ratios: dict[str, list[float]] = {name: [] for name in names}

    def seconds(name: str) -> float:
        start = time.process_time()
        loss_fn(*views, pairing=args.pairing, **ways[name]).backward()
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
