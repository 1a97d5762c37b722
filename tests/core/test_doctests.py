"""The examples in docstrings, run under the modules' real names."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import counterpoint

ROOT = Path(__file__).resolve().parents[2]
MODULES = [
    ".".join(("counterpoint", *path.relative_to(ROOT / "core").with_suffix("").parts)).removesuffix(".__init__")
    for path in sorted((ROOT / "core").rglob("*.py"))
]
MODULES += ["counterpoint.integrations.report.papers", "counterpoint.integrations.store.reproduce"]


@pytest.mark.parametrize("name", MODULES)
def test_doctests(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_public_classes_have_examples_or_formulas():
    for kind in counterpoint.registry.values():
        assert kind.__doc__, kind
        assert kind.formula, kind
        assert kind.paper, kind
