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
    "sentence-transformers": (
        [*(f"tests/sentence_transformer/losses/test_{name}.py" for name in (
            "cmnrl", "gist_embed", "cached_gist_embed", "cached_mnsrl", "gradcache", "merged_forward")),
         *(f"tests/sparse_encoder/losses/test_{name}.py" for name in ("cached_splade", "merged_forward"))],
        ["sentence_transformers"],
    ),
}  # fmt: skip
GIST, CACHED = (f"tests/sentence_transformer/losses/test_{name}gist_embed.py::test_" for name in ("", "cached_"))
INSIDE = "reads the matrix of logits, which our losses do not compute"
ONE_PROCESS = "replaces the host's all_gather in one process; tests of ours run processes"
CANNOT = {  # tests that our losses do not pass, and why
    "sentence-transformers": {
        "tests/sentence_transformer/losses/test_cmnrl.py::test_cmnrl_gather_across_devices_offset": ONE_PROCESS,
        f"{GIST}gather_rank1_positive_not_masked_with_margin": ONE_PROCESS,
        f"{GIST}gather_rank1_margin_zero_baseline": ONE_PROCESS,
        f"{GIST}positive_mask_protects_ce_target_column": INSIDE,
        f"{GIST}relative_margin_negative_positive_score_suppresses_closer_negative": INSIDE,
        f"{CACHED}positive_mask_protects_ce_target_column[32]": INSIDE,
        f"{CACHED}positive_mask_protects_ce_target_column[2]": INSIDE,
        f"{CACHED}relative_margin_negative_positive_score_suppresses_closer_negative": INSIDE,
        "tests/sentence_transformer/losses/test_gradcache.py::test_gradcache_under_autocast": "expects a loss in "
        "bfloat16; ours is computed in float32 under autocast",
        "tests/sparse_encoder/losses/test_cached_splade.py::test_cached_splade_inference_free_frozen_query_route":
        "needs a downloaded model with a router; the host's own loss fails with a local one",
    },
}  # fmt: skip


@pytest.mark.parametrize("peer", SUITES)
def test_a_peers_own_tests(peer):
    clone, (files, packages) = real_clone(peer), SUITES[peer]
    for package in packages:
        pytest.importorskip(package)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (SUPPORT, clone, clone / "src")))}
    # on CPUs pytorch-metric-learning's own loss fails its test in float16
    environment |= {"TEST_DEVICE": "cpu", "TEST_DTYPES": "float32,float64"}
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider", "-p", "peers", "--peer", peer]
    done = subprocess.run(
        [*command, *files], cwd=clone, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    failed = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("FAILED ")}
    # neither more nor fewer
    assert (done.returncode, failed) == (int(bool(failed)), {*CANNOT.get(peer, ())}), done.stdout[-5000:] + done.stderr
    assert int(re.search(r"our losses were called (\d+) times", done.stdout)[1]) > 0
