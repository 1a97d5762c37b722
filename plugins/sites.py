"""Places in a script's source, ``FILE:LINE`` or ``FILE:FUNCTION``, and the objects named there."""

from __future__ import annotations

import ast
import fnmatch
import functools
import os
import sys
from collections import ChainMap
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch
from torch import Tensor

import counterpoint
from counterpoint.names import nearest

from .host import SeamError
from .paths import WHERE, at_path

CHANGING = "changing"  # as --scale: measured in every call
_TORCH = f"{Path(torch.__file__).parent}{os.sep}"  # not torchvision
_PYTHON = f"{Path(os.__file__).parent}{os.sep}"
_RUNPY = ("<frozen runpy>", f"{_PYTHON}runpy.py")  # from Python 3.11 on, and before
_OWN = tuple(f"{Path(file).parent}{os.sep}" for file in (counterpoint.__file__, __file__))


@dataclass(frozen=True)
class Site:
    """A line or a function of a file."""

    text: str  # as you wrote it
    file: str  # the end of the file's path
    line: int | None  # its number, or None for a whole function
    function: str  # its qualified name, ``ClipLoss.forward``, or ``*.forward`` in any class

    @classmethod
    def parse(cls, text: str, option: str = "--site") -> Site:
        file, _, place = text.rpartition(":")
        if not file or not (place.isdigit() or all(part == "*" or part.isidentifier() for part in place.split("."))):
            raise SeamError(f"{option} {text!r}: expected FILE:LINE or FILE:FUNCTION, as in loss.py:ClipLoss.forward")
        return cls(text, file, int(place) if place.isdigit() else None, "" if place.isdigit() else place)

    def check(self, module: ModuleType) -> None:
        """Raise an error if the file of a module is this one, and has no such function, or no call on the line."""
        file, line = str(getattr(module, "__file__", None)), self.line or 0
        if not is_file(file, self.file) or is_installed(file):
            return
        if (exact := Path(self.file)).is_file() and not exact.samefile(file):
            return
        nodes = [node for node in ast.walk(_parsed(file)) if isinstance(node, (ast.Call, ast.BinOp, ast.AugAssign))]
        lines = {getattr(node, "func", node).end_lineno or 0 for node in nodes} | {node.lineno for node in nodes}
        if line in lines or (not line and fnmatch.filter(functions(file), self.function)):
            return
        near = min(lines, key=lambda other: abs(other - line), default="none")
        wrong = f"calls nothing on this line; the nearest line that does: {near}."
        wrong = wrong if line else f"does not define it.{nearest(self.function, functions(file))}"
        raise SeamError(f"{self.text}: {short(file)} {wrong} If you mean another file, give more of its path.")

    def covers(self, file: str, line: int) -> bool:
        """Return whether the line ``line`` of ``file`` is here."""
        if not is_file(file, self.file):
            return False
        if self.line is not None:
            return line == self.line
        inside = functions(file)
        names = fnmatch.filter(inside, self.function) if "*" in self.function else [self.function]
        return any(first <= line <= last for name in names for first, last in inside.get(name, ()))


def caller() -> FrameType:
    """Return the frame outside torch that called the function which calls this."""
    frame = sys._getframe(2)
    while is_of_torch(frame.f_code.co_filename) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def names_at(frame: FrameType | None) -> ChainMap[str, Any]:
    """Return the names that the function at ``frame`` has, and, behind these, those of its callers in the script."""
    scopes: list[dict[str, Any]] = []
    while frame is not None:
        hidden = is_own(frame) or is_of_torch(file := frame.f_code.co_filename) or file in _RUNPY
        here = {WHERE: f"{frame.f_code.co_name} ({place(frame)})"}
        scopes += [] if hidden else [{**frame.f_locals, **here}, frame.f_globals]
        frame = frame.f_back
    return ChainMap(*scopes)


def is_own(frame: FrameType) -> bool:
    """Return whether a call comes from this library."""
    return frame.f_code.co_filename.startswith(_OWN)


def is_installed(file: str) -> bool:
    """Return whether ``file`` belongs to an installed package or to Python, rather than to the user."""
    return file.startswith((_PYTHON, "<frozen ")) or not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def is_of_torch(file: str) -> bool:
    return file.startswith(_TORCH)


def named(path: str, frame: FrameType, **words: object) -> Any:
    """Return the object ``self.model.logit_scale.exp`` of ``frame``, or of the first of its callers that has the name.

    A last attribute that is a method is called, also before ``.reciprocal``. Errors may suggest ``words``, too.
    """
    value = at_path(path.removesuffix(".reciprocal"), names_at(frame).new_child(words), error=SeamError)
    value = value() if callable(value) and not isinstance(value, Tensor) else value
    return 1 / value if path.endswith(".reciprocal") else value


def place(frame: FrameType) -> str:
    """Return ``FILE:LINE``, relative to the working directory if the file is below it."""
    return f"{short(frame.f_code.co_filename)}:{frame.f_lineno}"


def short(file: str) -> str:
    return file.removeprefix(f"{os.getcwd()}{os.sep}")


@functools.lru_cache(4096)
def is_file(file: str, name: str) -> bool:
    """Return whether ``name`` is ``file``, or the end of its path, which may have ``*``."""
    if not fnmatch.fnmatchcase(os.path.basename(file), os.path.basename(name)):
        return False
    path, tail = Path(file), Path(name).parts
    return path.parts[-len(tail) :] == tail or path.match(name) or path.resolve() == Path(name).resolve()


@functools.lru_cache
def functions(file: str) -> dict[str, list[tuple[int, int]]]:
    """Return the first and last lines of the functions in a file, by qualified name."""
    lines: dict[str, list[tuple[int, int]]] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = prefix + child.name
                if not isinstance(child, ast.ClassDef):
                    lines.setdefault(name, []).append((child.lineno, child.end_lineno or child.lineno))
                visit(child, f"{name}.")
            else:
                visit(child, prefix)

    visit(_parsed(file), "")
    return lines


def _parsed(file: str) -> ast.Module:
    return ast.parse(Path(file).read_bytes())
