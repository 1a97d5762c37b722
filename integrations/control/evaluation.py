"""Evaluate an agent: the returns of whole episodes with its deterministic policy, and a film of the first."""

from __future__ import annotations

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoint.install import install

from .. import store
from ..domain import check_whole
from .agent import Agent
from .data import prepare

FIRST_SEED = 2**50  # of the episodes of every evaluation; no run trains on it


def evaluate(
    agent: Agent, arguments: Mapping[str, Any], episodes: int = 10, film: Path | None = None
) -> NDArray[np.float64]:
    """The returns of whole episodes with the policy's mean action on center crops.

    The episodes are the same for every agent, seed and step, so only the policies differ. ``film`` is the file for the
    frames of the first episode, ``.gif`` or ``.mp4``.
    """
    check_whole("episodes: expected", episodes, 1)
    envs = min(arguments["envs"], episodes)
    finished: list[float] = []
    frames: list[Any] = []
    with closing(prepare({**arguments, "envs": envs})) as env:
        while len(finished) < episodes:
            observations, _ = env.reset(seed=[FIRST_SEED + len(finished) + i for i in range(envs)])
            returns, playing = np.zeros(envs), np.ones(envs, bool)
            while playing.any():
                if film is not None and not finished and playing[0]:
                    frames.append(env.call("render")[0])
                observations, rewards, terminated, truncated, _ = env.step(agent.act(observations))
                returns += rewards * playing
                over = terminated | truncated
                playing &= ~over
                if playing.any() and over.any():
                    observations, _ = env.reset(options={"reset_mask": over})
            finished += returns.tolist()
        if film is not None:
            write_film(film, frames, arguments["repeat"] * env.get_attr("timestep")[0])
    return np.array(finished[:episodes])


def check_film(path: Path) -> None:
    """Raise the errors of :func:`write_film` before an evaluation rather than after it."""
    if path.suffix not in (".gif", ".mp4"):
        raise ValueError(f"video: expected a name that ends in .gif or .mp4, got {str(path)!r}.")
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"{path}: no such folder.")
    _encode(path.suffix, [np.zeros((16, 16, 3), np.uint8)] * 2, 0.1)


def write_film(path: Path, frames: Sequence[Any], seconds: float) -> None:
    """Write frames ``(height, width, 3)`` of bytes, ``seconds`` apart, as ``.gif`` or ``.mp4``, as the name ends."""
    film = _encode(path.suffix, frames, seconds)
    with store.atomic(path) as file:
        file.write(film)


def _encode(suffix: str, frames: Sequence[Any], seconds: float) -> bytes:
    try:
        import imageio.v3 as imageio
    except ImportError as error:
        raise ImportError(f"videos need imageio: {install('control')}") from error
    options: dict[str, Any] = {"duration": 1000 * seconds, "loop": 0} if suffix == ".gif" else {"fps": 1 / seconds}
    return imageio.imwrite("<bytes>", np.stack(frames), extension=suffix, **options)  # type: ignore[no-any-return]
