"""Lines for a terminal, on which names must not send escape sequences or forge lines."""

import re
import sys
from typing import TextIO


def visible(text: str) -> str:
    """Return a text in one line, with escapes for characters that would move, color or reorder it on a terminal."""
    hidden = r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
    return re.sub(hidden, lambda found: found[0].encode("unicode_escape").decode(), text)


def print_lines(*lines: str, file: TextIO | None = None) -> None:
    """Print each text as one :func:`visible` line."""
    print(*map(visible, lines), sep="\n", file=file or sys.stdout, flush=True)
