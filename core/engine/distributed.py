"""One batch over several processes: each holds some of the samples, and all are compared with all.

Called in every process with that process's part, ``loss_fn(z1, z2, gather=True)`` is the loss of the whole batch. It
uses the process group that torchrun, Lightning or Accelerate has set up.

* The value is that of one process with the whole batch, the same in all processes. So are statistics that an objective
  tracks.
* Gradients are those of one process with the whole batch once they are averaged over processes, as
  ``DistributedDataParallel`` and FSDP do. A learned temperature is a parameter like any other: let the same wrapper
  hold the objective, or average its gradient yourself.
* Processes may have different numbers of samples: the mean is over all anchors.
* A process computes with its own samples as anchors: ``1 / processes`` of the work.

=====================  ================================================================  =============================
``gather=``            what each process holds                                            what travels in a step
=====================  ================================================================  =============================
``True``, or a group   all keys                                                           the keys, and their gradient
``"ring"``             two parts of the keys at a time; similarities are computed again   the same, once for every pass
                       in the backward pass instead of being kept                         over the negatives
=====================  ================================================================  =============================

``("ring", group)`` is a ring over a group other than all processes. Without a process group, or in a group of one, the
batch is all there is: ``gather`` changes nothing, and the same script runs with one process or many.

A process that refuses its input ends the others with an error that names it. One that dies ends them with an error of
the process group, at the latest after the group's timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch import distributed as dist

from .. import checks

if TYPE_CHECKING:
    from ..batch.pairings import Batch

Group = Any
"""A ``torch.distributed.ProcessGroup``, which torch without distributed support does not know."""

# numbers that processes tell each other before a loss: sizes, and what they must agree on
LENGTH = 16

Gather = bool | str | tuple[str, Group] | Group
"""What ``gather=`` accepts."""


class Peers:
    """The processes that share a batch.

    Args:
        group: their process group.
        sizes: how many samples each of them has, in the order of ranks.
        ring: whether keys go round rather than to everyone.
    """

    def __init__(self, group: Group, sizes: Sequence[int], ring: bool = False) -> None:
        self.group, self.sizes, self.ring = group, list(sizes), ring
        self.rank, self.count = dist.get_rank(group), len(self.sizes)
        self.first = sum(self.sizes[: self.rank])
        self.total = sum(self.sizes)

    def gather(self, x: Tensor) -> Tensor:
        """The rows of all processes in the order of ranks; a process may have several rows per sample."""
        return _Gather.apply(x, self, self.rows(x))  # type: ignore[no-any-return]

    def mean(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """The weighted mean over the rows of all processes; averaged over processes, its gradient is the mean's."""
        x, weights = x.flatten(), torch.ones_like(x.flatten()) if weights is None else weights
        own = (x * weights).sum()
        both = self.across(torch.stack([own, weights.sum()]))
        total = both[1].clamp(min=1)
        return _Value.apply(own, both[0] / total, self.count / total)  # type: ignore[no-any-return]

    def across(self, x: Tensor, how: str = "sum") -> Tensor:
        """``x`` added up over processes, or its ``min`` or ``max``. A constant."""
        x = x.detach().clone()
        dist.all_reduce(x, getattr(dist.ReduceOp, how.upper()), group=self.group)
        return x

    def pass_on(self, x: Tensor, arriving: Tensor) -> list[Any]:
        """Sends ``x`` to the next process and receives from the one before; both are to be waited for."""
        there, here = (dist.get_global_rank(self.group, (self.rank + step) % self.count) for step in (1, -1))
        moves = [dist.P2POp(dist.isend, x, there, self.group), dist.P2POp(dist.irecv, arriving, here, self.group)]
        return dist.batch_isend_irecv(moves)

    def rows(self, x: Tensor) -> list[int]:
        """How many rows each process has of what is ``x`` in this one."""
        own = self.sizes[self.rank]
        each = len(x) // own if own else 1
        return [each * size for size in self.sizes]


class _Gather(torch.autograd.Function):
    """All processes' rows; backwards, each row gets the sum of the gradients that it has been given anywhere."""

    @staticmethod
    def forward(x: Tensor, peers: Peers, rows: list[int]) -> Tensor:
        most = max(rows)
        # collectives want the same number of rows everywhere
        everyone = x.new_empty(most * peers.count, *x.shape[1:])
        dist.all_gather_into_tensor(everyone, _padded(x.detach(), most), group=peers.group)
        if min(rows) == most:
            return everyone
        return torch.cat([part[:n] for part, n in zip(everyone.split(most), rows, strict=True)])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        _, ctx.peers, ctx.rows = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _Return.apply(grad, ctx.peers, ctx.rows), None, None


class _Return(torch.autograd.Function):
    """This process's rows of what all processes have for them, added up."""

    @staticmethod
    def forward(grad: Tensor, peers: Peers, rows: list[int]) -> Tensor:
        most = max(rows)
        if min(rows) < most:
            grad = torch.cat([_padded(part, most) for part in grad.split(rows)])
        own = grad.new_empty(most, *grad.shape[1:])
        dist.reduce_scatter_tensor(own, grad.contiguous(), group=peers.group)
        return own[: rows[peers.rank]]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        _, ctx.peers, ctx.rows = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _Gather.apply(grad, ctx.peers, ctx.rows), None, None


class _Value(torch.autograd.Function):
    """``value``, with the gradient of ``slope * x``."""

    @staticmethod
    def forward(x: Tensor, value: Tensor, slope: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return grad * slope, None, None


def _padded(x: Tensor, rows: int) -> Tensor:
    if len(x) == rows:
        return x.contiguous()
    return torch.cat([x, x.new_zeros(rows - len(x), *x.shape[1:])])


# ---- meeting -----------------------------------------------------------------------------------


def meet(gather: Gather, make: Callable[[], Batch]) -> Batch:
    """This process's batch, knowing those of the others."""
    group, ring = _chosen(gather)
    if group is None:
        return make()
    try:
        batch = make()
        facts = batch.facts() | {'gather="ring" (1) or not (0)': int(ring)}
    except Exception:
        _exchange(group, [0])
        raise
    seen = _exchange(group, [batch.size, *facts.values()])
    refused = [str(rank) for rank, row in enumerate(seen) if row[0] == 0]
    if refused:
        raise RuntimeError(f"gather: the batch of rank {', '.join(refused)} was refused; the error there says why.")
    for name, values in zip(facts, list(zip(*seen, strict=True))[1:], strict=True):
        if len(set(values)) > 1:
            told = ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(values))
            raise ValueError(f"gather: processes must agree on {name}, got {told}.")
    batch.share(Peers(group, [row[0] for row in seen], ring))
    return batch


def peers(gather: Gather, size: int) -> Peers | None:
    """The processes that share a batch of which this one has ``size`` samples; None if it is alone."""
    group, ring = _chosen(gather)
    if group is None:
        return None
    return Peers(group, [row[0] for row in _exchange(group, [size])], ring)


def gather(x: Tensor, group: Group = None) -> Tensor:
    """The rows of all processes, in the order of ranks.

    For losses of your own, and for what enters a queue, with its ids::

        queue.enqueue(cp.gather(key.detach()))

    A gradient finds its way back: a row gets the sum of what it has been given in all processes. So where every
    process computes the same loss from all rows, or the mean over its own anchors among all keys (batches of one size),
    gradients averaged over processes are those of one process with the whole batch.

    Args:
        x: ``(rows, ...)`` of a dtype that the group's backend can send; the number of rows may differ between
            processes.
        group: the process group, by default all processes.

    >>> import torch, counterpoint as cp
    >>> z = torch.randn(4, 8)
    >>> cp.gather(z) is z  # one process
    True
    """
    if checks.is_tensor(x, "gather").dim() == 0:
        raise ValueError("gather: expected a tensor of shape (rows, ...), got a single number.")
    found = peers(True if group is None else group, len(x))
    return x if found is None else found.gather(x)


def without_ring(gather: Gather) -> Gather:
    """The same processes, with all keys in each of them."""
    if gather == "ring":
        return True
    return gather[1] if isinstance(gather, tuple) and len(gather) == 2 else gather


def _chosen(gather: Gather) -> tuple[Group, bool]:
    """The group, None if there is nobody else, and whether it is to be a ring."""
    given = gather
    ring = given == "ring"
    if isinstance(given, tuple) and len(given) == 2 and given[0] == "ring":
        ring, given = True, given[1]
    if not dist.is_available():
        return None, ring
    if given == dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("gather: this process is no member of the group.")
    if given is not True and given != "ring" and not isinstance(given, dist.ProcessGroup):
        raise ValueError(f"gather: expected True, 'ring', a process group or ('ring', group), got {gather!r}.")
    if not dist.is_initialized():
        return None, ring
    group = given if isinstance(given, dist.ProcessGroup) else dist.group.WORLD
    return (group if dist.get_world_size(group) > 1 else None), ring


_controls: WeakKeyDictionary[Any, Group] = WeakKeyDictionary()


def _control(group: Group) -> Group:
    """A group of the same processes for tensors on the CPU, so that reading sizes never waits for an accelerator."""
    if "cpu:" in dist.get_backend_config(group):
        return group
    if group not in _controls:
        device = torch.device(dist.get_backend_config(group).split(":")[0])
        timeout = group._get_backend(device).options._timeout
        ranks = dist.get_process_group_ranks(group)
        _controls[group] = dist.new_group(ranks, timeout, backend="gloo", use_local_synchronization=True)
    return _controls[group]


def _exchange(group: Group, numbers: list[int]) -> list[list[int]]:
    """Every process's numbers."""
    control = _control(group)
    mine = torch.zeros(LENGTH, dtype=torch.long)
    mine[: len(numbers)] = torch.tensor(numbers)
    everyone = mine.new_empty(LENGTH * dist.get_world_size(group))
    dist.all_gather_into_tensor(everyone, mine, group=control)
    found: list[list[int]] = everyone.view(-1, LENGTH)[:, : len(numbers)].tolist()
    return found
