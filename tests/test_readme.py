"""The README's Python blocks run, in order, in one namespace."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from counterpoint import objective, registry

README = Path(__file__).resolve().parent.parent / "README.md"


def test_python_blocks_run():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) >= 3
    names: dict[str, object] = {}
    registered = dict(registry)
    try:
        for i, block in enumerate(blocks):
            exec(compile(block, f"README.md, Python block {i + 1}", "exec"), names)
    finally:  # the README's own objective is nobody else's business
        registry.clear()
        registry.update(registered)


TABLE = README.read_text().partition("## Which objective for which problem")[2].split("\n\n")[1]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE.splitlines()[2:]]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_table_of_objectives_agrees_with_their_classes(row):
    _, suggested, _, cost, tune_first = row
    specs = [re.sub(r"\(\.\.\.\)|\.\.\. \+ [\d.]+\*", "", code) for code in re.findall(r"`([^`]+)`", suggested)]
    specs = [spec for spec in specs if not spec.endswith("=")]  # arguments of the call, such as ids=
    kinds = [registry[re.match(r"\w+", spec)[0]] for spec in specs]
    for spec, kind in zip(specs, kinds, strict=True):
        if ":" in spec:
            objective(spec)
        else:
            assert kind.cost in cost
    for name in re.findall(r"`(\w+)`", tune_first):
        assert any(re.search(rf"\b{name}\b", kind.tune_first) for kind in kinds), name


def test_the_table_names_the_objectives_of_every_paper():
    named = set(re.findall(r"\w+", " ".join(row[1] for row in ROWS)))
    assert {kind.paper for kind in registry.values()} - {registry[n].paper for n in named & set(registry)} == {
        registry["alphacl"].paper  # a baseline of the ADNCE paper
    }
