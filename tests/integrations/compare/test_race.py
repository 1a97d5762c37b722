"""``counterpoint race``: what it proposes, what goes on, and what it says of scripts with and without a fault."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from documents import ROOT

from counterpoint.integrations.command.main import main
from counterpoint.integrations.compare import race
from counterpoint.integrations.compare.cells import length_of
from counterpoint.integrations.report.statistics import compare

COMMAND = [str(Path(sys.executable).with_name("counterpoint")), "race"]
FLAGS = ["--metric", "json:results.json:hits", "--steps-flag", "--steps", "--seed-flag", "--seed"]


def test_proposes_rules_at_the_best_temperature_and_near_it():
    assert race.at_temperature("infonce:t=0.05,denominator=negatives", 2) == "infonce:t=0.1"
    assert race.at_temperature("infonce:t=host", 2) is None
    found = race.proposals("infonce:t=0.05", "infonce:t=0.2", ["ids=doc"])
    assert found[:4] == [
        "infonce:t=0.2; duplicates",
        "infonce:t=0.1; duplicates",
        "infonce:t=0.2; ids=doc",
        "infonce:t=0.1; ids=doc",
    ]
    assert "hcl:beta=1,prior=0.02,t=0.2" in found
    assert race.proposals("infonce:t=host", "host", [])[0] == "host; duplicates"


def test_says_what_is_shown_and_no_more():
    base = dict(enumerate([60.0, 61.4, 59.9]))
    better = dict(enumerate([63.0, 64.5, 62.8]))
    same = dict(enumerate([60.4, 60.8, 60.1]))
    cost = {"race": 8.0, "temperature": 4.0}
    rows = compare(base, {"hcl:prior=0.02": better, "longer": same, "host": same})
    said = race.sentence("hcl:prior=0.02", "infonce:t=0.1", rows, "longer", cost, lower=False)
    assert said.startswith("hcl:prior=0.02: +3 [")
    assert "over your loss at t=0.1; the search cost 2 times tuning the temperature alone" in said
    said = race.sentence("hcl:prior=0.02", "infonce:t=0.1", rows, "longer", cost, lower=True)
    assert said.startswith("nothing is shown to beat your loss at t=0.1")
    said = race.sentence("infonce:t=0.1", "infonce:t=0.1", rows, "longer", cost, lower=False)
    assert said.startswith("nothing beats your loss at t=0.1: tuning gained")
    assert race.sentence("host", "host", rows, "longer", cost, lower=False).startswith("nothing beats your loss;")


def test_finds_the_length_among_the_scripts_words():
    assert length_of(["train.py", "--steps", "40"], "--steps") == (2, "", 40.0)
    assert length_of(["train.py", "--steps=40"], "--steps") == (1, "--steps=", 40.0)
    with pytest.raises(ValueError, match="Did you mean '--steps'"):
        length_of(["train.py", "--steps", "40"], "--step")
    with pytest.raises(ValueError, match="expected a number"):
        length_of(["train.py", "--steps", "many"], "--steps")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["auto", *FLAGS[:2], "--set-seed", "--", "train.py"], "--steps-flag: which of the script's flags"),
        (["auto", *FLAGS, "--", "train.py"], "have no --steps with a number"),
        (["auto", *FLAGS[2:], "--", "train.py", "--steps", "8"], "--metric: which number"),
        (["nobody", *FLAGS, "--", "train.py", "--steps", "8"], "unknown host"),
    ],
)
def test_bad_input_is_said(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    assert main(["race", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("copies", "winner"), [(8, "duplicates"), (1, "")])
def test_finds_planted_duplicates_and_nothing_where_there_are_none(tmp_path, copies, winner):
    shutil.copy(ROOT / "tests" / "support" / "planted_train.py", tmp_path / "train.py")
    words = [*FLAGS, "--seeds", "6", "--json", "--", "train.py", "--steps", "160", "--copies", str(copies)]
    runs = [subprocess.run([*COMMAND, "auto", *words], cwd=tmp_path, capture_output=True, text=True) for _ in range(2)]
    found = [json.loads(run.stdout) for run in runs]
    assert found[0]["sentence"] == found[1]["sentence"]  # the second command trains nothing
    assert winner in found[0]["winner"]
    assert found[0]["sentence"].startswith(found[0]["winner"] if winner else "nothing")
