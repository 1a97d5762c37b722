"""Which engine reduces a batch, by device, size and pairing; no device is needed to choose."""

from __future__ import annotations

import pytest
import torch

import counterpoint as cp
from counterpoint.batch.scores import fastest_engine

MANY = 2**26


@pytest.mark.parametrize(
    ("device", "pairs", "separate", "both", "engine"),
    [
        ("cpu", 2**17 - 1, False, False, "matrix"),  # two views
        ("cpu", 2**17, False, False, "tiles"),
        ("cpu", 2**18, True, False, "matrix"),  # one way
        ("cpu", 2**18 + 1, True, False, "chunks"),
        ("cpu", 2**18 + 1, True, True, "tiles"),  # symmetric
        ("cuda", MANY - 1, True, False, "matrix"),
        ("cuda", MANY, True, False, "chunks"),  # never kernels
        ("cuda", MANY, True, True, "tiles"),  # symmetric
        ("cuda", MANY, False, False, "tiles"),  # two views, or a queue
        ("xpu", MANY, True, False, "chunks"),
    ],
)
def test_the_fastest_engine(device, pairs, separate, both, engine):
    assert fastest_engine(torch.device(device), pairs, separate, both) == engine


@pytest.mark.parametrize("pairing", ["one_way", "symmetric"])
def test_chunks_on_request(pairing):
    assert "engine[chunks]" in cp.InfoNCE().report(*torch.randn(2, 8, 16), pairing=pairing, engine="chunks")
