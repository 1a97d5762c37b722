"""Commands from the files of ``--config``.

A file becomes flags that stand before those that were typed, so that typed ones override it. It maps flags to values,
or it is the ``run.json`` of a run.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from counterpoint.names import closest
from counterpoint.plugins.arguments import Parser

from ..domain import domain
from ..secrets import REDACTED
from .table import COMMANDS

FLAG = "--config"
COMMANDS_THAT_TRAIN = ("train ", "tune ", "compare", "race")
# where and how runs are trained; the file of a run does not set these
PLACE = ("out", "resume", "json", "jobs", "on", "track", "config")


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


def parser_of(name: str) -> Parser:
    parser = Parser(f"counterpoint {name}")
    COMMANDS[name].arguments(parser)
    return parser


def expand(name: str, words: Sequence[str]) -> list[str]:
    """Replace ``--config FILE`` among the words of a command, its name included, by the flags of the file."""
    if not name.startswith(COMMANDS_THAT_TRAIN):
        return list(words)
    parser = parser_of(name)
    typed = Line.split(words[len(name.split()) :], parser)
    given = [word.removeprefix(f"{FLAG}=") for dest, group in typed.groups if dest == "config" for word in group]
    file, *more = [word for word in given if word != FLAG] or [""]
    if not file or "help" in dict(typed.groups):
        return list(words)  # the parser says that a file is missing
    if more and (typed.host or name not in ("compare", "race")):
        raise ValueError(f"{FLAG}: expected one file, got {' '.join([file, *more])}.")
    try:
        read = _read(file, name, parser)
    except (ImportError, ValueError) as error:
        raise (ImportError if isinstance(error, ImportError) else ValueError)(f"{FLAG} {file}: {error}") from error
    typed = typed.without(["config"])
    kept = read.without([dest for dest, _ in typed.groups]).groups
    line = Line(typed.host or more or read.host, [*kept, *typed.groups], typed.script or read.script)
    return [*name.split(), *line.words()]


def _read(file: str, name: str, parser: Parser) -> Line:
    """Return the host of a comparison, the flags, and the script, as a file has them."""
    content = _load(file)
    if not isinstance(content, dict):
        raise ValueError(f"expected flags with their values, or a run.json, got {content!r:.60}.")
    if not isinstance(arguments := content.get("arguments"), dict):
        return Line.split(_words(content, parser), parser)
    if missing := {"dataset", "objective", "seed"} - arguments.keys():
        raise ValueError(f"not the record of a run; its arguments lack {', '.join(sorted(missing))}.")
    begun = recorded(content.get("command"))
    if begun is None or begun.name not in (name, name.replace("tune ", "train ")):
        hint = f"; expected counterpoint {begun.name} {FLAG} {file}" if begun else ""
        program = content.get("command") or "an unknown program"
        raise ValueError(f"it was begun by {program}, not by counterpoint {name}{hint}.")
    if any(REDACTED in word for word in begun.line.words()):
        raise ValueError("its command had a secret, which was not recorded: type the command again.")
    line = begun.of_run(arguments)
    return line if begun.name == name else line.without(["seed"])  # tune has others


def _load(file: str) -> object:
    """Read JSON, or YAML by the name's ending, at a path or URL; raise ``ValueError`` with the fault in one line."""
    from ..store.folder import plain
    from ..store.transport import connect

    folder, _, name = str(plain(file)).rpartition("/")
    if not name.endswith((".json", ".yaml", ".yml")):
        raise ValueError("expected a file whose name ends with .json, .yaml or .yml.")
    try:
        text = connect(folder or ("/" if file.startswith("/") else ".")).read(name)
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot be read ({error})") from None
    try:
        if name.endswith(".json"):
            return json.loads(text)
        import yaml  # type: ignore[import-untyped, unused-ignore]

        return yaml.safe_load(text)
    except ImportError as error:
        raise ImportError("needs PyYAML: pip install pyyaml; or write the file as JSON") from error
    except Exception as error:  # of either parser, RecursionError too
        raise ValueError(f"cannot be read: {' '.join(str(error).split())}") from None


def _words(content: Mapping[object, object], parser: Parser) -> list[str]:
    """Return the words for flags in a file: ``epochs: 5``, ``objective: [hcl, adnce]``, ``cosine: true``."""
    known = {word.removeprefix("--"): action for word, action in parser._option_string_actions.items()}
    host, words, script = list[str](), list[str](), list[str]()
    for key, value in content.items():
        name = "on" if key is True else str(key).replace("_", "-")  # YAML 1.1 reads on as true
        values = [str(one) for one in (value if isinstance(value, list) else [value])]
        if name == "host":
            host = values
        elif name == "script":
            script = ["--", *(shlex.split(value) if isinstance(value, str) else values)]
        elif name not in known or name == "config":
            raise ValueError(f"unknown key {name!r}.{closest(name, [*known, 'host', 'script'])}")
        elif value is True:
            words.append(f"--{name}")
        elif known[name].nargs == "+":
            words += [f"--{name}", *values]
        elif value not in (None, False):
            words += [f"--{name}={one}" for one in values]
    return [*host, *words, *script]


class Begun(NamedTuple):
    """The command that began a run, without where and how it trains."""

    name: str
    line: Line

    def of_run(self, arguments: Mapping[str, object]) -> Line:
        """Return the words that train this run alone."""
        if not self.name.startswith("train "):
            return self.line
        where = domain(self.name.removeprefix("train "))
        own = [("seed", ["--seed", str(arguments["seed"])])]
        if arguments["objective"] is not None:
            own.append(("objective", ["--objective", str(arguments["objective"])]))
        if any(dest == where.dataset and len(group) > 2 for dest, group in self.line.groups):  # one of several
            own.append((where.dataset, [f"--{where.dataset}", str(arguments["dataset"])]))
        rest = self.line.without(["seeds", *(dest for dest, _ in own)])
        return rest._replace(groups=[*rest.groups, *own])


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
