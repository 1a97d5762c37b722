"""Compare a loss and its gradients with the reference's, up to what rounding explains."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import reference
import torch
from interpreted import kernels_everywhere
from specs import called, of_tiles

import counterpoint as cp

from .draws import at_now, at_temperature, counts, moving, temperatures, wraps_paper


def engine(name: str) -> AbstractContextManager[None]:
    """Let the kernels, in Triton's interpreter, compute whatever they can."""
    return kernels_everywhere() if name == "kernels" else nullcontext()


@contextmanager
def reading(values: bool) -> Iterator[None]:
    """Let values be read, as on a CPU, or not, as on an accelerator, where NaN stands for most errors."""
    cp.set_checks("auto" if values else "never")
    try:
        yield
    finally:
        cp.set_checks("auto")


def gradients(loss: torch.Tensor, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    if not loss.requires_grad:
        return [torch.zeros_like(x) for x in leaves]
    found = torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]


def value_and_gradients(loss: torch.Tensor, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    return [x.detach().double() for x in (loss, *gradients(loss, leaves))]


Noise = Callable[[torch.Tensor], torch.Tensor]
# of an objective's data, the leaves in float64, and what disturbs the similarities
Reference = Callable[[Any, list[torch.Tensor], Noise], torch.Tensor]


def compare(
    name: str,
    q: Any,
    loss: torch.Tensor,
    exact_loss: Reference,
    leaves: list[torch.Tensor],
    eps: float,
    sizes: list[float],
    how: str,
    moved: Sequence[torch.Tensor],
    cancels: bool = False,
) -> None:
    """Assert that value and gradients are the reference's, up to what rounding similarities to ``eps`` does to them.

    Several times, every similarity of the reference is disturbed by at most two roundings. The largest change that this
    makes is the condition of the problem; a sum of a few hundred terms may be 24 times as far off. To that come the
    roundings of the result itself, and those on the way from the similarities to the leaf, whose gradients may cancel.

    Args:
        name: the objective, for messages.
        q: the objective's data, as the reference takes it.
        loss: ours.
        exact_loss: the reference's.
        leaves: what gradients are compared of.
        eps: the precision of the similarities.
        sizes: how much an error of all similarities' gradients can grow on its way to each leaf.
        how: what the temperatures are, see :func:`moving`.
        moved: what is trained and moves all temperatures: their logarithms, or the scale of the logits.
        cancels: whether a positive is in the numerator and, apart from it, in the denominator, so that its gradient is
            a difference of numbers of the size of one over the temperature.
    """
    sign, at_first = -1 if how == "host" else 1, q
    log_t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    q = at_temperature(q, lambda t: t * (sign * log_t).exp()) if moved else q
    values = value_and_gradients(loss, [*leaves, *moved])
    found = values[: 1 + len(leaves)]
    if moved:
        found.append(sum(g * x.detach() if sign < 0 else g for g, x in zip(values[len(found) :], moved, strict=True)))
    doubles = [x.detach().double().requires_grad_() for x in leaves]
    exact_leaves = [*doubles, *[log_t] * bool(moved)]
    random = torch.Generator().manual_seed(0)
    sizes_of_s: list[float] = []
    pull = total = 0.0  # the largest that similarities pull at one embedding, and at the temperature

    def uniform(shape: Sequence[int] = ()) -> torch.Tensor:
        return 2 * torch.rand(shape, generator=random, dtype=torch.float64) - 1

    def reference_values(roundings: int) -> list[torch.Tensor]:
        nonlocal pull, total
        matrices = []

        def disturb(s: torch.Tensor) -> torch.Tensor:
            size = max(float(s.detach().abs().max()), 1.0)  # distances, 1 - s, are rounded like numbers of size one
            sizes_of_s.append(size)
            matrices.append(s + roundings * eps * size * uniform(s.shape))
            return matrices[-1]

        # the value of a schedule is a float32
        scalar = roundings * torch.finfo(torch.float32).eps if how == "schedule" else 0.0
        exact = exact_loss(at_temperature(q, lambda t: t * (1 + scalar * float(uniform()))), doubles, disturb)
        pulls = [g.abs() for g in gradients(exact, matrices)]
        pull = max(pull, sum(float(g.sum(1).max() + g.sum(0).max()) for g in pulls))
        total = max(total, sum(float((g * s.detach().abs()).sum()) for g, s in zip(pulls, matrices, strict=True)))
        return value_and_gradients(exact, exact_leaves)

    def wrong(exact: list[torch.Tensor], draws: list[list[torch.Tensor]]) -> str | None:
        """What is further off than rounding explains, if anything is."""
        for at, (ours, right) in enumerate(zip(found, exact, strict=True)):
            scale = float(right.abs().max())
            near = [one[at] for one in draws if one[at].isfinite().all()]  # others have left the formula's domain
            spread = max((float((one - right).abs().max()) for one in near), default=0.0)
            tiny = torch.finfo(torch.float64 if eps < 1e-9 else torch.float32).tiny
            allowed, what = 24 * terms * spread + 200 * eps * (scale + (at == 0)) + 2 * tiny, "value"
            if 0 < at <= len(leaves):
                kind, what = torch.finfo(leaves[at - 1].dtype), f"gradient of leaf {at}"
                pulled = (64 + exponents / 4) * (pull + cancelling) * sizes[at - 1]
                allowed += eps * pulled + 2 * kind.eps * scale + 2 * kind.tiny
            elif at:
                kind, what = torch.finfo(moved[0].dtype), "gradient of the temperature"
                allowed += 128 * eps * (total + cancelling) + 2 * kind.eps * scale
            # both may be infinite, the gradient of a float16 leaf already where the reference's is not
            beyond = right.to(leaves[at - 1].dtype) if 0 < at <= len(leaves) else right
            edge = torch.finfo(beyond.dtype).max - allowed  # from which on rounding decides
            equal = (ours == right) | (ours.isinf() & ((ours == beyond) | (right.abs() > edge)))
            error = float(torch.where(equal, 0.0, ours - right).abs().max())
            if not error <= allowed:
                return f"{name}, {what}: off by {error:.3g}, allowed {allowed:.3g}; {ours} != {right}"
        return None

    # ArCL's positive, all of SupCon's and all soft targets are in the denominator too: their gradients cancel
    lowest = 1e-3 if '"radius": 0' in json.dumps(q, default=str) else min(map(float, temperatures(at_first)), default=1)
    own = any(f'"{name}"' in json.dumps(q, default=str) for name in ("supcon", "soft"))
    cancelling = 1 / lowest if wraps_paper(q) or own or cancels else 0.0
    powers = map(float, re.findall('"q": ([0-9.]+)', json.dumps(q, default=str)))  # RINCE is a difference of two
    cancelling = max(cancelling, *(math.exp(min(power / lowest, 60)) / lowest for power in powers), 0.0)
    # terms of a sum see the same rounding of the similarities, but each draw disturbs them apart
    terms = len(q["terms"]) if q["name"] == "sum" else 1
    exact, *draws = [reference_values(roundings) for roundings in (0, 2, 2, 2)]
    betas = map(float, re.findall('"beta": ([0-9.]+)', json.dumps(q, default=str)))
    # a log-sum-exp is rounded like its exponents, and so are the weights that the backward pass makes of it
    exponents = max(sizes_of_s) * (1 + max(betas, default=0.0)) / min(map(float, temperatures(at_first)), default=1.0)
    if wrong(exact, draws):  # at a floor, three draws may all fall to one side
        draws += [reference_values(2) for _ in range(30)]
    message = wrong(exact, draws)
    assert message is None, message


def trained(case: dict[str, Any], loss_fn: cp.Objective) -> list[torch.Tensor]:
    """The temperatures whose gradients are compared."""
    # both uses of alpha-CL's weights, and of soft targets' temperature, have gradients that cancel, whatever those of
    # the similarities are
    cancel = any(name in str(loss_fn) for name in ("alphacl", "soft:"))
    return [] if cancel and case["dtype"] != "float64" else [*loss_fn.parameters()]


def check_call(
    case: dict[str, Any],
    batch: reference.Batch,
    options: dict[str, Any],
    leaves: list[torch.Tensor],
    pairing: str | None,
) -> None:
    """Assert that the loss of a batch is the reference's.

    Args:
        case: the objective, the engine and the types of the numbers.
        batch: the embeddings and what is known of them.
        options: the same as arguments of the call.
        leaves: what gradients are compared of.
        pairing: as the reference takes it.
    """
    how = case["temperature"]
    loss_fn = cp.from_dict(moving(case["objective"], how)).double()
    tile = {"matrix": 0, "tiles": case["tile"]}.get(case["engine"])
    with engine(case["engine"]), warnings.catch_warnings(), reading(case["read"]):
        warnings.simplefilter("ignore")  # such as of ArCL with two views
        uniform = "labels" not in options and "positives" not in options and case["objective"]["name"] != "sum"
        reduction = case["reduction"] if uniform else "mean"
        how_called = {**options, "engine": of_tiles(tile), "reduction": reduction}
        loss = called(loss_fn, batch.views, how_called).mean()
        moved = trained(case, loss_fn)
        reach = max(float(v.detach().double().abs().max()) for v in batch.views)
        sizes = [1 / float(x.detach().double().norm(dim=-1).min()) if batch.normalize else reach for x in leaves]

        def exact_loss(q: Any, doubles: list[torch.Tensor], noise: Noise) -> torch.Tensor:
            wide = {id(x): double for x, double in zip(leaves, doubles, strict=True)}
            parts = {name: wide.get(id(x), x) for name, x in vars(batch).items()}
            parts["views"] = [wide.get(id(x), x) for x in batch.views]
            return reference.batch_loss(q, reference.Batch(**parts), pairing, noise)

        for what in ("engine", "dtype", "shape", "temperature", "read"):
            counts[f"{what} {case[what]}"] += 1
        for what in options:
            counts[f"with {what}"] += 1
        counts[f"objective {case['objective']['name']}"] += 1
        counts[f"pairing {pairing or 'own'}"] += 1
        eps = precision(case, batch)
        compare(str(loss_fn), at_now(case["objective"], how), loss, exact_loss, leaves, eps, sizes, how, moved)


def precision(case: dict[str, Any], batch: reference.Batch) -> float:
    """The precision of the similarities, and of exponents that are ``strength`` times as large."""
    if case["engine"] == "kernels" and case["dtype"] == "bfloat16" and batch.normalize:
        return torch.finfo(torch.bfloat16).eps
    return (1 + case.get("strength", 0)) * torch.finfo(
        torch.float64 if case["dtype"] == "float64" else torch.float32
    ).eps
