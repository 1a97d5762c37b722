"""Specs, data of objectives, and arbitrary texts and data: read as what they say, or refused."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

import counterpoint as cp

from .draws import OBJECTIVES, counts

NAMES = [*cp.registry, *"t temperature prior beta mu sigma weight denominator radius shared power high".split()]  # noqa: SIM905
SIGNS = [*":,=+*() \n\t.-0123456789", "0.5", "1e-3", "1e400", "nan", "auto", "none", "true", "false"]
WORDS = [*NAMES, *SIGNS, "learned(", "schedule(", "with_positive", "\u00e9", "\u0663", "\ud800", "\0"]
SPECS = OBJECTIVES.map(lambda q: str(cp.from_dict(q)))
TYPOS = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 9), st.sampled_from(["", *WORDS])), max_size=2)


def mistyped(text: str, typos: list[tuple[int, int, str]]) -> str:
    for at, removed, inserted in typos:
        text = text[:at] + inserted + text[at + removed :]
    return text


TEXTS = st.builds(mistyped, SPECS, TYPOS) | st.text(max_size=60) | st.lists(st.sampled_from(WORDS)).map("".join)


def check_text(text: str) -> None:
    """A spec is read, and then written and read again as the same objective, or refused with a place in it."""
    try:
        loss_fn = cp.objective(text)
    except ValueError as error:
        refused = error
    else:
        assert cp.objective(str(loss_fn)) == loss_fn == cp.from_dict(json.loads(json.dumps(loss_fn.to_dict())))
        counts["specs read"] += 1
        return
    if isinstance(refused, cp.SpecError):
        assert 0 <= refused.position <= len(text)
        assert str(refused)
        counts["specs refused"] += 1
    else:  # of what a treatment is told, which has no place in a spec
        assert ";" in text
        assert str(refused).startswith("treatment: ")
        counts["treatments refused"] += 1


NUMBERS = st.floats() | st.integers() | st.sampled_from([0, 1, 0.5, -1, 10**400])
LEAF = st.none() | st.booleans() | NUMBERS | st.sampled_from(WORDS) | st.text(max_size=8)
KEYS = st.sampled_from(["name", "objective", "terms", *NAMES]) | st.text(max_size=5)
TREES = st.recursive(
    LEAF | OBJECTIVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.builds(lambda q, more: {**q, **more}, OBJECTIVES, st.dictionaries(KEYS, inner, max_size=2))
        | st.builds(lambda q: {"name": "arcl", "objective": q}, inner)
        | st.builds(
            lambda *terms: {"name": "sum", "terms": [*terms]}, st.tuples(NUMBERS, inner), st.tuples(LEAF, inner)
        )
    ),
    max_leaves=12,
)


def check_data(data: Any) -> None:
    """Data is an objective, and then gives the same data again, or is refused as a wrong value or type."""
    try:
        loss_fn = cp.from_dict(data)
    except (TypeError, ValueError):
        counts["data refused"] += 1
        return
    assert cp.from_dict(json.loads(json.dumps(loss_fn.to_dict()))) == loss_fn
    counts["data read"] += 1
