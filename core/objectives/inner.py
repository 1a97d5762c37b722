"""CL-DRO's inner problems: their gradients, and the worst case by chi-squared, in blocks that stay in the cache."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..batch.scores import Negatives
from ..values import Value

STEPS = 60  # at most; an accelerator always takes them all, since a convergence test would synchronize


class Envelope(torch.autograd.Function):
    """The value of an inner problem whose gradient is known; ``function`` returns the value, for second derivatives.

    Its gradient is ``weights`` by ``matrix``, that of ``neg``, and ``slope`` by ``bound``, the radius or a
    multiple of it. If the matrix has a workspace, the first backward pass is the last, and may overwrite ``weights``.
    """

    @staticmethod
    def forward(ctx: Any, function: Callable[[], Tensor], *known: Any) -> Tensor:
        neg, value, weights, slope, matrix, bound = known
        ctx.function, ctx.once = function, neg.workspace is not None
        ctx.save_for_backward(weights, slope, matrix, bound if isinstance(bound, Tensor) else None)
        return value.clone()  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        weights, slope, *tensors = ctx.saved_tensors
        needed = ctx.needs_input_grad[5:]
        if not torch.is_grad_enabled():  # not create_graph=True
            d_matrix = torch.mul(weights, upstream, out=weights if ctx.once else None)
            return *[None] * 5, d_matrix, (upstream * slope).sum() if needed[1] else None
        wanted = [x for x, need in zip(tensors, needed, strict=True) if need]
        gradients = iter(torch.autograd.grad(ctx.function(), wanted, upstream, create_graph=True))
        return *[None] * 5, *(next(gradients) if need else None for need in needed)


def nonnegative_worst_case(neg: Negatives, bound: Value) -> Tensor:
    """Compute ``max { mean(L s) : L >= 0, mean L = 1, mean (L - 1)^2 <= bound }``, ``(anchors, 1)``."""
    neg = neg.materialized()
    matrix = getattr(neg, "matrix", None)
    solved = matrix is not None and not checks.traced() and checks.wanted(matrix)
    top, low, reached, *known = _solution(neg, bound) if solved else chi2_threshold(neg, bound)

    def closed_form() -> Tensor:
        return torch.where(reached, neg.max(), mean_and_deviations(neg, bound, (top, low)))

    return Envelope.apply(closed_form, neg, *known, matrix, bound) if solved else closed_form()


@torch.no_grad()
def _solution(neg: Any, bound: Value) -> Sequence[Tensor]:
    """Compute :func:`chi2_threshold` of a matrix, the value, its weights, and its slope."""
    parts = neg.split()
    weights, results = neg.pair_buffer(), []
    for part, w in zip(parts, weights.split([len(part.matrix) for part in parts]), strict=True):
        top = part.max()
        x = part.matrix.detach() - top
        low, reached = _threshold(part, bound, top, x, w)
        ties = (x >= 0).to(x.dtype) if bool(reached.any()) else None
        # 1. the closed form over the negatives above the threshold, in which its rounding cancels
        torch.sub(x, low, out=w).gt_(0)
        if part.log_weight is not None:
            w.mul_(part.log_weight.exp())
        part.exclude_(w)
        part.exclude_(x)  # where it may be infinite
        total = w.sum(1, keepdim=True)
        mean = (w * x).sum(1, keepdim=True) / total
        tilt = x.sub_(mean) * w
        variance = (tilt * x).sum(1, keepdim=True) / total
        spread = total / part.count * (1 + bound) - 1
        flat = variance * spread <= 0
        rate = torch.where(flat, 0.0, spread / variance).sqrt()
        w.add_(tilt.mul_(rate)).div_(total)
        # 2. the value, and its slope by the bound
        value, slope = top + mean + variance * rate, torch.where(flat, 0.0, total / part.count / rate / 2)
        if ties is not None:  # they share the weight evenly, as they share the gradient of a maximum
            part.exclude_(ties)
            w.copy_(torch.where(reached, ties / ties.sum(1, keepdim=True), w))
            value, slope = torch.where(reached, top, value), slope.masked_fill(reached, 0.0)
        results.append((top, low, reached, value, slope))
    top, low, reached, value, slope = map(torch.cat, zip(*results, strict=True))
    return top, low, reached, value, weights, slope


def mean_and_deviations(neg: Negatives, bound: Value, low: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Compute the closed form ``mean s + sqrt(Var s (share (1 + bound) - 1))``, exact above the solution's threshold.

    ``low`` is a number near the threshold, and the threshold minus that; None means all negatives.
    """

    def above(s: Tensor, top: Tensor, low: Tensor) -> Tensor:
        return (s.detach() - top > low).to(s.dtype)

    if low is None:
        mean, variance, spread = neg.mean(lambda s: s), neg.variance(), bound
    else:
        share = neg.mean(above, *low).clamp(min=torch.finfo(low[0].dtype).eps)
        mean = neg.mean(lambda s, *low: above(s, *low) * s, *low) / share
        variance = neg.mean(lambda s, m, *low: above(s, *low) * (s - m) ** 2, mean, *low) / share
        spread = share * (1 + bound) - 1
    square = variance * spread
    # the square root has no derivative at zero, and that of a variance of rounding alone is arbitrary
    rounding = 8 * torch.finfo(mean.dtype).eps * mean.detach()
    flat = (square <= 0) | (variance <= rounding**2)
    return mean + torch.where(flat, 0.0, torch.where(flat, 1.0, square).sqrt())  # type: ignore[no-any-return]


@torch.no_grad()
def chi2_threshold(neg: Negatives, bound: Value) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the largest negatives, the solution's threshold minus them, and whether the radius reaches them."""
    return (top := neg.max()), *_threshold(neg, bound, top)


def _threshold(
    neg: Negatives, bound: Value, top: Tensor, x: Tensor | None = None, work: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the threshold of a block of anchors, minus ``top``, and whether the radius reaches ``top``.

    The closed form over the negatives above a threshold gives the next, until no negative drops out. The difference to
    ``top`` keeps the digits of close similarities. ``x`` is the block's matrix minus ``top``, and ``work`` a buffer.
    """
    matrix: Any = neg

    def moments(low: Tensor, above: bool) -> Sequence[Tensor]:
        """Compute the means of the distances to ``low`` and of their squares; ``above`` it, the share as well."""
        if x is None or work is None or matrix.log_weight is not None:

            def distances(s: Tensor, top: Tensor, low: Tensor) -> tuple[Tensor, ...]:
                d = s - top - low
                return (d.relu(), d.relu() ** 2, (d > 0).to(s.dtype)) if above else (d, d**2)

            return neg.mean(distances, top, low)  # type: ignore[no-any-return]
        torch.sub(x, low, out=work)
        matrix.exclude_(work.relu_() if above else work)
        sums = [work.sum(1, keepdim=True), work.square_().sum(1, keepdim=True)]
        if above:
            sums.append(work.gt_(0).sum(1, keepdim=True))
        return [total / matrix.count for total in sums]

    # 1. whether the radius reaches the largest negative, which depends on its ties: at most the share
    # variance / (variance + mean^2) (Cauchy-Schwarz), too small for most radii
    mean = moments(torch.zeros_like(top), False)[0]
    variance = moments(mean, False)[1]
    bound = torch.as_tensor(bound, dtype=top.dtype, device=top.device)
    reached = ~((1 - 1e-3) * mean**2 > bound * variance)
    if not checks.wanted(top) or bool(neg.across(reached.any().float(), "max")):  # all ranks count ties together
        reached = bound >= 1 / neg.mean(lambda s, m: (s >= m).to(s.dtype), top) - 1
    # 2. all negatives
    low = mean - (variance / bound).sqrt()
    # 3. those above the threshold, by moments of the distance to it
    tolerance = torch.finfo(top.dtype).eps ** 0.5 / 4  # the square of a step is the next error
    floor, ceiling = 2 * low, torch.zeros_like(low)
    for _ in range(STEPS):
        first, second, share = moments(low, True)
        # rounding may overshoot where the threshold was far below; then the closed form leads back
        over = second > (1 + bound) * first**2
        floor, ceiling = torch.where(over, floor, low), torch.where(over, low, ceiling)
        depth = first / share
        spread = (second / share - depth**2).clamp(min=0)
        step = low + depth - (spread / (share * (1 + bound) - 1)).sqrt()  # not a number where too few are above
        step = torch.where(step.isnan(), torch.where(over, (floor + ceiling) / 2, low), step)
        last, low = low, torch.minimum(torch.maximum(step, floor), ceiling)
        if checks.wanted(low):
            moving = (low - last).abs() > -tolerance * last
            if not bool(neg.across(moving.any().float(), "max")):  # all ranks stop together
                break
    return low, reached | (low >= 0)  # nothing lies between the solution's threshold and the largest negative
