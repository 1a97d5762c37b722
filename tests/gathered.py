"""What the processes of test_distributed.py compute."""

from __future__ import annotations

from typing import Any

import torch
from processes import part
from torch import Tensor

import counterpoint as cp

WIDTH, VIEWS = 5, 4
BANK = torch.randn(7, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

# objective, number of views, arguments by name, further arguments
Case = tuple[str, int, tuple[str, ...], dict[str, Any]]


def given(total: int) -> dict[str, Tensor]:
    """Everything that a batch of this size may come with."""
    draw = torch.Generator().manual_seed(total)

    def normal(*shape: int) -> Tensor:
        return torch.randn(total, *shape, WIDTH, generator=draw, dtype=torch.float64)

    return {
        "views": normal(VIEWS),
        "adversarial": normal(),
        "mixed": normal(2),
        "negatives": normal(3),
        "prior": torch.rand(total, generator=draw, dtype=torch.float64) / 4,
        "ids": torch.arange(total) // 2 * (torch.arange(total) < total - 2),
        "negative_ids": torch.arange(3 * total).view(total, 3) % (total + 5),
        "labels": torch.arange(total) % 3,
    }


def step(case: Case, total: int, rows: slice, gather: Any) -> dict[str, Tensor]:
    """Two training steps on some rows of a batch: the second one's loss, gradients, learned and tracked values."""
    spec, count, names, more = case
    loss_fn, whole = cp.objective(spec).double(), given(total)
    if "duplicates" in names:  # the largest similarity several times, in different processes too
        whole["views"][1:] = whole["views"][:1]
    how = {name: whole[name][rows].clone() for name in names if name in whole}
    leaves = {k: v.requires_grad_() for k, v in how.items() if k in ("adversarial", "mixed", "negatives")}
    found: dict[str, Tensor] = {}
    for shift in (1.0, 0.7):
        leaves["views"] = (whole["views"][rows][:, :count] + shift).requires_grad_()
        loss = loss_fn(*leaves["views"].unbind(1), gather=gather, **how, **more)
        grads = torch.autograd.grad(loss, [*leaves.values(), *loss_fn.parameters()], allow_unused=True)
    found["loss"] = loss.detach()
    for name, leaf, grad in zip(leaves, leaves.values(), grads, strict=False):
        found[f"gradient of {name}"] = torch.zeros_like(leaf) if grad is None else grad
    for (name, _), grad in zip(loss_fn.named_parameters(), grads[len(leaves) :], strict=True):
        found[f"slope of {name}"] = grad
    return found | {f"state {name}": value for name, value in loss_fn.state_dict().items()}


def all_steps(rank: int, jobs: list[tuple[Case, list[int], Any]]) -> list[dict[str, Tensor]]:
    return [step(case, sum(sizes), part(sizes, rank), gather) for case, sizes, gather in jobs]
