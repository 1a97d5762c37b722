"""``counterpoint tune``: search the parameters of an objective for your data, on validation data.

The search goes over the papers' grids: first the temperature, which matters most, then ADNCE's center and width, then
the objective's other parameters. Runs have their full length, since the best temperature of short runs is not that of
long ones. A baseline gets the same budget: an objective that is tuned looks better than one that is not.

Runs are stored in ``tuning/``, so an interrupted search continues where it stopped. They are marked, and no report
shows them: their scores selected the settings.

======== =====================================================================================
graph    accuracy on the 30 % of the graphs that ``--part report`` leaves out
image    nearest neighbors on the validation images; the test images are not loaded
sentence Spearman's correlation on the development set
control  the final score. It has no test set; the seeds differ from those of ``train``
======== =====================================================================================
"""

import argparse
import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import counterpoint as cp

from .. import flags
from ..domain import Domain, domain
from .coordinate import Scores, at_edge, best_of, search
from .grids import GRIDS, Grids, grid, grids_of

FIRST_SEED = 1000  # far from the seeds of ``train``
# flags that the printed ``train`` command sets itself or that ``train`` does not have
OWN_FLAGS = ("objective", "seed", "seeds", "budget", "baseline", "grid", "part", "out", "resume", "fresh", "json")


def add_arguments(parser: argparse.ArgumentParser, domain_name: str) -> None:
    """Add the flags of ``train``, and those of the search."""
    tuned = domain(domain_name)
    tuned.module("commands").train_arguments(parser)
    check = partial(_check, tuned=tuned, check_train=parser.get_default("check"))
    parser.set_defaults(seed=FIRST_SEED, seeds=2, out=Path("tuning"), check=check)
    add = parser.add_argument_group("search").add_argument
    add("--budget", type=flags.whole(1), default=20, metavar="N", help="runs per objective (%(default)s)")
    baseline = "objective to compare with, tuned too unless an InfoNCE is among the objectives; or none (infonce)"
    add("--baseline", type=lambda text: text if text == "none" else flags.spec(text), metavar="SPEC", help=baseline)
    grids = "tune only these parameters, over these values, as t=0.1,0.2 (the papers' grids)"
    add("--grid", nargs="+", type=grid, metavar="NAME=VALUE,...", help=grids)


def _check(arguments: argparse.Namespace, tuned: Domain, check_train: Callable[[argparse.Namespace], None]) -> None:
    """Raise errors of the flags before torch is imported."""
    if arguments.budget < arguments.seeds:
        raise ValueError(f"--budget: expected {arguments.seeds} or more, one setting's runs, got {arguments.budget}.")
    if getattr(arguments, "part", None) not in (None, "tune"):
        raise ValueError(f"--part {arguments.part}: tuning sees validation data alone; leave the flag out.")
    _dataset(arguments, tuned)
    check_train(arguments)


def _dataset(arguments: argparse.Namespace, tuned: Domain) -> str:
    value = getattr(arguments, tuned.dataset) or tuned.default_dataset
    names = value if isinstance(value, list) else [value]
    if len(names) != 1:
        raise ValueError(f"--{tuned.dataset}: one at a time, got {', '.join(map(str, names))}.")
    return str(names[0])


def command(arguments: argparse.Namespace, domain_name: str) -> int:
    """Tune each objective with the same budget, and print the specs to use."""
    tuned, default = domain(domain_name), None
    dataset, papers = _dataset(arguments, tuned), {**GRIDS, **tuned.grids}
    own = None if arguments.grid is None else dict(arguments.grid)
    if getattr(arguments, "preset", None):
        default = tuned.module("presets").preset(arguments.preset, dataset).objective
    specs = arguments.objective or [str(cp.objective(default or "infonce"))]
    searches = {spec: grids_of(spec, papers, own) for spec in specs}
    has_infonce = any(cp.objective(spec).name == "infonce" for spec in searches)
    baseline = arguments.baseline or ("none" if has_infonce else str(cp.InfoNCE()))
    if baseline != "none" and baseline not in searches:
        searches[baseline] = grids_of(baseline, papers, own, strict=False) or grids_of(baseline, papers)
    if untuned := [spec for spec, grids in searches.items() if not grids]:
        raise ValueError(f"{untuned[0]}: nothing to tune; give values to try with --grid NAME=VALUE,...")
    results = [_tune(spec, grids, arguments, tuned, dataset) for spec, grids in searches.items()]
    train = _train_command(arguments, tuned, [result["best"] for result in results])
    if arguments.json:
        print(json.dumps([{**one, "train": train} for one in results], indent=1))
        return 0
    print("\n\n".join(map(text, results)))
    print("\nThese scores selected the settings, so they are too good. Report other seeds, on test data if any:")
    print(f"  {train}")
    return 0


def _tune(start: str, grids: Grids, arguments: argparse.Namespace, tuned: Domain, dataset: str) -> dict[str, Any]:
    """Search from one spec on data that is not test data; return the result as ``--json`` prints it."""
    from ..store.errors import GridError
    from ..store.run import TUNING, Run

    training = tuned.module("training")
    settings = {**tuned.module("commands").settings(arguments, dataset), **tuned.held_out}
    seeds = list(range(arguments.seed, arguments.seed + arguments.seeds))
    budget = arguments.budget // len(seeds)
    runs: dict[str, list[Run]] = {}

    def numbers(spec: str) -> list[float]:
        """Return the headline numbers of the runs that have one."""
        values = [next(iter(run.result.values())) for run in runs[spec] if run.result]
        return [value for value in values if math.isfinite(value)]

    def measure(specs: list[str]) -> Scores:
        each = [training.cell(dataset, spec, seed, **settings) for spec, seed in product(specs, seeds)]
        cells = [{**cell, "purpose": TUNING} for cell in each]
        done, _ = flags.run_cells(training.train, cells, arguments, f"tune {tuned.name}", failed=True)
        kind, _, reason = str(done[0].record["error"]).partition(": ")
        if start in specs and kind == "ValueError":  # the settings are wrong for every spec
            raise ValueError(reason)
        runs.update((spec, done[i * len(seeds) : (i + 1) * len(seeds)]) for i, spec in enumerate(specs))
        return {spec: fmean(values) if len(values := numbers(spec)) == len(seeds) else math.nan for spec in specs}

    scores = search(start, grids, budget, measure)
    if math.isnan(scores[best := best_of(scores)]):
        raise GridError(f"all runs of {start} have failed", [run for some in runs.values() for run in some])
    first, means = runs[best][0], {spec: None if math.isnan(mean) else mean for spec, mean in scores.items()}
    return {
        "objective": start,
        "best": best,
        "edge": at_edge(best, grids, scores),
        "domain": tuned.name,
        "dataset": first.arguments["dataset"],
        "metric": next(iter(first.record["result"])),
        "seeds": seeds,
        "grids": grids,
        "tried": [{"spec": spec, "mean": mean, "values": numbers(spec)} for spec, mean in means.items()],
        "folder": str(arguments.out),
    }


def _train_command(arguments: argparse.Namespace, tuned: Domain, specs: Sequence[str]) -> str:
    """Return the command that trains the best specs with the flags that were typed and with other seeds."""
    own = argparse.ArgumentParser(add_help=False)
    for flag in OWN_FLAGS:
        own.add_argument(f"--{flag}", nargs="*")
    _, typed = own.parse_known_args(arguments.words)
    seed = [] if arguments.seed == FIRST_SEED else ["--seed", str(arguments.seed + arguments.seeds)]
    words = [*tuned.reported, *typed, "--objective", *dict.fromkeys(specs), *seed, "--seeds", "5"]
    return shlex.join(["counterpoint", "train", tuned.name, *words])


def text(result: Mapping[str, Any]) -> str:
    """Format the tried specs, best first."""
    rows = sorted(result["tried"], key=lambda row: -math.inf if row["mean"] is None else row["mean"], reverse=True)
    width, seeds = max(len(row["spec"]) for row in rows), ", ".join(map(str, result["seeds"]))
    lines = [f"{result['dataset']}, {result['metric']} on validation data, seeds {seeds}"]
    for spec, mean, values in (row.values() for row in rows):
        spread = f" ± {stdev(values):.4g}" if len(values) > 1 else ""
        score = "failed" if mean is None else f"{mean:.5g}{spread}"
        remarks = ["start"] * (spec == result["objective"]) + [result["edge"]] * (spec == result["best"])
        lines.append(f"  {spec:{width}}  {score}" + "".join(f"  ({remark})" for remark in remarks if remark))
    return "\n".join([*lines, "", f"use {result['best']}"])
