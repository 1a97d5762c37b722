"""The grammar of specs, ``arcl(adnce:mu=0.7,t=0.2) + 0.1*dp``. See :func:`counterpoint.objective`."""

import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

from .names import nearest

NAME = re.compile(r"[a-z][a-z0-9_]*")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_SPACES = re.compile(r"\s*")
_LIST = re.compile(r"\s*\w+\s*(,)")
_DECIMAL = re.compile(r"(?:=|(?<![eE])\+|^)\s*-?\d+(,)\d")
_TOLD = re.compile(r",\s*((?:duplicates|ids|labels|guide|log_q|index)\b[^,;]*)")
CALLS = {"schedule": "Schedule", "learned": "Learned"}  # classes of values.py, which imports torch
DEPTH, WIDTH = 50, 100
_CONSTANTS = {"true": True, "false": False, "none": None}


class SpecError(ValueError):
    """An invalid spec; the message has a caret under the error.

    >>> cp.objective("infonce:t=")
    Traceback (most recent call last):
    counterpoint.spec.SpecError: expected a number, found the end
      infonce:t=
                ^
    """

    def __init__(self, message: str, text: str, position: int) -> None:
        super().__init__(message, text, position)
        self.message: str = message
        self.text: str = text
        self.position: int = position

    def __str__(self) -> str:
        start = self.text.rfind("\n", 0, self.position) + 1
        line, at = self.text[start:].split("\n")[0].replace("\t", " "), self.position - start
        line = "".join(c if c.isprintable() else "?" for c in line)  # no escape sequences
        left = max(0, at - WIDTH)  # of a long line, its part around the error
        return f"{self.message}\n  {line[left : at + WIDTH]}\n  {' ' * (at - left)}^"


def refuse_list(text: str) -> None:
    """Raise for a decimal comma, and for commas in the place of semicolons and spaces."""
    if decimal := _DECIMAL.search(text):
        raise SpecError("unexpected ',': numbers have a decimal point, 0.1, lists [1,2]", text, decimal.start(1))
    if told := _TOLD.search(text):
        hint = f"what a loss is told stands behind a semicolon, {text[: told.start()]}; {told[1]}"
        raise SpecError(f"unexpected ',': {hint}", text, told.start())
    if names := _LIST.match(text):
        hint = "parameters follow a colon, as in hcl:t=0.1" if "=" in text else "separate several objectives by spaces"
        raise SpecError(f"unexpected ',': {hint}", text, names.start(1))


def value(text: str) -> Any:
    """Read one parameter value of a spec."""
    return _Parser(text).whole(_Parser.value)


def parse(text: str, kind: Callable[[str], Any], total: Any, defaults: Mapping[str, Any] | None = None) -> Any:
    """Build the objective of ``text``: ``kind`` returns a class, ``total`` a sum; ``defaults`` fill what it omits."""
    if not isinstance(text, str):
        raise TypeError(f"objective: expected a spec string, got {text!r} ({type(text).__name__}).")
    refuse_list(text)
    return _Parser(text, kind, total, defaults).whole(_Parser.sum)


class _Parser:
    """A recursive-descent parser; ``at`` is its position in the text, never on a space."""

    def __init__(self, text: str, kind: Any = None, total: Any = None, defaults: Any = None) -> None:
        self.text, self.kind, self.total, self.depth, self.defaults = text, kind, total, 0, defaults or {}
        self.outer: list[tuple[str, dict[str, Any]]] = []  # names and parameters of the enclosing wrappers
        self.move(0)

    def move(self, at: int) -> None:
        self.at = _SPACES.match(self.text, at).end()  # type: ignore[union-attr]
        self.next = self.text[self.at : self.at + 1]

    def fail(self, message: object, at: int | None = None) -> SpecError:
        return SpecError(str(message), self.text, self.at if at is None else at)

    def whole(self, read: "Callable[[_Parser], Any]") -> Any:
        result = read(self)
        if self.next:
            hints = {":": ": parameters are separated by commas, as in hcl:t=0.1,beta=2"}
            hints["*"] = ": a factor stands before its objective, as in 0.1*dp"
            hint = ": parameters follow a colon, as in hcl:t=0.1, and a sum has +" * self.next.isalpha()
            raise self.fail(f"unexpected {self.next!r}{hints.get(self.next, hint)}")
        return result

    def take(self, character: str) -> bool:
        if self.next != character:
            return False
        self.move(self.at + 1)
        return True

    def expected(self, what: str) -> SpecError:
        return self.fail(f"expected {what}, found {repr(self.next) if self.next else 'the end'}")

    def expect(self, character: str) -> None:
        if not self.take(character):
            raise self.expected(repr(character))

    def match(self, pattern: re.Pattern[str], what: str) -> str:
        match = pattern.match(self.text, self.at)
        if not match:
            raise self.expected(what)
        self.move(match.end())
        return match.group()

    def value(self) -> Any:
        """Read a number, a word, a call such as ``schedule(0.5,0.1,1000)``, or a list such as ``[64,128]``."""
        start = self.at
        if self.take("["):
            return self.values("]")
        if not _WORD.match(self.text, start):
            return float(self.match(_NUMBER, "a number"))
        word = self.match(_WORD, "a value")
        if self.next != "(":
            return _CONSTANTS.get(word.lower(), word)
        if word not in CALLS:
            raise self.fail(f"unknown value {word!r}.{nearest(word, CALLS)}", start)
        self.expect("(")
        return self.built(start, getattr(import_module(f"{__package__}.values"), CALLS[word]), *self.values(")"))

    def separated(self, character: str, read: Callable[[], Any]) -> list[Any]:
        found = [read()]
        while self.take(character):
            found.append(read())
        return found

    def values(self, end: str) -> list[Any]:
        found = self.separated(",", self.value)
        if self.next == "=":
            raise self.fail("unexpected '=': these numbers have no names, as in schedule(0.5,0.1,1000)")
        self.expect(end)
        return found

    def sum(self) -> Any:
        self.depth += 1
        if self.depth > DEPTH:
            raise self.fail(f"more than {DEPTH} objectives inside each other")
        terms = self.separated("+", self.term)
        self.depth -= 1
        return self.total(terms)

    def term(self) -> tuple[Any, Any]:
        weight, start = 1.0, self.at
        call = _WORD.match(self.text, start)
        if _NUMBER.match(self.text, start) or (call and call.group() in CALLS):
            weight = self.value()
            if isinstance(weight, float) and not math.isfinite(weight):
                raise self.fail(f"weight must be a finite number, got {weight!r}", start)
            self.expect("*")
        if not self.take("("):
            return weight, self.atom()
        inner = self.sum()
        self.expect(")")
        return weight, inner

    def atom(self) -> Any:
        start, name = self.at, self.match(_WORD, "an objective's name")
        cls = self.built(start, self.kind, name)
        values: dict[str, Any] = {}
        wraps = "objective" in cls._defaults()
        if self.next == "(" and not wraps:
            inside = self.text[self.at + 1 :].partition(")")[0].strip()
            hint = f", {name}:{inside}" * ("=" in inside)
            raise self.fail(f"{name!r} takes no objective in parentheses; parameters follow a colon{hint}")
        if self.take("("):
            self.outer.append((name, cls.hyper))
            values["objective"] = self.sum()
            self.outer.pop()
            if self.next == ",":
                raise self.fail(f"unexpected ',': parameters of {name!r} follow its parentheses, {name}(infonce):...")
            self.expect(")")
        elif wraps:
            raise self.fail(f"{name!r} wraps an objective: {name}(infonce)")
        if self.take(":"):
            self.separated(",", lambda: self.parameter(name, cls.hyper, values))
        for key in self.defaults.keys() & cls.hyper.keys() - values.keys():
            with suppress(TypeError, ValueError):  # another objective's value may have no meaning here
                values[key] = cls.hyper[key].check(self.defaults[key], key)
        return self.built(start, cls, **values)

    def parameter(self, name: str, hyper: dict[str, Any], values: dict[str, Any]) -> None:
        short = {h.short: k for k, h in hyper.items()}
        start, key = self.at, self.match(_WORD, "a parameter's name")
        long = short.get(key, key)
        for wrapper, _ in (some for some in self.outer if key in some[1] and long not in hyper):
            raise self.fail(f"{key!r} is a parameter of {wrapper!r}: {wrapper}({name}):{key}=...", start)
        if long not in hyper:
            raise self.fail(f"{name}: unknown parameter {key!r}.{nearest(key, [*short, *hyper])}", start)
        if long in values:
            raise self.fail(f"{name}: {key!r} is given twice", start)
        self.expect("=")
        values[long] = self.built(self.at, hyper[long].check, self.value(), name)

    def built(self, start: int, make: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a function whose errors are about the text from ``start``."""
        try:
            return make(*args, **options)
        except (ImportError, TypeError, ValueError) as error:
            raise self.fail(error, start) from None
