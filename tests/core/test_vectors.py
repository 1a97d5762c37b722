"""Small batches, whose similarities and positives are one function with a gradient of its own."""

import pytest
import torch
from torch.autograd import forward_ad

import counterpoint as cp

CALLS = [
    ("infonce:t=0.3", 2, {}),
    ("infonce:t=0.3", 3, {}),
    ("infonce:t=0.3", 2, {"pairing": "one_way"}),
    ("adnce:t=0.5", 3, {"pairing": "one_way"}),
    ("infonce:t=0.3", 2, {"pairing": "symmetric"}),
    ("hcl:t=0.5 + 0.1*dp", 2, {"pairing": "symmetric"}),
    ("hcl:t=0.5", 2, {}),
    ("dcl:t=0.5 + 0.1*dp", 3, {"pairing": "one_way"}),
    ("adnce:t=0.5 + 0.1*dp", 2, {}),
    ("infonce:t=0.3", 2, {"ids": torch.tensor([0, 0, 1, 2])}),
]


def views(number, dtype=torch.float64):
    z = torch.randn(number, 4, 3, dtype=dtype, generator=torch.Generator().manual_seed(0))
    return [x.clone().requires_grad_() for x in z]


# ADNCE's weights are constants, though they depend on the similarities
@pytest.mark.parametrize(("spec", "number", "options"), [call for call in CALLS if "adnce" not in call[0]])
def test_first_and_second_derivatives(spec, number, options):
    loss_fn, z = cp.objective(spec), views(number)

    def loss(*z):
        return loss_fn(*z, **options)

    assert torch.autograd.gradcheck(loss, z)
    assert torch.autograd.gradgradcheck(loss, z, fast_mode=True)


@pytest.mark.parametrize(("spec", "number", "options"), CALLS)
def test_equals_torchs_own_operations(spec, number, options):
    """Under ``torch.func`` and in forward mode, autograd differentiates each operation."""
    loss_fn, z = cp.objective(spec), views(number)
    loss = loss_fn(*z, **options)
    gradients = torch.autograd.grad(loss, z, create_graph=True)
    expected, value = torch.func.grad_and_value(lambda *z: loss_fn(*z, **options), argnums=tuple(range(number)))(*z)
    torch.testing.assert_close((loss, gradients), (value, expected))
    curvature = [torch.autograd.grad(sum(g.square().sum() for g in by), z) for by in (gradients, expected)]
    torch.testing.assert_close(*curvature)
    with forward_ad.dual_level():
        tangents = [torch.randn_like(x) for x in z]
        dual = loss_fn(*map(forward_ad.make_dual, z, tangents), **options)
        along = sum((g * t).sum() for g, t in zip(gradients, tangents, strict=True))
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, along)


@pytest.mark.parametrize("pairing", ["views", "one_way", "symmetric"])
@pytest.mark.filterwarnings("error")
def test_tiny_rows_are_not_zero(pairing):
    z = [x.float().detach() for x in views(2, torch.float64)]
    tiny = [(1e-24 * x).requires_grad_() for x in z]
    loss = cp.InfoNCE(0.3)(*tiny, pairing=pairing)
    torch.testing.assert_close(loss.detach(), cp.InfoNCE(0.3)(*z, pairing=pairing))
    assert all(bool((g != 0).any(1).all()) for g in torch.autograd.grad(loss, tiny))


@pytest.mark.parametrize("pairing", ["views", "one_way", "symmetric"])
def test_zero_rows_and_half_precision(pairing):
    z = views(2, torch.float16)
    with torch.no_grad():
        z[0][1] = 0
    with pytest.warns(UserWarning, match="view 1: 1 of 4 rows are zero: .* they get no gradient"):
        loss = cp.InfoNCE(0.3)(*z, pairing=pairing)
    gradient = torch.autograd.grad(loss, z)
    wide = [x.detach().float().requires_grad_() for x in z]
    with pytest.warns(UserWarning, match="view 1: 1 of 4 rows"):
        value = cp.InfoNCE(0.3)(wide[0], wide[1].detach(), pairing=pairing)
    torch.testing.assert_close(value, loss, rtol=1e-3, atol=1e-4)
    with pytest.warns(UserWarning, match="view 1"):
        expected = torch.autograd.grad(cp.InfoNCE(0.3)(*wide, pairing=pairing), wide)
    assert loss.dtype == torch.float32
    assert gradient[0].dtype == torch.float16
    assert not gradient[0][1].any()
    torch.testing.assert_close([x.float() for x in gradient], [*expected], rtol=2e-3, atol=1e-4)


def test_a_backward_pass_under_autocast_is_exact():
    z = views(2, torch.float32)
    expected = torch.autograd.grad(cp.InfoNCE(0.3)(*z), z)
    loss = cp.InfoNCE(0.3)(*z)
    with torch.autocast("cpu", torch.bfloat16):
        gradient = torch.autograd.grad(loss, z)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "options", [{}, {"pairing": "one_way"}, {"pairing": "symmetric"}, {"engine": "tiles:2"}, {"normalize": False}]
)
@pytest.mark.parametrize("spec", ["infonce", "dp", "0.1*dp + infonce"])
def test_values_are_checked_in_every_call(spec, options):
    loss_fn, z = cp.objective(spec), views(2)
    loss_fn(*z, **options)
    with torch.no_grad():
        z[1][2, 1] = torch.nan  # DP computes nothing from the second view
    with pytest.raises(ValueError, match=r"view 2: 1 of 12 values are NaN or infinite, the first at \(2, 1\)"):
        loss_fn(*z, **options)


def test_views_that_do_not_count_have_no_gradient():
    z, queue = views(2), torch.randn(5, 3, dtype=torch.float64)
    cp.DistancePolarization()(*z).backward()
    assert z[1].grad is None
    cp.InfoNCE()(*z, queue=queue).backward()
    assert z[1].grad is None
    key = z[1].detach()
    (gradient,) = torch.autograd.grad(cp.InfoNCE(0.3)(z[0], key, pairing="one_way"), z[0])
    torch.testing.assert_close(gradient, torch.autograd.grad(cp.InfoNCE(0.3)(*z, pairing="one_way"), z[0])[0])


def test_a_first_call_in_inference_mode():
    """What is stored for later calls of the same size can be saved for a backward pass."""
    z = [torch.randn(23, 3).requires_grad_() for _ in range(2)]
    with torch.inference_mode():
        expected = cp.InfoNCE(0.3)(*z)
    loss = cp.InfoNCE(0.3)(*z)
    loss.backward()
    torch.testing.assert_close(loss.detach(), expected.clone())


def test_hooks_and_a_gradient_that_is_kept():
    z, seen = views(2), []
    z[0].register_hook(seen.append)
    loss = cp.InfoNCE(0.3)(*z)
    loss.backward(retain_graph=True)
    once = z[0].grad.clone()
    loss.backward()
    torch.testing.assert_close(z[0].grad, 2 * once)
    torch.testing.assert_close(seen[0], once)


@pytest.mark.parametrize(("pairing", "number"), [("views", 3), ("views", 2), ("symmetric", 2), ("one_way", 3)])
def test_gradients_in_tiles_are_those_of_a_matrix(pairing, number):
    z = [x.requires_grad_() for x in torch.randn(number, 20, 5, dtype=torch.float64).unbind()]
    loss = 2 * cp.InfoNCE(0.3)(*z, pairing=pairing, engine="matrix")
    expected = torch.autograd.grad(loss, z)
    loss = 2 * cp.InfoNCE(0.3)(*z, pairing=pairing, engine="tiles:4")
    torch.testing.assert_close(torch.autograd.grad(loss, z), expected)


@pytest.mark.parametrize("mask", ["none", "skip", "drop"])
def test_log_sum_exps_of_some_keys(mask):
    """First and second derivatives are those of torch's own operations."""
    scores = torch.randn(7, 9, dtype=torch.float64).clamp(-4, 4).requires_grad_()
    skip = torch.tensor([[i, (i + 3) % 9] for i in range(7)]) if mask == "skip" else None
    drop = torch.rand(7, 9) < 0.3 if mask == "drop" else None
    neg = cp.MatrixNegatives(scores, skip, drop)
    excluded = torch.zeros(7, 9, dtype=torch.bool) if drop is None else drop
    excluded = excluded if skip is None else excluded.scatter(1, skip, True)

    def both(lse):
        (gradient,) = torch.autograd.grad(lse.square().sum(), scores, create_graph=True)
        return lse, gradient, torch.autograd.grad(gradient.square().sum(), scores)[0]

    found = both(neg.logsumexp(lambda s: s / 0.3))
    wanted = both((scores / 0.3).masked_fill(excluded, -torch.inf).logsumexp(1, keepdim=True))
    torch.testing.assert_close(found, wanted)
