"""lightly (lightly-ai/lightly): ``NTXentLoss``, ``DCLLoss`` and ``DCLWLoss``.

**The loss and its tensors.** See :data:`HOST`. ``NTXentLoss(memory_bank_size=(n, width))`` compares the first view
alone with a bank of earlier second views; ``gather_distributed=True`` compares a process's own anchors with every
process's views. Up to lightly 1.5.20 ``DCLLoss`` was another loss, which no objective reproduces.

**How to put an objective there.** The arguments of the method ``forward`` of these classes get the gradient of the
objective, see :mod:`counterpoint.plugins.embeddings`; the script's bank and gathering stay. By hand, change one line,
also for more than two views::

    criterion = counterpoint.plugins.lightly.ContrastiveLoss("hcl:t=0.5")
    criterion = counterpoint.plugins.lightly.ContrastiveLoss("hcl:t=0.1", (4096, 128), gather_distributed=True)

The weights of positives of ``DCLWLoss`` and of ``DCLLoss(weight_fn=...)`` stay in force for objectives of the family of
InfoNCE, and are refused for the others, which have none.

**What is not possible.** A negative temperature.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from counterpoint.base import Objective
from counterpoint.objectives.infonce import InfoNCE
from counterpoint.vectors import unit, widen

from .call import Call, checked_options, own_temperature
from .embeddings import Embeddings
from .host import OWN_LOSS, Host, Seam, SeamError

NAME = "lightly"

_Weights = Callable[[Tensor, Tensor], Tensor]


class ContrastiveLoss(nn.Module):
    """Any objective as a criterion with lightly's interface: ``criterion(out0, out1)``, or with more views.

    With ``infonce`` it is lightly's ``NTXentLoss``, with ``infonce:denominator=negatives`` its ``DCLLoss``, and beside
    ``weight_fn=negative_mises_fisher_weights`` its ``DCLWLoss``. The objective owns the temperature; lightly's defaults
    are 0.5, 0.1 and 0.1.

    Args:
        objective: an objective, a treatment or a spec. Without a bank it pairs the views as in its paper.
        memory_bank_size: ``(n, width)`` for a bank of ``n`` earlier second views, in lightly's own
            ``MemoryBankModule``; 0 for none. The second view enters the bank after the comparison, if the first view
            requires a gradient. A second view with a gradient keeps it; without one, as in MoCo, the bank is the
            objective's ``queue=``.
        gather_distributed: with a bank, every process's second views enter it (the same number each). Without one, a
            process's anchors are compared with every process's views, see ``gather=`` of an objective: the loss is
            that of one process with the whole batch, and so is the gradient, averaged over processes as DDP does.
        weight_fn: as lightly's: ``weight_fn(out0, out1)``, of normalized views, returns the ``(batch,)`` weights of the
            positives of ``out0``. It goes with two views, no bank, and objectives of the family of InfoNCE.

    >>> criterion = ContrastiveLoss("adnce:t=0.5,mu=0.7")  # doctest: +SKIP
    >>> loss = criterion(projection(x0), projection(x1))  # doctest: +SKIP
    """

    @checked_options
    def __init__(
        self,
        objective: Objective | str,
        memory_bank_size: int | Sequence[int] = 0,
        gather_distributed: bool = False,
        weight_fn: _Weights | None = None,
    ) -> None:
        super().__init__()
        self.objective: Objective = own_temperature(objective, NAME)
        self.weight_fn = weight_fn
        if weight_fn is not None:
            _check_has_weights(self.objective)
            if memory_bank_size:
                raise ValueError(f"{NAME}: weight_fn= goes without a memory bank, as in lightly's DCLLoss.")
        if memory_bank_size and (told := getattr(self.objective, "told", {})):
            raise ValueError(f"{NAME}: {self.objective}: the memory bank has no {' or '.join(told)} of its keys.")
        bank = import_module("lightly.models.modules.memory_bank").MemoryBankModule
        self.memory_bank: Any = bank(size=memory_bank_size, gather_distributed=gather_distributed)
        self.gather_distributed = gather_distributed

    def forward(self, *views: Tensor, **options: Any) -> Tensor:
        """Compute the loss of two or more views ``(batch, width)``; with a bank, of query and key.

        ``options`` are further arguments of the objective (``ids``, ``labels``, ...), for this process's samples.
        """
        keys = None
        if self.memory_bank.size[0]:
            if len(views) != 2:
                raise ValueError(f"{NAME}: a memory bank goes with two views, query and key, got {len(views)}.")
            updates = views[0].requires_grad and torch.is_grad_enabled()
            keys = self.memory_bank(unit(widen(views[1])), update=updates)[1].T
        return _call(views, keys, self.gather_distributed, self.weight_fn, **options).loss(self.objective)


def _call(views: Sequence[Tensor], bank: Tensor | None, gathers: bool, weight: _Weights | None, **options: Any) -> Call:
    """Return the call of an objective for these views, and for the bank's keys."""
    if bank is None and weight is None:
        return Call(views, {"gather": gathers, **options})
    if len(views) != 2:
        raise ValueError(f"{NAME}: weight_fn= goes with two views, got {len(views)}.")
    query, key = (unit(widen(view)) for view in views)
    if bank is None and weight is not None:
        weights = torch.stack([weight(query, key), weight(key, query)])
        return Call(views, {"gather": gathers, "positive_factor": weights, **options})
    assert bank is not None
    if unknown := {"ids", "labels", "guide", "log_q"}.intersection(options):
        own = "loss_fn(query, key, queue=cp.Keys(bank, ids=...), ids=...) has them"
        raise ValueError(f"{NAME}: the memory bank has no {' or '.join(sorted(unknown))} of its keys; {own}.")
    if not key.requires_grad:
        return Call((query, key), {"queue": bank.to(query), "normalize": False, **options})
    with torch.autocast(query.device.type, enabled=False):
        return Call(((query * key).sum(-1), query @ bank.to(query).T), options, method="from_scores")


def _check_has_weights(loss_fn: Objective) -> None:
    if not any(isinstance(part, InfoNCE) for part in loss_fn.modules()):
        raise SeamError(
            f"{NAME}: {loss_fn} has no weights of positives, as infonce, dcl, hcl and adnce have: leave out weight_fn, "
            "or use DCLLoss in place of DCLWLoss."
        )


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
        if self.temperature < 0:
            raise SeamError(f"{NAME}: no objective has a temperature of {self.temperature}.")
        bank, weight_fn = getattr(self, "memory_bank", None), getattr(self, "weight_fn", None)
        if weight_fn is not None and seam.spec != OWN_LOSS:
            _check_has_weights(seam.objective(self))
        # as they are before the batch enters the bank
        keys = bank.bank.clone() if bank is not None and bank.size[0] else None
        own, gather = host_spec.format(self.temperature), self.gather_distributed
        where = f"{class_.__name__}.forward"
        embeddings = Embeddings(seam, where, own, lambda *views: _call(views, keys, gather, weight_fn), self)
        return embeddings.returned(host_forward(self, *embeddings(out0, out1)))  # type: ignore[no-any-return]

    class_.forward = torch.compiler.disable(forward)  # the seam counts and writes, which compiled code cannot
    seam.say(f"replacing the gradient of the arguments of {class_.__name__}.forward in lightly.loss")


HOST = Host(
    name=NAME,
    title="scripts that train with lightly (lightly-ai/lightly)",
    seam="lightly.loss: NTXentLoss.forward, or DCLLoss.forward, which DCLWLoss inherits",
    tensors="out0, out1 (B, width), not normalized, not divided by the temperature; NTXentLoss keeps the positive in "
    "the denominator, DCLLoss does not; 2B anchors, or B and a bank; gathered with gather_distributed=True",
    spec="infonce:t=0.5",
    tested="lightly 1.6.0, torch 2.15, torchvision 0.29; NTXentLoss since lightly 1.5.13, DCLLoss since 1.5.21; "
    "November 2026",
    package="lightly",
    extra="image",
    views="its criteria take two, and its scripts' transforms make two: change one line, criterion = "
    "counterpoint.plugins.lightly.ContrastiveLoss(...), which takes as many as lightly's MultiViewTransform makes",
    inputs="the criterion sees projections, not images",
    before=patch,
)
