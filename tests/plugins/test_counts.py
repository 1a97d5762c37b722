"""How often the loss is called, and the time from call to call, for programs that run ``inject``."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from counterpoint.plugins import inject
from counterpoint.plugins.host import Seam

SPAWNS = """
import torch
from torch import multiprocessing
from torch.nn.functional import cross_entropy


def work(rank):
    layer, ids = torch.nn.Linear(4, 4), torch.arange(8) // 2
    for _ in range(5):
        z = torch.nn.functional.normalize(layer(torch.randn(8, 4)))
        cross_entropy(10 * z @ z.T, torch.arange(8)).backward()


if __name__ == "__main__":
    multiprocessing.spawn(work, nprocs=2)
"""


def test_the_time_of_a_step_leaves_out_pauses():
    seam = Seam("host")
    assert seam.step_seconds is None
    seam.gaps = [0.25, 0.75] * 20 + [0.25, 90.0] + [0.25, 0.75] * 4 + [1000.0]
    assert seam.step_seconds == 0.5
    seam.gaps = [1.0, 2.0]
    assert seam.step_seconds == 1.5


@pytest.mark.slow
def test_processes_that_the_script_spawns_are_counted(tmp_path):
    (tmp_path / "train.py").write_text(SPAWNS)
    command = [sys.executable, "-m", "counterpoint.plugins.inject", "logits", "--site", "train.py:11", "--scale", "10"]
    command += ["--objective", "host; ids=ids", "--counts", "counts.json", "--", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("for an anchor, its treatment left out 1 keys on average") == 1
    counts = json.loads((tmp_path / "counts.json").read_text())
    assert (counts["calls"], counts["error"], counts["excluded"]) == (10, None, 1)
    assert counts["step_seconds"] > 0


TWO = """import torch
from torch.nn.functional import cross_entropy, normalize
layer, ids = torch.nn.Linear(4, 4), torch.arange(8) // 2
for _ in range(3):
    logits = 10 * normalize(layer(torch.randn(8, 4))) @ normalize(layer(torch.randn(8, 4))).T
    loss = cross_entropy(logits, torch.arange(8))
    loss = loss + cross_entropy(logits.T, torch.arange(8))
    loss.backward()
"""


def test_two_directions_that_leave_out_as_many_keys_are_said_once(tmp_path):
    (tmp_path / "train.py").write_text(TWO)
    command = [sys.executable, "-m", "counterpoint.plugins.inject", "logits", "--scale", "10"]
    command += ["--site", "train.py:6", "--site", "train.py:7", "--objective", "host; ids=ids", "--", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("its treatment left out 1 keys on average") == 1


def test_what_cannot_be_written_is_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert inject.main(["logits", "--counts", "nowhere/counts.json", "--", "train.py"]) == 2
    assert inject.main(["auto", "--counts", "counts.json", "--", "train.py"]) == 2
    said = capsys.readouterr().err
    assert "--counts nowhere/counts.json: its folder does not exist" in said
    assert "--counts: auto replaces nothing" in said
