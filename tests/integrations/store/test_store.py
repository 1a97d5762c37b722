"""The store of runs: whatever ends a process, the same call goes on, and ends with what an undisturbed grid has."""

from __future__ import annotations

import argparse
import fcntl
import gc
import io
import json
import math
import multiprocessing
import os
import pty
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import warnings
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import toy_grid
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import PATIENCE, session

import counterpoint as cp
from counterpoint.integrations import flags, report, store
from counterpoint.integrations.control import settings as control_settings
from counterpoint.integrations.graph import settings as graph_settings
from counterpoint.integrations.store import files, grid, progress, reproduce
from counterpoint.integrations.store.cell import REQUIRED, row_name
from counterpoint.integrations.store.folder import at_once

CELL = {"domain": "toy", "dataset": "clusters", "objective": "infonce:t=0.2", "seed": 0}
SCRIPT = Path(toy_grid.__file__)
FORK = multiprocessing.get_context("fork")
quietly = partial(store.run_grid, progress=False)


def constant(run):
    run.finish({"seed": run.arguments["seed"]})


def forked(function, *arguments):
    process = FORK.Process(target=function, args=arguments)
    process.start()
    return process


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    root = tmp_path_factory.mktemp("undisturbed")
    quietly(toy_grid.train, toy_grid.cells(), root)
    return toy_grid.contents(root)


# ---- interruptions -----------------------------------------------------------------------------


def test_killed_at_random_moments(tmp_path, undisturbed):
    rng = random.Random(0)
    deaths = 0
    while True:
        process = forked(partial(quietly, partial(toy_grid.train, pause=0.02), toy_grid.cells(), tmp_path))
        process.join(rng.uniform(0.02, 0.25 + 0.01 * deaths))  # longer and longer, so that a slow machine ends too
        if process.exitcode is not None:
            break
        process.kill()
        process.join()
        deaths += 1
    assert process.exitcode == 0
    assert deaths > 3
    assert toy_grid.contents(tmp_path) == undisturbed


def test_the_table_of_a_killed_grid_is_that_of_an_undisturbed_one(tmp_path):
    tables = []
    for root in (tmp_path / "killed", tmp_path / "undisturbed"):
        if root.name == "killed":
            process = forked(partial(quietly, partial(toy_grid.train, pause=0.01), toy_grid.cells(3), root))
            while len(list(root.rglob("checkpoint.pt"))) < 3:
                time.sleep(0.001)
            process.kill()
            process.join()
        quietly(toy_grid.train, toy_grid.cells(3), root)
        tables.append(report.terminal(report.summarise(store.find_runs(root))))
    assert tables[0] == tables[1]
    assert "3 paired seeds" in tables[0]


def killed_at(call, root):
    """Trains a grid in this process, which dies at the given call of what changes names or waits for the disk."""
    calls = 0

    def dying(function):
        def wrapped(*arguments):
            nonlocal calls
            calls += 1
            if calls == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments)

        return wrapped

    os.replace, os.fsync = dying(os.replace), dying(os.fsync)
    quietly(toy_grid.train, toy_grid.cells(1)[:1], root)


def test_killed_at_every_step_of_every_write(tmp_path, undisturbed):
    for call in range(1, 1000):
        root = tmp_path / str(call)
        process = forked(killed_at, call, root)
        process.join()
        quietly(toy_grid.train, toy_grid.cells(1)[:1], root)
        (one,) = toy_grid.contents(root).items()
        assert one in undisturbed.items()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    assert call > 4 * toy_grid.STEPS  # each save alone waits three times and renames once


def start(root, jobs, pause):
    command = [sys.executable, str(SCRIPT), str(root), str(jobs), str(pause)]
    return session(command, stdout=subprocess.DEVNULL)


def wait_for(condition, process):
    while not condition():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)


def test_spawned_processes_go_with_the_one_that_is_killed(tmp_path, undisturbed):
    process = start(tmp_path, 2, 0.1)
    wait_for(lambda: len(list(tmp_path.rglob("checkpoint.pt"))) == 2, process)
    process.kill()
    process.wait()
    begun = [run for run in store.find_runs(tmp_path) if not run.done]
    deadline = time.monotonic() + PATIENCE
    while any(run.folder.busy for run in begun):  # their locks are free when they are gone
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not all(run.done for run in store.find_runs(tmp_path))
    quietly(toy_grid.train, toy_grid.cells(), tmp_path)
    assert toy_grid.contents(tmp_path) == undisturbed


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_ctrl_c(tmp_path, undisturbed, jobs):
    process = start(tmp_path, jobs, 0.1 if jobs == 1 else 1.0)  # workers look once a second
    wait_for(lambda: list(tmp_path.rglob("checkpoint.pt")), process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    said = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == -signal.SIGINT
    assert "stopped; 0 of 4 runs have ended; the same command resumes" in said
    assert said.count("Traceback") == 1  # of the script, which does not catch it
    assert {run.record["status"] for run in store.find_runs(tmp_path)} == {"interrupted"}
    quietly(toy_grid.train, toy_grid.cells(), tmp_path)
    assert toy_grid.contents(tmp_path) == undisturbed


# ---- several processes -------------------------------------------------------------------------


def noted(run):
    """Trains, and notes who did."""
    with (run.folder.root / "log").open("a") as file:
        file.write(f"{run.path.relative_to(run.folder.root)} {os.getpid()}\n")
    toy_grid.train(run, pause=0.02)


def test_processes_race_for_the_runs_of_one_grid(tmp_path, undisturbed, monkeypatch):
    monkeypatch.setattr(grid, "POLL", 0.02)
    processes = [forked(quietly, noted, toy_grid.cells(), tmp_path) for _ in range(3)]
    for process in processes:
        process.join()
        assert process.exitcode == 0  # it returns when all runs are done, not only its own
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert sorted(path for path, _ in lines) == sorted(map(str, undisturbed))  # each once
    assert len({pid for _, pid in lines}) > 1
    (tmp_path / "log").unlink()
    assert toy_grid.contents(tmp_path) == undisturbed


def hold(root, path):
    run = store.Run(root, CELL)
    with run.lock():
        run.begin()
        path.touch()
        time.sleep(600)


def test_the_lock_of_a_dead_process_is_free(tmp_path):
    process = forked(hold, tmp_path, tmp_path / "held")
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    run = store.Run(tmp_path, CELL)
    with pytest.raises(store.BusyError), run.lock():
        pass
    assert run.record["status"] == "running"
    process.kill()
    process.join()
    (run,) = quietly(constant, [CELL], tmp_path)
    assert run.result == {"seed": 0}


def dies_once(run):
    if run.arguments == store.canonical(toy_grid.cells()[1]) and not run.metrics():
        run.log(0)
        os.kill(os.getpid(), signal.SIGKILL)
    toy_grid.train(run)


def test_a_run_whose_process_dies_goes_on_in_another(tmp_path, undisturbed, capfd):
    runs = store.run_grid(dies_once, toy_grid.cells(), tmp_path, jobs=2)
    assert [run.arguments for run in runs] == [store.canonical(cell) for cell in toy_grid.cells()]
    assert "submitted again: ConnectionError: its process died of signal 9" in capfd.readouterr().err
    assert toy_grid.contents(tmp_path) == undisturbed


def uses_its_streams(run):
    print("not an outcome")
    run.finish({"read": len(sys.stdin.read()), "threads": int(os.environ["OMP_NUM_THREADS"])})


@pytest.mark.slow
def test_training_may_print_read_and_use_its_share_of_threads(tmp_path, monkeypatch, capfd):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    runs = quietly(uses_its_streams, [CELL, CELL | {"seed": 1}], tmp_path, jobs=2)
    assert [run.result for run in runs] == [{"read": 0, "threads": 3}] * 2
    printed, errors = capfd.readouterr()
    assert (printed, errors.count("not an outcome")) == ("", 2)


def dies_afterwards(run):
    if "steps" in run.arguments:
        toy_grid.train(run, pause=0.3)
    else:
        constant(run)
        threading.Timer(0.5, os._exit, [3]).start()


@pytest.mark.slow
def test_a_process_may_die_while_it_has_no_run(tmp_path):
    runs = quietly(dies_afterwards, [CELL, *toy_grid.cells()[:1]], tmp_path, jobs=2)
    assert all(run.done for run in runs)


def test_a_function_that_others_cannot_import(tmp_path):
    with pytest.raises(ValueError, match="train: other processes cannot import the training function"):
        quietly(lambda run: None, [CELL, CELL | {"seed": 1}], tmp_path, jobs=2)


# ---- failures ----------------------------------------------------------------------------------


def test_a_failing_cell_stops_no_other(tmp_path, capsys):
    def train(run):
        if run.arguments["seed"] == 0:
            raise ValueError("no such data\nand more")
        constant(run)

    cells = [CELL | {"seed": seed} for seed in (0, 1)]
    with pytest.raises(store.GridError) as caught:
        store.run_grid(train, cells, tmp_path)
    assert str(caught.value) == (
        "1 of 2 runs failed, see error.txt in their folders: clusters, infonce:t=0.2, seed 0 (ValueError: no such data)"
    )
    bad, good = caught.value.runs
    assert (bad.record["status"], bad.record["error"], bad.result) == ("failed", "ValueError: no such data", None)
    assert 'raise ValueError("no such data' in (bad.path / "error.txt").read_text()
    assert good.result == {"seed": 1}
    assert "[1/2] clusters, infonce:t=0.2, seed 0: failed: ValueError" in (capsys.readouterr().err)
    again = quietly(constant, cells, tmp_path)
    assert [run.result for run in again] == [{"seed": 0}, {"seed": 1}]
    assert not (bad.path / "error.txt").exists()


def test_a_grid_is_prepared_once_and_only_if_there_are_runs_to_train(tmp_path):
    cells, calls = [CELL | {"seed": seed} for seed in (0, 1)], []
    for _ in range(2):
        runs = quietly(constant, cells, tmp_path, prepare=lambda: calls.append(1))
        assert [run.result for run in runs] == [{"seed": 0}, {"seed": 1}]
        assert len(calls) == 1


def test_a_command_shows_what_others_found(tmp_path, capsys):
    def train(run):
        if run.arguments["seed"] == 0:
            raise ValueError("no such data")
        constant(run)

    parser = argparse.ArgumentParser()
    flags.add_arguments(parser, "infonce")
    given = parser.parse_args(["--out", str(tmp_path), "--json"])
    runs, code = flags.run_cells(train, [CELL | {"seed": seed} for seed in (0, 1)], given, "train graph")
    assert (code, [run.flat() for run in runs]) == (
        1,
        [runs[0].arguments | {"name": runs[0].name, "seed": 1, "folder": str(runs[0].path)}],
    )
    assert "counterpoint train graph: 1 of 2 runs failed" in capsys.readouterr().err
    runs, code = flags.run_cells(constant, [CELL | {"seed": seed} for seed in (0, 1)], given, "train graph")
    assert (code, [run.result for run in runs]) == (0, [{"seed": 0}, {"seed": 1}])


def test_training_that_does_not_finish_has_failed(tmp_path):
    with pytest.raises(store.GridError, match=r"returned without run.finish\(result\)"):
        quietly(lambda run: None, [CELL], tmp_path)


def fill_the_disk(root):
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))  # more in one file cannot be written

    def train(run):
        run.save({"x": torch.zeros(1000)}, 1)
        run.log(2, loss=2.0)
        run.save({"x": torch.zeros(100_000)}, 2)

    quietly(train, [CELL], root)


def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path, capfd):
    process = forked(fill_the_disk, tmp_path)
    process.join()
    assert process.exitcode == 1
    assert "OSError: [Errno 27] File too large" in capfd.readouterr().err
    run = store.Run(tmp_path, CELL)
    assert run.record["status"] == "failed"
    assert toy_grid.plain(run.load()) == {"x": [0.0] * 1000, "step": 1}
    assert not list(run.path.glob("*.tmp"))


# ---- checkpoints and metrics -------------------------------------------------------------------


def saved(root, steps=2):
    run = store.Run(root, CELL)
    with run.lock():
        run.begin()
        for step in range(1, steps + 1):
            run.log(step, loss=step / 2)
            run.save({"x": torch.full((500,), float(step))}, step)
        run.log(steps + 1, loss=0.0)
    return run


def flip(path):
    """One bit of a tensor changes."""
    content = bytearray(path.read_bytes())
    at = content.index(torch.full((500,), 2.0).numpy().tobytes()) + 700
    content[at] ^= 1
    path.write_bytes(content)


def halve(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path):
    path.write_bytes(b"")


def folder(path):
    path.unlink()
    path.mkdir()
    (path / "file").touch()


def other_keys(path):
    torch.save({"x": torch.ones(1)}, path)


def other_type(path):
    torch.save([1, 2], path)


@pytest.mark.parametrize("damage", [flip, halve, empty, other_keys, other_type])
def test_with_a_damaged_checkpoint_a_run_begins_anew(tmp_path, damage):
    run = saved(tmp_path)
    damage(run.path / "checkpoint.pt")
    with run.lock():
        with pytest.warns(RuntimeWarning, match=r"checkpoint\.pt: damaged \(.*\); not used, the run begins anew"):
            assert run.load() is None
        assert run.metrics() == []
        run.save({"x": torch.ones(1)}, 2)
        assert run.load()["step"] == 2


def test_who_asks_for_a_state_hears_that_it_is_damaged(tmp_path):
    run = saved(tmp_path)
    empty(run.path / "checkpoint.pt")
    with pytest.raises(store.DamagedError, match="damaged"):
        store.Run.read(run.path).load()


def test_who_only_looks_changes_nothing(tmp_path):
    run = saved(tmp_path)
    halve(run.path / "checkpoint.pt")
    before = {path: path.read_bytes() for path in run.path.iterdir()}
    with pytest.raises(store.DamagedError):
        store.Run.read(run.path).load()
    assert {path: path.read_bytes() for path in run.path.iterdir()} == before
    for write in (partial(run.log, 1, loss=1.0), partial(run.save, {}, 1), partial(run.finish, {"a": 1})):
        with pytest.raises(RuntimeError, match=r"acquire run.lock\(\) before writing"):
            write()


def test_metrics_after_the_checkpoint_and_half_lines_are_dropped(tmp_path):
    run = saved(tmp_path)
    assert [line["step"] for line in run.metrics()] == [1, 2, 3]
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    assert [line["step"] for line in run.metrics()] == [1, 2, 3]
    with run.lock():
        run.load()
        run.log(3, loss=float("nan"))
    assert (run.path / "metrics.jsonl").read_text().splitlines() == [
        '{"step": 1, "loss": 0.5}',
        '{"step": 2, "loss": 1.0}',
        '{"step": 3, "loss": null}',
    ]
    assert str(run.metrics()[-1]["loss"]) == "nan"


def test_metrics_that_were_lost_before_the_checkpoint_leave_whole_lines(tmp_path):
    run = saved(tmp_path)
    with (run.path / "metrics.jsonl").open("r+b") as file:
        file.truncate(30)  # within the second line
    with run.lock():
        run.load()
        run.log(3, loss=3.0)
    assert [line["step"] for line in run.metrics()] == [1, 3]


def test_training_that_never_loads_starts_its_metrics_anew(tmp_path):
    run = saved(tmp_path)
    with run.lock():
        run.log(1, loss=7.0)
    assert run.metrics() == [{"step": 1, "loss": 7.0}]


def test_a_broken_line_within_is_told(tmp_path):
    run = saved(tmp_path)
    (run.path / "metrics.jsonl").write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.warns(RuntimeWarning, match=r"metrics.jsonl: not readable, left out: line 2"):
        assert run.metrics() == [{"step": 1}, {"step": 3}]


# ---- what is in a run --------------------------------------------------------------------------


def test_the_record(tmp_path):
    def train(run):
        run.data("abc")
        run.finish({"accuracy": 1, "rho": float("nan")}, folds=[1, 2])

    (run,) = quietly(train, [CELL | {"epochs": 3}], tmp_path)
    record = json.loads((run.path / "run.json").read_text(), parse_constant=pytest.fail)
    assert record["arguments"] == CELL | {"objective": str(cp.objective(CELL["objective"])), "epochs": 3}
    assert (record["result"], record["details"]) == ({"accuracy": 1.0, "rho": None}, {"folds": [1, 2]})
    assert (record["data"], record["status"], record["error"]) == ("abc", "done", None)
    assert {"python", "torch", "counterpoint", "numpy"} <= set(record["versions"])
    assert record["host"]["threads"] == torch.get_num_threads()
    assert record["started"] <= record["finished"]
    assert str(run.result["rho"]) == "nan"
    assert run.path.parts[-4:-2] == ("toy", "clusters")
    assert run.path.parts[-2].startswith("infonce-t=0.2-denominator=with_positive-")
    assert run.path.name == "seed0"


def test_details_may_be_what_evaluations_return(tmp_path):
    folds = np.array([0.5, np.nan])
    (run,) = quietly(
        lambda run: run.finish({"a": folds[0]}, folds=folds, best=torch.ones(2).argmax()), [CELL], tmp_path
    )
    assert run.details == {"folds": [0.5, None], "best": 0}
    with pytest.raises(store.GridError, match=r"expected plain JSON, arrays or tensors, got <object"):
        quietly(lambda run: run.finish({"a": 1}, model=object()), [CELL | {"seed": 1}], tmp_path)
    (run,) = quietly(constant, [CELL | {"seed": np.int64(3), "lr": torch.tensor(0.5)}], tmp_path)
    assert (run.arguments["seed"], run.arguments["lr"]) == (3, 0.5)


def test_finished_runs_are_skipped_unless_done_afresh(tmp_path):
    cells = [CELL, CELL | {"objective": " infonce : temperature=0.2 "}]  # the same
    one, same = quietly(constant, cells, tmp_path)
    assert one.path == same.path
    quietly(pytest.fail, cells, tmp_path)
    (one.path / "encoder.bin").touch()
    quietly(lambda run: run.finish({"anew": 1}), cells, tmp_path, resume=False)
    (run,) = store.find_runs(tmp_path)
    assert run.result == {"anew": 1}
    assert not (run.path / "encoder.bin").exists()


def test_other_data_than_a_run_began_with(tmp_path):
    def train(run):
        run.data(run.folder.root.joinpath("data").read_text())
        raise ValueError("interrupted")

    for text, said in (("one", "interrupted"), ("one", "interrupted"), ("two", "began with data of checksum one")):
        (tmp_path / "data").write_text(text)
        with pytest.raises(store.GridError, match=said):
            quietly(train, [CELL], tmp_path)


def test_another_version_is_told(tmp_path, monkeypatch, capsys):
    with pytest.raises(store.GridError):
        quietly(lambda run: None, [CELL], tmp_path)
    monkeypatch.setattr(cp, "__version__", "99")
    reproduce.versions.cache_clear()
    quietly(constant, [CELL], tmp_path)
    reproduce.versions.cache_clear()
    assert "resumes with another version of counterpoint than it began with" in capsys.readouterr().err


VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
REST = st.dictionaries(st.text(min_size=1).filter(lambda key: key not in REQUIRED), VALUES, max_size=3)


@settings(max_examples=60, deadline=None)
@given(REST, REST, st.text(min_size=1), st.text(min_size=1), st.integers(0, 9), st.integers(0, 9))
def test_a_folder_for_each_cell(first, second, data1, data2, seed1, seed2):
    cells = [CELL | {"dataset": d, "seed": s} | r for d, s, r in ((data1, seed1, first), (data2, seed2, second))]
    one, two = (store.Run("root", cell) for cell in cells)
    same = json.dumps(cells[0], sort_keys=True) == json.dumps(cells[1], sort_keys=True)
    assert (one.path == two.path) == same
    assert one.path == store.Run("root", dict(reversed(cells[0].items()))).path
    assert len(one.path.relative_to("root").parts) == 4
    assert ".." not in one.path.parts
    assert json.loads(json.dumps(one.arguments)) == one.arguments


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"objective": "adnec"}, "Did you mean 'adnce'"),
        ({"objective": None}, "a row without an objective needs a label"),
        ({"seed": -1}, "seed must be a whole number with 0 <= seed"),
        ({"seed": True}, "seed must be a whole number"),
        ({"dataset": ""}, "dataset must be a name"),
        ({"lr": object()}, "lr must be plain JSON"),
        ({"lr": float("nan")}, "lr must be plain JSON"),
    ],
)
def test_bad_cells(tmp_path, change, said):
    with pytest.raises(ValueError, match=said):
        quietly(constant, [CELL, CELL | change], tmp_path)
    assert store.find_runs(tmp_path) == []


def test_public_names_are_imported_when_they_are_used():
    for package in (store, report):
        assert all(getattr(package, name) is not None for name in package.__all__)
        with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'runs'"):
            package.runs  # noqa: B018


@pytest.mark.filterwarnings("ignore:.*not readable as JSON")  # of a file, before its error
def test_bad_calls(tmp_path):
    with pytest.raises(ValueError, match=r"cell: expected domain, dataset, objective, seed, got domain\."):
        quietly(constant, [{"domain": "toy"}], tmp_path)
    with pytest.raises(ValueError, match="jobs must be at least 1, got 0"):
        quietly(constant, [CELL], tmp_path, jobs=0)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        quietly(constant, [CELL], tmp_path / "file")
    with pytest.raises(store.GridError, match="result must hold at least one number"):
        quietly(lambda run: run.finish({}), [CELL], tmp_path)


def test_a_command_prints_each_warning_once(capsys):
    with warnings.catch_warnings(), store.plain_warnings():
        warnings.simplefilter("always")
        for text in ("one class", "one class", "no class"):
            warnings.warn_explicit(text, RuntimeWarning, store.__file__, 1)
    assert capsys.readouterr().err == "one class\nno class\n"


def test_what_is_no_run(tmp_path):
    with pytest.raises(ValueError, match="no run there"):
        store.Run.read(tmp_path)
    with pytest.raises(ValueError, match="no such folder"):
        store.find_runs(tmp_path / "x")
    (tmp_path / "run.json").write_text("{")
    with pytest.warns(RuntimeWarning, match=r"run\.json: not readable as JSON"):
        assert store.find_runs(tmp_path) == []
    for content in ([], {}, "run", {"arguments": store.canonical(CELL), "status": "done", "result": {"accuracy": 1.0}}):
        (tmp_path / "run.json").write_text(json.dumps(content))
        with pytest.warns(RuntimeWarning, match=r"run\.json: damaged \(it does not match its checksum\); left out"):
            assert store.find_runs(tmp_path) == []
    for content in ({"status": "done"}, {"arguments": {"seed": 0}}):
        (tmp_path / "run.json").write_text(json.dumps(files.signed(content)))
        with pytest.warns(RuntimeWarning, match=r"run\.json: not the record of a run; left out"):
            assert store.find_runs(tmp_path) == []


def test_a_damaged_run_is_named_once_by_a_command(tmp_path, capsys):
    """Though it is opened twice, the second time in a thread."""
    path = store.Run(tmp_path, CELL).path
    path.mkdir(parents=True)
    (path / "run.json").write_text("{")
    with progress.plain_warnings():
        warnings.simplefilter("always")
        store.Run(tmp_path, CELL)
        at_once(partial(store.Run, tmp_path), [CELL])
    assert re.fullmatch(r"\S+run.json: not readable as JSON.*; not used\n", capsys.readouterr().err)


@pytest.mark.parametrize("change", ["digit", "metric", "seed", "no checksum"])
def test_a_record_that_was_edited_is_refused(tmp_path, change):
    (run,) = quietly(toy_grid.train, [CELL], tmp_path)
    path = run.path / "run.json"
    record = json.loads(path.read_text())
    if change == "digit":
        record["result"][next(iter(record["result"]))] += 1
    elif change == "metric":
        record["result"]["other"] = 1.0
    elif change == "seed":
        record["arguments"]["seed"] = 7
    else:
        del record["checksum"]
    path.write_text(json.dumps(record))
    with pytest.warns(RuntimeWarning, match=r"run\.json: damaged \(it does not match its checksum\); left out"):
        assert store.find_runs(tmp_path) == []
    with pytest.warns(RuntimeWarning, match="not used"):
        (again,) = quietly(toy_grid.train, [CELL], tmp_path)
    assert (again.result, again.done) == (run.result, True)


def test_a_result_of_another_run_is_refused(tmp_path):
    one, other = quietly(toy_grid.train, [CELL, {**CELL, "seed": CELL["seed"] + 1}], tmp_path)
    record = {**one.record, "result": other.record["result"], "checksum": other.record["checksum"]}
    (one.path / "run.json").write_text(json.dumps(record))
    with pytest.raises(store.DamagedError, match="does not match its checksum"):
        store.Run.read(one.path)


def test_the_checkpoint_of_another_run_is_not_resumed(tmp_path):
    run, other = saved(tmp_path / "here"), store.Run(tmp_path / "there", {**CELL, "seed": CELL["seed"] + 1})
    with other.lock():
        other.begin()
        other.save({"x": torch.full((500,), 9.0)}, 5)
    shutil.copy(other.path / "checkpoint.pt", run.path / "checkpoint.pt")
    with run.lock(), pytest.warns(RuntimeWarning, match=r"checkpoint\.pt: the checkpoint of another run; not used"):
        assert run.load() is None


def test_what_a_run_left_and_is_damaged_is_named(tmp_path):
    (run,) = quietly(kept, [CELL], tmp_path)
    assert len(run.metrics()) == 1
    for line in ('{"loss": 1.0}', '{"step": 1, "loss": "low"}', "[1]", "x"):
        (run.path / "metrics.jsonl").write_text(f"{line}\n")
        with pytest.warns(RuntimeWarning, match=r"metrics\.jsonl: not readable, left out: line 1$"):
            assert run.metrics() == []


@pytest.mark.parametrize("damage", [halve, empty])
def test_a_damaged_record_is_replaced_and_its_run_goes_on(tmp_path, damage, undisturbed):
    cell = toy_grid.cells(1)[0]
    (run,) = quietly(toy_grid.train, [cell], tmp_path)
    damage(run.path / "run.json")
    with pytest.warns(RuntimeWarning, match=r"run\.json: not readable as JSON.*; not used"):
        (again,) = quietly(toy_grid.train, [cell], tmp_path)
    assert (again.result, again.done) == (run.result, True)
    (one,) = toy_grid.contents(tmp_path).items()
    assert one in undisturbed.items()


def test_any_flipped_bits_leave_a_report_of_the_other_runs(tmp_path):
    """Every command that reads runs names what it cannot read, and goes on."""

    def train(run):
        for step in range(1, 4):
            run.log(step, loss=1.0 / step)
        run.finish({"accuracy": 50.0 + run.arguments["seed"]})

    *_, run = quietly(train, [CELL | {"seed": seed} for seed in range(3)], tmp_path)
    rng = random.Random(0)
    for name in ("run.json", "metrics.jsonl"):
        whole = (run.path / name).read_bytes()
        for _ in range(150):
            content = bytearray(whole)
            for _ in range(rng.randint(1, 3)):
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            (run.path / name).write_bytes(content[: rng.choice([None, None, rng.randrange(len(content))])])
            with warnings.catch_warnings(record=True):
                warnings.simplefilter("always")
                runs = store.find_runs(tmp_path)
                assert 2 <= len(runs) <= 3
                for found in runs:
                    found.metrics()
                if len({found.arguments["seed"] for found in runs}) == len(runs):  # else two say they are the same
                    report.RENDER["json"](report.summarise(runs))
        (run.path / name).write_bytes(whole)


def kept(run):
    run.log(1, loss=0.5)
    run.finish({"accuracy": 1.0})


# ---- random numbers, files, progress, flags ----------------------------------------------------


def draw():
    return random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(2).tolist()


def test_random_states_survive_a_checkpoint(tmp_path):
    store.seed_everything(3)
    first = draw()
    store.seed_everything(3)
    assert draw() == first
    torch.save(store.rng_state(), tmp_path / "rng.pt")
    second = draw()
    assert second != first
    store.seed_everything(4)
    store.set_rng_state(torch.load(tmp_path / "rng.pt", weights_only=True))
    assert draw() == second


def test_atomic_files(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")

    def write_half():
        with store.atomic(path) as file:
            file.write(b"ne")
            raise ValueError

    with pytest.raises(ValueError):
        write_half()
    assert path.read_bytes() == b"old"
    with store.atomic(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_checksums(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a").write_text("one")
    (tmp_path / "b").write_text("two")
    found = {store.checksum(tmp_path), store.checksum(tmp_path / "b"), store.checksum("two"), store.checksum("t", "wo")}
    assert len(found) == 4
    (tmp_path / "b").rename(tmp_path / "c")
    found.add(store.checksum(tmp_path))
    (tmp_path / "c").write_text("three")
    found.add(store.checksum(tmp_path))
    assert len(found) == 6
    assert store.checksum(b"two", memoryview(b"x")) == store.checksum("two", "x")


def test_progress_is_one_line_where_there_is_no_terminal(capsys, monkeypatch):
    clock = iter(range(0, 1000, 12))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    assert list(store.track(range(3, 9), "epochs", 9, 3)) == list(range(3, 9))
    assert capsys.readouterr().err == "epochs: 7/9 after 48 s, about 32 s left\n"


def test_a_part_of_a_grid_says_its_place_in_the_whole_and_the_time_left(tmp_path, monkeypatch):
    clock, lines = iter(range(0, 99999, 600)), []
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    cells = [CELL | {"seed": seed} for seed in (0, 1)]
    store.run_grid(constant, cells, tmp_path, before=2, total=7, progress=lines.append)
    assert [line.partition("]")[0] for line in lines] == ["[3/7", "[4/7"]
    assert all(re.search(r", about [\d]+ min left$", line) for line in lines), lines
    lines.clear()
    store.run_grid(constant, cells, tmp_path, before=2, total=7, progress=lines.append)
    assert lines == []  # the caller, which knows the whole, says it once
    store.run_grid(constant, [CELL | {"seed": seed} for seed in (2, 3)], tmp_path, progress=lines.append, after=40)
    minutes = [int(re.search(r", about (\d+) min left$", line)[1]) for line in lines]
    assert minutes[0] > minutes[1] > 300  # other grids follow the last of these runs


def test_the_time_left_does_not_halve_when_the_second_of_two_jobs_ends(monkeypatch):
    monkeypatch.setattr(progress.time, "monotonic", lambda: 600.0)
    said = [progress.left(0.0, done, 12, jobs=2) for done in (1, 2)]
    assert said == [", about 55 min left", ", about 50 min left"]
    assert progress.left(0.0, 1, 12) == ", about 110 min left"
    assert progress.left(0.0, 1, math.inf) == ""


def test_progress_is_a_bar_on_a_terminal(monkeypatch):
    pytest.importorskip("tqdm")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with open(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        assert list(store.track(range(2, 5), "epochs", 5, 2)) == [2, 3, 4]
        terminal.write("end")
        terminal.flush()
        said = os.read(ours, 10000).decode()
    os.close(ours)
    assert "epochs:  40%" in said
    assert "2/5" in said


def test_torch_is_enough(tmp_path):
    """Without tqdm and numpy: a grid runs and says how far it is."""
    code = f"""
import sys
from importlib.abc import MetaPathFinder
class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tqdm", "numpy", "matplotlib", "scipy", "sklearn"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Missing())
sys.path.insert(0, {str(SCRIPT.parent)!r})
import toy_grid
from counterpoint.integrations import store
store.run_grid(toy_grid.train, toy_grid.cells(1), {str(tmp_path)!r})
assert "numpy" not in sys.modules
"""
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "[2/2] clusters, adnce:t=0.2,mu=0.5, seed 0: apart " in result.stderr


def parsed(*words, **how):
    parser = argparse.ArgumentParser(exit_on_error=False)
    flags.add_arguments(parser, "infonce", **{"settings": graph_settings.Settings, **how})
    return parser.parse_args([*words])


def test_flags(capsys):
    found = parsed("--objective", "hcl", "adnce:mu=0.4", "--seeds", "3", "--epochs", "0", "--preset", "paper",
                  "--fresh", presets=["paper"])  # fmt: skip
    assert found.objective == [str(cp.objective("hcl")), str(cp.objective("adnce:mu=0.4"))]
    assert (found.seed, found.seeds, found.epochs, found.preset, found.resume) == (0, 3, 0, "paper", False)
    assert (found.out, found.device, found.jobs, found.json) == (Path("runs"), "cpu", 1, False)
    assert parsed("--steps", "7", settings=control_settings.Settings).steps == 7
    for words, said in (
        (("--objective", "adnec"), "Did you mean 'adnce'"),
        (("--seeds", "0"), "expected a whole number of at least 1, got '0'"),
        (("--device", "abc"), "unknown device 'abc'"),
        (("--resume", "--fresh"), "not allowed with"),
    ):
        with pytest.raises((argparse.ArgumentError, SystemExit)) as caught:
            parsed(*words)
        assert said in str(caught.value) + capsys.readouterr().err


# ---- names --------------------------------------------------------------------------------------


def test_a_run_on_a_folder_has_a_short_name(tmp_path):
    """The path stays part of what identifies the run."""
    photos, others = tmp_path / "deep" / "my_photos", tmp_path / "elsewhere" / "my_photos"
    cell, other = ({**CELL, "dataset": str(folder)} for folder in (photos, others))
    run = store.Run(tmp_path / "runs", cell)
    assert run.path.parts[-3] == "my_photos"
    assert run.title == "my_photos, infonce:t=0.2, seed 0"
    assert store.Run(tmp_path / "runs", other).path.parent != run.path.parent
    (done,) = store.run_grid(constant, [cell], tmp_path / "runs", progress=False)
    table = report.terminal(report.summarise([done]))
    assert "my_photos" in table
    assert "deep" not in table


@pytest.mark.parametrize(
    ("cell", "folder"),
    [
        (CELL, "toy/clusters/infonce-t=0.2-denominator=with_positive-d993e599/seed0"),
        (
            {**CELL, "objective": "adnce", "seed": 3},
            "toy/clusters/adnce-t=0.5-denominator=with_positive-844448fe/seed3",
        ),
    ],
)
def test_the_folder_of_a_cell_is_that_of_earlier_versions(cell, folder, tmp_path):
    """Labels may change, but a run that was stored once must be found."""
    assert store.Run(tmp_path, cell).path == tmp_path / folder


def test_the_row_of_an_objective_that_is_not_defined_here_is_its_spec():
    assert row_name({**CELL, "objective": "their_own:t=3"}) == "their_own:t=3"


def test_progress_counts_what_can_be_counted():
    assert list(progress.track([1, 2, 3], "three")) == [1, 2, 3]
    assert list(progress.track(iter("ab"), "unknown")) == ["a", "b"]


# ---- long and large ------------------------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch):
    """What is opened, by the names of files, how many texts are parsed as JSON, and how many specs are read."""
    opened, parsed, specs = Counter(), [], []
    with_open, loads, parse = io.open, json.loads, cp.spec.parse

    def opening(file, *args, **options):
        opened[Path(file).name if isinstance(file, (str, Path)) else file] += 1
        return with_open(file, *args, **options)

    monkeypatch.setattr(io, "open", opening)
    monkeypatch.setattr(json, "loads", lambda text, **options: parsed.append(text) or loads(text, **options))
    monkeypatch.setattr("counterpoint.spec.parse", lambda text, *args: specs.append(text) or parse(text, *args))
    return opened, parsed, specs


def finished(root, seeds, lines):
    cells = [{**CELL, "objective": spec, "seed": seed} for spec in ("infonce", "hcl") for seed in range(seeds)]

    def train(run):
        for step in range(lines):
            run.log(step, loss=float(step), rate=math.nan if step % 2 else 0.5)
        run.finish({"accuracy": 1.0 + run.arguments["seed"]})

    quietly(train, cells, root)
    return cells


def test_a_report_reads_each_file_once(tmp_path, counted):
    finished(tmp_path, 3, 200)
    opened, parsed, _ = counted
    opened.clear(), parsed.clear()
    summary = report.summarise(store.find_runs(tmp_path))
    for name in ("terminal", "json", "html"):
        report.RENDER[name](summary)
    assert (opened["run.json"], opened["metrics.jsonl"]) == (6, 6)


def test_a_finished_grid_reads_its_records_once_and_nothing_else(tmp_path, counted):
    cells = finished(tmp_path, 20, 1)
    opened, parsed, specs = counted
    opened.clear(), parsed.clear(), specs.clear()
    quietly(None, cells, tmp_path)
    assert opened == {"run.json": 40}
    assert sum('"status"' in text for text in parsed) == len(specs) == 40


DAMAGED = [
    "", "[1]", "{}", '{"step": 1', '"loss": 2}', '{"step": 1}, {"step": 2}', '{"step": {}}', '{"step": 1, "a": "}',
    '{"step": 1e999}', '{"step": true}', '{"a": 1}', '{"step": NaN}', '{"step": "1"}', "{\udcff}",
    '{"step": ' + 5000 * "1" + "}", '{"step": ' + 400 * "1" + "}",
]  # fmt: skip


@pytest.mark.parametrize("line", DAMAGED, ids=range(len(DAMAGED)))
@pytest.mark.parametrize("other", ["", '", "b": 2}', '"loss": 2}', "{", "}"])
def test_damaged_lines_are_named_however_lines_are_parsed(tmp_path, line, other):
    """Together, two damaged lines may look like a whole one, or one like two."""
    run = saved(tmp_path)
    lines = ['{"step": 1, "loss": null}', line, other, '{"step": 4, "loss": 0.5}']
    (run.path / "metrics.jsonl").write_bytes("".join(x + "\n" for x in lines).encode("utf-8", "surrogateescape"))
    with pytest.warns(RuntimeWarning, match=r"not readable, left out: line 2, line 3$"):
        logged = run.metrics()
    assert [one["step"] for one in logged] == [1, 4]
    assert math.isnan(logged[0]["loss"])


@pytest.mark.slow
def test_100_000_steps_without_growth_of_memory(tmp_path):
    """Of the process that trains, with a schedule, logs and checkpoints; measured after a warm-up and at the end."""

    def memory():
        gc.collect()
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))

    run, steps, kib = store.Run(tmp_path, CELL), 100_000, {}
    loss_fn = cp.objective("adnce:t=schedule(0.5,0.1,100000),mu=auto + 0.1*dp")
    weight = torch.randn(8, 8, requires_grad=True)
    with run.lock():
        run.begin()
        for step in range(1, steps + 1):
            x = torch.randn(2, 16, 8)
            loss = loss_fn(*(x @ weight))
            (weight.grad,) = torch.autograd.grad(loss, weight)
            with torch.no_grad():
                weight -= 0.01 * weight.grad
            run.log(step, loss=float(loss.detach()))
            if step % 1000 == 0:
                run.save({"weight": weight.detach(), "objective": loss_fn.state_dict()}, step)
            if step in (10_000, steps):
                kib[step] = memory()
    assert kib[steps] - kib[10_000] < 90_000 * 16 / 1024, kib  # less than two numbers of a step are left
