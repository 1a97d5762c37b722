"""``counterpoint objectives``: formula, parameters, advice and evidence of each objective."""

from __future__ import annotations  # which imports no torch for them

import argparse
import inspect
import json
import re
import sys
from collections.abc import Iterator
from textwrap import fill
from typing import Any

import counterpoint as cp  # imports torch on first use of a name, so the parser starts without it
from counterpoint.names import registry
from counterpoint.plugins.printing import print_lines

from .. import evidence, flags

WIDTH = 100
FIRST = ("infonce", "hcl")  # the objective of most, and the one that has gained in most studies
BEFORE = """\
What gains most is to tell a loss its fault, in this order: "infonce; ids=PATH", "infonce; duplicates",
"infonce; guide=PATH; margin=-0.1" (see counterpoint race --help); then hcl; then the others.
"""
COSINES = (-0.2, 0.8)  # of most negatives in a batch
ADVICE = {"use": "use", "first": "tune_first", "cost": "cost"}  # key in JSON: attribute of the class


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("spec", nargs="*", help="names or specs to show in full; without any, all are listed")
    add("--json", action="store_true", help="print JSON")
    add("--plot", type=flags.file, metavar="FILE", help="draw the training weights over similarity, as a PNG (none)")
    parser.set_defaults(check=_check)


def _check(arguments: argparse.Namespace) -> None:
    """Raise an error for unknown names of objectives; called before torch is imported."""
    for word in arguments.spec:
        if word.split(":")[0] not in registry:  # in a notebook, it may have objectives of the reader's own
            flags.check_names(word)


def command(arguments: argparse.Namespace) -> int:
    named = {word: cp.registry[word]() for word in arguments.spec if word in cp.registry}
    asked = [named.get(word) or cp.objective(word) for word in arguments.spec]
    if arguments.plot:
        if not asked:
            raise ValueError("--plot needs something to draw: counterpoint objectives infonce adnce --plot w.png")
        from counterpoint.diagnose import plot_weights

        from ..report.plots import save

        save(plot_weights(asked), arguments.plot)
        print_lines(f"wrote {arguments.plot}", file=sys.stderr)
    parts = [part for one in asked for part in ([one] if one in named.values() else _pieces(one))]
    # those of FIRST come first, and others keep their order
    listed = sorted(cp.registry.values(), key=lambda kind: not arguments.json and kind.name not in FIRST)
    descriptions = [facts(type(part), part) for part in parts] or [facts(kind) for kind in listed]
    if arguments.json:
        print(json.dumps(descriptions, indent=1))
        return 0
    if not asked:
        print(BEFORE)
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
    if near := _as_infonce(objective):
        described["near"] = near
    if found := list(evidence.about(kind.name)):
        described["atlas"] = found
    return {**described, "spec": str(objective), "doc": inspect.getdoc(kind) or ""}


def _as_infonce(objective: cp.Objective) -> str:
    """Say how far ADNCE's inverse temperature over the usual cosines is from one that InfoNCE has; '' for others."""
    if not isinstance(objective, cp.ADNCE) or objective.weight != "gaussian":
        return ""
    t, mu, sigma = objective.temperature, objective.mu, objective.sigma
    if not all(isinstance(value, (int, float)) for value in (t, mu, sigma)):  # learned, scheduled or tracked
        return ""
    low, high = (1 / float(t) + (float(mu) - s) / float(sigma) ** 2 for s in reversed(COSINES))
    middle, spread = (low + high) / 2, (high - low) / 2
    where = f"on cosines from {COSINES[0]} to {COSINES[1]}"
    if middle <= 0 or spread > 0.1 * middle:
        return f"inverse temperature from {low:.3g} to {high:.3g} {where}"
    return f"within {100 * spread / middle:.0f} % of infonce:t={1 / middle:.3g} {where}"


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
        yield fill(f"      {names:28}{text(value):14} {parameter['expected']}{note}", WIDTH, subsequent_indent=" " * 49)
    labels = {"use": "when", "first": "tune first", "cost": "cost", "near": "negatives"}
    notes = [(label, description[key]) for key, label in labels.items() if key in description]
    for label, line in [*notes, *(("atlas", line) for line in description.get("atlas", ()))]:
        yield fill(f"    {label:12}{line}", WIDTH, subsequent_indent=" " * 16)
    if "doc" in description:
        doc = "\n" + re.sub(r":\w+:`([^`]+)`", r"\1", description["doc"])
        if "\n>>> import " not in doc:
            doc = doc.replace("\n>>> ", "\n>>> import torch, counterpoint as cp\n>>> ", 1)
        yield doc
