"""The warning of a deprecated name is shown by default, and names the caller's line."""

from __future__ import annotations

import pytest
from typing_extensions import deprecated

from counterpoint.version import Deprecated


@deprecated("added leaves in 0.3; use total.", category=Deprecated)
def added(a: int, *, b: int = 1) -> int:
    """Add."""
    return a + b


def test_a_deprecated_function_works_and_says_what_replaces_it():
    with pytest.warns(Deprecated, match=r"^added leaves in 0\.3; use total\.$") as warned:
        assert added(1, b=3) == 4
    assert [warning.filename for warning in warned] == [__file__]


def test_users_see_it_by_default():
    assert issubclass(Deprecated, FutureWarning)
