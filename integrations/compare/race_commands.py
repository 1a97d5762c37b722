"""``counterpoint race``; the parser needs no torch."""

import argparse
from dataclasses import dataclass, replace

from counterpoint.install import require

from ..domain import setting
from . import commands
from .cells import length_of
from .metrics import Metric
from .settings import HOST, Settings

FEWEST = 3  # fresh seeds
DESCRIPTION = """\
Find the best setting for a training script of your own, which is not edited.

Treatments of the script's loss (its temperature, duplicates or ids left out, a margin, HCL) train for a quarter of its
steps; the better ones go on, and the winner is compared with your loss at its best temperature on fresh seeds. It ends
in one sentence. The same command continues after Ctrl-C or a kill.

HOST, metrics and seeds are those of `counterpoint compare`.
"""


@dataclass(frozen=True)
class RaceSettings(Settings):
    """The settings of ``counterpoint race``: the script, its metric and its treatments."""

    tune: int = setting(0, flag=False)
    tune_seeds: int = setting(2, "seeds of the trainings of the whole length that choose; a quarter has one", low=1)
    tune_metric: Metric | None = setting(None, flag=False)  # noqa: RUF009
    grid: None = setting(None, flag=False)
    baseline: str | None = setting(None, flag=False)
    report: bool = setting(False, flag=False)
    items: Metric | None = setting(None, flag=False)  # noqa: RUF009
    budget: int = setting(18, "trainings of the script's length that the search may cost, about", low=2)
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
    objectives = "the treatments to race (proposed from what the script computes)"
    commands.add_arguments(parser, DESCRIPTION, RaceSettings, objectives)
    parser.set_defaults(check=_check)


def _check(arguments: argparse.Namespace) -> None:
    commands.read(arguments, "race", RaceSettings)
    settings = arguments.settings
    arguments.settings = replace(settings, objective=[*dict.fromkeys([HOST, *settings.objective])])
    for fault in commands.faults(arguments, replace(settings, objective=(HOST, "treatments")), arguments.script):
        raise ValueError(fault)
    if arguments.seeds < FEWEST:
        raise ValueError(f"--seeds: expected {FEWEST} or more, since fewer give no interval, got {arguments.seeds}")
    if len(settings.metric) > 1:
        raise ValueError("--metric: expected one, which chooses; another one for the verdict is --confirm-metric")
    if settings.steps_flag is not None:
        length_of(arguments.script, settings.steps_flag)
    elif settings.metric[0].kind != "output":
        raise ValueError(
            "--steps-flag: which of the script's flags sets its length? Such as --steps-flag --max_steps; without one, "
            f"--metric must be output:REGEX, to stop runs by the numbers that they print, got {settings.metric[0].text}"
        )
    require("it needs", "race", "optuna", "scipy")  # used after the search


def command(arguments: argparse.Namespace) -> int:
    """Race, and print the sentence and the table behind it."""
    from counterpoint.plugins.host import SeamError

    from .race import Race

    try:
        return Race(arguments, commands.seam_words(arguments)).run()
    except SeamError as error:
        raise ValueError(str(error)) from error
