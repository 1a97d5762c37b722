"""Evaluate an agent: the returns of whole episodes with its deterministic policy."""

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..domain import check_whole
from .agent import Agent
from .environment import prepare

FIRST_SEED = 2**50  # of the episodes of every evaluation; no run trains on it


def evaluate(agent: Agent, arguments: Mapping[str, Any], episodes: int = 10) -> NDArray[np.float64]:
    """The returns of whole episodes with the policy's mean action on center crops.

    The episodes are the same for every agent, seed and step, so only the policies differ.
    """
    check_whole("episodes: expected", episodes, 1)
    returns = np.zeros(episodes)
    with closing(prepare(arguments)) as env:
        for episode in range(episodes):
            observation, _ = env.reset(seed=FIRST_SEED + episode)
            terminated = truncated = False
            while not (terminated or truncated):
                observation, reward, terminated, truncated, _ = env.step(agent.act(observation[None])[0])
                returns[episode] += reward
    return returns
