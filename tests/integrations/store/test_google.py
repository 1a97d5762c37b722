"""Stores on Google Cloud Storage: gcsfs, and a local emulator, to which processes write that are killed."""

from __future__ import annotations

import json
import signal
import time
import uuid

import buckets
import pytest
import toy_grid
from buckets import PATIENCE, command, ended, files_of, start

from counterpoint.integrations import store

pytest.importorskip("gcp_storage_emulator", reason="the group gcs-test has an emulator")
gcsfs = pytest.importorskip("gcsfs", reason="counterpoint-losses[gcs] has gcsfs")
pytestmark = pytest.mark.slow

GRAPHS = ["--data", "demo", "--probe", "knn", "--folds", "3", "--epochs", "1", "--hidden", "8"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    port = buckets.free_port()
    words = ["-m", "gcp_storage_emulator", "start", "--host", "127.0.0.1", "--port", str(port), "--in-memory"]
    with buckets.served(words, port, tmp_path_factory.mktemp("emulator") / "log") as address:
        yield address


@pytest.fixture
def bucket(server, monkeypatch, tmp_path):
    buckets.use_cache(monkeypatch, tmp_path)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server)
    monkeypatch.setenv("HOME", str(tmp_path))  # no keys of this machine
    name = f"b-{uuid.uuid4().hex[:12]}"
    gcsfs.GCSFileSystem(skip_instance_cache=True).mkdir(name)
    return f"gs://{name}"


def test_a_killed_worker_is_resumed_by_another_machine(bucket, tmp_path):
    url = f"{bucket}/runs"
    process = start(toy_grid.__file__, url, "1", "0.3", cache=tmp_path / "killed", COUNTERPOINT_LEASE="30")
    limit = time.monotonic() + PATIENCE
    while not files_of(url, "checkpoint.pt"):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not all(run.done for run in store.find_runs(url))
    code, _, err = ended(start(toy_grid.__file__, url, "1", cache=tmp_path / "last"))
    assert code == 0, err
    assert "waiting for another process" in err  # for the lease of the killed one to expire
    assert "Traceback" not in err
    assert "bucket type" not in err  # gcsfs's remarks
    store.run_grid(toy_grid.train, toy_grid.cells(), tmp_path / "here", progress=False)
    here = toy_grid.contents(tmp_path / "here")
    objects = files_of(url, "metrics.jsonl")
    there = {run.address[len(url) + 1 :]: run for run in store.find_runs(url)}
    assert {path.as_posix() for path in here} == set(there)
    for path, (arguments, status, result, details, metrics, content, state, _) in here.items():
        run = there[path.as_posix()]
        assert (run.arguments, run.record["status"], run.result, run.details) == (arguments, status, result, details)
        assert run.metrics() == metrics
        assert objects[f"{path.as_posix()}/metrics.jsonl"] == content
        assert toy_grid.plain(run.load()) == state


def test_the_commands(bucket, tmp_path, monkeypatch):
    url, words = f"{bucket}/runs", ["train", "graph", *GRAPHS, "--objective", "infonce"]
    for place in (url, tmp_path / "here"):
        code, _, err = command(*words, "--out", place)
        assert code == 0, err
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / "reader"))  # another machine
    code, out, err = command("report", url, "--json")
    assert code == 0, err
    assert json.loads(out) == json.loads(command("report", tmp_path / "here", "--json")[1])
    one = next(run.address for run in store.find_runs(url) if run.arguments["objective"])
    code, _, err = command("train", "graph", "--config", f"{one}/run.json", "--out", tmp_path / "again")
    assert code == 0, err
