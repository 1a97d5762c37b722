"""Log the reports of an objective while it trains."""

from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from typing import Any

import torch
from torch import nn

from .. import checks
from ..objective import Objective


def log_reports(model: nn.Module, log: Callable[[dict[str, float]], object], every: int = 50) -> ExitStack:
    """Pass the :meth:`Objective.report` of every ``every``-th training batch to ``log``, in the middle of that step.

    Returns an object whose ``close()`` ends this; it is also a context manager.

    Args:
        model: an objective, or a module with one inside that it calls with embeddings, such as a criterion.
        log: gets ``{"report/loss": ...}``: ``wandb.log``, ``trackio.log``, ``trainer.log`` of transformers.
        every: batches from one report to the next; a report computes the whole matrix of similarities.

    >>> import torch, counterpoint as cp
    >>> loss_fn, logged = cp.InfoNCE(0.5), {}
    >>> with cp.log_reports(loss_fn, logged.update):
    ...     loss = loss_fn(torch.eye(4, requires_grad=True), torch.eye(4))
    >>> logged["report/negatives"]
    6.0
    """
    if not isinstance(every, int) or every < 1:
        raise ValueError(f"log_reports: every: expected a whole number of at least 1, got {every!r}.")
    batches = count()

    def report(loss_fn: Any, views: Any, options: Any, loss: Any) -> None:
        is_training = loss_fn.training and torch.is_grad_enabled() and not checks.compiling()
        if is_training and next(batches) % every == 0:
            log({f"report/{name}": value for name, value in loss_fn.report(*views, **options).items()})

    objectives = [part for part in model.modules() if isinstance(part, Objective)]
    if not objectives:
        raise ValueError(f"log_reports: {type(model).__name__} contains no objective of counterpoint.")
    hooks = ExitStack()
    for part in objectives:  # terms of sums and wrapped objectives are not called themselves, and report nothing
        hooks.callback(part.register_forward_hook(report, with_kwargs=True).remove)
    return hooks
