"""The parser of all commands: an error is one line that names the nearest known word."""

import argparse
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

from counterpoint.names import OBJECTIVES, RULES, TOLD, closest, nearest

from .printing import visible

DATA = ("--task", "--data")  # take the name of a data set
LAUNCHERS = ("torchrun", "accelerate", "accelerate-launch", "deepspeed")


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that suggests the nearest flag, command or choice, and does not print the usage."""

    take_flags: tuple[str, ...] = ()  # flags whose values are flags of another program, as in --seed-flag --seed

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        message = re.sub("invalid (?:float|int) value: ", "expected a number, got ", message).removeprefix("argument ")
        lines = f"{self.prog}: {message}\nsee {self.prog} --help".split("\n")  # of a spec, with a caret
        self.exit(2, "\n".join(map(visible, lines)) + "\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            command = isinstance(action, argparse._SubParsersAction)
            message = f"unknown {'command' if command else action.dest} {value!r}.{nearest(str(value), action.choices)}"
            raise argparse.ArgumentError(action if action.option_strings else None, message)

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        words = self._joined(sys.argv[1:] if args is None else args)
        if self._subparsers and words and words[0].startswith("-") and words[0] not in self._option_string_actions:
            self.refuse(words[0])  # argparse would say that the command is missing
        parsed, unknown = super().parse_known_args(words, namespace)
        if unknown:
            # of -xy, where -y alone is unknown, no word is -y
            self.refuse(unknown[0], *(words[: words.index(unknown[0])] if unknown[0] in words else [])[-2:-1])
        return parsed, unknown

    def _joined(self, words: Sequence[str]) -> list[str]:
        """Join ``take_flags`` before ``--`` and their values, which argparse would take for flags of its own."""
        joined: list[str] = []
        for word in words:
            if joined and joined[-1] in self.take_flags and "--" not in joined:
                joined[-1] += f"={word}"
            else:
                joined.append(word)
        return joined

    def refuse(self, word: str, before: str = "") -> NoReturn:
        """End with an error about a word that does not belong here, behind the value of the flag ``before``."""
        flag, known = word.partition("=")[0], self._option_string_actions
        if word.startswith("-"):
            long = [option for option in known if option.lstrip("-").startswith(flag.lstrip("-"))]  # -o for --objective
            if flag in ("--temperature", "--tau", "-t") and "--objective" in known:
                self.error(f"unknown flag {flag}. Give it to the objective: --objective infonce:t=0.2")
            near = closest(flag.lstrip("-"), [option[2:] for option in known]).replace(" '", " '--")
            if flag[2:] in [action.dest for action in self._actions if not action.option_strings]:
                self.error(f"unknown flag {flag}. What it names stands alone, without a flag.")
            for name in (name for name in DATA if name in known and flag in (*DATA, "--dataset", "--domain", "--env")):
                near = near or f" Did you mean {name!r}?"
            self.error(f"unknown flag {flag}.{f' Did you mean {long[0]!r}?' if long else near}")
        if word.endswith(".py") and "--site" in known:  # flags of commands that run a script
            self.error(f"unexpected {word!r}. A script and its own arguments stand behind --: -- {word} ...")
        if word.endswith(".json") and "--json" in known and known["--json"].nargs == 0:
            self.error(f"unexpected {word!r}: --json takes no file, it prints to standard output: --json > {word}")
        values = known[before].choices or () if before in known and known[before].nargs is None else None
        if values is not None and (word in values or re.fullmatch(r"[\d.]+(e-?\d+)?", word)):
            again = f"; repeat it: {before} {word}" * isinstance(known[before].default, (list, tuple))
            self.error(f"unexpected {word!r}: {before} takes one value{again}.")
        chosen = [name for name, action in known.items() if word in (action.choices or ()) and name.startswith("--")]
        data = [*chosen, *(name for name in (*["--objective"] * is_spec(word), *DATA) if name in known)]
        one = " It takes one." if data and known[data[0]].nargs is None and data[0] not in chosen else ""
        few = f" Known: {', '.join(name for name in known if name.startswith('--'))}." * (len(known) <= 8)
        self.error(f"unexpected {word!r}." + (f" Did you mean {data[0]} {shlex.quote(word)}?{one}" if data else few))


def is_spec(text: str) -> bool:
    """Return whether this is meant as an objective or a treatment: it begins with the name of one, or ``host``."""
    return re.split(r"\W", text.strip(), maxsplit=1)[0] in (*OBJECTIVES, "host")


def as_flags(options: Mapping[str, Any]) -> list[str]:
    """Return options by name, such as ``{"allow_drift": True, "site": [...]}``, as words of a command line."""
    every = [(name, x) for name, value in options.items() for x in (value if isinstance(value, list) else [value])]
    known = [(f"--{name.replace('_', '-')}", x) for name, x in every if x is not None and x is not False]
    return [flag if x is True else f"{flag}={x}" for flag, x in known]


def split_launcher(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the words behind ``--`` into a launcher with its options, if there is one, and the script's.

    >>> split_launcher(["torchrun", "--nproc-per-node", "2", "train.py", "--epochs", "1"])
    (['torchrun', '--nproc-per-node', '2'], ['train.py', '--epochs', '1'])
    """
    module = words.index("torch.distributed.run") if "torch.distributed.run" in words[:5] else 0
    if not module and (not words or Path(words[0]).name not in LAUNCHERS):
        return [], [*words]
    begins = (i for i in range(module + 1, len(words)) if words[i].endswith(".py") or words[i] in ("-m", "--module"))
    at = next(begins, len(words))
    return [*words[:at]], ["-m" if word == "--module" else word for word in words[at : at + 1]] + [*words[at + 1 :]]


def no_script(words: Sequence[str]) -> str:
    """Return the message for a script that does not exist, or is a folder; its own arguments follow it."""
    path = Path(words[0])
    if path.is_dir():
        return f"{path} is a folder; expected a script, such as {next(path.glob('*.py'), path / 'train.py')}"
    if path.name.startswith("python"):
        return f"script not found: {path}. Leave the interpreter out: the script itself stands behind --."
    if rows := [*takewhile(is_spec, words)]:
        rest = words[len(rows) :] or ["train.py"]
        typed = shlex.join(["--objective", *rows, *["--"] * ("--" not in rest), *rest])
        return f"unexpected {words[0]!r}: objectives follow --objective, and the script --, as in: {typed}"
    if re.split(r"\W", words[0], maxsplit=1)[0] in (*TOLD, *RULES):
        treatment = f"--objective {shlex.quote(f'host; {words[0]}')} -- train.py"
        return f"unexpected {words[0]!r}: it stands behind an objective, or behind host, as in: {treatment}"
    if shutil.which(words[0]) and len(words) > 1:
        return f"script not found: {path}. Of launchers, {', '.join(LAUNCHERS)} are known."
    return f"script not found: {path}.{closest(path.name, [other.name for other in path.parent.glob('*.py')])}"
