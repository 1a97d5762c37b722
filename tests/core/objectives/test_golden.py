"""Every golden case, values and gradients."""

from __future__ import annotations

import pytest
import torch
from golden import CASES, FUNCTIONS, TOLERANCE, evaluate, inputs

import counterpoint as cp


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_float64(case):
    args = inputs(case)
    value = evaluate(case, args)
    torch.testing.assert_close(value.detach(), torch.tensor(case["value"], dtype=torch.float64), **TOLERANCE)
    if case["grad"] is None:
        return
    found = torch.autograd.grad(value, [args[k] for k in case["grad"]], allow_unused=True)
    for (name, expected), gradient in zip(case["grad"].items(), found, strict=True):
        want = torch.tensor(expected, dtype=torch.float64).reshape(args[name].shape)
        got = torch.zeros_like(want) if gradient is None else gradient
        torch.testing.assert_close(got, want, **TOLERANCE, msg=lambda m, name=name: f"gradient of {name}: {m}")


EPS = torch.finfo(torch.float32).eps


@pytest.mark.parametrize("case", [c for c in CASES if c["grad"] is not None], ids=lambda c: c["id"])
def test_float32(case):
    """Within 1e-5 relative, plus what rounding the similarities themselves must cost.

    A similarity carries a relative error of about EPS before any formula sees it, and the loss answers with its
    gradient: sum |dL/dx| |x| EPS. At t = 0.01 that is 100 EPS per unit of similarity, and where a small value is a
    difference of large terms it exceeds 1e-5 of the value. From embeddings, each inner product adds such an error, and
    a loss changes by at most 2 / t per unit of an anchor's similarities.
    """
    exact = inputs(case)
    gradients = {k: torch.tensor(g, dtype=torch.float64).reshape(exact[k].shape) for k, g in case["grad"].items()}
    sensitivity = sum((g * exact[k].detach()).abs().sum().item() for k, g in gradients.items())
    t = case["params"].get("t", 1.0)
    if "neg" not in exact and "advneg" not in exact:
        sensitivity += 2 / t
    single = inputs(case, torch.float32)
    value = evaluate(case, single)
    assert value.dtype == torch.float32
    assert abs(value.item() - case["value"]) <= 1e-5 * abs(case["value"]) + 4 * EPS * sensitivity + 1e-7
    found = torch.autograd.grad(value, [single[k] for k in gradients], allow_unused=True)
    for (name, want), gradient in zip(gradients.items(), found, strict=True):
        got = torch.zeros_like(want) if gradient is None else gradient.double()
        assert ((got - want).abs() <= 1e-5 * max(1, 1 / t) * (1 + want.abs())).all(), name


def test_every_function_has_cases():
    assert {c["fn"] for c in CASES} == set(FUNCTIONS)


def test_every_objective_has_a_case(monkeypatch):
    called = set()
    original = cp.Objective.compute_loss

    def record(self, *given, **how):
        called.add(self.name)
        return original(self, *given, **how)

    monkeypatch.setattr(cp.Objective, "compute_loss", record)
    for case in CASES:
        evaluate(case, inputs(case))
    assert called >= {name for name, kind in cp.registry.items() if kind.__module__.startswith("counterpoint.")}
