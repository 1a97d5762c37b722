"""CL-DRO: contrastive learning as distributionally robust optimization over the negatives.

Wu et al. 2023, https://arxiv.org/abs/2310.11048. All objectives here are in units of the similarity, as in the paper:
nothing is divided by a temperature. The inner problems are solved by reductions without gradient; by the envelope
theorem, the value at the solution has the right gradient.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .. import checks
from ..batch.ready_made import as_negatives, dense_scores, score_columns, score_matrix
from ..batch.scores import Negatives, Scores
from ..hyper import Choice, Flag, Number, Real, Value, is_number, nearest
from ..objective import Objective
from .infonce import log_g0

PAPER = (
    "Wu et al. 2023, understanding contrastive learning via distributionally robust optimization, "
    "https://arxiv.org/abs/2310.11048"
)
STEPS = 60  # at most; an accelerator always takes them all, since a convergence test would synchronize


class MeanVariance(Objective, name="mv"):
    """The mean-variance surrogate of InfoNCE: ``-p + mean(s) + Var(s) / (2 t phi''(1))``.

    It is ``t`` times InfoNCE's mean form up to ``O(1 / t^2)``.

    Paper: Wu et al. 2023, Eq. (7), (8), https://arxiv.org/abs/2310.11048.
    """

    formula = "-p + mean_j s_j + Var_j(s_j) / (2 t phi''(1))"
    paper = PAPER
    use = "to see what InfoNCE does to first order: mean and variance"
    tune_first = "t"
    cost = "less than InfoNCE: no exponentials"

    temperature: Real = Real("t", low=0, open_low=True, default=0.5, always=True, doc="``t`` > 0.")
    curvature: Real = Real(low=0, open_low=True, default=1.0, doc="``phi''(1)`` of the divergence, > 0; 1 for KL.")

    def per_anchor(self, pos: Tensor, neg: Negatives) -> Tensor:
        return neg.mean(lambda s: s) + neg.variance() / (2 * self.temperature * self.curvature) - pos  # type: ignore[no-any-return]


class CLDRO(Objective, name="dro"):
    """Contrast each positive with the worst distribution of negatives within a radius of the empirical one.

    ``-p + max_Q { E_Q s : D(Q || Q0) <= radius }``.

    * ``kl``: ``-p + min_{a >= 0} { a radius + a log mean_j e^{s_j / a} }``. The minimizer ``a*`` is InfoNCE's
      temperature: the loss has the gradient of ``a* InfoNCE(a*, denominator="mean")``. If the radius reaches the
      largest negative (``radius >= log(N / ties)``), the maximum is that negative.
    * ``chi2``: ``phi(x) = c (x - 1)^2`` over likelihood ratios ``L >= 0``; ``nonneg=False`` drops that constraint and
      has the closed form ``mean s + sqrt(radius Var / c)``.

    Paper: Wu et al. 2023, Eq. (3), (4), (17), (18), https://arxiv.org/abs/2310.11048.
    """

    formula = "-p + max_Q { E_Q[s] : D(Q || Q0) <= radius }"
    paper = PAPER
    use = "results depend on the temperature: you choose the radius instead"
    tune_first = "radius (.01 to 1)"
    cost = "an inner solve"

    radius: Real = Real(low=0, open_low=True, default=0.1, always=True, doc="``eta`` > 0.")
    divergence: Choice = Choice("kl", "chi2", default="kl", doc="See above.")
    alpha: Real[Number | None] = Real(
        low=0, open_low=True, default=None, optional=True, doc="A fixed ``a`` instead of the optimal one (``kl``)."
    )
    shared: Flag = Flag(default=False, doc="One ``a`` for the whole batch instead of one per anchor (``kl``).")
    scale: Real = Real(
        low=0, open_low=True, default=0.25, doc="``c`` of chi2; 1/4 matches the paper's conjugate ``x + x^2``."
    )
    nonneg: Flag = Flag(default=True, doc="Keep ``L >= 0`` (``chi2``).")

    def __post_init__(self) -> None:
        if self.divergence == "chi2" and (self._hyper["alpha"] is not None or self.shared):
            raise ValueError("CLDRO: alpha and shared belong to divergence='kl'.")

    @property
    def couples_anchors(self) -> bool:
        return self.shared and self._hyper["alpha"] is None

    def per_anchor(self, pos: Tensor, neg: Negatives) -> Tensor:
        return self.worst_case(neg) - pos

    def worst_case(self, neg: Negatives) -> Tensor:
        """Compute ``max_Q E_Q s``, ``(anchors, 1)``."""
        if self.divergence == "chi2":
            return chi2_worst_case(neg, self.radius, self.scale, self.nonneg)
        if self.alpha is not None:
            return self.alpha * (self.radius + log_g0(neg, self.alpha))  # type: ignore[no-any-return]
        return kl_worst_case(neg, self.radius, self.shared)

    def diagnostics(self, scores: Scores) -> dict[str, Tensor]:
        if self.divergence == "chi2" or self.alpha is not None:
            return {}
        return {"temperature": kl_alpha(scores.neg, self.radius, self.shared).mean()}


# ---- KL ----------------------------------------------------------------------------------------


def kl_alpha(neg: Tensor | Negatives, radius: Value, shared: bool = False) -> Tensor:
    """Compute the optimal ``a*`` of KL-DRO, ``(anchors, 1)``; zero where the radius reaches the largest negative.

    Solves ``KL(Q_a || Q0) = radius`` with ``Q_a ~ e^{s / a}`` for ``x = log(1 / a)``, by Newton's method with bisection
    as the fallback.
    """
    neg, radius = as_negatives(neg), _positive(radius, "radius")
    with torch.no_grad():
        top = neg.max()
        ties = neg.mean(lambda s, m: (s >= m).to(s.dtype), top) * neg.count
        reach = neg.log_count - ties.log()
        depth = (top - neg.mean(lambda s: s)).clamp(min=torch.finfo(top.dtype).tiny)

        def excess(x: Tensor) -> tuple[Tensor, Tensor]:
            """Compute KL minus radius, and its derivative in x, at the inverse temperature e^x."""
            b = x.exp()
            # top - s >= 0, so that its moments under Q are log-sum-exps too
            log_total, log_first, log_second = neg.logsumexp(
                lambda s, b, m: (
                    (s - m) * b,
                    (s - m) * b + (m - s).log(),
                    (s - m) * b + 2 * (m - s).log(),
                ),
                b,
                top,
            )
            mean, square = (log_first - log_total).exp(), (log_second - log_total).exp()
            kl = -b * mean - (log_total - neg.log_count)
            slope = b**2 * (square - mean**2)
            if shared:
                kl, slope = neg.batch_mean(kl).expand_as(kl), neg.batch_mean(slope).expand_as(slope)
            return kl - radius, slope

        if shared:
            depth, reach = neg.batch_mean(depth).expand_as(depth), neg.batch_mean(reach).expand_as(reach)
        x = _root(neg, excess, low=-depth.log() - 25, high=-depth.log() + 25)
        return torch.where(torch.as_tensor(radius, dtype=reach.dtype, device=reach.device) >= reach, 0.0, (-x).exp())


def kl_worst_case(neg: Negatives, radius: Value, shared: bool = False) -> Tensor:
    """Compute ``min_{a >= 0} { a radius + a log mean_j e^{s_j / a} }``, ``(anchors, 1)``."""
    a = kl_alpha(neg, radius, shared)
    top = neg.max()
    b = 1 / torch.where(a > 0, a, torch.ones_like(a))
    # shifted by the maximum, so that s / a does not overflow
    inner = neg.logsumexp(lambda s, b, m: (s - m) * b, b, top.detach()) - neg.log_count
    return torch.where(a > 0, a * radius + a * inner + top.detach(), top)


def tau_from_radius(neg: Tensor | Negatives, radius: Value) -> Tensor:
    """Compute the temperature that corresponds to a radius, ``sqrt(Var(s) / (2 radius))``, ``(anchors, 1)`` (Eq. 6)."""
    return (as_negatives(neg).variance() / (2 * _positive(radius, "radius"))).sqrt()


def worst_case_weights(neg: Tensor, temperature: Value) -> Tensor:
    """Compute the worst-case distribution ``Q* = softmax(s / t)`` of the negatives, ``(anchors, N)`` (Eq. 43).

    Where a tensor of temperatures is zero, as :func:`kl_alpha` may be, the largest negatives share all weight.
    """
    s = score_matrix(neg)
    t = torch.as_tensor(_positive(temperature, "temperature"), dtype=s.dtype, device=s.device)
    largest = (s >= s.amax(1, keepdim=True)).to(s.dtype)
    shares = (s / torch.where(t > 0, t, torch.ones_like(t))).softmax(1)
    return torch.where(t > 0, shares, largest / largest.sum(1, keepdim=True))


# ---- chi-squared -------------------------------------------------------------------------------


def chi2_worst_case(neg: Negatives, radius: Value, scale: Value = 0.25, nonneg: bool = True) -> Tensor:
    """Compute ``max { mean(L s) : mean L = 1, c mean (L - 1)^2 <= radius }``, ``(anchors, 1)``.

    The likelihood ratio ``L`` is at least 0 if ``nonneg``.
    """
    if not nonneg:
        variance = neg.variance()
        flat = variance <= 0  # the square root has no derivative there
        root = torch.where(flat, torch.ones_like(variance), variance * radius / scale).sqrt()
        return neg.mean(lambda s: s) + torch.where(flat, torch.zeros_like(root), root)  # type: ignore[no-any-return]
    low, total, reached = _chi2_threshold(neg, radius, scale)
    value = neg.mean(lambda s, a, m: (s.detach() - a).clamp(min=0) / m * s, low, total)
    bound = radius / scale
    if isinstance(bound, Tensor):  # the solution has no gradient; the slope of the value is the multiplier, total / 2
        value = value + total / 2 * (bound - bound.detach())
    return torch.where(reached, neg.max(), value)


def chi2_ratio(neg: Tensor | Negatives, radius: Value, scale: Value = 0.25) -> Tensor:
    """Compute the worst-case likelihood ratio ``L* = max(0, A (s - l))`` of every negative, ``(anchors, N)``."""
    neg = as_negatives(neg)
    low, total, reached = _chi2_threshold(neg, _positive(radius, "radius"), _positive(scale, "scale"))
    s = dense_scores(neg)
    top = (s >= neg.max()).to(s.dtype)
    return torch.where(reached, top / top.mean(1, keepdim=True), (s - low).clamp(min=0) / total)


def _chi2_threshold(neg: Negatives, radius: Value, scale: Value) -> tuple[Tensor, Tensor, Tensor]:
    """Compute ``l`` and ``mean (s - l)+`` of the solution, and whether the radius reaches the largest negative."""
    with torch.no_grad():
        top, mean, spread = neg.max(), neg.mean(lambda s: s), neg.variance().sqrt()
        ties = neg.mean(lambda s, m: (s >= m).to(s.dtype), top)
        need = torch.as_tensor(radius / scale, dtype=top.dtype, device=top.device)
        reached = need >= 1 / ties - 1
        gap = (top - mean).clamp(min=torch.finfo(top.dtype).tiny)

        def excess(x: Tensor) -> tuple[Tensor, Tensor]:
            """Compute mean L^2 - 1 - radius / c at l = top - e^-x, increasing in x, and its derivative."""
            depth = (-x).exp()
            first, second, share = neg.mean(
                lambda s, m, d: (
                    (s - m + d).clamp(min=0),
                    (s - m + d).clamp(min=0) ** 2,
                    (s - m + d > 0).to(s.dtype),
                ),
                top,
                depth,
            )
            return second / first**2 - 1 - need, 2 * (second * share - first**2) / first**3 * depth

        # if every L >= 0, the closed form is exact: l = mean - sd / sqrt(radius / c); otherwise l is larger
        start = -(top - mean + spread / need.sqrt()).clamp(min=torch.finfo(top.dtype).tiny).log()
        x = _root(neg, excess, low=start, high=-gap.log() + 25, start=start)
        low = top - (-x).exp()
        total = neg.mean(lambda s, a: (s - a).clamp(min=0), low)
        total = torch.where(total > 0, total, torch.ones_like(total))
        return low, total, reached


# ---- mutual information ------------------------------------------------------------------------


def mutual_information(
    pos: Tensor, neg: Tensor | Negatives, divergence: str = "kl", temperature: Value = 1.0
) -> Tensor:
    """Estimate phi-mutual information from a critic's scores by its tight variational bound (Wu et al. 2023, sec. 4).

    * ``kl``: ``t (E[p / t] - log E[e^{s / t}])``, i.e. minus InfoNCE's mean form, times ``t``.
    * ``chi2``: ``E[p] - E[s] - Var[s]``, from ``phi* = x + x^2``.

    Args:
        pos: ``(anchors,)`` or ``(anchors, P)`` scores of joint pairs.
        neg: ``(anchors, N)`` scores of independent pairs.
        divergence: ``kl`` or ``chi2``.
        temperature: ``t`` of the KL estimate.

    Returns:
        A scalar.
    """
    pos, negatives = checks.is_finite(score_columns(pos, "pos"), "pos"), as_negatives(neg)
    if divergence == "kl":
        t = _positive(temperature, "temperature")
        return pos.mean() - (t * log_g0(negatives, t)).mean()
    if divergence == "chi2":
        return pos.mean() - (negatives.mean(lambda s: s) + negatives.variance()).mean()  # type: ignore[no-any-return]
    raise ValueError(
        f"mutual_information: unknown divergence {divergence!r}.{nearest(str(divergence), ('kl', 'chi2'))}"
    )


# ---- shared ------------------------------------------------------------------------------------


def _positive(value: Value, what: str) -> Value:
    if not isinstance(value, Tensor) and not (is_number(value) and value > 0):
        raise ValueError(f"{what}: expected a positive number, got {value!r}.")
    return value


def _root(
    neg: Negatives,
    excess: Callable[[Tensor], tuple[Tensor, Tensor]],
    low: Tensor,
    high: Tensor,
    start: Tensor | None = None,
) -> Tensor:
    """Find the root of an increasing function for each anchor: Newton's method, or bisection outside the bracket."""
    x = (low + high) / 2 if start is None else start
    for _ in range(STEPS):
        value, slope = excess(x)
        low, high = torch.where(value < 0, x, low), torch.where(value < 0, high, x)
        step = x - value / torch.where(slope > 0, slope, torch.ones_like(slope))
        inside = (slope > 0) & (step >= low) & (step <= high)
        last, x = x, torch.where(inside, step, (low + high) / 2)
        if checks.wanted(x):
            moving = (x - last).abs() > 4 * torch.finfo(x.dtype).eps * x.abs()
            if not bool(neg.across(moving.any().float(), "max")):  # all ranks stop together
                break
    return x
