"""Names in the documents exist."""

from __future__ import annotations

import re
from pkgutil import resolve_name

import pytest
from documents import DOCUMENTS, ROOT


@pytest.mark.parametrize("path", [*DOCUMENTS, "CHANGELOG.md"])
def test_the_names_of_modules_and_classes_exist(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    names = set(re.findall(r"`(counterpoint(?:\.\w+)+)", text))
    assert names or path.startswith("docs/") or path in ("CONTRIBUTING.md", "SECURITY.md", "examples/README.md")
    for name in names:
        try:
            resolve_name(name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] == "counterpoint":
                raise
            pytest.skip(f"{error.name} is not installed")
