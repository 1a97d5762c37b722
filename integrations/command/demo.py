"""``counterpoint demo``: the objectives side by side in every domain, on data that needs no download, in minutes.

Images (digits, by nearest neighbors) and graphs (six kinds of random graphs) train their usual runs, see :data:`USUAL`;
``demo_runs.py`` of the other domains says on what they train, and how they are scored.
Nothing is tuned: within a domain all objectives have the same temperature, and otherwise their defaults. Runs are
stored, so an interrupted demo continues where it stopped. It shows what the library does, not which objective wins;
only in the planted part it is known what helps.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import flags
from ..domain import NAMES, domain
from ..store.progress import print_line

if TYPE_CHECKING:
    from ..store.run import Run

ROWS = {  # {t} and {denominator} are the domain's
    "InfoNCE": "infonce:t={t}{denominator}",
    "ADNCE": "adnce:t={t}{denominator}",
    "DCL": "dcl:t={t}{denominator}",
    "HCL": "hcl:t={t}{denominator}",
    "InfoNCE + DP": "infonce:t={t}{denominator} + 0.1*dp",
    "ArCL, 4 views": "arcl(infonce:t={t}{denominator}):views=4",
}
MOST_JOBS = 4
PLANTED = "planted"
PARTS = (PLANTED, *NAMES)
INTRO = (
    "Each objective in each domain, on data that needs no download. Nothing is tuned: within a domain all objectives "
    "have the same temperature, and otherwise their defaults."
)
ABOUT_PLANTED = (
    " The two pictures of digits test the statistics: with four classes, knowing them must help; it cannot where each "
    "image is a class of its own."
)


class Usual:
    """The part of a domain that trains its usual runs, on the data that it has by default."""

    QUICK: Mapping[str, object] = {"epochs": 1}

    def __init__(self, name: str, denominator: str, **settings: object) -> None:
        self.dataset, self.training = domain(name).default_dataset, domain(name).module("training")
        self.COMMON, self.SETTINGS = {"t": "0.2", "denominator": denominator}, settings

    def cell(self, objective: str | None, seed: int, **settings: object) -> dict[str, object]:
        """The cell of an objective; None for the encoder before training."""
        if objective is None:
            return self.training.untrained(self.dataset, seed, **settings)  # type: ignore[no-any-return]
        return self.training.cell(self.dataset, objective, seed, **settings)  # type: ignore[no-any-return]

    def train(self, run: Run, cache: Path) -> None:
        self.training.train(run)


USUAL = {
    "graph": partial(Usual, "graph", ",denominator=negatives", epochs=10, folds=3, probe="knn"),
    "image": partial(Usual, "image", "", backbone="conv4", channels=8, epochs=6, batch=128, probe=["knn"]),
}


def cells(
    domain_name: str, objectives: Mapping[str, str], seeds: Sequence[int], quick: bool = False
) -> Iterator[dict[str, object]]:
    """Yield the cells of a domain: the encoder before training and every objective, with every seed."""
    runs = _runs(domain_name)
    if domain_name == PLANTED:
        yield from runs.cells(objectives, seeds, quick)
        return
    settings = runs.SETTINGS | (runs.QUICK if quick else {})
    for seed in seeds:
        yield runs.cell(None, seed, **settings)
        for label, template in objectives.items():
            named = {} if label == template else {"label": label}
            yield runs.cell(template.format(**runs.COMMON), seed, **settings, **named)


def train(run: Run, cache: Path) -> None:
    """Train one cell of any domain; ``cache`` is a folder of rendered frames."""
    name, _, _ = run.arguments["domain"].partition("-")  # of "control-representation", control
    _runs(name).train(run, cache)


def _runs(name: str) -> Any:
    if name == PLANTED:
        from . import planted

        return planted
    return USUAL[name]() if name in USUAL else domain(name).module("demo_runs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_arguments(parser, ", ".join(ROWS))
    parser.set_defaults(seeds=5, out=Path("demo"), jobs=min(MOST_JOBS, os.cpu_count() or 1))
    add = parser.add_argument
    add("--domains", nargs="+", choices=PARTS, default=list(PARTS), metavar="NAME", help=f"{', '.join(PARTS)} (all)")
    add("--quick", action="store_true", help="a few steps of everything, to see that it runs; the numbers mean nothing")


def command(arguments: argparse.Namespace) -> int:
    """Run the parts that this machine can run, print the table, and write ``report.html`` and ``report.json``."""
    import torch

    from .. import report, store, trackers

    trackers.check(arguments.track)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # matrices this small are slower on several threads
    torch.set_num_threads(1)
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    objectives = ROWS if arguments.objective is None else {spec: spec for spec in arguments.objective}
    grid: dict[str, list[dict[str, object]]] = {}
    notes: list[str] = []
    for name in arguments.domains:
        try:
            getattr(_runs(name), "check", lambda: None)()  # raises if it cannot run here
            grid[name] = list(cells(name, objectives, seeds, arguments.quick))
        except (ImportError, OSError) as error:
            notes.append(f"{name} is left out: {error}")
            print_line(notes[-1])
    if not grid:
        raise ImportError("nothing of the demo can run here; counterpoint doctor says what is missing.")
    tracked = trackers.tracked(partial(train, cache=arguments.out / "frames"), arguments.track)
    runs: list[Run] = []
    for name, some in grid.items():  # a bar on a terminal, a line elsewhere
        options, bar = flags.grid_options(arguments), store.track(range(len(some) + 1), name, total=len(some))
        next(bar)  # it counts an item when the next one is asked for
        options["progress"] = options["progress"] and (lambda line, bar=bar: line.startswith("[") and next(bar, None))
        runs += store.run_grid(tracked, some, arguments.out / "runs", **options)
        print_line(f"{name}: {len(some)} runs")
    summary = report.summarise(runs)
    summary.columns.sort(key=lambda column: PARTS.index(column.domain.partition("-")[0]))
    summary.notes[:0] = notes + ["With --quick: the numbers mean nothing."] * arguments.quick
    print(report.RENDER["json" if arguments.json else "terminal"](summary))
    synthetic = " The sentences, graphs and robots are synthetic." * bool(grid.keys() - {PLANTED, "image"})
    words = {"title": "counterpoint demo", "intro": INTRO + synthetic + ABOUT_PLANTED * (PLANTED in grid)}
    for path in report.write(summary, arguments.out, formats=("html", "json"), **words):
        print_line(f"wrote {path}")
    return 0
