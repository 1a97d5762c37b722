"""Trained hyper-parameters, and embeddings of which one, the other or none needs a gradient (a frozen tower)."""

from __future__ import annotations

import pytest
import torch
from specs import LEARNED, embeddings

import counterpoint as cp

PAIRINGS = ["one_way", "symmetric", "first_two", "views", "joint"]
SIZE = 40
SPECS = [*(x for x in LEARNED if "learned" in x), "siglip:t=learned(0.5,0.001,100),b=-1"]
FROZEN = [(True, False), (False, True), (True, True)]


def gradients(spec: str, frozen: tuple[bool, bool], how: dict, engine: str) -> dict[str, torch.Tensor] | None:
    """Return the loss and all gradients; None where the engine refuses the pairing."""
    loss_fn = cp.objective(spec).double()
    z = [x.clone().requires_grad_(not f) for x, f in zip(embeddings(2, SIZE, dtype=torch.float64), frozen, strict=True)]
    try:
        loss = loss_fn(*z, engine=engine, index=torch.arange(SIZE), **how)
    except ValueError as error:
        if str(error).startswith("engine="):
            return None
        raise
    trained = {f"view {i}": x for i, x in enumerate(z, 1) if x.requires_grad} | dict(loss_fn.named_parameters())
    found = torch.autograd.grad(loss, [*trained.values()], allow_unused=True, materialize_grads=True)
    return {"loss": loss.detach(), **dict(zip(trained, found, strict=True))}


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_gradients_in_every_engine(spec, pairing):
    """Each objective and each pairing meets every kind of frozen embeddings."""
    for frozen in ((False, False), FROZEN[(SPECS.index(spec) + PAIRINGS.index(pairing)) % 3]):
        expected = gradients(spec, frozen, {"pairing": pairing}, "matrix")
        assert expected is not None
        assert any(x.abs().max() > 0 for name, x in expected.items() if name != "loss" and "view" not in name)
        for engine in ("tiles:16", "tiles", "chunks", "auto"):
            found = gradients(spec, frozen, {"pairing": pairing}, engine)
            if found is not None:
                torch.testing.assert_close(
                    found, expected, rtol=1e-7, atol=1e-10, msg=f"{frozen} {engine}: {{}}".format
                )


@pytest.mark.parametrize("sign", [1.0, -2.0])
@pytest.mark.parametrize("init", [0.0, 0.5])
def test_a_number_at_its_limit_moves_by_the_sign_of_the_whole_gradient(sign, init):
    """Engines that differentiate at once do not know the factor that the loss has afterwards."""
    found = []
    for engine in ("matrix", "tiles", "chunks", "compiled"):
        torch._dynamo.reset()
        loss_fn = cp.HCL(0.1, prior=0.01, beta=cp.Learned(init, 0.0, 0.5)).double()
        call = torch.compile(loss_fn, backend="eager") if engine == "compiled" else loss_fn
        z = embeddings(2, SIZE, dtype=torch.float64)
        (sign * call(*z, pairing="one_way", engine="tiles" if engine == "compiled" else engine)).backward()
        found.append(next(loss_fn.parameters()).grad)
    assert len({x is None or bool(x == 0) for x in found}) == 1
    torch.testing.assert_close(torch.stack(found[1:]), found[0].expand(3), rtol=1e-8, atol=0)
