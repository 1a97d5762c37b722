"""lightly (lightly-ai/lightly): ``NTXentLoss``, ``DCLLoss`` and ``DCLWLoss``.

**Where the loss sits.** Scripts create a criterion from a class of ``lightly.loss`` and call it with ``(out0, out1)``.

**Which tensors are there.** Those of :data:`HOST`. ``NTXentLoss(memory_bank_size=(n, width))`` compares the first view
alone with a bank of earlier second views; ``gather_distributed=True`` compares a process's own anchors with every
process's views. Up to lightly 1.5.20 ``DCLLoss`` was another loss, which no objective reproduces.

**How to put an objective there.** The launcher replaces the method ``forward`` of these classes, and keeps the
script's bank and gathering. By hand, change one line, also for more than two views::

    criterion = counterpoint.plugins.lightly.ContrastiveLoss("hcl:t=0.5")
    criterion = counterpoint.plugins.lightly.ContrastiveLoss("hcl:t=0.1", (4096, 128), gather_distributed=True)

**What is not possible.** No objective has the weights of ``DCLWLoss``, and of ``DCLLoss(weight_fn=...)``:
``--objective host`` keeps them, any other does without them, and ``--verify`` refuses them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from counterpoint.objective import Objective, as_objective
from counterpoint.vectors import unit, widen

from .host import OWN_LOSS, Host, Seam, SeamError, loss_of

NAME = "lightly"

_Call = tuple[str, tuple[Tensor, ...], dict[str, Any]]  # an objective's method, and the arguments for it


class ContrastiveLoss(nn.Module):
    """Any objective as a criterion with lightly's interface: ``criterion(out0, out1)``, or with more views.

    With ``infonce`` it is lightly's ``NTXentLoss``, with ``infonce:denominator=negatives`` its ``DCLLoss``.
    The objective owns the temperature; lightly's defaults are 0.5 and 0.1.

    Args:
        objective: an objective or a spec. Without a bank it pairs the views as in its paper.
        memory_bank_size: ``(n, width)`` for a bank of ``n`` earlier second views, in lightly's own
            ``MemoryBankModule``; 0 for none. The second view enters the bank after the comparison, if the first view
            requires a gradient. A second view with a gradient keeps it; without one, as in MoCo, the bank is the
            objective's ``queue=``.
        gather_distributed: with a bank, every process's second views enter it (the same number each). Without one, a
            process's anchors are compared with every process's views, see ``gather=`` of an objective: the loss is
            that of one process with the whole batch, and so is the gradient, averaged over processes as DDP does.

    >>> criterion = ContrastiveLoss("adnce:t=0.5,mu=0.7")  # doctest: +SKIP
    >>> loss = criterion(projection(x0), projection(x1))  # doctest: +SKIP
    """

    def __init__(
        self, objective: Objective | str, memory_bank_size: int | Sequence[int] = 0, gather_distributed: bool = False
    ) -> None:
        super().__init__()
        self.objective = as_objective(objective)
        bank = import_module("lightly.models.modules.memory_bank").MemoryBankModule
        self.memory_bank = bank(size=memory_bank_size, gather_distributed=gather_distributed)
        self.gather_distributed = gather_distributed

    def forward(self, *views: Tensor, **options: Any) -> Tensor:
        """Compute the loss of two or more views ``(batch, width)``; with a bank, of query and key.

        ``options`` are further arguments of the objective (``ids``, ``labels``, ...), for this process's samples.
        """
        call, args, options = _call(views, self.memory_bank, self.gather_distributed, options)
        return loss_of(self.objective, *args, call=call, **options)

    def extra_repr(self) -> str:
        return f"memory_bank_size={self.memory_bank.size}, gather_distributed={self.gather_distributed}"


def _call(views: tuple[Tensor, ...], bank: Any, gather: bool, options: dict[str, Any]) -> _Call:
    """How to call an objective with these views."""
    if bank is None or not bank.size[0]:
        return "forward", views, {"gather": gather, **options}
    if len(views) != 2:
        raise ValueError(f"{NAME}: a memory bank goes with two views, query and key, got {len(views)}.")
    query, key = (unit(widen(view)) for view in views)
    _, keys = bank(key, update=query.requires_grad)
    keys = keys.to(query)
    if not key.requires_grad:
        return "forward", (query, key), {"queue": keys.T, "normalize": False, **options}
    with torch.autocast(query.device.type, enabled=False):
        return "from_scores", ((query * key).sum(-1), query @ keys), options


def patch(objective: str | Seam) -> Seam:
    """Put an objective into the methods ``forward`` of lightly's classes."""
    seam = HOST.as_seam(objective)
    loss = import_module("lightly.loss")
    _patch_class(seam, loss.NTXentLoss, "infonce:t={!r}")
    _patch_class(seam, loss.DCLLoss, "infonce:t={!r},denominator=negatives")
    return seam


def _patch_class(seam: Seam, class_: Any, host_spec: str) -> None:
    """Replace the method rather than the class: subclasses, and names imported earlier, then have it too."""
    host_forward: Callable[[Any, Tensor, Tensor], Tensor] = class_.forward

    def forward(self: Any, out0: Tensor, out1: Tensor) -> Tensor:
        if getattr(self, "weight_fn", None) is not None:
            if seam.verifies:
                raise SeamError(
                    f"{NAME}: no objective has the weights of {type(self).__name__}, so there is nothing to compare "
                    "with: --verify is for NTXentLoss and DCLLoss."
                )
            if seam.spec == OWN_LOSS:
                seam.count()
                return host_forward(self, out0, out1)
        bank: Any = getattr(self, "memory_bank", None)
        state = [b.clone() for b in bank.buffers()] if bank is not None and seam.verifies else []

        def host_loss() -> Tensor:
            # our own loss has put the batch into the bank already
            for buffer, value in zip(bank.buffers() if state else (), state, strict=True):
                buffer.copy_(value)
            return host_forward(self, out0, out1)

        loss_fn = seam.objective(host_spec.format(self.temperature), self)
        call, args, options = _call((out0, out1), bank, self.gather_distributed, {})
        return seam.loss(loss_fn, host_loss, *args, call=call, **options)

    class_.forward = torch.compiler.disable(forward)  # the seam counts and writes, which compiled code cannot
    loss = "its own loss" if seam.spec == OWN_LOSS else seam.spec
    first = f"its own loss up to step {seam.verify}, then " if seam.verify and seam.spec != OWN_LOSS else ""
    seam.say(f"lightly.loss: {class_.__name__}.forward is now {first}{loss}")


HOST = Host(
    name=NAME,
    title="scripts that train with lightly (lightly-ai/lightly)",
    seam="lightly.loss: NTXentLoss.forward, or DCLLoss.forward, which DCLWLoss inherits",
    tensors="out0, out1 (B, width), not normalized, not divided by the temperature; NTXentLoss keeps the positive in "
    "the denominator, DCLLoss does not; 2B anchors, or B and a bank; gathered with gather_distributed=True",
    spec="infonce:t=0.5",
    tested="lightly 1.6.0, torch 2.15, torchvision 0.29; NTXentLoss since lightly 1.5.13, DCLLoss since 1.5.21; "
    "November 2026",
    evidence="lightly's own examples, unmodified; 5 steps of --verify: value within 5e-7, absolute; lightly's own "
    "tests",
    package="lightly",
    views="its criteria take two, and its scripts' transforms make two: change one line, criterion = "
    "counterpoint.plugins.lightly.ContrastiveLoss(...), which takes as many as lightly's MultiViewTransform makes",
    inputs="the criterion sees projections, not images",
    before=patch,
)
