"""Neighbourhood-analysis contrastive losses (NCA, MixNCA), the robust term, and their sum, IntNaCl."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any, cast

import torch
from torch import Tensor

from ..batch.scores import Scores
from ..engine.negatives import Negatives
from ..hyper import Choice, Flag, Number, Real, log
from ..objective import Objective
from .infonce import log_debiased, log_g0, softplus


class _Estimated(Objective):
    """What the losses of this family share: a temperature and an estimator of the negative mass."""

    paper = "Ko et al. 2022, revisiting contrastive learning through the lens of neighborhood component analysis"

    temperature = Real("t", 0, open_low=True, always=True)
    estimator = Choice("g0", "g1", "g2", short="g")
    prior = Real("prior", 0, 1, open_high=True)
    beta = Real("beta", 0)

    def log_mass(self, scores: Scores, neg: Negatives | None = None, estimator: str | None = None) -> Tensor:
        """``log (N G)`` of ``neg`` (by default the scores' own), with the positives of ``scores`` in g1 and g2."""
        neg, t, estimator = neg or scores.neg, self.temperature, estimator or self.estimator
        if estimator == "g0":
            return log_g0(neg, t) + neg.log_count
        prior = self.prior if scores.prior is None else scores.prior
        v, mask = scores.class_positives()
        beta = None if estimator == "g1" else self.beta
        return log_debiased(neg, v, mask, t, prior, beta)[0] + neg.log_count


class _Clean(_Estimated):
    """``-log E(p) / (E(p) + N G)`` with any estimator and an anchor's first positive, the papers' ``x+``."""

    def losses(self, scores: Scores) -> Tensor:
        return softplus(self.log_mass(scores) - scores.first_positive() / self.temperature)


class NCA(_Estimated, name="nca"):
    """The NCA loss: all positives of an anchor together inside the logarithm.

    ``-log S / (S + N G)`` with ``S = sum_j E(p_j)`` over the anchor's ``M`` positives. With one positive it is InfoNCE
    (g0), DCL (g1) or HCL (g2).

    Args:
        temperature: ``t`` > 0.
        estimator: ``g0``, ``g1`` or ``g2``, the estimator ``G`` of the negative mass.
        prior: ``tau+`` of g1 and g2, in ``[0, 1)``.
        beta: concentration of g2, at least 0.
        count_positives: ``M N G`` instead of ``N G``, as in the paper's appendix B: then ``M`` identical positives
            give InfoNCE exactly.

    Paper: Ko et al. 2022, Eq. (7).
    """

    formula = "-log S / (S + N G),  S = sum_j E(p_j)"
    count_positives = Flag("count_positives")

    def __init__(
        self,
        temperature: Number = 0.5,
        estimator: str = "g2",
        prior: Number = 0.01,
        beta: Number = 1.0,
        count_positives: bool = False,
    ) -> None:
        super().__init__(
            temperature=temperature, estimator=estimator, prior=prior, beta=beta, count_positives=count_positives
        )

    def losses(self, scores: Scores) -> Tensor:
        log_s = scores.positives_logsumexp(scores.pos / self.temperature)
        log_mass = self.log_mass(scores)
        if self.count_positives:
            log_mass = log_mass + log(scores.positives_count())
        return softplus(log_mass - log_s)


class MixNCA(_Clean, name="mixnca"):
    """MixNCA: mixed views are positives with probability ``lam``.

    ``-log E(p) / (E(p) + N G) - lam mean_j log O_j - (1 - lam) mean_j log(1 - O_j)`` with
    ``O_j = E(m_j) / (E(m_j) + N G)`` for the ``M - 1`` views ``lam x+ + (1 - lam) x_j^-`` mixed in input space, made by
    :func:`counterpoint.views.mix` and passed as ``mixed=``. Without mixed views (``M = 1``) the sums are empty. In a
    batch, every mixed view is compared with the batch's negatives. The positives in the estimators g1 and g2 are the
    clean ones in every term.

    Args:
        lam: in ``[0, 1]``; the paper uses .5 with g2 and .9 with g0.
        temperature, estimator, prior, beta: as in :class:`NCA`.

    Paper: Ko et al. 2022, Eq. (8), Table S1.
    """

    formula = "-log E(p)/(E(p) + N G) - lam mean_j log O_j - (1 - lam) mean_j log(1 - O_j)"
    pairing = "first_two"
    lam = Real("lam", 0, 1)

    def __init__(
        self,
        temperature: Number = 0.5,
        estimator: str = "g2",
        lam: Number = 0.5,
        prior: Number = 0.01,
        beta: Number = 1.0,
    ) -> None:
        super().__init__(temperature=temperature, estimator=estimator, lam=lam, prior=prior, beta=beta)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"mixed"})

    def losses(self, scores: Scores) -> Tensor:
        loss, lam = super().losses(scores), self.lam
        for view in scores.mixed:
            gap = self.log_mass(scores, view.neg) - view.pos / self.temperature
            # -log O = softplus(gap), -log(1 - O) = softplus(-gap)
            loss = loss + (lam * softplus(gap) + (1 - lam) * softplus(-gap)) / len(scores.mixed)
        return loss


class Robust(_Estimated, name="robust"):
    """The robust term: the adversarial view as the positive, among clean and adversarial negatives.

    ``mean_i w_i * -log E(a_i) / (E(a_i) + N G)``. The adversarial embeddings are passed as ``adversarial=``, made by
    :func:`counterpoint.views.attack`. The positives in the estimators g1 and g2 are the clean ones.

    Args:
        weight: ``clean``: an anchor's clean loss with the same estimator, so that samples that are hard to tell
            apart count more (the paper's ``w-hat``); ``one``: 1.
        detach_weight: keep the weight constant. The paper is silent; ``False`` is the other reading.
        temperature, estimator, prior, beta: as in :class:`NCA`.

    Paper: Ko et al. 2022, section 3.3.
    """

    formula = "w_i * -log E(a_i) / (E(a_i) + N G),  w = 1 or the anchor's clean loss"
    pairing = "first_two"
    weight = Choice("clean", "one", short="weight")
    detach_weight = Flag("detach_weight")

    def __init__(
        self,
        temperature: Number = 0.5,
        estimator: str = "g2",
        weight: str = "clean",
        prior: Number = 0.01,
        beta: Number = 1.0,
        detach_weight: bool = True,
    ) -> None:
        super().__init__(
            temperature=temperature,
            estimator=estimator,
            weight=weight,
            prior=prior,
            beta=beta,
            detach_weight=detach_weight,
        )

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"adversarial"})

    def losses(self, scores: Scores) -> Tensor:
        if scores.adversarial is None:
            raise ValueError(
                f"{self.name}: needs adversarial views: pass adversarial=, made by counterpoint.views.attack, "
                "in one of the pairings views, first_two, one_way, symmetric or pairs."
            )
        attacked, t = scores.adversarial, self.temperature
        loss = softplus(self.log_mass(scores, attacked.neg) - attacked.pos / t)
        if self.weight == "one":
            return loss
        clean = softplus(self.log_mass(scores) - scores.first_positive() / t)
        return (clean.detach() if self.detach_weight else clean) * loss


class _Integrated(_Estimated):
    """An accurate loss plus ``alpha`` times the robust term."""

    pairing = "first_two"

    alpha = Real("alpha", 0)
    robust_estimator = Choice("g0", "g1", "g2", short="g_robust")
    weight = Choice("clean", "one")
    detach_weight = Flag("detach_weight")

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.accurate = torch.nn.ModuleList(self._accurate())
        robust = {k: self._hyper[k] for k in ("weight", "detach_weight")}
        self.robust = Robust(estimator=self._hyper["robust_estimator"], **self._shared(), **robust)

    def _shared(self) -> dict[str, Any]:
        return {k: self._hyper[k] for k in ("temperature", "prior", "beta")}

    def _accurate(self) -> list[Objective]:
        raise NotImplementedError

    def _parts(self) -> list[Objective]:
        return cast("list[Objective]", list(self.accurate))

    @property
    def needs(self) -> frozenset[str]:
        robust = self.robust.needs if self._hyper["alpha"] != 0 else ()
        return frozenset(robust).union(*(part.needs for part in self._parts()))

    def losses(self, scores: Scores) -> Tensor:
        total = reduce(add, (part.losses(scores) for part in self._parts()))
        if self._hyper["alpha"] == 0:
            return total
        return total + self.alpha * self.robust.losses(scores)  # type: ignore[no-any-return]


class IntCL(_Integrated, name="intcl"):
    """Integrated contrastive loss: InfoNCE, DCL or HCL plus the robust term.

    ``-log E(p) / (E(p) + N G1) + alpha L_Robust(G2, w)``. With ``estimator=robust_estimator="g0", weight="one"`` it is
    the adversarial loss of Ho and Vasconcelos 2020.

    Args:
        estimator, robust_estimator: ``G1`` and ``G2``, each ``g0``, ``g1`` or ``g2``.
        alpha: weight of the robust term, at least 0; at 0 no adversarial views are needed.
        weight, detach_weight: as in :class:`Robust`.
        temperature, prior, beta: as in :class:`NCA`.

    Paper: Ko et al. 2022, section 3.3.
    """

    formula = "-log E(p) / (E(p) + N G1) + alpha L_Robust(G2, w)"

    def __init__(
        self,
        temperature: Number = 0.5,
        estimator: str = "g2",
        robust_estimator: str = "g2",
        alpha: Number = 1.0,
        weight: str = "clean",
        prior: Number = 0.01,
        beta: Number = 1.0,
        detach_weight: bool = True,
    ) -> None:
        super().__init__(
            temperature=temperature,
            estimator=estimator,
            robust_estimator=robust_estimator,
            alpha=alpha,
            weight=weight,
            prior=prior,
            beta=beta,
            detach_weight=detach_weight,
        )

    def _accurate(self) -> list[Objective]:
        return [_Clean(**self._shared(), estimator=self._hyper["estimator"])]


class IntNaCl(_Integrated, name="intnacl"):
    """Integrated neighbourhood-analysis loss: accuracy from several positives, robustness from adversarial views.

    ``L_NaCl(G1) + alpha L_Robust(G2, w)`` where ``L_NaCl`` is :class:`NCA`, :class:`MixNCA` or (Table 5) their sum.

    Args:
        base: ``nca``, ``mixnca`` or ``both``.
        lam: as in :class:`MixNCA`.
        temperature, estimator, robust_estimator, alpha, weight, prior, beta, detach_weight: as in :class:`IntCL`.

    Paper: Ko et al. 2022, Eq. (9), Table 1. The paper writes every equation with ``t = 1``.

    >>> import counterpoint as cp
    >>> cp.IntNaCl(base="mixnca", lam=0.9)
    intnacl:t=0.5,base=mixnca,lam=0.9
    """

    formula = "L_NaCl(G1) + alpha L_Robust(G2, w)"

    base = Choice("nca", "mixnca", "both")
    lam = Real("lam", 0, 1)

    def __init__(
        self,
        temperature: Number = 0.5,
        base: str = "nca",
        estimator: str = "g2",
        robust_estimator: str = "g2",
        alpha: Number = 1.0,
        lam: Number = 0.5,
        weight: str = "clean",
        prior: Number = 0.01,
        beta: Number = 1.0,
        detach_weight: bool = True,
    ) -> None:
        super().__init__(
            temperature=temperature,
            base=base,
            estimator=estimator,
            robust_estimator=robust_estimator,
            alpha=alpha,
            lam=lam,
            weight=weight,
            prior=prior,
            beta=beta,
            detach_weight=detach_weight,
        )

    def _accurate(self) -> list[Objective]:
        shared = {**self._shared(), "estimator": self._hyper["estimator"]}
        parts: dict[str, Objective] = {"nca": NCA(**shared), "mixnca": MixNCA(**shared, lam=self._hyper["lam"])}
        return list(parts.values()) if self.base == "both" else [parts[self.base]]
