"""The image part of ADNCE: on a stand-in of its two files, and on a clone where COUNTERPOINT_HOSTS has one."""

from __future__ import annotations

import importlib
import importlib.util
import runpy
import sys

import pytest
import torch
from hosts import SGD, real_clone

import counterpoint as cp
from counterpoint.plugins import adnce_image, inject, launch
from counterpoint.plugins.host import Seam, SeamError

MODEL = '''
import math

import torch
from torch import nn


class DRO_Loss(nn.Module):
    """The names, settings and return values of the host, in formulas of these tests."""

    def __init__(self, temperature, tau_plus, batch_size, beta, estimator, N=1.2e6):
        super().__init__()
        self.temperature, self.tau_plus, self.batch_size = temperature, tau_plus, batch_size
        self.beta, self.estimator = beta, estimator

    def forward(self, out_1, out_2, index=None, labels=None):
        n, t = len(out_1), self.temperature
        out = torch.cat([out_1, out_2])
        own = torch.eye(n, dtype=torch.bool).repeat(2, 2)
        s = (out @ out.T)[~own].view(2 * n, -1)
        pos = (out_1 * out_2).sum(-1).repeat(2)
        count = s.shape[1]
        if self.estimator == "easy":
            mass, weight = (s / t).exp().sum(1), None
        elif self.estimator == "adnce":
            weight = (-((s - self.tau_plus) ** 2) / (2 * self.beta**2)).softmax(1).detach() * count
            mass = (weight * (s / t).exp()).sum(1)
        elif self.estimator == "HCL":
            weight, share = None, (self.beta * s / t).softmax(1)
            hard = count * (share * (s / t).exp()).sum(1)
            mass = (hard - self.tau_plus * count * (pos / t).exp()) / (1 - self.tau_plus)
            mass = mass.clamp(min=count * math.exp(-1 / t))
        else:
            return None
        return (torch.log(1 + mass / (pos / t).exp())).mean(), weight
'''

MAIN = (
    SGD
    + """
import argparse

import torch
from model import DRO_Loss
from torch import nn


def train(net, loader, optimizer, model_loss):
    weights = []
    for pos_1, pos_2, index in loader:
        out_1, out_2 = (nn.functional.normalize(net(x), dim=-1) for x in (pos_1, pos_2))
        loss, weight = model_loss(out_1, out_2, index)
        if weight is not None:
            weights.append(weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return weights


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--temperature", default=0.5, type=float)
    parser.add_argument("--tau_plus", default=0.1, type=float)
    parser.add_argument("--beta", default=1.0, type=float)
    parser.add_argument("--estimator", default="hard", type=str)
    parser.add_argument("--dtype", default="float64", type=str)
    args = parser.parse_args()
    dtype = getattr(torch, args.dtype)
    torch.manual_seed(0)
    net = nn.Linear(12, 8).to(dtype)
    data = [(torch.randn(6, 12, dtype=dtype), torch.randn(6, 12, dtype=dtype), torch.arange(6)) for _ in range(5)]
    model_loss = DRO_Loss(args.temperature, args.tau_plus, 6, args.beta, args.estimator)
    weights = train(net, data, SGD(net.parameters(), lr=0.5), model_loss)
    torch.save([net.weight.detach(), len(weights)], "weights.pt")
"""
)

SETTINGS = {
    "easy": ["--temperature", "0.2"],
    "HCL": ["--temperature", "0.3", "--tau_plus", "0.05", "--beta", "0.8"],
    "adnce": ["--temperature", "0.3", "--tau_plus", "0.6", "--beta", "0.4"],
}


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A folder with the stand-in, and this process as it was afterwards."""
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "main.py").write_text(MAIN)
    (tmp_path / "linear.py").write_text("if __name__ == '__main__':\n    print('no loss here')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    names = ("model", "main", "linear")
    yield tmp_path
    for name in names:
        sys.modules.pop(name, None)


def train(clone, seam, *args):
    launch.run(adnce_image.HOST, seam, clone / "main.py", args)
    return torch.load(clone / "weights.pt")


@pytest.mark.parametrize("estimator", SETTINGS)
def test_host_trains_to_the_same_weights(clone, estimator, monkeypatch):
    args = ["--estimator", estimator, *SETTINGS[estimator]]
    monkeypatch.syspath_prepend(clone)
    monkeypatch.setattr(sys, "argv", ["main.py", *args])
    runpy.run_path("main.py", run_name="__main__")
    untouched, _ = torch.load("weights.pt")
    sys.modules.pop("model")
    ours, _ = train(clone, Seam("host"), *args)
    torch.testing.assert_close(ours, untouched, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-4)])
@pytest.mark.parametrize("estimator", SETTINGS)
def test_verify(clone, estimator, dtype, tolerance):
    seam = Seam("hcl", verify=4)
    train(clone, seam, "--estimator", estimator, "--dtype", dtype, *SETTINGS[estimator])
    assert seam.calls == seam.proofs == 5
    assert seam.worst <= tolerance


@pytest.mark.parametrize("estimator", SETTINGS)
def test_gradients_are_those_by_hand(clone, monkeypatch, estimator):
    monkeypatch.syspath_prepend(clone)
    model = importlib.import_module("model")
    loss = model.DRO_Loss(0.3, 0.1, 6, 0.5, estimator)
    out = torch.nn.functional.normalize(torch.randn(2, 6, 8, dtype=torch.float64), dim=-1).requires_grad_()
    (expected,) = torch.autograd.grad(cp.ADNCE(0.3, mu=0.6)(*out, normalize=False), out)
    adnce_image.after(Seam("adnce:t=0.3,mu=0.6"), model)
    (found,) = torch.autograd.grad(loss(*out)[0], out)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", sorted(cp.registry))
def test_every_objective(clone, name):
    kind = cp.registry[name]
    spec = f"{name}(infonce)" if "objective" in kind._defaults() else name
    if name in ("arcl", "aal"):
        with pytest.raises(SeamError, match="its data sets make two views"):
            train(clone, Seam(spec))
        spec += ":views=2"
    if name in ("robust", "intcl", "intnacl", "mixnca"):
        with pytest.raises(SeamError, match=r"needs (adversarial|mixed) views"):
            train(clone, Seam(spec), "--estimator", "easy")
        return
    if name in ("sogclr", "isogclr"):
        with pytest.raises(SeamError, match="needs the positions of samples"):
            train(clone, Seam(spec), "--estimator", "easy")
        return
    seam = Seam(spec)
    weight, _ = train(clone, seam, "--estimator", "easy")
    assert seam.calls == 5
    assert weight.isfinite().all()


def test_by_hand_is_what_is_injected(clone):
    out = torch.nn.functional.normalize(torch.randn(2, 6, 8, dtype=torch.float64), dim=-1)
    loss, weight = adnce_image.ContrastiveLoss("adnce:t=0.3,mu=0.6")(*out, torch.arange(6))
    assert weight is None
    torch.testing.assert_close(loss, cp.ADNCE(0.3, mu=0.6)(*out))
    with pytest.warns(UserWarning, match="one sample has no negatives"):
        assert adnce_image.ContrastiveLoss("adnce")(*out[:, :1], torch.arange(1))[0] == 0


def test_report(clone):
    train(clone, Seam("hcl", report=clone / "report.jsonl"), "--estimator", "easy")
    assert len((clone / "report.jsonl").read_text().splitlines()) == 5


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--objective", "arcl(hcl):views=3", "--", "main.py"], 2, "asks for 3 views, but its data sets make two"),
        (["--objective", "hcl", "--", "main.py"], 2, "--estimator hard does not run; easy, HCL, adnce do"),
        (["--objective", "hcl", "--", "linear.py"], 2, "the script that trains is main.py"),
        (["--objective", "hcl", "--verify", "2", "--", "main.py", "--estimator", "easy"], 0, "reached 5 times"),
    ],
)
def test_the_launcher(clone, capsys, words, code, says):
    assert inject.main(["adnce_image", *words]) == code
    said = capsys.readouterr().err
    assert says in said
    assert "shim logs" in said
    assert (clone / "logs").is_dir()


def test_no_shims(clone, capsys):
    assert inject.main(["adnce_image", "--objective", "hcl", "--no-shims", "--", "main.py", "--estimator", "easy"]) == 0
    assert "counterpoint: shim" not in capsys.readouterr().err
    assert not (clone / "logs").exists()


def test_recognises_its_clone(clone):
    assert adnce_image.HOST.recognises(clone)
    (clone / "model.py").write_text("class Loss: ...")
    assert not adnce_image.HOST.recognises(clone)


@pytest.mark.parametrize("estimator", ["easy", "HCL", "adnce"])
def test_the_real_host(estimator, monkeypatch):
    clone = real_clone("adnce_image", "ADNCE/image")
    for package in ("torchvision", "scipy"):
        pytest.importorskip(package)
    assert adnce_image.HOST.recognises(clone)
    place = importlib.util.spec_from_file_location("adnce_image_model", clone / "model.py")
    model = importlib.util.module_from_spec(place)
    monkeypatch.setitem(sys.modules, place.name, model)
    place.loader.exec_module(model)
    loss_fn = model.DRO_Loss(0.3, 0.1, 6, 0.5, estimator)
    out = torch.nn.functional.normalize(torch.randn(2, 6, 16, dtype=torch.float64), dim=-1).requires_grad_()
    expected = torch.autograd.grad(cp.HCL(0.2)(*out, normalize=False), out)[0]
    seam = Seam("hcl:t=0.2")
    adnce_image.after(seam, model)
    found = torch.autograd.grad(loss_fn(*out)[0], out)[0]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert seam.worst < 1e-12
