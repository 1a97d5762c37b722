"""ADNCE: negatives weighted by how informative their similarity is."""

from __future__ import annotations

import torch
from torch import Tensor

from ..batch.ready_made import score_matrix
from ..batch.scores import Scores
from ..engine.negatives import DenseNegatives, Negatives
from ..hyper import Choice, Number, Real, Tracked, Value, bounds, text
from .infonce import InfoNCE

# Gamma, Rayleigh and chi-squared densities live on s + 1 > 0; at s = -1 their logarithm is infinite.
TINY = 1e-6


def log_weight(s: Tensor, family: str, mu: Value, sigma: Value) -> Tensor:
    """Logarithm of ADNCE's weight, up to a constant, as a function of the raw similarity (its Table 11).

    ========  ===========================================  ============================
    family    weight, with ``x = s + 1``                   parameters
    ========  ===========================================  ============================
    gaussian  ``exp(-(s - mu)^2 / (2 sigma^2))``           mean ``mu``, deviation ``sigma``
    gamma     ``x^{mu - 1} e^{-x / sigma}``                shape ``mu``, scale ``sigma``
    rayleigh  ``x e^{-x^2 / (2 mu^2)}``                    scale ``mu``
    chi2      ``x^{mu / 2 - 1} e^{-x / 2}``                degrees of freedom ``mu``
    ========  ===========================================  ============================
    """
    if family == "gaussian":
        return (s - mu) ** 2 * (-0.5 / sigma**2)
    x = (s + 1).clamp(min=TINY)
    if family == "gamma":
        return (mu - 1) * x.log() - x / sigma
    if family == "rayleigh":
        return x.log() - x**2 / (2 * mu**2)
    return (mu / 2 - 1) * x.log() - x / 2


class ADNCE(InfoNCE, name="adnce"):
    """Adjusted InfoNCE: weights that favour informative negatives over trivial and over (likely) false ones.

    ``G = mean_j w_j E(s_j)``, with weights of mean one that do not pass gradients. They are a density of the raw
    similarity, not of ``s / t``; see :func:`log_weight`. As ``sigma`` grows the loss becomes
    :class:`InfoNCE`.

    The authors' code differs by domain, and ``denominator`` chooses: ``with_positive`` is their image code, ``mean``
    is Eq. (12) and their graph code, ``all`` is their sentence code, where the positive is weighted together with
    the negatives and stands in the denominator with its weight (that loss can be negative).

    Args:
        temperature: ``t`` > 0.
        mu: centre (gaussian), shape (gamma), scale (rayleigh) or degrees of freedom (chi2). ``"auto"`` tracks the
            similarity that ``quantile`` of the training negatives stay below: the head region, whatever the encoder
            and the temperature have made of the scale.
        sigma: deviation (gaussian) or scale (gamma) > 0. ``"auto"`` tracks the deviation of the training negatives.
        weight: ``gaussian``, ``gamma``, ``rayleigh`` or ``chi2``.
        quantile: for ``mu="auto"``.
        denominator, radius: as in :class:`InfoNCE`, and ``all``.

    The paper's searches: images ``mu`` .5 to .9 (CIFAR-10 ``mu=.7, sigma=.5, t=.4``), sentences ``mu=.4, t=.07`` with
    BERT, graphs ``mu`` .2 to 2, ``sigma=1``. Tune the temperature first.

    Paper: Wu et al. 2023, Eq. (11), (12), Table 11.
    """

    formula = "-log E(p) / (E(p) + sum_j w_j E(s_j)),  w ~ exp(-(s - mu)^2 / (2 sigma^2)), mean w = 1"
    paper = "Wu et al. 2023, understanding contrastive learning via distributionally robust optimization"

    denominator = Choice("with_positive", "negatives", "mean", "all", always=True)
    mu = Real("mu", words=("auto",))
    sigma = Real("sigma", 0, open_low=True, words=("auto",))
    weight = Choice("gaussian", "gamma", "rayleigh", "chi2")
    quantile = Real("quantile", 0, 1, open_low=True, open_high=True, fixed=True)

    def __init__(
        self,
        temperature: Number = 0.5,
        mu: Number | str = 0.7,
        sigma: Number | str = 1.0,
        weight: str = "gaussian",
        denominator: str = "with_positive",
        quantile: float = 0.9,
        radius: float | None = None,
    ) -> None:
        super().__init__(temperature, denominator, radius, mu=mu, sigma=sigma, weight=weight, quantile=quantile)
        if "auto" in (mu, sigma) and weight != "gaussian":
            raise ValueError(f"ADNCE: mu and sigma can be 'auto' for weight='gaussian' only, got weight={weight!r}.")
        if weight != "gaussian" and bounds(self._hyper["mu"])[0] <= 0:
            raise ValueError(f"ADNCE: mu must be positive for weight={weight!r}, got {text(mu)}.")
        if mu == "auto":
            self.tracked_mu = Tracked()
        if sigma == "auto":
            self.tracked_sigma = Tracked()

    def centre_and_width(self, neg: Negatives) -> tuple[Value, Value]:
        """``mu`` and ``sigma`` in force."""
        mu, sigma = self.mu, self.sigma
        if mu == "auto":
            mu = self.tracked_mu(quantile(neg, self.quantile))
        if sigma == "auto":
            sigma = self.tracked_sigma(spread(neg).clamp(min=1e-3))
        return mu, sigma

    def weights(self, neg: Tensor) -> Tensor:
        """The weights of ``(anchors, N)`` negatives, with mean one in each row."""
        s = score_matrix(neg).detach()
        log_w = log_weight(s, self.weight, *self.centre_and_width(DenseNegatives(s)))
        return log_w.softmax(1) * s.shape[1]

    def log_mass(self, scores: Scores, t: Value) -> Tensor:
        mu, sigma = self.centre_and_width(scores.neg)

        def weighted(s: Tensor) -> tuple[Tensor, Tensor]:
            log_w = log_weight(s.detach(), self.weight, mu, sigma)
            return log_w + s / t, log_w

        log_sum, log_total = scores.neg.logsumexp(weighted)
        if self.denominator != "all":
            return log_sum - log_total + scores.neg.log_count  # type: ignore[no-any-return]
        count = scores.neg.count + 1
        kept, kept_w = weighted(scores.pos if scores.kept is None else scores.kept)
        log_n = count.log() if isinstance(count, Tensor) else torch.tensor(count, dtype=kept.dtype).log()
        return torch.logaddexp(log_sum, kept) - torch.logaddexp(log_total, kept_w) + log_n.to(kept.device)

    def contrast(self, scores: Scores, log_mass: Tensor, t: Value) -> Tensor:
        if self.denominator == "all":  # the positive is part of the mass already
            return log_mass - scores.pos / t
        return super().contrast(scores, log_mass, t)


def pooled(x: Tensor, neg: Negatives) -> Tensor:
    """Mean over all negatives of the batch of what is a mean per anchor."""
    if isinstance(neg.count, Tensor):
        return neg.across((x * neg.count).sum()) / neg.across(neg.count.sum())
    return neg.batch_mean(x)


@torch.no_grad()
def spread(neg: Negatives) -> Tensor:
    """Standard deviation of all negatives of the batch."""
    centre = pooled(neg.mean(lambda s: s), neg)
    return pooled(neg.mean(lambda s: (s - centre) ** 2), neg).sqrt()


@torch.no_grad()
def quantile(neg: Negatives, q: float) -> Tensor:
    """The similarity that a share ``q`` of all negatives of the batch stay below, to 1/2048 of their range."""
    low, high = neg.across(neg.min().min(), "min"), neg.across(neg.max().max(), "max")
    for _ in range(10):
        middle = (low + high) / 2
        below = pooled(neg.mean(lambda s, at=middle: (s <= at).to(s.dtype)), neg) < q
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2
