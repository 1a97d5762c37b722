"""The launcher: what it runs, refuses and reports, in one process, in spawned ones and under torchrun."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from processes import PATIENCE
from torch.optim import optimizer

import counterpoint as cp
from counterpoint.plugins import inject, registry
from counterpoint.plugins.arguments import split_launcher
from counterpoint.plugins.host import Host, Seam, SeamError, Shim
from counterpoint.plugins.launch import LAUNCHER

ARGUMENTS = ["--scale", "2"]
TOY = """
import sys

import torch
from torch.nn.functional import cross_entropy


def train(steps):
    torch.manual_seed(0)
    logits = torch.randn(4, 4, requires_grad=True)
    for _ in range(steps):
        loss = cross_entropy(logits, torch.arange(4))  # here
        (gradient,) = torch.autograd.grad(loss, logits)
        print("gradient", float(gradient.square().sum()))


if __name__ == "__main__":
    train(int(sys.argv[1]))
"""


def gradient(spec: str) -> float:
    """Return the number that TOY prints if the objective has replaced its loss."""
    torch.manual_seed(0)
    logits = torch.randn(4, 4, requires_grad=True)
    cp.objective(spec).from_logits(logits, scale=2.0).backward()
    return float(logits.grad.square().sum())


def printed(out: str) -> list[float]:
    return [float(line.split()[1]) for line in out.splitlines()]


def site(source: str, name: str = "toy.py") -> list[str]:
    line = next(i for i, text in enumerate(source.splitlines(), 1) if text.endswith("# here"))
    return ["--site", f"{name}:{line}"]


@pytest.fixture
def launch(tmp_path, monkeypatch, capsys):
    """Writes a script, runs it in this process with the launcher, and cleans up behind both."""

    def run(*words: str, script: str | None = TOY, arguments: tuple[str, ...] = ("3",)) -> SimpleNamespace:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", sys.argv)
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
        monkeypatch.setattr(torch.nn.functional, "cross_entropy", torch.nn.functional.cross_entropy)
        tail: tuple[str, ...] = ()
        if script is not None:
            (tmp_path / "toy.py").write_text(script)
            tail = ("--", "toy.py", *arguments)
        try:
            code = inject.main([*words, *tail])
        finally:
            sys.modules.pop("toy", None)
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return run


def process(folder: Path, *words: str, module: str = "counterpoint.plugins.inject") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *words]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE)


# ---- what is run -----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["before", "behind"])
def test_the_objective_takes_the_place_of_the_call(launch, order):
    options = ["--objective", "hcl:t=0.5", *ARGUMENTS, *site(TOY)]
    found = launch(*options, "logits") if order == "before" else launch("logits", *options)
    assert found.code == 0
    assert printed(found.out) == pytest.approx([gradient("hcl:t=0.5")] * 3, rel=1e-5)
    assert "counterpoint: replacing the gradient at toy.py:12" in found.err
    assert "the loss was reached 3 times; 'hcl:t=0.5' trained in 3 of them; the loss that the script" in found.err
    assert "prints is still its own\n  checked: before replacing, the gradient" in found.err
    said = launch("logits", "--objective", "hcl", *ARGUMENTS, *site(TOY)).err
    assert "'hcl' (hcl:t=host,denominator=with_positive) trained in 3 of" in said


def test_a_scale_for_a_temperature_is_warned_about(launch):
    with pytest.warns(UserWarning, match=r"at most 5 for cosines, got 20\. If this is a scale of logits, .* is 1/20"):
        launch("logits", "--objective", "infonce:t=20", *ARGUMENTS, *site(TOY))


def test_help_of_a_host_has_its_own_options_and_says_how_to_find_them(launch, capsys):
    shown = {}
    for host in ("logits", "curl"):
        with pytest.raises(SystemExit) as left:
            launch(host, "--help", script=None)
        assert left.value.code == 0
        shown[host] = " ".join(capsys.readouterr().out.split())
        assert f"counterpoint inject {host} --explain says where the loss sits" in shown[host]
    assert "`counterpoint inject auto` finds the site" in shown["logits"]
    assert [name in shown["logits"] for name in ("--site ", "--scale ", "--replace")] == [True, True, False]
    assert [name in shown["curl"] for name in ("--site", "--scale", "--allow-drift ")] == [False, False, True]
    assert "inject auto` finds the site" in launch("logits", "--explain", script=None).out
    refused = launch("logits", "--steps", "4", *ARGUMENTS, *site(TOY))  # not shown, but understood
    assert "--steps: logits has no such option" in refused.err


def test_by_default_the_host_keeps_its_loss(launch):
    found = launch("logits", *ARGUMENTS, *site(TOY))
    assert printed(found.out) == pytest.approx([gradient("infonce:t=host")] * 3, rel=1e-5)


def test_verify_takes_the_first_steps_with_the_hosts_loss_and_then_goes_on_with_the_objective(launch):
    found = launch("logits", "--objective", "dcl:t=0.5", "--verify", "2", *ARGUMENTS, *site(TOY))
    own, ours = gradient("infonce:t=host"), gradient("dcl:t=0.5")
    assert printed(found.out) == pytest.approx([own, own, ours], rel=1e-5)
    assert "was that of the host's own loss in 3 of them" in found.err


def test_report_appends_a_line_per_step(launch, tmp_path):
    elsewhere = TOY.replace("import sys\n", "import os, sys\nos.mkdir('work'); os.chdir('work')\n")
    launch("logits", "--report", "steps.jsonl", *ARGUMENTS, *site(elsewhere), script=elsewhere)
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(line["negatives"] == 3 for line in lines)


def test_a_script_without_a_guard(launch):
    bare = TOY.replace('if __name__ == "__main__":\n    train(int(sys.argv[1]))', "train(2)")
    found = launch("logits", *ARGUMENTS, *site(bare), script=bare)
    assert found.code == 0
    assert "reached 2 times" in found.err


def test_what_follows_an_earlier_guard_may_build_on_it(launch):
    early = (
        'if __name__ == "__main__":\n    times = 2\n'
        'if __name__ != "__main__":\n    raise ImportError("run, not imported")\n'
        "three = times + 1\n"
    )
    script = early + TOY.replace("int(sys.argv[1])", "three") + "    train = None\nprint('behind', train)"
    found = launch("logits", *ARGUMENTS, *site(script), script=script)
    assert found.code == 0
    assert "reached 3 times" in found.err
    assert found.out.endswith("behind None\n")
    bare = early + TOY.partition("if __name__")[0] + "train(three)"
    assert "reached 3 times" in launch("logits", *ARGUMENTS, *site(bare), script=bare).err


def test_a_script_sees_what_plain_python_shows_it(launch, tmp_path):
    script = TOY + (
        "    def typed(x: int): ...\n"
        "    print(typed.__annotations__, __name__, sys.argv, sys.path[0], __file__)\n"
        "    print(sys.modules['__main__'].train is train)"
    )
    found = launch("logits", *ARGUMENTS, *site(script), script=script)
    here = str(tmp_path.resolve())
    expected = f"{{'x': <class 'int'>}} __main__ ['toy.py', '3'] {here} {tmp_path / 'toy.py'}"
    assert found.out.splitlines()[-2:] == [expected, "True"]


def test_a_scripts_own_future_imports_hold_in_its_guard(launch):
    script = (
        "from __future__ import annotations\n" + TOY + "    def typed(x: int): ...\n    print(typed.__annotations__)"
    )
    assert launch("logits", *ARGUMENTS, *site(script), script=script).out.endswith("{'x': 'int'}\n")


# ---- how it ends -----------------------------------------------------------------------------------


@pytest.mark.parametrize("last", ["", "    sys.exit(0)\n", "    sys.exit()\n"])
def test_a_seam_that_is_never_reached_is_an_error(launch, last):
    found = launch("logits", *ARGUMENTS, "--site", "elsewhere.py:1", script=TOY + last)
    assert found.code == 3
    assert "nothing was replaced: the script never reached" in found.err
    assert "no cross entropy was called anywhere" not in found.err
    assert "no cross entropy was called anywhere" in launch("logits", *site(TOY), script=TOY, arguments=("0",)).err
    assert "seen instead:\n  toy.py:12 with logits (4, 4), 3 times" in found.err


LATE = """
import sys

import torch
import torch.nn.functional as F

net = torch.nn.Linear(3, 4)
optimizer = torch.optim.SGD(net.parameters(), 0.1)


def loss(x):
    return F.cross_entropy(net(x) @ net(x).T, torch.arange(4))


def unused(x):
    return F.cross_entropy(net(x), x[:, 0].long())


for step in range(120):
    x = torch.randn(4, 3)
    (loss(x) if step >= int(sys.argv[1]) else net(x).square().mean()).backward()
    optimizer.step()
print(step)
"""


@pytest.mark.parametrize(
    "words", [["logits", "--site", "toy.py:unused"], ["function", "--replace", "toy.py:unused(x)"]]
)
def test_a_seam_that_is_not_reached_in_a_hundred_steps_is_an_error(launch, words):
    found = launch(*words, "--objective", "hcl:t=0.1", script=LATE, arguments=("0",))
    assert (found.code, found.out) == (3, "")
    assert "the host trains with its own loss: in 100 steps of an optimizer" in found.err
    assert launch(*words, "--only", script=LATE, arguments=("0",)).out == "119\n"


@pytest.mark.parametrize(("start", "words", "code"), [(90, [], 0), (110, [], 3), (110, ["--only"], 0)])
def test_a_loss_that_begins_later(launch, start, words, code):
    found = launch("logits", "--site", "toy.py:loss", "--scale", "1", *words, script=LATE, arguments=(str(start),))
    assert (found.code, found.out) == (code, "" if code else "119\n")
    assert not optimizer._global_optimizer_post_hooks


@pytest.mark.parametrize(("every", "said"), [(1, ""), (5, ""), (120, "took 90 more steps without this loss")])
def test_a_loss_that_ends_earlier(launch, every, said):
    """Every ``every`` steps, the first 30 of 120 or of 5 are those of the loss."""
    script = LATE.replace("step >= int(sys.argv[1])", "step % int(sys.argv[1]) < max(1, int(sys.argv[1]) // 4)")
    words, arguments = ["logits", "--site", "toy.py:loss", "--scale", "1"], (str(every),)
    found = launch(*words, script=script, arguments=arguments)
    assert (found.code, "more steps without" in found.err) == (4 * bool(said), bool(said)), found.err
    assert said in found.err
    assert launch(*words, "--only", script=script, arguments=arguments).code == 0


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("99", "toy.py calls nothing on this line; the nearest line that does: 24."),
        ("10", "toy.py calls nothing on this line; the nearest line that does: 9."),
        ("los", "toy.py does not define it. Did you mean 'loss'?"),
    ],
)
def test_a_site_that_is_not_in_the_file_is_refused_at_once(launch, tmp_path, place, message):
    found = launch("logits", "--site", f"toy.py:{place}", script=LATE.replace("net =", "print('begins')\nnet =", 1))
    assert (found.code, message in found.err, found.out.count("119")) == (2, True, 0), found.err
    (tmp_path / "loss.py").write_text("x = 1\n")
    script = "import loss\nprint('trains')"
    found = launch("logits", "--site", f"loss.py:{place}", script=script)
    assert (found.code, found.out, "If you mean another file" in found.err) == (2, "", True)


def test_a_site_is_in_the_working_directory_rather_than_in_another_file_of_that_name(launch, tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "late.py").write_text("x = 1\n")
    (tmp_path / "late.py").write_text(LATE)
    found = launch("logits", "--site", "late.py:loss", "--scale", "1", script="import more.late\nimport late")
    assert (found.code, found.out) == (0, "119\n"), found.err  # that of the working directory


@pytest.mark.parametrize(
    ("words", "script"),
    [
        ("torchrun --nproc_per_node 2 toy.py 3", "toy.py 3"),
        ("accelerate launch -m toy", "-m toy"),
        ("accelerate launch --module toy --epochs 1", "-m toy --epochs 1"),
        ("deepspeed toy.py --module x", "toy.py --module x"),
        ("python -m torch.distributed.run toy.py", "toy.py"),
        ("python -u -m torch.distributed.run toy.py", "toy.py"),
        ("-m torch.distributed.run toy.py", "toy.py"),
        ("toy.py torchrun toy.py", "toy.py torchrun toy.py"),
    ],
)
def test_a_launcher_and_its_script(words, script):
    launcher, rest = split_launcher(words.split())
    assert rest == script.split()
    assert words.split()[: len(launcher)] == launcher


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("torchrun --nproc-per-node 2", "which script? Put it behind the launcher: -- torchrun --nproc-per-node 2 tr"),
        ("torchrun --nproc-per-node 2 tyo.py", "script not found: tyo.py. Did you mean 'toy.py'?"),
        ("deepspeed toy.py", "deepspeed: not found; is it installed in this environment?"),
    ],
)
def test_launchers_that_cannot_start(launch, tmp_path, words, message):
    (tmp_path / "toy.py").write_text(TOY)
    found = launch("logits", *site(TOY), "--", *words.split(), script=None)
    assert (found.code, message in found.err) == (2, True), found.err


def test_a_scripts_exit_code_is_kept(launch):
    with pytest.raises(SystemExit) as stop:
        launch("logits", *ARGUMENTS, *site(TOY), script=TOY + "    sys.exit(7)\n")
    assert stop.value.code == 7


@pytest.mark.slow
def test_a_script_that_crashes_shows_its_own_traceback(tmp_path):
    script = TOY.replace("    for _", "    raise LookupError('its own trouble')\n    for _")
    (tmp_path / "toy.py").write_text(script)
    found = process(tmp_path, "logits", *ARGUMENTS, *site(script), "--", "toy.py", "3")
    plain = subprocess.run([sys.executable, "toy.py", "3"], cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == plain.returncode == 1
    assert found.stderr.endswith(plain.stderr.removeprefix("Traceback (most recent call last):\n"))


# ---- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["simcsee"], "unknown host 'simcsee'. Did you mean 'simcse'?"),
        (["logits", "--objective", "adnec"], "Did you mean 'adnce'?"),
        (["logits", "--objective", "adnce:tt=0.1"], "Did you mean"),
        (["logits", "--objective", "infonce:t=learned(0.1,0.05,1)"], "the host's optimizer does not update"),
        (["logits", "--report", "nowhere/steps.jsonl"], "its folder does not exist"),
        (
            ["auto", "--apply", "--objective", "hcl", "--", "torchrun", "toy.py"],
            "--apply starts one process: leave it out",
        ),
        (["logits", "--verify", "-3"], "--verify -3: expected the number of calls to compare"),
        (["logits", "--start", "-1"], "--start -1: expected the number of calls so far"),
        (["logits", "--site", "toy.py:12", "--scale", "-2"], "--scale -2: expected a positive number or a name"),
        (["logits", "--site", "toy.py:12", "--shims", "simce"], "unknown host 'simce'. Did you mean 'simcse'?"),
        (["logits", "--site", "toy.py:12", "--shims", "curl:fork"], "the shims of curl are the same for every package"),
        (["logits", "--site", "toy.py:12", "--shims", "simcse", "--no-shims"], "exclude each other"),
        (
            ["logits", "--site", "toy.py:12", "--shims", "simcse:fork"],
            "the shims of simcse:fork change the package 'fork'",
        ),
        (["logits", "--site", "toy.py", "--scale", "2"], "expected FILE:LINE"),
    ],
)
def test_usage(launch, tmp_path, words, message):
    (tmp_path / "simcse").mkdir()
    (tmp_path / "simcse" / "models.py").write_text("def cl_forward(model): ...")
    found = launch(*words)
    assert found.code == 2
    assert message in found.err
    assert "loss" not in found.out


@pytest.mark.parametrize("words", ["logits --objective hcl toy.py", "lightly --objective hcl toy.py --epochs 1"])
def test_a_script_stands_behind_dashes(launch, capsys, words):
    with pytest.raises(SystemExit) as stop:
        launch(*words.split())
    assert stop.value.code == 2
    assert "stand behind --: -- toy.py" in capsys.readouterr().err


def test_the_parser_needs_no_torch():
    """``counterpoint inject --help`` and usage errors are quick, whatever ``import counterpoint`` itself imports."""
    code = """
import argparse, importlib.util, sys, types
spec = importlib.util.find_spec("counterpoint")
package = sys.modules["counterpoint"] = types.ModuleType("counterpoint")
package.__path__ = list(spec.submodule_search_locations)
from counterpoint.plugins import inject, registry
parser = argparse.ArgumentParser()
inject.add_arguments(parser)
assert "--objective SPEC" in parser.format_help()
assert "simcse" in registry.names()
assert "torch" not in sys.modules
try:
    inject.command(parser.parse_args(["simcse", "--objectiv", "hcl", "--unknown"]))
except SystemExit as stop:
    assert stop.code == 2
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_missing_script(launch):
    assert "script not found: nowhere.py" in launch("logits", "--", "nowhere.py", script=None).err
    assert "which host? Known: simcse," in launch(script=None).err
    assert "which script?" in launch("logits", script=None).err
    assert launch("logits", "--", "nowhere.py", script=None).code == 2


def test_an_unknown_option_is_not_taken_for_the_scripts(launch, capsys):
    with pytest.raises(SystemExit) as stop:
        launch("logits", "--objective", "hcl", "--scales", "2")
    assert stop.value.code == 2
    assert "unknown flag --scales. Did you mean '--scale'?" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["auto", "logits --site toy.py:12"])
def test_a_module_of_a_package_is_run(host, tmp_path, monkeypatch, capsys):
    """With and without options before the ``--``, which argparse removes in one of the cases."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module.py").write_text("import sys\nprint(sys.argv[1:])\n")
    try:
        assert inject.main([*host.split(), "--", "-m", "package.module", "--epochs", "2"]) == 3
    finally:
        for name in ("package", "package.module"):
            sys.modules.pop(name, None)
    assert capsys.readouterr().out == "['--epochs', '2']\n"


def test_a_wrong_clone(launch, tmp_path):
    found = launch("graphcl")
    assert found.code == 2
    assert "it looks like none of the known hosts" in found.err
    (tmp_path / "simcse").mkdir()
    (tmp_path / "simcse" / "models.py").write_text("def cl_forward(model): ...")
    found = launch("graphcl")
    assert found.code == 2
    assert "it looks like simcse" in found.err


# ---- hosts -----------------------------------------------------------------------------------------


def test_list_and_explain(launch):
    listed = launch("--list", script=None)
    assert listed.code == 0
    for name in registry.BUILT_IN:
        host = registry.load(name)
        assert f"{name}: {host.title}" in listed.out
        assert re.search(r"[A-Z][a-z]+ 20\d\d", host.tested)  # when
    explained = launch("simcse", "--explain", script=None)
    assert explained.code == 0
    assert "shim       loop: " in explained.out
    assert "tested     transformers" in explained.out
    assert launch("simcse", "--explain").code == 2  # the folder is not a clone


CALLS: list[str] = []
THIRD = Host(
    name="third",
    title="a host from another package",
    seam="nowhere",
    tensors="none",
    spec="infonce:t=0.1",
    tested="never",
    shims=(
        Shim("needed", "without it nothing runs", lambda: bool(CALLS.append("needed") or True)),
        Shim("obsolete", "once it was needed", lambda: bool(CALLS.append("obsolete"))),
    ),
    before=lambda seam: CALLS.append("before"),
    after=lambda seam, module: CALLS.append("after " + module.__name__),
)


@pytest.fixture
def third(monkeypatch):
    """A host that an installed package seems to register."""
    real = metadata.entry_points

    def entry_points(**how):
        if how.pop("group", None) != registry.GROUP:
            return real(**how)
        known = [SimpleNamespace(name="third", load=lambda: THIRD), SimpleNamespace(name="absent", load=absent)]
        return [entry for entry in known if entry.name == how.get("name", entry.name)]

    def absent():
        return Host("absent", "without its package", "", "", "", "", package="no_package_of_this_name")

    CALLS.clear()
    monkeypatch.setattr(metadata, "entry_points", entry_points)


def test_hosts_of_other_packages(launch, third):
    found = launch("third", "--objective", "infonce")
    assert found.code == 3
    assert CALLS == ["needed", "obsolete", "before", "after toy"]
    assert "shim needed: without it nothing runs" in found.err
    assert "obsolete" not in found.err
    assert "third: a host from another package" in launch("--list", script=None).out


def test_no_shims(launch, third):
    assert "shim" not in launch("third", "--no-shims").err
    assert CALLS == ["before", "after toy"]


def test_a_missing_package(launch, third):
    found = launch("absent")
    assert found.code == 2
    assert "pip install no_package_of_this_name" in found.err


def test_a_missing_package_with_an_extra(monkeypatch):
    monkeypatch.setattr(registry.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SeamError, match=r"the package lightly is not installed: (uv )?pip install .*\[image\]"):
        registry.find("lightly", Path())


README = Path(__file__).parents[2] / "examples" / "existing_repos" / "README.md"
TRAIN = """
import torch

def contrast(a, b):
    a, b = (torch.nn.functional.normalize(z, dim=1) for z in (a, b))
    return torch.nn.functional.cross_entropy(a @ b.T / 0.1, torch.arange(len(a)))

if __name__ == "__main__":
    torch.manual_seed(0)
    for _ in range(3):
        a, b = torch.randn(8, 4, requires_grad=True), torch.randn(8, 4)
        contrast(a, b).backward()
        print(float(a.grad.abs().sum()))
"""


def test_a_package_that_brings_a_host_and_an_objective(tmp_path, monkeypatch, capsys):
    """The package of the README, as pip would have installed it."""
    module, table = re.findall(r"```(?:python|toml)\n(.*?)```", README.read_text(), re.S)
    installed = tmp_path / "acme-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    names = re.sub(r'\[project.entry-points."(.*?)"\]', r"[\1]", table).replace('"', "")
    (installed / "entry_points.txt").write_text(names)
    (tmp_path / "acme.py").write_text(module)
    (tmp_path / "train.py").write_text(TRAIN)
    command = [sys.executable, "-m", "counterpoint.plugins.inject", "acme", "--objective", "twice:t=0.1"]
    command += ["--verify", "1", "--", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "reached 3 times" in done.stderr
    assert "the gradient at the embeddings was that of the host's own loss in 3 of them" in done.stderr
    runpy.run_path(str(tmp_path / "train.py"), run_name="__main__")
    losses = [[float(line) for line in said.split()] for said in (done.stdout, capsys.readouterr().out)]
    assert losses[0] == pytest.approx([losses[1][0], *(2 * loss for loss in losses[1][1:])], rel=1e-5)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert inject.main(["--list"]) == 0
    finally:
        sys.modules.pop("acme", None)
        cp.registry.pop("twice", None)
    assert "acme: Acme's training scripts" in capsys.readouterr().out


# ---- several processes -----------------------------------------------------------------------------

SPAWN = TOY.replace(
    "    train(int(sys.argv[1]))", "    torch.multiprocessing.spawn(work, (Box(2),), nprocs=2)"
).replace(
    "def train",
    """
import torch.multiprocessing


class Box:
    def __init__(self, steps):
        self.steps = steps


def work(rank, box):
    assert __name__ != "__mp_main__"
    train(box.steps)


def train""",
)


def test_spawned_processes_are_patched_and_counted(launch):
    found = launch("logits", "--verify", "1", *ARGUMENTS, *site(SPAWN), script=SPAWN)
    assert found.code == 0
    assert found.err.count("replacing the gradient") == 1  # not by every process
    assert "reached 4 times" in found.err
    assert "was that of the host's own loss in all 2 calls that were checked" in found.err


@pytest.mark.slow
def test_what_a_spawned_process_refuses_is_one_clear_message(launch):
    weighted = SPAWN.replace("torch.arange(4))", "torch.arange(4), weight=torch.ones(4))")
    found = launch("logits", "--objective", "hcl", *ARGUMENTS, *site(weighted), script=weighted)
    assert found.code == 2
    lines = found.err.splitlines()[-4:]  # torch may add that it ends the other process
    assert sum(line.startswith("counterpoint: logits: class weights at") for line in lines) == 1
    assert "Traceback" not in found.err


@pytest.mark.skipif(importlib.util.find_spec("torch.distributed.run") is None, reason="torch without torchrun")
@pytest.mark.slow
@pytest.mark.parametrize("module", [True, False])
def test_torchrun(tmp_path, module, monkeypatch):
    monkeypatch.setenv(LAUNCHER, "torchrun")  # as in what a script starts that a launcher has started
    script = TOY.replace("    train(", "    torch.distributed.init_process_group('gloo')\n    train(")
    (tmp_path / "sub").mkdir()
    path = "import os, sys\nassert (os.getcwd() in sys.path) == {}\n"  # as python -m and python FILE have it
    script = path.format(module) + script
    (tmp_path / "sub" / "toy.py").write_text(script)
    words = ["logits", "--objective", "hcl:t=0.5", "--report", "steps.jsonl", *ARGUMENTS, *site(script, "sub/toy.py")]
    start = ["--module", "sub.toy"] if module else ["sub/toy.py"]
    found = process(tmp_path, *words, "--", "torchrun", "--standalone", "--nproc_per_node", "2", *start, "3")
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("gradient") == 6
    # one process speaks and writes for all
    assert found.stderr.count("the loss was reached 3 times") == 1
    assert len((tmp_path / "steps.jsonl").read_text().splitlines()) == 3


AGAIN = TOY.replace(
    "    train(int(sys.argv[1]))",
    """
    import os, subprocess

    train(int(sys.argv[1]))
    sys.stdout.flush()
    if "LOCAL_RANK" not in os.environ:  # as Lightning starts its further processes
        again = [sys.executable, os.path.abspath(sys.argv[0]), *sys.argv[1:]]
        subprocess.run(again, env={**os.environ, "LOCAL_RANK": "1"}, check=True)
        subprocess.run([sys.executable, "-c", "print('another', 'script')"], check=True)
""",
)


@pytest.mark.slow
def test_a_script_that_starts_itself_again(tmp_path):
    (tmp_path / "toy.py").write_text(AGAIN)
    options = ["--start", "2", "--no-shims", *ARGUMENTS, *site(AGAIN)]
    words = ["logits", "--objective", "hcl:t=schedule(0.5,0.1,4)", *options]
    found = process(tmp_path, *words, "--", "toy.py", "2")
    assert found.returncode == 0, found.stderr
    *losses, another = found.stdout.splitlines()
    assert len(losses) == 4
    assert losses[:2] == losses[2:]  # the second process begins where the first one did
    assert len(set(losses)) == 2
    assert another == "another script"
    assert found.stderr.count("replacing the gradient") == found.stderr.count("the loss was reached 2 times") == 1


# ---- the seam --------------------------------------------------------------------------------------


def test_a_seam_keeps_schedules_between_steps():
    seam, z = Seam("infonce:t=schedule(1,0.5,2)"), torch.randn(2, 4, 3)
    for expected in (1.0, 0.75, 0.5, 0.5):
        loss_fn = seam.objective()
        assert float(loss_fn.temperature) == expected
        loss_fn(*z)


def test_a_resumed_training_goes_on_with_its_schedule(launch, tmp_path):
    options = ["--objective", "infonce:t=schedule(1,0.5,8)", "--report", "steps.jsonl", *ARGUMENTS, *site(TOY)]
    whole = launch("logits", *options, arguments=("6",)).out.split()
    parts = launch("logits", *options, arguments=("4",)).out.split()
    parts += launch("logits", "--start", "4", *options, arguments=("2",)).out.split()
    assert parts == whole
    assert len(set(whole)) == 7  # six numbers, and their name
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [*range(1, 7)] * 2
    assert lines[:6] == lines[6:]


def test_the_report_of_a_verified_step_is_of_the_hosts_loss(launch, tmp_path):
    options = ["--objective", "infonce:t=0.1", "--verify", "2", "--report", "steps.jsonl", *ARGUMENTS, *site(TOY)]
    assert launch("logits", *options).code == 0
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    same = [{key: value for key, value in line.items() if key not in ("step", "verify")} for line in lines]
    assert same[0] == same[1] != same[2]
    assert [line.get("verify") for line in lines[:3]] == [True, True, None]
