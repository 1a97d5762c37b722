"""Grids on executors: lost tasks, and one grid for several processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest
import toy_grid

from counterpoint.integrations import store
from counterpoint.integrations.store import grid, remote

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
        def submit(self, function, /, setup, variables, token, root, arguments):
            nowhere = str(tmp_path / "nowhere")
            return super().submit(function, setup, variables, token, nowhere, arguments)

    with Elsewhere(0) as executor, pytest.raises(store.GridError, match="a worker, does not see the folder of runs"):
        quietly(toy_grid.train, FEW, tmp_path / "runs", executor=executor)
    assert not [run for run in store.find_runs(tmp_path / "runs") if run.done]
    assert not (tmp_path / "nowhere").exists()


def test_what_is_done_is_not_submitted(tmp_path):
    quietly(toy_grid.train, FEW, tmp_path)
    assert all(run.done for run in quietly(toy_grid.train, FEW, tmp_path, executor=Unreachable()))
    assert len(quietly(toy_grid.train, FEW, tmp_path, executor="dask:tcp://127.0.0.1:1")) == 2  # not even opened


def test_what_another_process_trains_is_not_emptied(tmp_path):
    (run,) = quietly(toy_grid.train, FEW[:1], tmp_path)
    with run.lock():
        ((_, outcome),) = grid._train(toy_grid.train, [store.Run(tmp_path, FEW[0])], 1, None, False, False)
    assert outcome.busy
    assert store.Run(tmp_path, FEW[0]).done


def test_a_function_that_workers_cannot_import(tmp_path):
    with pytest.raises(ValueError, match="train: other processes cannot import"):
        quietly(lambda run: None, FEW, tmp_path, executor=Unreachable())


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
    submitit = pytest.importorskip("submitit", reason="needs counterpoint-losses[cluster]")
    secrets = {
        name: f"hidden-{i}" for i, name in enumerate((
            "WANDB_API_KEY", "HF_TOKEN", "MLFLOW_TRACKING_PASSWORD", "TRACKIO_WRITE_TOKEN", "AWS_SECRET_ACCESS_KEY",
            "COUNTERPOINT_SECRET", "MUJOCO_KEY",
        ))
    }  # fmt: skip
    addresses = {"MLFLOW_TRACKING_URI": "https://user:hidden-uri@host/path"}
    for name, value in {**secrets, **addresses}.items():
        monkeypatch.setenv(name, value)
    executor = submitit.LocalExecutor(tmp_path / ".cluster")
    executor.update_parameters(timeout_min=30)
    (run,) = quietly(toy_grid.train, FEW[:1], tmp_path, executor=executor)
    assert run.done
    contents = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    held = {name: value for name, value in os.environ.items() if re.search("KEY|TOKEN|SECRET|PASSWORD", name)}
    assert set(secrets) <= set(held)
    for value in [*held.values(), "hidden-uri"]:
        assert not [path for path, content in contents.items() if len(value) > 3 and value.encode() in content]
