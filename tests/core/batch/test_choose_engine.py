"""Which engine reduces a batch, by device, size, width, type and pairing; no device is needed to choose."""

from __future__ import annotations

import pytest
import torch

import counterpoint as cp
from counterpoint.batch.choose_engine import fastest_engine
from counterpoint.engine import streamed

HALF, FULL = torch.bfloat16, torch.float32
MANY = 2**26


class Kernels:
    """What is asked of :mod:`counterpoint.engine.triton`, of a card that it supports."""

    @staticmethod
    def fits(device: torch.device, width: int, dtype: torch.dtype) -> bool:
        return width <= 1024 and dtype != torch.float64


@pytest.mark.parametrize(
    ("device", "pairs", "width", "dtype", "separate", "both", "engine"),
    [
        ("cpu", 2**17 - 1, 128, FULL, False, False, "matrix"),  # two views
        ("cpu", 2**17, 128, FULL, False, False, "tiles"),
        ("cpu", 2**18, 128, FULL, True, False, "matrix"),  # one way
        ("cpu", 2**18 + 1, 128, FULL, True, False, "chunks"),
        ("cpu", 2**18 + 1, 4096, FULL, True, False, "chunks"),
        ("cpu", 2**18 + 1, 128, FULL, True, True, "tiles"),  # symmetric
        ("cuda", MANY - 1, 128, HALF, True, False, "matrix"),
        ("cuda", MANY, 128, HALF, True, False, "chunks"),  # never kernels
        ("cuda", MANY, 1024, FULL, True, False, "chunks"),
        ("cuda", MANY, 2560, HALF, True, False, "chunks"),
        ("cuda", MANY, 4096, HALF, True, False, "chunks"),
        ("cuda", MANY, 128, torch.float64, True, False, "chunks"),
        ("cuda", MANY, 4096, HALF, True, True, "tiles"),  # symmetric
        ("cuda", MANY, 4096, HALF, False, False, "tiles"),  # two views, or a queue
        ("xpu", MANY, 128, FULL, True, False, "chunks"),
    ],
)
def test_the_fastest_engine(device, pairs, width, dtype, separate, both, engine, monkeypatch):
    monkeypatch.setattr(streamed, "kernels", lambda: Kernels)
    assert fastest_engine(torch.device(device), pairs, width, dtype, separate, both) == engine


@pytest.mark.parametrize("why", ["no Triton", "an old card"])
def test_a_gpu_without_kernels_takes_chunks(why, monkeypatch):
    monkeypatch.setattr(streamed, "KERNEL_ENGINES", {"auto"})
    monkeypatch.setattr(Kernels, "fits", lambda *_: False)
    monkeypatch.setattr(streamed, "kernels", lambda: None if why == "no Triton" else Kernels)
    assert fastest_engine(torch.device("cuda"), MANY, 128, HALF, True, False) == "chunks"
    assert fastest_engine(torch.device("cuda"), MANY, 128, HALF, False, False) == "tiles"


def test_what_kernels_multiply_decides(monkeypatch):
    """Embeddings that came in bfloat16 are multiplied as float32 under limits, but not under those of a guide."""
    seen = []
    monkeypatch.setattr(streamed, "KERNEL_DEVICES", {"cpu"})
    monkeypatch.setattr(streamed, "KERNEL_ENGINES", {"auto"})
    monkeypatch.setattr(streamed, "STREAMED_CPU", 0)
    monkeypatch.setattr(Kernels, "fits", lambda device, width, dtype: seen.append(dtype))
    monkeypatch.setattr(streamed, "kernels", lambda: Kernels)
    z = torch.randn(2, 8, 16, dtype=HALF, requires_grad=True)
    rules = {"false_negatives": cp.threshold(0.95)}
    for how in ({}, rules, {**rules, "guide": torch.randn(8, 2, 3)}):
        cp.InfoNCE()(*z, pairing="one_way", **how)
        assert seen[0] == (FULL if how == rules else HALF)
        seen.clear()


@pytest.mark.parametrize("pairing", ["one_way", "symmetric"])
def test_chunks_are_forced_wherever_kernels_fit(pairing, monkeypatch):
    monkeypatch.setattr(streamed, "KERNEL_DEVICES", {"cpu"})
    z = torch.randn(2, 8, 16)
    assert "engine[chunks]" in cp.InfoNCE().report(*z, pairing=pairing, engine="chunks")
