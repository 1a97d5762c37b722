"""``counterpoint show``: the command that trains a run again, its settings, status, result and environment."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from counterpoint.names import visible

from .. import flags
from ..secrets import REDACTED
from ..store.progress import format_numbers
from .config import recorded

if TYPE_CHECKING:
    from ..store.run import Run

# of a record, in this order; what is not there is left out
SHOWN = ("status", "error", "started", "finished", "seconds", "result", "data", "versions", "host")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``counterpoint show``."""
    about = "folders of runs, at any depth, their URLs, or hf://owner/name"
    parser.add_argument("runs", nargs="+", type=flags.runs, metavar="RUN", help=about)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(check=lambda arguments: flags.check_runs(arguments.runs))


def command(arguments: argparse.Namespace) -> int:
    """Print the commands, then the runs."""
    from ..store.run import find_runs

    runs = find_runs(arguments.runs)
    lines, reasons = commands(runs)
    if arguments.json:
        rows = [{"folder": run.address, "arguments": run.arguments, **_shown(run)} for run in runs]
        for run, row in zip(runs, rows, strict=True):
            row |= {"recorded": run.record.get("command"), "reason": reasons.get(run.address)}
        print(json.dumps({"commands": lines, "runs": rows}, indent=1))
        return 0
    if any(REDACTED in line for line in lines):
        lines.append(f"# {REDACTED}: secrets are not recorded; type them again")
    if lines:
        lines.append("")
    lines += _one(runs[0], reasons) if len(runs) == 1 else _table(runs, reasons)
    print("\n".join(map(visible, lines)))
    return 0


def commands(runs: Sequence[Run]) -> tuple[list[str], dict[str, str]]:
    """Return the commands that train these runs again, and why there is none for the other runs, by their folders.

    Of a single run, the command trains it alone; of several, they are those that began the runs.
    """
    lines: dict[str, None] = {}
    reasons: dict[str, str] = {}
    for run in runs:
        if (begun := recorded(run.record.get("command"))) is None:
            reasons[run.address] = f"it was begun by {run.record.get('command') or 'an unknown program'}"
        else:
            lines[begun.command(begun.of_run(run.arguments) if len(runs) == 1 else begun.line)] = None
    return list(lines), reasons


def _shown(run: Run) -> dict[str, object]:
    return {key: run.record[key] for key in SHOWN if run.record.get(key) not in (None, {})}


def _one(run: Run, reasons: Mapping[str, str]) -> Iterator[str]:
    """Yield lines about one run."""
    yield from (f"no command trains it again: {reason}" for reason in reasons.values())
    shown = {"run": run.title, "folder": run.address, **_shown(run)} | {"recorded": run.record.get("command")}
    for key, value in shown.items():
        if key == "result":
            yield f"{key:9}  {format_numbers(run.result or {})}"
        elif isinstance(value, Mapping):
            texts = {k: ", ".join(map(str, v)) if isinstance(v, list) else v for k, v in value.items()}
            yield f"{key:9}  {', '.join(f'{k} {text}' for k, text in texts.items() if text not in ('', None))}"
        elif value is not None:
            yield f"{key:9}  {value}"
    yield "settings"
    width = max(map(len, run.arguments))
    for key, value in run.arguments.items():
        yield f"  {key:{width}}  {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"


def _table(runs: Sequence[Run], reasons: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each run."""
    width = max(len(run.record["status"]) for run in runs)
    for run in runs:
        result = format_numbers(run.result) if run.result else run.record.get("error") or ""
        yield f"{run.record['status']:{width}}  {run.title}{f': {result}' if result else ''}"
    yield from (f"no command for {path}: {reason}" for path, reason in reasons.items())
