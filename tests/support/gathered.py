"""What the processes of test_distributed.py and test_grad_cache.py do."""

from __future__ import annotations

import datetime
import json
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from processes import part
from specs import keyed
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

import counterpoint as cp
from counterpoint.engine import distributed

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
        "index": torch.arange(total) * 7,
        "guide": normal(VIEWS),
        "negative_guide": normal(3),
        "log_q": torch.rand(total, generator=draw, dtype=torch.float64) - 3,
        "negative_log_q": torch.rand(total, 3, generator=draw, dtype=torch.float64) - 4,
    }


def step(case: Case, total: int, rows: slice, gather: Any, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Two training steps on some rows of a batch: the second one's loss, gradients, learned and tracked values."""
    spec, count, names, more = case
    loss_fn = cp.objective(spec).to(dtype)
    whole = {name: x.to(dtype) if x.is_floating_point() else x for name, x in given(total).items()}
    if "duplicates" in names:  # the largest similarity several times, in different processes too
        whole["views"][1:] = whole["views"][:1]
    how = {name: whole[name][rows].clone() for name in names if name in whole}
    if "guide" in how:
        how["guide"] = how["guide"][:, :count]
    leaves = {k: v.requires_grad_() for k, v in how.items() if k in ("adversarial", "mixed", "negatives")}
    found: dict[str, Tensor] = {}
    for shift in (1.0, 0.7):
        leaves["views"] = (whole["views"][rows][:, :count] + shift).requires_grad_()
        loss = loss_fn(*leaves["views"].unbind(1), gather=gather, **keyed(how | more))
        grads = torch.autograd.grad(loss, [*leaves.values(), *loss_fn.parameters()], allow_unused=True)
    found["loss"] = loss.detach()
    for name, leaf, grad in zip(leaves, leaves.values(), grads, strict=False):
        found[f"gradient of {name}"] = torch.zeros_like(leaf) if grad is None else grad
    for (name, _), grad in zip(loss_fn.named_parameters(), grads[len(leaves) :], strict=True):
        found[f"slope of {name}"] = grad
    return found | {f"state {name}": value for name, value in loss_fn.state_dict().items()}


def all_steps(rank: int, jobs: list[tuple[Case, list[int], Any]]) -> list[dict[str, Tensor]]:
    return [step(case, sum(sizes), part(sizes, rank), gather) for case, sizes, gather in jobs]


# ---- groups, reports, helpers ----------------------------------------------------------------------

UNEVEN = [1, 6]


def halves(rank: int) -> dict[str, Any]:
    """Four processes as two pairs, each with a batch of its own."""
    pairs = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    own, (z, _) = pairs[rank // 2], embeddings()
    rows = part(UNEVEN, rank % 2)
    found = {}
    found["all"] = cp.HCL()(*(z + rank // 2)[:, rows], gather=own).item()
    try:
        cp.HCL()(*z, gather=pairs[1 - rank // 2])
    except ValueError as error:
        found["no member"] = str(error)
    return found


def embeddings(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two views and class numbers of seven samples."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(2, 7, WIDTH, generator=draw, dtype=torch.float64), torch.arange(7) % 3


def sogclr_steps(rank: int, sizes: list[int]) -> dict[str, Tensor]:
    """Ten steps of gradient descent over twelve samples, whose process changes: encoders, states and the last loss."""
    draw = torch.Generator().manual_seed(0)
    data, start = (torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in ((2, 12, 9), (9, WIDTH)))
    found = {}
    for spec in ("sogclr:t=0.1,size=12", "isogclr:t=0.1,size=12", "isogclr:t=0.1,size=12,average=sample"):
        loss_fn, weight = cp.objective(spec).double(), start.clone().requires_grad_()
        orders = torch.Generator().manual_seed(1)
        for _ in range(10):
            index = torch.randperm(12, generator=orders)[: sum(sizes)][part(sizes, rank)]
            loss = loss_fn(*(data[:, index] @ weight), index=index, pairing="symmetric", gather=len(sizes) > 1)
            (slope,) = torch.autograd.grad(loss, weight)
            if len(sizes) > 1:
                dist.all_reduce(slope)
            weight.data -= 0.5 * slope / len(sizes)
        found |= {f"{spec}: encoder": weight.detach(), f"{spec}: loss": loss.detach()}
        found |= {f"{spec}: {name}": value for name, value in loss_fn.state_dict().items()}
    return found


def penalty(views: Tensor, **how: Any) -> Tensor:
    """Gradient of the squared length of a loss's gradient."""
    views = views.clone().requires_grad_()
    (slope,) = torch.autograd.grad(cp.InfoNCE()(*views, **how), views, create_graph=True)
    (found,) = torch.autograd.grad(slope.square().sum(), views)
    return found


def compiled(rank: int) -> dict[str, list[Tensor]]:
    """Value and gradients of a gathered loss with a learned temperature, in compiled code and without."""
    found: dict[str, list[Tensor]] = {}
    for name in ("compiled", "plain"):
        z = embeddings()[0][:, part(UNEVEN, rank)].clone().requires_grad_()
        loss_fn = cp.InfoNCE(cp.Learned(0.2))
        step = torch.compile(loss_fn, backend="aot_eager") if name == "compiled" else loss_fn
        loss = step(*z, gather=True)
        gradients = torch.autograd.grad(loss, [z, *loss_fn.parameters()])
        found[name] = [loss.detach(), *gradients]
    return found


def helpers(rank: int) -> dict[str, Any]:
    rows, (z, ids) = part(UNEVEN, rank), embeddings()
    own = z[0, rows].clone().requires_grad_()
    everyone = cp.gather(own)
    (everyone * (rank + 1)).sum().backward()
    found = {
        "rows": everyone.detach(),
        "gradient": own.grad,
        "ids": cp.gather(ids[rows]),
        "flags": cp.gather(ids[rows] > 0),
        "nothing on one": cp.gather(ids[rows][: 6 * rank]),
        "each": cp.InfoNCE()(*z[:, rows], gather=True, reduction="none"),
        "second derivative": penalty(z[:, rows], gather=True, engine="matrix"),
    }
    for spec in ("adnce:mu=auto + 0.1*dp", "hcl:prior=0.3"):
        found[f"report {spec}"] = cp.objective(spec).report(*z[:, rows], gather=True)
    # a group that knows no tensors on the CPU, as NCCL's
    control = distributed.cpu_group(dist.new_group(backend="cuda:gloo"))
    mine, every = torch.tensor([rank]), torch.zeros(2, dtype=torch.long)
    dist.all_gather_into_tensor(every, mine, group=control)
    found["control"] = every
    return found


# ---- training ---------------------------------------------------------------------------------------


class Trained(nn.Module):
    """An encoder, and an objective with a temperature to be trained."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 4)).double()
        self.loss_fn = cp.objective("adnce:t=learned(0.3,0.1,1),mu=auto + 0.1*dp").double()

    def forward(self, views: Tensor, **how: Any) -> Tensor:
        loss: Tensor = self.loss_fn(*map(self.encoder, views), **how)
        return loss


def trained(rank: int, sizes: list[int], gather: bool = True) -> dict[str, Tensor]:
    """Three steps of SGD, the objective inside the wrapper."""
    model = Trained()
    wrapped = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    losses = []
    for seed in range(3):
        optimizer.zero_grad()
        loss = wrapped(embeddings(seed)[0][:, part(sizes, rank)], gather=gather)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": torch.tensor(losses), **model.state_dict()}


def cached(rank: int, sizes: list[int], unused: bool = False) -> dict[str, Tensor]:
    """Three steps of SGD with the encoder in chunks, of which processes have different numbers."""
    encoder: Any = Trained().encoder
    if unused:
        encoder.register_parameter("unused", nn.Parameter(torch.zeros(3)))
    averaged: list[int] = []
    wrapped = encoder
    if dist.is_initialized():
        wrapped = DistributedDataParallel(encoder, find_unused_parameters=unused)
        wrapped.register_comm_hook(averaged, counted)
    optimizer = torch.optim.SGD(encoder.parameters(), 0.5)
    for seed in range(3):
        optimizer.zero_grad()
        views = embeddings(seed)[0][:, part(sizes, rank)]
        loss = cp.HCL()(*(cp.gradcache(wrapped, x, chunk=2) for x in views), gather=True)
        loss.backward()
        optimizer.step()
    return {**encoder.state_dict(), "averaged": torch.tensor(averaged.count(0))}


def counted(averaged, bucket):  # torch looks at annotations of hooks, and refuses those that are text
    """Averages as DistributedDataParallel does by itself, and notes which bucket of gradients it was."""
    averaged.append(bucket.index())
    work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def cached_all_ways(rank: int, sizes: list[int]) -> list[dict[str, Tensor]]:
    return [cached(rank, sizes), cached(rank, sizes, unused=True)]


def enqueued(rank: int, sizes: list[int]) -> dict[str, Tensor]:
    """Three steps with a queue of earlier keys, as in MoCo."""
    loss_fn = cp.objective("adnce:t=0.3,sigma=auto").double()
    queue, queue_ids = BANK.clone(), torch.arange(7) % 3
    losses = []
    for seed in range(3):
        z, ids = embeddings(seed)
        (query, key), ids = z[:, part(sizes, rank)], ids[part(sizes, rank)]
        losses.append(loss_fn(query, key, queue=cp.Keys(queue, ids=queue_ids), ids=ids, gather=True).item())
        queue = torch.cat([cp.gather(key), queue])[:9]
        queue_ids = torch.cat([cp.gather(ids), queue_ids])[:9]
    return {"losses": torch.tensor(losses), "queue": queue, "ids": queue_ids}


# ---- failures ---------------------------------------------------------------------------------------


class Interrupted(cp.InfoNCE):
    """Something happens to the second process between the collectives of a step."""

    def losses(self, scores: cp.Scores) -> Tensor:
        if dist.get_rank() == 1:
            happen()
        return super().losses(scores)


def happen() -> None:
    raise NotImplementedError


def killed(rank: int) -> None:
    global happen

    def happen() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    Interrupted()(*embeddings()[0][:, part(UNEVEN, rank)], gather=True)


def stuck(rank: int, folder: str) -> None:
    global happen
    dist.barrier()  # so that the short timeout does not include the start of the processes
    group = dist.new_group(timeout=datetime.timedelta(seconds=5))

    def happen() -> None:
        while not Path(folder, "0.pt").exists():  # until the other one has given up
            time.sleep(0.1)
        raise SystemExit(1)

    Interrupted()(*embeddings()[0][:, part(UNEVEN, rank)], gather=group)


def refused(rank: int, what: str) -> None:
    z, ids = embeddings()
    z, ids = z[:, part(UNEVEN, rank)].clone(), ids[part(UNEVEN, rank)]
    how: dict[str, Any] = {"gather": True}
    if what == "nan" and rank == 1:
        z[0, 3, 2] = torch.nan
    elif what == "empty" and rank == 1:
        z = z[:, :0]
    elif what == "width" and rank == 1:
        z = z[..., :3]
    elif what == "ids" and rank == 1:
        how["ids"] = ids
    elif what == "gradient" and rank == 1:
        z.requires_grad_()
    elif what == "classes" and rank == 1:
        how["labels"] = ids
    elif what == "positives":
        z, how["labels"] = z[:1], 10 * rank + torch.arange(z.shape[1])
    loss_fn = cp.InfoNCE(cp.Learned(0.5)) if what == "learned" else cp.InfoNCE(0.5 + rank * (what == "settings"))
    if what == "learned":
        loss_fn(*z, gather=True)  # as long as they agree
        with torch.no_grad():
            next(loss_fn.parameters()).add_(0.1 * rank)
    loss_fn(*z, **how)


# ---- memory -----------------------------------------------------------------------------------------

SAMPLES, HIDDEN, LAYERS = 4096, 128, 64


def memory(rank: int, chunk: int) -> int:
    """Peak of PyTorch's own count of its memory in a step, in KiB; the process's memory depends on the machine."""
    layers = [m for _ in range(LAYERS // 2) for m in (nn.Linear(HIDDEN, HIDDEN), nn.GELU())]
    encoder, x = nn.Sequential(*layers), torch.randn(SAMPLES, HIDDEN)
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu, profile_memory=True) as profiler:
        z = cp.gradcache(encoder, x, chunk=chunk) if chunk else encoder(x)
        z.square().sum().backward()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text())["traceEvents"]
    held = [event["args"]["Total Allocated"] for event in events if event["name"] == "[memory]"]
    return (max(held) - held[0]) // 1024
