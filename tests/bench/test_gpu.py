"""The commands of the half hour on a GPU run on a CPU, so that none is lost to a typing error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_a_dry_run(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.bench.gpu", "--dry-run", "--out", tmp_path]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    steps = json.loads((tmp_path / "steps.json").read_text())
    timed = [name for name in steps if name not in ("kernels", "engine")]
    assert len(timed) > 10
    for name in timed:
        ran = json.loads((tmp_path / name / "losses.json").read_text())
        ours = [row for spec, row in ran["results"]["64"].items() if spec.startswith("infonce")]
        assert ours, f"{name}: {done.stderr}"
        # the chip's rate of the dtype, and the error that its rounding explains
        assert all(row["of_bf16"] > 0 and 0 < row["error"] < 2e-2 for row in ours)
        assert ran["about"]["interpreted"]
