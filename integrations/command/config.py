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
from typing import Any, NoReturn

from counterpoint.names import closest
from counterpoint.plugins.arguments import Parser

from ..domain import NAMES, Domain, domain
from ..store.secrets import REDACTED
from .table import COMMANDS

FLAG = "--config"
# where and how runs are trained; the file of a run does not set these
PLACE = ("out", "resume", "json", "jobs", "on", "track", "list_cells", "cell", "config")
RECORD = (  # what Run writes
    *("arguments", "status", "result", "details", "error", "data", "versions", "host", "command", "started"),
    *("seconds", "finished", "axis", "checksum"),
)
REQUIRED = ("domain", "dataset", "objective", "seed")
BESIDE = ("label", "purpose")  # of a cell, without a flag
NESTED = ("settings", "evaluation")  # of a cell: settings whose flags are those of the others


class _Reader(Parser):
    """A parser that raises, and takes every device, since nothing is trained with what it returns."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message.removeprefix("argument "))


def expand(name: str, words: Sequence[str]) -> list[str]:
    """Replace ``--config FILE`` among the words of a command by the flags that the file stands for.

    Args:
        name: of the command, such as ``train graph``.
        words: all words, those of the name included.
    """
    own = list(words[len(name.split()) :])
    end = own.index("--") if "--" in own else len(own)
    at = next((i for i, word in enumerate(own[:end]) if word.partition("=")[0] == FLAG), None)
    if at is None or not name.startswith(("train ", "tune ", "compare")) or {"-h", "--help"} & {*own[:end]}:
        return list(words)
    _, joined, file = own[at].partition("=")
    if not joined:
        if at + 1 >= end:
            return list(words)  # the parser says that a file is missing
        file = own.pop(at + 1)
    del own[at]
    parser = parser_of(name)
    typed = [*parser._joined(own[: own.index("--") if "--" in own else len(own)])]
    script = own[own.index("--") :] if "--" in own else []
    dests = {action.dest for word in typed if (action := parser._option_string_actions.get(word.partition("=")[0]))}
    host = [typed.pop(0)] if name == "compare" and typed and not typed[0].startswith("-") else []
    file_host, groups, file_script = _read(_place(file), name, parser)
    kept = [word for dest, group in groups if dest not in dests for word in group]
    return [*name.split(), *(host or file_host), *kept, *typed, *(script or file_script)]


def parser_of(name: str) -> Parser:
    """The parser of a command, which raises ``ValueError`` instead of leaving."""
    parser = _Reader(f"counterpoint {name}", add_help=False)
    COMMANDS[name].arguments(parser)
    if (device := parser._option_string_actions.get("--device")) is not None:
        device.type = str
    return parser


Groups = list[tuple[str, list[str]]]  # the name of an argument, the words that set it


def _read(path: str | Path, name: str, parser: Parser) -> tuple[list[str], Groups, list[str]]:
    """The host of a comparison, the flags, and the script with its arguments, as a file has them."""
    content = load(path)
    if not isinstance(content, dict):
        raise ValueError(f"{FLAG} {path}: expected flags with their values, or a run.json, got {content!r:.60}.")
    if not isinstance(arguments := content.get("arguments"), dict):
        return _plain(path, content, parser)
    for key in content:
        _check(path, key, RECORD)
    if missing := [key for key in REQUIRED if key not in arguments]:
        raise ValueError(f"{FLAG} {path}: not the record of a run; its arguments lack {', '.join(missing)}.")
    what, _, trained = name.partition(" ")
    recorded_name, words = recorded(content.get("command"))
    if any(REDACTED in word for word in words):
        raise ValueError(f"{FLAG} {path}: its command had a secret, which was not recorded: type the command again.")
    if what in ("tune", "compare") and recorded_name == name:
        return _split(words, parser)
    _use_threads(path, content.get("host"))
    own, tuning = arguments.get("domain"), arguments.get("purpose") is not None
    if what == "compare" or own != trained or (what == "train" and tuning):
        hint = recorded_name or (f"train {own}" if own in NAMES and not tuning else "")
        hint = f"; expected counterpoint {hint} {FLAG} {path}" if hint.startswith(("train", "tune", "compare")) else ""
        raise ValueError(f"{FLAG} {path}: a run of {'tune ' * tuning}{own}, not of {name}{hint}.")
    try:
        settings = settings_words(arguments, content.get("command"))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{FLAG} {path}: {error}") from error
    objective = ["--objective", arguments["objective"]] * (arguments["objective"] is not None)
    seed = ["--seed", str(arguments["seed"])] * (what == "train")  # those of tune are others
    return _split([*objective, *settings, *seed], parser)


def _use_threads(path: str | Path, host: Any) -> None:
    """Let torch have as many threads as the run had, since they change how sums are rounded; say so where it cannot."""
    threads = host.get("threads") if isinstance(host, dict) else None
    if not isinstance(threads, int):
        return
    if "torch" not in sys.modules and "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = str(threads)
    import torch

    if torch.get_num_threads() != threads:
        note = f"{path}: trained with {threads} threads, here are {torch.get_num_threads()}"
        print(f"{note}; sums may be rounded differently", file=sys.stderr)


def _place(file: str) -> str | Path:
    """The path of a file, or its URL, such as ``s3://bucket/runs/.../run.json``."""
    if "://" not in file:
        return Path(file)
    from ..store.place import plain

    return plain(file)


def _text(path: str | Path) -> str:
    try:
        if isinstance(path, Path):
            return path.read_text(encoding="utf-8")
        from ..store.transport import connect

        folder, _, name = path.rpartition("/")
        return connect(folder).read(name).decode()
    except FileNotFoundError:
        raise ValueError(f"{FLAG}: {path} does not exist") from None
    except (OSError, ValueError) as error:
        reason = str(error).removeprefix(f"{path}: ")
        raise ValueError(f"{FLAG} {path}: cannot be read ({reason})") from None


def load(path: str | Path) -> Any:
    """Read JSON, or YAML if the name ends so; raise ``ValueError`` with what is wrong in one line.

    Args:
        path: of the file, or its URL.
    """
    if isinstance(path, Path) and path.is_dir():
        raise ValueError(f"{FLAG}: {path} is a folder; expected a file, such as {path / 'run.json'}")
    suffix = Path(path).suffix
    if suffix not in (".json", ".yaml", ".yml"):
        raise ValueError(f"{FLAG} {path}: expected a file whose name ends with .json, .yaml or .yml.")
    text = _text(path)
    if suffix == ".json":
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{FLAG} {path}: not JSON: {error}") from None
    try:
        import yaml  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ImportError(f"{FLAG} {path}: needs PyYAML: pip install pyyaml; or write the file as JSON") from error
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{FLAG} {path}: not YAML: {' '.join(str(error).split())}") from None


def _check(path: str | Path, key: str, known: Iterable[str]) -> None:
    if key not in (known := list(known)):
        raise ValueError(f"{FLAG} {path}: unknown key {key!r}.{closest(str(key), known)}")


def _plain(path: str | Path, content: Mapping[Any, Any], parser: Parser) -> tuple[list[str], Groups, list[str]]:
    """Flags as a person writes them: ``epochs: 5``, ``objective: [hcl, adnce]``, ``cosine: true``."""
    actions = {word.removeprefix("--"): action for word, action in parser._option_string_actions.items()}
    actions = {word: action for word, action in actions.items() if word != "config"}
    positional = {action.dest: action for action in parser._actions if not action.option_strings}
    host: list[str] = []
    script: list[str] = []
    groups: Groups = []
    for key, value in content.items():
        name = "on" if key is True else str(key).replace("_", "-")  # YAML 1.1 reads on as true
        _check(path, name, [*actions, *positional])
        if value is None:
            continue
        if name in positional:
            words = shlex.split(value) if isinstance(value, str) else _texts(path, name, value)
            host, script = (words, script) if name == "host" else (host, ["--", *words])
        elif (action := actions[name]).nargs == 0:
            if not isinstance(value, bool):
                raise ValueError(f"{FLAG} {path}: {name}: expected true or false, got {value!r}.")
            groups += [(action.dest, [f"--{name}"])] * value
        elif isinstance(action, argparse._AppendAction):
            groups += [(action.dest, [f"--{name}", word]) for word in _texts(path, name, value)]
        else:
            groups.append((action.dest, _flag(name, _texts(path, name, value, many=action.nargs in ("+", "*")))))
    return host, groups, script


def _texts(path: str | Path, name: str, value: Any, many: bool = True) -> list[str]:
    """A value, or a list of them, as the words of a command line."""
    values = value if many and isinstance(value, list) else [value]
    for one in values:
        if isinstance(one, bool) or not isinstance(one, (str, int, float)):
            kind = "text, a number or a list of them" if many else "text or a number"
            raise ValueError(f"{FLAG} {path}: {name}: expected {kind}, got {one!r:.60}.")
    return [str(one) for one in values]


def _flag(name: str, values: list[str]) -> list[str]:
    """The words of a flag; one value that begins with ``-`` is joined to it."""
    if len(values) == 1 and values[0].startswith("-"):
        return [f"--{name}={values[0]}"]
    return [f"--{name}", *values]


def _split(words: Sequence[str], parser: Parser) -> tuple[list[str], Groups, list[str]]:
    """Split the words of a command into the host, a group for each flag, and the script."""
    end = list(words).index("--") if "--" in words else len(words)
    joined, script = parser._joined(words[:end]), list(words[end:])
    host: list[str] = []
    groups: Groups = []
    for word in joined:
        action = parser._option_string_actions.get(word.partition("=")[0])
        if action is not None:
            groups.append((action.dest, [word]))
        elif groups:
            groups[-1][1].append(word)
        else:
            host.append(word)
    return host, [(dest, group) for dest, group in groups if dest not in PLACE], script


# ---- from runs to commands ---------------------------------------------------------------------


def recorded(command: str | None) -> tuple[str, list[str]]:
    """The name of the command that began a run, and its other words; an empty name if it was a script."""
    try:
        program, *words = shlex.split(command or "")
    except ValueError:
        return "", []
    name = next((name for name in COMMANDS if words[: len(name.split())] == name.split()), "")
    is_ours = Path(program).stem == "counterpoint" or Path(program).parts[-2:] == ("counterpoint", "__main__.py")
    return (name, words[len(name.split()) :]) if is_ours and name else ("", [])


def recorded_command(command: str | None) -> str | None:
    """The command that began a run, without where and how it trains; None if it was a script."""
    name, words = recorded(command)
    if not name.startswith(("train ", "tune ", "compare")):
        return None
    host, groups, script = _split(words, parser_of(name))
    return shlex.join(["counterpoint", *name.split(), *host, *(word for _, group in groups for word in group), *script])


def settings_words(arguments: Mapping[str, Any], command: str | None = None) -> list[str]:
    """The flags of ``counterpoint train`` that give the settings of a cell, but for objective and seed.

    Args:
        arguments: of the run.
        command: the one that it records, for the folder of the data sets.

    Raises:
        ValueError: if no flag gives one of them, as with runs of your own Python code.
    """
    name = arguments["domain"]
    if name not in NAMES:
        raise ValueError(f"runs of {name} are not trained by counterpoint train.")
    where, parser = domain(name), parser_of(f"train {name}")
    dataset = arguments.get("file", arguments["dataset"])
    objective = ["--objective", arguments["objective"]] * (arguments["objective"] is not None)
    begin = [f"--{where.dataset}", str(dataset)]
    for key, value in (("observe", "state"), ("method", "swav")):  # without an objective
        begin += _flag(key, [value]) if arguments.get(key) == value else []
    flat, base = _flat(arguments), _flat(_cell(parser, [*begin, *objective], where))
    names = [
        word[2:].replace("-", "_") for word in parser._option_string_actions
    ]  # optional ones are not in every cell
    for key in flat:
        if key not in base and key not in names and key not in BESIDE:
            raise ValueError(f"unknown key {key!r}.{closest(key, [*base, *names])}")
    words: list[str] = []
    for key, value in flat.items():
        if key not in BESIDE and value != base.get(key) and key not in ("seed", "objective"):
            words += _setting(parser, key, value)
    again = _flat(_cell(parser, [*begin, *words, *objective], where))
    for key in flat:
        if key not in ("seed", "purpose") and flat[key] != again.get(key):
            raise ValueError(f"{key} is {flat[key]!r:.60}, which no flag of counterpoint train {name} gives.")
    return [*begin, *words, *_folder(where, command)]


def _setting(parser: Parser, key: str, value: Any) -> list[str]:
    name = key.replace("_", "-")
    if (action := parser._option_string_actions.get(f"--{name}")) is None or value is False:
        return []
    if action.nargs == 0:
        return [f"--{name}"]
    if value is None:
        return [f"--{name}", "none"] if key == "dev" else []
    return _flag(name, [str(one) for one in value] if isinstance(value, list) else [str(value)])


def _cell(parser: Parser, words: list[str], where: Domain) -> dict[str, Any]:
    """The cell that a command trains, for its first objective."""
    from ..store.cell import canonical

    found = parser.parse_args(words, argparse.Namespace())
    dataset = getattr(found, where.dataset)
    dataset = dataset[0] if isinstance(dataset, list) else dataset
    settings = where.module("commands").settings(found, dataset)
    return canonical(where.module("training").cell(dataset, (found.objective or [None])[0], found.seed, **settings))


def _flat(cell: Mapping[str, Any]) -> dict[str, Any]:
    """A cell with what it nests beside the rest."""
    flat = {key: value for key, value in cell.items() if key not in NESTED}
    for key in NESTED:
        flat |= cell.get(key) or {}
    return flat


def _folder(where: Domain, command: str | None) -> list[str]:
    """The flag that named the folder of the data sets, which a cell does not contain."""
    name, words = recorded(command)
    if where.folder is None or name.partition(" ")[2] != where.name:
        return []
    groups = _split(words, parser_of(f"train {where.name}"))[1]
    return next((group for dest, group in groups if dest == where.folder), [])
