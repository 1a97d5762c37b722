"""Train small networks with many seeds in one call, by ``torch.func.vmap`` over networks and objectives."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

import counterpoint as cp
from counterpoint.integrations.store.progress import track

Options = Callable[[int], dict[str, Any]]


class MLP(nn.Module):
    """An encoder of two layers, and a projector that only the loss sees."""

    def __init__(self, width: int, hidden: int = 64, out: int = 32) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, out))
        self.projector = nn.Sequential(nn.ReLU(), nn.Linear(out, out))

    def forward(self, x: Tensor, project: bool = True) -> Tensor:
        z: Tensor = self.encoder(x)
        return self.projector(z) if project else z


class Networks:
    """Networks of one shape with stacked parameters, one per seed.

    Args:
        build: returns a module whose ``forward(x, project)`` computes embeddings for the loss, or features.
        seeds: the seed of each network's initial weights.
    """

    def __init__(self, build: Callable[[], nn.Module], seeds: Sequence[int]) -> None:
        modules = []
        with torch.random.fork_rng(devices=()):
            for seed in seeds:
                torch.manual_seed(seed)
                modules.append(build())
        self.parameters: dict[str, Tensor] = stack_module_state(modules)[0]
        self.template = copy.deepcopy(modules[0]).to("meta")

    def __call__(self, x: Tensor, project: bool = True) -> Tensor:
        """Compute ``(seeds, n, width)`` of ``(seeds, n, ...)``, each by the network of its seed."""
        one = lambda parameters, x: functional_call(self.template, parameters, (x, project))  # noqa: E731
        return vmap(one)(self.parameters, x)  # type: ignore[no-any-return]

    def features(self, x: Tensor, chunk: int = 4096) -> Tensor:
        """Compute the features ``(seeds, n, width)`` of inputs ``(n, ...)`` that all networks see."""
        seeds = len(next(iter(self.parameters.values())))
        with torch.no_grad():
            return torch.cat([self(part.expand(seeds, *part.shape), project=False) for part in x.split(chunk)], 1)


@dataclass(frozen=True)
class Batches:
    """What each seed sees in each step: rows of a table of inputs.

    Args:
        rows: ``(steps, seeds, views, B)``.
        samples: ``(steps, seeds, B)``, the sample of each column.
        negatives: ``(steps, seeds, B, n)`` rows of hard negatives.
    """

    rows: Tensor
    samples: Tensor
    negatives: Tensor | None = None

    def repeat(self, times: int) -> Batches:
        """Return the same batches for ``times`` copies of the seeds."""
        negatives = None if self.negatives is None else self.negatives.repeat(1, times, 1, 1)
        return Batches(self.rows.repeat(1, times, 1, 1), self.samples.repeat(1, times, 1), negatives)


def draw(views: Tensor, steps: int, batch: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw the batches of one seed, without repetition within an epoch.

    Args:
        views: ``(samples, P)`` rows of the table that show each sample; ``count`` different ones are drawn, in random
            order unless that is all of them.

    Returns:
        ``(steps, count, B)`` rows and ``(steps, B)`` samples.
    """
    total, shown = views.shape
    per_epoch = total // batch
    if not per_epoch or count > shown:
        raise ValueError(f"expected at least {batch} samples with {count} views each, got {total} with {shown}.")
    epochs = [torch.randperm(total, generator=generator)[: per_epoch * batch] for _ in range(-(-steps // per_epoch))]
    samples = torch.cat(epochs).view(-1, batch)[:steps]
    which = torch.rand(steps, batch, shown, generator=generator).topk(count).indices
    if count == shown:
        which = torch.arange(count).expand_as(which)
    return views[samples.unsqueeze(-1), which].transpose(1, 2), samples


def train(
    networks: Networks,
    loss_fn: nn.Module,
    table: Tensor,
    batches: Batches,
    *,
    lr: float = 3e-3,
    call: Mapping[str, Any] | None = None,
    constants: Mapping[str, Tensor] | None = None,
    options: Options | None = None,
    title: str | None = None,
) -> Tensor:
    """Train the networks in place with Adam; return the losses ``(steps, seeds)``.

    Every seed has its own batches, optimizer state, learned hyper-parameters and tracked statistics; the result is
    that of a loop over seeds.

    Args:
        loss_fn: an objective, or a module that is called like one.
        table: ``(rows, ...)`` inputs, shared by all seeds.
        batches: the rows of each step. Hard negatives are passed as ``negatives=``, :class:`counterpoint.Keys`.
        call: arguments of each call, such as ``pairing``.
        constants: values per seed of learned hyper-parameters that are not trained, by the name of their parameter:
            with them, seeds train with different values in the same call.
        options: from the number of a step to tensors for each seed, such as ids, which are passed as well. ``of_hard``
            is known of hard negatives.
        title: of the progress, which is not shown without one.
    """
    loss_fn.train()
    seeds, constants = batches.rows.shape[1], constants or {}
    tensors = dict(loss_fn.named_parameters()) | dict(loss_fn.named_buffers())  # shared ones once
    state = {name: x.detach().expand(seeds, *x.shape).clone() for name, x in tensors.items()}
    state |= {name: values.to(table) for name, values in constants.items()}
    learned = [state[name].requires_grad_() for name, _ in loss_fn.named_parameters() if name not in constants]
    buffers = [name for name, _ in loss_fn.named_buffers()]

    def one(state: dict[str, Tensor], views: Tensor, options: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        state, options = dict(state), {**(call or {}), **options}
        if "negatives" in options:
            options["negatives"] = cp.Keys(options["negatives"], **options.pop("of_hard", {}))
        loss = functional_call(loss_fn, state, tuple(views), options)  # a tracked value replaces its entry of state
        return loss, {name: state[name].detach() for name in buffers}

    adam = torch.optim.Adam([*networks.parameters.values(), *learned], lr=lr, fused=True)
    losses = []
    steps = range(len(batches.rows))
    for step in steps if title is None else track(steps, title):
        rows = batches.rows[step]  # (seeds, views, B)
        shown, arguments = rows.flatten(1), options(step) if options else {}
        if batches.negatives is not None:
            shown = torch.cat([shown, batches.negatives[step].flatten(1)], 1)
        z = networks(table[shown])
        if batches.negatives is not None:
            arguments["negatives"] = z[:, rows[0].numel() :].unflatten(1, batches.negatives.shape[2:])
        loss, tracked = vmap(one)(state, z[:, : rows[0].numel()].unflatten(1, rows.shape[1:]), arguments)
        state |= tracked
        adam.zero_grad()
        loss.sum().backward()
        adam.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def knn_accuracy(train: Tensor, labels: Tensor, test: Tensor, test_labels: Tensor, k: int = 20) -> Tensor:
    """Compute the percentage of each seed's test features whose ``k`` nearest neighbors vote for their label.

    Args:
        train: ``(seeds, n, width)`` features; ``labels``: ``(seeds, n)`` whole numbers.
        test: ``(seeds, m, width)`` features; ``test_labels``: ``(seeds, m)`` or ``(m,)``.
    """
    accuracies = []
    classes = int(max(labels.max(), test_labels.max())) + 1
    parts = (nn.functional.normalize(train, dim=-1), labels, nn.functional.normalize(test, dim=-1))
    for a, y, b, truth in zip(*parts, test_labels.expand(len(test), -1), strict=True):
        near = (b @ a.T).topk(min(k, len(a)))
        votes = torch.zeros(len(b), classes).scatter_add_(1, y[near.indices], (near.values / 0.1).exp())
        accuracies.append(100 * (votes.argmax(1) == truth).float().mean())
    return torch.stack(accuracies)
