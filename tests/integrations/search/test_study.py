"""``counterpoint tune --storage`` and ``--sampler``: searches in Optuna studies that processes share."""

from __future__ import annotations

import json
import math
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from functools import partial

import pytest

import counterpoint as cp
from counterpoint.integrations import store
from counterpoint.integrations.command.main import main
from counterpoint.integrations.domain import domain
from counterpoint.integrations.search import commands, coordinate
from counterpoint.integrations.search.grids import GRIDS as PAPERS
from counterpoint.integrations.search.grids import grids_of

INFONCE = str(cp.objective("infonce"))
optuna = pytest.importorskip("optuna")
from counterpoint.integrations.search import study  # noqa: E402

GRAPH = ["tune", "graph", "--epochs", "1", "--folds", "3", "--hidden", "8", "--baseline", "none"]
GRAPH += ["--objective", "adnce", "--json"]


def score(specs):
    """Of no structure, with failures and ties."""
    numbers = {spec: random.Random(spec).random() for spec in specs}
    return {spec: math.nan if number < 0.1 else round(number, 1) for spec, number in numbers.items()}


def searched(sampler, start, grids, budget, folder, measure=score, **options):
    options = {"storage": None, "name": "one", "settings": {}} | options
    return coordinate.search(partial(study.shared, sampler, start, grids, budget, folder=folder, **options), measure)


def alone(start, grids, budget):
    return coordinate.search(partial(coordinate.coordinate, start, grids, budget), score)


@pytest.mark.parametrize("start", ["adnce", "infonce:t=0.1 + 0.5*adnce:t=0.2", "arcl(infonce:t=0.3):views=4"])
@pytest.mark.parametrize("budget", [1, 9])
def test_the_coordinate_sampler_is_the_search_without_optuna(start, budget, tmp_path):
    start = str(cp.objective(start))
    grids = grids_of(start, {**PAPERS, **domain("image").grids})
    scores = searched("coordinate", start, grids, budget, tmp_path)
    assert str(scores) == str(alone(start, grids, budget))  # NaN equals no NaN


def test_tpe_repeats_nothing_and_ends_where_all_is_tried(tmp_path):
    start, grids = "adnce:t=0.5,denominator=with_positive", {"temperature": (0.1, 0.2), "mu": (0.3, 0.7)}
    scores = searched("tpe", start, grids, 20, tmp_path)
    assert next(iter(scores)) == start
    assert sorted(scores) == study.Space(start, grids).specs()
    assert len(scores) == 3 * 2  # 0.7 is the start's


def test_what_dead_processes_leave_is_finished(tmp_path):
    grids, storage = {"temperature": (0.1, 0.2, 0.3)}, str(tmp_path / "x.log")
    died = RuntimeError("died")

    def die(specs):
        raise died

    with pytest.raises(RuntimeError, match="died"):
        searched("coordinate", INFONCE, grids, 4, tmp_path, die, storage=storage)
    scores = searched("coordinate", INFONCE, grids, 4, tmp_path, storage=storage)
    assert list(scores) == list(alone(INFONCE, grids, 4))
    one = optuna.load_study(study_name="one", storage=study._storage(storage))
    states = [trial.state.name for trial in one.trials]
    assert states == ["FAIL" if math.isnan(value) else "COMPLETE" for value in scores.values()]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sampler", "tpee"], "tpee"),
        (["--storage", "sqlite:////nowhere/x.db"], "--storage sqlite:////nowhere/x.db: no folder /nowhere."),
        (["--storage", "/nowhere/x.log"], "--storage /nowhere/x.log: no folder /nowhere."),
        (["--storage", "tuning"], "--storage tuning: expected a journal file, such as tuning.log, or a URL"),
        (["--storage", "magic://"], "--storage magic:"),
        (["--storage", "://"], "--storage ://:"),
        (["--storage", "x.log", "--fresh"], "--fresh: a study continues"),
        (
            ["--sampler", "tpe", "--out", "s3://bucket/x"],
            "--sampler tpe: the processes of a study lock the folder of --out",
        ),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, words, said):
    pytest.importorskip("torch_geometric")
    try:
        code = main([*GRAPH, "--out", str(tmp_path), *words])
    except SystemExit as end:
        code = end.code
    assert code == 2
    (line,) = (line for line in capsys.readouterr().err.splitlines() if not line.startswith("see "))
    assert said in line


@pytest.mark.slow
def test_another_search_or_folder_is_refused(tmp_path):
    grids, storage = {"temperature": (0.1, 0.2)}, f"sqlite:///{tmp_path}/x.db"
    options = {"storage": storage, "settings": {"dataset": "MUTAG"}}
    search = ("coordinate", INFONCE, grids, 2)
    searched(*search, tmp_path / "a", **options)
    with pytest.raises(ValueError, match=r"--out: .*b is not the folder with the runs of this study"):
        searched(*search, tmp_path / "b", **options)
    with pytest.raises(ValueError, match=r"has a study 'one' with dataset MUTAG, here NCI1; use another storage"):
        searched(*search, tmp_path / "a", **options | {"settings": {"dataset": "NCI1"}})
    with pytest.raises(ValueError, match="with budget 2, here 3"):
        searched("coordinate", INFONCE, grids, 3, tmp_path / "a", **options)


def test_a_missing_optuna_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(commands, "find_spec", lambda name: None)
    assert main([*GRAPH, "--sampler", "tpe", "--out", str(tmp_path)]) != 0
    assert "--sampler tpe needs optuna: pip install" in capsys.readouterr().err


# ---- real runs ---------------------------------------------------------------------------------


def tuned(capsys, *words):
    assert main([*GRAPH, *map(str, words)]) == 0
    return json.loads(capsys.readouterr().out)[0]


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["tuning.log", "sqlite:///tuning.db"])
def test_processes_share_a_study_and_one_is_killed(storage, tmp_path, capsys, monkeypatch):
    pytest.importorskip("torch_geometric")
    monkeypatch.chdir(tmp_path)
    words = ["--budget", "6", "--out", "runs", "--storage", storage]
    command = [sys.executable, "-m", "counterpoint", *GRAPH, *words]
    killed, *others = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    while not list((tmp_path / "runs").rglob("run.json")):
        assert killed.poll() is None
        time.sleep(0.1)
    killed.send_signal(signal.SIGKILL)
    outputs = [process.communicate()[0] for process in [killed, *others]][1:]
    assert outputs[0] == outputs[1]
    (result,) = json.loads(outputs[0])
    stamps = {run.path: (run.path / "run.json").stat().st_mtime_ns for run in store.find_runs("runs")}
    assert len(stamps) == len({row["spec"] for row in result["tried"]}) == 6
    assert {run.arguments["part"] for run in store.find_runs("runs")} == {"tune"}
    assert tuned(capsys, *words) == result  # again: nothing is trained
    assert stamps == {path: (path / "run.json").stat().st_mtime_ns for path in stamps}
    where = study._storage(storage)
    (name,) = optuna.get_all_study_names(where)
    trials = optuna.load_study(study_name=name, storage=where).trials
    assert [trial.state.name for trial in trials if trial.params] == ["COMPLETE"] * 6
    assert all(trial.state.is_finished() for trial in trials)
    plain = tuned(capsys, *words[:2], "--out", "plain")
    assert plain["best"] == result["best"]
    assert sorted(row["spec"] for row in plain["tried"]) == sorted(row["spec"] for row in result["tried"])


@pytest.mark.slow
def test_the_dashboard_and_importances(tmp_path, capsys):
    pytest.importorskip("torch_geometric")
    pytest.importorskip("optuna_dashboard")
    journal = tmp_path / "tuning.log"
    words = ["--budget", "5", "--sampler", "tpe", "--storage", journal, "--out", tmp_path / "runs"]
    result = tuned(capsys, *words)
    one = optuna.load_study(study_name=None, storage=study._storage(str(journal)))
    assert set(optuna.importance.get_param_importances(one)) == {"temperature", "mu", "sigma"}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = "from optuna_dashboard._cli import main; main()"
    process = subprocess.Popen([sys.executable, "-c", code, str(journal), "--port", str(port)])
    try:
        for _ in range(240):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/studies/0?after=0") as page:
                    trials = json.load(page)["trials"]
                break
            except OSError:
                assert process.poll() is None
                time.sleep(0.5)
        assert [trial["values"] for trial in trials] == [[row["mean"]] for row in result["tried"]]
    finally:
        process.terminate()
        process.wait()
