"""``counterpoint tune``: search the parameters of an objective for your data, on validation data.

The search goes coordinate by coordinate over the papers' grids: first the temperature, which matters most, then ADNCE's
center and width, then the objective's other parameters. Each gets its share of the budget, spread evenly over its grid;
what is left goes into further rounds from the best spec so far, until a round changes nothing. Runs have their full
length, since the best temperature of short runs is not that of long ones. A baseline gets the same budget: an objective
that is tuned looks better than one that is not.

With ``--storage`` or ``--sampler tpe``, the search is a study of Optuna, which several processes may share:
:mod:`.study`. Otherwise Optuna is not needed.

Runs are stored in ``tuning/``, so an interrupted search continues where it stopped. They are marked, and no report
shows them: their scores selected the settings.

======== =====================================================================================
graph    accuracy on the 30 % of the graphs that ``--part report`` leaves out
image    nearest neighbors on the validation images; the test images are not loaded
sentence Spearman's correlation on the development set
control  the final score. There is no test set; the seeds differ from those of ``train``
======== =====================================================================================
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import counterpoint as cp
from counterpoint.install import install

from .. import flags
from ..domain import Domain, domain
from .coordinate import WEIGHT, best_of, changed, search
from .flags import grid_options

if TYPE_CHECKING:
    from ..store.run import Run

FIRST_SEED = 1000  # far from the seeds of ``train``
ORDER = ("temperature", "mu", "sigma")  # before the others, which follow in the objective's own order
SAMPLERS = ("coordinate", "tpe")
GRIDS: dict[str, tuple[float, ...]] = {  # the same in every domain
    "prior": (0.01, 0.05, 0.1),  # DCL and HCL
    "beta": (0.5, 1.0, 2.0),  # HCL
    "lam": (0.5, 0.7, 0.9),  # IntNaCl, Table 3
    "views": (2, 3, 4),  # ArCL, section 6.2
    WEIGHT: (0.01, 0.1, 1.0, 5.0),  # LMCL, Table 3
    "radius": (0.01, 0.03, 0.1, 0.3, 1.0),  # not from a paper
}
# flags that the printed ``train`` command sets itself or that ``train`` does not have
SEARCH_FLAGS = ("objective", "seed", "seeds", "budget", "baseline", "grid", "sampler", "storage")
OWN_FLAGS = (*SEARCH_FLAGS, "part", "out", "resume", "fresh", "json")


# ---- specs -------------------------------------------------------------------------------------


def parameters(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the plain numbers in an objective's ``to_dict()``, those of inner objectives last."""
    from counterpoint.hyper import is_number

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


def grids_of(
    spec: str, domain_name: str, own: Mapping[str, Sequence[float]] | None = None
) -> dict[str, tuple[float, ...]]:
    """The values to try of each parameter of a spec, in the order of the search.

    Args:
        spec: of the objective to start from; its schedules, learned values and words are not changed.
        domain_name: the domain whose papers' grids to use.
        own: other grids, by either name of a parameter; then only these parameters are tuned.
    """
    from counterpoint.hyper import nearest

    data = cp.objective(spec).to_dict()
    names = list(dict.fromkeys(parameters(data)))
    if own is not None:
        grids = {name if name in names else long(name): tuple(values) for name, values in own.items()}
        for name in grids:
            if name not in names:
                raise ValueError(f"--grid: {spec} has no number {name!r} to tune.{nearest(name, names)}")
            for value in grids[name]:
                cp.from_dict(changed(data, name, value))  # raises what the parameter does not allow
    else:
        papers = {**GRIDS, **domain(domain_name).grids}
        grids = {name: tuple(papers[name]) for name in names if name in papers}
    if not grids:
        raise ValueError(f"{spec}: nothing to tune; give values to try with --grid NAME=VALUE,...")
    first = [name for name in ORDER if name in grids]
    return {name: grids[name] for name in [*first, *(name for name in grids if name not in first)]}


def long(name: str) -> str:
    """The long name of a parameter."""
    known: dict[str, str] = {hyper.short: key for kind in cp.registry.values() for key, hyper in kind.hyper.items()}
    return known.get(name, name)


# ---- counterpoint tune -------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser, domain_name: str) -> None:
    """Add the flags of ``train``, and those of the search."""
    domain(domain_name).module("commands").train_arguments(parser)
    check = partial(_check, tuned=domain(domain_name), check_train=parser.get_default("check"))
    parser.set_defaults(seed=FIRST_SEED, out=Path("tuning"), check=check)
    add = parser.add_argument
    add("--budget", type=flags.whole(1), default=20, metavar="N", help="runs per objective (%(default)s)")
    baseline = "objective to compare with, tuned too unless an InfoNCE is among the objectives; or none (infonce)"
    add("--baseline", type=_baseline, metavar="SPEC", help=baseline)
    add(
        "--grid",
        nargs="+",
        type=grid,
        metavar="NAME=VALUE,...",
        help="tune only these parameters, over these values, as t=0.1,0.2 (the papers' grids)",
    )
    add("--sampler", choices=SAMPLERS, default=SAMPLERS[0], help="coordinate-wise or Optuna's TPE (%(default)s)")
    storage = "Optuna study that processes with the same --out share, as tuning.log or sqlite:///tuning.db (none)"
    add("--storage", metavar="FILE|URL", help=storage)


def grid(text: str) -> tuple[str, tuple[float, ...]]:
    """A type for argparse: a parameter and the values to try."""
    name, _, values = text.partition("=")
    try:
        numbers = tuple(float(value) for value in values.split(","))
    except ValueError:
        numbers = ()
    if not name or not numbers:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE,VALUE,..., got {text!r}")
    return name, numbers


def _baseline(text: str) -> str:
    return text if text == "none" else flags.spec(text)


def _check(arguments: argparse.Namespace, tuned: Domain, check_train: Callable[[argparse.Namespace], None]) -> None:
    """Raise what is wrong with the flags, before torch is imported."""
    if arguments.budget < arguments.seeds:
        raise ValueError(f"--budget: {arguments.budget} runs are less than one setting's {arguments.seeds} seeds.")
    if arguments.list_cells or arguments.cell is not None:
        raise ValueError("--cell, --list-cells: a search chooses its next runs by the last ones; use --on instead.")
    if getattr(arguments, "part", None) not in (None, "tune"):
        raise ValueError(f"--part {arguments.part}: tuning sees validation data alone; leave the flag out.")
    if flag := _optuna_flag(arguments):
        if find_spec("optuna") is None:
            raise ImportError(f"{flag} needs optuna: {install('tune')}", name="optuna")
        if arguments.storage is not None and not arguments.resume:
            raise ValueError("--fresh: a study continues; start again with another --storage and --out.")
        if not isinstance(arguments.out, Path):
            raise ValueError(
                f"{flag}: the processes of a study lock the folder of --out; {arguments.out} has no locks."
            )
    _dataset(arguments, tuned)
    check_train(arguments)


def _optuna_flag(arguments: argparse.Namespace) -> str:
    """The flag that needs Optuna, or nothing."""
    if arguments.storage is not None:
        return f"--storage {arguments.storage}"
    return "" if arguments.sampler == SAMPLERS[0] else f"--sampler {arguments.sampler}"


def _dataset(arguments: argparse.Namespace, tuned: Domain) -> str:
    value = getattr(arguments, tuned.dataset) or tuned.default_dataset
    names = value if isinstance(value, list) else [value]
    if len(names) != 1:
        raise ValueError(f"--{tuned.dataset}: one at a time, got {', '.join(map(str, names))}.")
    return str(names[0])


def command(arguments: argparse.Namespace, domain_name: str) -> int:
    """Tune each objective with the same budget, and print the specs to use."""
    tuned = domain(domain_name)
    own = None if arguments.grid is None else dict(arguments.grid)
    default = None
    if getattr(arguments, "preset", None):
        default = tuned.module("presets").preset(arguments.preset, _dataset(arguments, tuned)).objective
    specs = list(dict.fromkeys(arguments.objective or [default or "infonce"]))
    searches = {spec: grids_of(spec, domain_name, own) for spec in specs}
    has_infonce = any(cp.objective(spec).name == "infonce" for spec in specs)
    baseline = arguments.baseline or ("none" if has_infonce else "infonce")
    if baseline != "none":
        names = set(parameters(cp.objective(baseline).to_dict()))
        shared = {name: values for name, values in (own or {}).items() if {name, long(name)} & names}
        searches.setdefault(baseline, grids_of(baseline, domain_name, shared or None))
    make_cell = _cells(arguments, tuned)
    results = [_tune(spec, grids, arguments, tuned, make_cell) for spec, grids in searches.items()]
    train = _train_command(arguments, tuned, [result["best"] for result in results])
    if arguments.json:
        print(json.dumps([{**result, "train": train} for result in results], indent=1))
        return 0
    print("\n\n".join(map(text, results)))
    print("\nThese scores selected the settings, so they are too good. Report other seeds, on test data if any:")
    print(f"  {train}")
    return 0


def _cells(arguments: argparse.Namespace, tuned: Domain) -> Callable[[str, int], dict[str, Any]]:
    """A function from a spec and a seed to a cell that sees no test data."""
    from ..store.run import TUNING

    dataset = _dataset(arguments, tuned)
    settings = {**tuned.module("commands").settings(arguments, dataset), **tuned.held_out}
    cell = tuned.module("training").cell
    return lambda spec, seed: {**cell(dataset, spec, seed, **settings), "purpose": TUNING}


def _tune(
    start: str,
    grids: Mapping[str, Sequence[float]],
    arguments: argparse.Namespace,
    tuned: Domain,
    make_cell: Callable[[str, int], dict[str, Any]],
) -> dict[str, Any]:
    """Search from one spec, and return the result as plain data."""
    from .. import store
    from ..store.grid import GridError
    from ..trackers import tracked

    train = tracked(tuned.module("training").train, arguments.track)
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    runs: dict[str, list[Run]] = {}

    def measure(specs: list[str]) -> dict[str, float]:
        cells = [make_cell(spec, seed) for spec in specs for seed in seeds]
        options = grid_options(arguments)
        options |= {"before": len(runs) * len(seeds), "total": arguments.budget // len(seeds) * len(seeds)}
        try:
            done = store.run_grid(train, cells, arguments.out, **options)
        except GridError as error:
            kind, _, reason = str(error.runs[0].record["error"]).partition(": ")
            if start in specs and kind == "ValueError":  # the settings are wrong for every spec
                raise ValueError(reason) from error
            print(f"counterpoint tune {tuned.name}: {error}", file=sys.stderr)
            done = error.runs
        for i, spec in enumerate(specs):
            runs[spec] = done[i * len(seeds) : (i + 1) * len(seeds)]
        return {spec: fmean(values) if len(values := _values(runs[spec])) == len(seeds) else math.nan for spec in specs}

    budget = arguments.budget // arguments.seeds
    if _optuna_flag(arguments):
        from . import study

        scores = study.search(
            study.SAMPLERS[arguments.sampler](start, grids, budget),
            measure,
            arguments.out,
            storage=arguments.storage,
            name=f"tune {tuned.name}: {start}",
            settings={**make_cell(start, arguments.seed), "seeds": list(seeds)},
            jobs=max(1, flags.concurrent(arguments) // arguments.seeds),
        )
        best = best_of(scores)
        runs = {spec: [store.Run(arguments.out, make_cell(spec, seed)) for seed in seeds] for spec in scores}
    else:
        best, scores = search(start, grids, budget, measure)
    if math.isnan(scores[best]):
        raise GridError(f"all runs of {start} have failed", [run for some in runs.values() for run in some])
    first = runs[best][0]
    rows = [{"spec": spec, "mean": score, "values": _values(runs[spec])} for spec, score in scores.items()]
    return {
        "objective": start,
        "best": best,
        "domain": tuned.name,
        "dataset": first.arguments["dataset"],
        "metric": _metric(first),
        "seeds": list(seeds),
        "grids": {name: list(values) for name, values in grids.items()},
        "tried": store.finite(rows),
        "folder": str(arguments.out),
    }


def _metric(run: Run) -> str:
    return next(iter(run.record["result"]))  # type: ignore[no-any-return]


def _values(runs: Sequence[Run]) -> list[float]:
    """The headline numbers of the runs that have one."""
    values = [run.result[_metric(run)] for run in runs if run.result]
    return [value for value in values if not math.isnan(value)]


def _train_command(arguments: argparse.Namespace, tuned: Domain, specs: Sequence[str]) -> str:
    """The command that trains the best specs with the flags that were typed and with other seeds."""
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
    width = max(len(row["spec"]) for row in rows)
    seeds = ", ".join(map(str, result["seeds"]))
    lines = [f"{result['dataset']}, {result['metric']} on validation data, seeds {seeds}"]
    for row in rows:
        spread = f" ± {stdev(row['values']):.4g}" if len(row["values"]) > 1 else ""
        score = "failed" if row["mean"] is None else f"{row['mean']:.5g}{spread}"
        lines.append(f"  {row['spec']:{width}}  {score}" + "  (start)" * (row["spec"] == result["objective"]))
    return "\n".join([*lines, "", f"use {result['best']}"])
