"""An encoder that guides its own training, at embeddings that a host computes from it in several ways."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

import counterpoint as cp
from counterpoint.plugins import logits
from counterpoint.plugins.embeddings import Call, Embeddings
from counterpoint.plugins.encoders import KEPT
from counterpoint.plugins.host import Seam, SeamError

DATA = torch.randn(3, 2, 8, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.ReLU(inplace=True)), nn.Linear(5, 4)

    def forward(self, x):
        return {"embedding": self.head(self.body(x)).add_(0.1)}


def parts(net, x, y):  # a plain function, as in Lightning scripts: hooks on modules do not see it
    body = [net.body(z).view(8, 1, 5).flatten(1) for z in (x, y)]
    return [net.head(z) for z in body]


WAYS = {
    "separately": lambda net, x, y: [net(z)["embedding"] for z in (x, y)],
    "normalized": lambda net, x, y: [normalize(net(z)["embedding"], dim=1) for z in (x, y)],
    "together": lambda net, x, y: normalize(net(torch.cat([x, y]))["embedding"], dim=1).chunk(2),
    "interleaved": lambda net, x, y: net(torch.stack([x, y], 1).flatten(0, 1))["embedding"].view(8, 2, 4).unbind(1),
    "in parts": parts,
    "a slice": lambda net, x, y: [net.head(net.body[:3](z)) for z in (x, y)],
}


@pytest.mark.parametrize("kind", ["self", "ema"])
@pytest.mark.parametrize("way", WAYS)
def test_the_encoder_of_the_first_step_guides(way, kind):
    torch.manual_seed(0)
    net, seam = Encoder().double(), Seam(f"infonce:t=0.5; guide={kind}; margin=0.1")
    guide, optimizer = deepcopy(net).eval(), torch.optim.SGD(net.parameters(), 1.0)
    for step, (x, y) in enumerate(DATA):
        optimizer.zero_grad()
        replaced = Embeddings(seam, "toy", "infonce:t=0.5", lambda *z: Call(z, {"pairing": "one_way"}))
        a, b = replaced(*WAYS[way](net, x, y))
        cross_entropy(normalize(a, dim=1) @ normalize(b, dim=1).T / 0.5, torch.arange(8)).backward()
        if kind == "ema" and step:
            for mean, p in zip(guide.parameters(), net.parameters(), strict=True):
                mean.data.lerp_(p.data, 1 - KEPT)
        how = {"guide": WAYS[way](guide, x, y), "false_negatives": cp.margin(0.1), "empty": "keep"}
        loss = cp.InfoNCE(0.5)(*WAYS[way](net, x, y), pairing="one_way", **how)
        for p, g in zip(net.parameters(), torch.autograd.grad(loss, [*net.parameters()]), strict=True):
            torch.testing.assert_close(p.grad, g)
        optimizer.step()
    seam.end()
    assert seam.objective(None, "infonce:t=0.5").counts["excluded"] > 0


@pytest.mark.parametrize(
    "way",
    [
        lambda net, x, y: [net(z)["embedding"] + 1 for z in (x, y)],
        lambda net, x, y: [net.head(net.body(z).exp()) for z in (x, y)],
        lambda net, x, y: [net(x)["embedding"], DATA[0, 1, :, :4]],
    ],
    ids=["after the encoder", "inside the encoder", "not by a module"],
)
def test_embeddings_of_an_unknown_encoder_are_refused(way):
    net, seam = Encoder().double(), Seam("infonce:t=0.5; guide=self; margin=0.1")
    with pytest.raises(SeamError, match=r"guide=self.*at toy, .* not what a module returned, so the encoder is un"):
        Embeddings(seam, "toy", "infonce:t=0.5", lambda a, b: Call((a, b)))(*way(net, *DATA[0]))
    seam.end()


def test_without_an_encoder_it_is_refused():
    z = DATA[0]
    with pytest.raises(TypeError, match=r"guide=ema; margin=0.1: pass guide=; this loss does not know its encoder"):
        cp.treatment("infonce; guide=ema; margin=0.1")(*z)
    with pytest.raises(TypeError, match="pass guide=; this loss does not know its encoder"):
        cp.treatment("infonce; guide=self; margin=0.1").from_logits(z[0] @ z[1].T)
    seam = Seam("infonce; guide=self; margin=0.1")
    with pytest.raises(SeamError, match="logits, which do not say what embedded their rows"):
        logits.HOST.check("infonce; guide=self; margin=0.1")  # before a script is run
    call = Call(z, {"queue": z[0]})
    with pytest.raises(SeamError, match="keys of earlier steps"):
        call.take_guide(call)
    seam.end()
    assert nn.Module.__call__.__name__ != "noted"
