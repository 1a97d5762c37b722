"""CURL: on a stand-in of its files, and on a clone where COUNTERPOINT_HOSTS has one."""

from __future__ import annotations

import importlib
import json
import runpy
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from hosts import SGD, real_clone
from torch import nn

import counterpoint as cp
from counterpoint.plugins import curl, inject, launch
from counterpoint.plugins.host import Seam, SeamError

UTILS = '''
import numpy as np
import torch


class ReplayBuffer:
    """The host's names and order of calls."""

    def __init__(self, frames, batch_size, image_size):
        self.obses, self.batch_size, self.image_size = frames, batch_size, image_size

    def sample_cpc(self):
        chosen = np.random.randint(0, len(self.obses), size=self.batch_size)
        obses, next_obses = self.obses[chosen], self.obses[chosen]
        pos = obses.copy()
        obses = random_crop(obses, self.image_size)
        next_obses = random_crop(next_obses, self.image_size)
        pos = random_crop(pos, self.image_size)
        obses, next_obses, pos = (torch.as_tensor(x).float() for x in (obses, next_obses, pos))
        cpc_kwargs = dict(obs_anchor=obses, obs_pos=pos, time_anchor=None, time_pos=None)
        return obses, None, None, next_obses, None, cpc_kwargs


def random_crop(imgs, output_size):
    corners = np.random.randint(0, imgs.shape[-1] - output_size, (len(imgs), 2))
    return np.stack([x[:, i : i + output_size, j : j + output_size] for x, (i, j) in zip(imgs, corners)])
'''

AGENT = (
    SGD
    + '''
import copy

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, obs_shape, feature_dim):
        super().__init__()
        self.fc = nn.Linear(obs_shape[0] * obs_shape[1] * obs_shape[2], feature_dim)
        self.ln = nn.LayerNorm(feature_dim)

    def forward(self, obs):
        return self.ln(self.fc((obs / 255).flatten(1).to(self.fc.weight.dtype)))


class CURL(nn.Module):
    """The host's names, shapes and order of calls."""

    def __init__(self, z_dim, encoder, encoder_target):
        super().__init__()
        self.encoder, self.encoder_target = encoder, encoder_target
        self.W = nn.Parameter(torch.rand(z_dim, z_dim))

    def encode(self, x, detach=False, ema=False):
        if not ema:
            return self.encoder(x)
        with torch.no_grad():
            return self.encoder_target(x)

    def compute_logits(self, z_a, z_pos):
        logits = z_a @ (self.W @ z_pos.T)
        return logits - logits.max(1, keepdim=True).values


class CurlSacAgent:
    def __init__(self, obs_shape, encoder_type="pixel", dtype=torch.float64):
        self.encoder_type = encoder_type
        if encoder_type == "pixel":
            encoder = Encoder(obs_shape, 10)
            self.CURL = CURL(10, encoder, copy.deepcopy(encoder)).to(dtype)
            self.encoder_optimizer = SGD(self.CURL.encoder.parameters(), 0.01)
            self.cpc_optimizer = SGD([self.CURL.W], 0.01)
        self.cross_entropy_loss = nn.CrossEntropyLoss()

    def update(self, replay_buffer, L, step):
        if self.encoder_type != "pixel":
            return
        *_, cpc_kwargs = replay_buffer.sample_cpc()
        for online, target in zip(self.CURL.encoder.parameters(), self.CURL.encoder_target.parameters()):
            target.data.lerp_(online.data, 0.05)
        self.update_cpc(cpc_kwargs["obs_anchor"], cpc_kwargs["obs_pos"], cpc_kwargs, L, step)

    def update_cpc(self, obs_anchor, obs_pos, cpc_kwargs, L, step):
        z_a = self.CURL.encode(obs_anchor)
        z_pos = self.CURL.encode(obs_pos, ema=True)
        logits = self.CURL.compute_logits(z_a, z_pos)
        labels = torch.arange(len(logits))
        loss = self.cross_entropy_loss(logits, labels)
        self.encoder_optimizer.zero_grad()
        self.cpc_optimizer.zero_grad()
        loss.backward()
        self.encoder_optimizer.step()
        self.cpc_optimizer.step()
'''
)

TRAIN = """
import argparse

import dmc2gym
import numpy as np
import torch
import utils
from curl_sac import CurlSacAgent


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--encoder_type", default="pixel")
    parser.add_argument("--num_train_steps", default=6, type=int)
    parser.add_argument("--dtype", default="float64")
    args = parser.parse_args()
    torch.manual_seed(0)
    np.random.seed(0)
    frames = np.random.randint(0, 256, (30, 3, 12, 12), dtype=np.uint8)
    replay_buffer = utils.ReplayBuffer(frames, batch_size=8, image_size=8)
    agent = CurlSacAgent((3, 8, 8), args.encoder_type, getattr(torch, args.dtype))
    for step in range(args.num_train_steps):
        agent.update(replay_buffer, None, step)
    torch.save(agent.CURL.state_dict(), "curl.pt")


if __name__ == "__main__":
    main()
"""


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A folder with the stand-in, and this process as it was afterwards."""
    for name, text in {"utils": UTILS, "curl_sac": AGENT, "train": TRAIN, "dmc2gym": ""}.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    had_int = "int" in vars(np)
    forget()  # those of another test's clone
    yield tmp_path
    forget()
    if not had_int:
        vars(np).pop("int", None)


def forget():
    for name in ("utils", "curl_sac", "train", "dmc2gym", "encoder"):
        sys.modules.pop(name, None)


def train(clone, seam, *args):
    launch.run(curl.HOST, seam, clone / "train.py", args)
    return torch.load(clone / "curl.pt")


def test_host_trains_to_the_same_weights(clone, monkeypatch):
    monkeypatch.syspath_prepend(clone)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    runpy.run_path("train.py", run_name="__main__")
    untouched = torch.load("curl.pt")
    forget()
    ours = train(clone, Seam("host"))
    torch.testing.assert_close(ours, untouched, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-4)])
def test_verify(clone, dtype, tolerance):
    seam = Seam("hcl", verify=4)
    train(clone, seam, "--dtype", dtype)
    assert seam.calls == seam.proofs == 6
    assert seam.worst <= tolerance


@pytest.mark.parametrize("name", sorted(cp.registry))
def test_every_objective(clone, name):
    spec = f"{name}(infonce:t=1)" if issubclass(cp.registry[name], cp.Wrapper) else name
    spec += ":views=2" if issubclass(cp.registry[name], cp.ArCL) else ""
    seam = Seam(spec, report=clone / "report.jsonl")
    if name in ("robust", "intcl", "intnacl", "mixnca", "sogclr", "isogclr", "matryoshka"):
        with pytest.raises(
            (SeamError, TypeError), match=r"needs ((adversarial|mixed) views|the positions of samples|embeddings)"
        ):
            train(clone, seam)
        return
    found = train(clone, seam)
    assert seam.calls == 6
    assert all(x.isfinite().all() for x in found.values())
    lines = [json.loads(line) for line in (clone / "report.jsonl").read_text().splitlines()]
    assert len(lines) == 6
    assert {line["negatives"] for line in lines} == {7.0}


@pytest.mark.parametrize(
    ("spec", "scores"),
    [
        ("infonce:t=1", "bilinear"),
        ("infonce:t=1 + 0.1*dp", "bilinear"),
        ("arcl(infonce:t=1):views=4", "bilinear"),
        ("0.5*infonce:t=1 + (aal(infonce) + dp)", "bilinear"),
        ("hcl", "cosine"),
        ("dcl", "cosine"),
        ("adnce", "cosine"),
        ("arcl(adnce)", "cosine"),
        ("infonce + 0.5*mv", "cosine"),
    ],
)
def test_scores_follow_from_the_objective(spec, scores):
    assert curl.default_scores(cp.objective(spec)) == scores


@pytest.fixture
def host(clone, monkeypatch):
    """An agent, a replay buffer, and the embeddings of one batch."""
    monkeypatch.syspath_prepend(clone)
    torch.manual_seed(0)
    np.random.seed(0)
    utils, sac = importlib.import_module("utils"), importlib.import_module("curl_sac")
    agent = sac.CurlSacAgent((3, 8, 8))
    frames = np.random.randint(0, 256, (30, 3, 12, 12), dtype=np.uint8)
    buffer = utils.ReplayBuffer(frames, batch_size=8, image_size=8)
    z_a, z_pos = agent.CURL.encode(torch.rand(8, 3, 8, 8)), agent.CURL.encode(torch.rand(8, 3, 8, 8), ema=True)
    return SimpleNamespace(agent=agent, buffer=buffer, utils=utils, z_a=z_a, z_pos=z_pos, labels=torch.arange(8))


def by_hand(spec, z_a, z_pos, w):
    loss_fn = cp.objective(spec)
    sides = curl.Sides(z_a, [z_pos], w if curl.default_scores(loss_fn) == "bilinear" else None)
    return loss_fn.compute_loss(sides, z_a.device)


@pytest.mark.parametrize("spec", ["infonce:t=1", "infonce:t=0.5 + 0.1*dp", "hcl:t=0.5 + 0.1*dp", "adnce:t=0.5"])
def test_gradients_are_those_of_the_objective(host, spec):
    net = host.agent.CURL
    inputs = (net.W, net.encoder.fc.weight)
    loss = by_hand(spec, host.z_a, host.z_pos, net.W)
    expected = torch.autograd.grad(loss, inputs, retain_graph=True, allow_unused=True)
    w = net.W
    seam = curl.patch(host.agent, spec)
    logits = net.compute_logits(host.z_a, host.z_pos)
    assert net.W is w
    value = host.agent.cross_entropy_loss(logits, host.labels)
    found = torch.autograd.grad(value, inputs)
    for ours, hand in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, torch.zeros_like(ours) if hand is None else hand, rtol=1e-9, atol=1e-12)
    assert (seam.proofs, seam.worst < 1e-9) == (1, True)


def test_cosine_scores_by_hand(host):
    expected = cp.HCL()(host.z_a, host.z_pos, pairing="one_way") + 0.1 * cp.DistancePolarization()(host.z_a)
    torch.testing.assert_close(by_hand("hcl + 0.1*dp", host.z_a, host.z_pos, host.agent.CURL.W), expected)


def test_polarization_sees_cosines_beside_bilinear_scores(host):
    net = host.agent.CURL
    logits = net.compute_logits(host.z_a, host.z_pos)
    expected = nn.functional.cross_entropy(logits, host.labels) + 0.1 * cp.DistancePolarization()(host.z_a)
    torch.testing.assert_close(by_hand("infonce:t=1 + 0.1*dp", host.z_a, host.z_pos, net.W), expected)


def test_more_crops_are_refused(host):
    with pytest.raises(SeamError, match="asks for 4 views, but its replay buffer cuts two crops"):
        curl.patch(host.agent, "arcl(infonce):views=4")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--objective", "infonce:t=1 + 0.1*dp", "--", "train.py"], 0, "on bilinear scores"),
        (["--objective", "hcl", "--", "train.py"], 0, "on cosine scores"),
        (["--objective", "hcl", "--", "train.py", "--encoder_type", "identity"], 2, "only --encoder_type pixel has"),
        (["--objective", "hcl", "--", "utils.py"], 2, "the script that trains is train.py"),
        (["--objective", "hcl", "--", "train.py", "--num_train_steps", "0"], 3, "never reached"),
    ],
)
def test_the_launcher(clone, capsys, words, code, says):
    assert inject.main(["curl", *words]) == code
    assert says in capsys.readouterr().err


def test_a_missing_dmc2gym(clone, capsys):
    if importlib.util.find_spec("dmc2gym") is not None:
        pytest.skip("dmc2gym is installed")
    (clone / "dmc2gym.py").unlink()
    assert inject.main(["curl", "--objective", "hcl", "--", "train.py"]) == 2
    assert "pip install git+https://github.com/denisyarats/dmc2gym" in capsys.readouterr().err


def test_recognises_its_clone(clone):
    assert curl.HOST.recognises(clone)
    (clone / "curl_sac.py").write_text("class SacAgent: ...")
    assert not curl.HOST.recognises(clone)


# ---- shims -----------------------------------------------------------------------------------------


def shim(name):
    return next(shim for shim in curl.HOST.shims if shim.name == name)


def test_np_int(monkeypatch):
    monkeypatch.delitem(vars(np), "int", raising=False)
    assert shim("np_int").apply()
    assert np.int(3.7) == 3
    assert not shim("np_int").apply()
    monkeypatch.delitem(vars(np), "int")


class Env:
    """An environment of the old interface."""

    def __init__(self, size):
        self.size = size

    def reset(self):
        return 0

    def step(self, action):
        return 1, 0.5, False, {}


@pytest.fixture
def gym(monkeypatch):
    """As much of gym 0.26 as the shims look at."""

    class Wrapper:
        def __init__(self, env):
            self.env = env

    def load(entry_point):
        return Env

    def make(name):
        return f"made {name}"

    entries = {"dmc-v1": ("dmc2gym.wrappers:DMCWrapper", {"size": 5}, 2), "CartPole-v1": ("gym.envs:CartPole", {}, 500)}
    registry = {
        name: SimpleNamespace(entry_point=entry, kwargs=kwargs, max_episode_steps=steps)
        for name, (entry, kwargs, steps) in entries.items()
    }
    gym = ModuleType("gym")
    gym.__version__, gym.Wrapper, gym.make = "0.26.2", Wrapper, make
    gym.envs = SimpleNamespace(registry=registry, registration=SimpleNamespace(registry=registry, load=load))
    monkeypatch.setitem(sys.modules, "gym", gym)
    return gym


def test_env_specs(gym):
    assert shim("env_specs").apply()
    assert "dmc-v1" in gym.envs.registry.env_specs
    gym.envs.registration.registry["new-v1"] = None
    assert "new-v1" in gym.envs.registry.env_specs
    assert not shim("env_specs").apply()


def test_old_make(gym):
    assert shim("old_make").apply()
    env = gym.make("dmc-v1")
    assert (env.env.size, env._max_episode_steps) == (5, 2)
    for _ in range(2):
        assert env.reset() == 0
        assert env.step(None) == (1, 0.5, False, {})
        assert env.step(None)[2] is True
    assert gym.make("CartPole-v1") == "made CartPole-v1"


def test_an_older_gym_needs_no_shims(gym):
    gym.__version__ = "0.21.0"
    gym.envs.registry = SimpleNamespace(env_specs={})
    assert not shim("old_make").apply()
    assert not shim("env_specs").apply()


def test_without_gym_the_script_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "gym", None)
    assert not shim("old_make").apply()
    assert not shim("env_specs").apply()


# ---- the host itself -------------------------------------------------------------------------------


@pytest.fixture
def real(monkeypatch):
    """The host's two modules."""
    folder = real_clone("curl")
    for package in ("gym", "skimage"):
        pytest.importorskip(package)
    assert curl.HOST.recognises(folder)
    monkeypatch.syspath_prepend(folder)
    forget()
    yield importlib.import_module("curl_sac"), importlib.import_module("utils")
    forget()


@pytest.mark.parametrize("objective", ["infonce:t=1 + 0.1*dp", "hcl"])
def test_updates_of_the_real_host(real, objective):
    sac, utils = real
    seam = Seam(objective, verify=4)
    curl.after(seam, sac)
    utils.set_seed_everywhere(0)
    device = torch.device("cpu")
    buffer = utils.ReplayBuffer((9, 72, 72), (1,), 50, 6, device, image_size=64)
    for _ in range(50):
        frames = np.random.randint(0, 256, (2, 9, 72, 72), dtype=np.uint8)
        buffer.add(frames[0], np.zeros(1, np.float32), 0.5, frames[1], False)
    agent = sac.CurlSacAgent((9, 64, 64), (1,), device, hidden_dim=16, num_layers=2, num_filters=4)
    for step in range(1, 7):
        agent.update(buffer, None, step)
    assert seam.calls == 6
    assert (seam.proofs, seam.worst < 1e-4) == (6, True)


def test_the_real_host_in_double_precision(real):
    sac, _ = real
    bare = SimpleNamespace(encoder=nn.Identity())
    net = sac.CURL((9, 64, 64), 10, 8, bare, bare).double()
    seam = curl.patch(SimpleNamespace(CURL=net), "infonce:t=1")
    z_a, z_pos = torch.randn(2, 8, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    z_a.requires_grad_()
    found = torch.autograd.grad(
        nn.functional.cross_entropy(net.compute_logits(z_a, z_pos), torch.arange(8)), (z_a, net.W)
    )
    logits = z_a @ (net.W @ z_pos.T)
    expected = torch.autograd.grad(nn.functional.cross_entropy(logits, torch.arange(8)), (z_a, net.W))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert seam.worst < 1e-12
