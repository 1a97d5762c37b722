"""Updates of CURL beside the official code's, and environment steps of two processes beside one's.

    COUNTERPOINT_HOSTS=FOLDER python tests/bench/bench_control.py updates     # FOLDER/curl: a clone of MishaLaskin/curl
    python tests/bench/bench_control.py steps

An update is a batch from the replay buffer, both crops, critic, contrastive loss, and every second time actor and
targets, on the same shapes. The two take turns, two updates each, and what is shown is the median over rounds of the
ratio of their CPU times at one thread, so that load on the machine cancels. The official code runs as it is; it needs
gym and scikit-image.

Environment steps are timed by the clock, as processes only help where there are cores for them; the two take turns,
and the median over rounds is shown.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

ACTIONS = 1  # of cartpole-swingup


def turns(
    contestants: dict[str, Callable[[], Any]], rounds: int, clock: Callable[[], float] = time.process_time
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for i in range(rounds + 1):
        for name in list(contestants)[:: 1 if i % 2 else -1]:
            start = clock()
            contestants[name]()
            if i:  # the first round is a warm-up
                times[name].append(clock() - start)
    return times


def show(times: dict[str, list[float]], unit: str, each: int) -> None:
    ours, *others = times
    for name, column in times.items():
        print(f"{name:28}{each / statistics.median(column):8.2f} {unit}/s")
    for other in others:
        ratios = sorted(b / a for a, b in zip(times[ours], times[other], strict=True))
        print(f"{ours} is {statistics.median(ratios):.2f} times {other} ({ratios[0]:.2f} to {ratios[-1]:.2f})")


def updates(rounds: int, batch: int) -> None:
    from counterpoint.integrations.control.agent import Agent, Settings
    from counterpoint.integrations.control.replay import Replay

    hosts = os.environ.get("COUNTERPOINT_HOSTS", "")
    clone = Path(hosts) / "curl"
    if not hosts or not (clone / "curl_sac.py").is_file():
        raise SystemExit("set COUNTERPOINT_HOSTS to a folder that holds a clone of MishaLaskin/curl, named curl")
    sys.path.insert(0, str(clone))
    official, utils = importlib.import_module("curl_sac"), importlib.import_module("utils")
    settings = Settings(batch=batch, random_steps=max(1000, batch))
    size, crop, frames = settings.size, settings.crop, 400
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (frames + 1, 3, size, size), dtype=np.uint8)

    agent = Agent((9, size, size), ACTIONS, "infonce:t=1", settings)
    replay = Replay(frames + 1, (3, size, size), ACTIONS)
    device = torch.device("cpu")
    theirs = official.CurlSacAgent(
        (9, crop, crop), (ACTIONS,), device, hidden_dim=settings.hidden, log_interval=10**9, critic_tau=settings.tau,
        encoder_tau=settings.encoder_tau, init_temperature=settings.alpha, alpha_lr=settings.alpha_lr, alpha_beta=0.5,
    )  # fmt: skip
    buffer = utils.ReplayBuffer((9, size, size), (ACTIONS,), frames, batch, device, crop)
    replay.begin(0, pixels[0])
    for i in range(frames):
        action, reward = rng.uniform(-1, 1, ACTIONS).astype(np.float32), float(rng.uniform())
        replay.add(0, action, reward, pixels[i + 1], False)
        stacks = [pixels[np.maximum(0, range(at - 2, at + 1))].reshape(9, size, size) for at in (i, i + 1)]
        buffer.add(stacks[0], action, reward, stacks[1], False)

    class Silent:
        def __getattr__(self, _: str) -> Callable[..., None]:
            return lambda *args: None

    def ours() -> None:
        for _ in range(2):
            agent.update(replay.sample(batch))

    def official_update() -> None:
        for step in (1, 2):
            theirs.update(buffer, Silent(), step)

    times = turns({"counterpoint": ours, "the official code": official_update}, rounds)
    print(f"updates: batch {batch}, crops of {crop}, one thread, CPU time, {rounds} rounds of two")
    show(times, "updates", 2)


def steps(rounds: int, count: int, task: str) -> None:
    from counterpoint.integrations.control.environment import vector

    envs = {n: vector(task, n) for n in (2, 1)}
    action = {n: np.zeros(env.action_space.shape, np.float32) for n, env in envs.items()}

    def run(n: int) -> Callable[[], None]:
        def play() -> None:
            envs[n].reset(seed=0)
            for _ in range(count // n):
                envs[n].step(action[n])

        return play

    times = turns({f"{n} process{'es' * (n > 1)}": run(n) for n in envs}, rounds, time.perf_counter)
    print(f"steps of {task}: 100 x 100 pixels, by the clock, {rounds} rounds of {count}")
    show(times, "steps", count)
    for env in envs.values():
        env.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("updates", "steps"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--count", type=int, default=100, help="environment steps per round")
    parser.add_argument("--task", default="cartpole-swingup")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "updates":
        updates(given.rounds, given.batch)
    else:
        steps(given.rounds, given.count, given.task)


if __name__ == "__main__":
    main()
