"""Commands start quickly: help, version and usage errors need no torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from counterpoint.integrations import store
from counterpoint.integrations.command import main
from counterpoint.integrations.command.table import COMMANDS
from counterpoint.integrations.graph.settings import bag, cell, untrained
from counterpoint.integrations.store.files import signed

CPU_SECONDS = 0.15
HEAVY = ("torch", "numpy", "transformers", "lightning", "torch_geometric", "dm_control", "matplotlib", "scipy")
HEAVY += ("sklearn", "pandas")
# the CPU time is that of the process itself, Python's own start included
START = f"""
import resource, sys
from counterpoint.integrations.command.main import main
sys.argv = ["counterpoint", *sys.argv[1:]]
code = 0
try:
    code = main()
except SystemExit as error:
    code = error.code
used = resource.getrusage(resource.RUSAGE_SELF)
print(code, used.ru_utime + used.ru_stime, *[name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""


def start(*words):
    """The exit code, the CPU time and the heavy packages imported of a start of the command."""
    done = subprocess.run([sys.executable, "-c", START, *words], capture_output=True, text=True)
    code, seconds, *heavy = done.stderr.splitlines()[-1].split()
    return int(code), float(seconds), heavy


@pytest.mark.parametrize(
    ("words", "expected"),
    [(["--help"], 0), (["--version"], 0), ([], 2), (["objectvies"], 2), (["train"], 2), (["train", "--help"], 0)],
)
def test_help_version_and_usage_errors_are_quick(words, expected):
    code, _, heavy = start(*words)
    assert (code, heavy) == (expected, [])
    assert min(start(*words)[1] for _ in range(3)) <= CPU_SECONDS


@pytest.mark.parametrize(
    ("name", "flag", "expected"),
    [*((name, "--help", 0) for name in COMMANDS), *((name, "--no-such-flag", 2) for name in sorted(COMMANDS)[::4])],
)
def test_every_commands_parser_needs_no_torch(name, flag, expected):
    code, seconds, heavy = start(*name.split(), flag)
    assert (code, heavy) == (expected, [])
    assert seconds <= 2 * CPU_SECONDS  # a single start, perhaps on a busy machine


def test_what_is_done_needs_torch_alone(tmp_path):
    """A grid whose runs are done is read without the frameworks that would train it, or the data."""
    words = ["train", "graph", "--data", "MUTAG", "--out", str(tmp_path), "--json"]
    spec = "infonce:t=0.2,denominator=negatives"
    for arguments in (bag("MUTAG", 0), untrained("MUTAG", 0), cell("MUTAG", spec, 0)):
        run = store.Run(tmp_path, arguments)
        run.path.mkdir(parents=True)
        record = {"arguments": run.arguments, "status": "done", "result": {"accuracy": 70.0}}
        (run.path / "run.json").write_text(json.dumps(signed(record)))
    code, _, heavy = start(*words)
    assert (code, set(heavy) - {"numpy"}) == (0, {"torch"})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train graph --root nowhere", "--root: nowhere is not a folder"),
        ("train graph --data a/b", "'a/b' is not the name of a data set"),
        ("train graph --preset adnce", "the paper has no settings for 'demo'"),
        ("train graph --objective infonce adnse", "unknown objective 'adnse'. Did you mean 'adnce'?"),
        ("tune image --objective hlc", "unknown objective 'hlc'. Did you mean 'hcl'?"),
        ("train graph --device cdua", "unknown device 'cdua'. Did you mean 'cuda'?"),
        ("tune graph --root nowhere", "--root: nowhere is not a folder"),
        ("tune graph --data a b", "--data: one at a time, got a, b"),
        ("tune graph --budget 1 --seeds 2", "--budget: expected 2 or more, one setting's runs, got 1"),
        ("eval graph /nowhere", "/nowhere: no such folder"),
        ("eval graph EMPTY", "no folder there has a run.json"),
        ("train image --data digit", "'digit' is neither a data set nor a folder. Did you mean 'digits'?"),
        ("train image --root nowhere", "--root: nowhere is not a folder"),
        ("train image --preset adnce", "the paper has no settings for 'digits'"),
        ("train image --probe kn", "unknown probe 'kn'. Did you mean 'knn'?"),
        ("train image --protocol lbfg", "unknown protocol 'lbfg'. Did you mean 'lbfgs'?"),
        ("tune image --data digit", "'digit' is neither a data set nor a folder"),
        ("eval image /nowhere", "/nowhere: no such folder"),
        ("eval image EMPTY --data digit", "no folder there has a run.json"),
        ("train image --batch 100000", "fit into digits with 1158 to train on; give --batch 1158 or less"),
        ("train image --backbone resnet19", "backbone: unknown 'resnet19'. Did you mean 'resnet18'?"),
        ("train image --momentum 2", "momentum must be a finite number with 0 <= momentum <= 1, got 2.0"),
        ("train image --out TEXTS/runs", "texts.txt is not a folder"),
        ("train graph --lr nan", "lr must be a finite number with 0 < lr, got nan"),
        ("train graph --device gpu", "unknown device 'gpu'. Did you mean 'cuda'?"),
        ("tune graph --part report", "--part report: tuning sees validation data alone"),
        ("objectives adnse", "unknown objective 'adnse'. Did you mean 'adnce'?"),
        ("objectives --plot EMPTY", "is a folder; expected a file"),
        ("advise TEXTS --model me/nowhere", "model: me/nowhere was not found"),
        ("objectives hcl --plot nowhere/w.png", "--plot: nowhere/w.png: its folder does not exist"),
        ("eval retrieval model --data nano:msmarcoo", "'msmarcoo'. Did you mean 'msmarco'?"),
        ("train control --task walker-wlk", "unknown task 'walker-wlk'. Did you mean 'walker-walk'?"),
        ("train control --batch 5000", "batch: 5000 transitions, but the buffer holds 1000"),
        ("eval control EMPTY", "no folder there has a run.json"),
        ("train sentence --data nowhere.txt", "nowhere.txt: no such file"),
        ("train sentence --data nowhere", "expected a file of .txt"),
        ("train sentence --data a.csv --positives next-sentence", "needs running text in a .txt file"),
        ("train sentence --data x.txt --test STSB-tst", "unknown test 'STSB-tst'. Did you mean 'STSB-test'?"),
        ("train sentence --data TEXTS --precision fp16", "precision: fp16 needs a GPU"),
        ("train sentence --data TEXTS --root nowhere", "--root: nowhere is not a folder"),
        ("train sentence --data TEXTS --model ./nowhere", "model: ./nowhere is not a folder"),
        ("tune sentence --data nowhere.txt", "nowhere.txt: no such file"),
        ("eval sts me/nowhere", "model: me/nowhere was not found"),
        ("eval transfer ./nowhere", "model: ./nowhere is not a folder"),
        ("report /nowhere", "/nowhere: no such folder"),
        ("report EMPTY", "no folder there has a run.json"),
    ],
)
def test_wrong_names_are_told_before_anything_heavy_is_imported(tmp_path, capsys, monkeypatch, words, said):
    extra = {
        "sentence": "huggingface_hub",
        "sts": "huggingface_hub",
        "TEXTS": "huggingface_hub",
        "transfer": "huggingface_hub",
        "control": "dm_control",
    }
    if (needed := extra.get(words.split()[1])) and find_spec(needed) is None:
        pytest.skip(f"needs {needed}")
    (tmp_path / "texts.txt").write_text("one\ntwo\n")
    places = {"EMPTY": str(tmp_path), "TEXTS": str(tmp_path / "texts.txt")}
    typed = [re.sub("^(EMPTY|TEXTS)", lambda place: places[place[0]], word) for word in words.split()]
    monkeypatch.setattr(main, "_import_torch", lambda: pytest.fail("torch is imported before the names are checked"))
    try:
        code = main.main(typed)
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    ["train graph --root x", "tune image --data x", "eval graph x", "train control --task x", "report x", "eval sts x"],
)
def test_wrong_names_are_quick(words):
    """In a process of its own, since this one has imported torch."""
    if words == "eval sts x":
        pytest.importorskip("huggingface_hub")
    code, _, heavy = start(*words.split())
    assert (code, set(heavy) - {"numpy"}) == (2, set())


def test_python_m_counterpoint_is_quick():
    code = "import runpy, sys; sys.argv[1:] = ['--version']; runpy.run_module('counterpoint', run_name='__main__')"
    watched = f"import atexit, sys; atexit.register(lambda: print('torch' in sys.modules))\n{code}"
    done = subprocess.run([sys.executable, "-c", watched], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_the_installed_command_is_the_same(tmp_path):
    done = subprocess.run([Path(sys.executable).with_name("counterpoint"), "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("counterpoint ")
