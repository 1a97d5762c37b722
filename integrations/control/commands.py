"""``counterpoint train control`` and ``counterpoint eval control``; the parsers need neither torch nor dm_control."""

import argparse
import json
from itertools import product
from typing import Any

from counterpoint.plugins.printing import print_lines

from .. import flags
from ..domain import check_choice
from .settings import CURL_TASKS, Settings, tasks


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
    for run in () if arguments.json else runs:
        print_lines(f"{run.title}: {run.arguments['scores']} scores, in {run.address}")
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
    from ..store.run import Run, find_runs

    runs = [run for run in find_runs(arguments.runs) if run.arguments["domain"] == "control" and not run.tuning]
    if not runs:
        raise ValueError(f"no runs of control in {', '.join(map(str, arguments.runs))}.")
    from . import evaluation, training

    def evaluate(run: Run) -> dict[str, Any]:
        returns = evaluation.evaluate(training.restore(run), run.arguments, arguments.episodes)
        row = {"task": run.arguments["dataset"], "name": run.name, "seed": run.arguments["seed"], "run": run.address}
        return {**row, "score": float(returns.mean()), "spread": float(returns.std()), "returns": returns.tolist()}

    evaluated = list(flags.each(runs, evaluate))
    if arguments.json:
        print(json.dumps([result for _, result in evaluated], indent=1))
        return 0
    for run, result in evaluated:
        score = f"{result['score']:.1f} ± {result['spread']:.1f}"
        print_lines(f"{run.title}: {score} over {arguments.episodes} episodes ({run.address})")
    return 0
