"""The examples in docstrings, run with nothing imported but torch and counterpoint, as those of the package say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest
import torch

import counterpoint

ROOT = Path(__file__).resolve().parents[2]
MODULES = [
    ".".join(("counterpoint", *path.relative_to(ROOT / "core").with_suffix("").parts)).removesuffix(".__init__")
    for path in sorted((ROOT / "core").rglob("*.py"))
]
IMPORTED = {"torch": torch, "cp": counterpoint}
INTEGRATIONS = ["counterpoint.integrations.report.papers", "counterpoint.integrations.store.reproduce"]


@pytest.mark.parametrize("name", MODULES)
def test_doctests(name):
    result = doctest.testmod(importlib.import_module(name), globs=IMPORTED)
    assert result.failed == 0


@pytest.mark.parametrize("name", INTEGRATIONS)
def test_doctests_of_integrations(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


@pytest.mark.parametrize("name", sorted({*counterpoint.__all__} - {"__version__", "registry"}))
def test_every_public_name_has_an_example(name):
    assert ">>> " in getattr(counterpoint, name).__doc__


def test_objectives_have_a_formula_and_a_paper():
    for kind in counterpoint.registry.values():
        assert kind.formula, kind
        assert kind.paper, kind
