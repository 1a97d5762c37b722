"""The flags that all domains share, and those that a domain's settings define.

Nothing here imports torch until a flag needs it, so that ``--help`` starts at once.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, fields
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from counterpoint.names import IMPORT, OBJECTIVES, nearest, unknown_objective
from counterpoint.plugins.printing import print_lines
from counterpoint.spec import CALLS, SpecError, refuse_list

from .domain import about, default, domain
from .trackers import NAMES as TRACKERS

if TYPE_CHECKING:
    from torch.nn import Module

    from .store.run import Run

T = TypeVar("T")

_OBJECTIVE = re.compile(r"(?:^|[(+*])\s*([A-Za-z_][A-Za-z0-9_]*)\b(?!\s*=)")
DEVICES = ("auto", "cpu", "cuda", "mps", "xpu")


def concurrent(arguments: argparse.Namespace) -> int:
    """How many runs there may be at a time: those of a cluster are at least two."""
    return int(arguments.jobs if arguments.on == "local" else max(arguments.jobs, 2))


def runs(text: str) -> str | Path:
    """A type for argparse: a folder of runs, its URL, or a run on the hub, ``hf://owner/name``."""
    return text if text.startswith("hf://") else store(text, written=False)


def store(text: str, written: bool = True) -> str | Path:
    """A type for argparse: a folder of runs to write to, or its URL, such as ``s3://bucket/runs``."""
    if "://" not in text:
        return folder(text) if written else Path(text)
    from .store.folder import plain

    place = plain(text)
    if isinstance(place, Path):
        return folder(str(place)) if written else place
    if place.startswith("memory://"):
        expected = "expected a folder, or s3://BUCKET/FOLDER"
        raise argparse.ArgumentTypeError(f"{text}: lost when this process ends; {expected}.")
    return place


def grid_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of ``run_grid`` that the flags of :func:`add_runs` set."""
    options = {"jobs": arguments.jobs, "executor": arguments.on, "resume": arguments.resume}
    return {**options, "progress": not arguments.json}


def run_cells(
    train: Callable[[Run], None],
    cells: Iterable[Mapping[str, object]],
    arguments: argparse.Namespace,
    command: str,
    failed: bool = False,
    **more: Any,
) -> tuple[list[Run], int]:
    """Run cells as the flags of :func:`add_runs` say, and send them to trackers; return finished runs and exit code.

    Failures go to stderr; with ``failed``, their runs are returned too. ``more`` are further arguments of ``run_grid``.
    """
    from .store import GridError, run_grid
    from .trackers import check, tracked

    check(arguments.track)
    train, options = tracked(train, arguments.track), grid_options(arguments)
    try:
        return run_grid(train, cells, arguments.out, **options, **more), 0
    except GridError as error:
        if "total" not in more:  # of a larger grid, whose failures the caller counts
            print_lines(f"counterpoint {command}: {error}", file=sys.stderr)
        return [run for run in error.runs if failed or run.done], 1


def check_runs(places: Sequence[str | Path]) -> None:
    """Raise ``ValueError`` unless there are runs in these folders; those at URLs are checked later."""
    folders = [place for place in places if isinstance(place, Path)]
    for folder in folders:
        if folder.is_file():
            hint = "a model of your own is evaluated in Python, see Your own model in the documentation"
            raise ValueError(f"{folder}: expected a folder of runs, got a file; {hint}.")
        if not folder.is_dir():
            raise ValueError(f"{folder}: no such folder.")
    if folders and not any(True for folder in folders for _ in folder.rglob("run.json")):
        raise ValueError(f"no runs in {', '.join(map(str, folders))}: no folder there has a run.json.")


def finished(places: Iterable[str | Path], domain: str, where: Callable[[Run], object] = lambda run: True) -> list[Run]:
    """Return the finished runs of a domain for which ``where`` is true; raise ``ValueError`` if there are none."""
    from .store.progress import print_line
    from .store.run import find_runs

    found = [run for run in find_runs(places) if run.done and not run.tuning]
    runs = [run for run in found if run.arguments["domain"] == domain and where(run)]
    others = sorted({run.arguments["domain"] for run in found} - {domain})
    if not runs:
        of_others = f", only of {', '.join(others)}" if others else ""
        of_others += f": models of your own script, for {domain}.evaluate" * (others == ["compare"])
        raise ValueError(f"no finished run of {domain} in {', '.join(map(str, places))}{of_others}")
    if others:
        print_line(f"left out: runs of {', '.join(others)}")
    return runs


def encoder_of(run: Run) -> Module:
    """The trained encoder of a run of images or graphs, also of one that was fetched from the hub."""
    of, pushed = domain(run.arguments["domain"]), (run.path / "model.safetensors").is_file()
    encoder: Module = of.module("published").load(run.path) if pushed else of.module("training").restore(run).encoder
    return encoder


def each(runs: Sequence[Run], measure: Callable[[Run], T]) -> Iterator[tuple[Run, T]]:
    """Yield each run and what ``measure`` returns for it, with progress; leave out damaged ones, unless all are."""
    from .store.errors import DamagedError
    from .store.progress import print_line, track

    errors = []
    for run in track(runs, "evaluated, runs"):
        try:
            yield run, measure(run)
        except DamagedError as error:
            errors.append(error)
            print_line(f"{error}; left out")
    if runs and len(errors) == len(runs):
        raise errors[-1]


def add_root(parser: argparse.ArgumentParser, help: str = "folder of the data sets ($COUNTERPOINT_DATA)") -> None:
    """Add ``--root``, the folder of data sets."""
    parser.add_argument("--root", metavar="FOLDER", help=help)


def check_root(root: str | None) -> None:
    """Raise ``ValueError`` unless the folder of data sets exists, by the flag or else by the variable."""
    place = root or os.environ.get("COUNTERPOINT_DATA") or "hub"
    if place != "hub" and not Path(place).is_dir():
        raise ValueError(f"{'--root' if root else '$COUNTERPOINT_DATA'}: {place} is not a folder")


def use_root(arguments: argparse.Namespace) -> None:
    """Set the folder of data sets, ``hub`` for none, for child processes too."""
    check_root(arguments.root)
    if arguments.root is not None:
        os.environ["COUNTERPOINT_DATA"] = arguments.root


def add_objective(parser: argparse.ArgumentParser, help: str, type: Callable[[str], str]) -> None:
    """Add ``--objective``; ``--objectives`` is the same, and not in ``--help``."""
    action = parser.add_argument("--objective", nargs="+", type=type, metavar="SPEC", help=help)
    parser._option_string_actions["--objectives"] = action


def add_arguments(
    parser: argparse.ArgumentParser, objective: str, settings: type | None = None, presets: Iterable[str] = ()
) -> None:
    """Add the flags that every domain has. ``parser.set_defaults(...)`` afterwards sets a domain's own defaults.

    ``objective`` is what is trained without ``--objective``, for the help. Without the domain's settings, the flag for
    the length of training is left out.
    """
    add = parser.add_argument
    or_preset = ", or the preset's" if presets else ""
    add_objective(parser, f"one or more ({objective}{or_preset})", spec)
    for field in fields(settings) if settings is not None else ():
        if field.name in ("epochs", "steps") and not about(field).flag:  # the unit of training; --steps of sentences
            shown = f"{field.name} of training ({default(field)}{or_preset})"
            add(f"--{field.name}", type=whole(0), metavar="N", help=shown)
    if presets:
        add("--preset", choices=list(presets), help="settings of a paper, which flags override (none)")
    add_device(parser)
    add_runs(parser, cells=settings is not None)


def add_runs(parser: argparse.ArgumentParser, cells: bool = True) -> None:
    """Add the flags of every command that trains runs of a store.

    With ``cells`` also ``--config``, which :mod:`.command.config` replaces by flags before anything is parsed.
    """
    group = parser.add_argument_group("runs")
    add = group.add_argument
    add("--seed", type=whole(0), default=0, metavar="K", help="seed of the first run (%(default)s)")
    add("--seeds", type=whole(1), default=1, metavar="N", help="runs per objective, seeds K to K+N-1 (%(default)s)")
    where = "a folder, or s3://bucket/runs and the like, where the runs are stored (%(default)s)"
    add("--out", type=store, default=Path("runs"), metavar="FOLDER", help=where)
    add_places(group)
    exclusive = group.add_mutually_exclusive_group()
    exclusive.add_argument("--resume", action="store_true", default=True, help="continue stopped runs (the default)")
    exclusive.add_argument("--fresh", dest="resume", action="store_false", help="delete these runs first")
    trackers = f"send curves and results to {', '.join(TRACKERS)}; repeatable (none)"
    add("--track", action="append", default=[], choices=TRACKERS, metavar="NAME", help=trackers)
    add("--json", action="store_true", help="print JSON")
    if cells:
        config = "run.json of a run to repeat, or a .json or .yaml file of flags; a path or URL; typed flags win (none)"
        add("--config", metavar="FILE", help=config)


def add_places(parser: argparse._ActionsContainer) -> None:
    add = parser.add_argument
    add("--jobs", type=whole(1), default=1, metavar="N", help="runs at a time (%(default)s)")
    where = "local, slurm:partition=gpu,gpus=1,time=60, ray:ADDRESS or dask:ADDRESS (%(default)s)"
    add("--on", type=place, default="local", metavar="PLACE", help=f"where runs are trained: {where}")


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", type=device, default="cpu", help="cpu, cuda, cuda:1, ... or auto (%(default)s)")


def add_settings(parser: argparse._ActionsContainer, settings: type) -> None:
    """Add a flag for each setting of a domain; a flag that is not typed leaves None, see :func:`chosen`."""
    for field in fields(settings):
        if about(field).flag and field.name not in getattr(settings, "NO_FLAGS", ()):
            parser.add_argument(f"--{field.name.replace('_', '-')}", default=None, **_options(field))


def _options(field: Field[object]) -> dict[str, Any]:
    """Return the options of a setting's flag for argparse."""
    flag, value = about(field), default(field)
    if value is False:
        return {"action": "store_true", "help": flag.help}
    value = None if value == () else value
    shown = " ".join(map(str, value)) if isinstance(value, list) else "none" if value is None else value
    options: dict[str, Any] = {"help": flag.help.replace("%", "%%")}
    if value is not None or not flag.help.endswith(")"):  # which says what is used instead
        options["help"] += f" ({shown})"
    if flag.nargs is not None or isinstance(value, list):
        options["nargs"] = flag.nargs or "+"
    if flag.choices:
        return {**options, "choices": flag.choices, **({"metavar": flag.metavar} if flag.metavar else {})}
    kind = flag.type or (type(value) if type(value) in (int, float) else str)
    options["type"] = whole(int(flag.low)) if kind is int and flag.low is not None else kind
    return {**options, "metavar": flag.metavar or ("N" if kind is int else "X" if kind is float else "NAME")}


def chosen(arguments: argparse.Namespace, settings: type) -> dict[str, Any]:
    """The settings that were typed, by name."""
    typed = {field.name: getattr(arguments, field.name, None) for field in fields(settings)}
    return {name: value for name, value in typed.items() if value is not None}


def spec(text: str, paths: bool = False) -> str:
    """A type for argparse: the canonical text of a spec, with ``paths`` or without; unknown names are refused first."""
    import counterpoint as cp

    name, comma, rest = text.partition(",")
    if comma and name in (*OBJECTIVES, "host"):
        raise argparse.ArgumentTypeError(f"{text!r}: separate objectives by spaces, as in {name} {rest.strip()}")
    try:
        check_names(text)
        loss_fn = cp.objective(text)
    except (TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    for name, path in ({} if paths else getattr(loss_fn, "paths", {})).items():
        raise argparse.ArgumentTypeError(f"{name}={path}: only inject, compare and race look up names of a script")
    return str(loss_fn)


def check_names(text: str) -> None:
    """Raise for an objective that nobody has defined, without importing torch; :func:`spec` finds all other errors."""
    refuse_list(text)
    for match in _OBJECTIVE.finditer(text.partition(";")[0]):
        unknown = match[1] not in (*CALLS, *OBJECTIVES) and IMPORT not in os.environ
        if unknown and not metadata.entry_points(group="counterpoint.objectives"):
            raise SpecError(unknown_objective(match[1], OBJECTIVES), text, match.start(1))


def whole(low: int) -> Callable[[str], int]:
    """A type for argparse: a whole number of at least ``low``."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < low:
            raise argparse.ArgumentTypeError(f"expected a whole number of at least {low}, got {text!r}")
        return int(text)

    return read


def place(text: str) -> str:
    """A type for argparse: where to train, as :func:`.store.executors.parse` reads it."""
    from .store.executors import parse

    try:
        parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("--on").lstrip(": ")) from None
    return text


def folder(text: str) -> Path:
    """A type for argparse: a folder to write to, which need not exist yet."""
    there = Path(text).absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise argparse.ArgumentTypeError(f"{there} {'cannot be written to' if there.is_dir() else 'is not a folder'}")
    return Path(text)


def file(text: str) -> Path:
    """A type for argparse: a file to write, in a folder that exists."""
    if Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder; expected a file")
    if not Path(text).parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: its folder does not exist")
    folder(str(Path(text).parent))
    return Path(text)


def device(text: str) -> str:
    """A type for argparse: a device that can be used here; ``auto`` is a GPU if there is one."""
    if text == "cpu":
        return text
    if text.partition(":")[0] not in DEVICES:
        hint = nearest("cuda" if "gpu" in text.lower() else text, DEVICES)
        raise argparse.ArgumentTypeError(f"unknown device {text!r}.{hint}")
    import torch

    if text == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=text)
    except (AssertionError, RuntimeError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be used: {str(error).partition(chr(10))[0]}") from None
    return text
