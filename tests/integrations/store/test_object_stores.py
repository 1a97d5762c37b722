"""Stores on S3: a local server of moto, real processes that are killed, and the commands."""

from __future__ import annotations

import json
import signal
import time
from functools import partial
from pathlib import Path

import pytest
import toy_grid
from buckets import PATIENCE, command, ended, files_of, start

from counterpoint.integrations import store

pytest.importorskip("moto", reason="the group s3-test has moto's server")
pytest.importorskip("s3fs", reason="counterpoint-losses[s3] has s3fs")
pytestmark = pytest.mark.slow

TOY = toy_grid.__file__
EVALUATION = ["--data", "demo", "--probe", "knn", "--folds", "3"]
GRAPHS = [*EVALUATION, "--epochs", "1", "--hidden", "8"]


def without_places(text):
    def kept(values):
        return {key: value for key, value in values.items() if key not in ("folder", "seconds")}

    return json.loads(text, object_hook=kept)


def test_a_killed_worker_is_resumed_by_another_machine(bucket, tmp_path):
    """Three times, at other checkpoints; nothing of a cache is left to the next one."""
    url = f"{bucket}/runs"
    for kill in range(3):
        before = files_of(url, "checkpoint.pt")
        # the last one's lease is still there when the next machine looks
        length = "30" if kill == 2 else "3"
        process = start(TOY, url, "1", "0.3", cache=tmp_path / f"cache{kill}", COUNTERPOINT_LEASE=length)
        limit = time.monotonic() + PATIENCE
        while files_of(url, "checkpoint.pt") == before:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < limit
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not all(run.done for run in store.find_runs(url))
    code, _, err = ended(start(TOY, url, "1", cache=tmp_path / "last"))
    assert code == 0, err
    assert "waiting for another process" in err  # for the lease of the killed one to expire
    store.run_grid(toy_grid.train, toy_grid.cells(), tmp_path / "here", progress=False)
    here = toy_grid.contents(tmp_path / "here")
    there = {Path(run.address[len(url) + 1 :]): run for run in store.find_runs(url)}
    objects = files_of(url, "metrics.jsonl")
    assert set(here) == set(there)
    for path, (arguments, status, result, details, metrics, content, state, _) in here.items():
        run = there[path]
        assert (run.arguments, run.record["status"], run.result, run.details) == (arguments, status, result, details)
        assert objects[f"{path}/metrics.jsonl"] == content
        assert run.metrics() == metrics
        assert toy_grid.plain(run.load()) == state


def test_two_machines_split_a_grid_and_train_nothing_twice(bucket, tmp_path):
    url, record = f"{bucket}/runs", tmp_path / "record"
    code = (
        f"import sys; sys.path.insert(0, {str(Path(TOY).parent)!r})\n"
        "import toy_grid; from functools import partial; from counterpoint.integrations import store\n"
        f"train = partial(toy_grid.train_recorded, record={str(record)!r}, pause=0.2)\n"
        f"runs = store.run_grid(train, toy_grid.cells(4), {url!r})\n"
        "print([run.done for run in runs])\n"
    )
    machines = [start("-c", code, cache=tmp_path / f"cache{i}") for i in range(2)]
    for status, out, err in [ended(machine) for machine in machines]:
        assert status == 0, err
        assert out == f"{[True] * 8}\n"
    titles = Path(f"{record}.ended").read_text().splitlines()
    assert sorted(titles) == sorted(run.title for run in store.find_runs(url))
    assert len(titles) == len(set(titles)) == len(Path(f"{record}.started").read_text().splitlines()) == 8


def test_processes_of_one_machine_share_the_store(bucket, tmp_path):
    runs = store.run_grid(partial(toy_grid.train), toy_grid.cells(), f"{bucket}/runs", jobs=2, progress=False)
    here = store.run_grid(toy_grid.train, toy_grid.cells(), tmp_path / "here", progress=False)
    assert [run.result for run in runs] == [run.result for run in here]
    again = store.run_grid(None, toy_grid.cells(), f"{bucket}/runs", progress=False)  # trains nothing
    assert [run.result for run in again] == [run.result for run in here]


def test_the_commands(bucket, tmp_path, monkeypatch):
    url = f"{bucket}/runs"
    words = ["train", "graph", *GRAPHS, "--objective", "infonce", "adnce", "--seeds", "2"]
    code, out, err = command(*words, "--out", url, "--json")
    assert code == 0, err
    _, local, _ = command(*words, "--out", tmp_path / "here", "--json")
    assert without_places(out) == without_places(local)

    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / "reader"))  # another machine
    code, out, err = command("report", url, "--json")
    assert code == 0, err
    assert json.loads(out) == json.loads(command("report", tmp_path / "here", "--json")[1])
    names = {path.name for path in (tmp_path / "reader").rglob("*") if path.is_file()}
    assert names <= {"run.json", "metrics.jsonl"}  # no checkpoint, no weights

    code, out, err = command("report", url, "--out", tmp_path / "report")
    assert code == 0, err
    assert (tmp_path / "report" / "report.html").is_file()
    assert not list((tmp_path / "reader").rglob("checkpoint*"))
    one = next(run.address for run in store.find_runs(url) if run.arguments["objective"])
    code, out, err = command("eval", "graph", one, *EVALUATION)
    assert code == 0, err
    same = command("eval", "graph", tmp_path / "here" / one[len(url) + 1 :], *EVALUATION)[1]
    assert out.replace(one, "") == same.replace(str(tmp_path / "here" / one[len(url) + 1 :]), "")


def test_tune(bucket):
    words = ["tune", "graph", *GRAPHS, "--objective", "infonce", "--budget", "2", "--baseline", "none"]
    code, _, err = command(*words, "--out", f"{bucket}/tuning")
    assert code == 0, err
    assert len(store.find_runs(f"{bucket}/tuning")) == 2


@pytest.mark.parametrize(
    ("url", "environment", "line"),
    [
        ("s4://bucket/runs", {}, "Protocol not known: s4"),
        ("s3://", {}, "s3://: expected s3://BUCKET/FOLDER."),
        ("s3://no-such-bucket-here/runs", {}, "no such bucket"),
        ("s3://any/runs", {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "Unable to locate credentials"),
        ("s3://any/runs", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "127.0.0.1:9"),
    ],
)
@pytest.mark.parametrize("words", [("train", "graph", *GRAPHS, "--out"), ("report",)])
def test_errors_are_one_line(bucket, monkeypatch, tmp_path, words, url, environment, line):
    for name, value in {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path), **environment}.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    code, out, err = command(*words, url)
    assert code == 2, (out, err)
    lines = [text for text in err.splitlines() if not text.startswith("see counterpoint")]  # of every wrong flag
    assert len(lines) == 1, err
    assert line in lines[0]
