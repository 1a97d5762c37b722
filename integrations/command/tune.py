"""``counterpoint tune``: the parameters of an objective for your data, from the papers' grids, on validation data.

Coordinate by coordinate: the temperature first, which matters most, then ADNCE's centre, its width, and whatever else
the objective has. Each gets its share of the budget, evenly spread over its grid; what is left goes into further rounds
from the best so far, until a round changes nothing. Runs have their full length, as the best temperature of short runs
is not that of long ones. They are runs of the store: who stops and starts again loses nothing.

======== =======================================================================================================
graph    accuracy on the 30 % of the graphs that ``--part report`` leaves out
image    nearest neighbours on the validation images; the test images are not loaded
sentence Spearman's correlation on the development set
control  the final score. There is no test set; seeds are others than those of ``train``
======== =======================================================================================================
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, TypeVar

import counterpoint as cp
from counterpoint.hyper import is_number, nearest

from .. import store
from ..store.grid import GridError
from ..store.run import Run
from . import flags

T = TypeVar("T")

FIRST_SEED = 1000  # far from those that train begins with
ORDER = ("temperature", "mu", "sigma")  # and then the others, in the objective's own order
WEIGHT = "weight"  # of a further term of a sum
SHARED: dict[str, tuple[float, ...]] = {
    "prior": (0.01, 0.05, 0.1),  # DCL and HCL
    "beta": (0.5, 1.0, 2.0),  # HCL
    "lam": (0.5, 0.7, 0.9),  # IntNaCl, Table 3
    "views": (2, 3, 4),  # ArCL, section 6.2
    WEIGHT: (0.01, 0.1, 1.0, 5.0),  # LMCL, Table 3
    "radius": (0.01, 0.03, 0.1, 0.3, 1.0),  # no paper has a grid
}
GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "image": {  # ADNCE, Table 6
        "temperature": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6),
        "mu": (0.5, 0.6, 0.7, 0.8, 0.9),
        "sigma": (0.5, 1.0),
    },
    "sentence": {  # ADNCE, Table 7, of BERT and RoBERTa
        "temperature": (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09, 0.1, 0.15, 0.2),
        "mu": (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.5, 2.0, 2.5, 3.0),
        "sigma": (0.5, 1.0),
    },
    "graph": {  # ADNCE, Table 9, of all data sets
        "temperature": (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5),
        "mu": (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.5, 2.0),
        "sigma": (0.5, 1.0),
    },
    "control": {  # CURL's 1, and the image grid, as frames are images
        "temperature": (0.1, 0.2, 0.3, 0.4, 0.5, 1.0),
        "mu": (0.5, 0.6, 0.7, 0.8, 0.9),
        "sigma": (0.5, 1.0),
    },
}


@dataclass(frozen=True)
class Domain:
    """The flags that name the data and its folder, what keeps the test set out of a run, and what reports on it."""

    data: str
    folder: str | None
    held_out: Mapping[str, Any]
    reported: Sequence[str] = ()


DOMAINS = {
    "sentence": Domain("data", "sts", {"test": None, "keep": False}, ["--test"]),
    "graph": Domain("dataset", "data", {"part": "tune"}, ["--part", "report"]),
    "image": Domain("data", "root", {"part": "tune", "probe": ["knn"]}),
    "control": Domain("task", None, {}),
}
OWN = ("objective", "seed", "seeds", "budget", "grid", "part", "resume", "fresh", "json")  # flags not handed to train


# ---- specs -------------------------------------------------------------------------------------


def parameters(data: Mapping[str, Any]) -> Iterator[str]:
    """The names of the plain numbers in an objective's ``to_dict()``, those of inner objectives last."""
    if data["name"] == "sum":
        for i, (weight, term) in enumerate(data["terms"]):
            yield from parameters(term)
            if i and is_number(weight):
                yield WEIGHT
        return
    follows = data.get("radius") is not None  # the temperature then follows the radius
    yield from (name for name, value in data.items() if is_number(value) and not (follows and name == "temperature"))
    if "objective" in data:
        yield from parameters(data["objective"])


def changed(data: Mapping[str, Any], name: str, value: float) -> dict[str, Any]:
    """A copy with another value of a parameter, wherever the objective has it as a plain number."""
    if data["name"] == "sum":
        terms = [
            [value if name == WEIGHT and i and is_number(weight) else weight, changed(term, name, value)]
            for i, (weight, term) in enumerate(data["terms"])
        ]
        return {**data, "terms": terms}
    found = {**data, **({name: value} if is_number(data.get(name)) else {})}
    return found | ({"objective": changed(data["objective"], name, value)} if "objective" in data else {})


def grids_of(
    spec: str, domain: str, given: Mapping[str, Sequence[float]] | None = None
) -> dict[str, tuple[float, ...]]:
    """What to try of each parameter of a spec, in the order to try it.

    Args:
        spec: of the objective to begin with; what it has as a schedule, a learned value or a word stays as it is.
        domain: whose papers' grids.
        given: grids of one's own, by either name of a parameter; then only these parameters are moved.
    """
    data = cp.objective(spec).to_dict()
    names = list(dict.fromkeys(parameters(data)))
    if given is not None:
        known = {hyper.short: key for kind in cp.registry.values() for key, hyper in kind.hyper.items()}
        wanted = {name if name in names else known.get(name, name): tuple(values) for name, values in given.items()}
        for name in wanted:
            if name not in names:
                raise ValueError(f"--grid: {spec} has no number {name!r} to move.{nearest(name, names)}")
    else:
        every = {**SHARED, **GRIDS[domain]}
        wanted = {name: every[name] for name in names if name in every}
    if not wanted:
        raise ValueError(f"{spec}: nothing to tune; --grid NAME=VALUE,... says what to try.")
    first = [name for name in ORDER if name in wanted]
    return {name: wanted[name] for name in [*first, *(name for name in wanted if name not in first)]}


def thinned(values: Sequence[T], count: int) -> list[T]:
    """So many of the values, spread evenly from the first to the last."""
    if count >= len(values):
        return list(values)
    if count == 1:
        return [values[len(values) // 2]]
    return [values[round(i * (len(values) - 1) / (count - 1))] for i in range(count)]


# ---- the search --------------------------------------------------------------------------------


def search(
    start: str,
    grids: Mapping[str, Sequence[float]],
    budget: int,
    measure: Callable[[list[str]], Mapping[str, float]],
) -> tuple[str, dict[str, float]]:
    """Coordinate-wise search for the spec with the highest score.

    Args:
        start: the spec to begin with, which is measured too.
        grids: the values to try of each parameter, in the order to move them.
        budget: specs to measure at most.
        measure: the scores of some specs; NaN for those that have failed.

    Returns:
        The best spec, and the score of each that was measured, in the order in which they were.
    """
    found: dict[str, float] = {}

    def look(specs: Sequence[str]) -> None:
        new = [spec for spec in dict.fromkeys(specs) if spec not in found][: budget - len(found)]
        found.update(measure(new) if new else {})

    def best() -> str:
        return max(found, key=lambda spec: -math.inf if math.isnan(found[spec]) else found[spec])

    look([start])
    measured = 0
    while measured < len(found) < budget:  # a round in which nothing was new is the last
        measured, left = len(found), sum(map(len, grids.values()))
        for name, values in grids.items():
            data = cp.objective(best()).to_dict()
            new = [spec for value in values if (spec := str(cp.from_dict(changed(data, name, value)))) not in found]
            share = max(1, round((budget - len(found)) * len(values) / left))
            look(thinned(new, share) if new else [])
            left -= len(values)
    return best(), found


# ---- counterpoint tune -------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser, domain: str) -> None:
    """The flags of ``train``, and those of the search."""
    import_module(f"counterpoint.integrations.{domain}.commands").train_arguments(parser)
    parser.set_defaults(seed=FIRST_SEED, out=Path("runs/tuning"))
    add = parser.add_argument
    add("--budget", type=flags.whole(1), default=20, metavar="N", help="runs per objective (%(default)s)")
    add(
        "--grid",
        nargs="+",
        type=_grid,
        metavar="NAME=VALUE,...",
        help="what to try of these parameters alone, as t=0.1,0.2; by default the papers' grids",
    )


def _grid(text: str) -> tuple[str, tuple[float, ...]]:
    name, sign, values = text.partition("=")
    try:
        found = tuple(float(value) for value in values.split(","))
    except ValueError:
        found = ()
    if not sign or not name or not found:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE,VALUE,..., got {text!r}")
    return name, found


def command(given: argparse.Namespace, domain: str) -> int:
    """Tunes each objective with the same budget, and prints the specs to use."""
    grids = None if given.grid is None else dict(given.grid)
    specs = given.objective or ["infonce"]
    asked = {spec: grids_of(spec, domain, grids) for spec in specs}
    if folder := DOMAINS[domain].folder:
        flags.use_data(folder, getattr(given, folder))
    if given.budget < given.seeds:
        raise ValueError(f"--budget: {given.budget} runs are less than one setting's {given.seeds} seeds.")
    make = _cells(given, domain)
    found = [_tuned(spec, grid, given, domain, make) for spec, grid in asked.items()]
    if given.json:
        print(json.dumps(found, indent=1))
    else:
        print("\n\n".join(map(text, found)))
    return 0


def _cells(given: argparse.Namespace, domain: str) -> Callable[[str, int], dict[str, Any]]:
    """What makes a cell of a spec and a seed, with the settings that the flags give."""
    training = import_module(f"counterpoint.integrations.{domain}.training")
    flag = DOMAINS[domain].data
    data = getattr(given, flag) or ("digits" if domain == "image" else None)
    names = data if isinstance(data, list) else [data]
    if len(names) != 1:
        raise ValueError(f"--{flag}: one at a time, got {', '.join(map(str, names))}.")
    settings: dict[str, Any] = {"backbone": "conv4"} if domain == "image" and names[0] == "digits" else {}
    if getattr(given, "preset", None):
        preset = import_module(f"counterpoint.integrations.{domain}.presets").preset
        recipe = preset(given.preset) if domain == "sentence" else preset(given.preset, names[0])
        settings |= recipe.settings if domain == "sentence" else recipe[1]
    known = {*training.DEFAULTS, *getattr(import_module(f"counterpoint.integrations.{domain}.commands"), "FLAGS", ())}
    settings |= {name: value for name, value in vars(given).items() if name in known and value is not None}
    settings |= DOMAINS[domain].held_out
    return lambda spec, seed: training.cell(str(names[0]), spec, seed, **settings)


def _tuned(
    spec: str,
    grids: Mapping[str, Sequence[float]],
    given: argparse.Namespace,
    domain: str,
    make: Callable[[str, int], dict[str, Any]],
) -> dict[str, Any]:
    """Searches, and says what was found as plain data."""
    training = import_module(f"counterpoint.integrations.{domain}.training")
    seeds = range(given.seed, given.seed + given.seeds)
    tried: dict[str, list[Run]] = {}

    def measure(specs: list[str]) -> dict[str, float]:
        cells = [make(one, seed) for one in specs for seed in seeds]
        how = {"jobs": given.jobs, "resume": given.resume, "progress": not given.json}
        counted: dict[str, Any] = {"before": len(tried) * len(seeds), "total": given.budget // len(seeds) * len(seeds)}
        try:
            done = store.run_grid(training.train, cells, given.out, **how, **counted)
        except GridError as error:
            kind, _, said = str(error.runs[0].record["error"]).partition(": ")
            if not tried and kind == "ValueError":  # what is wrong with the settings is so for every spec
                raise ValueError(said) from error
            print(f"counterpoint tune {domain}: {error}", file=sys.stderr)
            done = error.runs
        for i, one in enumerate(specs):
            tried[one] = done[i * len(seeds) : (i + 1) * len(seeds)]
        return {one: fmean(values) if len(values := _values(tried[one])) == len(seeds) else math.nan for one in specs}

    best, scores = search(spec, grids, given.budget // given.seeds, measure)
    if math.isnan(scores[best]):
        raise GridError(f"all runs of {spec} have failed", [run for some in tried.values() for run in some])
    first = tried[best][0]
    rows = [{"spec": one, "mean": scores[one], "values": _values(tried[one])} for one in scores]
    found = {"objective": spec, "best": best, "domain": domain, "dataset": first.arguments["dataset"]}
    found |= {"metric": _metric(first), "seeds": list(seeds), "grids": {k: list(v) for k, v in grids.items()}}
    found |= {"tried": store.finite(rows), "folder": str(given.out), "train": _train_command(given, domain, best)}
    return found


def _metric(run: Run) -> str:
    metric: str = next(iter(run.record["result"]))
    return metric


def _values(some: Sequence[Run]) -> list[float]:
    """The headline number of those runs that have one."""
    every = [run.result[_metric(run)] for run in some if run.result]
    return [value for value in every if not math.isnan(value)]


def _train_command(given: argparse.Namespace, domain: str, spec: str) -> str:
    """With the words that were typed, so that the same model is trained, and with other seeds."""
    own = argparse.ArgumentParser(add_help=False)
    for flag in OWN:
        own.add_argument(f"--{flag}", nargs="*")
    _, typed = own.parse_known_args(given.words)
    seed = [] if given.seed == FIRST_SEED else ["--seed", str(given.seed + given.seeds)]
    words = [*DOMAINS[domain].reported, *typed, "--objective", spec, *seed, "--seeds", "5"]
    return shlex.join(["counterpoint", "train", domain, *words])


def text(found: Mapping[str, Any]) -> str:
    """The settings, best first, and what to do with the best one."""
    rows = sorted(found["tried"], key=lambda row: -math.inf if row["mean"] is None else row["mean"], reverse=True)
    width = max(len(row["spec"]) for row in rows)
    lines = [f"{found['dataset']}, {found['metric']} on validation data, seeds {', '.join(map(str, found['seeds']))}"]
    for row in rows:
        spread = f" ± {stdev(row['values']):.4g}" if len(row["values"]) > 1 else ""
        score = "failed" if row["mean"] is None else f"{row['mean']:.5g}{spread}"
        lines.append(f"  {row['spec']:{width}}  {score}" + "  (start)" * (row["spec"] == found["objective"]))
    lines += ["", f"use {found['best']}"]
    lines.append(
        "It was chosen by this score, which is therefore too good. Report other seeds, on test data if any, with"
    )
    return "\n".join([*lines, f"  {found['train']}"])
