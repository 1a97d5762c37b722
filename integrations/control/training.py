"""Reinforcement learning with CURL as a run that can be interrupted, and the evaluation of what was learned."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from counterpoint.hyper import nearest
from counterpoint.plugins import curl

from .. import store
from ..store.run import Run
from .agent import Agent, Settings, check_objective
from .environment import action_repeat, check_task, vector
from .replay import Replay

DEFAULTS: dict[str, Any] = {
    "steps": 100_000,
    "scores": None,
    "observe": "pixels",
    "repeat": None,
    "envs": 1,
    "eval_every": 10_000,
    "episodes": 10,
    "device": "cpu",
}
"""What a cell's arguments are if it does not say otherwise, beside :class:`Settings`. Steps are the simulator's."""

OBSERVE = ("pixels", "state")
SAVE_EVERY = 60.0  # seconds between checkpoints
LOG_EVERY = 100  # updates between lines about the losses
MARKS = (100_000, 500_000)  # steps whose scores CURL reports
FILMS = (".gif", ".mp4")
EVALUATION = 2**50  # seed of the first episode that all evaluations begin with: no run trains on it


def cell(task: str, objective: str | None, seed: int, **changes: Any) -> dict[str, Any]:
    """The arguments of one run; what is not changed is as in :data:`DEFAULTS` and :class:`Settings`.

    Args:
        task: ``domain-task``, see :func:`counterpoint.integrations.control.environment.check_task`.
        objective: a spec; None with ``observe="state"``, which is plain soft actor-critic.
        seed: of networks, environments and all else.
        changes: of the defaults.
    """
    store.check_names(changes, (*DEFAULTS, *(field.name for field in fields(Settings))))
    given = {**DEFAULTS, **{name: value for name, value in changes.items() if name in DEFAULTS}}
    if given["observe"] not in OBSERVE:
        raise ValueError(f"observe: unknown {given['observe']!r}.{nearest(str(given['observe']), OBSERVE)}")
    for name in ("steps", "envs", "eval_every", "episodes"):
        if not isinstance(given[name], int) or given[name] < 1:
            raise ValueError(f"{name}: expected a whole number of at least 1, got {given[name]!r}.")
    check_task(task)
    given["repeat"] = given["repeat"] or action_repeat(task)
    own: dict[str, Any] = {"lr": 2e-4} if task == "cheetah-run" else {}
    named: dict[str, Any] = {}
    if given["observe"] == "state":
        own |= {"stack": 1, "hidden": 256}
        if objective is not None:
            raise ValueError("objective: crops need pixels; with observe='state' it must be None.")
        named = {"label": "SAC"}
    elif objective is not None:
        given["scores"] = given["scores"] or curl.natural_scores(check_objective(objective))
    settings = Settings(**{**own, **{name: value for name, value in changes.items() if name not in DEFAULTS}})
    actions = given["envs"] * math.ceil(given["steps"] / (given["envs"] * given["repeat"]))
    if actions < settings.random_steps:
        raise ValueError(
            f"steps: {given['steps']} are {actions} actions, each repeated {given['repeat']} times, but the first "
            f"{settings.random_steps} are at random, before any update; raise steps or lower random_steps."
        )
    about = {"domain": "control", "dataset": task, "objective": objective, "seed": seed}
    return {**about, **named, **given, "settings": asdict(settings)}


def build(given: dict[str, Any], observation: tuple[int, ...], actions: int) -> Agent:
    """The agent of a cell as it starts."""
    settings = Settings(**given["settings"])
    return Agent(observation, actions, given["objective"], settings, given["scores"], given["device"])


def make(given: dict[str, Any], envs: int) -> Any:
    """The environments of a cell."""
    how = {"pixels": given["observe"] == "pixels", "repeat": given["repeat"]}
    return vector(given["dataset"], envs, size=given["settings"]["size"], stack=given["settings"]["stack"], **how)


def train(run: Run) -> None:
    """Trains one cell; the training function for :func:`counterpoint.integrations.store.grid.run_grid`."""
    given, settings = run.arguments, Settings(**run.arguments["settings"])
    with closing(make(given, given["envs"])) as env:
        _Training(run, given, settings, env).go()
    looks = [line for line in run.metrics() if "score" in line]
    marks = [(mark, next((line["score"] for line in looks if line["step"] >= mark), None)) for mark in MARKS]
    reached = {f"score at {mark // 1000}k": score for mark, score in marks if score is not None}
    run.finish({"final score": looks[-1]["score"], **reached}, curve=[[x["step"], x["score"]] for x in looks])
    shutil.rmtree(run.path / "replay", ignore_errors=True)


class _Training:
    """The loop, and what it goes on from: everything here is in the checkpoint."""

    def __init__(self, run: Run, given: dict[str, Any], settings: Settings, env: Any) -> None:
        self.run, self.given, self.settings, self.env = run, given, settings, env
        seen, actions, envs = env.single_observation_space.shape, env.single_action_space.shape[0], given["envs"]
        frame = (3, *seen[1:]) if given["observe"] == "pixels" else seen
        self.agent = build(given, seen, actions)
        self.replay = Replay(settings.capacity, frame, actions, envs, settings.stack, given["device"])
        self.returns, self.decisions, self.step = np.zeros(envs), 0, 0
        if (state := run.load()) is None:
            self.observations, _ = env.reset(seed=[1000 * given["seed"] + i for i in range(envs)])
            for i in range(envs):
                self.replay.begin(i, self.observations[i])
        else:
            self.agent.load(state["agent"])
            self.replay.load(run.path / "replay", state["replay"])
            env.set_attr("state", state["envs"])
            self.observations = np.stack(env.get_attr("observation"))
            self.returns, self.decisions, self.step = np.array(state["returns"]), state["decisions"], state["step"]
            store.set_rng_state(state["rng"])
        self.board = _board(run.path / "tensorboard", self.step)

    def save(self) -> None:
        state = {
            "agent": self.agent.state(),
            "replay": self.replay.save(self.run.path / "replay"),
            "envs": list(self.env.get_attr("state")),
            "returns": self.returns.tolist(),
            "decisions": self.decisions,
            "rng": store.rng_state(),
        }
        self.run.save(state, self.step)

    def log(self, **numbers: float) -> None:
        self.run.log(self.step, **numbers)
        if self.board is not None:
            for name, value in numbers.items():
                self.board.add_scalar(name, value, self.step)

    def go(self) -> None:
        each = self.given["envs"] * self.given["repeat"]
        total, every = math.ceil(self.given["steps"] / each), self.given["eval_every"]
        saved = time.monotonic()
        for turn in self.run.track(range(self.step // each, total), total=total):
            self.step = (turn + 1) * each
            self._play()
            if self.decisions >= self.settings.random_steps:
                for _ in range(self.given["envs"]):
                    self._learn()
            passed = any(self.step // n > (self.step - each) // n for n in (every, *MARKS))
            if turn + 1 == total or passed:
                returns = evaluate(self.agent, self.given, self.given["episodes"])
                self.log(score=float(returns.mean()), spread=float(returns.std()))
            if turn + 1 == total or time.monotonic() - saved >= SAVE_EVERY:
                self.save()
                saved = time.monotonic()

    def _play(self) -> None:
        shape = self.env.action_space.shape
        if self.decisions < self.settings.random_steps:
            actions = 2 * torch.rand(shape).numpy() - 1
        else:
            actions = self.agent.act(self.observations, explore=True)
        found, rewards, terminated, truncated, _ = self.env.step(actions)
        self.returns += rewards
        self.decisions += len(actions)
        for i, action in enumerate(actions):
            self.replay.add(i, action, rewards[i], found[i], terminated[i])
        if (over := terminated | truncated).any():
            self.log(**{"return": float(self.returns[over].mean())})
            self.returns[over] = 0.0
            found, _ = self.env.reset(options={"reset_mask": over})
            for env in np.flatnonzero(over).tolist():
                self.replay.begin(env, found[env])
        # the environments give out the same memory each time
        self.observations = found.copy()

    def _learn(self) -> None:
        losses = self.agent.update(self.replay.sample(self.settings.batch))
        if self.agent.updates % LOG_EVERY == 1:  # an update that moves the actor too
            numbers = {name: float(value) for name, value in losses.items()}
            for name, value in numbers.items():
                if not math.isfinite(value):
                    raise FloatingPointError(f"{name} is {value} after {self.agent.updates} updates: it has diverged.")
            self.log(**numbers)


def _board(folder: Path, step: int) -> Any:
    """A TensorBoard, where that is installed."""
    if find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(folder, purge_step=step)


# ---- evaluation --------------------------------------------------------------------------------


def evaluate(
    agent: Agent, given: dict[str, Any], episodes: int = 10, video: list[Any] | None = None
) -> NDArray[np.float64]:
    """The returns of whole episodes with the policy's mean action on centre crops.

    The first ``episodes`` are the same for every agent, seed and moment: what differs is what was learned.

    Args:
        agent: who plays.
        given: the arguments of its cell.
        episodes: how many, at least 1.
        video: a list that the first episode's frames are appended to.
    """
    if episodes < 1:
        raise ValueError(f"episodes: expected at least 1, got {episodes}.")
    envs = min(given["envs"], episodes)
    found: list[float] = []
    with closing(make(given, envs)) as env:
        while len(found) < episodes:
            observations, _ = env.reset(seed=[EVALUATION + len(found) + i for i in range(envs)])
            returns, playing = np.zeros(envs), np.ones(envs, bool)
            while playing.any():
                if video is not None and not found and playing[0]:
                    video.append(env.call("render")[0])
                observations, rewards, terminated, truncated, _ = env.step(agent.act(observations))
                returns += rewards * playing
                over = terminated | truncated
                playing &= ~over
                if playing.any() and over.any():
                    observations, _ = env.reset(options={"reset_mask": over})
            found += returns.tolist()
    return np.array(found[:episodes])


def read(run: Run) -> Agent:
    """The agent that a run has trained so far."""
    if run.arguments["domain"] != "control":
        raise ValueError(f"{run.path} is a run of {run.arguments['domain']}, not of control.")
    state = run.load()
    if state is None:
        raise ValueError(f"{run.path}: it has no checkpoint yet.")
    with closing(make(run.arguments, 1)) as env:
        agent = build(run.arguments, env.single_observation_space.shape, env.single_action_space.shape[0])
    agent.load(state["agent"])
    return agent


def seconds(given: dict[str, Any]) -> float:
    """Simulated time between two observations of a cell."""
    with closing(make(given | {"observe": "state"}, 1)) as env:
        return float(given["repeat"] * env.get_attr("timestep")[0])


def check_video(path: Path) -> None:
    """Raises now what :func:`write_video` would raise after an evaluation."""
    if path.suffix not in FILMS:
        raise ValueError(f"video: expected a name that ends in {' or '.join(FILMS)}, got {str(path)!r}.")
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no such folder.")
    _film(path.suffix, np.zeros((2, 16, 16, 3), np.uint8), 0.1)


def write_video(path: Path, frames: Sequence[Any], seconds: float) -> None:
    """Frames as a film, in the format that the name ends in, such as ``.gif`` or ``.mp4``.

    Args:
        path: where to.
        frames: ``(height, width, 3)`` bytes each.
        seconds: between two frames.
    """
    film = _film(path.suffix, np.stack(frames), seconds)
    with store.atomic(path) as file:
        file.write(film)


def _film(suffix: str, frames: NDArray[np.uint8], seconds: float) -> bytes:
    try:
        import imageio.v3 as imageio
    except ImportError as error:
        raise ImportError('videos need imageio: pip install "counterpoint[control]"') from error
    how: dict[str, Any] = {"duration": 1000 * seconds, "loop": 0} if suffix == ".gif" else {"fps": 1 / seconds}
    return imageio.imwrite("<bytes>", frames, extension=suffix, **how)  # type: ignore[no-any-return]
