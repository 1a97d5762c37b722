"""Each extra at the lowest versions that pyproject.toml allows: its domain's smallest command runs."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_bert
from processes import PATIENCE

from counterpoint.install import DISTRIBUTION

ROOT = Path(__file__).resolve().parent.parent
AGENT = "--episodes 1 --size 24 --crop 20 --filters 4 --hidden 16 --batch 8 --capacity 500 --random-steps 20"
TOY = f"python {ROOT / 'tests' / 'support' / 'toy_grid.py'} toy 1"
REPORT = "counterpoint report toy --metric apart --out page"
TERMINAL = 'python -c "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"'
COMMANDS = {
    "graph": ["counterpoint train graph --epochs 1 --folds 2"],
    "image": ["counterpoint train image --data digits --epochs 1 --batch 64 --subset 128 --width 16"],
    "sentence": [
        "counterpoint train sentence --data texts.txt --model bert --pooling cls --batch 8 --steps 4 --dev none"
    ],
    "control": [
        f"counterpoint train control --task cartpole-balance --steps 240 --eval-every 240 --episodes 1 {AGENT}"
    ],
    "plots": [TOY, REPORT],
    "report": [TOY, REPORT],
    "cli": [f"{TERMINAL} {TOY}"],
}
# built for the numpy of their time, as their metadata does not say
NUMPY = {extra: "numpy" if extra == "sentence" else "numpy<2" for extra in COMMANDS}


@pytest.mark.slow
@pytest.mark.parametrize("extra", COMMANDS)
def test_an_extra_at_its_lowest_versions(tmp_path, extra, request):
    if shutil.which("uv") is None:
        pytest.skip("uv finds the lowest versions")
    if extra == "control":
        request.getfixturevalue("frames")
    bin = tmp_path / "venv" / "bin"
    (tmp_path / "constraints.txt").write_text(NUMPY[extra] + "\n")
    subprocess.run(["uv", "venv", "--quiet", "--python", sys.executable, bin.parent], check=True)
    install = ["uv", "pip", "install", "--quiet", "--python", bin / "python", "--resolution", "lowest-direct"]
    install += ["--constraint", tmp_path / "constraints.txt", f"{DISTRIBUTION}[{extra}] @ {ROOT.as_uri()}"]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode and ("error sending request" in done.stderr or "network" in done.stderr.lower()):
        pytest.skip(f"packages cannot be installed here: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr  # these versions do not go together
    tiny_bert.build(tmp_path / "bert")
    tiny_bert.write_sts(tmp_path)
    (tmp_path / "texts.txt").write_text("\n".join(tiny_bert.texts(1, 40)[0]) + "\n")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"COUNTERPOINT_DATA": str(tmp_path), "PATH": f"{bin}{os.pathsep}{environment['PATH']}"}
    for command in COMMANDS[extra]:
        done = subprocess.run(
            shlex.split(command), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stdout + done.stderr
