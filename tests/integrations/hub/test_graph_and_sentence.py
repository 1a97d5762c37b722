"""Graph and sentence runs, pushed to a stand-in for the hub on this machine and loaded back from ``hf://owner/name``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_bert

from counterpoint.integrations import store

pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.slow


@pytest.fixture
def counterpoint(tmp_path):
    """Run commands with a stand-in for the hub, which is not the hub itself; the cache begins empty."""
    script = Path(__file__).resolve().parents[2] / "support" / "hub_server.py"
    process = subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    environment = {**os.environ, "HF_ENDPOINT": process.stdout.readline().strip(), "HF_HOME": str(tmp_path / "hf")}
    environment |= {"HF_TOKEN": "hf_test", "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}

    def call(*words):
        command = [Path(sys.executable).with_name("counterpoint"), *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    yield call
    process.communicate()


def test_a_graph_run(counterpoint, tmp_path):
    pytest.importorskip("torch_geometric")
    from counterpoint.integrations.graph import training

    cell = training.cell("demo", "infonce:t=0.2", 0, epochs=1, folds=3, hidden=8)
    (run,) = store.run_grid(training.train, [cell], tmp_path / "runs", progress=False)
    assert counterpoint("push", run.path, "me/demo") == f"pushed {run.title} to hf://me/demo\n"
    evaluations = [
        json.loads(counterpoint("eval", "graph", place, "--folds", "3", "--seeds", "2", "--json"))
        for place in ("hf://me/demo", run.path)
    ]
    fetched, trained = ([{k: v for k, v in row.items() if k != "which"} for row in rows] for rows in evaluations)
    assert fetched == trained
    assert run.name in {row["name"] for row in fetched}


def test_a_sentence_run(counterpoint, tmp_path):
    pytest.importorskip("sentence_transformers")
    from counterpoint.integrations.sentence import training

    tiny_bert.build(tmp_path / "bert")
    (tmp_path / "data").mkdir()
    tiny_bert.write_sts(tmp_path / "data", tiny_bert.STS)
    (tmp_path / "texts.txt").write_text("\n".join(tiny_bert.texts(1, 40, seed=2)[0]) + "\n")
    changes = {"model": str(tmp_path / "bert"), "pooling": "cls", "batch": 8, "steps": 3, "save": 0, "dev": None}
    cell = training.cell(str(tmp_path / "texts.txt"), "infonce:t=0.05", 0, max_length=12, **changes)
    (run,) = store.run_grid(training.train, [cell], tmp_path / "runs", progress=False)
    assert counterpoint("push", run.path, "me/texts") == f"pushed {run.title} to hf://me/texts\n"
    words = ("--root", tmp_path / "data", "--sets", tiny_bert.STS[0], "--json")
    fetched, trained = (json.loads(counterpoint("eval", "sts", place, *words)) for place in ("hf://me/texts", run.path))
    assert {**fetched, "model": ""} == {**trained, "model": ""}
