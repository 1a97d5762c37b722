"""A few random examples of every check of tests/support/fuzz.py; `make fuzz` runs them for an hour."""

from __future__ import annotations

import fuzz
import pytest


@pytest.mark.parametrize("name", fuzz.CHECKS)
def test_a_few_examples(name):
    fuzz.run(name, fuzz.CHECKS[name][2], seed=0)
