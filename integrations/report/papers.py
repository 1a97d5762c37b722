"""The numbers that the papers print, which a report shows beside ours.

``papers.json`` contains the tables as they are printed, number for number, and says what they are about: ``datasets``
and ``metrics`` of a table map its columns to our runs; ``is`` of a row is its objective (parameters named there must
agree, others may differ); ``with`` of a row lists other arguments that must agree where a run has them; ``setup`` of a
table is how its models were trained and evaluated. Only where all of that agrees, a number stands beside our run.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import counterpoint as cp

Table = Mapping[str, Any]  # JSON: a table of papers.json, one of its rows, or an objective


@dataclass(frozen=True)
class PaperNumber:
    """One number of a paper's table, and its place there."""

    paper: str
    table: str
    row: str
    column: str
    measure: str
    printed: str

    @property
    def value(self) -> float:
        return float(self.printed.partition("±")[0])

    @property
    def spread(self) -> float | None:
        _, sign, spread = self.printed.partition("±")
        return float(spread) if sign else None

    @property
    def source(self) -> str:
        return f"{self.paper}, Table {self.table}, {self.row}"


def paper_number(
    domain: str,
    dataset: str,
    objective: str,
    metric: str = "accuracy",
    arguments: Mapping[str, object] | None = None,
    same_setup: bool = False,
) -> PaperNumber | None:
    """Return a paper's number for an objective on a data set, from the row that matches it most closely, or None.

    Args:
        domain: graph, sentence, image or control.
        dataset, metric: as in our runs; only letters and digits matter, not their case.
        objective: a spec, or the label of a row that no objective trains.
        arguments: the run's other arguments.
        same_setup: whether the run must have the paper's settings and model; by default any row about the data is.

    >>> paper_number("graph", "PROTEINS", "adnce:t=0.05,mu=1.5").printed
    '75.10±0.25'
    >>> paper_number("graph", "PROTEINS", "infonce:t=0.2,denominator=negatives").source
    'ADNCE, Table 10, GRAPHCL'
    """
    try:
        target: Table | str = cp.objective(objective).to_dict()
    except ValueError:
        target = _plain(objective)
    given, best, number = arguments or {}, 0, None
    for table in _content()["tables"]:
        column = next((i for i, c in enumerate(table["columns"]) if _is_about(table, c, dataset, metric)), None)
        if table["domain"] != domain or column is None:
            continue
        for row in table["rows"]:
            pattern, wanted, printed = row.get("is"), row.get("with", {}), row["values"][column]
            if pattern is None or printed == "-" or _size(pattern) <= best or not _matches(pattern, target):
                continue
            agrees = all(given.get(key, value) == value for key, value in wanted.items())
            if agrees and (not same_setup or _same_setup(table, row, target, dataset, given)):
                names = table["paper"], table["table"], row["row"], table["columns"][column], table["metric"]
                best, number = _size(pattern), PaperNumber(*names, printed)
    return number


def paper_settings(domain: str, dataset: str) -> dict[str, float] | None:
    """Return ADNCE's final ``t``, ``mu`` and ``sigma`` for a data set (Tables 6 and 9) or an encoder (Table 7).

    >>> paper_settings("graph", "PROTEINS")
    {'t': 0.05, 'mu': 1.5, 'sigma': 1.0}
    """
    tables = (table["settings"] for table in _content()["settings"] if table["domain"] == domain)
    found = (values for table in tables for name, values in table.items() if _plain(name) == _plain(dataset))
    return next((dict(values) for values in found), None)


@cache
def _content() -> dict[str, Any]:
    text = Path(__file__).with_name("papers.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def _is_about(table: Table, column: str, dataset: str, metric: str) -> bool:
    name = table["datasets"].get(column) if "datasets" in table else table.get("dataset", dataset)
    metrics = table["metrics"]
    metrics = metrics.get(column, []) if isinstance(metrics, dict) else metrics
    return name is not None and _plain(name) == _plain(dataset) and _plain(metric) in map(_plain, metrics)


def _same_setup(table: Table, row: Table, target: Table | str, dataset: str, arguments: Mapping[str, object]) -> bool:
    """Return whether a run was trained and evaluated as the models of a table, as far as the paper says."""
    if (setup := table.get("setup")) is None:
        return False
    setup = setup | row.get("with", {})
    temperature = setup.pop("temperature", None)
    if isinstance(target, str):  # nothing is trained
        setup = {key: value for key, value in setup.items() if key not in ("epochs", "steps", "head")}
    else:
        tuned = paper_settings(table["domain"], str(arguments.get("model") or dataset)) or {}
        tuned = {"temperature" if key == "t" else key: value for key, value in tuned.items()}
        tuned = tuned if target["name"] == "adnce" else {}
        base = target.get("objective", target)
        if not _matches(tuned, target) or (temperature is not None and base.get("temperature") != temperature):
            return False
        if not tuned and temperature is None and "temperature" not in row["is"]:
            return False  # the paper's temperature is not known
    for key, value in setup.items():
        own = arguments.get(key, dataset if key == "dataset" else ...)
        if isinstance(value, dict):
            value = {**own, **value} if isinstance(own, dict) else value.get(dataset, value)
        if own != value:
            return False
    return True


def _matches(pattern: object, target: object) -> bool:
    """Return whether ``target`` has everything that ``pattern`` has; ``None`` matches anything."""
    if isinstance(pattern, dict):
        return isinstance(target, dict) and all(_matches(p, target.get(key)) for key, p in pattern.items())
    if isinstance(pattern, list) and isinstance(target, str):  # labels of a row without an objective
        return target in map(_plain, pattern)
    if isinstance(pattern, list):
        return isinstance(target, list) and len(target) == len(pattern) and all(map(_matches, pattern, target))
    return pattern is None or bool(pattern == target)


def _size(pattern: object) -> int:
    """Return how much a pattern says."""
    parts = pattern.values() if isinstance(pattern, dict) else pattern if isinstance(pattern, list) else ()
    return 1 + sum(map(_size, parts))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
