"""Clones of the hosts, where there are any, and what stand-ins of their scripts share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# torch.optim would import the whole of torch's compiler
SGD = """
class SGD:
    def __init__(self, params, lr):
        self.params, self.lr = list(params), lr

    def zero_grad(self):
        for param in self.params:
            param.grad = None

    def step(self):
        for param in self.params:
            if param.grad is not None:
                param.data -= self.lr * param.grad
"""


def real_clone(*places: str, holds: str = "") -> Path:
    """The first of these folders that ``COUNTERPOINT_HOSTS`` has, with this file in it; or else the test is skipped."""
    hosts = os.environ.get("COUNTERPOINT_HOSTS")
    if not hosts:
        pytest.skip("COUNTERPOINT_HOSTS is not set: no clones to test with")
    for place in places:
        if (Path(hosts) / place / holds).exists():
            return Path(hosts) / place
    pytest.skip(f"no {' or '.join(places)} in {hosts}")
