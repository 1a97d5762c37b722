"""Commands on a store of S3: a local server of moto, and processes as a user starts them."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import time

import pytest
from buckets import COMMAND, PATIENCE, command, files_of, start
from documents import ROOT

from counterpoint.integrations import store

pytest.importorskip("moto", reason="counterpoint[s3-test] has moto's server")
pytest.importorskip("s3fs", reason="counterpoint[s3] has s3fs")
pytestmark = pytest.mark.slow

GRAPHS = ["--dataset", "demo", "--probe", "knn", "--folds", "3", "--epochs", "1", "--hidden", "8"]
TRAIN = ["train", "graph", *GRAPHS, "--objective", "infonce"]
SCRIPT = ROOT / "tests" / "support" / "toy_train.py"
LINE = next(i for i, line in enumerate(SCRIPT.read_text().splitlines(), 1) if "cross_entropy(50" in line)
COMPARE = shlex.split(
    f"compare logits --site train.py:{LINE} --scale 50 --objectives host infonce:t=0.2 --seeds 2 --seed-flag --seed "
    "--metric json:results.json:test"
)


def works(*words):
    """Run a command that must succeed; returns what it printed."""
    code, out, err = command(*words)
    assert code == 0, err
    return out


def one_run(url, objective=True):
    """The URL of a run with an objective."""
    return next(run.address for run in store.find_runs(url) if bool(run.arguments["objective"]) == objective)


def another_machine(monkeypatch, tmp_path, name="another"):
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / name))


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    shutil.copy(SCRIPT, tmp_path / "here" / "train.py")
    monkeypatch.chdir(tmp_path / "here")


def values(table):
    rows = json.loads(table)["columns"][0]["rows"]
    return {row["row"]: row["values"] for row in rows}


def test_compare_is_killed_and_resumed_by_another_machine(bucket, here, tmp_path, monkeypatch):
    url = f"{bucket}/runs"
    process = start(COMMAND, *COMPARE, "--out", url, "--", "train.py", cache=tmp_path / "killed")
    limit = time.monotonic() + PATIENCE
    while sum(b'"done"' in content for content in files_of(url, "run.json").values()) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = {name: content for name, content in files_of(url, "run.json").items() if b'"done"' in content}
    assert len(before) in (2, 3)

    another_machine(monkeypatch, tmp_path)
    out = works(*COMPARE, "--out", url, "--json", "--", "train.py")
    local = works(*COMPARE, "--out", tmp_path / "runs", "--json", "--", "train.py")
    assert values(out) == values(local)
    after = files_of(url)
    assert all(after[name] == content for name, content in before.items())  # not run again
    assert sum(name.endswith("/log.txt") for name in after) == 4
    shown = works("show", url)
    again = shown.splitlines()[0].removeprefix("counterpoint ")
    head, _, script = again.partition(" -- ")
    assert values(works(*shlex.split(head), "--out", url, "--json", "--", script)) == values(local)


def test_events_of_tensorboard_are_in_the_store(bucket, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    works(*TRAIN, "--epochs", "3", "--track", "tensorboard", "--out", f"{bucket}/runs")
    run = store.Run.read(one_run(f"{bucket}/runs"))
    events = files_of(f"{run.address}/tensorboard")
    for name, content in events.items():
        (tmp_path / name).write_bytes(content)
    accumulator = EventAccumulator(str(tmp_path))
    accumulator.Reload()
    lines = run.metrics()
    for name in {name for line in lines for name in line} - {"step"}:
        expected = [(line["step"], pytest.approx(line[name])) for line in lines if name in line]
        assert [(event.step, event.value) for event in accumulator.Scalars(name)] == expected
    assert accumulator.Scalars("result/accuracy")[-1].value == pytest.approx(run.result["accuracy"])
    assert files_of(f"{bucket}/runs/tensorboard/report")  # the text of the report
