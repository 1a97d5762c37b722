"""Other libraries' own tests, with our losses in place of theirs; on clones, where COUNTERPOINT_HOSTS has them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hosts import real_clone
from processes import PATIENCE

SUPPORT = Path(__file__).parents[1] / "support"
SUITES = {  # the modules that compute these losses, and what they need besides the peer itself
    "lightly": (["tests/loss/test_ntx_ent_loss.py", "tests/loss/test_dcl_loss.py",
                 "tests/models/modules/test_memory_bank.py"], ["pytest_mock", "lightly"]),
    "pytorch-metric-learning": (["tests/losses/test_ntxent_loss.py", "tests/losses/test_self_supervised_loss.py",
                                 "tests/losses/test_losses_without_labels.py"], ["sklearn"]),
    # most of its tests of tasks have losses of their own
    "open_clip": (["tests/test_loss.py", "tests/test_clap_task.py", "tests/test_naflexclap.py"], ["timm", "ftfy"]),
}  # fmt: skip


@pytest.mark.parametrize("peer", SUITES)
def test_a_peers_own_tests(peer):
    clone, (files, packages) = real_clone(peer), SUITES[peer]
    for package in packages:
        pytest.importorskip(package)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (SUPPORT, clone, clone / "src")))}
    # on CPUs pytorch-metric-learning's own loss fails its test in float16
    environment |= {"TEST_DEVICE": "cpu", "TEST_DTYPES": "float32,float64"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "peers", "--peer", peer, *files]
    done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    assert int(re.search(r"our losses were called (\d+) times", done.stdout)[1]) > 0
