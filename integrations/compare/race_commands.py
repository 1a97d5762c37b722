"""``counterpoint race``; the parser needs no torch."""

import argparse
import math
from dataclasses import dataclass, replace
from typing import ClassVar

from counterpoint.plugins import inject

from ..domain import require, setting
from . import commands
from .cells import length_of
from .metrics import Metric, told_apart
from .settings import HOST, SHARE, TEMPERATURES, Settings

FEWEST = 3  # fresh seeds
DESCRIPTION = """\
Find the best setting for a training script of your own, which is not edited.

Treatments of the script's loss (its temperature, duplicates or ids left out, a margin, HCL) train for a quarter of its
steps; the better ones go on, and the winner is compared with your loss at its best temperature on fresh seeds. It ends
in one sentence. The same command continues after Ctrl-C or a kill.

HOST, metrics and seeds are those of `counterpoint compare`. The fewest are --seeds 3 and --budget 3; of N treatments
in --objective, the budget is at least (3 + N) x (1 + --tune-seeds) / 4, which tries each at one temperature.
"""


@dataclass(frozen=True)
class RaceSettings(Settings):
    """The settings of ``counterpoint race``: the script, its metric and its treatments."""

    NO_FLAGS: ClassVar = ("tune", "tune_metric", "grid", "baseline", "report", "items")
    tune_seeds: int = setting(2, "seeds of the trainings of the whole length that choose; a quarter has one", low=1)
    budget: int = setting(24, "trainings of the script's length that the search may cost, about; at least 3")
    steps_flag: str | None = setting(
        None,
        "the script's own flag for its length, among its arguments, such as --max_steps (none: runs are stopped by the "
        "numbers that they print, --metric output:REGEX)",
        type=str,
    )
    confirm_metric: Metric | None = setting(  # noqa: RUF009
        None, "another number for the comparison on fresh seeds (the first)", type=Metric.parse, metavar="METRIC"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``counterpoint race``."""
    objectives = "the treatments to race, and no others (proposed from what the script computes)"
    commands.add_arguments(parser, DESCRIPTION, RaceSettings, objectives)
    parser.set_defaults(check=_check)


def _check(arguments: argparse.Namespace) -> None:
    commands.read(arguments, "race", RaceSettings)
    settings = arguments.settings
    arguments.settings = replace(settings, objective=[*dict.fromkeys([HOST, *settings.objective])])
    for fault in commands.faults(arguments, replace(settings, objective=(HOST, "treatments")), arguments.script):
        raise ValueError(fault)
    arms = len(TEMPERATURES) + max(1, len(arguments.settings.objective) - 1)
    if settings.budget < (least := math.ceil(arms * (1 + settings.tune_seeds) / SHARE)):
        raise ValueError(f"--budget: expected {least} or more, to try {arms} settings, got {settings.budget}")
    if arguments.seeds < FEWEST:
        raise ValueError(f"--seeds: expected {FEWEST} or more, since fewer give no interval, got {arguments.seeds}")
    if len(settings.metric) > 1:
        raise ValueError("--metric: expected one, which chooses; another one for the verdict is --confirm-metric")
    if settings.confirm_metric is not None:
        chooses, confirms = told_apart(settings.metric[0], settings.confirm_metric)
        arguments.settings = replace(arguments.settings, metric=[chooses], confirm_metric=confirms)
    for flag, metric in (("--metric", settings.metric[0]), ("--confirm-metric", settings.confirm_metric)):
        if metric is not None and "loss" in metric.name.lower() and not settings.lower:
            raise ValueError(
                f"{flag} {metric.text}: add --lower, since less of a loss is better, or name it otherwise, "
                "NAME=KIND:...; a loss that the objective computes says nothing of another objective"
            )
    if settings.steps_flag is not None:
        length = length_of(arguments.script, settings.steps_flag)[2]
        if not 0 < length < math.inf or length == 1:
            raise ValueError(f"--steps-flag {settings.steps_flag}: expected 2 or more, to be cut, got {length:g}")
    elif settings.metric[0].kind != "output":
        raise ValueError(
            "--steps-flag: which of the script's flags sets its length? Such as --steps-flag --max_steps; without one, "
            f"--metric must be output:REGEX, to stop runs by the numbers that they print, got {settings.metric[0].text}"
        )
    require("it needs", "race", "scipy")  # used after the search


def command(arguments: argparse.Namespace) -> int:
    """Race, and print the sentence and the table behind it."""
    from counterpoint.plugins.host import SeamError

    from .race import Race

    try:
        return Race(arguments, inject.typed(arguments, commands.NOT_HERE)).run()
    except SeamError as error:
        raise ValueError(str(error)) from error
