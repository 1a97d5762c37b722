"""Grids on executors: lost tasks, cells by number, and one grid for several processes."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest
import toy_grid

from counterpoint.integrations import flags, store
from counterpoint.integrations.command.main import main
from counterpoint.integrations.store import remote
from counterpoint.integrations.trackers.grid import run_cells

FEW = toy_grid.cells(1)
quietly = partial(store.run_grid, progress=False)


class Lossy(ThreadPoolExecutor):
    """Loses the first tasks, as a pool does whose worker dies."""

    def __init__(self, losses):
        super().__init__(2)
        self.losses, self.submitted = losses, 0

    def submit(self, function, /, *args):
        self.submitted += 1
        if self.submitted > self.losses:
            return super().submit(function, *args)
        lost = Future()
        lost.set_exception(ConnectionError("the worker is gone\nand more"))
        return lost


class Unreachable:
    """Nothing may be submitted to it."""

    def submit(self, function, /, *args):
        raise AssertionError("submitted")


def test_a_lost_task_is_submitted_again(tmp_path, capfd):
    with Lossy(losses=1) as executor:
        runs = store.run_grid(toy_grid.train, FEW[:1], tmp_path / "there", executor=executor)
    assert executor.submitted == 2
    assert "submitted again: ConnectionError: the worker is gone\n" in capfd.readouterr().err
    assert runs[0].result == quietly(toy_grid.train, FEW[:1], tmp_path / "here")[0].result
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["toy"]  # the token is gone


def test_a_run_that_is_always_lost_fails(tmp_path):
    with Lossy(losses=100) as executor, pytest.raises(store.GridError, match="1 of 1 runs failed") as caught:
        quietly(toy_grid.train, FEW[:1], tmp_path, executor=executor)
    assert executor.submitted == remote.ATTEMPTS
    assert caught.value.runs[0].record["error"] == "lost 3 times in a row: ConnectionError: the worker is gone"


def test_the_store_decides_whether_a_lost_run_has_ended(tmp_path):
    (run,) = quietly(toy_grid.train, FEW[:1], tmp_path)
    lost = Future()
    lost.set_exception(ConnectionError("after the end"))
    assert remote._reply(run, lost) == (False, "")


def test_a_worker_that_does_not_see_the_folder_trains_nothing(tmp_path):
    class Elsewhere(Lossy):
        def submit(self, function, /, setup, environment, token, root, arguments):
            nowhere = str(tmp_path / "nowhere")
            return super().submit(function, setup, environment, f"{nowhere}/token", nowhere, arguments)

    with Elsewhere(0) as executor, pytest.raises(ValueError, match="a worker, does not see the folder of runs"):
        quietly(toy_grid.train, FEW, tmp_path / "runs", executor=executor)
    assert not list((tmp_path / "runs").rglob("run.json"))
    assert not (tmp_path / "nowhere").exists()


def test_what_is_done_is_not_submitted(tmp_path):
    quietly(toy_grid.train, FEW, tmp_path)
    assert all(run.done for run in quietly(toy_grid.train, FEW, tmp_path, executor=Unreachable()))
    assert len(quietly(toy_grid.train, FEW, tmp_path, executor="dask:tcp://127.0.0.1:1")) == 2  # not even opened


def test_what_another_process_trains_is_not_emptied(tmp_path):
    (run,) = quietly(toy_grid.train, FEW[:1], tmp_path)
    with run.lock():
        (first,) = remote.train_on(Unreachable(), toy_grid.train, [store.Run(tmp_path, FEW[0])], False, False)
    assert first[1].busy
    assert store.Run(tmp_path, FEW[0]).done


def test_a_function_that_workers_cannot_import(tmp_path):
    with pytest.raises(ValueError, match="train: other processes cannot import"):
        quietly(lambda run: None, FEW, tmp_path, executor=Unreachable())


def test_cells_by_number(tmp_path, capsys, monkeypatch):
    def chosen(*words):
        parser = argparse.ArgumentParser()
        flags.add_runs(parser)
        arguments = parser.parse_args(["--out", str(tmp_path), *words])
        return run_cells(toy_grid.train, [FEW[0], *FEW], arguments, "train toy")[0]

    with pytest.raises(SystemExit, match="0"):
        chosen("--list-cells")
    titles = [store.Run(tmp_path, cell).title for cell in FEW]  # equal cells are one run
    assert capsys.readouterr().out == f"0  {titles[0]}\n1  {titles[1]}\n"
    assert not list(tmp_path.iterdir())
    assert [run.title for run in chosen("--cell", "1", "--json")] == titles[1:]
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    assert [run.title for run in chosen("--json", "--cell")] == titles[:1]
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID")
    for words, message in (("--cell", "or in .SLURM_ARRAY_TASK_ID, got ''"), ("--cell 2", "from 0 to 1, got 2")):
        with pytest.raises(ValueError, match=f"^--cell: expected a number,? .*{message}"):
            chosen(*words.split())
    assert main(["tune", "graph", "--cell", "1"]) == 2
    assert "use --on instead" in capsys.readouterr().err


@pytest.mark.slow
def test_numbered_cells_of_a_command(tmp_path, capsys):
    words = ["train", "graph", "--epochs", "1", "--folds", "2", "--out", str(tmp_path)]
    with pytest.raises(SystemExit, match="0"):
        main([*words, "--seeds", "2", "--list-cells"])
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == [str(i) for i in range(6)]
    assert not list(tmp_path.rglob("run.json"))
    assert main([*words, "--seeds", "2", "--cell", "3", "--json"]) == 0
    (run,) = store.find_runs(tmp_path)
    assert listed[3].split("  ", 1)[1] == run.title
    capsys.readouterr()
    assert main([*words, "--seeds", "2", "--cell", "6"]) == 2
    assert "--cell: expected a number from 0 to 5, got 6." in capsys.readouterr().err


# ---- without any library ------------------------------------------------------------------------


@pytest.mark.slow
def test_the_same_command_twice_shares_a_grid(tmp_path):
    words = [sys.executable, "-m", "counterpoint", "train", "graph", "--epochs", "2", "--folds", "2", "--seeds", "3"]
    words += ["--out", str(tmp_path), "--json"]
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(2)]
    tables = [process.communicate()[0] for process in both]
    assert tables[0] == tables[1]
    assert [process.returncode for process in both] == [0, 0]
    assert len(store.find_runs(tmp_path)) == 9


def test_no_secret_is_written_below_the_folder_of_runs(tmp_path, monkeypatch):
    """What a queue of Slurm writes: submitit, on this machine, keeps its pickles and logs in the folder of runs."""
    submitit = pytest.importorskip("submitit", reason="needs counterpoint[cluster]")
    secrets = {
        name: f"hidden-{i}" for i, name in enumerate((
            "WANDB_API_KEY", "HF_TOKEN", "MLFLOW_TRACKING_PASSWORD", "TRACKIO_WRITE_TOKEN", "AWS_SECRET_ACCESS_KEY",
            "COUNTERPOINT_SECRET", "MUJOCO_KEY",
        ))
    }  # fmt: skip
    plain = {"COUNTERPOINT_DATA": "visible-data", "WANDB_PROJECT": "visible-project"}
    addresses = {"MLFLOW_TRACKING_URI": "https://user:hidden-uri@host/path"}
    for name, value in {**secrets, **plain, **addresses}.items():
        monkeypatch.setenv(name, value)
    executor = submitit.LocalExecutor(tmp_path / ".cluster")
    executor.update_parameters(timeout_min=30)
    (run,) = quietly(toy_grid.train, FEW[:1], tmp_path, executor=executor)
    assert run.done
    contents = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for value in plain.values():
        assert any(value.encode() in content for path, content in contents.items() if path.suffix == ".pkl")
    held = {name: value for name, value in os.environ.items() if re.search("KEY|TOKEN|SECRET|PASSWORD", name)}
    assert set(secrets) <= set(held)
    for value in [*held.values(), "hidden-uri"]:
        assert not [path for path, content in contents.items() if len(value) > 3 and value.encode() in content]
