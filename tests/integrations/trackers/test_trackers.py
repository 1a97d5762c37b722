"""Trackers: what they have is what the store has, also after an interruption, and none of them can stop a training."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import toy_grid
from toy_grid import cells
from tracked_toy import trained_with_a_break

from counterpoint.integrations import store, trackers
from counterpoint.integrations.command.main import main
from counterpoint.integrations.trackers import NAMES, backends


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Each tracker writes below a folder, and asks no server."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    for name in ("WANDB_PROJECT", "WANDB_DIR", "MLFLOW_EXPERIMENT_NAME", "TRACKIO_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def curve(run):
    return [(line["step"], pytest.approx(line["loss"], rel=1e-6)) for line in run.metrics()]


def scalars(folder):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return found


def test_tensorboard_has_the_curve_and_the_result(place):
    run = trained_with_a_break(place, "tensorboard")
    events = scalars(run.path / "tensorboard")
    assert [(event.step, event.value) for event in events.Scalars("loss")] == curve(run)
    assert events.Scalars("result/apart")[0].value == pytest.approx(run.result["apart"])
    config = events.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert f"| objective | {run.arguments['objective']} |" in config
    assert "| steps | 6 |" in config


def test_a_cell_is_the_same_with_and_without_trackers(place):
    plain = store.run_grid(toy_grid.train, cells(1), place / "plain", progress=False)
    sent = store.run_grid(trackers.tracked(toy_grid.train, ["tensorboard"]), cells(1), place / "sent", progress=False)
    for a, b in zip(plain, sent, strict=True):
        assert a.path.relative_to(a.folder.root) == b.path.relative_to(b.folder.root)
        assert (a.arguments, a.result, a.metrics()) == (b.arguments, b.result, b.metrics())
    assert trackers.tracked(toy_grid.train, []) is toy_grid.train


class Failing(backends.TensorBoard):
    """Fails at a step, as with a server that goes away."""

    at = 3

    def log(self, step, numbers):
        if step == self.at:
            raise ConnectionError("no answer")
        super().log(step, numbers)


def test_a_tracker_that_fails_is_left_out_with_one_warning(place, monkeypatch, capfd):
    monkeypatch.setitem(backends.BACKENDS, "tensorboard", Failing)
    train = trackers.tracked(toy_grid.train, ["tensorboard"])
    (run,) = store.run_grid(train, cells()[:1], place / "runs", progress=False)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"warning: {run.title}: tensorboard has failed and is left out; the store has everything")
    assert line.endswith("(ConnectionError: no answer)")
    assert [event.step for event in scalars(run.path / "tensorboard").Scalars("loss")] == [1, 2]


def diverging(run):
    """Log NaN and infinity, which are looked at first."""
    for step, loss in enumerate((1.0, math.nan, math.inf, 0.5), 1):
        run.log(step, loss=loss, other=1.0)
    run.finish({"apart": math.nan, "other": 2.0})


@pytest.mark.parametrize("name", ["tensorboard", *(pytest.param(x, marks=pytest.mark.slow) for x in NAMES[:3])])
def test_what_cannot_be_computed_reaches_the_tracker(name, place, capfd):
    pytest.importorskip(name)
    (run,) = store.run_grid(trackers.tracked(diverging, [name]), cells()[:1], place / "runs", progress=False)
    assert "warning" not in capfd.readouterr().err
    assert run.done
    if name == "tensorboard":
        events = scalars(run.path / "tensorboard")
        assert [event.value for event in events.Scalars("loss")] == pytest.approx(
            [1, math.nan, math.nan, 0.5], nan_ok=True
        )
        assert math.isnan(events.Scalars("result/apart")[0].value)
    if name == "mlflow":
        client = __import__("mlflow").tracking.MlflowClient()
        (found,) = client.search_runs([client.get_experiment_by_name("counterpoint").experiment_id])
        history = sorted((m.step, m.value) for m in client.get_metric_history(found.info.run_id, "loss"))
        assert [value for _, value in history] == pytest.approx([1, math.nan, math.nan, 0.5], nan_ok=True)
    if name == "wandb":
        losses = [float(loss) for _, loss in offline_losses(place / "runs" / "wandb")]
        assert losses == pytest.approx([1, math.nan, math.nan, 0.5], nan_ok=True)
    if name == "trackio":
        lines = in_a_process(READ, place)
        assert [line["loss"] in (None, "NaN") or math.isnan(line["loss"]) for line in lines if "loss" in line] == [
            False, True, True, False,
        ]  # fmt: skip


def test_a_run_begun_anew_is_another_run_of_the_tracker(place):
    (cell, *_) = cells()
    runs = []
    for started in ("2026-01-01T00:00:00+00:00", "2026-01-01T00:00:01+00:00"):
        run = store.Run(place, cell)
        with run.lock():
            run.begin()
            run._write(started=started)
            runs.append(backends.Subject(run).identifier)
            run.begin()  # resumes
            assert backends.Subject(run).identifier == runs[-1]
    assert runs[0] != runs[1]


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_package_is_named_with_what_installs_it(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"--track {name}: {name} is not installed: (uv )?pip install .*\[track\]"):
        trackers.check([name])


def test_an_unknown_tracker_is_refused_with_the_nearest(capsys):
    with pytest.raises(SystemExit):
        main(["train", "graph", "--track", "tensorbord"])
    assert "unknown track 'tensorbord'. Did you mean 'tensorboard'?" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"unknown tracker 'wandbb'\. Did you mean 'wandb'\?"):
        trackers.check(["wandbb"])


@pytest.mark.slow
def test_processes_of_a_grid_send_their_runs(place):
    grid = trackers.tracked(toy_grid.train, ["tensorboard"])
    for run in store.run_grid(grid, cells(), place / "runs", jobs=2, progress=False):
        events = scalars(run.path / "tensorboard")
        assert [(event.step, event.value) for event in events.Scalars("loss")] == curve(run)


@pytest.mark.slow
def test_mlflow_has_the_curve_and_the_result(place):
    mlflow = pytest.importorskip("mlflow")
    run = trained_with_a_break(place, "mlflow")
    client = mlflow.tracking.MlflowClient()
    experiment = client.get_experiment_by_name("counterpoint")
    (found,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(found.info.run_id, "loss")
    assert sorted((metric.step, metric.value) for metric in history) == curve(run)
    assert found.data.metrics["result/apart"] == pytest.approx(run.result["apart"])
    assert found.data.params["objective"] == found.data.tags["objective"] == run.arguments["objective"]
    assert found.info.status == "FINISHED"


@pytest.mark.slow
def test_trackio_has_the_curve_and_the_result(place):
    script = """
import sys, json
from pathlib import Path
sys.path[:0] = sys.argv[2].split(":")
import tracked_toy
run = tracked_toy.trained_with_a_break(Path(sys.argv[1]), "trackio")
from trackio.sqlite_storage import SQLiteStorage
(name,) = SQLiteStorage.get_runs("counterpoint")
lines = SQLiteStorage.get_logs("counterpoint", name)
print(json.dumps({"path": str(run.path), "lines": lines}, default=str))
"""
    pytest.importorskip("trackio")
    found = in_a_process(script, place)  # it reads TRACKIO_DIR when it is imported
    run = store.Run.read(found["path"])
    lines = [(line["step"], line["loss"]) for line in found["lines"] if "loss" in line]
    assert lines == curve(run)
    (result,) = [line for line in found["lines"] if "result/apart" in line]
    assert result["result/apart"] == pytest.approx(run.result["apart"])


@pytest.mark.slow
def test_wandb_offline_has_the_curve_and_the_result(place):
    pytest.importorskip("wandb")
    run = trained_with_a_break(place, "wandb")
    results, configs = {}, {}
    for path in sorted((place / "runs" / "wandb").glob("offline-run-*/*.wandb")):
        for record in offline_records(path):
            for item in record.summary.update:
                results[item.key or ".".join(item.nested_key)] = item.value_json
            for item in record.run.config.update:
                configs[item.key] = item.value_json
    assert offline_losses(place / "runs" / "wandb") == curve(run)
    assert json.loads(results["result/apart"]) == pytest.approx(run.result["apart"])
    assert json.loads(configs["objective"]) == run.arguments["objective"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_server_that_does_not_answer_is_named_before_training(name, place, monkeypatch):
    pytest.importorskip(name)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    script = """
import json, sys
from counterpoint.integrations import trackers
try:
    trackers.check([sys.argv[3]])
except ValueError as error:
    print(json.dumps(str(error)))
"""
    error = in_a_process(script, place, name)
    assert error.startswith(f"--track {name}: ")
    assert "\n" not in error


BLOCK, HEADER = 32768, 7  # of the files of wandb, which are logs of LevelDB after a header of their own


def offline_records(path):
    """Yield the records of the file of a wandb run."""
    from wandb.proto import wandb_internal_pb2

    content, at, whole = path.read_bytes(), HEADER, b""
    while at + HEADER <= len(content):
        if BLOCK - at % BLOCK < HEADER:  # padding
            at += BLOCK - at % BLOCK
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        whole += content[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):  # all of a record, or its last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def offline_losses(folder):
    """Return the steps and losses of the last start of a wandb run, which is to be synchronized."""
    found = []
    for record in offline_records(max(folder.glob("offline-run-*/*.wandb"))):
        line = {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
        if "loss" in line:
            found.append((record.history.step.num, json.loads(line["loss"])))
    return found


def in_a_process(script, place, *more):
    """Run a script with a folder, and return the JSON that is all of its output."""
    paths = str(Path(toy_grid.__file__).parent)
    done = subprocess.run([sys.executable, "-c", script, place, paths, *more], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


KILLED = """
import sys
from functools import partial
from pathlib import Path
sys.path[:0] = sys.argv[2].split(":")
import toy_grid
from counterpoint.integrations import store, trackers
train = trackers.tracked(partial(toy_grid.train, pause=float(sys.argv[4])), sys.argv[3].split(","))
(run,) = store.run_grid(train, toy_grid.cells()[:1], Path(sys.argv[1]) / "runs", progress=False)
print(run.path)
"""
READ = """
import json, sys
from trackio.sqlite_storage import SQLiteStorage
(name,) = SQLiteStorage.get_runs("counterpoint")
print(json.dumps(SQLiteStorage.get_logs("counterpoint", name), default=str))
"""


@pytest.fixture
def server(tmp_path):
    """The address of an MLflow server, a process of its own."""
    pytest.importorskip("mlflow")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = ["--backend-store-uri", f"sqlite:///{tmp_path}/server.db", "--artifacts-destination", f"{tmp_path}/files"]
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1", *place]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        except OSError:
            time.sleep(0.2)
    yield f"http://127.0.0.1:{port}"
    os.killpg(process.pid, signal.SIGTERM)
    process.wait()


@pytest.mark.slow
def test_a_killed_run_continues_its_curves(place, server, monkeypatch):
    """SIGKILL between two checkpoints; each tracker has each step once, as the store has it."""
    pytest.importorskip("trackio")
    pytest.importorskip("wandb")
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    names = "tensorboard,trackio,mlflow,wandb"
    command = [sys.executable, "-c", KILLED, str(place), str(Path(toy_grid.__file__).parent), names]
    process = subprocess.Popen([*command, "2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not any(
        len(path.read_bytes().splitlines()) >= 3 for path in place.rglob("metrics.jsonl")
    ):
        time.sleep(0.05)
    process.kill()
    assert process.wait() == -signal.SIGKILL, process.communicate()[1]
    done = subprocess.run([*command, "0"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run = store.Run.read(done.stdout.strip())
    assert [line["step"] for line in run.metrics()] == [1, 2, 3, 4, 5, 6]
    events = scalars(run.path / "tensorboard").Scalars("loss")
    assert [(event.step, event.value) for event in events] == curve(run)
    client = mlflow.tracking.MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("counterpoint").experiment_id])
    history = client.get_metric_history(found.info.run_id, "loss")
    assert sorted((metric.step, metric.value) for metric in history) == curve(run)
    lines = [(line["step"], line["loss"]) for line in in_a_process(READ, place) if "loss" in line]
    assert lines == curve(run)
    assert offline_losses(place / "runs" / "wandb") == curve(run)


@pytest.mark.slow
def test_mlflow_without_an_address_writes_to_the_store(place, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    started = place / "started"
    started.mkdir()
    monkeypatch.chdir(started)
    trackers.check(["mlflow"])
    train = trackers.tracked(toy_grid.train, ["mlflow"])
    runs = store.run_grid(train, cells()[:2], place / "runs", jobs=2, progress=False)
    assert not list(started.iterdir())
    client = mlflow.tracking.MlflowClient(f"sqlite:///{place}/runs/mlflow/mlflow.db")
    found = client.search_runs([client.get_experiment_by_name("counterpoint").experiment_id])
    assert len(found) == len(runs)
