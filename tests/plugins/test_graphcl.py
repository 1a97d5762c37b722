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
from torch_geometric import io
from torch_geometric.data import Batch, Data

import counterpoint as cp
from counterpoint.plugins import graphcl, inject, launch
from counterpoint.plugins.graphcl import HOST
from counterpoint.plugins.host import Seam, SeamError

TOO_MUCH = {"mixnca": "cannot be mixed", "robust": "needs adversarial", "intcl": "needs adv", "intnacl": "needs adv"}


class Recorded(Seam):
    """A seam that keeps what it got."""

    def loss(self, loss_fn, theirs, *args, **how):
        found = super().loss(loss_fn, theirs, *args, **how)
        self.__dict__.setdefault("seen_views", []).append(args)
        self.__dict__.setdefault("returned", []).append(found)
        return found


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
        seam = Recorded(spec, verify, report, options)
        launch.run(HOST, seam, Path(script), ["--DS", "TOY", *words], shims)
        return seam, sys.modules[script.removesuffix(".py")]

    return go


@pytest.mark.parametrize("spec", [*sorted(set(cp.registry) - set(TOO_MUCH)), "infonce:t=0.2 + 0.1*dp"])
def test_every_objective_trains(run, spec):
    spec = f"{spec}(adnce)" if spec in ("arcl", "aal") else spec
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


@pytest.mark.parametrize(("words", "bound"), [((), 1e-6), (("--double",), 1e-12)])
@pytest.mark.parametrize("mode", [None, "easy", "adnce"])
def test_host_reproduces_the_host(run, mode, words, bound):
    fork = () if mode is None else ("--mode", mode, "--temp", "0.15", "--w1", "0.7", "--w2", "1.0")
    seam, _ = run("host", *words, *fork, script="gsimclr.py" if mode is None else "gsimclr_robust.py", verify=3)
    assert len(seam.differences) == 3
    # with the mean in the denominator losses pass through zero, where nothing is relatively close
    assert max(min(pair) for pair in seam.differences) <= bound


@pytest.mark.parametrize("mode", [None, "easy", "adnce"])
def test_gradients_of_host_are_the_hosts(around, tmp_path, monkeypatch, mode):
    name = "gsimclr" if mode is None else "gsimclr_robust"
    monkeypatch.chdir(write_clone(tmp_path, f"{name}.py"))
    monkeypatch.syspath_prepend(tmp_path)
    module = __import__(name)
    module.dataset_num_features = 3
    model = module.simclr(8, 3).double()
    settings = () if mode is None else (mode, type("Args", (), {"temp": 0.15, "w1": 0.7, "w2": 1.0}))
    x, edge_index = torch.rand(80, 3).double(), torch.randint(80, (2, 300))
    graphs = (x, edge_index, torch.arange(8).repeat_interleave(10), 8)

    def gradients():
        model.zero_grad()
        z = model(*graphs)
        loss = model.loss_cal(z, model(x.flip(1), *graphs[1:]), *settings)
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in model.parameters())]

    theirs = gradients()
    graphcl.patch("host", module)
    torch.testing.assert_close(gradients(), theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("spec", ["hcl:t=0.3", "hcl:t=0.3 + 0.1*dp"])
def test_anchors_are_the_first_view(run, spec):
    seam, script = run(spec)
    expected = [cp.objective(spec)(*views, pairing="one_way").item() for views in seam.seen_views]
    assert script.losses == pytest.approx(expected, rel=1e-6)


def test_papers_own_pairings_are_kept(run):
    seam, script = run("arcl(infonce):views=3 + 0.5*infonce")
    for views, loss in zip(seam.seen_views, script.losses, strict=True):
        expected = cp.objective("arcl(infonce):views=3")(*views) + 0.5 * cp.InfoNCE()(*views, pairing="one_way")
        assert loss == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("spec", ["arcl(adnce:mu=0.7,t=0.2)", "nca", "debpos", "aal(hcl) + 0.1*dp"])
def test_more_views(run, spec):
    seam, script = run(spec, "--aug", "random2", views=4)
    assert seam.calls == 3
    assert all(torch.tensor(script.losses).isfinite())
    for views in seam.seen_views:
        assert [view.shape for view in views] == [(8, 24)] * 4
        assert all(view.requires_grad for view in views)
        assert not torch.equal(views[2], views[3])


def test_objective_asks_for_views(run):
    seam, _ = run("arcl(infonce):views=3")
    # the stand-in drops the same nodes each time: what is made at the seam is what the script makes
    for _, second, third in seam.seen_views:
        torch.testing.assert_close(third, second, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("aug", ["pedges", "mask_nodes"])
def test_nodes_without_edges_are_kept_where_the_host_keeps_them(run, aug):
    seam, _ = run("arcl(infonce):views=3", "--aug", aug)
    assert seam.calls == 3


def test_the_forks_strength_is_handed_on(run, monkeypatch):
    words = ("--aug", "random2", "--noise_ratio", "0.5", "--mode", "easy", "--temp", "0.2")
    seam, script = run("arcl(infonce):views=3", *words, script="gsimclr_robust.py")
    assert seam.calls == 3
    asked = []
    for name in ("drop_nodes", "subgraph"):
        monkeypatch.setattr(sys.modules["aug"], name, lambda data, share: asked.append(share) or data)
    data = Batch.from_data_list([script.dataset[0][0]] * 2)
    graphcl.augmented(script, data.x, data.edge_index, data.batch, 2)
    assert asked[-2:] == [0.5, 0.5]


def test_batches_are_taken_apart_and_put_together(run):
    _, script = run("host", "--aug", "pedges")
    script.TUDataset = type("Unchanged", (), {"__module__": "aug"})
    sys.modules["aug"].permute_edges = lambda data: data
    graphs = [script.dataset[i][0] for i in range(5)]
    graphs[2].x = torch.cat([graphs[2].x, torch.ones(1, 3)])  # a last node without edges
    data = Batch.from_data_list(graphs)
    x, edge_index, batch, count = graphcl.augmented(script, data.x, data.edge_index, data.batch, 5)
    assert torch.equal(x, data.x)
    assert torch.equal(edge_index, data.edge_index)
    assert torch.equal(batch, data.batch)
    assert count == 5


def test_unaugmented_graphs_have_no_further_views(run):
    with pytest.raises(SeamError, match="--aug none gives no further views"):
        run("arcl(infonce):views=3", "--aug", "none")


def test_other_modes_of_the_fork(run):
    words = ("--mode", "reweight_only", "--temp", "0.2")
    seam, _ = run("adnce", *words, script="gsimclr_robust.py")
    assert seam.calls == 3
    with pytest.raises(SeamError, match="reweight_only is not an objective of this library"):
        graphcl.own_spec(Seam("host"), "reweight_only", object())


def test_first_steps_with_the_hosts_loss(run):
    seam, _ = run("hcl:t=0.3", verify=1)
    assert seam.calls == 3
    assert len(seam.differences) == 1
    assert seam.returned[0].item() == pytest.approx(
        cp.objective(HOST.spec)(*seam.seen_views[0], pairing="one_way").item(), rel=1e-6
    )
    assert seam.returned[1].item() == pytest.approx(
        cp.HCL(0.3)(*seam.seen_views[1], pairing="one_way").item(), rel=1e-6
    )


def test_report(run, tmp_path):
    _, script = run("adnce:t=0.2", report=tmp_path / "steps.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert [line["loss"] for line in lines] == pytest.approx(script.losses, rel=1e-6)
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
    words = ["graphcl", "--objective", "adnce:t=0.05,mu=1.5", "--views", "3", "--verify", "2"]
    assert inject.main([*words, "--", "gsimclr.py", "--DS", "TOY"]) == 0
    said = capsys.readouterr().err
    assert "shim data_keys" in said
    assert "replaced simclr.loss_cal in" in said
    assert "the loss was reached 3 times" in said
    assert "in 2 steps" in said


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
    said = run_launcher(clone, "arcl(adnce:t=0.2):views=3", 9, *run)
    assert "the loss was reached 20 times" in said
    assert float(said.rsplit("relative ", 1)[1].split(",")[0]) <= 1e-6
