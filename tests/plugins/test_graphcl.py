"""The GraphCL plugin, on a small script with the host's names, shapes and order of calls, and on clones if there are.

``COUNTERPOINT_HOSTS`` names a folder with clones: ``graphcl`` or ``GraphCL`` of Shen-Lab/GraphCL, ``adnce_graph`` or
``ADNCE`` of junkangwu/ADNCE.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from graphcl_clone import write_clone, write_data
from hosts import real_clone
from injected import differences
from torch_geometric import io
from torch_geometric.data import Batch, Data

import counterpoint as cp
from counterpoint.plugins import graphcl, inject, launch
from counterpoint.plugins.graphcl import HOST
from counterpoint.plugins.host import ONE_WAY, Seam, SeamError

TOO_MUCH = {"mixnca": "cannot be mixed", "robust": "needs adversarial", "intcl": "needs adv", "intnacl": "needs adv"}
TOO_MUCH |= {"sogclr": "needs the positions of samples", "isogclr": "needs the positions of samples"}


@pytest.fixture
def around(monkeypatch):
    """Puts back what a run in this process changes: the interpreter's state and PyG, for the shims stay."""
    monkeypatch.setattr(io, "read_tu_data", io.read_tu_data)
    monkeypatch.setattr(Data, "keys", Data.keys)
    for name in ("argv", "path"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    for name in ("__main__", "aug", "gsimclr", "gsimclr_robust"):
        if name in sys.modules:
            monkeypatch.setitem(sys.modules, name, sys.modules[name])
        else:
            monkeypatch.setitem(sys.modules, name, None)
            del sys.modules[name]


@pytest.fixture
def run(around, tmp_path, monkeypatch):
    """Runs the stand-in with the seam, and returns the seam and the script's module."""

    def go(spec, *words, script="gsimclr.py", verify=0, report=None, shims=True, **options):
        folder = write_clone(tmp_path / script.removesuffix(".py"), script)
        monkeypatch.chdir(folder)
        seam = Seam(spec, verify, report, options)
        launch.run(HOST, seam, Path(script), ["--DS", "TOY", *words], shims)
        return seam, sys.modules[script.removesuffix(".py")]

    return go


@pytest.mark.parametrize("spec", [*sorted(set(cp.registry) - set(TOO_MUCH)), "infonce:t=0.2 + 0.1*dp"])
def test_every_objective_trains(run, spec):
    spec = f"{spec}(adnce):views=2" if spec in ("arcl", "aal") else spec
    spec = "matryoshka(infonce)" if spec == "matryoshka" else spec
    seam, script = run(spec)
    assert seam.calls == len(script.losses) == 3
    assert all(torch.tensor(script.losses).isfinite())
    gradients = [p.grad for p in script.model.encoder.parameters()]
    assert all(g.isfinite().all() for g in gradients)
    # no pair of these few graphs need be within the margin of dp
    assert spec == "dp" or all(g.any() for g in gradients)


@pytest.mark.parametrize(("spec", "why"), TOO_MUCH.items())
def test_what_needs_other_inputs_is_refused(run, spec, why):
    with pytest.raises(SeamError, match=f"{spec}.*{why}"):
        run(spec)


@pytest.mark.parametrize(("words", "bound"), [((), 1e-4), (("--double",), 1e-12)])
@pytest.mark.parametrize("mode", [None, "easy", "adnce"])
def test_the_gradient_is_that_of_the_hosts_loss(run, mode, words, bound):
    fork = () if mode is None else ("--mode", mode, "--temp", "0.15", "--w1", "0.7", "--w2", "1.0")
    seam, _ = run("host", *words, *fork, script="gsimclr.py" if mode is None else "gsimclr_robust.py", verify=3)
    assert seam.proofs == 3
    assert seam.worst <= bound


OWN = {
    None: "infonce:t=0.2,denominator=negatives",
    "easy": "infonce:t=0.15,denominator=mean",
    "adnce": "adnce:t=0.15,mu=0.7,sigma=1,denominator=mean",
}


@pytest.mark.parametrize("spec", ["host", "hcl:t=0.3", "hcl:t=0.3 + 0.1*dp", "debpos"])
@pytest.mark.parametrize("mode", [None, "easy", "adnce"])
def test_gradients_are_those_by_hand(around, tmp_path, monkeypatch, mode, spec):
    name = "gsimclr" if mode is None else "gsimclr_robust"
    monkeypatch.chdir(write_clone(tmp_path, f"{name}.py"))
    monkeypatch.syspath_prepend(tmp_path)
    module = __import__(name)
    module.dataset_num_features = 3
    model = module.simclr(8, 3).double()
    settings = () if mode is None else (mode, type("Args", (), {"temp": 0.15, "w1": 0.7, "w2": 1.0}))
    x, edge_index = torch.rand(80, 3).double(), torch.randint(80, (2, 300))
    graphs = (x, edge_index, torch.arange(8).repeat_interleave(10), 8)

    def gradients(loss_of):
        model.zero_grad()
        z = model(*graphs)
        loss_of(z, model(x.flip(1), *graphs[1:])).backward()
        return [p.grad.clone() for p in model.parameters()]

    def host(*z):
        return model.loss_cal(*z, *settings)

    own = gradients(host)
    expected = own if spec == "host" else gradients(lambda *z: cp.objective(spec, like=OWN[mode])(*z, pairing=ONE_WAY))
    seam = graphcl.patch(spec, module)
    found = gradients(host)
    if spec != "host":  # the host's loss is weighted as it was, which rounding finds
        assert seam.proofs == 1
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def test_other_modes_of_the_fork(run):
    words = ("--mode", "reweight_only", "--temp", "0.2")
    with pytest.raises(SeamError, match="reweight_only is not an objective of this library"):
        run("adnce", *words, script="gsimclr_robust.py")


def test_more_views_are_refused(run):
    with pytest.raises(SeamError, match="asks for 3 views, but its loader makes a graph and one augmented copy"):
        run("arcl(infonce):views=3")


def test_report(run, tmp_path):
    run("adnce:t=0.2", report=tmp_path / "steps.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert lines[0]["negatives"] == 7


def test_shims_are_applied_once_and_only_if_needed(around):
    applied = {shim.name: shim.apply() for shim in HOST.shims}
    assert applied["read_tu_data"]
    assert applied["data_keys"]
    assert not any(shim.apply() for shim in HOST.shims)
    data = Data(x=torch.ones(2, 1), edge_index=torch.zeros(2, 1, dtype=torch.long))
    assert sorted(data.keys) == sorted(data.keys()) == ["edge_index", "x"]
    assert "x" in data
    assert Batch.from_data_list([data, data]).num_graphs == 2


def test_without_shims_the_host_fails_by_itself(run):
    with pytest.raises(ValueError, match="too many values to unpack"):
        run("infonce", shims=False)


def test_a_script_without_the_class(tmp_path):
    module = type(sys)("deepinfomax")
    module.__file__ = "deepinfomax.py"
    with pytest.raises(SeamError, match=r"deepinfomax.py has no simclr.loss_cal"):
        graphcl.patch("infonce", module)


def test_recognises_its_clones(tmp_path):
    assert HOST.recognises(write_clone(tmp_path / "a"))
    assert HOST.recognises(write_clone(tmp_path / "b", "gsimclr_robust.py"))
    assert not HOST.recognises(tmp_path)


def test_command(around, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(write_clone(tmp_path))
    words = ["graphcl", "--objective", "adnce:t=0.05,mu=1.5", "--verify", "2"]
    assert inject.main([*words, "--", "gsimclr.py", "--DS", "TOY"]) == 0
    said = capsys.readouterr().err
    assert "shim data_keys" in said
    assert "replacing the gradient of the arguments of simclr.loss_cal in" in said
    assert "the gradient at the embeddings was that of the host's own loss in 3" in said


def run_launcher(folder: Path, spec: str, verify: int, *script: str) -> str:
    """What the launcher says in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "counterpoint.plugins.inject", "graphcl", "--objective", spec]
    command += ["--verify", str(verify), "--", *script]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


CLONES = {
    "graphcl": (("graphcl", "graphcl/unsupervised_TU", "GraphCL/unsupervised_TU"), "gsimclr.py", ()),
    "adnce": (
        ("adnce_graph", "adnce_graph/graph", "ADNCE/graph"),
        "gsimclr_robust.py",
        ("--mode", "adnce", "--temp", "0.15", "--w1", "0.7", "--w2", "1", "--noise_ratio", "0.1", "--model_name", "x"),
    ),
}


@pytest.mark.parametrize("name", CLONES)
def test_real_clone(tmp_path, name):
    places, script, words = CLONES[name]
    pytest.importorskip("seaborn")  # which the host imports
    clone = tmp_path / "clone"
    shutil.copytree(real_clone(*places, holds=script), clone, ignore=shutil.ignore_patterns("data", "logs"))
    write_data(clone / "data" / "MUTAG" / "MUTAG" / "raw", "MUTAG", 24)
    (clone / "logs").mkdir()
    run = (script, "--DS", "MUTAG", "--lr", "0.01", "--local", "--num-gc-layers", "3", "--aug", "random2", *words)
    said = run_launcher(clone, "adnce:t=0.2", 9, *run)
    assert "the loss was reached 20 times" in said
    assert max(differences(said)) <= 1e-4
