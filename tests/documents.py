"""The command lines in a Markdown document."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMAND = re.compile(r"(?:make|pip|counterpoint|python) \S")


def commands(text: str) -> Iterator[list[str]]:
    """The commands in fences without a language, in indented lines, and in backticks; without comments, in order.

    Those with an ellipsis are patterns and no commands.
    """
    fence = None
    for line in text.splitlines():
        if line.startswith("```"):
            fence = None if fence is not None else line[3:].strip()
            continue
        if fence == "" or (fence is None and line.startswith("    ")):
            said = [line.strip()]
        else:
            said = [] if fence is not None else re.findall(r"`([^`]+)`", line)
        for one in said:
            typed = re.split(r"\s+#|\s{3,}|\s>\s", re.sub(r"^cd \S+ && ", "", one))[0]
            if COMMAND.match(typed) and "..." not in typed:
                yield shlex.split(typed)
