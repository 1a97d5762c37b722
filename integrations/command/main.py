"""The command line, ``counterpoint COMMAND ...``, of the commands in :data:`.table.COMMANDS`.

Parsers, ``--help`` and usage errors need no torch: this module and those that add arguments import only the standard
library. What a command runs is imported after its arguments are parsed.
"""

import argparse
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import counterpoint
from counterpoint.plugins.arguments import Parser
from counterpoint.plugins.printing import print_lines

from .table import COMMANDS, GROUPS


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the words after ``counterpoint``. By default those of the process, which then also ends in one line if
            Ctrl-C or SIGTERM arrives while torch is being imported, or while Python exits.

    Returns:
        The exit code: 0 on success; 1 if part of the work failed, such as some runs of a grid; 2 if the command cannot
        be carried out; 130 after Ctrl-C or SIGTERM, when the same command continues. One line on stderr says why.
    """
    if argv is not None:
        return _run(list(argv))
    _accept_any_stream()
    usual = (signal.default_int_handler, signal.SIG_DFL)  # not under nohup
    handled = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) in usual]
    for number in handled:
        signal.signal(number, _exit_at_once)
    code = _run(sys.argv[1:])
    for number in handled:  # only Python's own exit is left, which would print a traceback
        signal.signal(number, signal.SIG_IGN)
    return code


def _run(words: list[str]) -> int:
    name = next((name for name in COMMANDS if words[: len(name.split())] == name.split()), "")
    options = None
    try:
        if any(word.startswith("--config") for word in words):
            from .config import expand

            expanded = expand(name, words)
            if sys.argv[1:] == words:  # which runs record
                sys.argv[1:] = expanded
            words = expanded
        options = build(name).parse_args(words, argparse.Namespace(words=words[len(name.split()) :]))
        if check := getattr(options, "check", None):  # names and files, before anything heavy is imported
            check(options)
        _import_torch(COMMANDS[name].script)
        from ..store.progress import plain_warnings

        with plain_warnings():
            code = COMMANDS[name].run(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, such as head, has closed the pipe; Python would complain again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ImportError, KeyboardInterrupt, OSError, RuntimeError, ValueError) as error:
        if options is not None and COMMANDS[name].script:
            raise
        code, message = _failure(error, "stopped" if options else "stopped; nothing was done yet")
    print_lines(f"counterpoint {name}: {message}", file=sys.stderr)
    return code


def _failure(error: BaseException, stopped: str) -> tuple[int, str]:
    """Return the exit code and the message of an error; raise it if it is a fault of the program."""
    from ..store.errors import GridError

    if isinstance(error, RuntimeError) and isinstance(error.__cause__, KeyboardInterrupt):
        error = error.__cause__  # as Python before 3.12 wraps it where a class is created
    if isinstance(error, KeyboardInterrupt):
        return 130, str(error) or stopped
    if isinstance(error, RuntimeError) and not isinstance(error, GridError):
        raise error
    return 1 if isinstance(error, GridError) else 2, str(error).partition("\n")[0]


def _exit_at_once(*_: object) -> None:
    """Handle a signal while torch is imported, which takes seconds and must not be left half done."""
    os.write(2, b"counterpoint: stopped; nothing was done yet\n")
    os._exit(130)


def _import_torch(script: bool) -> None:
    """Import torch, then let Ctrl-C raise ``KeyboardInterrupt``, and SIGTERM too where no ``script`` runs here."""
    import torch  # noqa: F401

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is _exit_at_once:
            ends = script and number == signal.SIGTERM
            signal.signal(number, signal.SIG_DFL if ends else signal.default_int_handler)


def _accept_any_stream() -> None:
    """Let printing never fail on a closed or ASCII-only stream."""
    for name in ("stdout", "stderr"):
        if (stream := getattr(sys, name)) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def build(name: str = "") -> argparse.ArgumentParser:
    """Build the parser of all commands, with the arguments of the one named, or of every one if ``name`` is ``*``."""
    style: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    about = (counterpoint.__doc__ or "").partition("\n")[0]
    more = "counterpoint COMMAND --help shows the flags of a command, and examples."
    parser = Parser("counterpoint", description=about, epilog=more, **style)
    parser.add_argument("--version", action="version", version=f"counterpoint {counterpoint.__version__}")
    tables: dict[str, Any] = {"": parser.add_subparsers(title="commands", metavar="COMMAND", required=True)}
    for full_name, command in COMMANDS.items():
        group, _, last = full_name.rpartition(" ")
        if group not in tables:
            members = [other.partition(" ")[2] for other in COMMANDS if other.startswith(f"{group} ")]
            subparser = tables[""].add_parser(group, help=f"{GROUPS[group]}: {', '.join(members)}", **style)
            tables[group] = subparser.add_subparsers(title="commands", metavar="|".join(members), required=True)
        examples = "examples:\n" + "".join(f"  counterpoint {example}\n" for example in command.examples)
        words = {"help": command.help, "description": command.help, "epilog": examples}
        subparser = tables[group].add_parser(last, **style, **words)
        if name in (full_name, "*"):
            command.arguments(subparser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
