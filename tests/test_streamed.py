"""Streamed negatives are the dense ones, value for value and gradient for gradient."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_contract import SPECS, at, embeddings

LEARNED = [
    "infonce:t=learned(0.3,0.01,1)",
    "infonce:t=schedule(0.3,0.1,9)",
    "hcl:t=learned(0.3,0.01,1),beta=learned(1,0.1,3),detach_weights=true",
    "adnce:t=learned(0.3,0.01,1),mu=learned(0.4),sigma=learned(0.5)",
    "adnce:t=0.2,mu=learned(0.4),sigma=learned(0.1)",
    "adnce:t=0.2,mu=learned(2),weight=gamma",
    "alphacl:t=learned(0.3),power=learned(2)",
    "dp:low=learned(0.1,0.01,0.2),high=learned(0.6,0.5,0.9)",
    "mv:t=learned(0.3)",
    "dro:radius=learned(0.1)",
    "dro:divergence=chi2,radius=learned(0.1)",
]
ALL = [*SPECS, *LEARNED]


def compare(spec: str, tile: int, z: torch.Tensor, t: float = 0.5, tolerance: float = 1e-10, **how) -> None:
    """Loss, gradients of embeddings and parameters, and state, in tiles and with a matrix."""
    found = []
    for edge in (tile, 0):
        loss_fn = at(spec, t).to(z.dtype)
        leaves = {k: v.clone().requires_grad_() for k, v in tensors(z, how).items()}
        views = [v for k, v in leaves.items() if k.startswith("view")]
        extra = {**how, **{k: v for k, v in leaves.items() if not k.startswith("view")}}
        losses = loss_fn(*views, tile=edge, reduction="none", **extra)
        weight = torch.linspace(0.5, 1.5, len(losses), dtype=losses.dtype)
        inputs = [*leaves.values(), *loss_fn.parameters()]
        gradients = torch.autograd.grad((losses * weight).sum(), inputs, allow_unused=True)
        gradients = [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, gradients, strict=True)]
        found.append((losses.detach(), gradients, loss_fn.state_dict()))
    (value, gradients, state), (want, want_gradients, want_state) = found
    torch.testing.assert_close(value, want, rtol=tolerance, atol=tolerance)
    for got, wanted in zip(gradients, want_gradients, strict=True):
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance * max(1, 1 / t, wanted.abs().max()))
    for key in want_state:
        torch.testing.assert_close(state[key], want_state[key], rtol=1e-6, atol=0)


def tensors(z: torch.Tensor, how: dict) -> dict[str, torch.Tensor]:
    views = {f"view {k}": v for k, v in enumerate(z)}
    return views | {k: how[k] for k in ("adversarial", "mixed", "negatives", "queue") if how.get(k) is not None}


def pairing_of(spec: str) -> str | None:
    # a sum needs the same anchors throughout
    return "single" if "dp" in spec else "views" if " + " in spec else None


@pytest.mark.parametrize("tile", [1, 5, 64])
@pytest.mark.parametrize("spec", ALL)
def test_every_objective(spec, tile):
    z = embeddings(dtype=torch.float64)
    compare(spec, tile, z[:2], adversarial=z[2], mixed=z[3], pairing=pairing_of(spec))


NEEDS_VIEWS = ("robust", "int", "mixnca")
PAIRED = [s for s in ALL if not s.startswith(NEEDS_VIEWS) and " + " not in s]


@st.composite
def batches(draw):
    """Any batch: how many views of how many samples, in which pairing, with which masks, in which tiles."""
    batch, width = draw(st.integers(2, 9)), draw(st.integers(1, 5))
    pairing = draw(
        st.sampled_from(["views", "one_way", "symmetric", "first_two", "pairs", "arcl", "single", "queue", "hard"])
    )
    m = 2 if pairing in ("symmetric", "queue") else draw(st.integers(2, 4))
    random = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    z = torch.randn(m, batch, width, generator=random, dtype=torch.float64)
    how: dict = {"pairing": pairing, "normalize": draw(st.booleans())}
    if draw(st.booleans()):
        z[:, 1] = z[:, 0]  # duplicates
    if draw(st.booleans()):
        z[0, 0] = 0
    if not how["normalize"]:
        z = 0.5 * z
    keys = draw(st.integers(2, 20))
    ids = torch.arange(batch) // 2 if batch > 2 and draw(st.booleans()) else None
    if pairing == "queue":
        how |= {"pairing": None, "queue": torch.randn(keys, width, generator=random, dtype=torch.float64)}
        if ids is not None:
            how |= {"queue_ids": torch.arange(keys) % (batch + 1) + 1}
    if pairing == "hard":
        each = draw(st.integers(1, 3))
        how |= {"pairing": None, "negative_weight": draw(st.sampled_from([0.0, 1.5]))}
        how["negatives"] = torch.randn(batch, each, width, generator=random, dtype=torch.float64)
        if ids is not None and draw(st.booleans()):
            how["negative_ids"] = torch.arange(batch * each) % (batch + 3)
    if ids is not None:
        how["ids"] = ids
    if draw(st.booleans()):
        how["prior"] = torch.linspace(0.01, 0.2, batch, dtype=torch.float64)
    return z, how, draw(st.integers(1, 12))


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(batch=batches(), spec=st.sampled_from(PAIRED), t=st.sampled_from([0.05, 0.5, 2.0]))
def test_every_batch(batch, spec, t):
    z, how, tile = batch
    compare(spec, tile, z, t, **how)
