"""How the proof that a gradient is the host's own is kept cheap, and still stops at drift."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import counterpoint as cp
from counterpoint.plugins.embeddings import Call, Embeddings
from counterpoint.plugins.gradient import CROSS_ENTROPY, Logits
from counterpoint.plugins.host import DifferenceError, Seam, SeamError

B, HCL = 12, cp.objective("hcl:t=0.1")
ONE_WAY = {"pairing": "one_way"}


def step(seam, loss_of, times=1.0):
    """Return the gradients of two views whose host's loss is ``times`` the one of ``loss_of``."""
    a, b = (torch.randn(B, 8, dtype=torch.double).requires_grad_() for _ in range(2))
    embeddings = Embeddings(seam, "nt_xent", "infonce:t=0.1", lambda *z: Call(z, ONE_WAY))
    (times * embeddings.returned(loss_of(*embeddings(a, b)))).backward()
    expected = torch.autograd.grad(times * HCL(a, b, **ONE_WAY), [a, b])
    return [a.grad, b.grad], expected


def nt_xent(a, b, margin=0.0):
    logits = (F.normalize(a, dim=1) @ F.normalize(b, dim=1).T - margin * torch.eye(B)) / 0.1
    return F.cross_entropy(logits, torch.arange(B))


@pytest.mark.parametrize("calls", [1, 2])
def test_a_loss_that_is_returned_is_compared_in_some_steps_and_weighed_in_all(calls):
    torch.manual_seed(0)
    seam = Seam("hcl:t=0.1")
    for i in range(60):
        for call in range(calls):
            got, expected = step(seam, nt_xent, times=2.0 ** (i % 5) * (1 + call))
            torch.testing.assert_close(got, [*expected])
    assert 21 <= seam.proofs <= 20 + 0.3 * seam.calls


@pytest.mark.parametrize("calls", [1, 2])
def test_drift_stops_the_run_soon(calls):
    seam = Seam("hcl:t=0.1")
    for _ in range(50):
        step(seam, nt_xent)
    assert seam.proofs < 50
    margins = [0.3 * (i % calls == 0) for i in range(20 * calls)]
    with pytest.raises(DifferenceError, match=r"the gradient at nt_xent is not that of infonce:t=0\.1"):
        [step(seam, lambda a, b, m=margin: nt_xent(a, b, m)) for margin in margins]


def test_a_factor_within_the_function_that_changes_is_compared_in_every_step():
    seam = Seam("hcl:t=0.1")
    for i in range(60):
        got, expected = step(seam, lambda a, b, i=i: (1 + i) * nt_xent(a, b))
        torch.testing.assert_close(got, [(1 + i) * each for each in expected])
    assert seam.proofs == 60


def test_a_factor_that_jumps_is_compared_in_the_step_in_which_it_does():
    """Without waiting for the next comparison, which may be 13 calls away."""
    torch.manual_seed(0)
    seam = Seam("hcl:t=0.1")
    for i in range(70):
        times = 1.0 if i < 37 else 10.0
        got, expected = step(seam, lambda a, b, times=times: times * nt_xent(a, b))
        torch.testing.assert_close(got, [times * each for each in expected])
    assert seam.proofs < 50


@pytest.fixture
def steady():
    """A seam whose comparisons have found one ratio, so that most calls are not compared."""
    torch.manual_seed(0)
    seam = Seam("hcl:t=0.1")
    for _ in range(30):
        step(seam, nt_xent)
    return seam


def test_the_backward_pass_of_the_host_is_left_out_where_it_is_not_compared(steady):
    passes, proofs = [], steady.proofs

    def watched(a, b):
        loss = nt_xent(a, b)
        loss.register_hook(lambda g: passes.append(g))
        return loss * 1

    for _ in range(40):
        got, expected = step(steady, watched, times=65536.0)
        torch.testing.assert_close(got, [*expected])
    assert len(passes) == steady.proofs - proofs <= 6


def test_a_step_that_a_script_drops_does_not_end_the_training(steady):
    """As those with NaN in the data, for which a script or a GradScaler looks at the gradient."""
    for _ in range(20):
        a, b = (torch.full((B, 8), torch.nan, dtype=torch.double).requires_grad_() for _ in range(2))
        call = Embeddings(steady, "nt_xent", "infonce:t=0.1", lambda *z: Call(z, ONE_WAY))
        call.returned(nt_xent(*call(a, b))).backward()
        assert a.grad.isnan().any()


def test_what_else_a_function_learns_keeps_its_gradient(steady):
    bias = torch.tensor(2.0, dtype=torch.double, requires_grad=True)
    for _ in range(40):
        got, expected = step(steady, lambda a, b: nt_xent(a, b) + bias**2, times=3.0)
        torch.testing.assert_close(got, [*expected])
    torch.testing.assert_close(bias.grad, torch.tensor(40 * 3.0 * 4, dtype=torch.double))


@pytest.mark.parametrize("how", ["another name", "a second term", "twice", "checkpoint", "reentrant"])
def test_whatever_a_script_does_with_the_loss(steady, how):
    """The loss may be differentiated by another name, twice, and beside another term, which is an error."""
    taken = []

    def loss_of(a, b):
        taken[:] = [nt_xent(a, b), a]
        return taken[0]

    for _ in range(40):
        a, b = (torch.randn(B, 8, dtype=torch.double).requires_grad_() for _ in range(2))

        def forward(a, b):
            call = Embeddings(steady, "nt_xent", "infonce:t=0.1", lambda *z: Call(z, ONE_WAY))
            return call.returned(loss_of(*call(a, b)))

        if how in ("checkpoint", "reentrant"):
            torch.utils.checkpoint.checkpoint(forward, a, b, use_reentrant=how == "reentrant").backward()
        elif how == "another name":
            forward(a, b)
            taken[0].backward()
        elif how == "twice":
            loss = forward(a, b)
            loss.backward(retain_graph=True)
            (-0.5 * loss).backward()
        else:
            with pytest.raises(DifferenceError, match="in call 3"):
                (forward(a, b) + taken[1].sum()).backward()
            break
        expected = torch.autograd.grad(HCL(a, b, **ONE_WAY) * (0.5 if how == "twice" else 1), [a, b])
        torch.testing.assert_close([a.grad, b.grad], [*expected])


def test_embeddings_that_are_changed_before_the_backward_pass(steady):
    for _ in range(14):
        leaf = torch.randn(B, 8, dtype=torch.double, requires_grad=True)
        a, b = leaf * 1, torch.randn(B, 8, dtype=torch.double)
        call = Embeddings(steady, "nt_xent", "infonce:t=0.1", lambda *z: Call(z, ONE_WAY))
        loss = call.returned(nt_xent(*call(a, b)))
        a.mul_(2)
        with pytest.raises(SeamError, match="were changed in place"):
            loss.backward()


def test_cross_entropy_is_compared_with_its_gradient_and_other_forms_with_that_of_the_objective():
    torch.manual_seed(0)
    x, labels = torch.randn(B, 20, dtype=torch.double) * 3, torch.randint(20, (B,))

    def gradient(own, x, labels):
        logits, seam = x.clone().requires_grad_(), Seam("hcl:t=host")
        call = Logits(seam, None, "here", own, labels.clamp(min=0), {"scale": 3.0})
        (7 * F.cross_entropy(call(logits), labels)).backward()
        assert (seam.proofs, seam.worst < 1e-12) == (1, True)
        return logits.grad

    masked = x.masked_fill(torch.rand_like(x) > 0.8, -torch.inf).scatter(1, labels.unsqueeze(1), 1.0)
    some = labels.masked_fill(torch.arange(B) < 3, -100)
    for given, targets in ((x, labels), (masked, labels), (x, some)):
        fast, slow = (gradient(own, given, targets) for own in (CROSS_ENTROPY, f"infonce:t={1 / 3!r}"))
        torch.testing.assert_close(fast, slow)
