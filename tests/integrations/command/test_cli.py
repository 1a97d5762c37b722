"""``counterpoint objectives``: what it prints is what the classes say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import counterpoint as cp
from counterpoint.hyper import Real
from counterpoint.install import install
from counterpoint.integrations import store
from counterpoint.integrations.command.main import main
from counterpoint.integrations.command.table import COMMANDS
from counterpoint.integrations.store.errors import GridError


def run(capsys, *words):
    code = main([str(word) for word in words])
    return code, *capsys.readouterr()


def test_the_list_names_every_objective_and_parameter(capsys):
    code, out, err = run(capsys, "objectives")
    assert (code, err) == (0, "")
    sections = {section.split("(")[0].split()[0]: section for section in out.split("\n\n")}
    for name, kind in cp.registry.items():
        words = " ".join(sections[name].split())
        for part in (kind.__name__, kind.formula, kind.paper):
            assert " ".join(part.split()) in words
        for key, hyper in kind.hyper.items():
            names = key if hyper.short == key else f"{hyper.short}, {key}"
            default = cp.hyper.text(kind._defaults()[key])
            assert f"{names} {default} {hyper.expected()}" in words


def test_a_new_objective_appears_by_itself(capsys):
    class Toy(cp.InfoNCE, name="toy"):
        """A toy.

        Args:
            wind: how much of it.
        """

        formula = "p + wind"
        paper = "nobody 2000"
        wind = Real("w", low=0, high=7)

        def __init__(self, temperature=0.5, denominator="mean", radius=None, wind=3.5):
            super().__init__(temperature, denominator, radius, wind=wind)

    try:
        listed = run(capsys, "objectives")[1]
        full = run(capsys, "objectives", "toy:w=5")[1]
    finally:
        del cp.registry["toy"]
    assert "\n\ntoy  Toy\n    p + wind\n    nobody 2000\n" in listed
    assert "w, wind" in listed
    assert "3.5            a finite number with 0 <= wind <= 7" in listed
    assert "5              a finite number with 0 <= wind <= 7 (default 3.5)" in full
    assert full.endswith("Args:\n    wind: how much of it.\n")


@pytest.mark.parametrize("name", [None, *cp.registry])
def test_lines_fit(capsys, name):
    code, out, _ = run(capsys, "objectives", *([name] if name else []))
    assert code == 0
    assert max(map(len, out.splitlines())) <= 120


def test_one_in_full(capsys):
    out = run(capsys, "objectives", "adnce")[1]
    assert "adnce:t=0.5,denominator=with_positive\n" in out
    assert "Args:\n    temperature: ``t`` > 0. Default: 0.5.\n    mu: Center (gaussian)" in out
    assert ":class:" not in out


def test_tables_and_examples_keep_their_lines(capsys):
    out = run(capsys, "objectives", "infonce")[1]
    assert "``negatives``       ``-log E(p) / (N G)``                  GraphCL, decoupled" in out
    assert "\n>>> import torch, counterpoint as cp\n>>> z1" in out


def test_a_spec_shows_its_parts(capsys):
    out = run(capsys, "objectives", "arcl(hcl:beta=2) + 0.1*dp")[1]
    heads = [
        line for line in out.splitlines() if line.endswith(("ArCL", "HCL", "DistancePolarization")) and "  " in line
    ]
    assert heads == ["arcl(...)  ArCL", "hcl  HCL", "dp  DistancePolarization"]
    assert "2              a finite number with 0 <= beta (default 1)" in out


def test_json(capsys):
    found = json.loads(run(capsys, "objectives", "--json")[1])
    assert [one["name"] for one in found] == list(cp.registry)
    by_name = {one["name"]: one for one in found}
    assert by_name["arcl"]["wraps"]
    assert not by_name["mv"]["wraps"]
    prior = next(p for p in by_name["dcl"]["parameters"] if p["name"] == "prior")
    assert prior == {
        "name": "prior",
        "short": "prior",
        "default": 0.1,
        "expected": cp.DCL.prior.expected(),
        "schedulable": True,
    }
    (one,) = json.loads(run(capsys, "objectives", "hcl:beta=2", "--json")[1])
    assert one["spec"] == "hcl:t=0.5,denominator=with_positive,beta=2"
    assert {p["name"]: p["value"] for p in one["parameters"]} == {
        k: v for k, v in cp.HCL(beta=2).to_dict().items() if k != "name"
    }
    assert "beta: Concentration on hard negatives" in one["doc"]


def test_plot(capsys, tmp_path):
    path = tmp_path / "w.png"
    code, out, err = run(capsys, "objectives", "hcl:beta=2", "arcl", "--plot", path, "--json")
    assert code == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert err == f"wrote {path}\n"
    assert [one["name"] for one in json.loads(out)] == ["hcl", "arcl"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["adnec"], "unknown objective 'adnec'. Did you mean 'adnce'?"),
        (["hcl:bta=2"], "unknown parameter 'bta'. Did you mean 'beta'?"),
        (["hcl:beta=-1"], "beta must be a finite number with 0 <= beta"),
        (["--plot", "w.png"], "--plot needs something to draw"),
        (["hcl", "--plot", "w.nonsense"], "nonsense"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(capsys, words, said):
    code, out, err = run(capsys, "objectives", *words)
    assert code == 2
    assert out == ""
    assert err.startswith("counterpoint objectives: ")
    assert said in err
    assert err.count("\n") == 1


def test_a_missing_matplotlib_is_said_in_one_line(capsys, monkeypatch, tmp_path):
    for module in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, module, None)
    code, out, err = run(capsys, "objectives", "hcl", "--plot", tmp_path / "w.png")
    assert (code, out) == (2, "")
    assert err == f"counterpoint objectives: plots need matplotlib: {install('plots')}\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--version"], 0, f"counterpoint {cp.__version__}\n"),
        (["--help"], 0, "commands:\n  COMMAND\n    demo "),
        (["objectives", "--help"], 0, "examples:\n  counterpoint objectives"),
        ([], 2, "COMMAND"),
        (["objectvies"], 2, "counterpoint: unknown command 'objectvies'. Did you mean 'objectives'? Known: "),
    ],
)
def test_the_usual_flags(capsys, words, code, said):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == code
    assert said in "".join(capsys.readouterr())


def test_a_reader_that_stops_is_no_error(capsys, monkeypatch):
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(["objectives", "--json"]) == 0
    # closing has flushed what was left, without an error
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "counterpoint report: stopped\n"),
        (KeyboardInterrupt("1 of 2 runs are over"), 130, "counterpoint report: 1 of 2 runs are over\n"),
        (GridError("1 of 2 runs failed: a (ValueError: b)", []), 1, "counterpoint report: 1 of 2 runs failed: a"),
    ],
)
def test_what_ends_a_grid_ends_the_command_without_a_traceback(tmp_path, capsys, monkeypatch, error, code, said):
    def stop(given):
        raise error

    monkeypatch.setattr(COMMANDS["report"], "run", stop)
    (tmp_path / "run.json").write_text("{}")
    assert main(["report", str(tmp_path)]) == code
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize("name", cp.registry)
def test_a_page_has_advice(capsys, name):
    out = run(capsys, "objectives", name)[1]
    for label in ("when", "tune first", "cost"):
        assert re.search(rf"^    {label} +\S", out, re.M)


TORCH_ALONE = """
import sys
for name in ("numpy", "scipy", "sklearn", "matplotlib", "tqdm", "torchvision", "torch_geometric", "lightly",
             "lightning", "transformers", "sentence_transformers", "datasets", "gymnasium", "dm_control", "mujoco",
             "huggingface_hub"):
    sys.modules[name] = None
"""
EACH = """
from counterpoint.integrations.command.main import main
for line in sys.argv[1:]:
    print(f"code {main(line.split())}", flush=True, file=sys.stderr)
"""
NEEDS = {  # the fewest arguments of each command that needs an extra, and that extra
    "train graph": "graph",
    "train image": "image",
    "train sentence --data texts.txt": "sentence",
    "train control": "control",
    "eval graph graph": "graph",
    "eval image image": "image",
    "eval sts model": "sentence",
    "eval transfer model --root data": "sentence",
    "eval retrieval model --data nano": "sentence",
    "eval mteb model --tasks STS16": "sentence",
    "eval control control": "control",
    "push image me/name": "hub",
    "tune graph": "graph",
    "tune image": "image",
    "tune sentence --data texts.txt": "sentence",
    "tune control": "control",
}


def without_extras(script, *words, cwd=None):
    command = [sys.executable, "-c", TORCH_ALONE + script, *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd)


def command_of(line: str) -> str:
    return next(name for name in COMMANDS if line.startswith(f"{name} ") or line == name)


def test_without_extras_each_command_names_its_own(tmp_path):
    for name in ("texts.txt", "texts.csv"):
        (tmp_path / name).write_text("one\ntwo\n")
    for domain in ("graph", "image", "control"):
        cell = {"domain": domain, "dataset": "demo", "objective": "infonce", "seed": 0, "epochs": 1}
        run = store.Run(tmp_path / domain, cell)
        with run.lock():
            run.begin()
            run.finish({"accuracy": 1.0})
    done = without_extras(EACH, *NEEDS, cwd=tmp_path)
    lines = [line for line in done.stderr.splitlines() if line.startswith(("counterpoint ", "code "))]
    for (line, extra), error, code in zip(NEEDS.items(), lines[::2], lines[1::2], strict=True):
        assert error.startswith(f"counterpoint {command_of(line)}: ")
        assert error.endswith(install(extra))
        assert code == "code 2"
    others = {"advise", "compare", "race", "objectives", "inject", "report", "demo", "doctor"}
    assert {command_of(line) for line in NEEDS} == set(COMMANDS) - others


def test_without_extras_nothing_else_is_said():
    done = without_extras(
        "from counterpoint.integrations.command.main import main; sys.exit(main())", "objectives", "adnce"
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_streams_that_are_closed_or_know_few_letters(tmp_path):
    run = store.Run(tmp_path, {"domain": "toy", "dataset": "日本", "objective": "infonce", "seed": 0})
    with run.lock():
        run.begin()
        run.finish({"accuracy": 1.0})
    command = [Path(sys.executable).with_name("counterpoint"), "report", tmp_path]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "mean \\xb1 sd" in done.stdout
    assert "\\u65e5\\u672c: one row" in done.stdout
    closed = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], capture_output=True, text=True)
    assert (closed.returncode, closed.stderr) == (0, "")


def test_python_m_counterpoint():
    done = subprocess.run([sys.executable, "-m", "counterpoint", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"counterpoint {cp.__version__}\n")
    done = subprocess.run([sys.executable, "-m", "counterpoint", "nothing"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("counterpoint: unknown command 'nothing'.")
