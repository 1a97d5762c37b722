"""Evaluate an agent: the returns of whole episodes with its deterministic policy."""

from __future__ import annotations

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .agent import Agent
from .data import prepare

FIRST_SEED = 2**50  # of the episodes of every evaluation; no run trains on it


def evaluate(
    agent: Agent, arguments: Mapping[str, Any], episodes: int = 10, video: list[Any] | None = None
) -> NDArray[np.float64]:
    """The returns of whole episodes with the policy's mean action on center crops.

    The episodes are the same for every agent, seed and step, so only the policies differ. A list passed as ``video``
    receives the frames of the first episode.
    """
    if episodes < 1:
        raise ValueError(f"episodes: expected at least 1, got {episodes}.")
    envs = min(arguments["envs"], episodes)
    finished: list[float] = []
    with closing(prepare(arguments, envs)) as env:
        while len(finished) < episodes:
            observations, _ = env.reset(seed=[FIRST_SEED + len(finished) + i for i in range(envs)])
            returns, playing = np.zeros(envs), np.ones(envs, bool)
            while playing.any():
                if video is not None and not finished and playing[0]:
                    video.append(env.call("render")[0])
                observations, rewards, terminated, truncated, _ = env.step(agent.act(observations))
                returns += rewards * playing
                over = terminated | truncated
                playing &= ~over
                if playing.any() and over.any():
                    observations, _ = env.reset(options={"reset_mask": over})
            finished += returns.tolist()
    return np.array(finished[:episodes])
