"""docs/architecture.md shows the imports as they are, and its paths exist."""

from __future__ import annotations

import re

import import_graph
import pytest
from documents import ROOT

TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_there_is_no_circle():
    assert import_graph.circles(import_graph.modules()) == []


def test_the_picture_is_current():
    assert import_graph.block() in TEXT, "run `make graph`"


def test_circles_and_floors_of_a_known_graph():
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": set(), "f": {"e", "d"}}
    assert import_graph.circles(graph) == [["a", "b", "c"]]
    assert import_graph.floors(graph) == 3
    assert import_graph.reduced({"d": {"e"}, "e": set(), "f": {"e", "d"}}) == {"d": {"e"}, "e": set(), "f": {"d"}}
    assert import_graph.numbers(graph).startswith("6 modules on 3 floors, 7 arrows, 1 circles.\nCircle: a, b, c.")


@pytest.mark.parametrize("name", sorted(set(re.findall(r"[\w/]+/\w+\.(?:py|md)\b", TEXT))))
def test_files_that_are_named_exist(name):
    path = name.lstrip("/")
    folders = ("", "core", "integrations", "docs")
    assert any((ROOT / folder / path).is_file() for folder in folders), name
