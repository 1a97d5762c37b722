"""Where the numbers of a run are: in a file that the script writes, in its output, or in a function of the user's."""

from __future__ import annotations

import argparse
import csv
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

from counterpoint.names import check_known, closest, nearest

from .. import items

FORMS = {
    "json": "json:FILE:KEY",
    "csv": "csv:FILE:COLUMN",
    "text": "text:FILE:REGEX",
    "tensorboard": "tensorboard:FOLDER:TAG",
    "output": "output:REGEX",
    **items.FORMS,
    "python": "python:FILE:FUNCTION",
    "script": "script:FILE:FUNCTION",
}
FILES = ("json", "csv", "text", "tensorboard", *items.FORMS)  # what the script has written
SERIES = ("csv", "text", "tensorboard", "output")  # of which there may be one in every epoch
SCORES = "scores.json"  # what functions in the script's process have returned

Values = list[tuple[int, str | float]]  # steps, and what was written at each


class Metric(items.Source):
    """A number to read, as ``--help`` lists them: its ``kind``, the file, folder or function, and a name."""

    @classmethod
    def parse(cls, text: str) -> Metric:
        """Read ``KIND:PLACE:WHAT`` or ``NAME=KIND:PLACE:WHAT``."""
        items.refuse_place(text)
        match = re.fullmatch(r"(?:([\w ./%@-]+)=)?(\w+):(.+)", text, re.S)
        if match is None or match[2] not in FORMS:
            hint = nearest(match[2] if match else text.partition(":")[0], FORMS)
            raise argparse.ArgumentTypeError(f"expected KIND:..., such as {FORMS['json']}, got {text!r}.{hint}")
        name, kind, rest = match.groups()
        place, colon, what = ("", ":", rest) if kind == "output" else rest.partition(":")
        if kind in items.FORMS:
            _, place, what, own, _ = items.parse(text)
            return cls(kind, items.relative(place), what, own, text)
        if not (what and colon and (place or kind == "output")):
            raise argparse.ArgumentTypeError(f"expected {FORMS[kind]}, got {text!r}")
        if kind in ("text", "output"):
            name = name or _named_after(what, text)
        elif kind in FILES:
            name = name or (what.split(".")[-1] if kind == "json" else what)
            items.relative(place)
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
        actual = f"got {compiled.groups}; (?:...) is not a group"
        raise argparse.ArgumentTypeError(f"{text}: expected one group (...) around the number, {actual}")
    words = re.sub(r"(?:\\.|[^\w@/%-])+", " ", pattern.partition("(")[0]).strip(" -")
    return next(iter(compiled.groupindex), words or "value")


def told_apart(first: Metric, other: Metric) -> list[Metric]:
    """Return two metrics under different names, the whole key of JSON such as ``test.accuracy``, or with the place."""
    if first.name != other.name or first.text == other.text:
        return [first, other]
    name = "{0.place}:{0.what}" if first.what == other.what else "{0.what}"
    return [one._replace(name=name.format(one)) for one in (first, other)]


NUMBER = r"([-+.\de]+)"


@dataclass(frozen=True)
class Written:
    """The files that a script has written in a run, told apart from those of other runs."""

    out: Path  # the folder {out} of the run
    folder: Path  # where the script ran
    log: Path  # what it printed
    began: int  # times in nanoseconds, those of the file system
    ended: int
    shared: bool  # whether other runs may have written to ``folder`` meanwhile
    most: int | None = None  # numbers of ``output:REGEX`` that count, in a run that was stopped after so many

    def find(self, pattern: str) -> list[Path]:
        """Return the files that match, all those in a folder that does; copy them to ``out`` if they lie elsewhere."""
        pattern = pattern.removeprefix("{out}/")
        if found := _files(self.out, pattern):
            return found
        if not (found := _files(self.folder, pattern)):
            raise FileNotFoundError(f"no {pattern} in {self.out} ({{out}}), nor in {self.folder}")
        current = [file for file in found if self.began <= file.stat().st_mtime_ns <= self.ended]
        if not current:
            when = "before this run began" if found[-1].stat().st_mtime_ns < self.began else "after this run had ended"
            raise ValueError(f"{found[-1]} was written {when}, so it is not of this run")
        if self.shared:
            raise ValueError(
                f"{current[0]} lies in a folder that runs share, so it may be of another run: let the script write it "
                "to {out}, the folder of each run, or give each run its own copy of the folder with --copy"
            )
        copies = [self.out / file.relative_to(self.folder) for file in current]
        for file, copy in zip(current, copies, strict=True):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, copy)
        return copies

    def one(self, pattern: str) -> Path:
        """Return the file that matches; raise ``ValueError`` if several do."""
        found = self.find(pattern)
        if len(found) > 1:
            raise ValueError(f"{pattern} may mean {' or '.join(map(str, found[:4]))}")
        return found[0]

    def text(self, pattern: str) -> str:
        """Return the text of the file that matches."""
        return self.one(pattern).read_text(encoding="utf-8", errors="replace")


def _files(folder: Path, pattern: str) -> list[Path]:
    found = [file for path in folder.glob(pattern) for file in (path.rglob("*") if path.is_dir() else [path])]
    return sorted(file for file in found if file.is_file())


def read(metrics: Iterable[Metric], written: Written) -> dict[str, float]:
    """Return the numbers of a run by their names; raise ``ValueError`` where one is missing."""
    numbers: dict[str, float] = {}
    for metric in metrics:
        try:
            value = _READERS[metric.kind](metric, written)
            value = value[-1][1] if metric.kind in SERIES else value
            values = value if isinstance(value, dict) else {metric.name: value}
            numbers |= {str(name): float(number) for name, number in values.items()}
        except (KeyError, OSError, TypeError, ValueError) as error:
            reason = error.args[0] if isinstance(error, KeyError) else error
            if "could not convert" in str(reason) and metric.kind in ("text", "output"):
                reason = f"{reason}: let the group match the number alone, {NUMBER}"
            raise ValueError(f"--metric {metric.text}: {reason}") from error
    return numbers


def curves(metrics: Iterable[Metric], written: Written) -> dict[int, dict[str, float]]:
    """Return the numbers written while the script trained, by its steps, or else by 1, 2, ..."""
    lines: dict[int, dict[str, float]] = {}
    for metric in metrics:
        if metric.kind in SERIES and metric.name != "step":
            for step, value in _READERS[metric.kind](metric, written):
                with suppress(ValueError):
                    lines.setdefault(step, {})[metric.name] = float(value)
    return {step: lines[step] for step in sorted(lines) if lines[step]}


def _json(metric: Metric, written: Written) -> Any:
    text = written.text(metric.place)
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
        hint = f"add one of them, as in json:FILE:{metric.what}.KEY"
        raise ValueError(f"{metric.what!r} holds {', '.join(value)}: {hint}")
    return value


def _csv(metric: Metric, written: Written) -> Values:
    rows = csv.DictReader(written.text(metric.place).splitlines(keepends=True))
    cells = [cell for row in rows if (cell := row.get(metric.what))]
    check_known("no column", metric.what, rows.fieldnames or (), KeyError)
    return _numbered(cells, f"the column {metric.what!r} is empty")


def _tensorboard(metric: Metric, written: Written) -> Values:
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
    return sorted(values)


def _text(metric: Metric, written: Written) -> Values:
    """Return the matches in a file, or in the output of the script."""
    if metric.kind == "output":
        ends = " | ".join(line.strip() for line in printed(r"^(?! ).*\d.*$", written.log)[-3:])
        pairs = re.findall(r"([^\W\d][\w@/-]*)([^\w\n]*?)[-+]?\d", ends)
        patterns = {word: f"output:{word}{re.escape(gap)}{NUMBER}".replace("\\ ", " ") for word, gap in pairs}
        near = closest(metric.name, patterns)
        near = next((f" Did you mean '{patterns[word]}'?" for word in patterns if repr(word) in near), "")
        none = f"nothing in {written.log}, which is kept for another --metric, matches.{near} It ends in {ends}"
        return _numbered(printed(metric.what, written.log)[: written.most], none)
    return _numbered(re.findall(metric.what, written.text(metric.place), re.M), f"nothing in {metric.place} matches")


def printed(pattern: str, log: Path, whole: bool = False) -> list[str]:
    """Return the matches of a regular expression in lines of a log, as progress bars have them too; or ``whole`` ones.

    What this package prints, perhaps behind a bar, is not the script's own.
    """
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    if whole and lines and not lines[-1].endswith(("\n", "\r")):
        del lines[-1]
    parts = (line.partition("counterpoint: ") for line in lines)
    return re.findall(pattern, "\n".join(own.rstrip("\r\n") for own, ours, _ in parts if own or not ours) + "\n", re.M)


def _numbered(values: list[str], otherwise: str) -> Values:
    if not values:
        raise ValueError(otherwise)
    return [*enumerate(values, 1)]


def _items(metric: Metric, written: Written) -> float:
    from ..report.items import measure

    read = items.read(written.one(metric.place), metric.what)
    return float(measure(read.scores, read.gold).item())


def _script(metric: Metric, written: Written) -> object:
    scores = json.loads((written.out.parent / SCORES).read_text(encoding="utf-8"))
    if metric.text not in scores:
        raise KeyError("the script ran without it; --fresh runs it again")
    return scores[metric.text]


def function(metric: Metric) -> Callable[[Path | ModuleType], object]:
    """Return the function that a metric calls; its file may import its neighbours."""
    file = Path(metric.place)
    spec = util.spec_from_file_location(f"_counterpoint_metric_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.path.append(str(file.parent))
    spec.loader.exec_module(module)
    functions = {name: value for name, value in vars(module).items() if callable(value)}
    check_known(f"{file} has no function", metric.what, functions)
    return functions[metric.what]  # type: ignore[no-any-return]


_READERS: dict[str, Callable[[Metric, Written], Any]]
_READERS = {"json": _json, "csv": _csv, "text": _text, "output": _text, "tensorboard": _tensorboard}
_READERS |= dict.fromkeys(items.FORMS, _items)
_READERS |= {"python": lambda metric, written: function(metric)(written.out), "script": _script}
