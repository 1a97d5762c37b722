"""``counterpoint train control`` and ``counterpoint eval control``."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from counterpoint.plugins.curl import SCORES

from .. import report, store
from ..command import flags
from ..store.run import Run
from . import representation, training
from .agent import Settings
from .environment import CURL_TASKS

FLAGS = {  # of Settings, with what the flag is about
    "batch": "transitions per update",
    "capacity": "frames in the replay buffer",
    "random_steps": "actions at random before the first update",
    "size": "pixels a side of the frames",
    "crop": "pixels a side of the crops",
    "filters": "channels of each convolution",
    "hidden": "width of actor and critics",
    "lr": "learning rate of actor, critics and encoder; 2e-4 for cheetah-run",
}


def train_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_arguments(parser, "steps")
    parser.set_defaults(objective=None, steps=training.DEFAULTS["steps"], seed=1)
    add, default = parser.add_argument, {field.name: field.default for field in fields(Settings)}
    names = ", ".join(CURL_TASKS)
    add("--task", nargs="+", default=["cartpole-swingup"], metavar="NAME", help=f"tasks of the suite, such as {names}")
    add("--scores", choices=SCORES, help="what is compared; by default what each objective needs")
    add("--observe", choices=training.OBSERVE, default="pixels", help="state: plain SAC, without an objective")
    add("--envs", type=int, default=1, metavar="N", help="environments, each in a process (%(default)s)")
    add("--repeat", type=int, metavar="N", help="times each action is applied; by default as CURL does")
    add("--eval-every", type=int, default=training.DEFAULTS["eval_every"], metavar="N", help="steps (%(default)s)")
    add("--episodes", type=int, default=training.DEFAULTS["episodes"], metavar="N", help="per evaluation (%(default)s)")
    for name, about in FLAGS.items():
        kind = type(default[name])
        add(f"--{name.replace('_', '-')}", type=kind, metavar="X", help=f"{about} ({default[name]})")


def train_command(given: argparse.Namespace) -> int:
    """Trains every objective on every task, and prints the report of these runs."""
    names = ("steps", "scores", "observe", "envs", "repeat", "eval_every", "episodes", "device", *FLAGS)
    changes = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    if given.observe == "state" and given.objective:
        raise ValueError("--objective: crops need pixels; leave it out with --observe state.")
    objectives: list[str | None] = given.objective or ([None] if given.observe == "state" else ["infonce:t=1"])
    cells = [
        training.cell(task, objective, seed, **changes)
        for task in given.task
        for seed in range(given.seed, given.seed + given.seeds)
        for objective in objectives
    ]
    found, code = flags.run_asked(training.train, cells, given, "control")
    report.show(found, given.json)
    if not given.json:
        for run in found:
            print(f"{run.title}: {run.arguments['scores'] or 'no'} scores, in {run.path}")
    return code


def eval_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", nargs="+", type=Path, help="folders of runs, or folders that hold such")
    add(
        "--episodes",
        type=flags.whole(1),
        default=10,
        metavar="N",
        help="deterministic ones, on centre crops (%(default)s)",
    )
    add("--envs", type=flags.whole(1), default=1, metavar="N", help="environments, each in a process (%(default)s)")
    add("--video", type=Path, metavar="FILE", help="a film of the first episode: .mp4 or .gif; of one run only")
    add(
        "--representation",
        type=Path,
        metavar="FOLDER",
        help="also judge the encoder by ridge regression of the state, on episodes that are cached there",
    )
    add("--json", action="store_true", help="print JSON")


def eval_command(given: argparse.Namespace) -> int:
    """Evaluates the agents of runs, finished or not."""
    every = [run for run in store.find_runs(given.runs) if run.arguments["domain"] == "control"]
    if not every:
        raise ValueError(f"no runs of control in {', '.join(map(str, given.runs))}.")
    if given.video is not None and len(every) > 1:
        raise ValueError(f"--video: {len(every)} runs are there; name one.")
    if given.video is not None:
        training.check_video(given.video)
    found = [_evaluated(run, given) for run in every]
    if given.json:
        print(json.dumps(found, indent=1))
        return 0
    for run, one in zip(every, found, strict=True):
        print(f"{run.title}: {one['score']:.1f} ± {one['spread']:.1f} over {given.episodes} episodes ({run.path})")
        for name, value in one.get("representation", {}).items():
            print(f"  {name:28}{value:7.3f}")
    return 0


def _evaluated(run: Run, given: argparse.Namespace) -> dict[str, Any]:
    agent, arguments = training.read(run), run.arguments | {"envs": given.envs}
    film: list[Any] | None = [] if given.video is not None else None
    returns = training.evaluate(agent, arguments, given.episodes, film)
    found: dict[str, Any] = {"task": arguments["dataset"], "name": run.name, "seed": arguments["seed"]}
    found |= {"run": str(run.path), "score": float(returns.mean()), "spread": float(returns.std())}
    found["returns"] = returns.tolist()
    if film is not None:
        training.write_video(given.video, film, training.seconds(arguments))
    if given.representation is not None:
        found["representation"] = representation.of_agent(agent, arguments, given.representation)
    return found
