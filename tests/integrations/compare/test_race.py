"""``counterpoint race``: what it proposes, what goes on, and what it says of scripts with and without a fault."""

from __future__ import annotations

import argparse
import functools
import json
import math
import random
import re
import signal
import subprocess
import sys
import time
from html import escape
from pathlib import Path

import pytest
from documents import ROOT
from reports import make

import counterpoint as cp
from counterpoint.integrations import store
from counterpoint.integrations.command.main import build, main
from counterpoint.integrations.compare import commands, comparison, race, running
from counterpoint.integrations.compare.cells import cell, length_of
from counterpoint.integrations.compare.metrics import Metric, Written, curves, read
from counterpoint.integrations.compare.race_commands import RaceSettings
from counterpoint.integrations.compare.race_page import Arm
from counterpoint.integrations.report.statistics import compare
from counterpoint.integrations.search.coordinate import at_temperature
from counterpoint.plugins import inject

COMMAND = [str(Path(sys.executable).with_name("counterpoint")), "race"]
FLAGS = ["--metric", "json:results.json:hits", "--steps-flag", "--steps", "--seed-flag", "--seed"]


def test_proposes_rules_at_multiples_of_the_scripts_own_temperature():
    assert at_temperature("host", "infonce:t=0.05,denominator=negatives", 2) == "infonce:t=0.1"
    assert at_temperature("host; duplicates", "infonce:t=0.05", 1) == "host; duplicates"
    assert at_temperature("host", "infonce:t=host", 2) is None
    assert at_temperature("infonce:radius=0.1; ids=y", "infonce:t=0.05", 2) == "infonce:radius=0.1; ids=y"
    found = race.proposals(["ids=doc"])
    assert found[:2] == ["host; duplicates", "host; ids=doc"]
    assert race.proposals(["duplicates=x['input_ids']"])[:2] == ["host; duplicates=x['input_ids']", race.OBJECTIVES[0]]
    for family in found:
        cp.treatment(at_temperature(family, "infonce:t=0.05", 2))


def test_hcl_begins_at_the_temperature_at_which_its_weights_are_as_sharp():
    """By the theory, and about so by our studies: 1, 2, 4 and 4 times InfoNCE's best where encoders were fine-tuned."""
    own = "infonce:t=0.05"
    assert [at_temperature("hcl:beta=1", own, factor) for factor in (1, 0.5)] == ["hcl:t=0.1", "hcl:t=0.05"]
    assert at_temperature("arcl(hcl:beta=2):views=4; ids=doc", own) == "arcl(hcl:t=0.15,beta=2):views=4; ids=doc"
    assert at_temperature("dcl:prior=0.02", own) == "dcl:t=0.05,prior=0.02"
    assert at_temperature("hcl:beta=1", "infonce:t=host") == "hcl:beta=1"
    for named in ("hcl:t=0.3", "arctanh"):
        assert at_temperature(named, own, 2) == named


def test_says_what_is_shown_and_no_more():
    base = dict(enumerate([60.0, 61.4, 59.9]))
    better = dict(enumerate([63.0, 64.5, 62.8]))
    same = dict(enumerate([60.4, 60.8, 60.1]))
    cost = 2.0
    rows = compare(base, {"hcl:prior=0.02": better, "longer": same, "host": same})
    said = race.sentence("hcl:prior=0.02", "infonce:t=0.1", rows, "longer", cost, better=True)
    assert said.startswith("hcl:prior=0.02: +3 [")
    assert "over your loss at t=0.1; the search cost 2 times tuning the temperature alone; your loss at t=0.1" in said
    said = race.sentence("hcl:prior=0.02", "infonce:t=0.1", rows, "", cost, better=False)
    other = r"the best other, hcl:prior=0.02, is \+3 \[.+?\] from it; the search cost 2 times"
    assert re.match(
        rf"nothing that was tried beats your loss at t=0.1: tuning changed it by \S+ \[.+?\]; {other}", said
    )
    lower = compare(better, {"hcl": base, "host": {seed: value + 1 for seed, value in better.items()}})
    said = race.sentence("hcl", "infonce:t=0.1", lower, "", cost, better=True, lower=True)
    assert re.match(r"hcl: -3 \[.+?\] \(lower is better\) against your loss at t=0.1;", said)
    said = race.sentence("hcl", "infonce:t=0.1", lower, "", cost, better=False, lower=True)
    assert ": tuning changed it by -1 [" in said
    worse = compare(base, {"host": better})
    said = race.sentence("hcl", "infonce:t=0.1", {"host": worse["host"]}, "", cost, better=False)
    assert worse["host"].different
    assert ": tuning changed it by -3 [" in said
    for said in (
        race.sentence("hcl", "t", compare(better, {"host": base}), "", cost, better=False),
        race.sentence("hcl", "t", worse, "", cost, better=False, lower=True),
    ):
        assert ": tuning gained +3 [" in said
    unsure = compare(base, {"hcl:prior=0.02": dict(enumerate([63.0, 58.5, 62.8])), "host": same})
    said = race.sentence("hcl:prior=0.02", "infonce:t=0.1", unsure, "", cost, better=False)
    assert said.startswith("nothing that was tried is shown to beat your loss at t=0.1: tuning changed it by ")
    assert "; the best other, hcl:prior=0.02, is +1 [" in said
    said = race.sentence("host", "host", {"host": None}, "", cost, better=False)
    none = "no other treatment could be compared with your loss"
    assert said == f"{none}; the search cost 2 times tuning the temperature alone."
    said = race.sentence("host", "host", {"host": rows["host"]}, "", cost, better=False)  # which has a verdict
    assert said.startswith(f"{none}: tuning changed it by ")
    assert "the best other" not in said


def test_the_best_other_treatment_is_one_that_gave_numbers():
    own, hcl = Arm("host", "host", 1.0, short=3.0, full=5.0), Arm("hcl", "hcl", 1.0, short=1.0, full=2.0)
    lost = Arm("host; duplicates", "host; duplicates", 1.0, short=2.5, dropped=True)
    failed = Arm("dcl", "dcl", 1.0, short=-math.inf, dropped=True), Arm("rince", "rince", 1.0, short=2.9)
    assert race.ranked([lost, hcl, *failed]) == [hcl, lost]  # the first has been trained to the end
    assert race.ranked([*failed, own]) == [own]


NAMES = """
import torch
import torch.nn.functional as F

layer = torch.nn.Linear(6, 5)


def train(queries, passages):
    x = torch.randn(8, 6)
    a, b = F.normalize(layer(x)), F.normalize(layer(x + 0.1))
    F.cross_entropy(a @ b.T / 0.1, torch.arange(8)).backward()


for _ in range(4):
    train([f"query {i}" for i in range(8)], [f"passage {i % 6}" for i in range(8)])
"""


def test_names_whose_values_repeat_are_tried_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(NAMES)
    *_, offers = comparison.find_loss("runs", "c0de", ["train.py"], [], [])
    assert offers == ["duplicates=passages", "duplicates=queries"]


def stand_in(folder, score, asked, most=16, tune_seeds=1, excluded=0.0, training=None, untrained=lambda one: -100.0):
    """Return a race whose trainings are scores; those of which there is none have failed."""

    def run_cells(cells, metrics=(), **_):
        runs = [store.Run(folder, one) for one in cells]
        for run in (run for run in runs if not run.done):
            asked.append(dict(run.arguments))
            with run.lock():
                run.begin()
                nothing = run.arguments["objective"] == race.UNTRAINED
                if (number := untrained(run.arguments) if nothing else score(run.arguments)) is None:
                    run.fail("ValueError: no 'acc'. Known: accuracy.", "")
                else:
                    keys = excluded if re.search("; (duplicates|ids)", run.arguments["objective"]) else None
                    calls = round(run.arguments.get("length") or 8)
                    time.sleep(0.01 * (training is not None))
                    told = {"step_seconds": [0.1], "training_seconds": training, "metrics": ["acc"], "excluded": keys}
                    run.finish({"acc": number}, calls=calls, **told)
        return runs

    raced = object.__new__(race.Race)
    settings = RaceSettings(objective=("host",), steps_flag="--steps", any_length=False)
    given = {"seed": 0, "seeds": 3, "out": folder, "json": True, "jobs": 1, "on": "local"}
    raced.arguments = argparse.Namespace(**given, settings=RaceSettings(budget=4))
    raced.settings, raced.own, raced.families = settings, "infonce:t=0.05", ["hcl:beta=1"]
    raced.flag, raced.tune_seeds, raced.sign, raced.length = "--steps", tune_seeds, 1, 8.0
    raced.most, raced.arms = most, []
    raced.chosen_by = raced.confirmed_by = Metric.parse("json:r.json:acc")
    raced.cell = functools.partial(cell, "logits", [], ["t.py", "--steps", "8"], "c0de", settings)
    raced._run_cells = run_cells
    return raced


def test_a_number_that_is_missing_stops_the_race_after_one_training(tmp_path):
    asked: list[dict] = []
    with pytest.raises(ValueError, match=r"own loss gave no number: ValueError: no 'acc'\. Known: accuracy"):
        stand_in(tmp_path, lambda one: None, asked).run()
    assert [one["objective"] for one in asked] == ["host"]
    raced = stand_in(tmp_path, lambda one: None, [])
    raced.arguments.json = False  # then the line of the run has the error
    with pytest.raises(ValueError, match=r"^the script's own loss gave no number; its output is in \S+$"):
        raced.run()


@pytest.mark.parametrize(("training", "share"), [(1e-9, 1.0), (None, 0.0), (60.0, 0.0)])
def test_the_time_that_is_left_counts_start_up_once_per_training(tmp_path, training, share):
    """A script that trains for no time beside its imports takes as long with all steps as with a quarter of them."""
    raced = stand_in(tmp_path, lambda one: float(len(one["objective"]) + one["seed"] % 3), [], training=training)
    raced.run()
    assert raced.fixed == pytest.approx(share, abs=1e-3)


def test_a_function_of_several_numbers_has_the_name_of_one(tmp_path):
    raced = stand_in(tmp_path, lambda one: 3.0, [])
    raced.chosen_by = raced.confirmed_by = Metric("script", "score.py", "ndcg", "ndcg", "script:score.py:ndcg")
    with pytest.raises(ValueError, match="expected ndcg, got acc 3; choose one by its name, --metric acc=script:score"):
        raced.run()


def test_a_number_that_is_nan_stops_the_race_too(tmp_path):
    with pytest.raises(ValueError, match="own loss gave no number: expected acc, got acc nan"):
        stand_in(tmp_path, lambda one: math.nan, []).run()


def test_a_flag_that_does_not_set_the_length_is_said(tmp_path):
    """Else four whole trainings would be called four quarters, and 1.5 times the steps would do nothing."""
    raced = stand_in(tmp_path, lambda one: one["seed"] % 7 - len(one["objective"]) / 10, asked := [])
    run_cells = raced._run_cells

    def run_all_to_the_end(cells, *args, **more):
        runs = run_cells(cells, *args, **more)
        for run in runs:
            run.record["details"]["calls"] = 8
        return runs

    raced._run_cells = run_all_to_the_end
    with pytest.raises(ValueError, match=r"reached 8 times with --steps 2 and with 8: is this the flag for the length"):
        raced.run()
    assert all(one.get("purpose") for one in asked)


def test_no_sentence_without_a_number_of_the_own_loss_in_every_seed(tmp_path, capsys):
    """Means over the other seeds would flatter a loss that diverges in some."""

    def score(one: dict) -> float:
        lost = one["seed"] == 1 and not one.get("purpose")
        return math.nan if lost else one["seed"] % 7 - abs(math.log2(len(one["objective"]) / 9))

    assert stand_in(tmp_path, score, []).run() == 1
    shown = capsys.readouterr()
    assert "seed 1 gave no acc: it is NaN" in shown.err
    assert not shown.out


def test_where_all_others_fail_nothing_is_said_to_be_beaten(tmp_path, capsys):

    def score(one: dict) -> float | None:
        if one["objective"].startswith("hcl"):
            return None
        return one["seed"] % 7 / 10 - abs(math.log2(cp.objective(one["objective"], "infonce:t=0.05").temperature))

    raced = stand_in(tmp_path, score, [])
    raced.arguments.json = False
    assert raced.run() == 0
    said = capsys.readouterr().out.replace("\n", " ")
    assert "no other treatment could be compared with your loss at t=0.8: tuning changed it by +4 [" in said
    assert re.search(r"hcl:t=\S+: no number at a quarter, dropped", said)


@pytest.mark.parametrize("gains", [(3.0, 2.0), (-1.0, -2.0)], ids=["of the winner", "of the best other"])
@pytest.mark.parametrize("lost", [None, math.nan], ids=["a crash", "NaN"])
def test_after_a_failure_at_the_whole_length_the_next_is_compared(gains, lost, tmp_path, capsys):
    asked: list[dict] = []

    def score(one: dict) -> float | None:
        name = one["objective"].partition(":")[0]
        if name == "hcl" and not one.get("purpose"):
            return lost  # it diverges on fresh seeds
        gain = {"hcl": gains[0], "dcl": gains[1] + (one["seed"] % 3 - 1) / 10}.get(name, 0.0)
        t = cp.objective(one["objective"].replace("host", "infonce:t=0.05")).temperature / (1 + (name == "hcl"))
        return gain - abs(math.log2(t / 0.05)) + one["seed"] % 7 / 10

    raced = stand_in(tmp_path, score, asked)
    raced.families = ["hcl:beta=1", "dcl:prior=0.1"]
    assert raced.run() == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert shown.err.count("all of it takes about") == 1
    (failed,) = re.findall("(hcl:t=.*) has failed at the whole length", shown.err)
    assert [one["seed"] for one in asked if one["objective"] == failed and not one.get("purpose")] == [0, 1]
    if gains[1] > 0:
        assert found["winner"].startswith("dcl:t=")
        assert found["sentence"].startswith(f"{found['winner']}: +2 [")
    else:
        assert found["sentence"].startswith("nothing that was tried beats your loss")
        assert "the best other, dcl:t=" in found["sentence"]


@pytest.mark.parametrize(("tune_seeds", "most", "hcl"), [(1, 16, 3), (2, 16, 3), (2, 5, 3), (2, 16, -1)])
def test_the_best_of_a_known_landscape_is_found_and_confirmed(tmp_path, capsys, tune_seeds, most, hcl):
    """Scores stand in for trainings: two seeds of the whole length choose, and the first one alone is misled.

    Fresh seeds mend that, since the best other treatment is compared on them even where the script's own loss has won.
    A small search does not spend everything on temperatures of the script's own loss.
    """
    asked: list[dict] = []
    peaks = {"infonce": 0.2, "hcl": 0.4 if most == 5 else 0.2}  # a small search has tried twice the best of your loss

    def score(one: dict) -> float:
        objective = cp.objective(one["objective"].replace("host", "infonce:t=0.05"))
        lucky = 5 if (objective.name, one["seed"], one.get("length")) == ("infonce", 1000, None) else 0
        gain = hcl if objective.name == "hcl" else lucky
        gain += (one["seed"] % 3 - 1) / 10 * (not one["objective"].startswith("infonce"))  # the difference varies
        return gain - abs(math.log2(objective.temperature / peaks[objective.name])) + one["seed"] % 7 / 10

    raced = stand_in(tmp_path, score, asked, most, tune_seeds)
    script = ["t.py", "--steps", "8", "--model={out}/m", "{seed}"]
    raced.cell = functools.partial(cell, "logits", [], script, "c0de", raced.settings)
    assert raced.run() == 0
    found = json.loads(capsys.readouterr().out)
    assert found["command"][-5:] == ["t.py", "--steps", "8", "--model=out/m", "0"]  # as inject can run it
    assert main(["report", str(tmp_path), "--json"]) == 0
    (column,) = json.loads(capsys.readouterr().out)["columns"]
    assert column["baseline"] == found["tuned"]  # as in the sentence, not host
    fresh = [(one["objective"], one.get("length")) for one in asked if not one.get("purpose")]
    best = f"hcl:t={peaks['hcl']:g}"
    assert found["command"][:5] == ["counterpoint", "inject", "logits", "--objective", found["winner"]]
    if hcl > 0:
        assert found["winner"] == best
        assert found["sentence"].startswith(f"{best}: +3 [")
    else:
        assert found["winner"] == "infonce:t=0.2"
        assert found["sentence"].startswith("nothing that was tried beats your loss at t=0.2: tuning gained +2 [")
        assert f"; the best other, {best}, is -1 [" in found["sentence"]
    assert (
        "Not tried at another temperature, since --budget 4 is too small and 9 suffices: hcl:beta=1."
        in found["sentence"]
    ) == (most == 5)
    longer = {("infonce:t=0.2", 12.0)} if hcl > 0 else set()  # where only tuning gains, that is the result
    assert {*fresh} == {(best, None), ("infonce:t=0.2", None), ("host", None), ("0*infonce", 2.0), *longer}
    assert len(fresh) == 12 + 3 * len(longer)
    assert not [one for one in asked if "steps_flag" in one and "length" not in one]  # compare has the same runs
    whole = [one["seed"] for one in asked if one.get("length") is None and one.get("purpose")]
    assert {*whole} == {*range(1000, 1000 + tune_seeds)}


@pytest.mark.parametrize(("drift", "hcl"), [(2.0, -3), (2.0, 3), (0.5, -3)])
def test_a_temperature_that_has_not_gained_on_fresh_seeds_is_not_the_winner(tmp_path, capsys, hcl, drift):
    """Few steps and seeds have chosen it; a treatment that is only better than that would seem to gain."""
    asked: list[dict] = []

    def score(one: dict) -> float:
        objective = cp.objective(one["objective"].replace("host", "infonce:t=0.05"))
        distance = abs(math.log2(objective.temperature / (0.2 if one.get("purpose") else 0.05)))
        if objective.name == "hcl":
            return hcl + (one["seed"] % 3 - 1) / 10
        luck = 0.0 if one.get("purpose") or drift > 1 or one["objective"] == "host" else 2.1 + one["seed"] % 3
        return luck - distance + one["seed"] % 3 / 100

    raced = stand_in(tmp_path, score, asked)
    assert raced.run() == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    fresh = {(one["objective"], one.get("length")) for one in asked if not one.get("purpose")}
    own = "host" if drift > 1 else "infonce:t=0.2"
    assert found["tuned"] == own
    assert {("host", None), ("infonce:t=0.2", None)} < fresh
    assert ((own, 12.0) in fresh) == ("; your loss trained 1.5 times as long: " in found["sentence"]) == (drift > 1)
    if hcl > 0:
        assert found["winner"] == found["other"]
        assert re.match(r"hcl\S+: \+2.99 \[.+?\] over your loss; ", found["sentence"])
    else:
        assert found["winner"] == "host"
        assert "to train with" not in shown.err
        gained = (
            r"your loss: tuning changed it by -2 \["
            if drift > 1
            else r"your loss at t=0.2: tuning changed it by \+1.1 \[-"
        )
        assert re.match(f"nothing that was tried beats {gained}", found["sentence"])


@pytest.mark.parametrize("best", ["host", "infonce"])
def test_the_training_that_counts_the_numbers_is_a_part_of_the_cost(tmp_path, monkeypatch, capsys, best):
    """It is that of the script's own loss, which may not go on."""
    asked: list[dict] = []
    monkeypatch.setattr(store.Run, "metrics", lambda run: [{}] * 8)
    raced = stand_in(tmp_path, lambda one: one["objective"].startswith(best) + one["seed"] % 7 / 10, asked)
    raced.flag, raced.length = None, 0.0
    assert raced.run() == 0
    shown = capsys.readouterr()
    assert shown.err.startswith("first a whole training, to count its numbers: 4 or more, or name a --steps-flag\n")
    found = json.loads(shown.out)
    search = [one for one in asked if one.get("purpose")]
    assert found["cost"]["race"] == sum(one.get("lines", 8) / 8 for one in search)
    assert any(arm["text"] == "host" and arm["dropped"] for arm in found["arms"]) == (best != "host")


def test_a_treatment_that_excludes_nothing_is_dropped_and_said(tmp_path, capsys):
    """Else the script's own loss would be confirmed as equivalent to itself."""
    asked: list[dict] = []

    def score(one: dict) -> float:
        spec = one["objective"].partition(";")[0].replace("host", "infonce:t=0.05")
        return one["seed"] % 7 / 10 - abs(math.log2(cp.objective(spec).temperature / 0.05)) - spec.startswith("hcl")

    raced = stand_in(tmp_path, score, asked)
    raced.families, raced.arguments.json = ["host; duplicates", "hcl:beta=1"], False
    assert raced.run() == 0
    shown = capsys.readouterr()
    reason = "dropped, since in its first training it left out no key, so it was your loss; with dropout or augment"
    assert f"host; duplicates: {reason}" in shown.out.replace("\n", " ")
    assert "the best other, hcl:t=0.05" in shown.out.replace("\n", " ")
    tried = [one["objective"] for one in asked if "duplicates" in one["objective"]]
    assert tried == ["host; duplicates"]  # no further temperature, nor to the end
    raced = stand_in(tmp_path / "alone", score, asked)
    raced.families = ["host; duplicates"]
    assert raced.run() == 0
    assert "Not tried, as" not in json.loads(capsys.readouterr().out)["sentence"]


def test_of_two_treatments_with_equal_numbers_the_second_is_dropped(tmp_path, capsys):
    asked: list[dict] = []

    def score(one: dict) -> float:
        spec = one["objective"].partition(";")[0].replace("host", "infonce:t=0.05")
        gain = 1 if ";" in one["objective"] else -spec.startswith("hcl")
        return one["seed"] % 7 / 10 + gain - abs(math.log2(cp.objective(spec).temperature / 0.05))

    raced = stand_in(tmp_path, score, asked, excluded=3.5)
    raced.families = ["host; duplicates", "host; ids=doc", "hcl:beta=1"]
    raced.arguments.json = False
    assert raced.run() == 0
    shown = capsys.readouterr()
    dropped = "host; ids=doc: dropped, since in its first training it left out as many keys as host; duplicates and had"
    assert dropped in shown.out.replace("\n", " ")
    assert dropped in shown.err
    assert [one["objective"] for one in asked if "ids" in one["objective"]] == ["host; ids=doc"]


@pytest.mark.parametrize(
    ("best", "budget", "own"), [(0.05, 18, [0.5, 1, 2]), (0.2, 18, [0.5, 1, 2, 4, 8]), (0.2, 9, [0.5, 1])]
)
def test_ones_own_loss_is_tuned_at_the_whole_length(tmp_path, capsys, best, budget, own):
    """Its best temperature at a quarter is another one; compared with that, any treatment would seem to gain."""
    asked: list[dict] = []

    def score(one: dict) -> float:
        objective = cp.objective(one["objective"].replace("host", "infonce:t=0.05"))
        optimum = 0.025 if "length" in one else best
        gain = "hcl" in one["objective"] or "dcl" in one["objective"]
        varies = one["objective"] == "host" and one["seed"] % 3 / 10
        return one["seed"] % 7 / 10 + varies - 3 * gain - abs(math.log2(objective.temperature / optimum))

    raced = stand_in(tmp_path, score, asked, most=24)
    raced.families = ["hcl:beta=1", "hcl:beta=2", "dcl:prior=0.1", "dcl:prior=0.2", "hcl:beta=3", "hcl:beta=4"]
    raced.arguments.settings = RaceSettings(budget=budget)
    assert raced.run() == 0
    found = json.loads(capsys.readouterr().out)
    arms = sorted(
        (arm["factor"], arm["text"], arm["edge"])
        for arm in found["arms"]
        if not arm["dropped"] and arm["family"] == "host"
    )
    assert [factor for factor, *_ in arms] == own
    reached = own[-2] if budget == 18 else own[-1]
    assert [(text, edge) for factor, text, edge in arms if factor == reached] == [(found["tuned"], budget == 9)]
    more = re.search(r"has no neighbor on one side; --budget (\d+) trains one more", found["sentence"])
    assert (more is not None) == (budget == 9)
    assert found["winner"] == found["tuned"]
    assert any(arm["family"] != "host" and not arm["dropped"] for arm in found["arms"])
    if more is not None:
        again = stand_in(tmp_path / "more", score, asked, most=24)
        again.families, again.arguments.settings = raced.families, RaceSettings(budget=int(more[1]))
        assert again.run() == 0
        arms = json.loads(capsys.readouterr().out)["arms"]
        assert sum(arm["family"] == "host" and not arm["dropped"] for arm in arms) == len(own) + 1


def test_ones_own_loss_is_in_the_last_comparison_though_the_search_drops_it(tmp_path, capsys):
    """By a tie at a quarter, which says nothing of the whole length."""
    asked: list[dict] = []

    def score(one: dict) -> float:
        return 20.8 + (one["seed"] % 7) ** 2 / 9 + ("0.1" in one["objective"]) / 100

    raced = stand_in(tmp_path, score, asked, most=5)
    raced.arguments.json = False
    assert raced.run() == 0
    note = r"host: acc [\d.]+ at a quarter, dropped by this one seed, but compared"
    assert re.search(note, re.sub(r"\s+", " ", capsys.readouterr().out))
    assert [one["seed"] for one in asked if one["objective"] == "host" and not one.get("purpose")] == [0, 1, 2]


def test_the_best_other_treatment_is_tuned_at_the_whole_length(tmp_path, capsys):
    """Each treatment has a chance to be trained to the end, and the best one at its best temperature there."""

    def score(one: dict) -> float:
        objective = cp.objective(one["objective"].replace("host", "infonce:t=0.05"))
        optimum = 0.2 if objective.name == "hcl" and "length" not in one else 0.05
        gain = {"hcl": 3, "dcl": 0.5, "adnce": -1}.get(objective.name, 0)
        return one["seed"] % 7 / 10 + gain - abs(math.log2(objective.temperature / optimum))

    raced = stand_in(tmp_path, score, [], most=24)
    raced.families, raced.arguments.settings = ["dcl:prior=0.1", "hcl:beta=1", "adnce"], RaceSettings(budget=18)
    assert raced.run() == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["other"], found["tuned"]) == ("hcl:t=0.2", "host")
    ended = {arm["text"] for arm in found["arms"] if not arm["dropped"] and arm["family"] != "host"}
    assert ended == {"hcl:t=0.05", "hcl:t=0.1", "hcl:t=0.2", "hcl:t=0.4", "dcl:t=0.05", "adnce:t=0.05"}


def test_families_go_on_by_the_score_of_their_best_arm(tmp_path, capsys):
    """Not of their worst: ``adnce`` is the best other one at a quarter, and the worst at half of its temperature."""

    def score(one: dict) -> float:
        objective = cp.objective(one["objective"].replace("host", "infonce:t=0.05"))
        halved = objective.temperature < (0.1 if objective.name == "hcl" else 0.05)
        gain = {"hcl": 3.0, "adnce": 4.0, "dcl": 2.0}.get(objective.name, 5.0)
        return one["seed"] % 7 / 10 + gain - halved * {"adnce": 9.0, "hcl": 0.1}.get(objective.name, 0.2)

    raced = stand_in(tmp_path, score, [], most=24)
    raced.families, raced.arguments.settings = ["hcl:beta=1", "adnce", "dcl:prior=0.1"], RaceSettings(budget=6)
    assert raced.run() == 0
    arms = [arm for arm in json.loads(capsys.readouterr().out)["arms"] if arm["family"] != "host"]
    assert {arm["family"] for arm in arms if not arm["dropped"]} == {"adnce", "hcl:beta=1"}


@pytest.mark.parametrize(("budget", "at_edge"), [(9, True), (24, False)])
def test_no_command_is_printed_while_tuning_may_gain_as_much(tmp_path, capsys, budget, at_edge):
    def score(one: dict) -> float:
        objective = cp.objective(one["objective"].replace("host", "infonce:t=0.05"))
        optimum, gain = 0.025 if "length" in one else 0.2, ("hcl" in one["objective"]) * (9 + one["seed"] % 3 / 10)
        return one["seed"] % 7 / 10 + gain - abs(math.log2(objective.temperature / optimum))

    raced = stand_in(tmp_path, score, [], most=24)
    raced.families, raced.arguments.settings = ["hcl:beta=1", "hcl:beta=2"], RaceSettings(budget=budget)
    assert raced.run() == 0
    shown = capsys.readouterr()
    said = json.loads(shown.out)["sentence"]
    assert said.startswith("hcl")
    assert ("has no neighbor on one side, so it may gain as much by itself; --budget" in said) == at_edge
    assert ("to train with hcl" in shown.err) != at_edge


@pytest.mark.parametrize(
    ("budget", "few"), [(3, "your loss's temperatures and of the other treatments, only one each"), (24, "")]
)
def test_the_sentence_says_if_one_treatment_alone_was_trained_to_the_end(tmp_path, capsys, budget, few):
    score = lambda one: one["seed"] % 7 / 10 + len(one["objective"])  # noqa: E731
    raced = stand_in(tmp_path, score, [], most=24)
    raced.families, raced.arguments.settings = ["hcl:beta=1", "dcl:prior=0.1"], RaceSettings(budget=budget)
    assert raced.run() == 0
    said = json.loads(capsys.readouterr().out)["sentence"]
    assert bool(re.search(rf" Of {few} was trained to the end; --budget \d+ trains one more\.", said)) == bool(few)
    assert few or "only" not in said
    assert (
        " Nothing was better at the end than at 1/4 of the length: " in said
    )  # the mean of two seeds is below the first


@pytest.mark.parametrize(
    ("untrained", "growth", "told"),
    [
        (lambda one: -1.0, 0, ""),
        (lambda one: 20.0, 0, "on fresh seeds infonce:t=0.003125 is -1.9 ["),
        (lambda one: 20.0, 40, ""),
        (lambda one: 18.0 + one["seed"] % 3 / 3, 0, "on fresh seeds infonce:t=0.003125 is "),
        (lambda one: 20.0 if one["seed"] >= 1000 else None, 0, "unknown."),  # fails with fresh seeds
    ],
)
def test_what_training_is_worth_is_told_by_fresh_seeds(tmp_path, capsys, untrained, growth, told):
    asked: list[dict] = []
    score = lambda one: one["seed"] % 7 / 10 + len(one["objective"]) + growth * ("length" not in one)  # noqa: E731
    assert stand_in(tmp_path, score, asked, untrained=untrained).run() == 0
    said = json.loads(capsys.readouterr().out)["sentence"]
    warned = " At 1/4 your loss was no better than 0*infonce, which switches it off (4.6 against "
    assert (warned in said) == (untrained({"seed": 1000}) > 0)
    assert (" Training is not shown to help: " in said) == bool(told)
    assert told in said.partition(" Training is not shown to help: ")[2]
    rows = [(one["seed"], one["length"]) for one in asked if one["objective"] == "0*infonce"][1:]
    assert rows == [(0, 2.0), (1, 2.0), (2, 2.0)][: 2 if told == "unknown." else 3]


@pytest.mark.parametrize(("flag", "at"), [("--steps", [20, 40, 60]), ("", [1, 2, 3])])
def test_printed_numbers_are_drawn_over_the_length_of_the_training(tmp_path, flag, at):
    raced = stand_in(tmp_path, lambda one: 3.0, [])
    raced.flag, raced.chosen_by = flag, Metric("output", "", "loss", "loss", "output:loss")
    (run,) = make(tmp_path / "runs", {("train.py", "infonce:t=0.2"): {0: 3.0}}, domain="compare")  # prints it thrice
    assert [x for x, _ in raced._points(run, 60.0, 3.0)] == pytest.approx(at)


def test_a_number_that_grows_with_the_length_is_no_reason_to_doubt_it(tmp_path, capsys):
    score = lambda one: one["seed"] % 7 / 10 + len(one["objective"]) + ("length" not in one)  # noqa: E731
    raced = stand_in(tmp_path, score, [], most=24)
    raced.families, raced.arguments.settings = ["hcl:beta=1"], RaceSettings(budget=12)
    assert raced.run() == 0
    assert "Nothing was better at the end" not in json.loads(capsys.readouterr().out)["sentence"]


@pytest.mark.parametrize("budget", [4, 9])
def test_the_budget_that_is_said_to_suffice_does(tmp_path, capsys, budget):
    def score(one: dict) -> float:
        objective = cp.objective(one["objective"].partition(";")[0].replace("host", "infonce:t=0.05"))
        return one["seed"] % 7 / 10 + (";" in one["objective"]) / 2 - abs(math.log2(objective.temperature / 0.1))

    raced = stand_in(tmp_path, score, [], most=4 * budget // 3, tune_seeds=2, excluded=1.0)
    raced.families, raced.arguments.settings = ["host; ids=doc"], RaceSettings(budget=budget)
    assert raced.run() == 0
    shown = capsys.readouterr()
    tried = {arm["text"] for arm in json.loads(shown.out)["arms"] if arm["family"] != "host"}
    assert tried >= {"infonce:t=0.1; ids=doc", *["host; ids=doc"] * (budget == 9)}
    said = "--budget 4 is too small to try host; ids=doc at another temperature; 9 suffices"
    assert (said in shown.err, "too small" in shown.err) == (budget == 4, budget == 4)
    said = " Not tried at another temperature, since --budget 4 is too small and 9 suffices: host; ids=doc."
    assert (said in shown.out, "Not tried" in shown.out) == (budget == 4, budget == 4)


def test_the_fewest_trainings_try_every_treatment(tmp_path, capsys):
    """Further temperatures of your own loss leave room for one of each; the least budget of 13 treatments is 12."""

    def score(one: dict) -> float:
        objective = cp.objective(one["objective"].replace("host", "infonce:t=0.05"))
        gain = objective.temperature if "length" in one else -abs(math.log2(objective.temperature / 0.05))
        return one["seed"] % 7 / 10 + gain - 2 * (objective.name == "hcl")

    raced = stand_in(tmp_path, score, [], most=16, tune_seeds=2)
    raced.families, raced.arguments.settings = [f"hcl:beta={i}" for i in range(1, 14)], RaceSettings(budget=12)
    assert raced.run() == 0
    arms = json.loads(capsys.readouterr().out)["arms"]
    assert {arm["family"] for arm in arms} == {"host", *raced.families}


def test_a_temperature_at_the_edge_is_marked_in_the_row(tmp_path, capsys):
    """Scores rise with every halving, until the budget ends."""

    def score(one: dict) -> float:
        spec = one["objective"].replace("host", "infonce:t=0.05")
        return one["seed"] % 7 / 10 - math.log2(cp.objective(spec).temperature) - spec.startswith("hcl")

    raced = stand_in(tmp_path, score, [], most=6)
    raced.arguments.json = False
    assert raced.run() == 0
    assert "infonce:t=0.00625 (baseline) (at the edge of the temperatures trained to the end)" in (
        said := " ".join(capsys.readouterr().out.split())
    )
    assert "Not tried, as treatments start at your loss's best temperature: hcl:t=0.1." in said
    (page,) = tmp_path.rglob("report.html")
    assert "at the edge of the temperatures trained to the end)" in page.read_text(encoding="utf-8")


def test_the_time_left_is_that_of_the_whole_race(tmp_path, monkeypatch):
    """In trainings of the length of the part: a quarter first, whole ones then, and none behind the last part."""
    told: list[tuple[int, float]] = []
    raced = stand_in(tmp_path, lambda one: one["seed"] % 7 - abs(math.log2(len(one["objective"]) / 9)), [])
    train = raced.__dict__.pop("_run_cells")
    raced.arguments.script, raced.arguments.resume = ["t.py", "--steps", "8"], False

    def run_cells(run_script, cells, *_, after=0.0, **__):
        told.append((len(cells), after))
        return train(cells), 0

    monkeypatch.setattr(comparison.flags, "run_cells", run_cells)
    assert raced.run() == 0
    assert told[0] == (1, math.inf)  # it may be start-up for the most part, which only its end says
    assert told[1][1] == 4 * (4 + 4.75 * 3) - 1 - told[1][0]  # the budget and three fresh seeds, less those quarters
    assert [after for _, after in told] != sorted(after for _, after in told)
    assert told[-1][1] == 0
    assert (1, 4.75 * 3) in told  # to the end; what is left of the budget is not spent


def test_a_seed_without_effect_ends_the_search_with_the_first_treatment(tmp_path):
    asked: list[dict] = []
    with pytest.raises(ValueError, match="--seed: two seeds give the same numbers"):
        stand_in(tmp_path, lambda one: float(len(one["objective"])), asked, tune_seeds=2).run()
    assert [one["seed"] for one in asked if one.get("length") is None] == [1000, 1001]


def test_equal_numbers_choose_nothing(tmp_path):
    asked: list[dict] = []
    with pytest.raises(ValueError, match=r"all treatments have acc 0\.5 at 1/4 of the length, so none can be chosen"):
        stand_in(tmp_path, lambda one: 0.5, asked).run()
    assert {one["length"] for one in asked} == {2.0}


def test_a_temperature_that_is_not_known_is_not_called_tuned(tmp_path, capsys):

    def score(one: dict) -> float:
        return one["seed"] % 7 / 10 - one["objective"].startswith("hcl")

    raced = stand_in(tmp_path, score, [])
    raced.own = "infonce:t=host"
    assert raced.run() == 0
    said = json.loads(capsys.readouterr().out)["sentence"]
    assert "the temperature of your loss was not tuned, since it is learned, not known, or not the only one" in said
    (page,) = tmp_path.rglob("report.html")
    assert "own temperature,<wbr> which is learned or not known)" in page.read_text()
    assert "times tuning the temperature" not in said


def test_a_script_of_a_named_host_is_watched_too(tmp_path, monkeypatch):
    """For the temperature of its own loss, and for what treatments may be told of; SimCSE's refuses a folder in use."""
    monkeypatch.chdir(tmp_path)
    script = (ROOT / "tests" / "support" / "planted_train.py").read_text(encoding="utf-8")
    empty = "import os, sys; assert not os.listdir(sys.argv.pop(3))\n"
    Path("train.py").write_text(script.replace("import argparse\n", f"import argparse\n{empty}", 1), encoding="utf-8")
    line = next(i for i, text in enumerate(Path("train.py").read_text().splitlines(), 1) if "cross_entropy" in text)
    words = ["logits", *FLAGS, "--site", f"train.py:{line}", "--scale", "20", "--", "train.py", "--steps", "8"]
    arguments = build("race").parse_args(["race", *words, "{out}"])
    arguments.check(arguments)
    raced = race.Race(arguments, inject.typed(arguments, commands.NOT_HERE))
    assert raced.own == "infonce:t=0.05"
    assert "host; ids=doc" in raced.families
    assert raced.cell("host", 0)["host"] == "logits"
    assert f"--site=train.py:{line}" in raced.cell("host", 0)["seam"]


@pytest.mark.parametrize(("typed", "own"), [(["--own", "infonce:t=0.1"], "infonce:t=0.1"), ([], "infonce:t=host")])
def test_a_function_whose_loss_auto_does_not_find_has_the_temperature_of_own(tmp_path, monkeypatch, typed, own):
    def find_loss(*_, **__):
        raise ValueError("auto: found 2 losses to replace")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(comparison, "find_loss", find_loss)
    Path("train.py").write_text("def loss(a, b): ...")
    words = ["function", *FLAGS, "--replace", "train.py:loss(a, b)", *typed, "--", "train.py", "--steps", "8"]
    arguments = build("race").parse_args(["race", *words])
    arguments.check(arguments)
    raced = race.Race(arguments, inject.typed(arguments, commands.NOT_HERE))
    assert raced.own == own
    assert at_temperature("host", raced.own) == "host"


@pytest.mark.parametrize("name", [pytest.param("doc", marks=pytest.mark.slow), "label"])
def test_class_labels_are_not_proposed(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    script = (ROOT / "tests" / "support" / "planted_train.py").read_text(encoding="utf-8")
    Path("train.py").write_text(re.sub(r"\bdoc\b", name, script), encoding="utf-8")
    arguments = build("race").parse_args(["race", "auto", *FLAGS, "--", "train.py", "--steps", "8"])
    arguments.check(arguments)
    families = race.Race(arguments, inject.typed(arguments, commands.NOT_HERE)).families
    assert any(family.endswith(f"; ids={name}") for family in families) is (name == "doc")
    said = capsys.readouterr().err
    assert re.search(r"^found train.py:\d+: infonce:t=0.05$", said, re.M)
    assert ("ids=label is not tried unless you name it: probably class labels" in said) is (name == "label")
    assert "counterpoint inject" not in said  # the report of auto, which this sentence stands for
    next(Path("runs", "compare").glob("auto-*.json")).write_text("{")  # as a process that died leaves it
    words = ["auto", *FLAGS, "--objective", f"host; ids={name}", "--", "train.py", "--steps", "8"]
    arguments = build("race").parse_args(["race", *words])
    arguments.check(arguments)
    race.Race(arguments, inject.typed(arguments, commands.NOT_HERE))
    said = capsys.readouterr().err
    assert "is not tried" not in said
    assert ("ids=label: probably class labels; with them, training is supervised" in said) is (name == "label")


def test_finds_the_length_among_the_scripts_words():
    assert length_of(["train.py", "--steps", "40"], "--steps") == (2, "", 40.0)
    assert length_of(["train.py", "--steps=40"], "--steps") == (1, "--steps=", 40.0)
    assert length_of(["train.py", "--steps", "40", "--steps=80"], "--steps") == (3, "--steps=", 80.0)
    with pytest.raises(ValueError, match="Did you mean '--steps'"):
        length_of(["train.py", "--steps", "40"], "--step")
    with pytest.raises(ValueError, match="expected a number"):
        length_of(["train.py", "--steps", "many"], "--steps")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["auto", *FLAGS[:2], "--set-seed", "--", "train.py"], "--metric must be output:REGEX, to stop runs"),
        (["auto", *FLAGS, "--seeds", "2", "--", "train.py", "--steps", "8"], "--seeds: expected 3 or more"),
        (["auto", *FLAGS, "--", "train.py"], "not among the script's own arguments, -- train.py --steps 400."),
        (["auto", *FLAGS[2:], "--", "train.py", "--steps", "8"], "--metric: which number"),
        (
            ["auto", "--metric", "output:a (.)", "output:b (.)", *FLAGS[2:], "--", "train.py", "--steps", "8"],
            "expected one",
        ),
        (
            ["logits", *FLAGS, "--budget", "2", "--objective", "hcl", "--", "train.py", "--steps", "8"],
            "--budget: expected 3 or more, to try 4 settings, got 2",
        ),
        (["auto", *FLAGS, "--budget", "2", "--", "train.py", "--steps", "8"], "--budget: expected 3 or more"),
        (["nobody", *FLAGS, "--", "train.py", "--steps", "8"], "unknown host"),
        (["auto", *FLAGS, "--", "train.py", "--steps", "1"], "expected 2 or more, to be cut, got 1"),
        (["auto", *FLAGS, "--", "train.py", "--steps", "-1"], "expected 2 or more, to be cut"),
        (["auto", "--metric", "json:r.json:val_loss", *FLAGS[2:], "--", "train.py", "--steps", "8"], "add --lower"),
        (
            ["auto", *FLAGS, "--confirm-metric", "json:r.json:loss", "--", "train.py", "--steps", "8"],
            "--confirm-metric json:r.json:loss: add --lower, since less of a loss is better",
        ),
        (
            ["auto", "duplicates", *FLAGS, "--", "train.py", "--steps", "8"],
            "--objective 'host; duplicates' -- train.py",
        ),
    ],
)
def test_bad_input_is_said(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    assert main(["race", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_missing_package_is_said_before_anything_is_trained(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    monkeypatch.setitem(sys.modules, "scipy", None)
    assert main(["race", "auto", *FLAGS, "--", "train.py", "--steps", "8"]) != 0
    said = capsys.readouterr().err
    assert re.search("needs scipy: (uv )?pip install", said)
    assert not Path("runs").exists()


def test_stops_a_script_that_has_printed_enough(tmp_path):
    log, metric = tmp_path / "log.txt", Metric.parse("output:loss (.+)")
    log.write_bytes(b"\r1/9 loss 3\r2/9 loss 2\r3/9 loss 1.")  # a progress bar; the last number is half written
    assert running._printed([metric], log, 2)
    assert not running._printed([metric], log, 3)
    log.write_bytes(log.read_bytes() + b"5counterpoint: logits: the loss was reached 9 times")
    ended = Written(tmp_path, tmp_path, log, 0, 0, shared=False)
    assert curves([metric], ended) == {1: {"loss": 3.0}, 2: {"loss": 2.0}, 3: {"loss": 1.5}}
    code = "import time\nfor i in range(9): print('loss', i, flush=True); time.sleep(0.1 if i < 3 else 60)"
    with log.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=file, start_new_session=True)
        assert running._wait_for(process, lambda: running._printed([metric], log, 3)) == 0
    assert process.poll() == -signal.SIGTERM
    written = Written(tmp_path, tmp_path, log, 0, 0, shared=False, most=3)
    assert curves([metric], written) == {1: {"loss": 0.0}, 2: {"loss": 1.0}, 3: {"loss": 2.0}}
    assert read([metric], written) == {"loss": 2.0}


def test_a_script_that_is_stopped_says_how_many_keys_were_left_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = planted(Path("train.py"))
    script = ["train.py", "--steps", "100000", "--copies", "8", "--every", "5"]
    seam, settings = ["--site", f"train.py:{line}", "--scale", "20"], RaceSettings(objective=("host",))
    found = cell("logits", seam, script, "c0de", settings, "host; duplicates", 0, lines=2, of="hits (.+)")
    run = store.Run(tmp_path / "runs", found)
    with run.lock():
        run.begin()
        running.train(run, script, [Metric.parse("output:hits (.+)")], jobs=1)
    assert run.details["excluded"] > 1
    assert len(run.metrics()) == 2


def planted(script: Path) -> int:
    """Write the planted script; return the line of its loss."""
    lines = (ROOT / "tests" / "support" / "planted_train.py").read_text()
    script.write_text(lines)
    return next(i for i, line in enumerate(lines.splitlines(), 1) if "F.cross_entropy" in line)


def raced(folder: Path, *words: str) -> list[str]:
    """Return the words of a race of the planted script, and put that into a folder."""
    folder.mkdir(exist_ok=True)
    planted(folder / "train.py")
    return [*COMMAND, "auto", *words]


def result(command: list[str], folder: Path) -> dict:
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(("copies", "winner"), [(8, "; "), (1, "")])
def test_finds_what_helps_against_planted_duplicates_and_nothing_where_there_are_none(tmp_path, copies, winner):
    script = ["train.py", "--steps", "160", "--copies", str(copies)]
    command = raced(tmp_path, *FLAGS, "--seeds", "5", "--json", "--", *script)
    found = result(command, tmp_path)
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert json.loads(again.stdout) == found
    assert "[1/" not in again.stderr  # it has trained nothing
    page = next((tmp_path / "runs" / "compare").glob("race-*/report.html")).read_text(encoding="utf-8")
    assert escape(found["sentence"]) in page
    assert page.count("at a quarter, dropped") >= len(found["arms"]) / 3

    line = planted(tmp_path / "train.py")
    fresh = {}
    for name in ("other", "tuned"):
        words = ["logits", "--site", f"train.py:{line}", "--scale", "20", f"--objective={found[name]}", "--", *script]
        words += ["--seed", "5000", "--count", "20", "--out", "many.json"]
        subprocess.run([COMMAND[0], "inject", *words], cwd=tmp_path, check=True, capture_output=True)
        fresh[name] = dict(enumerate(json.loads((tmp_path / "many.json").read_text())["seeds"]))
    verdict = compare(fresh["tuned"], {"other": fresh["other"]})["other"]
    if winner:
        assert found["sentence"].startswith(found["winner"])
        assert not re.fullmatch(
            r"host|infonce[^;]*", found["winner"]
        )  # a rule, or HCL, whose large temperature does as much
        low, high = map(float, re.search(r"\[(.+?), (.+?)\]", found["sentence"]).groups())
        assert verdict.low > 0
        assert low <= verdict.difference <= high
    else:
        assert found["sentence"].startswith("nothing")
        assert verdict.difference < 0.5


@pytest.mark.slow
def test_killed_five_times_it_ends_in_the_same_sentence(tmp_path):
    words = [*FLAGS, "--seeds", "3", "--budget", "4", "--jobs", "2", "--objective", "host; duplicates", "--json", "--"]
    words += ["train.py", "--steps", "40", "--out", "{out}/results.json"]
    command = raced(tmp_path / "whole", *words)
    began = time.monotonic()
    expected = result(command, tmp_path / "whole")
    seconds, moments = time.monotonic() - began, random.Random(0)
    raced(tmp_path / "killed", *words)
    for _ in range(5):
        process = subprocess.Popen(
            command, cwd=tmp_path / "killed", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(moments.uniform(1, seconds / 3))
        process.kill()
        process.wait()
    assert result(command, tmp_path / "killed") == expected


@pytest.mark.slow
def test_stops_runs_by_what_they_print(tmp_path):
    flags = ["--metric", "output:hits (.+)", "--seed-flag", "--seed", "--seeds", "3", "--json"]
    script = ["--", "train.py", "--steps", "80", "--copies", "8", "--every", "10"]
    words = [*flags, "--budget", "4", "--objective", "host; duplicates", *script]
    found = result(raced(tmp_path, *words), tmp_path)
    assert "1.5 times as long" not in found["sentence"]  # which needs a flag
    runs = store.find_runs(tmp_path / "runs")
    lengths = {len(run.metrics()) for run in runs if run.arguments.get("lines")}
    assert lengths == {2}
    assert {len(run.metrics()) for run in runs if not run.arguments.get("lines")} == {8}
    # compare goes on with the same runs, and has the same verdict
    compared = [COMMAND[0], "compare", "auto", *flags, "--objectives", found["tuned"], found["other"], *script]
    done = subprocess.run(compared, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "[1/" not in done.stderr  # it has trained nothing
    assert len(store.find_runs(tmp_path / "runs")) == len(runs)
    (column,) = json.loads(done.stdout)["columns"]
    row = next(row for row in column["rows"] if row["row"] == found["other"])
    assert f"{row['difference']['difference']:+.3g} [" in found["sentence"]
