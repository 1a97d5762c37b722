"""ADNCE, which weights negatives by how informative their similarity is, and the baseline it compares with."""

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from .. import checks
from ..base import Objective
from ..batch.ready_made import as_negatives, similarity_matrix
from ..batch.scores import Negatives, Scores
from ..hyper import Choice, Flag, Real
from ..values import Number, Tracked, Value, bounds, log, text
from .infonce import Denominator, InfoNCE, softplus

Family = Literal["gaussian", "gamma", "rayleigh", "chi2"]

TINY = 1e-6  # a density that is infinite at s = -1 has its weight at this distance there
SMALL = 1e3  # with log-weights of at most this, exponents are rounded to 1e-4 in float32


def log_weight(s: Tensor, family: str, mu: Value, sigma: Value) -> Tensor:
    """Compute the logarithm of ADNCE's weight, up to a constant, from the raw similarity (Table 11 of the paper).

    ========  ===========================================  ============================
    family    weight, with ``x = s + 1``                   parameters
    ========  ===========================================  ============================
    gaussian  ``exp(-(s - mu)^2 / (2 sigma^2))``           mean ``mu``, deviation ``sigma``
    gamma     ``x^{mu - 1} e^{-x / sigma}``                shape ``mu``, scale ``sigma``
    rayleigh  ``x e^{-x^2 / (2 mu^2)}``                    scale ``mu``
    chi2      ``x^{mu / 2 - 1} e^{-x / 2}``                degrees of freedom ``mu``
    ========  ===========================================  ============================

    Where the density vanishes (at ``x <= 0``, if its power of ``x`` is positive), so does the weight, unless all do.
    """
    if family == "gaussian":  # tiles see from these operations that it is quadratic
        return (s - mu) ** 2 * (-0.5 / sigma**2)
    x = torch.where(s > -1, s + 1, TINY)
    power = 1.0 if family == "rayleigh" else mu - 1 if family == "gamma" else mu / 2 - 1
    decay = x**2 / (2 * mu**2) if family == "rayleigh" else x / (sigma if family == "gamma" else 2)
    vanished = (s <= -1) & torch.as_tensor(power > 0, device=s.device)
    # no weight beside any other, and equal weights where all vanish
    return torch.where(vanished, torch.finfo(s.dtype).min / 8, power * x.log() - decay)


class ADNCE(InfoNCE, name="adnce"):
    """Adjusted InfoNCE: weight negatives by how informative their similarity is.

    ``-log E(p) / (E(p) + sum_j w_j E(s_j)),  w ~ exp(-(s - mu)^2 / (2 sigma^2)), mean w = 1``. The weights, constants
    without gradient, are a density of the raw similarity, not of ``s / t``; see :func:`log_weight`.

    Beside InfoNCE, the inverse temperature at similarity ``s`` is ``1 / t + (mu - s) / sigma^2``: below ``mu``, similar
    negatives compete harder, above it less. The most similar negative gets less than another one only beyond ``mu +
    sigma^2 / t``, which exceeds 1 in most of the paper's settings. Where the second term is small, ADNCE is InfoNCE, as
    ``counterpoint objectives "adnce:mu=.4,sigma=1,t=.05"`` says. OlmoEarth's "ADNCE" weights logits: another loss.

    The authors' code differs by domain: ``denominator="with_positive"`` is their image code, ``mean`` is Eq. (12) and
    their graph code, ``all`` is their sentence code, which weights the positive together with the negatives and keeps
    it in the denominator with its weight (that loss can be negative).

    The paper's searches: images ``mu`` .5 to .9 (CIFAR-10 ``mu=.7, sigma=.5, t=.4``), sentences ``mu=.4, t=.07`` with
    BERT, graphs ``mu`` .2 to 2, ``sigma=1``.

    Paper: Wu et al. 2023, Eq. (11), (12), Table 11, https://arxiv.org/abs/2310.11048.

    >>> cp.ADNCE(0.5, mu=0.7)(torch.eye(4), torch.eye(4))
    tensor(0.5944)
    """

    use = "many false negatives (few classes, near-duplicates), and you do not know how many"
    tune_first = "t, then mu (.4 to .9), then sigma (.5, 1); or mu=auto"
    cost = "one more log-sum-exp"
    on_cosines = True

    denominator: Choice[Denominator | Literal["all"]] = Choice(  # pyright: ignore[reportIncompatibleVariableOverride]
        *get_args(Denominator), "all", default="with_positive", always=True, kw_only=True, doc="See the details."
    )
    mu: Real[Number | Literal["auto"], Value | str] = Real(
        words=("auto",), default=0.7, doc="Center (gaussian), shape (gamma), scale (rayleigh) or degrees of freedom "
        '(chi2). ``"auto"`` tracks the ``quantile`` of the training negatives\' similarities.',
    )  # fmt: skip
    sigma: Real[Number | Literal["auto"], Value | str] = Real(
        above=0, words=("auto",), default=1.0,
        doc='Standard deviation (gaussian) or scale (gamma) > 0. ``"auto"`` tracks that of the training negatives.',
    )  # fmt: skip
    weight: Choice[Family] = Choice(*get_args(Family), default="gaussian", doc="The family of densities.")
    quantile: Real[float, float] = Real(above=0, below=1, default=0.9, fixed=True, kw_only=True, doc="See ``mu``.")

    def __post_init__(self) -> None:
        super().__post_init__()
        mu, sigma, weight = (self._hyper[key] for key in ("mu", "sigma", "weight"))
        if "auto" in (mu, sigma) and weight != "gaussian":
            raise ValueError(f"ADNCE: mu and sigma can be 'auto' for weight='gaussian' only, got weight={weight!r}.")
        if weight != "gaussian" and bounds(mu)[0] <= 0:
            raise ValueError(f"ADNCE: mu must be positive for weight={weight!r}, got {text(mu)}.")
        if mu == "auto":
            self.tracked_mu: Tracked = Tracked()
        if sigma == "auto":
            self.tracked_sigma: Tracked = Tracked()

    def mu_and_sigma(self, neg: Negatives) -> tuple[Value, Value]:
        """Return ``mu`` and ``sigma``, tracked if ``"auto"``."""
        mu, sigma = self.mu, self.sigma
        if isinstance(mu, str):
            mu = self.tracked_mu(quantile(neg, self.quantile))
        if isinstance(sigma, str):
            sigma = self.tracked_sigma(spread(neg).clamp(min=1e-3))
        return mu, sigma

    def log_mass(self, scores: Scores, t: Value) -> Tensor:
        log_sum, log_total, _ = self.weighted_sums(scores, t)
        return log_sum - log_total + scores.neg.log_count  # of weights with mean one

    def weighted_sums(self, scores: Scores, t: Value) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]:
        """Compute ``log sum_j w_j E(s_j)`` and ``log sum_j w_j``, and return the function ``log w`` of a similarity."""
        family, (mu, sigma) = self.weight, self.mu_and_sigma(scores.neg)

        def sums(s: Tensor) -> tuple[Tensor, Tensor]:
            log_w = log_weight(s.detach(), family, mu, sigma)
            return log_w + s / t, log_w

        log_sum, log_total = scores.neg.logsumexp(sums)
        shift: Value = 0.0
        if scores.neg.group is None and checks.wanted(log_total):
            may_cancel = not bool((log_total.detach().abs() <= SMALL).all())
        else:  # where values cannot be read, or processes must agree
            known = family == "gaussian" and not isinstance(mu, Tensor) and not isinstance(sigma, Tensor)
            may_cancel = scores.bound is None or not known or ((1 + abs(float(mu))) / float(sigma)) ** 2 > 2 * SMALL
        if may_cancel:  # rare: a similarity, added to log-weights that large, would lose its digits
            lowest = torch.finfo(log_total.dtype).min / 4
            shift = torch.clamp(log_total.detach(), min=lowest)

            def shifted(s: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
                # bounded, and so not multiplied out as a quadratic function, whose terms would cancel
                log_w = log_weight(s.detach(), family, mu, sigma).clamp(min=lowest) - shift
                return log_w + s / t, log_w

            log_sum, log_total = scores.neg.logsumexp(shifted, shift)
        if not any(isinstance(value, Tensor) and value.requires_grad for value in (mu, sigma)):
            # tiles drop gradients that are tiny beside the largest; detached, a constant cannot be that largest one
            log_total = log_total.detach()
        return log_sum, log_total, lambda s: log_weight(s.detach(), family, mu, sigma) - shift

    def losses_by_positive(self, scores: Scores, t: Value) -> Tensor:
        if self.denominator != "all":
            return super().losses_by_positive(scores, t)
        log_sum, log_total, log_w = self.weighted_sums(scores, t)
        pos = scores.pos if scores.denominator_pos is None else scores.denominator_pos
        # relative to the positive, which may be nearly all of the denominator, or have no weight
        log_w_pos = log_w(pos)
        mass, weight = log_sum - log_w_pos - pos / t, log_total - log_w_pos
        small = softplus(mass) - softplus(weight)
        large = log_sum - pos / t - log_total + softplus(-mass) - softplus(-weight)
        losses = torch.where((mass > 0) & (weight > 0), large, small) + log(scores.neg.count + 1)
        return losses if scores.denominator_pos is None else losses + (pos - scores.pos) / t

    def weights(self, neg: Tensor) -> Tensor:
        """Return the weights of ``(anchors, N)`` negatives; the mean of each row is one."""
        s = similarity_matrix(neg).detach()
        return log_weight(s, self.weight, *self.mu_and_sigma(as_negatives(s))).softmax(1) * s.shape[1]


class AlphaCL(Objective, name="alphacl"):
    """alpha-CL-direct: a linear loss with explicit weights on the negatives.

    ``sum_j w_j / W (s_j - p),  w = e^{-(1 - s)^power / t}`` with ``W = sum_j w_j``; the weights are constants (no
    gradient). ``normalize=False`` is the unnormalized ``W (1 - p) - sum_j w_j (1 - s_j)``.

    Paper: Tian 2022, https://arxiv.org/abs/2201.12680, as in the code of Wu et al. 2023 (``a_cl`` and ``a_cl2``).

    >>> cp.AlphaCL(0.5, power=2)(torch.eye(4), torch.eye(4))
    tensor(-1.)
    """

    use = "hard negatives should count more, by a power of their distance"
    tune_first = "t, then power"
    cost = "a softmax"

    temperature: Real = Real("t", above=0, default=0.5, always=True, doc="``t`` > 0.")
    power: Real = Real(above=0, default=4.0, doc="Exponent of the distance, > 0; ``tau_plus`` in the official code.")
    normalize: Flag = Flag(default=True, doc="Divide by the sum of the weights.")

    def per_anchor(self, pos: Tensor, neg: Negatives) -> Tensor:
        def log_w(s: Tensor) -> Tensor:
            # rounding can push a cosine above one, where a fractional power is NaN
            distance: Tensor = (1 - s).clamp(min=0) ** self.power
            return -distance / self.temperature

        log_total, mean = neg.expectation(log_w, lambda s: s)
        return mean - pos if self.normalize else (mean - pos) * log_total.exp()


def pooled(x: Tensor, neg: Negatives) -> Tensor:
    """Average per-anchor means, ``(anchors, 1)``, over all negatives of the batch."""
    if isinstance(neg.count, Tensor):
        count = neg.count if neg.counted is None else neg.count * neg.counted
        return neg.across((x * count).sum()) / neg.across(count.sum()).clamp(min=1)
    return neg.batch_mean(x)


@torch.no_grad()
def spread(neg: Negatives) -> Tensor:
    """Compute the standard deviation of all negatives of the batch."""
    center = pooled(neg.mean(lambda s: s), neg)
    return pooled(neg.mean(lambda s: (s - center) ** 2), neg).sqrt()


@torch.no_grad()
def quantile(neg: Negatives, q: float) -> Tensor:
    """Compute the ``q``-quantile of all negatives of the batch by bisection, to 1/2048 of their range."""
    low, high = neg.min(), neg.max()
    if neg.counted is not None:
        low, high = low.where(neg.counted, low.max()), high.where(neg.counted, high.min())
    low, high = neg.across(low.min(), "min"), neg.across(high.max(), "max")
    for _ in range(10):
        middle = (low + high) / 2
        below = pooled(neg.mean(lambda s, at=middle: (s <= at).to(s.dtype)), neg) < q - 1e-6  # rounding of the share
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2
