"""Where the numbers of a run are: in a file that the script writes, in its output, or in a function of the user's."""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
from collections.abc import Callable, Iterable
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from counterpoint.names import check_known, nearest

if TYPE_CHECKING:
    from .written import Written

FORMS = {
    "json": "json:FILE:KEY",
    "csv": "csv:FILE:COLUMN",
    "text": "text:FILE:REGEX",
    "tensorboard": "tensorboard:FOLDER:TAG",
    "output": "output:REGEX",
    "python": "python:FILE:FUNCTION",
    "script": "script:FILE:FUNCTION",
}
FILES = ("json", "csv", "text", "tensorboard")  # what the script has written


class Metric(NamedTuple):
    """A number to read: of which ``kind``, from which ``place``, ``what`` there, under which ``name``.

    ``json``, ``csv``, ``text`` and ``tensorboard`` read files, given relative to ``{out}`` or to the folder where the
    script runs, ``*`` allowed; of several values the last counts. ``output`` is a regular expression over what the
    script prints. ``python`` calls a function with the folder ``{out}`` when the script has ended; ``script`` calls one
    with the script's module in the script's own process, for scripts that store nothing. Both return a number, or a
    dict of numbers.
    """

    kind: str
    place: str
    what: str
    name: str
    text: str

    @classmethod
    def parse(cls, text: str) -> Metric:
        """Read ``KIND:PLACE:WHAT`` or ``NAME=KIND:PLACE:WHAT``."""
        match = re.fullmatch(r"(?:([\w ./%@-]+)=)?(\w+):(.+)", text, re.S)
        if match is None or match[2] not in FORMS:
            hint = nearest(match[2] if match else text.partition(":")[0], FORMS)
            raise argparse.ArgumentTypeError(f"expected KIND:..., such as {FORMS['json']}, got {text!r}.{hint}")
        name, kind, rest = match.groups()
        place, colon, what = ("", ":", rest) if kind == "output" else rest.partition(":")
        if not (what and colon and (place or kind == "output")):
            raise argparse.ArgumentTypeError(f"expected {FORMS[kind]}, got {text!r}")
        if kind in ("text", "output"):
            name = name or _named_after(what, text)
        elif kind in FILES:
            name = name or (what.split(".")[-1] if kind == "json" else what)
            if Path(place).is_absolute() or ".." in Path(place).parts:
                raise argparse.ArgumentTypeError(
                    f"{text}: expected a path relative to the folder where the script runs, or to {{out}}, the folder "
                    "of each run, which can be put among the script's arguments"
                )
        elif not Path(place).is_file():
            raise argparse.ArgumentTypeError(f"{text}: no file {place}")
        else:
            place = str(Path(place).resolve())
        return cls(kind, place, what, name or what, text)


def _named_after(pattern: str, text: str) -> str:
    """Return the name of a regular expression's group, or else the words before it."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text}: not a regular expression: {error}") from None
    if compiled.groups != 1:
        raise argparse.ArgumentTypeError(
            f"{text}: expected one group (...) around the number, got {compiled.groups}; (?:...) is not a group"
        )
    words = re.sub(r"\\.|\W+", " ", pattern.partition("(")[0]).strip()
    return next(iter(compiled.groupindex), words or "value")


def read(metrics: Iterable[Metric], written: Written) -> dict[str, float]:
    """Return the numbers of a run by their names; raise ``ValueError`` where one is missing."""
    numbers: dict[str, float] = {}
    for metric in metrics:
        try:
            value = _READERS[metric.kind](metric, written)
            values = value if isinstance(value, dict) else {metric.name: value}
            numbers |= {str(name): float(number) for name, number in values.items()}
        except (KeyError, OSError, TypeError, ValueError) as error:
            reason = error.args[0] if isinstance(error, KeyError) else error
            raise ValueError(f"--metric {metric.text}: {reason}") from error
    return numbers


def _json(metric: Metric, written: Written) -> Any:
    text = written.one(metric.place).read_text(encoding="utf-8")
    try:
        value = json.loads(text)
    except ValueError:  # JSON lines
        value = json.loads(text.strip().splitlines()[-1])
    for key in [metric.what] if isinstance(value, dict) and metric.what in value else metric.what.split("."):
        if isinstance(value, list) and key.lstrip("-").isdigit() and -len(value) <= int(key) < len(value):
            value = value[int(key)]
        elif isinstance(value, dict) and key in value:
            value = value[key]
        else:
            kind = f"a list of {len(value)}" if isinstance(value, list) else f"{value!r}"
            raise KeyError(f"no {key!r}.{nearest(key, value)}" if isinstance(value, dict) else f"no {key!r} in {kind}")
    if isinstance(value, dict):
        raise ValueError(
            f"{metric.what!r} holds {', '.join(value)}: add one of them, as in json:FILE:{metric.what}.KEY"
        )
    return value


def _csv(metric: Metric, written: Written) -> Any:
    with written.one(metric.place).open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        cells = [row.get(metric.what) for row in rows]
        check_known("no column", metric.what, rows.fieldnames or (), KeyError)
    return _last([cell for cell in cells if cell], f"the column {metric.what!r} is empty")


def _tensorboard(metric: Metric, written: Written) -> float:
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        raise ImportError("it is read by tensorboard: pip install tensorboard") from error
    values: list[tuple[int, float]] = []
    known: list[str] = []
    for file in written.find(metric.place):
        events = EventAccumulator(str(file), {"scalars": 0})
        events.Reload()
        known += events.Tags()["scalars"]
        if metric.what in known:
            values += [(event.step, event.value) for event in events.Scalars(metric.what)]
    if not values:
        raise KeyError(f"no tag {metric.what!r}.{nearest(metric.what, known)}")
    return max(values)[1]


def _text(metric: Metric, written: Written) -> str:
    file = written.log if metric.kind == "output" else written.one(metric.place)
    text = file.read_text(encoding="utf-8", errors="replace")
    if metric.kind == "output":  # the script's own, not what was said about its loss
        text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("counterpoint: "))
    found = re.findall(metric.what, text, re.M)
    return _last(found, f"nothing in {file} matches")


def _last(values: list[str], otherwise: str) -> str:
    if not values:
        raise ValueError(otherwise)
    return values[-1]


def _python(metric: Metric, written: Written) -> Any:
    return function(metric)(written.out)


def _script(metric: Metric, written: Written) -> Any:
    scores = json.loads((written.out.parent / SCORES).read_text(encoding="utf-8"))
    if metric.text not in scores:
        raise KeyError("the script ran without it; --fresh runs it again")
    return scores[metric.text]


SCORES = "scores.json"  # what functions in the script's process have returned

_READERS: dict[str, Callable[[Metric, Written], Any]] = {
    "json": _json,
    "csv": _csv,
    "text": _text,
    "output": _text,
    "tensorboard": _tensorboard,
    "python": _python,
    "script": _script,
}


def function(metric: Metric) -> Callable[[Any], Any]:
    """Return the function that a metric calls; its file may import its neighbours."""
    file = Path(metric.place)
    spec = util.spec_from_file_location(f"_counterpoint_metric_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.path.append(str(file.parent))
    spec.loader.exec_module(module)
    found = getattr(module, metric.what, None)
    if not callable(found):
        known = [name for name, value in vars(module).items() if callable(value)]
        raise ValueError(f"{file} has no function {metric.what!r}.{nearest(metric.what, known)}")
    return found  # type: ignore[no-any-return]
