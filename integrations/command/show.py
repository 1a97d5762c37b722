"""``counterpoint show``: the command that trains a run again, its settings, status, result and environment."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from counterpoint.names import visible

from .. import flags
from ..store.secrets import REDACTED

if TYPE_CHECKING:
    from ..store.run import Run

# of a record, in this order; what is not there is left out
SHOWN = ("status", "error", "started", "finished", "seconds", "result", "data", "versions", "host")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``counterpoint show``."""
    add = parser.add_argument
    add(
        "runs",
        nargs="+",
        type=flags.runs,
        metavar="RUN",
        help="folders of runs, at any depth, their URLs, or hf://owner/name",
    )
    add("--json", action="store_true", help="print JSON")
    parser.set_defaults(check=lambda arguments: flags.check_runs(arguments.runs))


def command(arguments: argparse.Namespace) -> int:
    """Print the commands, then the runs."""
    from ..store.published import local
    from ..store.run import find_runs

    runs = find_runs(local(arguments.runs))
    lines, reasons = commands(runs)
    if arguments.json:
        rows = [{"folder": run.address, "arguments": run.arguments, **_shown(run)} for run in runs]
        for run, row in zip(runs, rows, strict=True):
            row |= {"recorded": run.record.get("command"), "reason": reasons.get(run.address)}
        print(json.dumps({"commands": lines, "runs": rows}, indent=1))
        return 0
    if any(REDACTED in line for line in lines):
        lines.append(f"# {REDACTED}: secrets are not recorded; type them again")
    about = [*_one(runs[0], reasons)] if len(runs) == 1 else [*_table(runs)]
    if len(runs) > 1:
        about += [f"no command for {path}: {reason}" for path, reason in reasons.items()]
    print("\n".join(map(visible, [*lines, *([""] if lines else []), *about])))
    return 0


def commands(runs: Sequence[Run]) -> tuple[list[str], dict[str, str]]:
    """The commands that train these runs again, and why there is none for the other runs, by their folders.

    Runs that differ in objective and seed alone share a command, if their seeds follow each other. Those of ``tune``
    and ``compare`` have the command that began them. Untrained baselines are trained beside the others.
    """
    from .config import recorded_command, settings_words

    grids: dict[tuple[str, ...], dict[str, set[int]]] = {}  # seeds of each objective, by domain and settings
    cached: dict[str, tuple[str, ...]] = {}
    lines: list[str] = []
    reasons: dict[str, str] = {}
    baselines: list[Run] = []
    for run in runs:
        arguments, typed = run.arguments, run.record.get("command")
        if run.tuning or arguments["domain"] == "compare":
            if line := recorded_command(typed):
                lines += [line] * (line not in lines)
            else:
                reasons[run.address] = f"it was begun by {typed or 'an unknown program'}"
            continue
        if _is_baseline(arguments):
            baselines.append(run)
            continue
        key = json.dumps([{**arguments, "seed": 0}, typed], sort_keys=True)
        try:
            if key not in cached:
                cached[key] = (arguments["domain"], *settings_words(arguments, typed))
        except (ImportError, OSError, TypeError, ValueError) as error:
            reasons[run.address] = str(error).partition("\n")[0]
            continue
        spec = run.name if arguments.get("label") is None else arguments["objective"]
        grids.setdefault(cached[key], {}).setdefault(spec or "", set()).add(arguments["seed"])
    for (domain_name, *words), seeds in grids.items():
        lines += [shlex.join(["counterpoint", "train", domain_name, *line]) for line in _lines(words, seeds)]
    for run in baselines:
        if any(_data(other) == _data(run) for other in runs if other not in baselines):
            continue
        if line := recorded_command(run.record.get("command")):
            lines += [line] * (line not in lines)
        else:
            reasons[run.address] = f"{run.name} is trained beside objectives, by counterpoint train {_data(run)[0]}"
    return lines, reasons


def _data(run: Run) -> tuple[str, str]:
    return run.arguments["domain"], run.arguments["dataset"]


def _is_baseline(arguments: Mapping[str, Any]) -> bool:
    """Whether a run trains nothing."""
    return arguments["objective"] is None and (arguments["domain"] == "sentence" or arguments.get("epochs") == 0)


def _lines(words: Sequence[str], seeds: Mapping[str, set[int]]) -> Iterator[list[str]]:
    """The words of a command for each stretch of seeds, with all objectives that have it."""
    objectives: dict[tuple[int, int], list[str]] = {}
    for objective, numbers in seeds.items():
        for seed in sorted(numbers):
            if seed - 1 not in numbers:
                count = next(n for n in range(1, len(numbers) + 1) if seed + n not in numbers)
                objectives.setdefault((seed, count), []).append(objective)
    for (seed, count), specs in objectives.items():
        named = ["--objective", *specs] if specs != [""] else []
        yield [*named, *words, "--seed", str(seed), *(["--seeds", str(count)] if count > 1 else [])]


def _shown(run: Run) -> dict[str, Any]:
    return {key: run.record[key] for key in SHOWN if run.record.get(key) not in (None, {})}


def _one(run: Run, reasons: Mapping[str, str]) -> Iterator[str]:
    """Lines about one run."""
    from ..store.progress import format_numbers

    for reason in reasons.values():
        yield f"no command trains it again: {reason}"
    shown = _shown(run)
    shown = {"run": run.title, "folder": run.address, **shown, "recorded": run.record.get("command")}
    for key, value in shown.items():
        if key == "result":
            yield f"{key:9}  {format_numbers(run.result or {})}"
        elif isinstance(value, Mapping):
            yield f"{key:9}  {', '.join(_pair(*item) for item in value.items() if item[1] not in ([], None))}"
        elif value is not None:
            yield f"{key:9}  {value}"
    yield "settings"
    width = max(map(len, run.arguments))
    for key, value in run.arguments.items():
        yield f"  {key:{width}}  {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"


def _pair(key: str, value: Any) -> str:
    return f"{key} {', '.join(map(str, value)) if isinstance(value, list) else value}"


def _table(runs: Sequence[Run]) -> Iterator[str]:
    """A line for each run."""
    from ..store.progress import format_numbers

    width = max(len(run.record["status"]) for run in runs)
    for run in runs:
        result = format_numbers(run.result) if run.result else run.record.get("error") or ""
        yield f"{run.record['status']:{width}}  {run.title}{f': {result}' if result else ''}"
