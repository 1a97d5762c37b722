"""The parsers of all commands."""

from __future__ import annotations

import argparse

from counterpoint.integrations.command.table import COMMANDS
from counterpoint.plugins.arguments import Parser


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command."""
    found: dict[str, argparse.ArgumentParser] = {name: Parser(f"counterpoint {name}") for name in COMMANDS}
    for name, parser in found.items():
        COMMANDS[name].arguments(parser)
    return found
