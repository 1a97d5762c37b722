"""CL-DRO: contrastive learning as distributionally robust optimisation over the negatives.

All objectives here are in units of the similarity, as in the paper: nothing is divided by a temperature. The inner
problems are solved with reductions alone, without gradient; the value at the solution then carries the gradient of
the envelope theorem.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .. import checks
from ..batch.ready_made import as_negatives, score_columns, score_matrix
from ..batch.scores import Scores
from ..engine.negatives import Negatives
from ..hyper import Choice, Flag, Number, Real, Value, is_number, nearest
from ..objective import Objective
from .infonce import log_g0

STEPS = 60  # at most; an accelerator takes them all, since a convergence test would make the host wait for it


class MeanVariance(Objective, name="mv"):
    """The mean-variance surrogate of InfoNCE: ``-p + mean(s) + Var(s) / (2 t phi''(1))``.

    It is ``t`` times InfoNCE's mean form up to ``O(1 / t^2)``.

    Args:
        temperature: ``t`` > 0.
        curvature: ``phi''(1)`` of the divergence, > 0; 1 for KL.

    Paper: Wu et al. 2023, Eq. (7), (8).
    """

    formula = "-p + mean_j s_j + Var_j(s_j) / (2 t phi''(1))"
    paper = "Wu et al. 2023, understanding contrastive learning via distributionally robust optimization"

    temperature = Real("t", 0, open_low=True, always=True)
    curvature = Real("curvature", 0, open_low=True)

    def __init__(self, temperature: Number = 0.5, curvature: Number = 1.0) -> None:
        super().__init__(temperature=temperature, curvature=curvature)

    def per_anchor(self, pos: Tensor, neg: Negatives) -> Tensor:
        return neg.mean(lambda s: s) + neg.variance() / (2 * self.temperature * self.curvature) - pos  # type: ignore[no-any-return]


class CLDRO(Objective, name="dro"):
    """Contrast with the worst distribution of negatives within a radius of the empirical one.

    ``-p + max_Q { E_Q s : D(Q || Q0) <= radius }``.

    * ``kl``: ``-p + min_{a >= 0} { a radius + a log mean_j e^{s_j / a} }``. The minimiser ``a*`` is InfoNCE's
      temperature: the loss has the gradient of ``a* InfoNCE(a*, denominator="mean")``. If the radius reaches the
      largest negative (``radius >= log(N / ties)``), the value is that negative.
    * ``chi2``: ``phi(x) = c (x - 1)^2`` over likelihood ratios ``L >= 0``; ``nonneg=False`` drops that constraint and
      has the closed form ``mean s + sqrt(radius Var / c)``.

    Args:
        radius: ``eta`` > 0.
        divergence: ``kl`` or ``chi2``.
        alpha: a fixed ``a`` instead of the optimal one (``kl``).
        shared: one ``a`` for the whole batch instead of one per anchor (``kl``).
        scale: ``c`` of chi2, > 0; 1/4 is the one that fits the paper's conjugate ``x + x^2``.
        nonneg: keep ``L >= 0`` (``chi2``).

    Paper: Wu et al. 2023, Eq. (3), (4), (17), (18).
    """

    formula = "-p + max_Q { E_Q[s] : D(Q || Q0) <= radius }"
    paper = "Wu et al. 2023, understanding contrastive learning via distributionally robust optimization"

    radius = Real("radius", 0, open_low=True, always=True)
    divergence = Choice("kl", "chi2")
    alpha = Real("alpha", 0, open_low=True, optional=True)
    shared = Flag("shared")
    scale = Real("scale", 0, open_low=True)
    nonneg = Flag("nonneg")

    def __init__(
        self,
        radius: Number = 0.1,
        divergence: str = "kl",
        alpha: Number | None = None,
        shared: bool = False,
        scale: Number = 0.25,
        nonneg: bool = True,
    ) -> None:
        super().__init__(radius=radius, divergence=divergence, alpha=alpha, shared=shared, scale=scale, nonneg=nonneg)
        if divergence == "chi2" and (alpha is not None or shared):
            raise ValueError("CLDRO: alpha and shared belong to divergence='kl'.")

    @property
    def couples_anchors(self) -> bool:
        return bool(self.shared) and self._hyper["alpha"] is None

    def per_anchor(self, pos: Tensor, neg: Negatives) -> Tensor:
        return self.worst_case(neg) - pos

    def worst_case(self, neg: Negatives) -> Tensor:
        """``max_Q E_Q s`` per anchor."""
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
    """The optimal ``a*`` of KL-DRO, ``(anchors, 1)``; zero where the radius reaches the largest negative.

    It solves ``KL(Q_a || Q0) = radius`` with ``Q_a ~ e^{s / a}``, in ``x = log(1 / a)``, by Newton steps that fall back
    to bisection.
    """
    neg, radius = as_negatives(neg), _positive(radius, "radius")
    with torch.no_grad():
        top = neg.max()
        ties = neg.mean(lambda s, m: (s >= m).to(s.dtype), top) * neg.count
        reach = neg.log_count - ties.log()
        depth = (top - neg.mean(lambda s: s)).clamp(min=torch.finfo(top.dtype).tiny)

        def excess(x: Tensor) -> tuple[Tensor, Tensor]:
            """KL minus radius and its derivative in x, at the inverse temperature e^x."""
            b = x.exp()
            # below the top u = top - s >= 0, so that moments under Q are log-sum-exps too
            total, one, two = neg.logsumexp(
                lambda s, b, m: (
                    (s - m) * b,
                    (s - m) * b + (m - s).log(),
                    (s - m) * b + 2 * (m - s).log(),
                ),
                b,
                top,
            )
            mean, square = (one - total).exp(), (two - total).exp()
            kl = -b * mean - (total - neg.log_count)
            slope = b**2 * (square - mean**2)
            if shared:
                kl, slope = neg.batch_mean(kl).expand_as(kl), neg.batch_mean(slope).expand_as(slope)
            return kl - radius, slope

        if shared:
            depth, reach = neg.batch_mean(depth).expand_as(depth), neg.batch_mean(reach).expand_as(reach)
        x = _root(neg, excess, low=-depth.log() - 25, high=-depth.log() + 25)
        return torch.where(torch.as_tensor(radius, dtype=reach.dtype, device=reach.device) >= reach, 0.0, (-x).exp())


def kl_worst_case(neg: Negatives, radius: Value, shared: bool = False) -> Tensor:
    """``min_{a >= 0} { a radius + a log mean_j e^{s_j / a} }`` per anchor (or with one ``a`` for all)."""
    a = kl_alpha(neg, radius, shared)
    top = neg.max()
    b = 1 / torch.where(a > 0, a, torch.ones_like(a))
    # shifted by the top, so that s / a never overflows
    inner = neg.logsumexp(lambda s, b, m: (s - m) * b, b, top.detach()) - neg.log_count
    return torch.where(a > 0, a * radius + a * inner + top.detach(), top)


def tau_from_radius(neg: Tensor | Negatives, radius: Value) -> Tensor:
    """The temperature that a robust radius implies, ``sqrt(Var(s) / (2 radius))``, ``(anchors, 1)`` (Eq. 6)."""
    return (as_negatives(neg).variance() / (2 * _positive(radius, "radius"))).sqrt()


def worst_case_weights(neg: Tensor, temperature: Value) -> Tensor:
    """The worst-case distribution ``Q* = softmax(s / t)`` of the negatives, ``(anchors, N)`` (Eq. 43).

    Where a tensor of temperatures is zero, as :func:`kl_alpha` may be, it is the largest negative's, shared by ties.
    """
    s = score_matrix(neg)
    t = torch.as_tensor(_positive(temperature, "temperature"), dtype=s.dtype, device=s.device)
    largest = (s >= s.amax(1, keepdim=True)).to(s.dtype)
    shares = (s / torch.where(t > 0, t, torch.ones_like(t))).softmax(1)
    return torch.where(t > 0, shares, largest / largest.sum(1, keepdim=True))


# ---- chi-squared -------------------------------------------------------------------------------


def chi2_worst_case(neg: Negatives, radius: Value, scale: Value = 0.25, nonneg: bool = True) -> Tensor:
    """``max { mean(L s) : mean L = 1, c mean (L - 1)^2 <= radius }`` per anchor, with ``L >= 0`` if ``nonneg``."""
    if not nonneg:
        variance = neg.variance()
        flat = variance <= 0  # the root has no derivative there, and nothing to gain
        root = torch.where(flat, torch.ones_like(variance), variance * radius / scale).sqrt()
        return neg.mean(lambda s: s) + torch.where(flat, torch.zeros_like(root), root)  # type: ignore[no-any-return]
    low, total, reached = _chi2_threshold(neg, radius, scale)
    value = neg.mean(lambda s, a, m: (s.detach() - a).clamp(min=0) / m * s, low, total)
    bound = radius / scale
    if isinstance(bound, Tensor):  # the solution is constant here; the multiplier, total / 2, is the value's slope
        value = value + total / 2 * (bound - bound.detach())
    return torch.where(reached, neg.max(), value)


def chi2_ratio(neg: Tensor | Negatives, radius: Value, scale: Value = 0.25) -> Tensor:
    """The worst-case likelihood ratio ``L* = max(0, A (s - l))`` of every negative, ``(anchors, N)``."""
    neg = as_negatives(neg)
    low, total, reached = _chi2_threshold(neg, _positive(radius, "radius"), _positive(scale, "scale"))
    s = dense_scores(neg)
    top = (s >= neg.max()).to(s.dtype)
    return torch.where(reached, top / top.mean(1, keepdim=True), (s - low).clamp(min=0) / total)


def _chi2_threshold(neg: Negatives, radius: Value, scale: Value) -> tuple[Tensor, Tensor, Tensor]:
    """``l`` and ``mean (s - l)+`` of the solution, and whether the radius reaches the largest negative."""
    with torch.no_grad():
        top, mean, spread = neg.max(), neg.mean(lambda s: s), neg.variance().sqrt()
        ties = neg.mean(lambda s, m: (s >= m).to(s.dtype), top)
        need = torch.as_tensor(radius / scale, dtype=top.dtype, device=top.device)
        reached = need >= 1 / ties - 1
        gap = (top - mean).clamp(min=torch.finfo(top.dtype).tiny)

        def excess(x: Tensor) -> tuple[Tensor, Tensor]:
            """mean L^2 - 1 - radius / c at l = top - e^-x, increasing in x, and its derivative."""
            depth = (-x).exp()
            one, two, share = neg.mean(
                lambda s, m, d: (
                    (s - m + d).clamp(min=0),
                    (s - m + d).clamp(min=0) ** 2,
                    (s - m + d > 0).to(s.dtype),
                ),
                top,
                depth,
            )
            return two / one**2 - 1 - need, 2 * (two * share - one**2) / one**3 * depth

        # with every L >= 0 the closed form holds: l = mean - sd / sqrt(radius / c); else l lies above it
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
    """The tight variational estimate of phi-mutual information that a critic's scores give (Wu et al. 2023, sec. 4).

    * ``kl``: ``t (E[p / t] - log E[e^{s / t}])``, i.e. minus InfoNCE's mean form, times ``t``.
    * ``chi2``: ``E[p] - E[s] - Var[s]``, from ``phi* = x + x^2``.

    Args:
        pos: ``(anchors,)`` or ``(anchors, P)`` scores of joint pairs.
        neg: ``(anchors, N)`` scores of independent pairs.
        divergence: ``kl`` or ``chi2``.
        temperature: ``t`` of the KL estimate.
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


def dense_scores(neg: Negatives) -> Tensor:
    scores: Tensor | None = getattr(neg, "scores", None)
    if scores is None:
        raise TypeError("the weight of every single negative needs a matrix of scores.")
    return scores


def _root(
    neg: Negatives,
    excess: Callable[[Tensor], tuple[Tensor, Tensor]],
    low: Tensor,
    high: Tensor,
    start: Tensor | None = None,
) -> Tensor:
    """The root of an increasing function per anchor: Newton where it stays in the bracket, else bisection."""
    x = (low + high) / 2 if start is None else start
    for _ in range(STEPS):
        value, slope = excess(x)
        low, high = torch.where(value < 0, x, low), torch.where(value < 0, high, x)
        step = x - value / torch.where(slope > 0, slope, torch.ones_like(slope))
        inside = (slope > 0) & (step >= low) & (step <= high)
        last, x = x, torch.where(inside, step, (low + high) / 2)
        if checks.wanted(x):
            moving = (x - last).abs() > 4 * torch.finfo(x.dtype).eps * x.abs()
            if not bool(neg.across(moving.any().float(), "max")):  # processes that share a batch stop together
                break
    return x
