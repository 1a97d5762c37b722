"""A grid small enough to be killed many times: encoders of clustered points, trained with two objectives.

python toy_grid.py ROOT JOBS [PAUSE]     with PAUSE seconds after each step
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial

import torch

import counterpoint as cp
from counterpoint.integrations import store

STEPS = 6


def cells(seeds=2):
    objectives = ("infonce:t=0.2", "adnce:t=0.2,mu=0.5")
    return [
        {"domain": "toy", "dataset": "clusters", "objective": objective, "seed": seed, "steps": STEPS}
        for seed in range(seeds)
        for objective in objectives
    ]


def train(run, pause=0.0):
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    loss_fn = cp.objective(run.arguments["objective"])
    # momentum by hand: torch.optim imports torch's compiler, which takes seconds in each process of these tests
    speed, start = [torch.zeros_like(p) for p in net.parameters()], 0
    centres = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    if state := run.load():
        net.load_state_dict(state["net"])
        speed = state["speed"]
        store.set_rng_state(state["rng"])
        start = state["step"]
    for step in run.track(range(start + 1, STEPS + 1), total=STEPS):
        x = centres[torch.randint(4, (16,))]
        views = [net(x + 0.3 * torch.randn_like(x)) for _ in range(2)]
        loss = loss_fn(*views)
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            for p, v, gradient in zip(net.parameters(), speed, gradients, strict=True):
                p -= 0.05 * v.mul_(0.9).add_(gradient)
        run.log(step, loss=loss.item())
        time.sleep(pause)
        run.save({"net": net.state_dict(), "speed": speed, "rng": store.rng_state()}, step)
    with torch.no_grad():
        apart = torch.pdist(net(centres)).tolist()
    run.finish({"apart": sum(apart) / len(apart), "last": run.metrics()[-1]["loss"]}, pairs=apart)


def train_recorded(run, record, pause):
    """Train, and append to two files: the process that waits for this one, at the start, and the run, at its end."""
    with open(f"{record}.started", "a") as file:
        file.write(f"{os.getppid()}\n")
    train(run, pause)
    with open(f"{record}.ended", "a") as file:
        file.write(f"{run.title}\n")


def contents(root):
    """Return what must not depend on interruptions: everything but times and file layouts."""
    return {
        run.path.relative_to(root): (
            run.arguments,
            run.record["status"],
            run.result,
            run.details,
            run.metrics(),
            (run.path / "metrics.jsonl").read_bytes(),
            plain(run.load()),
            sorted(path.name for path in run.path.iterdir() if path.name != ".lock"),
        )
        for run in store.find_runs(root)
    }


def plain(state):
    """Replace tensors by lists, so that states compare with ==."""
    if isinstance(state, torch.Tensor):
        return state.tolist()
    if isinstance(state, dict):
        return {key: plain(value) for key, value in state.items()}
    return [plain(value) for value in state] if isinstance(state, (list, tuple)) else state


if __name__ == "__main__":
    torch.set_num_threads(1)
    pause = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
    store.run_grid(partial(train, pause=pause), cells(), sys.argv[1], jobs=int(sys.argv[2]))
