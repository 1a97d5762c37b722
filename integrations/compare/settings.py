"""The settings of a comparison; imports neither torch nor a framework."""

from collections.abc import Sequence
from dataclasses import dataclass

from .. import flags, items
from ..domain import known_settings, setting
from ..search.grids import grid
from .metrics import Metric

HOST = "host"  # the script's own loss, as in counterpoint.plugins.host and in cells, which both need torch
SHARE = 4  # a race's first trainings have a quarter of the script's length, and about a quarter of them goes on
TEMPERATURES = (1.0, 0.5, 2.0)  # the first ones of a race, as multiples of the script's own


def row(text: str) -> str:
    """A type for argparse: a treatment as it is typed, in which ``host`` is the script's own loss."""
    head = text.partition(";")[0].strip()
    items.refuse_place(head)
    flags.spec(text.replace(HOST, "infonce", 1) if head == HOST else text, paths=True)
    return text.strip()


@known_settings
@dataclass(frozen=True)
class Settings:
    """The settings of ``counterpoint compare``: the script, its metric and its rows."""

    objective: Sequence[str] = setting((), flag=False)
    metric: Sequence[Metric] = setting(
        (),
        "the numbers to compare, one or more, such as json:results.json:test.accuracy (required)",
        type=Metric.parse,
        nargs="+",
        metavar="METRIC",
    )
    items: Metric | None = setting(  # noqa: RUF009
        None,
        "scores per test item that each run writes, npy:FILE or jsonl:FILE:ID:SCORE; their mean is a metric (none)",
        type=lambda text: Metric.parse(items.parse(text).text),  # refuses other metrics
        metavar="ITEMS",
    )
    lower: bool = setting(False, "smaller numbers are better")
    margin: float | None = setting(None, "differences that do not matter (half a point of 100)", type=float)
    against = "what others are compared with (host, or the first; with --tune infonce, tuned, if that is your loss)"
    baseline: str | None = setting(None, against, type=row, metavar="SPEC")
    seed_flag: str | None = setting(
        None, "the script's own flag for its seed, such as --seed; or put {seed} among its arguments (none)", type=str
    )
    set_seed: bool = setting(False, "seed Python, numpy and torch before the script starts; for one without a seed")
    tune: int = setting(0, "settings to try of each objective, equally many for each", low=0)
    tune_seeds: int = setting(2, "seeds that each setting is tried with, of which the mean chooses", low=1)
    tune_metric: Metric | None = setting(  # noqa: RUF009
        None, "a number on validation data, by which to tune (required by --tune)", type=Metric.parse, metavar="METRIC"
    )
    grid: Sequence[tuple[str, tuple[float, ...]]] | None = setting(
        None,
        "tune only these parameters, over these values, as t=0.1,0.2 (a few of each)",
        type=grid,
        nargs="+",
        metavar="NAME=VALUE,...",
    )
    report: bool = setting(False, "store what the objective's report() says of each batch; steps take longer")
    copy: bool = setting(False, "run the script in a copy of this folder, one for each run")
    link: Sequence[str] = setting((), "with --copy: large data to link instead (none)", nargs="+", metavar="FOLDER")
    any_length: bool = setting(False, "runs may reach the loss differently often, as with early stopping")
    name: str | None = setting(None, "what tables and folders call the comparison (the script)", type=str)
