"""What is refused before anything runs, the cells of a comparison, and what runs say about each other."""

from __future__ import annotations

import argparse
import math
import shlex
import shutil
from functools import partial
from pathlib import Path

import pytest
from documents import ROOT

import counterpoint as cp
from counterpoint.integrations import report, store
from counterpoint.integrations.command import main as main_module
from counterpoint.integrations.command.main import build, main
from counterpoint.integrations.compare import commands, comparison
from counterpoint.integrations.compare.cells import cell, words
from counterpoint.integrations.compare.comparison import _time_notes, same_numbers, tuned
from counterpoint.integrations.compare.metrics import Metric
from counterpoint.integrations.compare.settings import Settings
from counterpoint.integrations.search.coordinate import with_value
from counterpoint.plugins import inject

TOY = ROOT / "tests" / "support" / "toy_train.py"
LINE = next(i for i, line in enumerate(TOY.read_text().splitlines(), 1) if "cross_entropy(50" in line)
SITE = f"--site train.py:{LINE} --scale 50"
READ = "--metric json:results.json:test"


@pytest.fixture
def here(tmp_path, monkeypatch):
    shutil.copy(TOY, tmp_path / "train.py")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "which host? Known: simcse"),
        ("logit --objective host hcl --set-seed R -- train.py", "unknown host 'logit'. Did you mean 'logits'?"),
        ("logits --objective host hcl --set-seed R -- tran.py", "script not found: tran.py"),
        ("logits --objective host hcl --set-seed R", "which script? Put it behind --"),
        ("logits -- train.py", "--objective: expected two or more"),
        ("logits -- -m train", "--objective: expected two or more"),
        ("logits --objective host --set-seed R -- train.py", "--objective: expected two or more"),
        ("logits --objective host host --set-seed R -- train.py", "--objective: expected two or more"),
        ("logits --set-seed R -- train.py", "--objective: expected two or more"),
        ("logits --objective host hcl --set-seed -- train.py", "--metric: which number"),
        (
            "logits --objective host hcl --margin -1 --set-seed R -- train.py",
            "--margin: expected a number of at least 0",
        ),
        ("logits --objective host hcl --set-seed R R -- train.py", "--metric: two are named 'test'"),
        ("logits --objective host hcl R -- train.py", "how does the script get its seed? Expected one way, got 0"),
        ("logits --objective host hcl --set-seed R -- train.py {seed}", "Expected one way, got 2"),
        (
            "logits --objective host hcl --baseline dcl --set-seed R -- train.py",
            "expected one of the objectives: host, hcl",
        ),
        ("logits --objective host hcl --jobs 2 --set-seed R -- train.py", "write to {out}, the folder of each run"),
        ("logits --objective host hcl --link data --set-seed R -- train.py", "has no effect without --copy"),
        ("logits --objective host hcl --copy --link data --set-seed R -- train.py", "expected a file or folder"),
        ("logits --objective host hcl --copy --set-seed R -- /etc/hostname", "expected a script in it"),
        ("logits --objective host hcl --tune 3 --set-seed R -- train.py", "--tune: by which number?"),
        ("logits --objective host hcl --tune 3 --tune-M R --set-seed -- train.py", "must not choose settings"),
        ("logits --objective host hcl --grid t=1 --set-seed R -- train.py", "--grid: has no effect without --tune"),
        ("logits --objective host hcl --set-seed R -- torchrun train.py", "--set-seed: torchrun starts the script in"),
        (
            "logits --objective host hcl --tune 3 --tune-metric script:train.py:f R -- torchrun train.py {seed}",
            "script:FILE:FUNCTION: torchrun",
        ),
        ("logits --objective host hcl --set-seed R -- torchrun tran.py", "script not found: tran.py"),
        ("logits --objective host hcl R -- torchrun --standalone", "which script? Put it behind --"),
        ("curl --objective host hcl --set-seed R -- train.py", "is not a clone of"),
        ("lightly --objective host hcl --scale 3 --set-seed R -- train.py", "--scale: lightly has no such option"),
        ("lightly --objective host arcl(hcl):views=4 --set-seed R -- train.py", "asks for 4 views"),
    ],
)
def test_what_is_wrong_is_told_before_anything_runs(here, capsys, monkeypatch, line, said):
    if not line.startswith(("curl", "lightly")):  # whose plugins are asked
        monkeypatch.setattr(main_module, "_import_torch", lambda: pytest.fail("the names are checked too late"))
    line = line.replace("--tune-M R", f"--tune-metric {READ.split()[1]} {READ}")
    line = line.replace("R R", f"{READ} {READ.split()[1]}").replace(" R", f" {READ}")
    assert main(["compare", *shlex.split(line)]) == 2
    assert said in capsys.readouterr().err
    assert not (here / "runs").exists() or not list((here / "runs").rglob("run.json"))


def settings(line: str) -> argparse.Namespace:
    arguments = build("compare").parse_args(["compare", *shlex.split(line)])
    arguments.check(arguments)
    return arguments


def test_several_objectives_are_separated_by_spaces(here, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["compare", "logits", "--objective", "host,hcl", "--", "train.py"])
    assert "'host,hcl': separate objectives by spaces, as in host hcl" in capsys.readouterr().err


def test_items_of_treatments_are_checked(here, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["compare", "logits", "--objective", "host", "host; duplicate", "--", "train.py"])
    assert "'duplicate'. Did you mean 'duplicates'?" in capsys.readouterr().err


def test_the_plural_is_the_same_flag(here):
    found = settings(f"logits --objectives host hcl {READ} {SITE} --set-seed -- train.py")
    assert [spec.partition(":")[0] for spec in found.settings.objective] == ["host", "hcl"]


def test_flags_may_precede_the_host(here):
    found = settings(f"--objective host hcl {READ} {SITE} --set-seed logits -- train.py --steps 9")
    assert (found.host, found.script, found.settings.set_seed) == ("logits", ["train.py", "--steps", "9"], True)


def test_flags_of_the_script_can_be_values(here):
    found = settings(f"logits {SITE} --seed-flag --seed --objective host hcl {READ} -- train.py --steps 9")
    assert found.settings.seed_flag == "--seed"
    assert found.script == ["train.py", "--steps", "9"]
    assert inject.typed(found, commands.NOT_HERE) == ["--scale=50", f"--site=train.py:{LINE}"]
    assert found.seeds == 5


@pytest.mark.parametrize(
    ("script", "flags", "expected"),
    [
        ("t.py --lr 1", {"seed_flag": "--seed"}, "t.py --lr 1 --seed 3"),
        ("t.py --s={seed} -o {out}/x", {}, "t.py --s=3 -o OUT/x"),
        ('t.py {"a":{seed}}', {}, 't.py {"a":3}'),
    ],
)
def test_the_arguments_of_a_run(script, flags, expected):
    arguments = cell("logits", [], script.split(), "c0de", Settings(**flags), "hcl", 3)
    assert words(store.Run("runs", arguments).arguments, script.split(), Path("OUT")) == expected.split()


@pytest.fixture
def done(tmp_path):
    """Make finished runs from ``(objective, seed, calls, seconds of a step, number)``, with ``first`` gradients."""

    def make(*rows, first=(), **more):
        runs = []
        for i, (objective, seed, calls, seconds, number) in enumerate(rows):
            told = {"first_gradient": first[i]} if first else {}
            arguments = cell("logits", [], ["t.py"], "c0de", Settings(), objective, seed, **more)
            run = store.Run(tmp_path, arguments)
            with run.lock():
                run.begin()
                run.finish({"acc": number}, calls=calls, step_seconds=seconds, metrics=[], **told)
            runs.append(run)
        return runs

    return make


def test_runs_that_reach_the_loss_less_often_are_named(done):
    runs = done(("host", 0, 40, 1, 1), ("hcl", 0, 39, 1, 1), ("host", 1, 30, 1, 1), ("hcl", 1, 30, 1, 1))
    assert [(run is runs[1], text) for run, text in comparison.uneven(runs)] == [
        (True, "t.py, hcl, seed 0: the loss was reached 39 times, with host 40 times")
    ]


def test_time_is_stated(done):
    runs = done(
        ("host", 0, 9, 0.1, 1),
        ("hcl", 0, 9, 0.24, 2),
        ("dcl", 0, 9, 0.1, 2),
        ("host", 1, 9, 0.1, 3),
        ("hcl", 1, 9, 0.21, 4),
    )
    assert not [*_time_notes(runs[:2], "host")]  # one run each may be a busy moment
    (note,) = _time_notes(runs, "host")
    assert note == "time of a step, as a multiple of host's: hcl 2.25 (2.10 to 2.40)"
    runs += done(("host", 2, 9, 0.1, 1), ("hcl", 2, 9, 0.22, 2))
    notes = list(_time_notes(runs, "host"))  # two seeds may be a busy machine
    assert notes[1].startswith("hcl had more time than host; train host longer")
    runs += done(("dcl", 2, 9, 0.05, 2))  # resumed when nothing else ran
    (note,) = _time_notes(runs, "host")
    assert note.endswith("a multiple of host's: not known, since that of dcl went from 0.05 to 0.1 s between runs")


def test_the_page_has_the_scripts_own_loss(done):
    runs = done(
        *((spec, seed, 9, 1, seed + i) for seed in range(3) for i, spec in enumerate(["host", "infonce:t=0.2"]))
    )
    page = report.html(report.summarise(runs, baseline="host"))
    assert ">host" in page
    assert "<svg" in page


def test_a_seed_without_effect_is_seen(done):
    same = done(("host", 0, 9, 1, 0.5), ("hcl", 0, 9, 1, 0.6), ("host", 1, 9, 1, 0.5), ("hcl", 1, 9, 1, 0.6))
    assert same_numbers(same)
    assert not same_numbers(same[:2] + done(("host", 1, 9, 1, 0.7), ("hcl", 1, 9, 1, 0.6)))
    lost = done(*((spec, seed, 9, 1, math.nan) for seed in range(2) for spec in ("host", "dcl")))
    assert not same_numbers(lost)  # NaN says nothing of the seed
    assert same_numbers([*same, *lost])


@pytest.mark.parametrize(("first", "same"), [((7.5, 7.50001), True), ((7.5, 7.6), False), ((0.0, 0.0), True)])
def test_seeds_with_the_same_coarse_number_are_no_repetitions(done, first, same):
    assert same_numbers(done(("hcl", 0, 9, 1, 0.5), ("hcl", 1, 9, 1, 0.5), first=first)) == same


def test_every_objective_is_tuned_with_the_same_budget(tmp_path):
    """And with a seed of its own; the script's own loss has nothing to tune."""
    asked: list[dict] = []

    def run_cells(cells, **_):
        asked.extend(cells)
        runs = [store.Run(tmp_path, each) for each in cells]
        for run in runs:
            with run.lock():
                run.begin()
                temperature = cp.objective(run.arguments["objective"].partition(";")[0]).temperature
                run.finish({"dev": abs(0.2 - temperature), "beta": 0})
        return runs

    def make(spec, seed, **more):
        return cell("logits", [], ["t.py"], "c0de", Settings(), spec, seed, **more)

    specs, metric = ["host", "infonce:t=1", "hcl:t=0.05"], Metric.parse("output:dev (.+)")
    grid = (("t", (0.1, 0.2, 0.3, 0.5)),)
    alone = {"tune_metric": metric, "tune_seeds": 1}
    best, edges = tuned(specs, Settings(tune=5, grid=grid, lower=True, **alone), make, run_cells)
    assert edges == {}
    assert [cp.objective(best[spec]).temperature for spec in specs[1:]] == [0.2, 0.2]
    assert {(each["purpose"], each["seed"]) for each in asked} == {("tuning", 1000)}
    assert [sum(each["objective"].startswith(name) for each in asked) for name in ("infonce", "hcl")] == [5, 5]
    asked.clear()
    tuned(specs, Settings(tune=6, **alone), make, run_cells)
    assert [sum(each["objective"].startswith(name) for each in asked) for name in ("infonce", "hcl")] == [6, 6]
    asked.clear()
    best, _ = tuned(["0*infonce", "infonce"], Settings(tune=2, **alone), make, run_cells)
    assert [*best] == ["infonce"]  # whatever its settings, the other trains nothing
    asked.clear()
    specs = ["host; duplicates", "hcl; duplicates"]
    best, _ = tuned(specs, Settings(tune=4, **alone), make, run_cells, seed=1001)
    assert [*best] == ["hcl; duplicates"]
    assert asked[1]["objective"] == "hcl:t=0.2; duplicates"  # the denominator stays the host's
    assert {each["seed"] for each in asked} == {1001}


def test_tuning_ends_with_its_first_training_if_that_fails(tmp_path):
    """A wrong name of the number fails in every one."""
    asked: list[dict] = []

    def run_cells(cells, **_):
        asked.extend(cells)
        return [store.Run(tmp_path, each) for each in cells]

    settings = Settings(tune=3, tune_seeds=2, tune_metric=Metric.parse("output:dev (.+)"))
    with pytest.raises(ValueError, match="--tune: the first training failed"):
        tuned(["infonce", "hcl"], settings, partial(cell, "logits", [], ["t.py"], "c0de", Settings()), run_cells)
    assert len(asked) == 1


def test_tuning_starts_at_the_scripts_temperature_and_names_an_edge(tmp_path):
    """HCL at twice that; the script's own is the first to be tried beside it, and the nearest ones come first."""
    asked: list[str] = []

    def run_cells(cells, **_):
        asked.extend(each["objective"] for each in cells)
        runs = [store.Run(tmp_path, each) for each in cells]
        for run in runs:
            with run.lock():
                run.begin()
                temperature = cp.objective(run.arguments["objective"].partition(";")[0]).temperature
                run.finish({"dev": -abs(math.log(temperature / 0.1))})
        return runs

    def make(spec, seed, **more):
        return cell("logits", [], ["t.py"], "c0de", Settings(), spec, seed, **more)

    settings = Settings(tune=6, tune_seeds=1, tune_metric=Metric.parse("output:dev (.+)"))
    own, specs = "infonce:t=0.05,denominator=negatives", ["infonce", "hcl:beta=1; ids=doc"]
    best, edges = tuned(specs, settings, make, run_cells, own=own)
    first = ["infonce:t=0.05", "infonce:t=0.025", "infonce:t=0.1", "infonce:t=0.0125", "infonce:t=0.2"]
    assert asked[:5] == first
    assert asked[6:9] == ["hcl:t=0.1; ids=doc", "hcl:t=0.05; ids=doc", "hcl:t=0.2; ids=doc"]
    assert best == {"infonce": "infonce:t=0.1", "hcl:beta=1; ids=doc": "hcl:t=0.1; ids=doc"}
    assert "infonce:t=0.1" not in edges
    wide = Settings(tune=3, tune_seeds=1, tune_metric=settings.tune_metric)
    _, edges = tuned(["infonce"], wide, make, run_cells, own=own)
    assert edges == {"infonce:t=0.1": "at the edge of its grid: temperature"}
    asked.clear()
    tuned(["infonce:t=5e-2"], wide, make, run_cells, own=own)  # near .05, not near 5
    assert asked[1:] == ["infonce:t=0.025", "infonce:t=0.1"]
    typo = Settings(tune=3, tune_metric=settings.tune_metric, grid=(("temp", (0.1, 0.2)),))
    with pytest.raises(ValueError, match="--grid: no row has a number 'temp' to tune: infonce, hcl:beta=1; ids=doc"):
        tuned(["host", *specs], typo, make, run_cells, own=own)
    assert tuned(["infonce"], typo, make, run_cells, own=own) == ({}, {})  # the placebo of rows that have it


def test_the_mean_of_two_seeds_chooses(tmp_path):
    def run_cells(cells, **_):
        runs = [store.Run(tmp_path, each) for each in cells]
        for run in runs:
            with run.lock():
                run.begin()
                lucky = (run.arguments["objective"], run.arguments["seed"]) == ("infonce:t=0.5", 1000)
                run.finish({"dev": 9.0 if lucky else cp.objective(run.arguments["objective"]).temperature == 0.2})
        return runs

    def make(spec, seed, **more):
        return cell("logits", [], ["t.py"], "c0de", Settings(), spec, seed, **more)

    settings = {"tune": 3, "tune_metric": Metric.parse("output:dev (.+)"), "grid": (("t", (0.2, 0.5)),)}
    found = [tuned(["infonce:t=1"], Settings(tune_seeds=n, **settings), make, run_cells)[0] for n in (1, 2, 20)]
    assert [one["infonce:t=1"] for one in found] == ["infonce:t=0.5", "infonce:t=0.5", "infonce:t=0.2"]


@pytest.mark.parametrize(
    ("spec", "name", "value", "expected"),
    [
        ("hcl", "temperature", 0.2, "hcl:t=0.2"),
        ("hcl:beta=1; ids=batch['doc']", "prior", 0.01, "hcl:prior=0.01; ids=batch['doc']"),
        ("arcl(adnce) + 0.1*dp", "mu", 0.5, "arcl(adnce:mu=0.5) + 0.1*dp"),
        ("infonce:denominator=negatives", "temperature", 0.3, "infonce:t=0.3,denominator=negatives"),
    ],
)
def test_tuning_changes_one_thing(spec, name, value, expected):
    assert with_value(spec, name, value) == expected


def test_rows_are_named_as_they_are_typed(here, done):
    rows = ["host", "host; duplicates", "hcl:beta=1; ids=batch['doc']"]
    found = settings(f"logits --objective {shlex.join(rows)} {READ} {SITE} --set-seed -- train.py")
    assert found.settings.objective == rows
    runs = done(*((row, 0, 9, 1, 0.5) for row in rows))
    assert [run.name for run in runs] == [run.arguments["objective"] for run in runs] == rows


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ("host", '"hcl:beta=1,t=0.1" (temperature); "dcl:denominator=negatives; ids=x.t" (denominator)'),
        ("infonce:t=0.1,denominator=negatives", ""),
        ("infonce:t=0.05,denominator=negatives", '"hcl:beta=1,t=0.1" (temperature)'),
        (  # of several losses, each row's part that differs from one of them
            "infonce:t=0.1,denominator=negatives + infonce:t=0.05,denominator=negatives",
            '"hcl:beta=1,t=0.1" (temperature)',
        ),
    ],
)
def test_a_row_says_in_what_it_differs_from_the_scripts_own_loss(done, own, said):
    rows = ["host", "arcl(hcl):views=2", "hcl:t=host", "hcl:beta=1,t=0.1", "dcl:denominator=negatives; ids=x.t"]
    rows += ["infonce"] * (own == "infonce:t=0.1,denominator=negatives")
    runs = done(*((row, 0, 9, 1, 0.5) for row in rows))
    for run in runs:
        run.details["own"] = own
    expected = [f"settings of their own, where other rows have the host's: {said}"] if said else []
    if "infonce" in rows:
        why = "they differ by rounding, which training magnifies, so read other differences of that size alike"
        expected.append(f"infonce and host are one loss: {why}")
    if own != "host":  # which also says what the specs of rows leave out
        expected.append("rows that name no denominator have the host's, denominator=negatives: name it in a script")
    assert list(comparison.own_settings(runs)) == expected


@pytest.mark.parametrize(("luck", "told"), [(0, False), (3, True)])
def test_a_placebo_that_differs_is_told(done, luck, told):
    rows = [("infonce:t=0.1", seed, 9, 1, 70 + seed) for seed in range(5)]
    again = [("infonce:t=0.5", seed, 9, 1, 70 + seed + luck + 0.1 * (-1) ** seed) for seed in range(5)]
    summary = report.summarise(done(*rows) + done(*again, label="placebo"), baseline="infonce:t=0.1")
    said = list(comparison.placebo_notes(summary.columns, "infonce:t=0.1"))
    assert bool(said) is told
    assert not said or "do not trust the verdicts on tuned rows: placebo and infonce:t=0.1 are one loss" in said[0]
