"""Commands on a store of S3: a local server of moto, and processes as a user starts them."""

from __future__ import annotations

import pytest
from buckets import command, files_of

from counterpoint.integrations import store

pytest.importorskip("moto", reason="counterpoint[s3-test] has moto's server")
pytest.importorskip("s3fs", reason="counterpoint[s3] has s3fs")
pytestmark = pytest.mark.slow

GRAPHS = ["--dataset", "demo", "--probe", "knn", "--folds", "3", "--epochs", "1", "--hidden", "8"]
TRAIN = ["train", "graph", *GRAPHS, "--objective", "infonce"]


def works(*words):
    """Run a command that must succeed; returns what it printed."""
    code, out, err = command(*words)
    assert code == 0, err
    return out


def one_run(url, objective=True):
    """The URL of a run with an objective."""
    return next(run.address for run in store.find_runs(url) if bool(run.arguments["objective"]) == objective)


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
