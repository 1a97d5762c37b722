"""lightly: ``NTXentLoss``, ``DCLLoss`` and ``DCLWLoss``.

**Where the loss sits.** Scripts make a criterion of a class of ``lightly.loss`` and call it with ``(out0, out1)``.

**Which tensors are there.** The projections of two views, ``(B, width)`` each, not normalised; the criterion divides by
its own temperature. All ``2 B`` views are anchors. ``NTXentLoss`` keeps the positive in the denominator, ``DCLLoss``
does not. ``NTXentLoss(memory_bank_size=(n, width))`` compares the first view alone with a bank of earlier second views.
``gather_distributed=True`` compares a process's own anchors with every process's views. Up to lightly 1.5.20
``DCLLoss`` was another loss, which no objective is.

**How an objective gets there.** It takes the place of the methods ``forward`` of these classes, with the temperature,
the bank and the gathering that the script has chosen::

    counterpoint inject lightly --objective "hcl:t=0.5" -- simclr.py

or, with one line changed, also for more than two views::

    criterion = counterpoint.plugins.lightly.Loss("hcl:t=0.5")
    criterion = counterpoint.plugins.lightly.Loss("hcl:t=0.1", memory_bank_size=(4096, 128), gather_distributed=True)

**What cannot be injected.** More than two views: the criterion takes two, and the scripts' transforms make two.
Objectives of attacked or mixed images: the criterion sees projections, not images. The weights of ``DCLWLoss``, and of
``DCLLoss(weight_fn=...)``, are no part of any objective: ``--objective host`` keeps them, any other does without them,
and ``--verify`` refuses them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from counterpoint.objective import Objective, as_objective
from counterpoint.vectors import unit, widen

from .host import HOST as OWN_LOSS
from .host import Host, Seam, SeamError, loss_of, refuse

NAME = "lightly"

# What is called at an objective: its method, and the arguments for it.
Call = tuple[str, tuple[Tensor, ...], dict[str, Any]]


class Loss(nn.Module):
    """A criterion of lightly's shape, for any objective: ``criterion(out0, out1)``, or with more views.

    With ``infonce`` it is lightly's ``NTXentLoss``, with ``infonce:denominator=negatives`` its ``DCLLoss``.
    Temperatures are the objective's; lightly's defaults are .5 and .1.

    Args:
        objective: an objective or a spec. Without a bank it pairs the views as its paper does.
        memory_bank_size: ``(n, width)`` for a bank of ``n`` earlier second views, kept in lightly's own
            ``MemoryBankModule``; 0 for none. The bank is read, and then gets the second view if the first one requires
            a gradient. A second view with a gradient keeps it; a constant one, MoCo's, is the core's ``queue=``.
        gather_distributed: with a bank, every process's second views enter it (equally many each). Without one, a
            process's anchors are compared with every process's views, see ``gather=`` of an objective: the loss is
            that of one process with the whole batch, and so is the gradient, averaged over processes as DDP does.

    >>> criterion = Loss("adnce:t=0.5,mu=0.7")  # doctest: +SKIP
    >>> loss = criterion(projection(x0), projection(x1))  # doctest: +SKIP
    """

    def __init__(
        self,
        objective: Objective | str,
        memory_bank_size: int | Sequence[int] = 0,
        gather_distributed: bool = False,
    ) -> None:
        super().__init__()
        self.objective = as_objective(objective)
        bank = import_module("lightly.models.modules.memory_bank").MemoryBankModule
        self.memory_bank = bank(size=memory_bank_size, gather_distributed=gather_distributed)
        self.gather_distributed = gather_distributed

    def forward(self, *views: Tensor, **how: Any) -> Tensor:
        """The loss of a batch.

        Args:
            views: two or more tensors ``(batch, width)``; with a bank, query and key.
            how: what else the objective takes (``ids``, ``labels``, ``adversarial``, ...), for this process's samples.
        """
        call, args, how = _call(views, self.memory_bank, self.gather_distributed, how)
        return loss_of(self.objective, *args, call=call, **how)

    def extra_repr(self) -> str:
        return f"memory_bank_size={self.memory_bank.size}, gather_distributed={self.gather_distributed}"


def _call(views: tuple[Tensor, ...], bank: Any, gather: bool, how: dict[str, Any]) -> Call:
    """What to call at an objective for these views."""
    if bank is not None and bank.size[0]:
        return _banked(views, bank, how)
    return "forward", views, {"gather": gather, **how}


def _banked(views: tuple[Tensor, ...], bank: Any, how: dict[str, Any]) -> Call:
    if len(views) != 2:
        raise ValueError(f"{NAME}: a memory bank goes with two views, query and key, got {len(views)}.")
    query, key = (unit(widen(view)) for view in views)
    _, keys = bank(key, update=query.requires_grad)
    keys = keys.to(query)
    if not key.requires_grad:
        return "forward", (query, key), {"queue": keys.T, "normalize": False, **how}
    with torch.autocast(query.device.type, enabled=False):
        return "from_scores", ((query * key).sum(-1), query @ keys), how


# ---- injected ----------------------------------------------------------------------------------

TWO_VIEWS = (
    "its criteria take two, and its scripts' transforms make two: change one line, criterion = "
    "counterpoint.plugins.lightly.Loss(...), which takes as many as lightly's MultiViewTransform makes"
)


def check(loss_fn: Objective) -> Objective:
    """Refuses objectives that look at more views than the two that lightly's criteria take."""
    return refuse(loss_fn, NAME, inputs="the criterion sees projections, not images", two_views=TWO_VIEWS)


def before(seam: Seam) -> None:
    """Replaces the methods of lightly's classes."""
    if seam.spec != OWN_LOSS:
        check(as_objective(seam.spec))
    loss = import_module("lightly.loss")
    _replace(seam, loss.NTXentLoss, "infonce:t={!r}")
    _replace(seam, loss.DCLLoss, "infonce:t={!r},denominator=negatives")


def _replace(seam: Seam, kind: Any, host_spec: str) -> None:
    """Puts the seam into the method, so that subclasses and names that are imported already have it too."""
    own: Callable[[Any, Tensor, Tensor], Tensor] = kind.forward

    def forward(self: Any, out0: Tensor, out1: Tensor) -> Tensor:
        if getattr(self, "weight_fn", None) is not None:
            if seam.calls < seam.verify:
                raise SeamError(
                    f"{NAME}: the weights of {type(self).__name__} are no part of any objective, so there is nothing "
                    "to compare with: --verify is for NTXentLoss and DCLLoss."
                )
            if seam.spec == OWN_LOSS:
                seam.calls += 1
                return own(self, out0, out1)
        bank: Any = getattr(self, "memory_bank", None)
        state = [b.clone() for b in bank.buffers()] if bank is not None and seam.calls < seam.verify else []

        def theirs() -> Tensor:
            # the batch has entered the bank already, with our own loss
            for buffer, former in zip(bank.buffers() if state else (), state, strict=True):
                buffer.copy_(former)
            return own(self, out0, out1)

        loss_fn = seam.objective(host_spec.format(self.temperature), self)
        call, args, how = _call((out0, out1), bank, self.gather_distributed, {})
        return seam.loss(loss_fn, theirs, *args, call=call, **how)

    kind.forward = torch.compiler.disable(forward)  # the seam counts and writes, which compiled code cannot
    now = "its own loss" if seam.spec == OWN_LOSS else seam.spec
    first = f"its own loss up to step {seam.verify}, then " if seam.verify and seam.spec != OWN_LOSS else ""
    seam.say(f"lightly.loss: {kind.__name__}.forward is now {first}{now}")


HOST = Host(
    name=NAME,
    title="scripts that train with lightly (lightly-ai/lightly)",
    seam="lightly.loss: NTXentLoss.forward, or DCLLoss.forward (DCLWLoss has the same)",
    tensors="out0, out1 (B, width), not normalised, not divided by the temperature; NTXentLoss keeps the positive in "
    "the denominator, DCLLoss does not; 2B anchors, or B and a bank; gathered with gather_distributed=True",
    spec="infonce:t=0.5",
    tested="lightly 1.6.0, torch 2.15, torchvision 0.29; NTXentLoss since lightly 1.5.13, DCLLoss since 1.5.21",
    package="lightly",
    views=f"two: {TWO_VIEWS}",
    before=before,
)
