"""The numbers in an objective's spec, and the values that a search tries."""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import counterpoint as cp
from counterpoint.names import nearest

Grids = Mapping[str, Sequence[float]]  # the values to try of each parameter

WEIGHT = "weight"  # of the second and further terms of a sum
ORDER = ("temperature", "mu", "sigma")  # before the others, which follow in the objective's own order
GRIDS: dict[str, tuple[float, ...]] = {  # the same in every domain
    "prior": (0.01, 0.05, 0.1),  # DCL and HCL
    "beta": (0.5, 1.0, 2.0),  # HCL
    "lam": (0.5, 0.7, 0.9),  # IntNaCl, Table 3
    "views": (2, 3, 4),  # ArCL, section 6.2
    WEIGHT: (0.01, 0.1, 1.0, 5.0),  # LMCL, Table 3
    "radius": (0.01, 0.03, 0.1, 0.3, 1.0),  # not from a paper
}
OF_ONE: dict[str, dict[str, tuple[float, ...]]] = {  # instead, of an objective: what its page says to tune first
    "drrl": {"margin": (0.2, 0.4, 0.5, 0.8), WEIGHT: (1.0, 3.333, 10.0)},
    "isogclr": {"rho": (0.1, 0.3, 0.5), "beta": ()},
    "rince": {"q": (0.1, 0.3, 0.5), "lam": (0.001, 0.01, 0.1)},
}


def numbers(data: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield name and value of the plain numbers in an objective's ``to_dict()``, those of inner objectives last."""
    from counterpoint.checks import is_number

    if data["name"] == "sum":
        for i, (weight, term) in enumerate(data["terms"]):
            yield from numbers(term)
            if i and is_number(weight):
                yield WEIGHT, weight
        return
    follows = data.get("radius") is not None  # the temperature then follows the radius
    for name, value in data.items():
        if is_number(value) and not (follows and name == "temperature"):
            yield name, value
    if "objective" in data:
        yield from numbers(data["objective"])


def changed(data: Mapping[str, Any], name: str, value: float) -> dict[str, Any]:
    """Return a copy in which a parameter that is a number has another value, in all terms and inner objectives."""
    from counterpoint.checks import is_number

    if data["name"] == "sum":
        terms = [
            [value if name == WEIGHT and i and is_number(weight) else weight, changed(term, name, value)]
            for i, (weight, term) in enumerate(data["terms"])
        ]
        return {**data, "terms": terms}
    copy = {**data, **({name: value} if is_number(data.get(name)) else {})}
    return copy | ({"objective": changed(data["objective"], name, value)} if "objective" in data else {})


def grids_of(spec: str, papers: Grids, own: Grids | None = None, strict: bool = True) -> dict[str, tuple[float, ...]]:
    """Return the values to try of each parameter of a spec, in the order of the search; empty if there is none.

    Schedules, learned values and words are not changed. With ``own`` grids, by either name of a parameter, only these
    parameters are tuned; if ``strict``, raise ``ValueError`` for one that the spec does not have.
    """
    data = cp.objective(spec).to_dict()
    names, papers = list(dict.fromkeys(name for name, _ in numbers(data))), dict(papers)
    for kind in set(re.findall(r"\w+", spec)).intersection(OF_ONE):
        papers |= OF_ONE[kind]
    if own is None:
        grids = {name: tuple(papers[name]) for name in names if papers.get(name)}
    else:
        long = {hyper.short: key for kind in cp.registry.values() for key, hyper in kind.hyper.items()}
        grids = {name if name in names else long.get(name, name): tuple(values) for name, values in own.items()}
        if strict and (unknown := [name for name in grids if name not in names]):
            raise ValueError(f"--grid: {spec} has no number {unknown[0]!r} to tune.{nearest(unknown[0], names)}")
        grids = {name: values for name, values in grids.items() if name in names}
        for name, values in grids.items():
            for value in values:
                cp.from_dict(changed(data, name, value))  # raises what the parameter does not allow
    first = [name for name in ORDER if name in grids]
    return {name: grids[name] for name in [*first, *(name for name in grids if name not in first)]}


def grid(text: str) -> tuple[str, tuple[float, ...]]:
    """Read a parameter and the values to try: a type for argparse."""
    name, _, values = text.partition("=")
    try:
        read = tuple(float(value) for value in values.split(","))
    except ValueError:
        read = ()
    if not name or not read:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE,VALUE,..., got {text!r}")
    return name, read
