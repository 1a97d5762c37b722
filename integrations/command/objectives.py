"""``counterpoint objectives``: what each objective is."""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections.abc import Iterator
from textwrap import fill
from typing import Any

import counterpoint as cp
from counterpoint.hyper import Real, text

from . import advice

WIDTH = 100


def _objectives_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("spec", nargs="*", help="names or specs to show in full; without any, all are listed")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--plot", metavar="FILE", help="draw the training weights over similarity, as a PNG")


def _objectives(given: argparse.Namespace) -> int:
    named = {word: cp.registry[word]() for word in given.spec if word in cp.registry}
    asked = [named.get(word) or cp.objective(word) for word in given.spec]
    if given.plot:
        if not asked:
            raise ValueError("--plot needs something to draw: counterpoint objectives infonce adnce --plot w.png")
        from counterpoint.diagnose.plots import plot_weights

        from ..report.plots import save

        save(plot_weights(asked), given.plot)
        print(f"wrote {given.plot}", file=sys.stderr)
    parts = [part for one in asked for part in ([one] if one in named.values() else _pieces(one))]
    found = [facts(type(part), part) for part in parts] or [facts(kind) for kind in cp.registry.values()]
    if given.json:
        print(json.dumps(found, indent=1))
        return 0
    print("\n\n".join("\n".join(_text(one)) for one in found))
    if not asked:
        print('\n"counterpoint objectives NAME" shows one in full. Specs take either name: adnce:mu=0.7,t=0.2')
    return 0


def facts(kind: type[cp.Objective], one: cp.Objective | None = None) -> dict[str, Any]:
    """What an objective's class says about itself, as plain data; of an instance also its values and documentation."""
    defaults, values = kind._defaults(), {} if one is None else one.to_dict()
    parameters = [
        {
            "name": key,
            "short": hyper.short,
            "default": defaults.get(key),
            "expected": hyper.expected(),
            "schedulable": isinstance(hyper, Real) and not hyper.fixed,
            **({"value": values[key]} if values else {}),
        }
        for key, hyper in kind.hyper.items()
    ]
    found = {"name": kind.name, "class": kind.__name__, "wraps": issubclass(kind, cp.Wrapper)}
    found |= {"formula": kind.formula, "paper": kind.paper, "parameters": parameters}
    if one is None:
        return found
    if known := advice.ADVICE.get(kind.name):
        found |= known._asdict()
    if case := advice.check(kind.name):
        found["check"] = dict(zip(("spec", "reference", "here"), case, strict=True))
    return {**found, "spec": str(one), "doc": inspect.getdoc(kind) or ""}


def _pieces(one: cp.Objective) -> list[cp.Objective]:
    """The named objectives that a spec is made of, outermost first."""
    inner = [one.objective] if isinstance(one, cp.Wrapper) else [part for _, part in one.terms() if part is not one]
    return [one] * bool(one.name) + [piece for part in inner for piece in _pieces(part)]


def _text(found: dict[str, Any]) -> Iterator[str]:
    yield f"{found['name']}{'(...)' if found['wraps'] else ''}  {found['class']}"
    for line in (*([found["spec"]] if "spec" in found else []), found["formula"], found["paper"]):
        yield fill(line, WIDTH, initial_indent="    ", subsequent_indent="    ")
    for one in found["parameters"]:
        names = ", ".join(dict.fromkeys((one["short"], one["name"])))
        value = one.get("value", one["default"])
        note = "" if value == one["default"] else f" (default {text(one['default'])})"
        row = f"      {names:28}{text(value):14} {one['expected']}{note}"
        yield fill(row, WIDTH, subsequent_indent=" " * 49)
    for key, label in (("use", "when"), ("first", "tune first"), ("cost", "cost"), ("check", "check")):
        if key in found:
            said = _checked(found[key]) if key == "check" else found[key]
            yield fill(f"    {label:12}{said}", WIDTH, subsequent_indent=" " * 16)
    if "doc" in found:
        yield ""
        yield "training weight dL/ds of a negative, by its similarity s; the positive is at |"
        yield from advice.picture(cp.objective(found["spec"]))
        yield ""
        yield from _reflow(found["doc"])


def _checked(found: dict[str, Any]) -> str:
    """What an objective makes here of a case whose value is known to 50 digits."""
    error = abs(found["here"] - found["reference"])
    return f"{found['reference']:.10g} is its reference value of {found['spec']} on a small case; here it is " + (
        "the same in every digit" if error == 0 else f"off by {error:.1g}"
    )


def _reflow(doc: str) -> Iterator[str]:
    """A docstring in lines of at most WIDTH: prose is wrapped anew, tables and examples keep their lines."""
    blocks = re.split(r"\n\s*\n", re.sub(r":\w+:`([^`]+)`", r"\1", doc))
    for i, block in enumerate(blocks):
        if i:
            yield ""
        if block.startswith(("==", ">>>")):
            last_column = block.partition("\n")[0].rfind(" =") + 1
            for line in block.splitlines():
                yield line[:WIDTH] if line.startswith("==") else fill(line, WIDTH, subsequent_indent=" " * last_column)
            continue
        for paragraph in re.split(r"\n(?=\* | {4}\S)", block):  # a bullet or a parameter begins another one
            first = " " * (len(paragraph) - len(paragraph.lstrip()))
            rest = "        " if first else "  " if paragraph.startswith("* ") else ""
            yield fill(" ".join(paragraph.split()), WIDTH, initial_indent=first, subsequent_indent=rest)
