"""examples/curl_single_file.py: CURL's loss, a few updates, and errors in one line."""

import importlib
import math
from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F

import counterpoint as cp

if find_spec("dm_control") is None:
    pytest.skip("dm_control is not installed", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("frames")
TINY = ["--size", "20", "--crop", "16", "--filters", "4", "--features", "6", "--hidden", "16", "--batch", "8"]
TINY += ["--random-steps", "8", "--repeat", "100", "--steps", "1200", "--capacity", "20"]


@pytest.fixture(scope="module")
def curl():
    return importlib.import_module("curl_single_file")


def test_infonce_on_bilinear_scores_is_curls_loss(curl):
    torch.manual_seed(0)
    z, keys = torch.randn(2, 8, 6, requires_grad=True)
    w = torch.rand(6, 6, requires_grad=True)
    loss = curl.contrastive_loss(cp.objective("infonce:t=1"), z, keys, w, "bilinear")
    expected = F.cross_entropy(z @ w @ keys.T, torch.arange(8))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    gradients = [torch.autograd.grad(value, [z, w], retain_graph=True) for value in (loss, expected)]
    for ours, theirs in zip(*gradients, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize(
    "words",
    [pytest.param([], marks=pytest.mark.slow), ["--objective", "adnce:t=learned(0.2) + 0.1*dp", "--scores", "cosine"]],
)
def test_it_trains_and_evaluates(curl, words, capsys):
    result = curl.main([*TINY, *words])
    assert result["updates"] == 5
    assert set(result["losses"]) == {"critic", "actor", "contrastive"}
    assert all(math.isfinite(value) for value in result["losses"].values())
    assert len(result["returns"]) == 1  # 10 actions per episode
    assert 0 <= result["score"] <= 1000
    out = capsys.readouterr().out
    assert "step 1000: return " in out
    assert "after 5 updates" in out
    assert curl.main([*TINY, *words]) == result


def test_an_update_moves_every_network_but_targets_only_follow(curl):
    args = curl.parse(TINY)
    torch.manual_seed(0)
    agent, buffer = curl.Agent(args, 1), curl.ReplayBuffer(args, 1)
    frames = torch.randint(256, (8, 2, 9, 20, 20), dtype=torch.uint8).numpy()
    for x, x_next in frames:
        buffer.add(x, 0.5, 1.0, x_next, True)
    before = {name: [p.clone() for p in getattr(agent, name).parameters()] for name in ("critic", "actor", "target")}
    w = agent.w.clone()
    agent.update(buffer.sample(8))
    for name, parameters in before.items():
        assert any((a != b).any() for a, b in zip(parameters, getattr(agent, name).parameters(), strict=True)), name
    assert (agent.w != w).any()
    assert all(p.grad is None for p in agent.target.parameters())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--crop", "99"], "argument --crop: expected 15 to 20 pixels, got 99"),
        (["--batch", "9"], "argument --batch: expected at most --random-steps, 8, got 9"),
        (["--scores", "cosin"], "argument --scores: expected bilinear or cosine, got 'cosin'"),
    ],
)
def test_wrong_arguments_are_named(curl, words, message, capsys):
    with pytest.raises(SystemExit):
        curl.main([*TINY, *words])
    assert message in capsys.readouterr().err


def test_objectives_of_more_views_are_refused(curl):
    with pytest.raises(ValueError, match="--objective: expected an objective of two views, got arcl"):
        curl.main([*TINY, "--objective", "arcl(infonce:t=1):views=4"])


def test_every_setting_has_a_flag_with_help(curl, capsys):
    with pytest.raises(SystemExit):
        curl.main(["--help"])
    assert "channels of each convolution (paper: 32) [16]" in " ".join(capsys.readouterr().out.split())
