"""The grammar of specs, ``arcl(adnce:mu=0.7,t=0.2) + 0.1*dp``. See :func:`counterpoint.objective`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from importlib import import_module, metadata
from typing import Any

from .names import OBJECTIVES, nearest, unknown_objective

NAME = re.compile(r"[a-z][a-z0-9_]*")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_OBJECTIVE = re.compile(r"(?:^|[(+*])\s*([A-Za-z_][A-Za-z0-9_]*)")
CALLS = {"schedule": "Schedule", "learned": "Learned"}  # classes of hyper.py, which imports torch
DEPTH = 50
_CONSTANTS = {"true": True, "false": False, "none": None}


class SpecError(ValueError):
    """An invalid spec; the message has a caret under the error."""

    def __init__(self, message: str, text: str, position: int) -> None:
        super().__init__(message, text, position)
        self.message, self.text, self.position = message, text, position

    def __str__(self) -> str:
        line = self.text.count("\n", 0, self.position)
        shown = self.text.split("\n")[line].replace("\t", " ")
        column = self.position - (self.text.rfind("\n", 0, self.position) + 1)
        return f"{self.message}\n  {shown}\n  {' ' * column}^"


class _Reader:
    """A recursive-descent parser's position in the text."""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"objective: expected a spec string, got {text!r} ({type(text).__name__}).")
        self.text, self.at, self.depth = text, 0, 0

    def fail(self, message: str, at: int | None = None) -> SpecError:
        return SpecError(message, self.text, self.at if at is None else at)

    def peek(self) -> str:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.text[self.at : self.at + 1]

    def take(self, character: str) -> bool:
        if self.peek() != character:
            return False
        self.at += 1
        return True

    def expect(self, character: str) -> None:
        if not self.take(character):
            raise self.fail(f"expected {character!r}, found {self._next()}")

    def match(self, pattern: re.Pattern[str], what: str) -> str:
        self.peek()
        match = pattern.match(self.text, self.at)
        if not match:
            raise self.fail(f"expected {what}, found {self._next()}")
        self.at = match.end()
        return match.group()

    def _next(self) -> str:
        return repr(self.peek()) if self.peek() else "the end"

    def number(self) -> float:
        return float(self.match(_NUMBER, "a number"))

    def value(self) -> Any:
        """Read a number, a word, or a call such as ``schedule(0.5,0.1,1000)``."""
        if not re.match(r"[A-Za-z_]", self.peek() or "."):
            return self.number()
        start = self.at
        word = self.match(_WORD, "a value")
        if self.peek() != "(":
            return _CONSTANTS.get(word.lower(), word)
        if word not in CALLS:
            raise self.fail(f"unknown value {word!r}.{nearest(word, CALLS)}", start)
        self.expect("(")
        arguments = [self.value()]
        while self.take(","):
            arguments.append(self.value())
        self.expect(")")
        try:
            return getattr(import_module(f"{__package__}.hyper"), CALLS[word])(*arguments)
        except (TypeError, ValueError) as error:
            raise self.fail(str(error), start) from None


def check_names(text: str) -> None:
    """Raise for an objective that nobody has defined, without importing torch; :func:`parse` finds what else is wrong.

    Commands call it, where only installed packages can have defined more than the built-in objectives.
    """
    for match in _OBJECTIVE.finditer(text):
        if match[1] not in (*CALLS, *OBJECTIVES) and not metadata.entry_points(group="counterpoint.objectives"):
            raise SpecError(unknown_objective(match[1], OBJECTIVES), text, match.start(1))


def value(text: str) -> Any:
    """Read one parameter value of a spec."""
    reader = _Reader(text)
    result = reader.value()
    if reader.peek():
        raise reader.fail("unexpected text after the value")
    return result


def parse(text: str, kind: Callable[[str], Any], total: Any) -> Any:
    """Build the objective that ``text`` describes.

    Args:
        text: The spec.
        kind: Returns the class with a name.
        total: Builds the sum of weighted terms.
    """
    reader = _Reader(text)
    result = _sum(reader, kind, total)
    if reader.peek():
        raise reader.fail(f"unexpected {reader.peek()!r}")
    return result


def _sum(reader: _Reader, kind: Callable[[str], Any], total: Any) -> Any:
    reader.depth += 1
    if reader.depth > DEPTH:
        raise reader.fail(f"more than {DEPTH} objectives inside each other")
    terms = [_term(reader, kind, total)]
    while reader.take("+"):
        terms.append(_term(reader, kind, total))
    reader.depth -= 1
    return terms[0][1] if len(terms) == 1 and terms[0][0] == 1.0 else total(terms)


def _term(reader: _Reader, kind: Callable[[str], Any], total: Any) -> tuple[Any, Any]:
    weight: Any = 1.0
    call = _WORD.match(reader.text, reader.at) if reader.peek() else None
    if _NUMBER.match(reader.text, reader.at) or (call and call.group() in CALLS):
        start, weight = reader.at, reader.value()
        if isinstance(weight, float) and not math.isfinite(weight):
            raise reader.fail(f"weight must be a finite number, got {weight!r}", start)
        reader.expect("*")
    if reader.take("("):
        inner = _sum(reader, kind, total)
        reader.expect(")")
        return weight, inner
    return weight, _atom(reader, kind, total)


def _atom(reader: _Reader, kind: Callable[[str], Any], total: Any) -> Any:
    name = reader.match(_WORD, "an objective's name")
    start = reader.at - len(name)
    try:
        cls = kind(name)
    except LookupError as error:
        raise reader.fail(str(error), start) from None
    values: dict[str, Any] = {}
    wraps = "objective" in cls._defaults()
    if reader.take("("):
        if not wraps:
            raise reader.fail(f"{name!r} takes no objective in parentheses; parameters follow a colon", reader.at - 1)
        values["objective"] = _sum(reader, kind, total)
        reader.expect(")")
    elif wraps:
        raise reader.fail(f"{name!r} wraps an objective: {name}(infonce)")
    if reader.take(":"):
        _parameters(reader, name, cls.hyper, values)
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise reader.fail(str(error), start) from None


def _parameters(reader: _Reader, name: str, hyper: dict[str, Any], values: dict[str, Any]) -> None:
    short = {h.short: k for k, h in hyper.items()}
    while True:
        key = reader.match(_WORD, "a parameter's name")
        start = reader.at - len(key)
        long = short.get(key, key)
        if long not in hyper:
            raise reader.fail(f"{name}: unknown parameter {key!r}.{nearest(key, [*short, *hyper])}", start)
        if long in values:
            raise reader.fail(f"{name}: {key!r} is given twice", start)
        reader.expect("=")
        reader.peek()
        start = reader.at
        raw = reader.value()
        try:
            values[long] = hyper[long].check(raw, name)
        except (TypeError, ValueError) as error:
            raise reader.fail(str(error), start) from None
        if not reader.take(","):
            return
