"""InfoNCE and the estimators of the negative mass: g0 (plain), g1 (debiased) and g2 (hard, debiased)."""

import math
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..base import Objective
from ..batch.scores import Negatives, Scores, logsumexp_over
from ..checks import is_number
from ..hyper import Choice, Flag, Real
from ..values import Tracked, Value, log

Denominator = Literal["with_positive", "negatives", "mean"]

EXPONENT = 60.0  # larger ones overflow float32
LARGEST_COSINE = 1 - 2.0**-20  # a number in float32, too


def softplus(x: Tensor) -> Tensor:
    """Compute ``log(1 + e^x)``; from 40 on it is ``x`` in float64 too."""
    return torch.nn.functional.softplus(x, threshold=40)


def log_g0(neg: Negatives, t: Value) -> Tensor:
    """Compute ``log mean_j e^{s_j / t}``, ``(anchors, 1)``."""
    return neg.logsumexp(lambda s: s / t) - neg.log_count  # type: ignore[no-any-return]


def log_debiased(
    scores: Scores, neg: Negatives, t: Value, prior: Value, beta: Value | None, detach: bool = False
) -> tuple[Tensor, Tensor]:
    """Compute ``log g1`` (``beta=None``) or ``log g2``, and where the floor is active, each ``(anchors, 1)``.

    ``g = max{(u - prior mean_k E(v_k)) / (1 - prior), e^{-1/t}}`` where ``u`` is the plain or the hard mean of the
    negatives ``neg``, and ``v`` are the positives of ``scores``, whose prior comes before ``prior``. The floor is the
    smallest mass that true negatives can have if similarities are cosines.
    """
    # u and the positives' share may nearly cancel: both are relative to a positive, subtracted before a division by t
    v, v_mask = (scores.pos, scores.pos_mask) if scores.v is None else (scores.v, None)
    prior = prior if scores.prior is None else scores.prior
    base = v[:, :1].detach()
    if beta is None:
        log_u = neg.logsumexp(lambda s, base: (s - base) / t, base) - neg.log_count
    else:

        def powers(s: Tensor, base: Tensor) -> tuple[Tensor, Tensor]:
            log_k = (s - base) / t
            log_w = beta * (log_k.detach() if detach else log_k)
            return log_k + log_w, log_w

        log_sum, log_total = neg.logsumexp(powers, base)
        log_u = log_sum - log_total
    count = float(v.shape[1]) if v_mask is None else v_mask.sum(1, keepdim=True).clamp(min=1).to(v.dtype)
    log_v = logsumexp_over((v - base) / t, v_mask) - log(count)
    floor = -(1 + base) / t
    if isinstance(prior, Tensor):
        prior = prior + (prior == 0) * 1e-30  # so that the gradient of its logarithm is finite
    gap = log_v + log(prior) - log_u
    below = gap >= 0
    # where the difference is not positive, a placeholder keeps the unused gradient finite
    value = log_u + log1mexp(gap.masked_fill(below, -1.0)) - log(1 - prior)
    floored = below | (value <= floor)
    return torch.where(floored, floor, value) + base / t, floored


def log1mexp(x: Tensor) -> Tensor:
    """Compute ``log(1 - e^x)`` for x < 0, accurately near 0 and far from it."""
    near = x > -math.log(2)
    small, large = x.masked_fill(~near, -1.0), x.masked_fill(near, -1.0)
    return torch.where(near, (-small.expm1()).log(), (-large.exp()).log1p())


class InfoNCE(Objective, name="infonce"):
    """InfoNCE, also known as the NT-Xent, N-pair or in-batch softmax loss.

    ``-log E(p) / (E(p) + N mean_j E(s_j)),  E(s) = e^{s/t}``. With ``G = mean_j E(s_j)``, which subclasses replace:

    ==================  =====================================  ===========================================
    ``denominator``     loss                                   used by
    ==================  =====================================  ===========================================
    ``with_positive``   ``-log E(p) / (E(p) + N G)``           SimCLR, MoCo, SimCSE, CLIP; never negative
    ``negatives``       ``-log E(p) / (N G)``                  GraphCL, decoupled contrastive learning
    ``mean``            ``-log E(p) / G``                      CL-DRO's Eq. (1); may be negative
    ==================  =====================================  ===========================================

    Several positives are averaged outside the logarithm. Keep the denominator in comparisons: it changes results, too.

    Papers:
    van den Oord et al. 2018, https://arxiv.org/abs/1807.03748;
    Chen et al. 2020 (SimCLR), https://arxiv.org/abs/2002.05709;
    Yeh et al. 2022 (decoupled), https://arxiv.org/abs/2110.06848;
    Wu et al. 2023 (CL-DRO, Eq. 1 and 6), https://arxiv.org/abs/2310.11048.

    >>> z1, z2 = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(0))
    >>> round(cp.InfoNCE(0.5)(z1, z2).item(), 4)
    2.5932
    """

    paper = "Chen et al. 2020, SimCLR, https://arxiv.org/abs/2002.05709"
    use = "a baseline, and often enough"
    tune_first = "t: it matters more than any other parameter"
    cost = "the reference for all others"
    pairing = "views"  # of SimCLR; that of all relatives of InfoNCE, such as ADNCE

    temperature: Real = Real("t", above=0, default=0.5, always=True, doc="``t`` > 0.")
    denominator: Choice[Denominator] = Choice(
        *get_args(Denominator), default="with_positive", always=True, kw_only=True, doc="See InfoNCE's table."
    )
    radius: Real[float | None, float | None] = Real(
        above=0, default=None, optional=True, fixed=True, kw_only=True,
        doc="If set, ``t = sqrt(Var(s) / (2 radius))``, CL-DRO's rule: its worst case is about this far away in KL.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.radius is not None:
            self.tracked_temperature: Tracked = Tracked()

    def __init_subclass__(cls, **options: Any) -> None:
        if "per_anchor" in vars(cls) and cls.losses is InfoNCE.losses:
            raise TypeError(f"{cls.__name__}: InfoNCE does not call per_anchor; define it in a subclass of Objective.")
        super().__init_subclass__(**options)

    def losses(self, scores: Scores) -> Tensor:
        t = self.tau(scores.neg)
        losses, factor = self.losses_by_positive(scores, t), scores.positive_factor
        return losses if factor is None else losses + (1 - factor) * (scores.pos / t)

    def losses_by_positive(self, scores: Scores, t: Value) -> Tensor:
        """Compute the loss of each positive, ``(anchors, P)``, before ``positive_factor``."""
        return self.contrast(scores, self.log_mass(scores, t), t)

    def tau(self, neg: Negatives) -> Value:
        """Return the temperature, or the one that corresponds to ``radius``."""
        if self.radius is None:
            return self.temperature
        with torch.no_grad():
            t = (neg.batch_mean(neg.variance()) / (2 * self.radius)).sqrt()
        # without variance, any temperature gives the same weights
        return self.tracked_temperature(t.clamp(min=1e-3))  # type: ignore[no-any-return]

    def log_mass(self, scores: Scores, t: Value) -> Tensor:
        """Estimate the total mass of the negatives, as ``log (N G)``, ``(anchors, 1)``."""
        return scores.neg.logsumexp(lambda s: s / t)  # type: ignore[no-any-return]

    def contrast(self, scores: Scores, log_mass: Tensor, t: Value) -> Tensor:
        """Compute ``-log E(p) / (...)`` with the chosen denominator, ``(anchors, P)``."""
        if self.denominator == "mean":
            return log_mass - scores.neg.log_count - scores.pos / t
        if self.denominator == "negatives" or scores.negatives_only:
            return log_mass - scores.pos / t
        if (kept := scores.denominator_pos) is not None:
            return softplus(log_mass - kept / t) + (kept - scores.pos) / t
        gap = log_mass - scores.pos / t
        return softplus(gap) if scores.times == 1 else softplus(gap - math.log(scores.times)) + math.log(scores.times)


class DCL(InfoNCE, name="dcl"):
    """Debiased contrastive loss: subtract the expected mass of false negatives (g1). Lightly's ``DCLLoss`` is another.

    ``-log E(p) / (E(p) + N g1),  g1 = max{(mean E(s) - prior mean E(v)) / (1 - prior), e^{-1/t}}``, where ``v`` are the
    anchor's own positives. Where the floor is active, ``g1`` has no gradient. ``prior = 0`` is InfoNCE. The *decoupled*
    loss that others call DCL is ``infonce:denominator=negatives``.

    Paper: Chuang et al. 2020, https://arxiv.org/abs/2007.00224.

    >>> cp.DCL(0.5, prior=0.1)(torch.eye(4), torch.eye(4))
    tensor(0.2115)
    """

    use = "many false negatives, and you know their share of the batch (the class prior)"
    tune_first = "t, then prior (.01, .05, .1)"
    cost = "negligible"
    on_cosines = True

    prior: Real = Real(
        low=0, below=1, default=0.1,
        doc="``tau+``, the share of false ones among all of an anchor's negatives in the batch, not its mined ones "
        "alone; or one per sample in the call: ``loss_fn(z1, z2, prior=tensor)``.",
    )  # fmt: skip

    def log_mass(self, scores: Scores, t: Value) -> Tensor:
        return self._estimate(scores, t)[0] + scores.neg.log_count

    def _estimate(self, scores: Scores, t: Value) -> tuple[Tensor, Tensor]:
        return log_debiased(scores, scores.neg, t, self.prior, None)

    def diagnostics(self, scores: Scores) -> dict[str, Tensor]:
        _, floored = self._estimate(scores, self.tau(scores.neg))
        return {"clamp_rate": floored.to(scores.pos.dtype).mean()}


class HCL(DCL, name="hcl"):
    """Hard-negative contrastive loss: debiased, with more weight on the most similar negatives (g2).

    ``-log E(p) / (E(p) + N g2),  g2 = DCL's g1 with mean E(s) weighted by E(s)^beta``: in place of the mean,
    ``sum_j E(s_j)^{beta+1} / sum_j E(s_j)^beta``. ``beta = 0`` is :class:`DCL`.

    Paper: Robinson et al. 2021, https://arxiv.org/abs/2010.04592.

    >>> cp.HCL(0.5, beta=2)(torch.eye(4), torch.eye(4))
    tensor(0.2115)
    """

    use = "as dcl, where hard negatives should count more"
    tune_first = "t, from (1 + beta) times that of InfoNCE on; then prior (.01, .05, .1), then beta (.5, 1, 2)"
    cost = "one more log-sum-exp"

    beta: Real = Real(low=0, default=1.0, doc="Concentration on hard negatives, at least 0.")
    detach_weights: Flag = Flag(
        default=False, kw_only=True, doc="Treat the weights ``E(s)^beta`` as constants; the official code does not."
    )

    def _estimate(self, scores: Scores, t: Value) -> tuple[Tensor, Tensor]:
        return log_debiased(scores, scores.neg, t, self.prior, self.beta, self.detach_weights)


def first_temperature(objective: Objective, t: float) -> float:
    """Return the temperature to try first, given InfoNCE's: HCL weighs negatives by ``e^{(1 + beta) s / t}``."""
    betas = [part.beta for part in objective.modules() if isinstance(part, HCL)]
    return t * (1 + max((beta for beta in betas if is_number(beta)), default=0.0))


class RINCE(InfoNCE, name="rince"):
    """Robust InfoNCE: positives that are wrong pull less, the more so the larger ``q`` is.

    ``(-E(p)^q + (lam (E(p) + sum_j E(s_j)))^q) / q,  E(s) = e^{s/t}``. As ``q`` approaches 0, this is InfoNCE plus
    ``log lam``; at ``q = 1`` it is robust to noise as symmetric losses are. Keep ``2 q / t`` below 60: the loss grows
    like ``e^{q / t}``, and its exponents are cut off there.

    Paper: Chuang et al. 2022, Eq. (4), https://arxiv.org/abs/2201.04309.

    >>> cp.RINCE(0.5)(torch.eye(4), torch.eye(4))
    tensor(-4.0355)
    """

    use = "positives are sometimes wrong pairs"
    tune_first = "t, then q (.1 to .5), then lam (.001 to .1)"
    cost = "negligible"

    q: Real = Real(above=0, high=1, default=0.1, doc="Robustness, in ``(0, 1]``.")
    lam: Real = Real(above=0, high=1, default=0.01, doc="Weight of the denominator, in ``(0, 1]``.")

    def losses(self, scores: Scores) -> Tensor:
        t, q = self.tau(scores.neg), self.q
        log_share = super().losses_by_positive(scores, t) + log(self.lam)
        exponent = (q * scores.pos / t).clamp(-EXPONENT, EXPONENT)
        difference = torch.expm1((q * log_share).clamp(max=EXPONENT - exponent.clamp(min=0)))  # which cannot cancel
        return exponent.exp() * difference / q


def log_odds(s: Tensor) -> Tensor:
    """Compute ``log((1 + s) / (1 - s)) = 2 arctanh(s)`` of a cosine, bounded."""
    return 2 * s.clamp(-LARGEST_COSINE, LARGEST_COSINE).atanh()


class Arctanh(Objective, name="arctanh"):
    """InfoNCE without a temperature: ``2 arctanh(s)``, the log-odds of a cosine, in place of ``s / t``.

    ``-log E(p) / (E(p) + sum_j E(s_j)),  E(s) = (1 + s) / (1 - s)``.

    Paper: Kim and Kim 2025, https://arxiv.org/abs/2501.17683.

    >>> z1, z2 = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(0))
    >>> round(cp.Arctanh()(z1, z2).item(), 4)
    2.5845
    """

    use = "you cannot tune a temperature"
    tune_first = "nothing: it has no parameter"
    cost = "an inverse hyperbolic tangent more"
    on_cosines = True

    def per_anchor(self, pos: Tensor, neg: Negatives) -> Tensor:
        return softplus(neg.logsumexp(log_odds) - log_odds(pos))
