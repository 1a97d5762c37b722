"""A deprecated function still works, and its caller's line is named."""

from __future__ import annotations

import pytest

from counterpoint.version import Deprecated, deprecated


@deprecated("total", since="0.1", until="0.3")
def added(a: int, *, b: int = 1) -> int:
    """Add."""
    return a + b


def test_a_deprecated_function_works_and_says_what_replaces_it():
    with pytest.warns(Deprecated, match=r"^added is deprecated since 0\.1 and leaves in 0\.3; use total\.$") as warned:
        assert added(1, b=3) == 4
    assert [warning.filename for warning in warned] == [__file__]
    assert (added.__name__, added.__doc__) == ("added", "Add.")


def test_users_see_it_by_default():
    assert issubclass(Deprecated, FutureWarning)
