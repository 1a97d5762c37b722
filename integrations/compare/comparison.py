"""A comparison: its cells, tuned or not, their runs, and the report."""

from __future__ import annotations

import argparse
import json
import math
import re
import shlex
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any

import counterpoint as cp
from counterpoint.names import closest
from counterpoint.objectives.infonce import first_temperature
from counterpoint.plugins import inject, registry
from counterpoint.plugins.arguments import Parser
from counterpoint.plugins.finder.words import CLASSES
from counterpoint.plugins.launch import Script

from .. import flags, report, store
from ..report.statistics import FEWEST, MISSING, available, compare
from ..report.summary import plural
from ..report.words import quoted
from ..search.commands import FIRST_SEED
from ..search.coordinate import FACTORS, FOLLOWS, Scores, at_edge, at_temperature, best_of, search
from ..search.grids import GRIDS, grids_of
from ..secrets import REDACTED, redacted
from ..store.executors import LOCAL
from ..store.folder import plain
from ..store.grid import writable
from ..store.progress import print_line
from ..store.run import TUNING, Run
from ..store.transport import connect
from . import cells
from .metrics import Metric
from .notes import from_seam, looks, to_settle, write_notes
from .running import LOG, NO_SEED, UNREACHED, check_metrics, last_lines, read_again, train
from .settings import HOST, Settings

MOST = 3  # failed runs whose output is shown
TOLERANCE = 1.2  # ratio of times up to which two rows take equally long
FIXED = re.compile(rf"{HOST}\b|0\*[^+]+$")  # rows that are not tuned: the script's own loss, and a gradient of zero
UNTUNED = "compare tuned nothing: each row has the setting it was given; --tune N --tune-metric METRIC tunes all alike"
FEW = f"{FEWEST} seeds or fewer: one odd run can make or hide a verdict, most of all of skewed numbers; take 5 or more"
DROPOUT = "; with dropout or augmentation, equal samples do not embed equally: name them, duplicates=PATH"
EQUAL = 2  # seeds whose numbers are equal in every row, so that more are not trained
OVERWRITTEN = "each run overwrites what the script writes here, such as checkpoints; --copy or {out} keep runs apart"
PLACEBO = "placebo"  # the row of what is tuned and trained once more
SHARED = ("temperature", "denominator")  # the host's, in rows that name none
# what is tried of parameters without a grid of their own in every domain
PAPERS = {"temperature": (0.05, 0.1, 0.2, 0.5, 1.0), "mu": (0.3, 0.5, 0.7, 0.9), "sigma": (0.5, 1.0), **GRIDS}


class Comparison:
    """A comparison, checked with the plugins of the host."""

    command = "compare"
    fixed = 0.0  # share of a whole run's time that does not depend on its length, as far as is known

    def __init__(self, arguments: argparse.Namespace, seam: Sequence[str]) -> None:
        self.arguments = arguments
        self.settings: Settings = arguments.settings
        self.specs = list(dict.fromkeys(self.settings.objective))
        self.baseline = self.settings.baseline or (HOST if HOST in self.specs else self.specs[0])
        self.twin = next((spec for spec in self.specs if re.fullmatch(r"infonce\b[^;+]*", spec)), "infonce")
        self.placebo: list[tuple[str, dict[str, str]]] = []
        if self.settings.tune:  # beside host, which is not tuned
            self.specs = list(dict.fromkeys([*self.specs, self.twin]))
        script = arguments.script
        file = Script.of(script)[0].path
        code = store.checksum(file)[:12]
        host, self.told = arguments.host, list[str]()
        known = "infonce:t=host" if host == "function" else registry.load(host).spec
        self.own: str = next((word.removeprefix("--own=") for word in seam if word.startswith("--own=")), known)
        if not self.settings.copy and "{out}" not in " ".join(script):
            print_line(OVERWRITTEN)
        seed = [flag, "{seed}"] if (flag := self.settings.seed_flag) else []  # without which it may not start
        if host == "auto":
            host, seam, self.own, self.told = find_loss(arguments.out, code, [*script, *seed], seam, self.specs)
        plugin, parser = registry.find(host, file.resolve().parent, "--force" in seam), Parser()
        inject.add_options(parser)
        for spec in self.specs:  # raises SeamError where the host cannot take an objective or a flag
            inject.check(parser.parse_args([f"--objective={spec}", *seam]), plugin)
            if spec != HOST:
                plugin.check(spec)
        _tell_secrets(script, arguments.on)
        if (self.command == "race" or self.settings.tune) and arguments.host != "auto":
            shims = [word for word in seam if "-shims" in word] or [f"--shims={host}"] * bool(plugin.shims)
            with suppress(ValueError):  # of several losses, it is not known which one the host replaces
                found = find_loss(arguments.out, code, [*script, *seed], shims, self.specs, strict=False)
                _, _, self.own, self.told = found
        if self.settings.tune and not self.settings.baseline and cp.objective(self.own).name == "infonce":
            self.baseline = self.twin  # the script's own loss, searched as long as the others
        self.cell = partial(cells.cell, host, seam, script, code, self.settings)
        self.notes: list[str] = []
        self.remarks: dict[str, str] = {}

    def run(self) -> int:
        """Run everything, print the report, and return the exit code."""
        settings, given = self.settings, self.arguments
        seeds = range(given.seed, given.seed + given.seeds)
        if settings.tune:
            searches = 1 + sum(FIXED.match(spec) is None for spec in self.specs)  # the placebo's too
            self.left: float = searches * settings.tune * settings.tune_seeds + (len(self.specs) + 1) * given.seeds
            print_line(f"up to {self.left} runs: first those that choose settings, then the placebo's and the rows'")
            self._tune()
        else:
            self.notes.append(UNTUNED)
            for spec in self.specs:
                sharper = first_temperature(cp.treatment(spec, "infonce"), 1.0) != 1  # than InfoNCE: HCL
                if sharper and (at := at_temperature(spec, self.own) or spec) not in self.specs:
                    self.notes.append(f"{quoted(spec)} has your loss's temperature; a better start is {quoted(at)}")
        rows = [*((spec, {}) for spec in self.specs), *self.placebo]
        rows.sort(key=lambda row: not cp.treatment(row[0], "infonce").paths)  # first those whose names may be wrong
        grid = [self.cell(spec, seed, **more) for seed, (spec, more) in product(seeds, rows)]
        if not given.json:
            where = "/".join(Run(given.out, grid[0]).folder.name.split("/")[:2])
            where = f"what they print: {given.out}/{where}/ROW/seedN/{LOG}"
            print_line(f"{plural(len(rows), 'row')}, {plural(len(seeds), 'seed')}: {plural(len(grid), 'run')}; {where}")
            if before := sum(Run(given.out, cell).done for cell in grid if given.resume):
                print_line(f"{before} of {len(grid)} runs are done already")
        self.notes += [FEW] * (given.seeds <= FEWEST)
        for note in self.notes:
            print_line(note)
        if not available():
            print_line(f"Means only: {MISSING}.")
        early, baseline, runs = EQUAL * len(rows), self.baseline, list[Run]()
        self.left = len(grid)  # trainings to come, for the time that is left
        for end in (min(early, flags.concurrent(given)), len(rows), early, len(grid)):
            runs += self._run_cells(grid[len(runs) : end], before=len(runs), total=len(grid))
            numbers = [x for run in runs for x in (run.result or {}).values()]
            if not numbers or (end >= len(rows) and not any(map(math.isfinite, numbers))):
                print_line("the first runs have failed or gave no number, so no others were started")
                break
            if end >= early and same_numbers([run for run in runs if run.done]):
                break
        done, failed = [run for run in runs if run.done], [run for run in runs if not run.done]
        for run in failed[:MOST]:
            print_line(f"-- {run.title}, the end of {run.address}/{LOG}:", *last_lines(run))
        if failed:  # last, since logs are long
            why = str(failed[0].record.get("error")).partition("\n")[0]
            rest = f"; stopped, {len(grid) - len(runs)} not started" * (len(runs) < len(grid))
            print_line(f"counterpoint compare: {len(failed)} of {plural(len(runs), 'run')} failed{rest}: {why}")
        errors = {} if settings.any_length else dict(uneven(done))
        for error in errors.values():
            print_line(f"counterpoint compare: {error}; left out (--any-length allows it)")
        if not (done := [run for run in done if run not in errors]):
            return 1
        self.notes += [*own_settings(done), *_time_notes(done, baseline)]
        if same_numbers(done):  # repetitions, of which a test would make evidence
            seed = done[0].arguments["seed"]
            stopped = f"stopped after {EQUAL} seeds: " * (len(runs) < len(grid))
            told = f"all seeds give the same numbers: no verdict, only seed {seed} is shown; {NO_SEED}"
            self.notes.append(stopped + told)
            done = [run for run in done if run.arguments["seed"] == seed]
        names = {
            name: [run.record["result"].get(name) for run in done] for run in done for name in run.record["result"]
        }
        mean = settings.items.name if settings.items else ""
        if mean in names and [*names.values()].count(names[mean]) > 1:  # a metric of the script has the same numbers
            del names[mean]
        known = baseline if any(run.name == baseline for run in done) else None
        summary = report.summarise(done, baseline=known, metrics=[*names], lower=settings.lower, margin=settings.margin)
        if settings.items:
            summary.items.extend(report.over_items(summary, settings.items, settings.margin))
        summary.remarks.update(self.remarks)
        moved = {run.name for run in done if not did_nothing(run.name, run.details)}  # in some seed
        idle = {run.name: did_nothing(run.name, run.details) for run in done if run.name not in moved}
        summary.remarks.update(dict.fromkeys(idle, "left out no key"))
        idle_notes = [f"{quoted(row)}: {why}" for row, why in idle.items()]
        notes = [*placebo_notes(summary.columns, self.twin), *idle_notes, *from_seam(done), *looks(done), *self.notes]
        searched = known if settings.tune or settings.baseline else None  # else a race's counts, if there was one
        write_notes(self.command, done, notes, summary.remarks, searched, getattr(settings.items, "text", ""))
        summary.notes[:0] = notes
        print(report.RENDER["json" if given.json else "terminal"](summary))
        print_line(*to_settle(summary.columns, given), f"runs and logs: {done[0].address.rsplit('/', 2)[0]}")
        return 1 if failed or errors or not summary.columns else 0

    def _tune(self) -> None:
        settings, metric = self.settings, self.settings.tune_metric
        assert metric is not None

        def run_all(cells: Sequence[Mapping[str, Any]], before: int = 0, **part: Any) -> list[Run]:
            runs = self._run_cells(cells, [metric], before=before, **part)
            if not before:  # a wrong name of the numbers that are compared is said now
                check_metrics(runs, metric, [one for one in (*settings.metric, settings.items) if one])
            return runs

        named = [spec for spec in self.specs if cp.treatment(spec, "infonce").paths]  # first, as names may be wrong
        first = [self.cell(spec, self.arguments.seed) for spec in named if spec.startswith(HOST)]
        self._run_cells(first, total=len(first))
        best, self.remarks = tuned(
            [*named, *(spec for spec in self.specs if spec not in named)], settings, self.cell, run_all, own=self.own
        )
        chosen = "; ".join(f"{quoted(spec)}: {quoted(best[spec])}" for spec in self.specs if spec in best)
        self.notes.append(
            f"tuned by {metric.text}, {settings.tune} settings each with {plural(settings.tune_seeds, 'seed')}; "
            f"verdicts are at these settings, which another tuning may not find: {chosen}"
        )
        if fixed := [quoted(spec) for spec in self.specs if spec not in best]:
            self.notes.append(f"not tuned, as they have no number to try: {', '.join(fixed)}")
        self.notes += ["at an edge, or where few values were tried, try more: --tune or --grid"] * bool(self.remarks)
        self.specs = list(dict.fromkeys(best.get(spec, spec) for spec in self.specs))
        self.baseline = best.get(self.baseline, self.baseline)
        self.remarks |= {row: "tuned" for row in best.values() if row not in self.remarks}
        self.remarks |= {row: FOLLOWS for spec, row in best.items() if at_temperature(spec, self.own, 2) is None}
        seed = FIRST_SEED + settings.tune_seeds
        if again := tuned([self.twin], settings, self.cell, run_all, seed, self.own)[0].get(self.twin):
            same = ", the same setting, so its runs would be the same" * (again == best[self.twin])
            self.placebo = [] if same else [(again, {"label": PLACEBO})]
            self.notes.append(f"{PLACEBO}: {self.twin} tuned once more by other seeds: {again}{same}")
        self.twin = best.get(self.twin, self.twin)

    def _run_cells(self, cells: Iterable[Mapping[str, Any]], metrics: Sequence[Metric] = (), **part: Any) -> list[Run]:
        """Train cells of a share of the script's length; raise for a row that failed before its first step."""
        own = [metric for metric in (*self.settings.metric, self.settings.items) if metric]
        cells, metrics, given = list(cells), metrics or own, self.arguments
        share = part.pop("share", 1)
        self.left = max(0, self.left - share * len(cells))
        if given.resume:
            read_again([Run(given.out, cell) for cell in cells], metrics)
        run_script = partial(train, script=given.script, metrics=metrics, jobs=flags.concurrent(given))
        part.setdefault("after", self.left / (self.fixed + share * (1 - self.fixed)))
        runs, _ = flags.run_cells(run_script, cells, given, self.command, failed=True, **part)
        typed = [spec.partition(";")[2].strip() for spec in self.settings.objective if ";" in spec]
        for run in runs:
            text, (_, unreached, reason) = run.arguments["objective"], str(run.record.get("error")).partition(UNREACHED)
            if unreached and text.partition(";")[2].strip() in typed:  # a race has others, too, which it proposed
                raise ValueError(f"--objective {text}: {reason}")
        return runs


def _tell_secrets(script: Sequence[str], place: str) -> None:
    """Say that secrets of the script's command line are not recorded; raise where a cluster would write them down."""
    hidden = [shown for shown, word in zip(redacted(script), script, strict=True) if shown != word]
    if hidden and place != LOCAL:
        raise ValueError(
            f"--on {place}: the script's arguments have a secret ({', '.join(hidden)}), which a cluster's queue would "
            "write to a file; set it in the workers' environment, where the script reads it."
        )
    if hidden:
        print_line(f"secrets in the script's arguments are passed to it, and recorded as {REDACTED}")


def own_settings(runs: Iterable[Run]) -> Iterator[str]:
    """Yield the differences of rows to the script's own loss, as their runs saw it, beside their objective."""
    shown, same = [], []
    for name, run in {run.name: run for run in runs}.items():
        known, spec = run.details.get("own", HOST), run.arguments["objective"]
        if HOST not in (name, known) and cp.treatment(spec, known) == cp.treatment(HOST, known):
            same.append(quoted(name))
        differ = dict[str, None]()
        for own in map(cp.objective, ("infonce:t=host" if known == HOST else known).split(" + ")):
            row = cp.objective(spec, like=str(own))
            every = [part.to_dict() for part in row.modules() if isinstance(part, cp.Objective)]
            values = {key: {str(part.get(key, HOST)) for part in every if "temperature" in part} for key in SHARED}
            differ |= {key: None for key, some in values.items() if some - {HOST, str(own.to_dict().get(key))}}
        if differ:
            shown.append(f"{quoted(name)} ({', '.join(differ)})")
    if shown:
        yield f"settings of their own, where other rows have the host's: {'; '.join(shown)}"
    if same and any(run.name == HOST for run in runs):
        why = "they differ by rounding, which training magnifies, so read other differences of that size alike"
        yield f"{', '.join(same)} and {HOST} are one loss: {why}"
    found = {word for run in runs for word in re.findall(r"denominator=\w+", str(run.details.get("own")))}
    if found:
        yield f"rows that name no denominator have the host's, {' or '.join(sorted(found))}: name it in a script"


def placebo_notes(columns: Iterable[report.Column], twin: str) -> Iterator[str]:
    """Yield where the placebo differs from the row that was tuned in the same way."""
    for column in columns:
        values = {row: cell.values for row, cell in column.cells.items() if row in (PLACEBO, twin)}
        base = values.pop(twin, {})
        for verdict in compare(base, values, column.margin, test=available()).values() if base else ():
            if verdict.different:
                yield (
                    f"{column.title}: do not trust the verdicts on tuned rows: {PLACEBO} and {twin} are one loss, and "
                    f"tuning it by other seeds alone changes it by {verdict.difference:+.3g}"
                )


def _time_notes(runs: Sequence[Run], baseline: str) -> Iterator[str]:
    """Yield how long steps took, from one call of the loss to the next, over the baseline's with the same seed."""
    rows: dict[str, dict[int, float]] = defaultdict(dict)
    for run in runs:
        if run.details["step_seconds"]:
            rows[run.name][run.arguments["seed"]] = run.details["step_seconds"]
    about = f"time of a step, as a multiple of {baseline}'s"
    for row, some in ((row, seconds.values()) for row, seconds in rows.items()):
        if max(some) > TOLERANCE * min(some):  # more than rows may, and of the same work
            yield f"{about}: not known, since that of {row} went from {min(some):.2g} to {max(some):.2g} s between runs"
            return
    base = rows.pop(baseline, {})
    ratios = {row: [value / base[seed] for seed, value in by.items() if seed in base] for row, by in rows.items()}
    if times := {row: values for row, values in ratios.items() if len(values) > 1}:  # one may be a busy moment
        ranges = {row: f" ({min(some):.2f} to {max(some):.2f})" * (len(some) > 1) for row, some in times.items()}
        yield f"{about}: {', '.join(f'{row} {median(values):.2f}{ranges[row]}' for row, values in times.items())}"
    if slow := [row for row, values in times.items() if len(values) >= FEWEST and min(values) > TOLERANCE]:
        yield f"{' and '.join(slow)} had more time than {baseline}; train {baseline} longer to see what time gains"


def did_nothing(spec: str, details: Mapping[str, Any]) -> str:
    """Return why a treatment of the script's own loss has changed nothing, as far as is known."""
    only_excludes = spec.startswith(f"{HOST};") and not re.search("(labels|log_q|index)=", spec)
    if not only_excludes or details.get("excluded") != 0:
        return ""
    return "it left out no key, so it was your loss" + DROPOUT * spec.endswith("; duplicates")


def same_numbers(runs: Sequence[Run]) -> bool:
    """Return whether there are several seeds, and neither a row's numbers nor its first gradient depend on them.

    NaN says nothing of seeds, and of a coarse number, two seeds may have the same value.
    """
    runs = [run for run in runs if any(map(math.isfinite, (run.result or {}).values()))]
    rows = {(run.name, json.dumps(run.record["result"]), f"{run.details.get('first_gradient', 0):.5g}") for run in runs}
    return len({run.arguments["seed"] for run in runs}) > 1 and len(rows) == len({run.name for run in runs})


def find_loss(
    root: str | Path, code: str, script: Sequence[str], seam: Sequence[str], specs: Sequence[str], strict: bool = True
) -> tuple[str, list[str], str, list[str]]:
    """Return the host and its flags, which ``counterpoint inject auto`` finds in some steps of the script.

    Behind these, the script's own loss, and what treatments of it may be told of. A path of ``specs`` whose first name
    is not there is an error if ``strict``. What it finds is kept in the store: the name of a cell depends on it.
    """
    name = f"{cells.DOMAIN}/auto-{store.checksum(code, json.dumps([*redacted(script), *seam]))[:12]}.json"
    try:
        data = json.loads(connect(plain(root)).read(name))  # other machines find the same
    except (FileNotFoundError, ValueError):  # the latter if a process died when it wrote the file
        data = _watch(script, seam)
    commands = data["commands"]
    known = [command for command in commands if command[2] in data["hosts"]]
    if not commands or (len(known) != 1 and len(commands) > len(known) + 1):
        roads = "; ".join(shlex.join(["compare", *command[2 : command.index("--")]]) for command in commands)
        folder = Script.of(script)[0].path.resolve().parent
        similar = [name for name in registry.names() if registry.load(name).recognises(folder)]
        hint = f", name one: {roads}" if roads else f"; it looks like the host {similar[0]}" if similar else ""
        if not data.get("backwards"):
            hint = "; the script ended before it trained, see its own words above (the row '0*infonce' trains nothing)"
        raise ValueError(f"auto: found {len(commands)} losses to replace{hint}")
    connect(writable(root)).write(name, json.dumps(data).encode())
    names = {name for loss in data["losses"] for name in loss.get("names", ()) if not known}
    for spec, path in [(one, path) for one in specs for path in cp.treatment(one, "infonce").paths.values()]:
        if strict and names and (first := re.split(r"\W", path)[0]) not in names:
            fits = ", ".join(f"{one['kind']}={one['path']}" for one in data.get("told", ())) or "nothing that fits"
            hint = closest(first, names) or f" auto found {fits}."
            raise ValueError(f"--objective {spec}: no name {first!r} where the loss is.{hint}")
    host, *flags = commands[0][2 : commands[0].index("--")]
    at = flags.index("--objective")
    own, told = data.get("own") or "infonce:t=host", data.get("told", ())
    told = [x for x in told if x["kind"] == "duplicates" or x["distinct"] < x["length"]]  # other batches repeat texts
    told.sort(key=lambda x: x["distinct"] == x["length"])  # a small budget tries what repeats in this batch
    sites = dict.fromkeys(loss["site"] for loss in data["losses"] if loss.get("command"))
    print_line(f"found {', '.join(sites) or host}: {own}")
    typed = [path for spec in specs for path in cp.treatment(spec, "infonce").paths.values()]
    for one in (one for one in told if one.get("classes")):
        untried = " is not tried unless you name it" * (one["path"] not in typed)
        print_line(f"{one['kind']}={one['path']}{untried}{CLASSES}")
    offers = [f"{one['kind']}={one['path']}" for one in told if not one.get("classes")]
    return host, [*flags[:at], *flags[at + 2 :]], own, offers


def _watch(script: Sequence[str], seam: Sequence[str]) -> dict[str, Any]:
    """Return the findings of ``counterpoint inject auto`` in a few steps of the script."""
    with tempfile.TemporaryDirectory() as out, tempfile.NamedTemporaryFile() as file:
        words = [word.replace("{seed}", "0").replace("{out}", out) for word in script]
        found = Path(file.name)  # not in {out}, which scripts may refuse if it is not empty
        command = [sys.executable, "-m", "counterpoint.plugins.inject", "auto", *seam, f"--json={found}", "--"]
        print_line("watching the first steps of the script for its loss")
        done = subprocess.run([*command, *words], capture_output=True, text=True, errors="replace")
        findings = json.loads(found.read_bytes()) if found.exists() and found.stat().st_size else {}
    print((done.stdout + done.stderr) * (done.returncode != 0), end="", file=sys.stderr)
    return {**findings, "commands": [*map(redacted, findings.get("commands", []))]}


def tuned(
    specs: Sequence[str],
    settings: Settings,
    make_cell: Callable[..., Mapping[str, Any]],
    run_cells: Callable[..., Sequence[Run]],
    seed: int = FIRST_SEED,
    own: str = "infonce:t=host",
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the best spec of the search from each objective, and those with a parameter at the edge of its grid.

    The mean of some seeds from ``seed`` on chooses. Those without a parameter to tune are left out. ``make_cell`` makes
    a cell from a spec, a seed and more; ``run_cells`` returns the runs of cells, failed ones too, and counts them
    ``before`` others of a ``total``. ``own`` is the script's own loss, around whose temperature others are tried.
    """
    assert settings.tune_metric is not None
    name, sign = settings.tune_metric.name, -1 if settings.lower else 1
    typed = None if settings.grid is None else dict(settings.grid)
    starts = {spec: at_temperature(spec, own) or spec for spec in specs if FIXED.match(spec) is None}
    grids = {}
    for spec, start in starts.items():
        t = re.search(r"\bt=([\d.]+(?:e-?\d+)?)", start)
        near = {"temperature": tuple(float(f"{float(t[1]) * factor:.4g}") for factor in FACTORS)} if t else {}
        if found := grids_of(start, PAPERS | near, typed, strict=False):
            grids[spec] = found
    if typed and not grids and len(specs) > 1:
        raise ValueError(f"--grid: no row has a number {' or '.join(map(repr, typed))} to tune: {', '.join(starts)}.")
    total, count = len(grids) * settings.tune * settings.tune_seeds, 0

    def measure(specs: list[str]) -> Scores:
        nonlocal count
        seeds = range(seed, seed + settings.tune_seeds)
        cells = [make_cell(spec, each, purpose=TUNING) for spec, each in product(specs, seeds)]
        runs = [*run_cells(first := cells[: not count], before=count, total=total)]
        if first and runs[0].result is None:  # as with a wrong name of the number, which all others would repeat
            raise ValueError(f"--tune: the first training failed: {runs[0].record.get('error')}")
        runs += run_cells(cells[len(first) :], before=count + len(first), total=total)
        count += len(cells)
        values = [sign * (run.result or {}).get(name, math.nan) for run in runs]
        return {spec: fmean(values[i * len(seeds) :][: len(seeds)]) for i, spec in enumerate(specs)}

    best, edges = dict[str, str](), dict[str, str]()
    for spec, values in grids.items():
        scores = search(starts[spec], values, settings.tune, measure)
        best[spec] = best_of(scores)
        if math.isnan(scores[best[spec]]):
            raise ValueError(f"--tune: all runs of {spec} have failed.")
        edges |= {best[spec]: edge} if (edge := at_edge(best[spec], values, scores)) else {}
    return best, edges


def uneven(runs: Iterable[Run]) -> Iterator[tuple[Run, str]]:
    """Yield the runs that reached the loss less often than others of their seed, with a message for each."""
    runs = [*runs]
    for run in runs:
        same_seed = (other for other in runs if other.arguments["seed"] == run.arguments["seed"])
        most = max(same_seed, key=lambda other: other.details["calls"])
        if (calls := run.details["calls"]) < (more := most.details["calls"]):
            yield run, f"{run.title}: the loss was reached {calls} times, with {most.name} {more} times"
