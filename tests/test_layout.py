"""How the tests are laid out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = sorted(Path(__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.relative_to(Path(__file__).parent).as_posix())
def test_no_test_imports_a_test(path):
    """What tests share lives in tests/support."""
    imports = re.findall(r"^\s*(?:from|import) +(?:tests?\.|\.)*(test_\w+)", path.read_text(encoding="utf-8"), re.M)
    assert not imports
