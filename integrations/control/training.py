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
    label = {"label": "SAC"} if from_state else {}
    own = replace(settings, scores=scores, repeat=repeat).arguments()
    return {"domain": "control", "dataset": task, "objective": objective, "seed": seed, **label, **own}


def build(arguments: Mapping[str, Any], observation: tuple[int, ...], actions: int) -> Agent:
    """Build the untrained agent of a cell, for observations of a shape and actions of a dimension."""
    settings = AgentSettings(**arguments["settings"])
    return Agent(observation, actions, arguments["objective"], settings, arguments["scores"], arguments["device"])


def train(run: Run) -> None:
    """Train one cell; pass it to :func:`counterpoint.integrations.store.run_grid`."""
    with closing(prepare(run.arguments)) as env:
        agent = learn(run, env)
    evaluations = [line for line in run.metrics() if "score" in line]
    result = {"final score": evaluations[-1]["score"]}
    for mark in MARKS:
        if scores := [line["score"] for line in evaluations if line["step"] >= mark]:
            result[f"score at {mark // 1000}k"] = scores[0]
    if agent.pixels:
        run.export(agent.critic.encoder)
    run.finish(result, curve=[[line["step"], line["score"]] for line in evaluations])
    shutil.rmtree(run.path / "replay", ignore_errors=True)


def learn(run: Run, env: Any) -> Agent:
    """Let an agent act and learn by turns, and evaluate it. The checkpoint has the state of all that takes part."""
    arguments, settings = run.arguments, AgentSettings(**run.arguments["settings"])
    shape, actions, envs = env.single_observation_space.shape, env.single_action_space.shape[0], arguments["envs"]
    agent = build(arguments, shape, actions)
    frame = (3, *shape[1:]) if agent.pixels else shape
    replay = Replay(settings.capacity, frame, actions, envs, settings.stack, arguments["device"])
    folder = run.path / "replay"
    if (state := run.load(lambda state: replay.load(folder, state["replay"]))) is None:
        returns, decisions, step = np.zeros(envs), 0, 0
        observations, _ = env.reset(seed=[1000 * arguments["seed"] + i for i in range(envs)])
        for i in range(envs):
            replay.begin(i, observations[i])
    else:
        agent.load(state["agent"])
        env.set_attr("state", state["envs"])
        observations = np.stack(env.get_attr("observation"))
        returns, decisions, step = np.array(state["returns"]), state["decisions"], state["step"]
        store.set_rng_state(state["rng"])

    steps_per_turn = envs * arguments["repeat"]
    turns, last_save = math.ceil(arguments["steps"] / steps_per_turn), time.monotonic()
    for turn in run.track(range(step // steps_per_turn, turns), total=turns):
        step, last = (turn + 1) * steps_per_turn, turn + 1 == turns

        # 1. act
        if decisions < settings.random_steps:
            action = 2 * torch.rand(env.action_space.shape).numpy() - 1
        else:
            action = agent.act(observations, explore=True)
        observations, rewards, terminated, truncated, _ = env.step(action)
        returns += rewards
        decisions += envs
        for i in range(envs):
            replay.add(i, action[i], rewards[i], observations[i], terminated[i])
        if (over := terminated | truncated).any():
            run.log(step, **{"return": float(returns[over].mean())})
            returns[over] = 0.0
            observations, _ = env.reset(options={"reset_mask": over})
            for i in np.flatnonzero(over).tolist():
                replay.begin(i, observations[i])
        observations = observations.copy()  # the environments reuse their memory

        # 2. learn: an update per decision
        for _ in range(envs if decisions >= settings.random_steps else 0):
            losses = agent.update(replay.sample(settings.batch))
            if agent.updates % LOG_EVERY == 1:  # these updates include the actor
                metrics = {name: float(value) for name, value in losses.items()}
                if diverged := [name for name, value in metrics.items() if not math.isfinite(value)]:
                    what = f"{diverged[0]} is {metrics[diverged[0]]} after {agent.updates} updates"
                    raise FloatingPointError(f"{what}: training diverged.")
                run.log(step, **metrics)

        # 3. evaluate and save
        if last or any(step // mark > turn * steps_per_turn // mark for mark in (arguments["eval_every"], *MARKS)):
            scores = evaluate(agent, arguments, arguments["episodes"])
            run.log(step, score=float(scores.mean()), spread=float(scores.std()))
        if last or time.monotonic() - last_save >= SAVE_EVERY:
            parts = {"agent": agent.state(), "replay": replay.save(folder), "envs": list(env.get_attr("state"))}
            counts = {"returns": returns.tolist(), "decisions": decisions}
            run.save({**parts, **counts, "rng": store.rng_state()}, step)
            last_save = time.monotonic()
    return agent


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
