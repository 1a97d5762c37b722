"""CPU time of our objectives beside peers' losses, interleaved in one run.

    python tests/bench/bench_losses.py                       # B = 256 and 1024, d = 128, one thread
    python tests/bench/bench_losses.py --batch 4096 --repeat 3

Prints for every contestant the median over rounds of its time divided by our InfoNCE's time in the same round, so that
load on the machine cancels. A round runs all contestants, forwards and then backwards, forward plus backward in fp32.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

import counterpoint as cp

Loss = Callable[[Tensor, Tensor], Tensor]


def contestants(temperature: float) -> dict[str, Loss]:
    t = temperature
    found: dict[str, Loss] = {
        "counterpoint InfoNCE": cp.InfoNCE(t),
        "counterpoint DCL": cp.DCL(t),
        "counterpoint HCL": cp.HCL(t),
        "counterpoint ADNCE": cp.ADNCE(t),
        "counterpoint InfoNCE + 0.1 DP": cp.InfoNCE(t) + 0.1 * cp.DistancePolarization(),
    }
    try:
        from lightly.loss import DCLLoss, NTXentLoss

        found["lightly NTXentLoss"] = NTXentLoss(t)
        found["lightly DCLLoss"] = DCLLoss(t)
    except ImportError:
        print("lightly is not installed: its losses are left out")
    return found


def cpu_time(loss_fn: Loss, z1: Tensor, z2: Tensor, calls: int) -> float:
    start = time.process_time()
    for _ in range(calls):
        a, b = z1.clone().requires_grad_(), z2.clone().requires_grad_()
        loss_fn(a, b).backward()
    return (time.process_time() - start) / calls


def compare(batch: int, width: int, temperature: float, rounds: int) -> dict[str, dict[str, float]]:
    losses = contestants(temperature)
    z1, z2 = torch.randn(2, batch, width, generator=torch.Generator().manual_seed(0))
    calls = max(1, 1024 // batch)
    for loss_fn in losses.values():
        cpu_time(loss_fn, z1, z2, 2)
    times: dict[str, list[float]] = {name: [] for name in losses}
    for _ in range(rounds):
        order = [*losses.items()]
        once = {name: cpu_time(loss_fn, z1, z2, calls) for name, loss_fn in order}
        again = {name: cpu_time(loss_fn, z1, z2, calls) for name, loss_fn in reversed(order)}
        for name in losses:
            times[name].append((once[name] + again[name]) / 2)
    ours = times["counterpoint InfoNCE"]
    return {
        name: {
            "ms": 1000 * statistics.median(seconds),
            "ratio": statistics.median(s / o for s, o in zip(seconds, ours, strict=True)),
        }
        for name, seconds in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--width", type=int, nargs="+", default=[128])
    parser.add_argument("--temperature", type=float, default=0.1)
    parser.add_argument("--repeat", type=int, default=15, help="rounds")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    given = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    for batch in given.batch:
        for width in given.width:
            result = results[f"B={batch} d={width}"] = compare(batch, width, given.temperature, given.repeat)
            if not given.json:
                print(f"\nB={batch} d={width} t={given.temperature}, fp32, one thread, CPU time")
                for name, row in sorted(result.items(), key=lambda item: item[1]["ms"]):
                    print(f"  {name:32}{row['ms']:9.2f} ms {row['ratio']:6.2f} x our InfoNCE")
    if given.json:
        print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
