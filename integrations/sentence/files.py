"""The folder of the benchmarks, and its text files, as lines and as tables separated by tabs.

Rows are split at line feeds and tabs only: quotes belong to the text.
"""

import os
import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

ENVIRONMENT = "COUNTERPOINT_DATA"
NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?\s*", re.IGNORECASE)  # neither nan nor inf
PLACES = ("", "sts", "transfer", "downstream", "data/downstream", "SentEval/data/downstream")


def root(data: str | Path | None = None) -> Path | None:
    """Return the folder of the benchmarks ``data``, or None for ``hub``; by default ``COUNTERPOINT_DATA``, else hub."""
    name = os.environ.get(ENVIRONMENT) or "hub" if data is None else data
    if str(name) == "hub":
        return None
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"data: {folder} is not a folder; expected one with sts/ and transfer/, or SentEval's.")
    return folder


def find(folder: Path, path: str) -> Path | None:
    """Return the path of a file or folder, there or where SentEval and this library put such files."""
    return next((file for place in PLACES if (file := folder / place / path).exists()), None)


def lines(path: Path, encoding: str = "utf-8") -> list[str]:
    """Read the lines of a text file, without line ends."""
    raw = path.read_bytes()
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        row = raw.count(b"\n", 0, error.start) + 1
        hint = "Convert the file, for instance with iconv -f latin1 -t utf-8."
        raise ValueError(f"{path}: line {row} is not {encoding}: byte 0x{raw[error.start]:02x}. {hint}") from None
    return [line.removesuffix("\n").removesuffix("\r") for line in StringIO(text.removeprefix("\ufeff"))]


def table(
    path: Path, columns: int, header: slice | None = None, more: bool = True, other: re.Pattern[str] | None = None
) -> Iterator[tuple[str, list[str]]]:
    """Yield the rows of a tab-separated file, each after its place for error messages; empty lines are skipped.

    ``header`` are the columns in which a number shows that the first line is a row; None if it always is. With ``more``
    rows may have further columns; without it, a tab is an error. Of a line like ``other``, the cells are its groups.
    """
    for number, line in enumerate(lines(path), 1):
        place = f"{path}: line {number}"
        cells = [*found.groups()] if other and (found := other.fullmatch(line)) else line.split("\t")
        if not line or (header and number == 1 and not any(map(NUMBER.fullmatch, cells[header]))):
            continue
        if len(cells) < columns or (len(cells) > columns and not more):
            raise ValueError(f"{place} has {len(cells)} columns, expected {columns} separated by tabs: {line[:60]!r}")
        yield place, cells
