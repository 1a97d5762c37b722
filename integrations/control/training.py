"""Reinforcement learning with CURL as a run that can be interrupted."""

from __future__ import annotations

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import math
import shutil
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from counterpoint.plugins import curl

from .. import store
from ..store.run import Run
from .agent import Agent, check_objective
from .data import prepare
from .environment import action_repeat, check_task
from .evaluation import evaluate
from .replay import Replay
from .settings import AgentSettings, Settings

SAVE_EVERY = 60.0  # seconds between checkpoints
LOG_EVERY = 100  # updates between lines about the losses
MARKS = (100_000, 500_000)  # steps whose scores CURL reports


def cell(task: str, objective: str | None, seed: int, **changes: Any) -> dict[str, Any]:
    """The arguments of one run: the defaults of :class:`~.settings.Settings`, changed as given.

    The objective is a spec; None with ``observe="state"``, which is plain soft actor-critic.
    """
    store.check_names(changes, [field.name for field in fields(Settings)])
    from_state = changes.get("observe") == "state"
    by_task: dict[str, Any] = {"lr": 2e-4} if task == "cheetah-run" else {}
    by_observation: dict[str, Any] = {"stack": 1, "hidden": 256} if from_state else {}
    settings = Settings(**{**by_task, **by_observation, **changes})
    check_task(task)
    scores, repeat = settings.scores, settings.repeat or action_repeat(task)
    if from_state and objective is not None:
        raise ValueError("objective: crops need pixels; with observe='state' it must be None.")
    if objective is not None:
        scores = scores or curl.default_scores(check_objective(objective))
    actions = settings.envs * math.ceil(settings.steps / (settings.envs * repeat))
    if actions < settings.random_steps:
        raise ValueError(
            f"steps: {settings.steps} are {actions} actions, each repeated {repeat} times, but the first "
            f"{settings.random_steps} are random, before any update; raise steps or lower random_steps."
        )
    settings = replace(settings, scores=scores, repeat=repeat)
    names = ("steps", "scores", "observe", "repeat", "envs", "eval_every", "episodes", "device")
    own = {name: getattr(settings, name) for name in names}
    shared = {"domain": "control", "dataset": task, "objective": objective, "seed": seed}
    return {**shared, **({"label": "SAC"} if from_state else {}), **own, "settings": settings.agent}


def build(arguments: Mapping[str, Any], observation: tuple[int, ...], actions: int) -> Agent:
    """Build the untrained agent of a cell, for observations of a shape and actions of a dimension."""
    settings = AgentSettings(**arguments["settings"])
    return Agent(observation, actions, arguments["objective"], settings, arguments["scores"], arguments["device"])


def train(run: Run) -> None:
    """Train one cell; pass it to :func:`counterpoint.integrations.store.run_grid`."""
    with closing(prepare(run.arguments)) as env:
        training = _Training(run, env)
        training.run_to_end()
    evaluations = [line for line in run.metrics() if "score" in line]
    result = {"final score": evaluations[-1]["score"]}
    for mark in MARKS:
        if scores := [line["score"] for line in evaluations if line["step"] >= mark]:
            result[f"score at {mark // 1000}k"] = scores[0]
    if run.arguments["observe"] == "pixels":
        run.export(training.agent.critic.encoder)
    run.finish(result, curve=[[line["step"], line["score"]] for line in evaluations])
    shutil.rmtree(run.path / "replay", ignore_errors=True)


def restore(run: Run | str | Path) -> Agent:
    """The agent of a run or of its folder, from its last checkpoint; needs no simulator."""
    run = Run.read(run)
    if run.arguments["domain"] != "control":
        raise ValueError(f"{run.path} is a run of {run.arguments['domain']}, not of control.")
    if (state := run.load()) is None:
        raise ValueError(f"{run.path}: no checkpoint yet.")
    settings, critic = run.arguments["settings"], state["agent"]["critic"]
    actions = state["agent"]["actor"]["trunk.4.weight"].shape[0] // 2  # a mean and a deviation of each
    pixels = (3 * settings["stack"], settings["size"], settings["size"])
    numbers = (critic["q1.0.weight"].shape[1] - actions,)
    agent = build(run.arguments, pixels if run.arguments["observe"] == "pixels" else numbers, actions)
    agent.load(state["agent"])
    return agent


class _Training:
    """The training loop and its state, all of which is in the checkpoint."""

    def __init__(self, run: Run, env: Any) -> None:
        self.run, self.env, self.arguments = run, env, run.arguments
        self.settings = settings = AgentSettings(**run.arguments["settings"])
        shape, actions = env.single_observation_space.shape, env.single_action_space.shape[0]
        envs, device = self.arguments["envs"], self.arguments["device"]
        frame = (3, *shape[1:]) if self.arguments["observe"] == "pixels" else shape
        self.agent = build(self.arguments, shape, actions)
        self.replay = Replay(settings.capacity, frame, actions, envs, settings.stack, device)
        self.returns, self.decisions, self.step = np.zeros(envs), 0, 0
        if (state := run.load(lambda state: self.replay.load(run.path / "replay", state["replay"]))) is None:
            self.observations, _ = env.reset(seed=[1000 * self.arguments["seed"] + i for i in range(envs)])
            for i in range(envs):
                self.replay.begin(i, self.observations[i])
        else:
            self.agent.load(state["agent"])
            env.set_attr("state", state["envs"])
            self.observations = np.stack(env.get_attr("observation"))
            self.returns, self.decisions, self.step = np.array(state["returns"]), state["decisions"], state["step"]
            store.set_rng_state(state["rng"])

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

    def run_to_end(self) -> None:
        envs = self.arguments["envs"]
        steps_per_turn = envs * self.arguments["repeat"]
        turns = math.ceil(self.arguments["steps"] / steps_per_turn)
        last_save = time.monotonic()
        for turn in self.run.track(range(self.step // steps_per_turn, turns), total=turns):
            self.step = (turn + 1) * steps_per_turn
            self._act()
            if self.decisions >= self.settings.random_steps:
                for _ in range(envs):
                    self._learn()
            marks = (self.arguments["eval_every"], *MARKS)
            passed = any(self.step // mark > (self.step - steps_per_turn) // mark for mark in marks)
            if turn + 1 == turns or passed:
                returns = evaluate(self.agent, self.arguments, self.arguments["episodes"])
                self.run.log(self.step, score=float(returns.mean()), spread=float(returns.std()))
            if turn + 1 == turns or time.monotonic() - last_save >= SAVE_EVERY:
                self.save()
                last_save = time.monotonic()

    def _act(self) -> None:
        shape = self.env.action_space.shape
        if self.decisions < self.settings.random_steps:
            actions = 2 * torch.rand(shape).numpy() - 1
        else:
            actions = self.agent.act(self.observations, explore=True)
        observations, rewards, terminated, truncated, _ = self.env.step(actions)
        self.returns += rewards
        self.decisions += len(actions)
        for i, action in enumerate(actions):
            self.replay.add(i, action, rewards[i], observations[i], terminated[i])
        if (over := terminated | truncated).any():
            self.run.log(self.step, **{"return": float(self.returns[over].mean())})
            self.returns[over] = 0.0
            observations, _ = self.env.reset(options={"reset_mask": over})
            for env in np.flatnonzero(over).tolist():
                self.replay.begin(env, observations[env])
        self.observations = observations.copy()  # the environments reuse their memory

    def _learn(self) -> None:
        losses = self.agent.update(self.replay.sample(self.settings.batch))
        if self.agent.updates % LOG_EVERY == 1:  # these updates include the actor
            metrics = {name: float(value) for name, value in losses.items()}
            for name, value in metrics.items():
                if not math.isfinite(value):
                    raise FloatingPointError(
                        f"{name} is {value} after {self.agent.updates} updates: training diverged."
                    )
            self.run.log(self.step, **metrics)
