"""The losses of Ko et al. 2022: NCA, MixNCA, the robust term, and their sums; its equations have ``t = 1``."""

from typing import Literal, get_args

import torch
from torch import Tensor

from ..base import Objective
from ..batch.scores import Negatives, Scores
from ..hyper import Choice, Flag, Real
from ..values import Value, log
from .infonce import log_debiased, softplus

Estimator = Literal["g0", "g1", "g2"]
Weight = Literal["clean", "one"]


class _Estimated(Objective):
    """The base of this family: a temperature and an estimator of the negative mass."""

    pairing = "first_two"

    temperature: Real = Real("t", above=0, default=0.5, always=True, doc="``t`` > 0.")
    estimator: Choice[Estimator] = Choice(
        *get_args(Estimator), short="g", default="g2", doc="``G``: ``g0`` is plain, ``g1`` debiased, ``g2`` hard too."
    )
    prior: Real = Real(low=0, below=1, default=0.01, kw_only=True, doc="As in DCL, of g1 and g2.")
    beta: Real = Real(low=0, default=1.0, kw_only=True, doc="Concentration of g2 on hard negatives, at least 0.")

    @property
    def on_cosines(self) -> bool:  # type: ignore[override]
        return self.estimator != "g0"

    def log_mass(self, scores: Scores, neg: Negatives, estimator: str) -> Tensor:
        """Estimate ``log (N G)`` of negatives, ``(anchors, 1)``; the positives in ``G`` are those of ``scores``."""
        if estimator == "g0":
            return neg.logsumexp(lambda s: s / self.temperature)  # type: ignore[no-any-return]
        beta = None if estimator == "g1" else self.beta
        return log_debiased(scores, neg, self.temperature, self.prior, beta)[0] + neg.log_count

    def pooled(self, scores: Scores, log_count: Value = 0.0) -> Tensor:
        """Compute ``-log S / (S + N G)``, with ``S = sum_j E(p_j)``."""
        log_s = scores.positives_logsumexp(scores.pos / self.temperature)
        return softplus(self.log_mass(scores, scores.neg, self.estimator) + log_count - log_s)

    def clean(self, scores: Scores, estimator: str) -> Tensor:
        """Compute ``-log E(p) / (E(p) + N G)`` of each anchor's first positive, ``x+`` in the paper."""
        mask, pos = scores.pos_mask, scores.pos
        first = pos[:, :1] if mask is None else pos.gather(1, mask.to(torch.uint8).argmax(1, keepdim=True))
        return softplus(self.log_mass(scores, scores.neg, estimator) - first / self.temperature)

    def with_mixed(self, scores: Scores, lam: Value) -> Tensor:
        """Add the terms of the mixed views to the clean loss."""
        loss = self.clean(scores, self.estimator)
        for view in scores.mixed:
            gap = self.log_mass(scores, view.neg, self.estimator) - view.pos / self.temperature
            # -log O = softplus(gap), -log(1 - O) = softplus(-gap)
            loss = loss + (lam * softplus(gap) + (1 - lam) * softplus(-gap)) / len(scores.mixed)
        return loss

    def robust(self, scores: Scores, estimator: str, weight: str, detach_weights: bool) -> Tensor:
        """Compute ``w * -log E(a) / (E(a) + N G)``."""
        if (attacked := scores.adversarial) is None:
            made = "needs adversarial views: pass adversarial=, made by counterpoint.views.attack"
            pairings = "in one of the pairings views, first_two, one_way, symmetric or pairs"
            raise ValueError(f"{self.name}: {made}, {pairings}.")
        loss = softplus(self.log_mass(scores, attacked.neg, estimator) - attacked.pos / self.temperature)
        if weight == "one":
            return loss
        clean = self.clean(scores, estimator)
        return (clean.detach() if detach_weights else clean) * loss


class NCA(_Estimated, name="nca"):
    """The NCA loss: all positives of an anchor together inside the logarithm.

    ``-log S / (S + N G),  S = sum_j E(p_j)`` over ``M`` positives. With one, it is InfoNCE (g0), DCL (g1) or HCL (g2).

    Paper: Ko et al. 2022, Eq. (7), https://arxiv.org/abs/2112.04468.

    >>> cp.NCA(0.5)(torch.eye(4), torch.eye(4), torch.eye(4))
    tensor(0.4509)
    """

    use = "several positives per sample, pooled inside the logarithm"
    tune_first = "t, then the number of views"
    cost = "more views"
    pairing = "views"

    count_positives: Flag = Flag(
        default=False, kw_only=True, doc="``M N G`` (appendix B): ``M`` identical positives are then InfoNCE."
    )

    def losses(self, scores: Scores) -> Tensor:
        return self.pooled(scores, log(scores.positives_count()) if self.count_positives else 0.0)


class MixNCA(_Estimated, name="mixnca"):
    """MixNCA: mixed views are positives with probability ``lam``.

    ``-log E(p)/(E(p) + N G) - lam mean_j log O_j - (1 - lam) mean_j log(1 - O_j)`` with
    ``O_j = E(m_j) / (E(m_j) + N G)`` for the views ``lam x+ + (1 - lam) x_j^-``, mixed in input space by
    :func:`counterpoint.views.mix`; pass their embeddings as ``mixed=``. Without any, the sums are empty. Every mixed
    view is compared with the batch's negatives, and the positives in the estimators g1 and g2 are the clean ones.

    Paper: Ko et al. 2022, Eq. (8), Table S1, https://arxiv.org/abs/2112.04468.

    >>> cp.MixNCA(0.5)(torch.eye(4), torch.eye(4), mixed=torch.eye(4))
    tensor(1.2677)
    """

    use = "as nca, with mixtures of samples as soft positives"
    tune_first = "t, then lam (.5, .7, .9)"
    cost = "mixed views"
    needs: frozenset[str] = frozenset({"mixed"})  # pyright: ignore[reportAssignmentType]

    lam: Real = Real(low=0, high=1, default=0.5, doc="In ``[0, 1]``; the paper uses .5 with g2 and .9 with g0.")

    def losses(self, scores: Scores) -> Tensor:
        return self.with_mixed(scores, self.lam)


class Robust(_Estimated, name="robust"):
    """The robust term: the adversarial view as the positive, among clean and adversarial negatives.

    ``w_i * -log E(a_i) / (E(a_i) + N G),  w = 1 or the anchor's clean loss``. :func:`counterpoint.views.attack`
    computes adversarial views; pass their embeddings as ``adversarial=``. The positives in g1 and g2 are clean.

    Paper: Ko et al. 2022, section 3.3, https://arxiv.org/abs/2112.04468.

    >>> cp.Robust(0.5)(torch.eye(4), torch.eye(4), adversarial=torch.eye(4))
    tensor(0.3193)
    """

    use = "a term that adds adversarial robustness to another objective"
    tune_first = "epsilon of the attack"
    cost = "an attack"
    needs: frozenset[str] = frozenset({"adversarial"})  # pyright: ignore[reportAssignmentType]

    weight: Choice[Weight] = Choice(
        *get_args(Weight), default="clean", doc="``clean``: the anchor's clean loss, by the same estimator; ``one``: 1."
    )
    detach_weights: Flag = Flag(
        default=True, kw_only=True, doc="Treat the weight as a constant; the paper does not say which it does."
    )

    def losses(self, scores: Scores) -> Tensor:
        return self.robust(scores, self.estimator, self.weight, self.detach_weights)


class IntCL(_Estimated, name="intcl"):
    """Integrated contrastive loss: InfoNCE, DCL or HCL plus the robust term.

    ``-log E(p) / (E(p) + N G1) + alpha L_Robust(G2, w)``. With ``estimator=robust_estimator="g0", weight="one"`` it is
    the adversarial loss of Ho and Vasconcelos 2020, https://arxiv.org/abs/2010.12050.

    Paper: Ko et al. 2022, section 3.3, https://arxiv.org/abs/2112.04468.

    >>> cp.IntCL(0.5)(torch.eye(4), torch.eye(4), adversarial=torch.eye(4))
    tensor(0.8844)
    """

    use = "adversarial robustness"
    tune_first = "epsilon of the attack, then alpha"
    cost = "an attack and its forward pass"

    alpha: Real = Real(
        low=0, default=1.0, kw_only=True, doc="Weight of the robust term, at least 0; 0 needs no adversarial views."
    )
    robust_estimator: Choice[Estimator] = Choice(
        *get_args(Estimator), short="g_robust", default="g2", kw_only=True, doc="``G2``, the robust term's estimator."
    )
    weight: Choice[Weight] = Robust.weight
    detach_weights: Flag = Robust.detach_weights

    @property
    def on_cosines(self) -> bool:  # type: ignore[override]
        return self.estimator != "g0" or (self._hyper["alpha"] != 0 and self.robust_estimator != "g0")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"adversarial"} if self._hyper["alpha"] != 0 else ())

    def accurate(self, scores: Scores) -> Tensor:
        """Compute the term that is not about robustness."""
        return self.clean(scores, self.estimator)

    def losses(self, scores: Scores) -> Tensor:
        loss = self.accurate(scores)
        if self._hyper["alpha"] == 0:
            return loss
        return loss + self.alpha * self.robust(scores, self.robust_estimator, self.weight, self.detach_weights)


class IntNaCl(IntCL, name="intnacl"):
    """Integrated neighborhood-analysis loss: accuracy from several positives, robustness from adversarial views.

    ``L_NaCl(G1) + alpha L_Robust(G2, w)`` where ``L_NaCl`` is :class:`NCA`, :class:`MixNCA` or (Table 5) their sum.

    Paper: Ko et al. 2022, Eq. (9), Table 1, https://arxiv.org/abs/2112.04468.

    >>> cp.IntNaCl(base="mixnca", lam=0.9)
    intnacl:t=0.5,prior=0.01,beta=1,alpha=1,base=mixnca,lam=0.9
    """

    use = "adversarial robustness, with several or mixed positives"
    tune_first = "epsilon of the attack, then alpha, then lam (.5, .7, .9)"
    cost = "an attack, mixed views and their forward passes"

    base: Choice[Literal["nca", "mixnca", "both"]] = Choice("nca", "mixnca", "both", default="nca", doc="``L_NaCl``.")
    lam: Real = Real(low=0, high=1, default=0.5, kw_only=True, doc="As in MixNCA.")

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | ({"mixed"} if self.base != "nca" else set())

    def accurate(self, scores: Scores) -> Tensor:
        if self.base == "both":
            return self.pooled(scores) + self.with_mixed(scores, self.lam)
        return self.pooled(scores) if self.base == "nca" else self.with_mixed(scores, self.lam)
