"""What processes of test_distributed.py do with wrapped encoders, DTensors and counted collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from gathered import WIDTH, Trained, embeddings
from processes import part
from torch import Tensor
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

import counterpoint as cp

SEEDS, LAST = 4, 3


def accumulated(rank: int, sizes: list[int], last: list[int], way: str = "alone") -> dict[str, Tensor]:
    """Two steps of SGD, each on the summed gradients of two batches; the last one has other sizes.

    The encoder is wrapped in one ``way``: by ``ddp``, by ``fsdp``, or not, where one process has everything.
    """
    model = Trained()
    encoder: Any = model.encoder
    if way == "ddp":
        encoder = DistributedDataParallel(encoder)
    elif way == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(encoder, mesh=init_device_mesh("cpu", (len(sizes),)))
    optimizer = torch.optim.SGD(model.parameters(), 0.5)

    def add(seed: int) -> float:
        views = embeddings(seed)[0][:, part(last if seed == LAST else sizes, rank)]
        loss: Tensor = model.loss_fn(*map(encoder, views), gather=way != "alone")
        loss.backward()
        return loss.item()

    losses = []
    for first in range(0, SEEDS, 2):
        optimizer.zero_grad()
        with without_sync(encoder, way):
            losses.append(add(first))
        losses.append(add(first + 1))
        for parameter in model.loss_fn.parameters():
            if way != "alone":
                dist.all_reduce(parameter.grad)
                parameter.grad /= len(sizes)  # type: ignore[operator]
        optimizer.step()
    state = {k: x.full_tensor() if hasattr(x, "full_tensor") else x for k, x in model.state_dict().items()}
    return {"losses": torch.tensor(losses), **state}


@contextmanager
def without_sync(encoder: Any, way: str) -> Iterator[None]:
    """Leave gradients where they are."""
    if way == "ddp":
        with encoder.no_sync():
            yield
    elif way == "fsdp":
        encoder.set_requires_gradient_sync(False)
        yield
        encoder.set_requires_gradient_sync(True)
    else:
        yield


def wrapped_both_ways(rank: int, sizes: list[int], last: list[int]) -> list[dict[str, Tensor]]:
    return [accumulated(rank, sizes, last, way) for way in ("ddp", "fsdp")]


# ---- DTensors ---------------------------------------------------------------------------------------


def of_dtensors(rank: int) -> dict[str, str]:
    """What is said of DTensors, and the loss of their local parts."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh, (z, _) = init_device_mesh("cpu", (2,)), embeddings()
    sharded = [distribute_tensor(x, mesh, [Shard(0)]) for x in z]
    found = {"loss": repr(cp.InfoNCE(0.3)(*(x.to_local() for x in sharded), gather=True).item())}
    calls = {"view": lambda: cp.InfoNCE()(*sharded), "queue": lambda: cp.InfoNCE()(*z, queue=sharded[0])}
    for name, call in calls.items():
        try:
            call()
        except TypeError as error:
            found[name] = str(error)
    return found


# ---- collectives ------------------------------------------------------------------------------------

COLLECTIVES = ("all_gather", "all_reduce", "all_to_all", "barrier", "batch_isend", "broadcast", "gather", "isend",
               "reduce", "scatter", "send")  # fmt: skip


def collectives(rank: int, sizes: list[int]) -> dict[str, Any]:
    """Every collective of a step, and how many elements this process has of it."""
    seen: list[tuple[str, int]] = []

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **how: Any) -> Any:
            seen.append((name, args[1].numel() if isinstance(args[1], Tensor) else args[0].numel()))
            return call(*args, **how)

        return counting

    names = [n for n in dir(dist) if n.startswith(COLLECTIVES) and callable(getattr(dist, n))]
    before = {name: getattr(dist, name) for name in names}
    found: dict[str, Any] = {}
    draw = torch.Generator().manual_seed(rank)
    try:
        for name in names:
            setattr(dist, name, counted(name, before[name]))
        for pairing, more in (("views", {}), ("one_way", {}), ("symmetric", {}), ("one_way", {"negatives": 3})):
            seen.clear()
            z = torch.randn(2, sizes[rank], WIDTH, generator=draw, requires_grad=True)
            how = {k: torch.randn(sizes[rank], n, WIDTH, generator=draw, requires_grad=True) for k, n in more.items()}
            loss = cp.InfoNCE()(*z, pairing=pairing, gather=True, **how)
            forward = [*seen]
            loss.backward()
            found[" with ".join([pairing, *more])] = forward, seen[len(forward) :]
    finally:
        for name, call in before.items():
            setattr(dist, name, call)
    return found
