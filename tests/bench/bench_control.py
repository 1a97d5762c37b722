"""Updates of CURL beside the official code's, and batches of frames beside torchrl's.

    COUNTERPOINT_HOSTS=FOLDER python tests/bench/bench_control.py updates     # FOLDER/curl: a clone of MishaLaskin/curl
    python tests/bench/bench_control.py torchrl                               # pip install torchrl

An update is a batch from the replay buffer, both crops, critic, contrastive loss, and every second time actor and
targets, on the same shapes. The two take turns, two updates each, and what is shown is the median over rounds of the
ratio of their CPU times at one thread, so that load on the machine cancels; with ``--threads 2`` it is the clock's, for
an idle machine. Each has a process of its own, as the
pages of memory that one has freed would be the other's gain. The official code runs as it is; it needs gym and
scikit-image.

Against torchrl: a batch of stacked frames from the replay buffer.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

ACTIONS = 1  # of cartpole-swingup


class Contestant:
    """What ``make(*given)`` returns is run in a process of its own; a call takes ``clock`` before and after."""

    def __init__(
        self, threads: int, clock: Callable[[], float], make: Callable[..., Callable[[], Any]], *given: Any
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        context.Process(target=self.serve, args=(theirs, threads, clock, make, given)).start()
        theirs.close()
        self()  # what is only slow at first

    def __call__(self) -> float:
        self.pipe.send(None)
        return float(self.pipe.recv())

    @staticmethod
    def serve(
        pipe: Any, threads: int, clock: Callable[[], float], make: Callable[..., Callable[[], Any]], given: Any
    ) -> None:
        torch.set_num_threads(threads)
        run = make(*given)
        with suppress(EOFError):  # once nobody asks any more
            while True:
                pipe.recv()
                start = clock()
                run()
                pipe.send(clock() - start)


def turns(contestants: dict[str, Contestant], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for i in range(rounds):
        for name in list(contestants)[:: 1 if i % 2 else -1]:
            times[name].append(contestants[name]())
    for contestant in contestants.values():
        contestant.pipe.close()
    return times


def show(times: dict[str, list[float]], unit: str, each: int) -> None:
    ours, *others = times
    for name, column in times.items():
        print(f"{name:28}{each / statistics.median(column):8.2f} {unit}/s")
    for other in others:
        ratios = sorted(b / a for a, b in zip(times[ours], times[other], strict=True))
        print(f"{ours} is {statistics.median(ratios):.2f} times {other} ({ratios[0]:.2f} to {ratios[-1]:.2f})")


FRAMES = 400


def play() -> Iterator[tuple[Any, Any, float, Any]]:
    """Observations, actions, rewards and next observations: frames of noise, three of them stacked."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (FRAMES + 1, 3, 100, 100), dtype=np.uint8)
    stacks = [pixels[np.maximum(0, range(at - 2, at + 1))].reshape(9, 100, 100) for at in range(FRAMES + 1)]
    for i in range(FRAMES):
        yield stacks[i], rng.uniform(-1, 1, ACTIONS).astype(np.float32), float(rng.uniform()), stacks[i + 1]


def filled() -> Any:
    from counterpoint.integrations.control.replay import Replay

    replay = Replay(FRAMES + 1, (3, 100, 100), ACTIONS)
    for i, (seen, action, reward, then) in enumerate(play()):
        if not i:
            replay.begin(seen)
        replay.add(action, reward, then, False)
    return replay


def ours(batch: int) -> Callable[[], None]:
    from counterpoint.integrations.control.agent import Agent
    from counterpoint.integrations.control.settings import AgentSettings

    agent = Agent((9, 100, 100), ACTIONS, "infonce:t=1", AgentSettings(batch=batch))
    replay = filled()

    def run() -> None:
        for _ in range(2):
            agent.update(replay.sample(batch))

    return run


class Silent:
    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *args: None


def the_official_code(batch: int, clone: str) -> Callable[[], None]:
    from counterpoint.integrations.control.settings import AgentSettings

    sys.path.insert(0, clone)
    official, utils = importlib.import_module("curl_sac"), importlib.import_module("utils")
    s, device = AgentSettings(), torch.device("cpu")
    agent = official.CurlSacAgent(
        (9, s.crop, s.crop), (ACTIONS,), device, hidden_dim=s.hidden, log_interval=10**9, critic_tau=s.tau,
        encoder_tau=s.encoder_tau, init_temperature=s.alpha, alpha_lr=s.alpha_lr, alpha_beta=0.5,
    )  # fmt: skip
    buffer = utils.ReplayBuffer((9, 100, 100), (ACTIONS,), FRAMES, batch, device, s.crop)
    for seen, action, reward, then in play():
        buffer.add(seen, action, reward, then, False)

    def run() -> None:
        for step in (1, 2):
            agent.update(buffer, Silent(), step)

    return run


def updates(rounds: int, batch: int, threads: int) -> None:
    hosts = os.environ.get("COUNTERPOINT_HOSTS", "")
    clone = Path(hosts) / "curl"
    if not hosts or not (clone / "curl_sac.py").is_file():
        raise SystemExit("set COUNTERPOINT_HOSTS to a folder that holds a clone of MishaLaskin/curl, named curl")
    clock = time.process_time if threads == 1 else time.perf_counter
    contestants = {
        "counterpoint": Contestant(threads, clock, ours, batch),
        "the official code": Contestant(threads, clock, the_official_code, batch, str(clone)),
    }
    times = turns(contestants, rounds)
    how = "one thread, CPU time" if threads == 1 else f"{threads} threads, by the clock"
    print(f"updates: batch {batch}, crops of 84, {how}, {rounds} rounds of two")
    show(times, "updates", 2)


def our_frames(batch: int) -> Callable[[], None]:
    replay = filled()

    def run() -> None:
        for _ in range(10):
            replay.sample(batch)

    return run


def torchrls_frames(batch: int) -> Callable[[], None]:
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(FRAMES), batch_size=batch)
    for seen, action, reward, then in play():
        row = {"observation": seen, "action": action, "next": {"observation": then, "reward": reward}}
        buffer.add(TensorDict(row, batch_size=[]))

    def run() -> None:
        for _ in range(10):
            buffer.sample()

    return run


def torchrl(rounds: int, batch: int) -> None:
    contestants = {
        "counterpoint": Contestant(1, time.process_time, our_frames, batch),
        "torchrl": Contestant(1, time.process_time, torchrls_frames, batch),
    }
    print(f"stacked frames of 100 x 100 from the buffer: batch {batch}, one thread, CPU time, {rounds} rounds of 10")
    show(turns(contestants, rounds), "batches", 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("updates", "torchrl"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1, help="of an update")
    given = parser.parse_args()
    if given.what == "updates":
        updates(given.rounds, given.batch, given.threads)
    else:
        torchrl(given.rounds, given.batch)


if __name__ == "__main__":
    main()
