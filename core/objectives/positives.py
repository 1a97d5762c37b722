"""What several positives mean: the worst of them (ArCL), their mean (AAL), or a debiased estimate."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import checks
from ..batch.scores import Scores
from ..hyper import Choice, Flag, Number, Real, Whole, log
from ..objective import Objective, Wrapper
from ..vectors import unit, widen
from .infonce import softplus


class ArCL(Wrapper, name="arcl"):
    """Augmentation-robust contrastive learning: any objective, pulling on the worst pair of views only.

    The positive becomes ``s+ = min over pairs of views of cos``, the anchors are the first views. What stays in the
    denominator of an objective that keeps its positive there is what the paper's algorithms print:

    ====================  =================================================================================
    ``denominator``       what the numerator's place in the denominator holds
    ====================  =================================================================================
    ``paper``             Algorithm 1 (views): the similarity of views 1 and 2, whichever pair is worst.
                          Algorithm 2 (queue): nothing, the queue alone.
    ``worst``             the worst pair itself (for a queue: as MoCo has it)
    ====================  =================================================================================

    Args:
        objective: what is applied to the worst pair; an objective or a spec.
        denominator: see the table. Scores that are handed over ready-made know no views, and use ``worst``.
        views: how many views the data side shall make, checked at the call; None accepts any number.

    Paper: Zhao et al. 2023, Algorithms 1 and 2.

    >>> import counterpoint as cp
    >>> cp.ArCL(cp.HCL(prior=0.1), views=4)
    arcl(hcl:t=0.5,denominator=with_positive):views=4
    """

    formula = "L(s+, negatives),  s+ = min_{j != k} cos(z_j, z_k)"
    paper = "Zhao et al. 2023, ArCL: enhancing contrastive learning with augmentation-robust representations"
    pairing = "arcl"

    denominator = Choice("paper", "worst")
    views = Whole("views", low=2)

    def __init__(
        self, objective: Objective | str = "infonce", denominator: str = "paper", views: int | None = None
    ) -> None:
        super().__init__(objective, denominator=denominator, views=views)

    def align(self, scores: Scores) -> Tensor:
        """The similarity that stands for all positives of an anchor."""
        return scores.positives_min(scores.pos)

    def aligned(self, scores: Scores) -> Scores:
        """The scores that the inner objective sees: one positive, and what stays in its denominator."""
        pairs = {"arcl": 2, "queue": 1}.get(scores.layout)  # how often each ordered pair of views is counted, halved
        if self.views is not None and pairs is not None:
            got = round((1 + (1 + 4 * pairs * scores.pos.shape[1]) ** 0.5) / 2)
            if got != self.views:
                raise ValueError(f"{self.name}: views={self.views} were expected, got {got}.")
        paper = self.denominator == "paper"
        return Scores(
            self.align(scores),
            scores.neg,
            layout=scores.layout,
            kept=scores.kept if paper else None,
            alone=paper and scores.layout == "queue",
            v=scores.v,
            prior=scores.prior,
            anchors=scores.anchors,
            adversarial=scores.adversarial,
            mixed=scores.mixed,
        )

    def losses(self, scores: Scores) -> Tensor:
        return self.objective.losses(self.aligned(scores))

    def diagnostics(self, scores: Scores) -> dict[str, Tensor]:
        return self.objective.diagnostics(self.aligned(scores))


class AAL(ArCL, name="aal"):
    """Average alignment: as :class:`ArCL`, with the mean over all pairs of views instead of the worst pair.

    ArCL's own ablation (appendix E.2): it separates what several views bring from what the minimum brings.
    """

    formula = "L(s, negatives),  s = mean_{j != k} cos(z_j, z_k)"

    def align(self, scores: Scores) -> Tensor:
        return scores.positives_mean(scores.pos)


def worst_alignment(views: Tensor) -> Tensor:
    """ArCL's alignment loss (Eq. 7), ``mean_i max_{j,k} ||z_ij - z_ik||^2``, of unit-length ``(B, m, d)`` views."""
    if checks.is_float(views, "worst_alignment").dim() != 3:
        raise ValueError(f"worst_alignment: expected (batch, views, width), got shape {checks.shape(views)}.")
    z = unit(widen(checks.is_finite(views, "worst_alignment")))
    gram = (z @ z.mT).flatten(1)
    return (2 - 2 * gram.gather(1, gram.argmin(1, keepdim=True))).mean()


class DebiasedPositives(Objective, name="debpos"):
    """Positive-debiased loss: corrects for positives that come from a finite, biased set of augmentations.

    With ``P- = mean_i E(u_i)`` over the negatives and ``P = (sum_i E(u_i) + E(v) + e^{1/t}) / (N + 2)``::

        R = P - (1 - prior) P-,    loss = -log R / (R + N prior P-)

    Several positives are combined by ``aggregation``: ``combination`` averages the losses over all pairs of views,
    each with those two views' negatives (Eq. 16); ``group_mean`` puts ``mean_j E(v_j)`` in the place of ``E(v)`` (the
    authors' grouping code); ``group_sum`` puts ``sum_j E(v_j)``, and ``N + M + 1`` below.

    ``R`` estimates a positive quantity, but can be negative if ``prior < 1 / (N + 2)``. ``floor=True`` keeps it at the
    paper's lower bound ``prior e^{-1/t}``, with zero gradient through it; ``floor=False`` is the bare formula, NaN or
    finite and meaningless there.

    Args:
        temperature: ``t`` > 0.
        prior: ``tau+``, the probability of a sample's class, in ``(0, 1)``; per sample at the call.
        aggregation: ``combination``, ``group_mean`` or ``group_sum``.
        floor: see above.

    Paper: Troeshestova, mitigating distributional biases in contrastive learning, Eq. (12) to (14) and (16).
    """

    formula = "-log R / (R + N prior P-),  R = P - (1 - prior) P-,  P = (sum E(u) + E(v) + e^{1/t}) / (N + 2)"
    paper = "Troeshestova, mitigating distributional biases in contrastive learning"

    temperature = Real("t", 0, open_low=True, always=True)
    prior = Real("prior", 0, 1, open_low=True, open_high=True)
    aggregation = Choice("combination", "group_mean", "group_sum", short="aggregation")
    floor = Flag("floor")

    def __init__(
        self,
        temperature: Number = 0.5,
        prior: Number = 0.1,
        aggregation: str = "combination",
        floor: bool = True,
    ) -> None:
        super().__init__(temperature=temperature, prior=prior, aggregation=aggregation, floor=floor)

    @property
    def pairing(self) -> str:  # type: ignore[override]
        return "pairs" if self.aggregation == "combination" else "first_two"

    def losses(self, scores: Scores) -> Tensor:
        r, log_rest, log_floor = self._numerator(scores)
        inside = r > (log_floor.exp() if self.floor else 0)
        safe = torch.where(inside, r, torch.ones_like(r))
        loss = softplus(log_rest - safe.log())
        if self.floor:
            return torch.where(inside, loss, softplus(log_rest - log_floor))
        ratio = torch.where(inside, torch.ones_like(r), r / (r + log_rest.exp()))
        return torch.where(inside, loss, -ratio.log())

    def _numerator(self, scores: Scores) -> tuple[Tensor, Tensor, Tensor]:
        """``R``, ``log(N prior P-)`` and the log of the floor, all times ``e^{-1/t}`` so as not to overflow."""
        t, neg = self.temperature, scores.neg
        prior = self.prior if scores.prior is None else checks.is_prior(scores.prior, zero=False)
        n, m = neg.count, scores.positives_count()
        log_sum = neg.logsumexp(lambda s: (s - 1) / t)
        pull = ((scores.pos - 1) / t).exp()
        if self.aggregation == "group_mean":
            pull = (scores.positives_logsumexp((scores.pos - 1) / t) - log(m)).exp()
        elif self.aggregation == "group_sum":
            pull = scores.positives_logsumexp((scores.pos - 1) / t).exp()
        divisor = n + (m + 1 if self.aggregation == "group_sum" else 2)
        # P - (1 - prior) P- with the sum over negatives collected: no difference of nearly equal numbers
        r = (pull + 1) / divisor + log_sum.exp() * (1 / divisor - (1 - prior) / n)
        log_floor = torch.as_tensor(log(prior) - 2 / t, dtype=r.dtype, device=r.device)
        return r, log_sum + log(prior), log_floor

    def diagnostics(self, scores: Scores) -> dict[str, Tensor]:
        r, _, log_floor = self._numerator(scores)
        return {"clamp_rate": (r <= log_floor.exp()).to(r.dtype).mean()}
