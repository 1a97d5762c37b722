"""Ctrl-C at random moments of every command: files stay whole, no temporary files remain, the next start succeeds.

Each command runs as a process, first without interruption; then it is interrupted at moments spread over that time,
imports and the shutdown of Python included. As from a terminal, the signal reaches the whole process group. A last
start finishes the work; its output and files must equal those of the uninterrupted command.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import sys
import time
from dataclasses import dataclass
from glob import glob
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_bert
import torch
from processes import PATIENCE, session

from counterpoint.integrations import store
from counterpoint.integrations.command import main
from counterpoint.integrations.command.table import COMMANDS

MOMENTS = 4
PYTHON_STARTS = 0.3  # seconds in which Python itself handles the signal
TRAIN = "--batch 8 --every 3 --save 3 --lr 0.01 --epochs 2 --max-length 12"
AGENT = "--size 24 --crop 20 --filters 4 --hidden 16 --batch 8 --capacity 1000 --random-steps 20 --episodes 1"
SMALL = "--epochs 3 --folds 3 --hidden 8"
COMMAND = {  # {out} is the folder of the command, {train graph} that of the uninterrupted command of that name
    "objectives": "hcl:beta=2 --plot {out}/weights.png --json",
    "advise": "{data}/a.npy {data}/b.npy --json",
    "doctor": "--json",
    "inject": "logits --objective hcl:t=0.1 --scale 10 --site {data}/train.py:12 --report {out}/steps.jsonl "
    "-- {data}/train.py --seed-itself",
    "race": "logits --site {data}/train.py:12 --scale 10 --objective hcl:t=0.1 --seeds 3 --set-seed "
    "--steps-flag --steps --metric 'output:loss (.+)' --lower --out {out} --json -- {data}/train.py --steps 40",
    "compare": "logits --site {data}/train.py:12 --scale 10 --objective host hcl:t=0.1 --seeds 1 --set-seed "
    "--metric 'output:loss (.+)' --out {out} --json -- {data}/train.py",
    "train graph": f"{SMALL} --objective infonce:t=0.2 hcl:t=0.2 --jobs 2 --out {{out}} --json",
    "train image": "--epochs 3 --batch 64 --subset 128 --width 16 --probe knn --out {out} --json",
    "train sentence": f"--data {{data}}/texts.txt --root {{data}} --model {{data}}/bert --pooling cls {TRAIN} "
    "--objective infonce:t=0.05 --jobs 2 --out {out} --json",
    "train control": f"--task cartpole-balance --steps 600 --eval-every 400 {AGENT} --out {{out}} --json",
    "push": "{train image}/image/digits/infonce-*/seed0 owner/name --folder {out}/published --json",
    "eval graph": "{train graph} --probe svm knn --folds 3 --json",
    "eval image": "{train image} --probe knn --json",
    "eval sts": "{data}/bert --pooling cls --root {data} --json",
    "eval transfer": "{data}/bert --pooling cls --root {data} --tasks CR TREC --jobs 2 --json",
    "eval retrieval": "{data}/bert --pooling cls --data {data}/words --json",
    "eval control": "{train control} --episodes 1 --json",
    "tune graph": f"{SMALL} --objective adnce --budget 3 --out {{out}} --json",
    "demo": "--quick --domains graph --seeds 1 --objective infonce:t=0.2 --out {out} --json",
    "report": "{train graph} --out {out} --json",
}
NEEDS = {"graph": "torch_geometric", "tu": "torch_geometric", "image": "lightly", "control": "dm_control"}
NEEDS |= dict.fromkeys(("sentence", "sts", "transfer", "retrieval"), "sentence_transformers")
NEEDS |= {"demo": "torch_geometric", "push": "lightly"}
QUICK = ("objectives",)
SCRIPT = """
import sys, torch
from torch.nn.functional import cross_entropy, normalize
torch.set_num_threads(1)
if "--seed-itself" in sys.argv:
    torch.manual_seed(0)
steps = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 300
x, layer = torch.randn(64, 8), torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
for _ in range(steps):
    z = normalize(layer(x))
    loss = cross_entropy(10 * z @ z.T, torch.arange(64))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss", loss.item())
"""


def test_every_command_is_here():
    searched = {name for name in COMMANDS if name.startswith("tune ")}  # the same code for all domains
    downloads = {"eval mteb"}
    assert set(COMMAND) == set(COMMANDS) - searched - downloads | {"tune graph"}


def test_while_torch_is_imported(tmp_path):
    command = [sys.executable, "-X", "importtime", Path(sys.executable).with_name("counterpoint"), "train", "graph"]
    process = session(command, cwd=tmp_path)  # a line on stderr for every module that has been imported
    assert any("torch.types" in line for line in process.stderr)
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate()[1].splitlines()[-1] == "counterpoint: stopped; nothing was done yet"
    assert process.returncode == 130
    assert not list(tmp_path.iterdir())


def test_while_frameworks_are_imported(monkeypatch, capsys):
    def stop(parser):
        raise KeyboardInterrupt

    monkeypatch.setattr(COMMANDS["train graph"], "arguments", stop)
    assert main.main(["train", "graph"]) == 130
    assert capsys.readouterr().err == "counterpoint train graph: stopped; nothing was done yet\n"


@dataclass
class Outcome:
    """The output and the files of a finished command."""

    folder: Path
    seconds: float
    said: Any
    left: dict[str, Any]


class Interrupted:
    """What Ctrl-C meets while a class is created: Python before 3.12 wraps it in a RuntimeError."""

    def __set_name__(self, owner, name):
        raise KeyboardInterrupt


def test_ctrl_c_while_a_class_is_created(monkeypatch, capsys, tmp_path):
    def create(*_):
        type("Owner", (), {"attribute": Interrupted()})

    monkeypatch.setattr(COMMANDS["doctor"], "run", create)
    assert main.main(["doctor"]) == 130
    assert capsys.readouterr().err == "counterpoint doctor: stopped\n"
    with pytest.raises(KeyboardInterrupt):
        store.run_grid(create, [{"domain": "toy", "dataset": "d", "objective": "hcl", "seed": 0}], tmp_path)


class Start:
    """A start of a command, in a session of its own, with an empty folder for its temporary files."""

    def __init__(self, name: str, words: list[str], out: Path) -> None:
        self.name, self.out, self.temporary = name, out, out.with_name(out.name + "-tmp")
        for folder in (out, self.temporary):
            folder.mkdir(exist_ok=True)
        self.began = time.monotonic()
        command = [str(Path(sys.executable).with_name("counterpoint")), *name.split(), *words]
        env = {**os.environ, "TMPDIR": str(self.temporary)}
        self.process = session(command, env=env, cwd=out.parent)

    def interrupted(self, after: float) -> int:
        time.sleep(max(0, after - (time.monotonic() - self.began)))
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
        return self.ended()[0]

    def ended(self) -> tuple[int, str]:
        """Return exit code and stdout; check that no traceback was printed and no temporary file is left."""
        said, errors = self.process.communicate(timeout=PATIENCE)
        code, seconds = self.process.returncode, time.monotonic() - self.began
        script = COMMANDS[self.name].script and code == -signal.SIGINT  # it is the script's traceback
        for word in () if script else ("Traceback", "Exception ignored", "leaked"):
            assert word not in errors, (code, seconds, errors)
        assert script or code in (0, 130), (code, seconds, errors)
        # but for PyG's generated modules, which it never deletes, and what Python makes of them
        of_pyg = ("torch_geometric.", "__pycache__")
        left = [path.name for path in self.temporary.iterdir() if not path.name.startswith(of_pyg)]
        assert not left, (code, seconds)
        return code, said


def whole(path: Path) -> Any:
    """Return the reproducible content of a file; raise if the file is not whole."""
    if path.suffix == ".json":
        content = json.loads(path.read_text())
        if path.name in ("ended.json", "seam.json") or path.name.startswith("auto-"):
            return None  # times, and what was found in steps that nobody seeded
        if path.parent.name == "notes":
            content["notes"] = [note for note in content["notes"] if " time " not in f" {note} "]
        if path.name == "run.json" and content["arguments"]["domain"] == "compare":
            content["details"] = None
        if path.name == "run.json":
            return {name: content.get(name) for name in ("arguments", "data", "result", "details")}
        return content
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        if path.name == "mined.jsonl":
            return rows
        steps = [row["step"] for row in rows]
        return steps if path.name == "metrics.jsonl" else None  # inject appends to what is there
    if path.suffix == ".pt":
        torch.load(path, weights_only=True)
    if path.suffix in (".png", ".gif"):
        from PIL import Image

        with Image.open(path) as picture:
            picture.verify()
    if path.suffix == ".html":
        HTMLParser().feed(text := path.read_text())
        assert text.rstrip().endswith("</html>")
    return None


def left(out: Path) -> dict[str, Any]:
    """Return all files with their content, except the checkpoints that the sentence trainer itself writes."""
    files = [path for path in out.rglob("*") if path.is_file() and "checkpoints" not in path.parts]
    assert not [path for path in files if path.suffix == ".tmp"]
    return {str(path.relative_to(out)): whole(path) for path in files if path.name != ".lock"}


def plain(said: str, out: Path) -> Any:
    """Return the output without the folder and times."""
    text = said.replace(str(out), "OUT")
    try:
        content = json.loads(text)
    except ValueError:
        return text
    if isinstance(content, dict):
        content.pop("seconds", None)
        content["notes"] = [note for note in content.get("notes", ()) if " time " not in f" {note} "]
    return content


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return the outcome of each command by its name; each runs once."""
    data = tmp_path_factory.mktemp("data")
    (data / "train.py").write_text(SCRIPT)
    for name in "ab":
        np.save(data / f"{name}.npy", np.random.default_rng(0).normal(size=(300, 8)))
    if find_spec("transformers"):
        tiny_bert.build(data / "bert")
        tiny_bert.write_sts(data, (*tiny_bert.STS, "STSB-dev"))
        tiny_bert.write_transfer(data)
        tiny_bert.write_collection(data / "words")
        (data / "texts.txt").write_text("\n".join(tiny_bert.texts(1, 40, seed=2)[0]) + "\n")
    outcomes: dict[str, Outcome] = {}

    def words(name: str, out: Path) -> list[str]:
        used = {one: str(outcome(one).folder) for one in COMMAND if f"{{{one}}}" in COMMAND[name]}
        typed = shlex.split(COMMAND[name].format(out=out, data=data, **used))
        return [part for word in typed for part in (glob(word) if "*" in word else [word])]

    def outcome(name: str) -> Outcome:
        if name not in outcomes:
            out = tmp_path_factory.mktemp("whole") / "out"
            start = Start(name, words(name, out), out)
            code, said = start.ended()
            assert code == 0
            outcomes[name] = Outcome(out, time.monotonic() - start.began, plain(said, out), left(out))
        return outcomes[name]

    return words, outcome


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in COMMAND]
)
def test_at_any_moment(name, undisturbed, tmp_path, request):
    if (package := NEEDS.get(name.split()[-1])) and not find_spec(package):
        pytest.skip(f"needs {package}")
    if name.endswith("control"):
        request.getfixturevalue("frames")
    words, outcome = undisturbed
    expected, out, draw = outcome(name), tmp_path / "out", random.Random(name)
    moments = [(i + draw.random()) / MOMENTS * expected.seconds for i in range(MOMENTS)]
    for moment in draw.sample(moments, MOMENTS // (1 + (name in QUICK))):
        Start(name, words(name, out), out).interrupted(max(PYTHON_STARTS, moment))
        left(out)
    code, said = Start(name, words(name, out), out).ended()
    assert code == 0
    assert plain(said, out) == expected.said
    assert left(out) == expected.left
    for run in store.find_runs(out):
        assert run.done
