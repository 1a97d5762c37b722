"""Docstrings with reStructuredText's roles, tables, literal blocks and examples, as Markdown; a griffe extension."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import griffe


def as_markdown(doc: str) -> str:
    doc = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", doc)
    parts = re.split(r"(\n[ \t]*\n)", doc)
    return "\n".join(_fenced("".join(_table(part) if part.lstrip().startswith("==") else part for part in parts)))


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _fenced(doc: str) -> Iterator[str]:
    """Fence what is indented after a line that ends in two colons, and examples with prompts."""
    lines = doc.split("\n")
    while lines:
        line, code = lines.pop(0), []
        pad = " " * _depth(line)
        if line.lstrip().startswith(">>>"):
            code, language = [line], "pycon"
            while lines and lines[0].strip():
                code.append(lines.pop(0))
        elif line.rstrip().endswith("::"):
            yield line.rstrip()[:-1]
            while lines and (not lines[0].strip() or _depth(lines[0]) > len(pad)):
                code.append(lines.pop(0))
            language = "text" if re.search(r"^\s*(ROOT/|counterpoint )", "\n".join(code), re.M) else "python"
        else:
            yield line
            continue
        while code and not code[-1].strip():
            code.pop()
        while code and not code[0].strip():
            code.pop(0)
        depth = min((_depth(one) for one in code if one.strip()), default=0)
        yield from ("", f"{pad}```{language}", *(pad + one[depth:] for one in code), f"{pad}```", "")


def _table(block: str) -> str:
    """A simple table: columns start where its rules do, and a row without a first cell continues the one before."""
    lines = block.strip("\n").split("\n")
    starts = [found.start() for found in re.finditer("=+", lines[0])]
    rules = [i for i, line in enumerate(lines) if not line.strip(" =")]
    rows: list[list[str]] = [] if len(rules) > 2 else [[""] * len(starts)]
    for i, line in enumerate(lines):
        if i not in rules:
            ends = [*starts[1:], len(line)]
            cells = [line[start:end].strip().replace("|", "\\|") for start, end in zip(starts, ends, strict=True)]
            if rows and not cells[0]:
                rows[-1] = [f"{one} {more}".strip() for one, more in zip(rows[-1], cells, strict=True)]
            else:
                rows.append(cells)
    rows.insert(1, ["---"] * len(starts))
    return "\n".join(f"{lines[0][: starts[0]]}| {' | '.join(row)} |" for row in rows)


def _of_attribute(obj: griffe.Object) -> str | None:
    """The docstring of a function that a class takes from a module, the help of a setting, or the comment behind it."""
    module, _, name = obj.module.imports.get(obj.name, "").rpartition(".")
    if module and isinstance(obj, griffe.Attribute) and str(obj.value) == obj.name:
        return inspect.getdoc(getattr(import_module(module), name))
    pattern = r'= setting\((?:"[^"]*"|[^"]*), "(.+?)"|  # (?!type:|pyright:|noqa)(.+)'
    told = re.search(pattern, obj.source, re.S) if obj.is_attribute else None
    return told and (told[1] or told[2].partition("\n")[0])


class Markdown(griffe.Extension):
    """Rewrites each docstring before it is parsed, and finds those of attributes."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is None and obj.parent is not None and obj.parent.is_class and (doc := _of_attribute(obj)):
            obj.docstring = griffe.Docstring(doc, parent=obj)
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
