"""CL-DRO (Wu et al. 2023): robust optimization over the distribution of negatives, in units of the similarity.

Inner problems are solved without gradient; by the envelope theorem, the value at the solution has the right one.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from .. import checks
from ..base import Objective
from ..batch.ready_made import as_negatives, matrix_of, similarity_columns, similarity_matrix
from ..batch.scores import Negatives, Scores
from ..hyper import Choice, Flag, Real
from ..names import check_known
from ..values import Number, Value
from .infonce import log_g0
from .inner import STEPS, Envelope, chi2_threshold, mean_and_deviations, nonnegative_worst_case

Divergence = Literal["kl", "chi2"]


class MeanVariance(Objective, name="mv"):
    """The mean-variance surrogate of InfoNCE.

    ``-p + mean_j s_j + Var_j(s_j) / (2 t phi''(1))``, which is ``t`` times InfoNCE's mean form up to ``O(1 / t^2)``.

    Paper: Wu et al. 2023, Eq. (7), (8), https://arxiv.org/abs/2310.11048.

    >>> cp.MeanVariance(0.5)(torch.eye(4), torch.eye(4))
    tensor(-1.)
    """

    use = "to see what InfoNCE does to first order: mean and variance"
    tune_first = "t"
    cost = "less than InfoNCE: no exponentials"

    temperature: Real = Real("t", above=0, default=0.5, always=True, doc="``t`` > 0.")
    curvature: Real = Real(above=0, default=1.0, doc="``phi''(1)`` of the divergence, > 0; 1 for KL.")

    def per_anchor(self, pos: Tensor, neg: Negatives) -> Tensor:
        return neg.mean(lambda s: s) + neg.variance() / (2 * self.temperature * self.curvature) - pos  # type: ignore[no-any-return]


class CLDRO(Objective, name="dro"):
    """Contrast each positive with the worst distribution of negatives within a radius of the empirical one.

    ``-p + max_Q { E_Q[s] : D(Q || Q0) <= radius }``.

    * ``kl``: ``-p + min_{a >= 0} { a radius + a log mean_j e^{s_j / a} }``. The minimizer ``a*`` is InfoNCE's
      temperature: the loss has the gradient of ``a* InfoNCE(a*, denominator="mean")``. If the radius reaches the
      largest negative (``radius >= log(N / ties)``), the maximum is that negative.
    * ``chi2``: ``phi(x) = c (x - 1)^2`` over likelihood ratios ``L >= 0``; ``nonneg=False`` drops that constraint and
      has the closed form ``mean s + sqrt(radius Var / c)``.

    The paper calls the softmax loss tolerant of false negatives; :class:`PSL` and :class:`DrRL`, which share an author,
    call it highly sensitive to them. In our atlas, ``dro`` does not gain what knowing the false negatives gains.

    Paper: Wu et al. 2023, Eq. (3), (4), (17), (18), https://arxiv.org/abs/2310.11048.

    >>> cp.CLDRO(radius=0.2)(torch.eye(4), torch.eye(4))
    tensor(-1.)
    """

    use = "results depend on the temperature: you choose the radius instead"
    tune_first = "radius (.01 to 1)"
    cost = "an inner solve"

    radius: Real = Real(above=0, default=0.1, always=True, doc="``eta`` > 0.")
    divergence: Choice[Divergence] = Choice(*get_args(Divergence), default="kl", doc="See the details.")
    alpha: Real[Number | None, Value | None] = Real(
        above=0, default=None, optional=True, doc="A fixed ``a`` instead of the optimal one (``kl``)."
    )
    shared: Flag = Flag(default=False, doc="One ``a`` for the whole batch instead of one per anchor (``kl``).")
    scale: Real = Real(above=0, default=0.25, doc="``c`` of chi2; 1/4 matches the paper's conjugate ``x + x^2``.")
    nonneg: Flag = Flag(default=True, doc="Keep ``L >= 0`` (``chi2``).")

    def __post_init__(self) -> None:
        if self.divergence == "chi2" and (self._hyper["alpha"] is not None or self.shared):
            raise ValueError("CLDRO: alpha and shared belong to divergence='kl'.")

    @property
    def couples_anchors(self) -> bool:
        return self.shared and self._hyper["alpha"] is None

    @property
    def in_chunks(self) -> bool:
        """Whether an inner problem is solved for each anchor, which is fastest a few anchors at a time."""
        return self.nonneg if self.divergence == "chi2" else self._hyper["alpha"] is None

    def per_anchor(self, pos: Tensor, neg: Negatives) -> Tensor:
        if self.divergence == "chi2":
            solve = nonnegative_worst_case if self.nonneg else mean_and_deviations
            return solve(neg, self.radius / self.scale) - pos
        if self.alpha is not None:
            return self.alpha * (self.radius + log_g0(neg, self.alpha)) - pos
        return kl_worst_case(neg, self.radius, self.shared) - pos

    def diagnostics(self, scores: Scores) -> dict[str, Tensor]:
        if self.divergence == "chi2" or self.alpha is not None:
            return {}
        return {"temperature": kl_alpha(scores.neg, self.radius, self.shared).mean()}


def kl_alpha(neg: Tensor | Negatives, radius: Value, shared: bool = False) -> Tensor:
    """Solve ``KL(Q_a || Q0) = radius``, ``Q_a ~ e^{s / a}``, for ``a``; zero where it reaches the largest negative.

    >>> cp.kl_alpha(torch.tensor([[0.1, 0.4, 0.7]]), radius=0.1)
    tensor([[0.5267]])
    """
    return _kl_solution(as_negatives(neg), _positive(radius, "radius"), shared)[0]


@torch.no_grad()
def _kl_solution(neg: Negatives, radius: Value, shared: bool) -> tuple[Tensor, Tensor]:
    """Compute ``a*`` and the largest negatives, ``(anchors, 1)`` each."""

    def average(x: Tensor) -> Tensor:
        return neg.batch_mean(x).expand_as(x) if shared else x

    # 1. how far the largest negative is from the mean, and how often it occurs
    top = neg.max()
    _, mean, variance, skew, fourth = map(average, neg.moments(torch.zeros_like(top), top, 4))
    tiny = torch.finfo(top.dtype).tiny
    depth = (-mean).clamp(min=tiny)
    # ties are at most the share variance / (variance + mean^2) (Cauchy-Schwarz), too small for most radii
    reach = (mean**2 / variance.clamp(min=tiny)).log1p()
    radius = torch.as_tensor(radius, dtype=top.dtype, device=top.device)
    near = (radius >= reach - 1e-3).any().float()
    if shared or not checks.wanted(top) or bool(neg.across(near, "max")):  # all ranks count ties together
        reach = -average(neg.mean(lambda s, m: (s >= m).to(s.dtype), top).log())

    def excess(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute log(KL / radius), and its derivatives in x, at the inverse temperature e^x."""
        b = x.exp()
        log_mean, mean, variance, skew = neg.moments(b, top)
        kl, slope, bend = map(average, (b * mean - log_mean, b**2 * variance, b**3 * skew))
        kl = kl.clamp(min=tiny)
        first = slope / kl
        return (kl / radius).log(), first, first * (2 - first) + bend / kl

    # 2. KL is b^2 variance / 2 + b^3 skew / 3 + b^4 (fourth - 3 variance^2) / 8 + ..., a series to be inverted
    b = (2 * radius / variance.clamp(min=tiny)).sqrt()
    third = 2 / 3 * b * skew / variance.clamp(min=tiny)
    fourth = b**2 * (fourth / variance.clamp(min=tiny) - 3 * variance) / 4
    start = b.log() - (third + fourth - third**2 / 2).nan_to_num(0.0).clamp(-0.75, 3).log1p() / 2
    # beyond the upper limit, negatives count that are rounded to the largest
    x = _root(neg, excess, -depth.log() - 25, -depth.log() + 2 - math.log(torch.finfo(top.dtype).eps), start)
    return torch.where(radius >= reach, 0.0, (-x).exp()), top


def kl_worst_case(neg: Negatives, radius: Value, shared: bool = False) -> Tensor:
    """Compute ``min_{a >= 0} { a radius + a log mean_j e^{s_j / a} }``, ``(anchors, 1)``."""
    neg = neg.materialized()
    a, top = _kl_solution(neg, radius, shared)
    b = torch.where(a > 0, 1 / a, 1e15)

    def value() -> Tensor:
        # shifted by the maximum, so that s / a does not overflow
        inner = neg.logsumexp(lambda s, b, m: (s - m) * b, b, top) - neg.log_count
        return torch.where(a > 0, a * radius + a * inner + top, neg.max())

    def curvature() -> Tensor:
        """Compute ``-g^2 / (2 h)`` of the derivatives ``g = 0`` and ``h`` by ``a``: how ``a`` follows similarities."""
        if shared and neg.group is not None:
            raise RuntimeError("dro: shared=True has no second derivative (create_graph=True) across processes.")

        def weighted(s: Tensor, b: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
            w = ((s - m) * b).clamp(max=1).exp()  # at most 0; keys that are not negatives may be larger
            return w, w * (s - m)

        total, first = neg.mean(weighted, b, top)
        kl, h = b * first / total - total.log(), b**3 * neg.moments(b, top)[2]
        if shared:
            kl, h = (neg.over_anchors(x).expand_as(x) for x in (kl, h))
        curved = (a > 0) & (h > 0)
        return torch.where(curved, -((radius - kl) ** 2) / (2 * torch.where(curved, h, 1.0)), 0.0)

    dense: Any = neg
    if not hasattr(dense, "matrix") or checks.compiling():  # neither has second derivatives
        return value()
    if checks.traced():
        return value() + curvature()
    with torch.no_grad():
        log_mean, weights = dense.softmax_weights(b, top)
        solved = a * (radius + log_mean) + top
    known = dense, solved, weights, a, dense.matrix, radius
    return Envelope.apply(lambda: value() + curvature(), *known)  # type: ignore[no-any-return]


def tau_from_radius(neg: Tensor | Negatives, radius: Value) -> Tensor:
    """Compute the temperature that corresponds to a radius, ``sqrt(Var(s) / (2 radius))``, ``(anchors, 1)`` (Eq. 6).

    >>> cp.tau_from_radius(torch.tensor([[0.1, 0.4, 0.7]]), radius=0.1)
    tensor([[0.5477]])
    """
    return (as_negatives(neg).variance() / (2 * _positive(radius, "radius"))).sqrt()


def worst_case_weights(neg: Tensor, temperature: Value) -> Tensor:
    """Compute the worst-case distribution ``Q* = softmax(s / t)`` of the negatives, ``(anchors, N)`` (Eq. 43).

    Where a tensor of temperatures is zero, as :func:`kl_alpha` may be, the largest negatives share all weight.

    >>> cp.worst_case_weights(torch.tensor([[0.1, 0.4, 0.7]]), 0.5)
    tensor([[0.1628, 0.2967, 0.5405]])
    """
    s = similarity_matrix(neg)
    t = torch.as_tensor(_positive(temperature, "temperature"), dtype=s.dtype, device=s.device)
    return ((s - s.amax(1, keepdim=True)) / t.clamp(min=torch.finfo(s.dtype).tiny)).softmax(1)


def chi2_ratio(neg: Tensor | Negatives, radius: Value, scale: Value = 0.25) -> Tensor:
    """Compute the worst-case likelihood ratio ``L* = max(0, A (s - l))`` of every negative, ``(anchors, N)``.

    >>> cp.chi2_ratio(torch.tensor([[0.1, 0.4, 0.7]]), radius=0.1)
    tensor([[0.2254, 1.0000, 1.7746]])
    """
    neg = as_negatives(neg)
    top, low, reached = chi2_threshold(neg, _positive(radius, "radius") / _positive(scale, "scale"))
    s = matrix_of(neg)
    ratio = torch.where(reached, (s >= top).to(s.dtype), (s - top - low).clamp(min=0))
    return ratio / ratio.mean(1, keepdim=True)


def mutual_information(pos: Tensor, neg: Tensor | Negatives, divergence: str = "kl", temperature: Value = 1) -> Tensor:
    """Estimate phi-mutual information from a critic's scores by its tight variational bound (Wu et al. 2023, sec. 4).

    * ``kl``: ``t (E[p / t] - log E[e^{s / t}])``, i.e. minus InfoNCE's mean form, times ``t``.
    * ``chi2``: ``E[p] - E[s] - Var[s]``, from ``phi* = x + x^2``.

    Args:
        pos: ``(anchors,)`` or ``(anchors, P)`` scores of joint pairs.
        neg: ``(anchors, N)`` scores of independent pairs.
        divergence, temperature: which of these, and ``t`` of the first.

    >>> cp.mutual_information(torch.tensor([0.8]), torch.tensor([[0.1, 0.4, 0.7]]))
    tensor(0.3702)
    """
    pos, negatives = checks.require_finite(similarity_columns(pos, "pos"), "pos"), as_negatives(neg)
    if divergence == "kl":
        t = _positive(temperature, "temperature")
        return pos.mean() - (t * log_g0(negatives, t)).mean()
    check_known("mutual_information: unknown divergence", divergence, get_args(Divergence))
    return pos.mean() - (negatives.mean(lambda s: s) + negatives.variance()).mean()  # type: ignore[no-any-return]


def _positive(value: Value, what: str) -> Value:
    if not isinstance(value, Tensor) and not (checks.is_number(value) and value > 0):
        raise ValueError(f"{what}: expected a positive number, got {value!r}.")
    return value


def _root(
    neg: Negatives, excess: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]], low: Tensor, high: Tensor, x: Tensor
) -> Tensor:
    """Find the root of an increasing function for each anchor: Halley's method, or bisection outside the bracket."""
    # the next error is at most about a third of the third power of a step, and KL is known to about 10 eps
    tolerance = (32 * torch.finfo(x.dtype).eps) ** (1 / 3)
    for _ in range(STEPS):
        value, first, second = excess(x)
        low, high = torch.where(value < 0, x, low), torch.where(value < 0, high, x)
        newton = value / first
        # the bounds keep steps short where the function is flat
        step = x - (newton / (1 - (newton * second / (2 * first)).clamp(-1, 0.5))).clamp(-2, 2)
        moving = ~(newton.abs() <= tolerance)
        # a step of two to the bracket's other end would be followed by one back
        x = torch.where((step > low) & (step < high) | ~moving, step, (low + high) / 2)
        if checks.wanted(x) and not bool(neg.across(moving.any().float(), "max")):  # all ranks stop together
            break
    return x
