"""``counterpoint train control`` and ``counterpoint eval control``; the parsers need neither torch nor dm_control."""

from __future__ import annotations

import argparse
import json
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from .. import flags
from ..domain import check_choice
from .settings import CURL_TASKS, Settings, tasks

if TYPE_CHECKING:
    from ..store.run import Run


def train_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_arguments(parser, "infonce:t=1", Settings)
    tasks = f"tasks of the suite, such as {', '.join(CURL_TASKS)} (cartpole-swingup)"
    parser.add_argument("--task", nargs="+", default=["cartpole-swingup"], metavar="NAME", help=tasks)
    flags.add_settings(parser.add_argument_group("training"), Settings)
    parser.set_defaults(seed=1, check=_check_train)


def _check_train(arguments: argparse.Namespace) -> None:
    """Raise errors of names and numbers; called before torch is imported."""
    if known := tasks():  # else the error names the extra to install
        for task in arguments.task:
            check_choice("task", task, known)
    Settings(**settings(arguments, arguments.task[0]))


def settings(arguments: argparse.Namespace, dataset: str) -> dict[str, Any]:
    """The settings that the flags give to the cells of a task."""
    return flags.chosen(arguments, Settings)


def train_command(arguments: argparse.Namespace) -> int:
    """Train every objective on every task, and print the report of these runs."""
    from .. import report
    from . import training

    seeds, specs = range(arguments.seed, arguments.seed + arguments.seeds), arguments.objective or ["infonce:t=1"]
    grid = product(arguments.task, seeds, specs)
    cells = [training.cell(task, spec, seed, **settings(arguments, task)) for task, seed, spec in grid]
    runs, code = flags.run_cells(training.train, cells, arguments, "train control")
    report.show(runs, arguments.json)
    if not arguments.json:
        for run in runs:
            print(f"{run.title}: {run.arguments['scores']} scores, in {run.address}")
    return code


def eval_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", nargs="+", type=flags.runs, help="folders of runs, at any depth, or their URLs")
    episodes = "deterministic episodes, on center crops (%(default)s)"
    add("--episodes", type=flags.whole(1), default=10, metavar="N", help=episodes)
    add("--json", action="store_true", help="print JSON")
    parser.set_defaults(check=lambda arguments: flags.check_runs(arguments.runs))


def eval_command(arguments: argparse.Namespace) -> int:
    """Evaluate the agents of runs, finished or not."""
    from .. import store

    runs = [run for run in store.find_runs(arguments.runs) if run.arguments["domain"] == "control" and not run.tuning]
    if not runs:
        raise ValueError(f"no runs of control in {', '.join(map(str, arguments.runs))}.")
    evaluated = list(flags.each(runs, partial(_evaluate, episodes=arguments.episodes)))
    if arguments.json:
        print(json.dumps([result for _, result in evaluated], indent=1))
        return 0
    for run, result in evaluated:
        score = f"{result['score']:.1f} ± {result['spread']:.1f}"
        print(f"{run.title}: {score} over {arguments.episodes} episodes ({run.address})")
    return 0


def _evaluate(run: Run, episodes: int) -> dict[str, Any]:
    from . import evaluation, training

    agent, arguments = training.restore(run), run.arguments
    returns = evaluation.evaluate(agent, arguments, episodes)
    row = {"task": arguments["dataset"], "name": run.name, "seed": arguments["seed"], "run": run.address}
    return {**row, "score": float(returns.mean()), "spread": float(returns.std()), "returns": returns.tolist()}
