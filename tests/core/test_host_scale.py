"""A host's scale and bias belong to a call: to its thread, and to its backward pass."""

from __future__ import annotations

import copy
import pickle
import sys
import threading

import pytest
import torch
from specs import REGISTERED, at, embeddings
from torch.utils.checkpoint import checkpoint

import counterpoint as cp
from counterpoint.plugins.clip import ContrastiveLoss
from counterpoint.values import at_scale, host_values

HOSTED = [spec.replace("t=T", "t=host") for spec in REGISTERED if "t=T" in spec and not at(spec).needs]


@pytest.fixture
def busy_threads():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("spec", ["infonce:t=host", "siglip:t=host,b=host", "alphacl:t=host"])
def test_threads_that_share_an_objective_have_their_own_scales(spec, busy_threads):
    loss_fn, logits = cp.objective(spec), embeddings(2, 8)[0] @ embeddings(2, 8)[1].T
    features = ContrastiveLoss(loss_fn)
    z = torch.nn.functional.normalize(embeddings(2, 8), dim=-1)
    wrong: list[float] = []

    def call(scale: float) -> list[float]:
        bias = torch.tensor(-scale / 10)
        return [
            loss_fn.from_logits(logits * scale + bias, scale=scale, bias=float(bias)).item(),
            features(*z, torch.tensor(scale), bias).item(),
        ]

    scales = (1.0, 2.0, 5.0, 10.0)
    expected = {scale: call(scale) for scale in scales}
    assert len({value for values in expected.values() for value in values}) == 2 * len(scales)

    def work(scale: float) -> None:
        for _ in range(150):
            if (values := call(scale)) != expected[scale]:
                wrong.extend(values)

    threads = [threading.Thread(target=work, args=(scale,)) for scale in scales]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    "how", [{}, {"engine": "tiles:16"}, {"engine": "chunks"}, {"engine": "tiles:16", "pairing": "one_way"}]
)
@pytest.mark.parametrize("spec", HOSTED)
def test_the_backward_pass_has_the_scale_of_its_forward_pass(spec, how):
    """Tiles are recomputed then, after the call; maybe in another thread, or after other calls."""
    if "chunks" in how.values() and at(spec.replace("host", "T")).pairing not in ("one_way", "views"):
        how = {"engine": "tiles:8"}
    found = []
    for t in ("host", "0.5"):
        loss_fn = cp.objective(spec.replace("t=host", f"t={t}")).double()
        z = embeddings(2, 40, dtype=torch.float64).requires_grad_()
        log_scale = torch.tensor(2.0, dtype=torch.float64).log().requires_grad_()
        views = (
            [z[0], z[1]]
            if at(spec.replace("host", "T")).views in (None, 2)
            else [z[0], z[1], z[0].flip(1), z[1].flip(1)]
        )
        try:
            with at_scale(log_scale.exp() if t == "host" else None):
                loss = loss_fn(*views, **how)
        except ValueError as error:
            if str(error).startswith("engine="):
                return
            raise
        with at_scale(100.0):  # of another call, around this backward pass
            loss.backward()
        found.append((loss.detach(), z.grad))
    torch.testing.assert_close(*found, rtol=1e-8, atol=1e-10)
    assert host_values() == {}


def test_copies_and_pickles_during_a_call_have_no_scale():
    loss_fn = cp.objective("siglip:t=host,b=host")
    with at_scale(torch.tensor(3.0, requires_grad=True), 1.0):
        copies = copy.deepcopy(loss_fn), pickle.loads(pickle.dumps(loss_fn))
    for made in (loss_fn, *copies):
        with pytest.raises(ValueError, match="is one over the scale of logits"):
            made(*embeddings(2, 8))
        made.from_logits(torch.eye(4), scale=2.0, bias=-1.0)


def test_a_report_during_a_call_has_its_scale():
    loss_fn, z = cp.objective("siglip:t=host,b=host"), embeddings(2, 8)
    with at_scale(3.0, -1.0):
        found = loss_fn.report(*z)
    assert found["loss"] == pytest.approx(cp.SigLIP(1 / 3, -1.0)(*z).item())
    logits = 3 * torch.eye(4) - 1
    expected = loss_fn.from_logits(logits, scale=3.0, bias=-1.0).item()
    assert loss_fn.report(logits, call="from_logits", scale=3.0, bias=-1.0)["loss"] == pytest.approx(expected)


@pytest.mark.parametrize("spec", ["infonce:t=0.05", "adnce:t=1", "infonce:t=schedule(0.1,0.05,9)"])
def test_logits_without_their_scale_are_warned_of_once(spec, recwarn):
    s = torch.nn.functional.normalize(torch.randn(6, 4), dim=1) @ torch.eye(4, 6)
    cp.objective(spec).from_logits(20 * s, scale=torch.tensor(20.0, requires_grad=True))
    cp.InfoNCE(1.0).from_logits(20 * s)  # cross entropy
    assert not [one for one in recwarn.list if "expected cosines" in str(one.message)]
    loss_fn = cp.objective(spec)
    with pytest.warns(
        UserWarning, match=r"expected cosines, but similarities reach \S+ at scale=1; pass scale=,"
    ) as found:
        loss_fn.from_logits(20 * s)
    assert found[0].filename == __file__
    recwarn.clear()
    loss_fn.from_logits(20 * s)
    assert not recwarn.list


@pytest.mark.parametrize("spec", ["hcl:t=host", "adnce:t=host,mu=0.4", "0.5*infonce:t=host + 0.5*dcl:t=host"])
def test_logits_less_the_largest_of_their_row_are_warned_of(spec, recwarn):
    s = 20 * torch.nn.functional.normalize(torch.randn(6, 4), dim=1) @ torch.eye(4, 6)
    shifted = s - s.max(1, keepdim=True).values
    cp.objective(spec).from_logits(s, scale=20.0)
    cp.objective(spec).from_logits(torch.zeros(6, 6), scale=20.0)  # of an encoder that has collapsed
    cp.objective("infonce:t=host").from_logits(shifted, scale=20.0)  # which does not depend on it
    assert not recwarn.list
    with pytest.warns(UserWarning, match="the largest logit of each row is 0, as if it had been taken from the row"):
        cp.objective(spec).from_logits(shifted, scale=20.0)


@pytest.mark.parametrize("spec", ["infonce:t=0.2", "hcl:t=0.2"])
def test_the_first_call_may_be_in_a_checkpoint(spec):
    """It looks at the scale, which its recomputation does not do again."""
    objective, x = cp.objective(spec), torch.randn(8, 8, requires_grad=True)
    labels = torch.arange(8)
    loss = checkpoint(lambda y: objective.from_logits(y, labels, scale=5.0), x, use_reentrant=False)
    expected = torch.autograd.grad(objective.from_logits(x, labels, scale=5.0), x)
    torch.testing.assert_close(torch.autograd.grad(loss, x), expected)
