"""Hyper-parameters that change: schedules, learned values, tracked state."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from identities import cosines, embeddings, gradients, same

import counterpoint as cp
from counterpoint.hyper import Real


def moving() -> list[tuple[str, str, dict]]:
    """List every schedulable hyper-parameter of every objective, with the choices under which it has an effect."""
    cases = []
    for name, kind in cp.registry.items():
        base = {"detach_weights": False} if "detach_weights" in kind.hyper else {}  # a detached weight passes no slope
        base |= {"eta": 0.0} if "eta" in kind.hyper else {}  # temperatures that stay
        for key, hyper in kind.hyper.items():
            if isinstance(hyper, Real) and not hyper.fixed:
                cases.append((name, key, {**base, "divergence": "chi2"} if (name, key) == ("dro", "scale") else base))
    return [
        *cases,
        ("dro", "radius", {"divergence": "chi2"}),
        ("dro", "radius", {"alpha": 0.3}),
        ("dro", "radius", {"shared": True}),
    ]


def start_of(name: str, key: str) -> float:
    default = cp.objective(name)._hyper[key] or 0.3
    return min(default, cp.registry[name].hyper[key].high / 1.5)


def learned(value: float) -> cp.Learned:
    return cp.Learned(value, *sorted((value / 1.5, value * 1.5)))


def tiny_batch() -> tuple[torch.Tensor, dict]:
    z = embeddings(5, 4)
    return z[:2], {"adversarial": z[2], "mixed": z[3], "index": torch.arange(z.shape[1])}


MOVING = pytest.mark.parametrize(
    ("name", "key", "more"), moving(), ids=lambda x: str(x) if isinstance(x, str) else "-".join(map(str, x.values()))
)


@MOVING
def test_constant_schedules_and_learned_values_are_numbers(name, key, more):
    (z, extra), kind, value = tiny_batch(), cp.registry[name], start_of(name, key)
    expected = kind(**{key: value}, **more)(*z, **extra)
    for moving_value in (cp.Schedule(value, value, 3), learned(value)):
        loss_fn = kind(**{key: moving_value}, **more)
        for _ in range(2):
            torch.testing.assert_close(loss_fn(*z, **extra), expected, rtol=1e-5, atol=1e-7)


@MOVING
def test_the_gradient_of_a_learned_value_is_the_slope(name, key, more):
    (z, extra), kind, value = tiny_batch(), cp.registry[name], start_of(name, key)
    loss_fn = kind(**{key: learned(value)}, **more).double()
    (parameter,) = loss_fn.parameters()
    (slope,) = gradients(loss_fn(*z, **extra), [parameter])
    now, h = parameter.item(), 1e-5
    moved = [math.exp(now + s * h) if value > 0 else now + s * h for s in (1, -1)]
    above, below = (kind(**{key: number}, **more)(*z, **extra).item() for number in moved)
    torch.testing.assert_close(slope.item(), (above - below) / (2 * h), rtol=1e-5, atol=1e-8)


def test_a_learned_value_may_be_negative_or_cross_zero():
    for init, low, high in ((-10.0, -20.0, 0.0), (0.0, -1.0, 1.0), (-1.0, -1.0, -0.5)):
        value = cp.Learned(init, low, high)
        assert [name for name, _ in value.named_parameters()] == ["value"]
        assert value().item() == init
        assert repr(value) == f"learned({init:g},{low:g},{high:g})"
        with torch.no_grad():
            value.value.fill_(high + 3)
        assert value().item() == high
        value().backward()
        assert value.value.grad == 1  # a step of gradient descent leads back into the interval
        value.value.grad = None
        (-value()).backward()
        assert value.value.grad == 0
    loss_fn = cp.SigLIP(bias=cp.Learned(-10.0, -20.0, 0.0))
    same = cp.objective(str(loss_fn))
    assert same == loss_fn
    same.load_state_dict(loss_fn.state_dict())


def test_a_learned_value_inside_a_wrapper_and_a_sum():
    z = embeddings(0, 3)
    build = [lambda t: 0.5 * cp.ArCL(cp.HCL(t)), lambda t: cp.IntCL(t, alpha=0.0), lambda w: w * cp.DCL()]
    loss_fn = sum((b(cp.Learned(0.4)) for b in build[1:]), start=build[0](cp.Learned(0.4))).double()
    loss_fn(*z).backward()
    actual = [p.grad.item() for p in loss_fn.parameters()]
    h, now = 1e-5, math.exp(next(loss_fn.parameters()).item())
    slopes = [(b(now * math.exp(h))(*z) - b(now * math.exp(-h))(*z)).item() / (2 * h) for b in build]
    assert sorted(actual) == pytest.approx(sorted(slopes), rel=1e-5)


@pytest.mark.parametrize(
    ("value", "upward", "passes"),
    [
        (0.1, True, False),  # at the lower bound, a step down would leave
        (0.1, False, True),
        (1.0, True, True),
        (1.0, False, False),  # at the upper bound, a step up would leave
        (0.05, True, False),  # beyond the bounds, after a large step
        (0.05, False, True),
        (2.0, True, True),
        (2.0, False, False),
        (0.5, True, True),
        (0.5, False, True),
    ],
)
def test_a_learned_value_at_its_bounds(value, upward, passes):
    """A positive gradient makes descent go down. Only the way further out is closed."""
    learned = cp.Learned(0.5, 0.1, 1.0).double()
    with torch.no_grad():
        learned.log_value.fill_(math.log(value))
    clamped = min(max(value, 0.1), 1.0)
    torch.testing.assert_close(learned().item(), clamped, rtol=1e-12, atol=0)
    (learned() * (1 if upward else -1)).backward()
    expected = (clamped if upward else -clamped) if passes else 0.0
    torch.testing.assert_close(learned.log_value.grad.item(), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_schedule(shape):
    loss_fn, z = cp.InfoNCE(cp.Schedule(0.8, 0.2, 5, shape)), embeddings(0)
    for step in range(8):
        done = min(step / 5, 1.0)
        t = 0.8 - 0.6 * (done if shape == "linear" else (1 - math.cos(math.pi * done)) / 2)
        torch.testing.assert_close(loss_fn.temperature.item(), t, rtol=1e-6, atol=0)
        same(loss_fn(*z), cp.InfoNCE(t)(*z), z, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "build",
    [
        lambda s: cp.InfoNCE(s),
        lambda s: cp.ArCL(cp.InfoNCE(s)),
        lambda s: cp.IntCL(s, alpha=0.0),
        lambda s: cp.InfoNCE(s) + s * cp.HCL(s),
        lambda s: cp.ArCL(cp.InfoNCE(s) + cp.HCL()),
    ],
)
def test_a_schedule_takes_one_step_per_training_call(build):
    schedule = cp.Schedule(0.5, 0.1, 10)
    loss_fn, z = build(schedule), embeddings(0)
    loss_fn(*z)
    loss_fn.from_scores(*cosines(0))
    loss_fn.from_logits(cosines(0)[1])
    assert schedule.step == 3
    with torch.no_grad():
        loss_fn(*z)
    loss_fn.eval()(*z)
    assert schedule.step == 3


STATEFUL = [
    "infonce:t=schedule(0.5,0.1,10)",
    "infonce:radius=0.1",
    "adnce:mu=auto,sigma=auto",
    "hcl:t=learned(0.5),radius=0.2",
]


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("spec", STATEFUL)
def test_evaluation_changes_no_state(spec, trained):
    loss_fn = cp.objective(spec)
    if trained:
        loss_fn(*embeddings(0))
    before = copy.deepcopy(loss_fn.state_dict())
    with torch.no_grad():
        in_training_mode = loss_fn(*embeddings(1))
    evaluated = loss_fn.eval()(*embeddings(1))
    assert evaluated.requires_grad
    torch.testing.assert_close(evaluated.detach(), in_training_mode)
    for key, value in loss_fn.state_dict().items():
        torch.testing.assert_close(value, before[key], equal_nan=True, rtol=0, atol=0)


def test_a_comma_behind_an_exponent_is_not_a_decimal_comma():
    loss_fn = cp.InfoNCE(cp.Schedule(1.0, 1e16, steps=1))
    assert "1e+16,1" in str(loss_fn)
    assert cp.objective(str(loss_fn)) == loss_fn
