"""Recognize a contrastive loss by its gradient, however it was written.

With logits ``x``, InfoNCE's gradient is ``softmax(x) - positive`` up to a factor. So a row's negatives are the entries
whose gradient is proportional to ``exp(x)``, its positives are the others, and what is left out has none. Which form
it is, is decided by comparing the gradient with those of known losses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from counterpoint.base import Objective, objective
from counterpoint.batch.ready_made import MASKED
from counterpoint.objectives.infonce import InfoNCE
from counterpoint.vectors import widen

UNDERFLOW = 60.0  # exponents that are smaller, relative to the largest of their row, may have no gradient
NEAR_ZERO = 3e-3  # below this, the gradient of a loss loses digits: it is a difference of nearly equal numbers
TINY = 1e-35  # of smaller gradients, float32 has few digits
SURE = 1 - 1e-6  # a probability that may be rounded to one in float32
FEWEST = 0.03  # share of digits with which forms are told apart
HALF = 1e-2  # above the tolerance of float32, and the rounding of a number in half precision
FEW_ANCHORS = 6  # for a weight each
EQUAL = 1e-3  # share of the tolerance that rounding explains between forms that are the same loss
UNEVEN = 0.05  # anchors may weigh a little differently: log(p + epsilon)
SINGLE = ("infonce", "infonce:denominator=negatives")
_How = tuple[str, Tensor, Tensor]  # the way, positives and used entries of a form
SEVERAL = ("supcon", "nca:estimator=g0", "supcon:average=inside")  # other losses where anchors have several positives


def digits(value: float) -> float:
    """Return the share of digits of a loss's gradient: one near zero is a difference of nearly equal numbers."""
    return min(1.0, abs(value) / NEAR_ZERO)


def at_scale(spec: str, scale: float) -> Objective:
    """Return the objective of a form for similarities that are multiplied by ``scale``."""
    return objective(f"{spec}{',' if ':' in spec else ':'}t={1 / scale!r}")


OURS = {spec: at_scale(spec, 1.0) for spec in (*SINGLE, *SEVERAL)}


@dataclass
class Form:
    """The form of a loss, as its gradient shows it."""

    name: str  # the spec of one of our objectives, up to its temperature
    way: str  # ``rows``, ``columns`` or ``both``: whose entries compete
    positives: Tensor  # ``(anchors, keys)`` booleans; anchors are rows, except for ``columns``
    used: Tensor  # the entries that are in the loss
    value: float  # the mean over anchors
    error: float  # largest difference of the gradients, relative to the largest entry
    rivals: list[Form]  # other forms that fit as well
    weighted: bool = False  # whether anchors have weights of their own
    fits: Sequence[str] = ()  # names of all forms within the tolerance, of which another step may tell the right one


def recognise(s: Tensor, gradient: Tensor, scale: float, tolerance: float, values: Sequence[float] = ()) -> Form | None:
    """Return the form of the loss with this gradient with respect to similarities ``s``, or None.

    Args:
        s: ``(rows, columns)`` similarities.
        gradient: of the loss, same shape.
        scale: what similarities are multiplied by.
        tolerance: largest relative difference of gradients, by the precision of the script.
        values: numbers that the script has computed; one of them, the sum of their losses, proves anchors' weights.
    """
    x, g = s * scale, gradient * (1 / scale)
    form = _one_way(x, g, "rows", tolerance) or _one_way(x.T, g.T, "columns", tolerance)
    if form is None and s.shape[0] == s.shape[1] and bool((gradient.diagonal() != 0).all()):
        at, several = torch.eye(len(x), dtype=torch.bool, device=x.device), g < 0
        at = several if torch.equal(several, several.T) and int(several.sum()) > len(x) else at
        names = SINGLE if int(at.sum()) == len(x) else SEVERAL
        used = (g != 0) | (x < x.amax(1, keepdim=True) - UNDERFLOW)
        y = x.masked_fill(~used, -torch.inf)
        ways = {name: lambda y, of=OURS[name]: (of.from_logits(y, at) + of.from_logits(y.T, at)) / 2 for name in names}
        form = _choose(ways, y, g, ("both", at, used), tolerance)
    if values and (form is None or form.error > tolerance):  # perhaps by weights of anchors whose gradient is small
        form = (_one_way(x, g, "rows", tolerance, values) or _one_way(x.T, g.T, "columns", tolerance, values)) or form
    return form


def _one_way(x: Tensor, gradient: Tensor, way: str, tolerance: float, values: Sequence[float] = ()) -> Form | None:
    largest, used = gradient.abs().amax(1), gradient != 0
    rows = largest > 1e-6 * largest.max()  # a positive of probability one has no gradient
    if not rows.any() or x.shape[1] < 2:
        return None
    positives, p = positives_by_gradient(x, gradient, tolerance), x.softmax(1)
    # a probability that is rounded to one leaves a positive no gradient beside its negatives'
    most, at = p.max(1, keepdim=True)
    sure = (tolerance > HALF) | ((most > SURE) & (gradient.gather(1, at) <= 0))
    top = torch.zeros_like(used).scatter(1, at, sure & ~positives.any(1, keepdim=True))
    positives, used = positives | top, used | top
    negatives = used & ~positives
    known = positives.any(1) & negatives.any(1)
    if known.any():  # nor has one whose probability is rounded to one
        weights = (gradient * negatives).sum(1) / (p * negatives).sum(1)
        rows &= known | (largest > 1e-3 * tolerance * weights[known].max())
    if not bool(rows.any()) or not bool(known[rows].all()):
        return None
    pos, y = positives[rows], x[rows].masked_fill(~used[rows], -torch.inf)
    if tolerance > HALF:
        gradient = gradient.index_put((rows,), exact_sums(y, gradient[rows], pos, torch.bfloat16))
    names = OURS if bool((pos.sum(1) > 1).any()) else SINGLE
    losses = {name: lambda y, of=OURS[name], **how: of.from_logits(y, pos, **how) for name in names}
    used |= (x > MASKED) & (x < x.amax(1, keepdim=True) - UNDERFLOW)  # as far as is known
    return _choose(losses, y, gradient[rows], (way, positives, used), tolerance, values)


def exact_sums(x: Tensor, gradient: Tensor, positives: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the gradient that log-sum-exps of ``x`` would have, if these are rounded to half precision.

    A sum of 20 is off by up to .06 there, which multiplies the softmax of its row by a number near one; negatives show
    it, but for a row without any. What such a rounding does not explain stays.
    """
    p, negatives = x.softmax(-1), ~positives & (gradient != 0)
    factor = (gradient * negatives).sum(-1, keepdim=True) / (p * negatives).sum(-1, keepdim=True)
    weight = factor * (p * positives).sum(-1, keepdim=True) - (gradient * positives).sum(-1, keepdim=True)
    eps = torch.finfo(dtype).eps
    most = torch.expm1(eps / 2 * x.logsumexp(-1, keepdim=True).abs()) + 4 * eps
    rounded = (factor - weight).abs() <= most * weight.abs()  # no row without negatives
    return gradient - torch.where(rounded, factor - weight, 0.0) * p * (positives | (gradient != 0))


def positives_by_gradient(x: Tensor, gradient: Tensor, tolerance: float) -> Tensor:
    """Return which entries of each row have another gradient than ``exp(x)`` times the same number as most."""
    used = gradient != 0
    y = x - x.masked_fill(~used, -torch.inf).amax(-1, keepdim=True).clamp(min=-1e30)
    ratio = torch.where(used & (y > -UNDERFLOW), gradient / torch.exp(y), torch.nan)
    typical = torch.where(ratio > 0, ratio, torch.nan).nanmedian(-1, keepdim=True).values
    negatives = (ratio - typical).abs() <= min(30 * tolerance, 0.2) * typical.abs()
    return used & ~negatives & ~((gradient.abs() < TINY) | ((y <= -UNDERFLOW) & (gradient * typical >= 0)))


def of_scores(
    specs: Iterable[str], positives: Sequence[Tensor], others: Sequence[Tensor], scale: float, tolerance: float
) -> Form | None:
    """Return which of the objectives has these gradients, of positives and negatives that are apart.

    Args:
        specs: the objectives.
        positives: similarities, one for each anchor or for each sample, and the gradient of the loss.
        others: ``(anchors, keys)`` similarities, and the gradient of the loss.
        scale, tolerance: see :func:`recognise`.
    """
    n, used = positives[0].numel(), others[1] != 0
    rows = used.any(1)  # some anchors may not count
    if not bool(rows.any()):
        return None

    def loss(x: Tensor, of: Objective) -> Tensor:
        return of.from_scores(x[0, :n].repeat(len(used) // n)[rows], x[0, n:].view_as(used)[rows], used[rows])

    losses = {name: functools.partial(loss, of=at_scale(name, scale)) for name in specs}
    x, gradient = (torch.cat([p.view(1, -1), s.view(1, -1)], 1) for p, s in zip(positives, others, strict=True))
    return _choose(losses, x, gradient, ("rows", torch.zeros_like(used), used), tolerance)


def differentiate(loss: Callable[[Tensor], Tensor], x: Tensor) -> tuple[float, Tensor]:
    """Return a loss of ``x``, and its gradient."""
    leaf = x.detach().clone().requires_grad_()
    with torch.enable_grad():
        value = loss(leaf)
        return float(value.detach()), torch.autograd.grad(value, leaf)[0]


def fit(gradient: Tensor, expected: Tensor) -> tuple[float, float]:
    """Return the largest error with one factor between two gradients, and with a factor for each row."""
    weight = float((gradient * expected).sum() / (expected * expected).sum().clamp(min=1e-60))
    rows = (gradient * expected).sum(1, keepdim=True) / (expected * expected).sum(1, keepdim=True).clamp(min=1e-60)
    largest = gradient.abs().max()
    error, by_row = (float((gradient - w * expected).abs().max() / largest) for w in (weight, rows))
    return error, by_row


def weights_of(gradient: Tensor, expected: Tensor, tolerance: float) -> Tensor | None:
    """Return the weight of each anchor, ``(anchors, 1)``, if weights are all in which two gradients differ.

    None for few anchors or keys, of which a weight each explains too much; and for weights that rise or fall with the
    loss of the anchor, so that they are the slope of a function of it, as in the focal loss.
    """
    counted = (gradient != 0).any(1)
    if int(counted.sum()) < FEW_ANCHORS or int((expected[counted] != 0).sum(1).min()) < 3:
        return None
    weights = (gradient * expected).sum(1, keepdim=True) / (expected * expected).sum(1, keepdim=True).clamp(min=1e-60)
    if not float((gradient - weights * expected).abs().max()) <= tolerance * float(gradient.abs().max()):
        return None
    order = expected[counted].amin(1).argsort()  # a positive has the smaller gradient, the larger its loss is
    steps = weights[counted].squeeze(1)[order].diff() / weights.abs().max()
    falls, rises = bool((steps <= tolerance).all()), bool((steps >= -tolerance).all())
    few = int((steps.abs() > 1e-6).sum()) <= len(steps) / 2  # such as 0 and 1, by a threshold
    return weights if few or not (falls or rises) else None


def other_denominator(
    own: Objective, loss: Callable[..., Tensor], x: Tensor, gradient: Tensor, tolerance: float, values: Sequence[float]
) -> str:
    """Say that the script's value is that of the other denominator, whose gradients weigh otherwise, if that is so.

    ``loss`` is one of logits ``x``, given the objective and ``weights=`` of the anchors. Values prove nothing against
    ``own``, InfoNCE: the script may add other terms before it has a number.
    """
    if type(own) is not InfoNCE or not values:
        return ""
    sums, ones = list[float](), torch.ones_like(gradient[..., 0])
    other = own.replace(denominator="with_positive" if own.denominator == "negatives" else "negatives")
    for each in (own, other):
        (expected,) = torch.autograd.grad(loss(each, weights=ones), x)
        weights = weights_of(gradient.flatten(0, -2), expected.flatten(0, -2), tolerance)
        sums.append(torch.nan if weights is None else float(loss(each, weights=weights.view_as(ones)).detach()))
    is_own, is_other = (any(abs(x - value) <= 0.1 * tolerance * abs(x) for value in values) for x in sums)
    found = f"sum to {sums[0]:.6g} as {own}, but the script's to {sums[1]:.6g}, as {other}: expected that as --own"
    return found if is_other and not is_own else ""


def _choose(
    losses: Mapping[str, Callable[..., Tensor]],
    x: Tensor,
    gradient: Tensor,
    how: _How,
    tolerance: float,
    values: Sequence[float] = (),
) -> Form | None:
    """Return the form whose loss of ``x`` has this gradient, with its way, positives and used entries.

    With ``values``, also a form whose anchors have weights, if the sum of their losses is one of these.
    """
    fitting = []
    for name, loss in losses.items():
        try:
            value, expected = differentiate(loss, x)
        except ValueError:  # of no positives, or of no negatives
            continue
        error, by_row = (max(digits(value), FEWEST) * each for each in fit(gradient, expected))
        weights = weights_of(gradient, expected, tolerance) if values and error > tolerance else None
        mean = torch.nan if weights is None else float((weights.squeeze(1) * loss(x, reduction="none")).mean())
        if any(abs(mean - each) < 0.1 * tolerance * abs(mean) for each in values):
            fitting.append(Form(name, *how, mean, by_row, [], True))
        elif error <= tolerance or (by_row <= tolerance and error <= UNEVEN):
            fitting.append(Form(name, *how, value, error, []))
    if not fitting:
        return None
    best = min(fitting, key=lambda form: form.error)
    alike = [form for form in fitting if form.name in SEVERAL and form.error <= max(best.error, EQUAL * tolerance)]
    best = alike[0] if best in alike else best  # of positives that are equally similar, forms are the same loss
    best.rivals = [form for form in fitting if form not in (best, *alike) and form.error <= 30 * best.error]
    best.fits = [form.name for form in fitting if not form.weighted]
    return best


def targets_of(labels: Tensor, logits: Tensor, smoothing: float = 0.0, ignore_index: int = -100) -> Tensor | None:
    """Return the soft targets of cross entropy, of the shape of the logits; None for columns and equal positives."""
    labels = labels.to(logits.dtype) if smoothing and labels.dtype == torch.bool else labels
    if labels.is_floating_point() and labels.shape == logits.shape and bool((labels >= 0).all()):
        targets, largest = widen(labels), labels.amax(-1, keepdim=True)
        if not smoothing and bool(((labels == 0) | (labels == largest)).all() & ((labels != 0).sum(-1) > 1).any()):
            return None
    elif smoothing:
        counted = (labels != ignore_index).unsqueeze(-1)
        targets = counted * torch.zeros_like(widen(logits)).scatter(-1, labels.unsqueeze(-1).where(counted, 0), 1.0)
    else:
        return None
    return (1 - smoothing) * targets + targets.sum(-1, keepdim=True) * (smoothing / logits.shape[-1])


def keys_of(x: Tensor, args: Sequence[Any], dim: Any = -1, **_: Any) -> int | None:
    """Return the dimension of keys, from the end, of a call whose arguments after ``x`` these are; None for several."""
    dim = args[0] if args else dim
    dim = dim[0] if isinstance(dim, (tuple, list)) and len(dim) == 1 else dim
    dim = int(x.dim() != 3) if dim is None else dim  # as torch chooses it for nn.LogSoftmax()
    return (dim - x.dim() if dim >= 0 else dim) if isinstance(dim, int) else None


def explaining(
    x: Tensor, gradient: Tensor, alike: Mapping[str, Tensor], tolerance: float
) -> dict[str, tuple[Tensor, float]]:
    """Return which tensors may be the soft targets of a log_softmax of ``x``, by name, and the differences.

    Those that differ more than rounding from the closest are others, of which targets are a mixture. Of those that are
    equal but for a factor, distributions come first.
    """
    found: dict[str, tuple[Tensor, float]] = {}
    for name, targets in alike.items():
        if bool((targets >= 0).all() & targets.any()):
            expected = x.softmax(-1) * targets.sum(-1, keepdim=True) - targets
            error, _ = fit(gradient.flatten(0, -2), expected.flatten(0, -2))
            found |= {name: (targets, error)} if error <= tolerance else {}
    most = max(10 * min((error for _, error in found.values()), default=0.0), 1e-6)
    order = sorted(found, key=lambda name: float((found[name][0].sum(-1) - 1).abs().max()) > tolerance)
    return {name: found[name] for name in order if found[name][1] <= most}


def layout(positives: Tensor) -> str:
    """Say where the positives are, in words, or "" if no simple rule holds."""
    return columns(positives.long().argmax(1)) if bool((positives.sum(1) == 1).all()) else ""


def columns(labels: Tensor, counted: Tensor | None = None, keys: int = 0) -> str:
    """Say which of so many columns ``labels`` are, of all rows or of those that are ``counted``."""
    n, rows = len(labels), torch.ones_like(labels).bool() if counted is None else counted
    at, labels = torch.arange(n, device=labels.device), labels[rows]
    run, rise = ((x[1:2] - x[:1]).tolist() or [1] for x in (at[rows], labels))
    step = rise[0] // run[0] if len(labels) > 1 else 0
    first = int(labels[0] - step * at[rows][0]) if len(labels) else 0
    rules = {"column 0": at * 0} if n == 1 else {}
    rules |= {"the diagonal": at, "column 0": at * 0, f"the diagonal from column {first}": at + first}
    rules |= {f"columns {first}, {first + step}, ... in steps of {step}": at * step + first} if step > 1 else {}
    partners = {"the row half a batch further": (at + n // 2) % max(n, 1), "the neighbour in the batch": at ^ 1}
    rules |= partners
    if keys == n - 1:
        rules |= {f"{words}, without its own column": x - (x > at).long() for words, x in partners.items()}
    counts = (parts for parts in range(2, n) if n % parts == 0)
    rules |= {f"the diagonal of each of {parts} parts": at % (n // parts) + first for parts in counts}
    return next((words for words, expected in rules.items() if torch.equal(labels, expected[rows])), "")
