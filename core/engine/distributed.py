"""Compare a batch over several processes: each holds some of the samples, and all are compared with all.

Call ``loss_fn(z1, z2, gather=True)`` in every process with that process's samples: it is the loss of the whole batch.
It uses the process group that torchrun, Lightning or Accelerate has set up.

* The value is that of one process with the whole batch, the same in all processes. So are statistics that an objective
  tracks.
* Gradients are those of one process with the whole batch once they are averaged over processes, as
  ``DistributedDataParallel`` and FSDP do. A learned temperature is a parameter like any other: let the same wrapper
  contain the objective, or average its gradient yourself.
* Processes may have different numbers of samples: the mean is over all anchors.
* A process computes with its own samples as anchors, ``1 / world_size`` of the work, and stores all keys: 100 MB for
  32,768 keys of 768 columns in float32, 1.5 GB for a million in bfloat16.

``gather=`` is True for all processes, or a process group. Without one, or in a group of one, it changes nothing: the
same script runs with one process or many.
"""

import os
import warnings
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch import distributed as dist

from .. import checks

Group = Any  # a torch.distributed.ProcessGroup, which torch without distributed support does not define

# length of the list of numbers that processes exchange before a loss: sizes, and what they must agree on
LENGTH = 64

Gather = bool | Group  # what gather= accepts


class ProcessGroup:
    """The processes that share a batch: torch's group, and the number of samples of each, in the order of ranks."""

    def __init__(self, handle: Group, sizes: Sequence[int]) -> None:
        self.handle: Group = handle
        self.sizes: list[int] = [*sizes]
        self.rank: int = dist.get_rank(handle)
        self.world_size: int = len(sizes)
        self.total: int = sum(sizes)
        self.offset: int = sum(sizes[: self.rank])  # of the samples of this process among all

    def gather(self, x: Tensor) -> Tensor:
        """Return the rows of all processes in the order of ranks; a process may have several rows per sample."""
        own = self.sizes[self.rank]
        per_sample = len(x) // own if own else 1
        return _Exchange.apply(x, self, [per_sample * size for size in self.sizes], False)  # type: ignore[no-any-return]

    def mean(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Take the weighted mean of all processes' rows; averaged over processes, its gradient is the mean's."""
        x, weights = x.flatten(), torch.ones_like(x.flatten()) if weights is None else weights
        own = (x * weights).sum()
        sums = self.all_reduce(torch.stack([own, weights.sum()]))
        total = sums[1].clamp(min=1)
        return sums[0] / total + (own - own.detach()) * (self.world_size / total)

    def all_reduce(self, x: Tensor, op: str = "sum") -> Tensor:
        """Reduce ``x`` over processes by ``sum``, ``min`` or ``max``, without gradient."""
        x = x.detach().clone()
        dist.all_reduce(x, getattr(dist.ReduceOp, op.upper()), group=self.handle)
        return x


class _Exchange(torch.autograd.Function):
    """All processes' rows or, ``back``, the sum over processes of this process's; each is the gradient of the other."""

    @staticmethod
    def forward(x: Tensor, group: ProcessGroup, rows: list[int], back: bool) -> Tensor:
        most, uneven = max(rows), min(rows) < max(rows)  # collectives need equal numbers of rows
        if back:
            x = torch.cat([_padded(part, most) for part in x.split(rows)]) if uneven else x.contiguous()
            own = x.new_empty(most, *x.shape[1:])
            getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(own, x, group=group.handle)
            return own[: rows[group.rank]]
        gathered = x.new_empty(most * group.world_size, *x.shape[1:])
        gather_all = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # 2.13 warns of the old names
        gather_all(gathered, _padded(x.detach(), most), group=group.handle)
        return torch.cat([part[:n] for part, n in zip(gathered.split(most), rows, strict=True)]) if uneven else gathered

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        _, ctx.group, ctx.rows, ctx.back = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _Exchange.apply(grad, ctx.group, ctx.rows, not ctx.back), None, None, None


def _padded(x: Tensor, rows: int) -> Tensor:
    return x.contiguous() if len(x) == rows else torch.cat([x, x.new_zeros(rows - len(x), *x.shape[1:])])


def gather(x: Tensor, group: Group = None) -> Tensor:
    """Gather the rows of all processes, in the order of ranks.

    For losses of your own, and for what enters a queue, with its ids::

        queue.enqueue(cp.gather(key.detach()))

    Gradients flow back: the gradient of a row is the sum of its gradients in all processes. So where every process
    computes the same loss from all rows, or the mean over its own anchors among all keys (batches of one size),
    gradients averaged over processes are those of one process with the whole batch.

    Args:
        x: ``(rows, ...)`` of a dtype that the group's backend can send; the number of rows may differ between
            processes.
        group: the process group, by default all processes.

    >>> z = torch.randn(4, 8)
    >>> cp.gather(z) is z  # one process
    True
    """
    if checks.require_tensor(x, "gather").dim() == 0:
        raise ValueError("gather: expected a tensor of shape (rows, ...), got a single number.")
    handle = resolve(True if group is None else group)
    return x if handle is None else ProcessGroup(handle, [sizes[0] for sizes in exchange(handle, [len(x)])]).gather(x)


def resolve(gather: Gather) -> Group:
    """Return torch's process group, or None if this process is alone."""
    if not dist.is_available():
        return None
    if gather == dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("gather: this process is not a member of the group.")
    if gather is not True and not isinstance(gather, dist.ProcessGroup):
        raise ValueError(f"gather: expected True or a process group, got {gather!r}.")
    if not dist.is_initialized():
        if (started := os.environ.get("WORLD_SIZE", "1")) not in ("", "1"):
            why = "but no process group, so that each compares its own samples alone: dist.init_process_group() first"
            warnings.warn(f"gather: there are {started} processes (WORLD_SIZE), {why}.", stacklevel=2)
        return None
    handle = dist.group.WORLD if gather is True else gather
    return handle if dist.get_world_size(handle) > 1 else None


_cpu_groups: WeakKeyDictionary[Any, Group] = WeakKeyDictionary()


def cpu_group(handle: Group) -> Group:
    """Return a group of these processes for tensors on the CPU: reading sizes then never waits for an accelerator."""
    if "cpu:" in dist.get_backend_config(handle):
        return handle
    if handle not in _cpu_groups:
        device = torch.device(dist.get_backend_config(handle).split(":")[0])
        timeout = handle._get_backend(device).options._timeout
        ranks = dist.get_process_group_ranks(handle)
        _cpu_groups[handle] = dist.new_group(ranks, timeout, backend="gloo", use_local_synchronization=True)
    return _cpu_groups[handle]


def exchange(handle: Group, numbers: list[int]) -> list[list[int]]:
    """Return the numbers of every process, in the order of ranks."""
    own = torch.zeros(LENGTH, dtype=torch.long)
    own[: len(numbers)] = torch.tensor(numbers)
    gathered = own.new_empty(LENGTH * dist.get_world_size(handle))
    getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(gathered, own, group=cpu_group(handle))
    return gathered.view(-1, LENGTH)[:, : len(numbers)].tolist()
