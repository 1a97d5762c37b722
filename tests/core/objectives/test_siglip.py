"""SigLIP: the sigmoid loss of the paper's pseudo-code, and its limits."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from identities import SEED, T, embeddings, prop, same
from specs import of_tiles

import counterpoint as cp


@prop(seed=SEED, t=T, bias=st.floats(-12, 3))
def test_is_the_papers_algorithm(seed, t, bias):
    """Algorithm 1: labels of 1 on the diagonal and -1 elsewhere, summed over all pairs, divided by the batch."""
    z = embeddings(seed)
    images, texts = (F.normalize(x, dim=1) for x in z)
    logits = images @ texts.T / t + bias
    labels = 2 * torch.eye(len(logits), dtype=logits.dtype) - 1
    expected = -F.logsigmoid(labels * logits).sum() / len(logits)
    same(cp.SigLIP(t, bias)(*z), expected, z)
    same(cp.SigLIP(t, bias)(*z, pairing="symmetric"), expected, z)  # a pair counts the same from both sides


@prop(seed=SEED)
def test_trains_scale_and_bias_as_the_papers_parameters(seed):
    z = embeddings(seed)
    scale, bias = torch.tensor(10.0, requires_grad=True), torch.tensor(-10.0, requires_grad=True)
    images, texts = (F.normalize(x, dim=1).detach().float() for x in z)
    logits = images @ texts.T * scale + bias
    (-F.logsigmoid((2 * torch.eye(len(logits)) - 1) * logits).sum() / len(logits)).backward()
    loss_fn = cp.SigLIP(cp.Learned(0.1), cp.Learned(-10.0, -100.0, 0.0))
    loss_fn(images, texts).backward()
    by_name = {name: p.grad for name, p in loss_fn.named_parameters()}
    torch.testing.assert_close(by_name["_bias.value"], bias.grad, rtol=1e-4, atol=1e-5)
    # the parameter is log t = -log scale
    torch.testing.assert_close(by_name["_temperature.log_value"], -scale.grad * 10, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tile", [0, 3])
def test_false_negatives_leave_the_sum(tile):
    z, ids = embeddings(0, batch=6), torch.tensor([0, 0, 1, 2, 3, 3])
    images, texts = (F.normalize(x, dim=1) for x in z)
    logits = images @ texts.T / 0.2 - 2
    keep = (ids.unsqueeze(1) != ids) | torch.eye(6, dtype=torch.bool)
    labels = 2 * torch.eye(6, dtype=logits.dtype) - 1
    expected = -(F.logsigmoid(labels * logits) * keep).sum() / 6
    same(cp.SigLIP(0.2, -2)(*z, ids=ids, engine=of_tiles(tile)), expected, z)


def test_a_certain_pair_keeps_the_digits_of_its_loss():
    """Where torch's softplus returns its argument, float64 still has ``log(1 + e^-x)``."""
    loss = cp.SigLIP(0.02, 0.0).from_scores(*torch.tensor([[[-0.5]], [[0.48]]], dtype=torch.float64))
    expected = 25 + math.log1p(math.exp(-25)) + 24 + math.log1p(math.exp(-24))
    assert loss.item() == pytest.approx(expected, rel=1e-15, abs=0)


@prop(seed=SEED)
def test_logits_with_a_trained_scale_and_bias(seed):
    """``t=host,b=host`` is the authors' loss of their logits: value, and gradient of embeddings, scale and bias."""
    z = embeddings(seed)
    log_scale, bias = torch.tensor(1.5, dtype=z[0].dtype), torch.tensor(-3.0, dtype=z[0].dtype)
    leaves = [torch.nn.Parameter(x.detach().clone()) for x in (*z, log_scale, bias)]
    images, texts = (F.normalize(x, dim=1) for x in leaves[:2])
    logits = images @ texts.T * leaves[2].exp() + leaves[3]
    expected = -F.logsigmoid((2 * torch.eye(len(logits), dtype=logits.dtype) - 1) * logits).sum() / len(logits)
    loss_fn = cp.objective("siglip:t=host,b=host")
    assert cp.objective(str(loss_fn)) == loss_fn
    same(loss_fn.from_logits(logits, scale=leaves[2].exp(), bias=leaves[3]), expected, *leaves)
    assert not [*loss_fn.parameters()]  # the host's are not ours
    softmax = F.cross_entropy(logits, torch.arange(len(logits)))
    same(cp.InfoNCE("host").from_logits(logits, scale=leaves[2].exp(), bias=5.0), softmax, *leaves)


def test_a_bias_from_the_host_needs_logits():
    z = embeddings(0)
    with pytest.raises(ValueError, match='bias "host" is that of logits'):
        cp.objective("siglip:b=host")(*z)
    with pytest.raises(ValueError, match="bias: expected a number"):
        cp.SigLIP().from_logits(torch.eye(3), bias=torch.zeros(2))
    masked = torch.tensor([[1.0, -1e4, 2.0], [0.0, 1.0, -1.0], [0.5, 0.2, 1.0]])
    without = cp.SigLIP(1.0, -20.0).from_logits(masked, bias=-20.0)  # what is masked does not come back
    assert without == cp.SigLIP(1.0, -20.0).from_logits(masked.masked_fill(masked < -9, -torch.inf), bias=-20.0)
