"""``counterpoint objectives``: formula, parameters, advice, weights and a numerical check of each objective."""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill
from typing import Any

import counterpoint as cp  # imports torch on first use of a name, so the parser starts without it
from counterpoint.names import registry
from counterpoint.spec import check_names

from .. import evidence, flags

WIDTH = 100
PLOT_WIDTH, PLOT_HEIGHT = 61, 9
ADVICE = {"use": "use", "first": "tune_first", "cost": "cost"}  # key in JSON: attribute of the class


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("spec", nargs="*", help="names or specs to show in full; without any, all are listed")
    add("--json", action="store_true", help="print JSON")
    plot = "draw the training weights over similarity, as a PNG (none)"
    add("--plot", type=flags.file, metavar="FILE", help=plot)
    parser.set_defaults(check=_check)


def _check(arguments: argparse.Namespace) -> None:
    """Raise what is wrong with the names of objectives; called before torch is imported."""
    for word in arguments.spec:
        if word.split(":")[0] not in registry:  # in a notebook, it may have objectives of the reader's own
            check_names(word)


def command(arguments: argparse.Namespace) -> int:
    named = {word: cp.registry[word]() for word in arguments.spec if word in cp.registry}
    asked = [named.get(word) or cp.objective(word) for word in arguments.spec]
    if arguments.plot:
        if not asked:
            raise ValueError("--plot needs something to draw: counterpoint objectives infonce adnce --plot w.png")
        from counterpoint.diagnose.plots import plot_weights

        from ..report.plots import save

        save(plot_weights(asked), arguments.plot)
        print(f"wrote {arguments.plot}", file=sys.stderr)
    parts = [part for one in asked for part in ([one] if one in named.values() else _pieces(one))]
    descriptions = [facts(type(part), part) for part in parts] or [facts(kind) for kind in cp.registry.values()]
    if arguments.json:
        print(json.dumps(descriptions, indent=1))
        return 0
    print("\n\n".join("\n".join(_text(description)) for description in descriptions))
    if not asked:
        print('\n"counterpoint objectives NAME" shows one in full. Specs take either name: adnce:mu=0.7,t=0.2')
    return 0


def facts(kind: type[cp.Objective], objective: cp.Objective | None = None) -> dict[str, Any]:
    """Describe an objective's class as JSON values; with an instance, also its values, advice and documentation."""
    defaults, values = kind._defaults(), {} if objective is None else objective.to_dict()
    parameters = [
        {
            "name": key,
            "short": hyper.short,
            "default": None if defaults[key] is inspect.Parameter.empty else defaults[key],
            "expected": hyper.expected(),
            "schedulable": isinstance(hyper, cp.Real) and not hyper.fixed,
            **({"value": values[key]} if values else {}),
        }
        for key, hyper in kind.hyper.items()
    ]
    described = {"name": kind.name, "class": kind.__name__, "wraps": issubclass(kind, cp.Wrapper)}
    described |= {"formula": kind.formula, "paper": kind.paper, "parameters": parameters}
    if objective is None:
        return described
    described |= {key: vars(kind)[name] for key, name in ADVICE.items() if name in vars(kind)}
    if found := list(evidence.about(kind.name)):
        described["atlas"] = found
    if case := check(kind.name):
        described["check"] = dict(zip(("spec", "reference", "here"), case, strict=True))
    return {**described, "spec": str(objective), "doc": inspect.getdoc(kind) or ""}


def _pieces(objective: cp.Objective) -> list[cp.Objective]:
    """The named objectives that a spec is made of, outermost first."""
    if isinstance(objective, cp.Wrapper):
        inner = [objective.objective]
    else:
        inner = [part for _, part in objective.terms() if part is not objective]
    return [objective] * bool(objective.name) + [piece for part in inner for piece in _pieces(part)]


def _text(description: dict[str, Any]) -> Iterator[str]:
    from counterpoint.values import text

    yield f"{description['name']}{'(...)' if description['wraps'] else ''}  {description['class']}"
    for line in (description[key] for key in ("spec", "formula", "paper") if key in description):
        yield fill(line, WIDTH, initial_indent="    ", subsequent_indent="    ")
    for parameter in description["parameters"]:
        names = ", ".join(dict.fromkeys((parameter["short"], parameter["name"])))
        value = parameter.get("value", parameter["default"])
        note = "" if value == parameter["default"] else f" (default {text(parameter['default'])})"
        row = f"      {names:28}{text(value):14} {parameter['expected']}{note}"
        yield fill(row, WIDTH, subsequent_indent=" " * 49)
    for key, label in (("use", "when"), ("first", "tune first"), ("cost", "cost"), ("check", "check")):
        if key in description:
            content = _checked(description[key]) if key == "check" else description[key]
            yield fill(f"    {label:12}{content}", WIDTH, subsequent_indent=" " * 16)
    for line in description.get("atlas", ()):
        yield fill(f"    {'atlas':12}{line}", WIDTH, subsequent_indent=" " * 16)
    if "doc" in description:
        yield ""
        yield "training weight dL/ds of a negative, by its similarity s; the positive is at |"
        yield from picture(cp.objective(description["spec"]))
        yield ""
        yield from _reflow(description["doc"])


def _checked(case: dict[str, Any]) -> str:
    """Compare an objective's value here with the reference value, which is known to 50 digits."""
    error = abs(case["here"] - case["reference"])
    here = "the same in every digit" if error == 0 else f"off by {error:.1g}"
    return f"{case['reference']:.10g} is its reference value of {case['spec']} on a small case; here it is {here}"


def _reflow(doc: str) -> Iterator[str]:
    """Wrap the prose of a docstring to lines of at most WIDTH; keep the lines of tables and examples."""
    blocks = re.split(r"\n\s*\n", re.sub(r":\w+:`([^`]+)`", r"\1", doc))
    for i, block in enumerate(blocks):
        if i:
            yield ""
        if block.startswith(("==", ">>>")):
            last_column = block.partition("\n")[0].rfind(" =") + 1
            for line in block.splitlines():
                yield line[:WIDTH] if line.startswith("==") else fill(line, WIDTH, subsequent_indent=" " * last_column)
            continue
        for paragraph in re.split(r"\n(?=\* | {4}\S)", block):  # bullets and parameters start a paragraph
            first = " " * (len(paragraph) - len(paragraph.lstrip()))
            rest = "        " if first else "  " if paragraph.startswith("* ") else ""
            yield fill(" ".join(paragraph.split()), WIDTH, initial_indent=first, subsequent_indent=rest)


def picture(objective: cp.Objective) -> Iterator[str]:
    """Plot the training weight of a negative over its similarity, in characters; ``|`` marks the positive."""
    import torch

    at = torch.linspace(-1, 1, PLOT_WIDTH, dtype=torch.float64)
    s, weight = cp.weight_curve(objective, at, negatives=torch.linspace(-1, 1, 201))
    low, high = min(0.0, float(weight.min())), float(weight.max())
    if not high > low:
        yield "all weights are zero"
        return
    level = ((weight - low) / (high - low) * (PLOT_HEIGHT - 1)).round().int().tolist()
    zero = round(-low / (high - low) * (PLOT_HEIGHT - 1))
    positive = int((s - 0.8).abs().argmin())
    for row in reversed(range(PLOT_HEIGHT)):
        number = f"{low + (high - low) * row / (PLOT_HEIGHT - 1):7.2f} "
        empty = "-" if row == zero else " "
        marks = ("*" if level[i] == row else "|" if i == positive else empty for i in range(PLOT_WIDTH))
        yield (number if row in (0, zero, PLOT_HEIGHT - 1) else " " * 8) + "".join(marks).rstrip()
    yield " " * 8 + f"{'-1':{PLOT_WIDTH // 2 - 1}} 0{'1':>{PLOT_WIDTH - PLOT_WIDTH // 2 - 1}}"


def check(name: str) -> tuple[str, float, float] | None:
    """Return the spec of an objective's reference case, the reference value and the value here; None without a case.

    The values are known to 50 digits; ``tests/support/golden.py`` writes the file.
    """
    cases = json.loads(Path(__file__).with_name("golden.json").read_text(encoding="utf-8"))
    if (case := cases.get(name)) is None:
        return None
    objective = cp.objective(case["spec"])
    arguments = {key: _tensors(value) for key, value in case["given"].items()}
    value = getattr(objective, case["call"])(*map(_tensors, case["positional"]), **arguments)
    return case["spec"], case["value"], float(value)


def _tensors(value: Any) -> Any:
    import torch

    if isinstance(value, dict):  # a tuple of tensors
        return tuple(map(_tensors, value["tuple"]))
    if not isinstance(value, list):
        return value
    tensor = torch.tensor(value)
    return torch.tensor(value, dtype=torch.float64) if tensor.is_floating_point() else tensor
