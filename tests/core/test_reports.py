"""Reports while an objective trains: the numbers of ``report``, of the batches that train, and of no other calls."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

import counterpoint as cp

X, Y = torch.randn(2, 12, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("spec", ["infonce:t=0.5", "0.5*hcl + 0.1*dp", "arcl(hcl:t=0.2)", "infonce; duplicates"])
def test_each_training_batch_is_reported_once(spec):
    loss_fn, logged = cp.objective(spec), []
    with cp.log_reports(nn.Sequential(nn.Identity(), loss_fn), logged.append, every=2):
        for scale in range(1, 6):
            loss_fn(scale * X.clone().requires_grad_(), Y)
    loss_fn(X, Y)
    expected = {f"report/{name}": value for name, value in loss_fn.report(X, Y).items()}
    assert logged == [pytest.approx(expected, nan_ok=True, rel=1e-5)] * 3


def test_evaluation_is_not_reported():
    loss_fn, logged = cp.InfoNCE(0.5), []
    hooks = cp.log_reports(loss_fn, logged.append, every=1)
    with torch.no_grad():
        loss_fn(X, Y)
    loss_fn.eval()(X, Y)
    assert logged == []
    deepcopy(loss_fn).train()(X, Y, pairing="one_way")
    assert logged[0]["report/negatives"] == 11
    hooks.close()
    loss_fn.train()(X, Y)
    assert len(logged) == 1


def test_the_gradient_and_a_schedule_stay_as_they_are():
    def trained(log):
        x, loss_fn = X.clone().requires_grad_(), cp.InfoNCE(cp.Schedule(0.5, 0.1, steps=3))
        with cp.log_reports(loss_fn, [].append, every=1) if log else torch.enable_grad():
            for _ in range(3):
                loss_fn(x, Y).backward()
        return x.grad

    assert torch.equal(trained(True), trained(False))
