"""What the page of ``race`` says of its study is what the stored rows say."""

from __future__ import annotations

import re

import race_worlds

ROWS = [*race_worlds.read(race_worlds.ROWS).values()]


def test_the_page_is_made_of_the_rows():
    page = race_worlds.PAGE.read_text(encoding="utf-8")
    assert race_worlds.table(ROWS) in page
    assert race_worlds.example(ROWS[0]) in page
    assert not re.search(r'"/\w', race_worlds.ROWS.read_text(encoding="utf-8"))  # no path of a machine


def test_the_race_gains_where_there_is_a_fault_and_claims_no_more_than_is_there():
    assert [row["world"] for row in ROWS] == [*race_worlds.WORLDS]
    *faults, clean = map(race_worlds.gain, ROWS)
    assert sum(low > 0 for _, low, _ in faults) >= 3
    assert clean[0] > -0.3
    for row, (_, low, high) in zip(ROWS, [*faults, clean], strict=True):
        claimed = re.search(r"[+-][\d.e-]+ \[(\S+), (\S+)\] (?:over|from it)", row["sentence"])
        assert claimed
        assert float(claimed[1]) <= high
        assert float(claimed[2]) >= low
        assert row["cost"]["race"] <= 3 * row["cost"]["temperature"]
