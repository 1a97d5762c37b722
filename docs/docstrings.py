"""Docstrings in reStructuredText's roles, literal blocks and tables, as Markdown; an extension of griffe."""

from __future__ import annotations

import re
from typing import Any

import griffe


def as_markdown(doc: str) -> str:
    doc = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", doc)
    parts = re.split(r"(\n[ \t]*\n)", doc)
    return _fenced("".join(_table(part) if part.lstrip().startswith("==") else part for part in parts))


def _fenced(doc: str) -> str:
    """Fence what is indented after a line that ends in two colons."""
    lines = doc.split("\n")
    out: list[str] = []
    i = 0
    while i < len(lines):
        line = lines[i]
        out.append(re.sub(r"::$", ":", line))
        i += 1
        if not line.rstrip().endswith("::") or line.lstrip().startswith(":::"):
            continue
        outer = len(line) - len(line.lstrip())
        literal: list[str] = []
        while i < len(lines) and (not lines[i].strip() or len(lines[i]) - len(lines[i].lstrip()) > outer):
            literal.append(lines[i])
            i += 1
        code = "\n".join(literal).strip("\n")
        depth = min((len(one) - len(one.lstrip()) for one in code.split("\n") if one.strip()), default=0)
        language = "text" if re.search(r"^\s*ROOT/|^\s*counterpoint ", code) else "python"
        body = "\n".join(one[depth:] for one in code.split("\n"))
        pad = " " * outer
        out += ["", f"{pad}```{language}", *(pad + one if one else one for one in body.split("\n")), f"{pad}```", ""]
    return "\n".join(out)


def _table(block: str) -> str:
    """A simple table of reStructuredText: columns start where its rules do; a row without a first cell continues."""
    lines = block.strip("\n").split("\n")
    rule = lines[0]
    starts = [found.start() for found in re.finditer(r"=+", rule)]
    ends = [*starts[1:], None]
    indent = " " * (len(rule) - len(rule.lstrip()))
    rules = [i for i, line in enumerate(lines) if line.strip() and not line.strip(" =")]
    rows: list[list[str]] = []
    for i, line in enumerate(lines):
        if i in rules:
            continue
        cells = [line[start:end].strip().replace("|", "\\|") for start, end in zip(starts, ends, strict=True)]
        if rows and not cells[0]:
            rows[-1] = [f"{one} {more}".strip() for one, more in zip(rows[-1], cells, strict=True)]
        else:
            rows.append(cells)
    if len(rules) == 2:
        rows.insert(0, [""] * len(starts))
    rows.insert(1, ["---"] * len(starts))
    return "\n".join(f"{indent}| {' | '.join(row)} |" for row in rows)


class Markdown(griffe.Extension):
    """Rewrites each docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
