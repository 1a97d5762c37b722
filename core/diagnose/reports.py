"""Log the reports of an objective while it trains."""

from __future__ import annotations

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
        model: an objective, or a module that contains some and calls them with embeddings.
        log: gets ``{"report/loss": ...}``, or with several objectives ``report/<name of the submodule>/loss``: such as
            ``wandb.log``, ``trackio.log``, ``self.log_dict`` of a LightningModule, ``trainer.log`` of transformers.
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
    watched = {name: part for name, part in model.named_modules() if isinstance(part, Objective)}
    # terms of sums and wrapped objectives are not called themselves
    inner = {id(part) for whole in watched.values() for part in whole.modules() if part is not whole}
    watched = {name: part for name, part in watched.items() if id(part) not in inner}
    if not watched:
        raise ValueError(f"log_reports: {type(model).__name__} contains no objective of counterpoint.")
    hooks = ExitStack()
    for name, part in watched.items():
        hook = _hook(f"report/{name}/" if len(watched) > 1 else "report/", log, every)
        hooks.callback(part.register_forward_hook(hook, with_kwargs=True).remove)
    return hooks


def _hook(prefix: str, log: Callable[[dict[str, float]], object], every: int) -> Callable[..., None]:
    batches = count()

    def report(loss_fn: Any, views: Any, options: Any, loss: Any) -> None:
        is_training = loss_fn.training and torch.is_grad_enabled() and not checks.compiling()
        if is_training and next(batches) % every == 0:
            log({f"{prefix}{name}": value for name, value in loss_fn.report(*views, **options).items()})

    return report  # a function, which deepcopy does not copy with all that `log` refers to
