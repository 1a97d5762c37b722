"""Reinforcement learning with CURL as a run that can be interrupted."""

import math
import shutil
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from counterpoint.plugins import curl

from .. import store
from ..store.run import Run
from .agent import Agent, check_objective
from .environment import ACTION_REPEAT, Control, check_task, prepare
from .evaluation import evaluate
from .replay import Replay
from .settings import AgentSettings, Settings

SAVE_EVERY = 60.0  # seconds between checkpoints
LOG_EVERY = 100  # updates between lines about the losses
MARKS = (100_000, 500_000)  # steps whose scores CURL reports


def cell(task: str, objective: str | None, seed: int, **changes: Any) -> dict[str, Any]:
    """The arguments of one run: the defaults of :class:`~.settings.Settings`, changed as given.

    The objective is a spec; None for the arguments that all objectives share.
    """
    store.check_names(changes, [field.name for field in fields(Settings)])
    by_task: dict[str, Any] = {"lr": 2e-4} if task == "cheetah-run" else {}
    settings = Settings(**{**by_task, **changes})
    check_task(task)
    scores, repeat = settings.scores, settings.repeat or ACTION_REPEAT[task]
    if objective is not None:
        scores = scores or curl.default_scores(check_objective(objective))
    actions = math.ceil(settings.steps / repeat)
    if actions < settings.random_steps:
        random = f"the first {settings.random_steps} are random, before any update"
        taken = f"{settings.steps} are {actions} actions, each repeated {repeat} times"
        raise ValueError(f"steps: {taken}, but {random}; raise steps or lower random_steps.")
    own = replace(settings, scores=scores, repeat=repeat).arguments()
    return {"domain": "control", "dataset": task, "objective": objective, "seed": seed, **own}


def build(arguments: Mapping[str, Any], actions: int) -> Agent:
    """Build the untrained agent of a cell, for actions of a dimension."""
    settings = AgentSettings(**arguments["settings"])
    observation = 3 * settings.stack, settings.size, settings.size
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
    run.export(agent.critic.encoder)
    run.finish(result, curve=[[line["step"], line["score"]] for line in evaluations])
    shutil.rmtree(run.path / "replay", ignore_errors=True)


def learn(run: Run, env: Control) -> Agent:
    """Let an agent act and learn by turns, and evaluate it. The checkpoint has the state of all that takes part."""
    arguments, settings = run.arguments, AgentSettings(**run.arguments["settings"])
    actions, frame = env.action_space.shape[0], (3, settings.size, settings.size)
    agent = build(arguments, actions)
    replay = Replay(settings.capacity, frame, actions, settings.stack, agent.device)
    folder, repeat = run.path / "replay", arguments["repeat"]
    if (state := run.load(lambda state: replay.load(folder, state["replay"]))) is None:
        total, decisions = 0.0, 0
        observation, _ = env.reset(seed=1000 * arguments["seed"])
        replay.begin(observation)
    else:
        agent.load(state["agent"])
        env.state = state["env"]
        observation, total, decisions = env.observation, state["return"], state["decisions"]
        store.set_rng_state(state["rng"])

    turns, last_save = math.ceil(arguments["steps"] / repeat), time.monotonic()
    for turn in run.track(range(decisions, turns), total=turns):
        step, last = (turn + 1) * repeat, turn + 1 == turns

        # 1. act
        if turn < settings.random_steps:
            action = 2 * torch.rand(env.action_space.shape).numpy() - 1
        else:
            action = agent.act(observation[None], explore=True)[0]
        observation, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        replay.add(action, reward, observation, terminated)
        if terminated or truncated:
            run.log(step, **{"return": total})
            total = 0.0
            observation, _ = env.reset()
            replay.begin(observation)

        # 2. learn: an update per decision
        if turn + 1 >= settings.random_steps:
            reports: dict[str, float] = {}
            logs = agent.updates % LOG_EVERY == 0  # these updates include the actor
            losses = agent.update(replay.sample(settings.batch), reports.update if logs else None)
            if logs:
                metrics = {name: float(value) for name, value in losses.items()}
                if diverged := [name for name, value in metrics.items() if not math.isfinite(value)]:
                    what = f"{diverged[0]} is {metrics[diverged[0]]} after {agent.updates} updates"
                    raise FloatingPointError(f"{what}: training diverged.")
                run.log(step, **metrics, **reports)

        # 3. evaluate and save
        if last or any(step // mark > turn * repeat // mark for mark in (arguments["eval_every"], *MARKS)):
            scores = evaluate(agent, arguments, arguments["episodes"])
            run.log(step, score=float(scores.mean()), spread=float(scores.std()))
        if last or time.monotonic() - last_save >= SAVE_EVERY:
            parts = {"agent": agent.state(), "replay": replay.save(folder), "env": env.state, "rng": store.rng_state()}
            run.save({**parts, "return": total, "decisions": turn + 1}, step)
            last_save = time.monotonic()
    return agent


def restore(run: Run | str | Path) -> Agent:
    """The agent of a run or of its folder, from its last checkpoint; needs no simulator."""
    run = Run.read(run)
    if run.arguments["domain"] != "control":
        raise ValueError(f"{run.path} is a run of {run.arguments['domain']}, not of control.")
    if (state := run.load()) is None:
        raise ValueError(f"{run.path}: no checkpoint yet.")
    agent = build(run.arguments, state["agent"]["networks"]["actor.trunk.4.weight"].shape[0] // 2)  # 2 per action
    agent.load(state["agent"])
    return agent
