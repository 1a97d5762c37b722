"""Compute adversarial and mixed views, for losses that encode changed inputs.

The objectives never call an encoder; these functions do.

>>> encoder, loss_fn, (x1, x2) = torch.nn.Linear(8, 4), cp.IntNaCl(base="mixnca"), torch.rand(2, 6, 8)
>>> further = cp.views.perturbed(encoder, x1, x2, loss_fn, epsilon=8 / 255, mixed=4)
>>> loss_fn(encoder(x1), encoder(x2), **further).shape
torch.Size([])
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from . import checks
from .base import Objective
from .objectives.infonce import InfoNCE

Encoder = Callable[[Tensor], Tensor]
Range = tuple[float, float]  # of valid inputs


def fgsm(loss: Callable[[Tensor], Tensor], x: Tensor, epsilon: float, clip: Range | None = None) -> Tensor:
    """Take one step of :func:`pgd`, of size ``epsilon``, from ``x`` itself.

    Paper: Goodfellow et al. 2015, https://arxiv.org/abs/1412.6572.
    """
    return pgd(loss, x, epsilon, step=epsilon, steps=1, random_start=False, clip=clip)


def pgd(
    loss: Callable[[Tensor], Tensor],
    x: Tensor,
    epsilon: float,
    step: float | None = None,
    steps: int = 10,
    random_start: bool = True,
    clip: Range | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Take several steps along the sign of the gradient, each projected back into the ``epsilon`` box.

    Returns the changed inputs, detached. Paper: Madry et al. 2018, https://arxiv.org/abs/1706.06083.

    Args:
        loss: maps inputs to the scalar to increase.
        x: inputs, floating point.
        epsilon: largest change of any element, > 0.
        step: size of a step; by default ``2.5 * epsilon / steps``.
        steps: number of steps, at least 1.
        random_start: start from a random point of the box.
        clip: range of valid inputs, e.g. ``(0, 1)`` for images.
    """
    x = checks.require_float(x, "x").detach()
    if epsilon <= 0 or steps < 1:
        raise ValueError(f"pgd: expected epsilon > 0 and steps >= 1, got epsilon={epsilon!r}, steps={steps!r}.")
    step = 2.5 * epsilon / steps if step is None else step
    delta = torch.zeros_like(x)
    if random_start:
        delta = (torch.rand(x.shape, generator=generator, device=x.device, dtype=x.dtype) * 2 - 1) * epsilon
    for _ in range(steps):
        delta = _valid(x, delta, clip).requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(loss(x + delta), delta)
        delta = (delta.detach() + step * gradient.sign()).clamp(-epsilon, epsilon)
    return x + _valid(x, delta, clip)


def _valid(x: Tensor, delta: Tensor, clip: Range | None) -> Tensor:
    return (delta if clip is None else (x + delta).clamp(*clip) - x).detach()


def mix(x: Tensor, lam: float, count: int = 1, generator: torch.Generator | None = None) -> Tensor:
    """Mix ``lam x_i + (1 - lam) x_j`` with ``count`` different samples ``j != i`` of the batch for each ``i`` (MixNCA).

    The paper mixes inputs. Mixed embeddings are another loss, for inputs that cannot be mixed, such as sentences.

    Args:
        x: ``(B, ...)``; the mixed views are ``(B, count, ...)``.
        lam: share of the sample itself, in ``[0, 1]``.
        count: mixed views per sample, from 1 to ``B - 1``.
    """
    size = checks.require_float(x, "x").shape[0]
    if not 1 <= count < size:
        raise ValueError(f"mix: expected 1 <= count <= batch size - 1 = {size - 1}, got {count!r}.")
    if not 0 <= lam <= 1:
        raise ValueError(f"mix: lam must be in [0, 1], got {lam!r}.")
    shifts = torch.randperm(size - 1, generator=generator, device=x.device)[:count] + 1
    return lam * x.unsqueeze(1) + (1 - lam) * x[(torch.arange(size, device=x.device).unsqueeze(1) + shifts) % size]


def share(objective: Objective) -> float:
    """Return the mixing weight ``lam`` that an objective's terms expect; 0.5 if no term uses mixed views."""
    parts: list[Any] = [p for p in objective.modules() if isinstance(p, Objective) and "mixed" in p.needs]
    values = {float(part.lam) for part in parts if "lam" in part.hyper}
    if len(values) > 1:
        raise ValueError(f"{objective}: its terms want views mixed by different lam ({sorted(values)}): give one.")
    return values.pop() if values else 0.5


def attack(
    encoder: Encoder,
    anchor: Tensor,
    x: Tensor,
    epsilon: float,
    objective: Objective | None = None,
    steps: int = 1,
    step: float | None = None,
    clip: Range | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Find adversarial views: inputs near ``x`` that maximize the contrastive loss against ``anchor``.

    Encode the result, which is detached, and pass it as ``adversarial=``.

    Args:
        encoder: maps inputs to embeddings; attacked in evaluation mode, without batch statistics and dropout.
        anchor: ``(B, d)`` embeddings of the other view; constant here.
        objective: the loss to maximize, on ``one_way`` pairs; InfoNCE by default, as in the paper. Schedules and
            tracked values stay as they are.
        steps: 1 for FGSM, more for PGD with a random start.
        x, epsilon, step, clip: as in :func:`pgd`.
    """
    target, fixed = objective or InfoNCE(), anchor.detach()

    def loss(inputs: Tensor) -> Tensor:
        return target(fixed, encoder(inputs), pairing="one_way")

    with evaluation_mode(encoder), evaluation_mode(target):
        return pgd(loss, x, epsilon, step or (epsilon if steps == 1 else None), steps, steps > 1, clip, generator)


def perturbed(
    encoder: Encoder,
    x1: Tensor,
    x2: Tensor,
    objective: Objective,
    epsilon: float | None = None,
    mixed: int = 0,
    steps: int = 1,
    clip: Range | None = None,
    generator: torch.Generator | None = None,
) -> dict[str, Any]:
    """Compute the ``adversarial=`` and ``mixed=`` embeddings that IntCL, IntNaCl and MixNCA need, from ``x2``.

    Args:
        x1, x2: inputs of the two views.
        objective: views are mixed with the ``lam`` of its terms.
        epsilon: size of the attack; None for no adversarial view.
        mixed: number ``M - 1`` of mixed views per sample.
        encoder, steps, clip: as in :func:`attack`.
    """
    extra: dict[str, Any] = {}
    if epsilon is not None:
        with torch.no_grad(), evaluation_mode(encoder):
            anchor = encoder(x1)
        attacked = attack(encoder, anchor, x2, epsilon, steps=steps, clip=clip, generator=generator)
        extra["adversarial"] = encoder(attacked)
    if mixed:
        inputs = mix(x2, share(objective), mixed, generator)
        extra["mixed"] = encoder(inputs.flatten(0, 1)).unflatten(0, inputs.shape[:2])
    return extra


@contextmanager
def evaluation_mode(encoder: Encoder) -> Iterator[None]:
    """Switch an encoder that is a module to evaluation mode, and restore the mode of each of its modules afterwards."""
    modes = [(module, module.training) for module in encoder.modules()] if isinstance(encoder, nn.Module) else []
    if isinstance(encoder, nn.Module):
        encoder.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
