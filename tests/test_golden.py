"""Every golden case, values and gradients."""

from __future__ import annotations

import pytest
import torch
from golden import CASES, FUNCTIONS, TOLERANCE, evaluate, inputs

# What float32 cannot give, and why. Elsewhere it must agree within 1e-5 relative.
ILL_CONDITIONED = {
    "dcl": "the debiased mass is a difference of nearly equal numbers",
    "hcl": "the debiased mass is a difference of nearly equal numbers",
}


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


def test_every_function_has_cases():
    assert {c["fn"] for c in CASES} == set(FUNCTIONS)
