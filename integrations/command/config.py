"""Commands from files, and back: what ``--config`` reads, and the command that ``counterpoint show`` prints.

A file becomes flags that stand before those that were typed, so that typed ones override it. It maps flags to values,
or it is the ``run.json`` of a run.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from counterpoint.names import closest
from counterpoint.plugins.arguments import Parser

from ..domain import domain
from ..store.secrets import REDACTED
from .table import COMMANDS

FLAG = "--config"
COMMANDS_THAT_TRAIN = ("train ", "tune ", "compare")
# where and how runs are trained; the file of a run does not set these
PLACE = ("out", "resume", "json", "jobs", "on", "track", "config")
REQUIRED = ("domain", "dataset", "objective", "seed")


class Line(NamedTuple):
    """The words of a command: the host of a comparison, those of each flag with the argument they set, the script."""

    host: list[str]
    groups: list[tuple[str, list[str]]]
    script: list[str]  # begins with --

    @classmethod
    def split(cls, words: Sequence[str], parser: Parser) -> Line:
        """Split the words after a command's name."""
        end = words.index("--") if "--" in words else len(words)
        line = cls([], [], list(words[end:]))
        for word in parser._joined(words[:end]):
            if (action := parser._option_string_actions.get(word.partition("=")[0])) is not None:
                line.groups.append((action.dest, [word]))
            else:
                (line.groups[-1][1] if line.groups else line.host).append(word)
        return line

    def without(self, dests: Iterable[str]) -> Line:
        """Leave out the flags that set these arguments."""
        return self._replace(groups=[group for group in self.groups if group[0] not in dests])

    def words(self) -> list[str]:
        return [*self.host, *(word for _, group in self.groups for word in group), *self.script]


class _Reader(Parser):
    """A parser that raises, and takes every device, since nothing is trained with what it returns."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message.removeprefix("argument "))


def parser_of(name: str) -> Parser:
    """The parser of a command, which raises ``ValueError`` instead of leaving."""
    parser = _Reader(f"counterpoint {name}", add_help=False)
    COMMANDS[name].arguments(parser)
    if (device := parser._option_string_actions.get("--device")) is not None:
        device.type = str
    return parser


def expand(name: str, words: Sequence[str]) -> list[str]:
    """Replace ``--config FILE`` among the words of a command by the flags that the file stands for.

    Args:
        name: of the command, such as ``train graph``.
        words: all words, those of the name included.
    """
    own = list(words[len(name.split()) :])
    flags = own[: own.index("--")] if "--" in own else own
    at = next((i for i, word in enumerate(flags) if word.partition("=")[0] == FLAG), None)
    if at is None or not name.startswith(COMMANDS_THAT_TRAIN) or {"-h", "--help"} & {*flags}:
        return list(words)
    _, joined, file = own[at].partition("=")
    after = at + 1 if joined else at + 2
    if after > len(flags):
        return list(words)  # the parser says that a file is missing
    parser, place = parser_of(name), _place(file if joined else own[at + 1])
    typed = Line.split([*own[:at], *own[after:]], parser)
    try:
        read = _read(place, name, parser)
    except (ImportError, TypeError, ValueError) as error:
        kind = ImportError if isinstance(error, ImportError) else ValueError
        raise kind(f"{FLAG} {place}: {error}") from error
    kept = read.without([dest for dest, _ in typed.groups]).groups
    line = Line(typed.host or read.host, [*kept, *typed.groups], typed.script or read.script)
    return [*name.split(), *line.words()]


def _read(place: str | Path, name: str, parser: Parser) -> Line:
    """Return the host of a comparison, the flags, and the script, as a file has them."""
    content = _load(place)
    if not isinstance(content, dict):
        raise ValueError(f"expected flags with their values, or a run.json, got {content!r:.60}.")
    if not isinstance(arguments := content.get("arguments"), dict):
        return _flags_of(content, parser)
    if missing := [key for key in REQUIRED if key not in arguments]:
        raise ValueError(f"not the record of a run; its arguments lack {', '.join(missing)}.")
    begun = recorded(content.get("command"))
    if begun is None or begun.name not in (name, name.replace("tune ", "train ")):
        hint = f"; expected counterpoint {begun.name} {FLAG} {place}" if begun else ""
        raise ValueError(f"{begun_by(content.get('command'))}, not by counterpoint {name}{hint}.")
    if any(REDACTED in word for word in begun.line.words()):
        raise ValueError("its command had a secret, which was not recorded: type the command again.")
    if begun.name != name:
        return begun.of_run(arguments).without(["seed"])  # tune has others
    if not name.startswith("train "):
        return begun.line
    _use_threads(place, content.get("host"))
    line = begun.of_run(arguments)
    cell = _cell(line.words(), name.removeprefix("train "))
    for key, value in arguments.items():
        if arguments["objective"] is not None and cell.get(key) != value:
            message = f"{key} was {value!r:.60}, and the recorded command now gives {cell.get(key)!r:.60}"
            raise ValueError(f"{message}: type the command.")
    return line


def _use_threads(place: str | Path, host: Any) -> None:
    """Let torch have as many threads as the run had, since they change how sums are rounded; say so where it cannot."""
    threads = host.get("threads") if isinstance(host, dict) else None
    if not isinstance(threads, int):
        return
    if "torch" not in sys.modules and "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = str(threads)
    import torch

    if torch.get_num_threads() != threads:
        note = f"{place}: trained with {threads} threads, here are {torch.get_num_threads()}"
        print(f"{note}; sums may be rounded differently", file=sys.stderr)


def _place(file: str) -> str | Path:
    """Return the path of a file, or its URL, such as ``s3://bucket/runs/.../run.json``."""
    if "://" not in file:
        return Path(file)
    from ..store.place import plain

    return plain(file)


def _content(url: str) -> bytes:
    from ..store.transport import connect

    folder, _, name = url.rpartition("/")
    return connect(folder).read(name)


def _load(place: str | Path) -> Any:
    """Read JSON, or YAML by the name's ending; raise ``ValueError`` with the fault in one line."""
    if isinstance(place, Path) and place.is_dir():
        raise ValueError(f"is a folder; expected a file, such as {place / 'run.json'}")
    suffix = Path(place).suffix
    if suffix not in (".json", ".yaml", ".yml"):
        raise ValueError("expected a file whose name ends with .json, .yaml or .yml.")
    try:
        text = place.read_text(encoding="utf-8") if isinstance(place, Path) else _content(place).decode()
    except FileNotFoundError:
        raise ValueError("does not exist") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot be read ({str(error).removeprefix(f'{place}: ')})") from None
    try:
        if suffix == ".json":
            return json.loads(text)
        import yaml  # type: ignore[import-untyped, unused-ignore]

        return yaml.safe_load(text)
    except ImportError as error:
        raise ImportError("needs PyYAML: pip install pyyaml; or write the file as JSON") from error
    except Exception as error:  # of either parser, RecursionError too
        kind = "JSON" if suffix == ".json" else "YAML"
        raise ValueError(f"not {kind}: {' '.join(str(error).split())}") from None


def _flags_of(content: Mapping[Any, Any], parser: Parser) -> Line:
    """Return the flags that a person has written: ``epochs: 5``, ``objective: [hcl, adnce]``, ``cosine: true``."""
    known = {(action.option_strings or [action.dest])[0].removeprefix("--"): action for action in parser._actions}
    known |= {word.removeprefix("--"): action for word, action in parser._option_string_actions.items()}
    del known["config"]
    words: dict[str, list[str]] = {"host": [], "flags": [], "script": []}
    for key, value in content.items():
        name = "on" if key is True else str(key).replace("_", "-")  # YAML 1.1 reads on as true
        if name not in known:
            raise ValueError(f"unknown key {name!r}.{closest(name, known)}")
        action, values = known[name], value if isinstance(value, list) else [value]
        if value is None or (action.nargs == 0 and value is False):
            continue
        if action.nargs == 0 and value is not True:
            raise ValueError(f"{name}: expected true or false, got {value!r}.")
        repeated = isinstance(action, argparse._AppendAction)
        several = repeated or action.nargs in ("+", "*", argparse.REMAINDER)
        if action.nargs != 0 and not all(isinstance(one, (str, int, float)) and one is not True for one in values):
            raise ValueError(f"{name}: expected text, a number or a list of them, got {value!r:.60}.")
        if len(values) > 1 and not several:
            raise ValueError(f"{name}: expected text or a number, got {value!r:.60}.")
        texts = list(map(str, values))
        if name == "script":
            words[name] = ["--", *(shlex.split(value) if isinstance(value, str) else texts)]
        elif name == "host":
            words[name] = texts
        else:
            groups = [[one] for one in texts] if repeated else [texts] if action.nargs != 0 else [[]]
            words["flags"] += [word for group in groups for word in _flag(name, group)]
    return Line.split([*words["host"], *words["flags"], *words["script"]], parser)


def _flag(name: str, values: list[str]) -> list[str]:
    """Return the words of a flag; one value that begins with ``-`` is joined to it."""
    if len(values) == 1 and values[0].startswith("-"):
        return [f"--{name}={values[0]}"]
    return [f"--{name}", *values]


# ---- from runs to commands ---------------------------------------------------------------------


class Begun(NamedTuple):
    """The command that began a run, without where and how it trains."""

    name: str
    line: Line

    def of_run(self, arguments: Mapping[str, Any]) -> Line:
        """Return the words that train this run alone."""
        if not self.name.startswith("train "):
            return self.line
        where = domain(self.name.removeprefix("train "))
        own = [("seed", ["--seed", str(arguments["seed"])])]
        if arguments["objective"] is not None:
            own.append(("objective", ["--objective", arguments["objective"]]))
        if any(dest == where.dataset and len(group) > 2 for dest, group in self.line.groups):  # one of several
            own.append((where.dataset, [f"--{where.dataset}", arguments["dataset"]]))
        rest = self.line.without(["seeds", *(dest for dest, _ in own)])
        return rest._replace(groups=[*rest.groups, *own])

    def command(self, line: Line) -> str:
        return shlex.join(["counterpoint", *self.name.split(), *line.words()])


def recorded(command: str | None) -> Begun | None:
    """Read the command that a run has recorded; None if it is not one that trains."""
    try:
        program, *words = shlex.split(command or "")
    except ValueError:
        return None
    name = next((name for name in COMMANDS if words[: len(name.split())] == name.split()), "")
    is_ours = Path(program).stem == "counterpoint" or Path(program).parts[-2:] == ("counterpoint", "__main__.py")
    if not is_ours or not name.startswith(COMMANDS_THAT_TRAIN):
        return None
    return Begun(name, Line.split(words[len(name.split()) :], parser_of(name)).without(PLACE))


def begun_by(command: str | None) -> str:
    """Name the command or the code that began a run."""
    return f"it was begun by {command or 'an unknown program'}"


def _cell(words: Sequence[str], domain_name: str) -> dict[str, Any]:
    """Return the cell that ``counterpoint train`` trains with these words, for its first objective."""
    from ..store.cell import canonical

    where, found = domain(domain_name), parser_of(f"train {domain_name}").parse_args(words, argparse.Namespace())
    dataset = getattr(found, where.dataset) or where.default_dataset
    dataset = dataset[0] if isinstance(dataset, list) else dataset
    settings = where.module("commands").settings(found, dataset)
    return canonical(where.module("training").cell(dataset, (found.objective or [None])[0], found.seed, **settings))
