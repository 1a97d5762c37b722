"""Several positives per anchor: all (SupCon), the worst (ArCL), their mean (AAL), a debiased estimate, graded ones."""

import math
import warnings
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from .. import checks
from ..base import Objective, Wrapper
from ..batch.scores import Scores
from ..hyper import Choice, Flag, Real
from ..values import Value, log
from ..vectors import unit, widen
from .infonce import Denominator, InfoNCE, log1mexp, softplus


class SupCon(InfoNCE, name="supcon"):
    """Supervised contrastive loss: every sample of an anchor's class is a positive.

    ``-(1/M) sum_j log E(p_j) / (sum_k E(p_k) + sum_i E(s_i)),  E(s) = e^{s/t}`` of an anchor's ``M`` positives is
    ``L_out``, which the paper recommends. ``average="inside"`` is its ``L_in``, ``-log (1/M) sum_j E(p_j) / D_j``.

    ==================  =======================================================================
    ``denominator``     ``D_j``
    ==================  =======================================================================
    ``positives``       ``sum_k E(p_k) + sum_i E(s_i)``: the paper, and the official code
    ``with_positive``   ``E(p_j) + sum_i E(s_i)``: with ``outside``, InfoNCE with several positives
    ``negatives``       ``sum_i E(s_i)``
    ==================  =======================================================================

    Pass ``labels=`` in the call; without them, the positives are a sample's other views. With one positive, this is
    :class:`InfoNCE`. The official code multiplies by ``t / base_temperature``: ``(0.1 / 0.07) * SupCon(0.1)``.

    Paper: Khosla et al. 2020, Eq. (2) and (3), https://arxiv.org/abs/2004.11362.

    >>> cp.SupCon(0.5)(torch.eye(4), torch.eye(4), labels=torch.arange(4) % 2)
    tensor(1.9278)
    """

    use = "you have labels: all samples of a class are positives; without labels=, two views are infonce"
    tune_first = "t (.05, .07, .1)"
    cost = "as infonce with labels"

    average: Choice[Literal["outside", "inside"]] = Choice(
        "outside", "inside", default="outside", kw_only=True, doc="Where positives are averaged; see above."
    )
    denominator: Choice[Denominator | Literal["positives"]] = Choice(  # pyright: ignore[reportIncompatibleVariableOverride]
        "positives", "with_positive", "negatives", default="positives", always=True, kw_only=True, doc="See the table."
    )

    def losses(self, scores: Scores) -> Tensor:
        if self.average == "outside":
            return super().losses(scores)
        log_count = log(scores.positives_count())
        if self._all_in_denominator(scores) and scores.positive_factor is None:  # where the positives cancel
            t, log_times = self.tau(scores.neg), math.log(scores.times)
            gap = self.log_mass(scores, t) - scores.positives_logsumexp(scores.pos / t)
            return log_count + softplus(gap - log_times) + log_times
        return log_count - scores.positives_logsumexp(-super().losses(scores))

    def contrast(self, scores: Scores, log_mass: Tensor, t: Value) -> Tensor:
        if not self._all_in_denominator(scores) or scores.pos.shape[1] == 1:
            return super().contrast(scores, log_mass, t)
        p, lowest = scores.pos / t, torch.finfo(scores.pos.dtype).min / 8
        p = p if scores.pos_mask is None else p.masked_fill(~scores.pos_mask, lowest)
        is_top = torch.zeros_like(p, dtype=torch.bool).scatter(1, p.argmax(1, keepdim=True), True)
        # the largest positive may be nearly all of the denominator: what is left beside it, where nothing cancels
        others = torch.logaddexp(p.masked_fill(is_top, lowest).logsumexp(1, keepdim=True), log_mass)
        log_total = torch.logaddexp(p.logsumexp(1, keepdim=True), log_mass)
        return torch.where(is_top, softplus(others - p), log_total - p)

    def _all_in_denominator(self, scores: Scores) -> bool:
        """Whether all positives of an anchor are in its denominator; ArCL has denominators of its own."""
        return self.denominator == "positives" and not scores.negatives_only and scores.denominator_pos is None


class ArCL(Wrapper, name="arcl"):
    """Augmentation-robust contrastive learning: apply ``objective`` to the worst pair of views of each sample.

    ``L(s+, negatives),  s+ = min_{j != k} cos(z_j, z_k)`` over the views; the anchors are the first ones. If the inner
    objective keeps its positive in the denominator, ``denominator`` says what replaces it there:

    * ``paper``: the similarity of views 1 and 2 (Algorithm 1); with a queue, nothing (Algorithm 2);
    * ``worst``: the worst pair itself (with a queue: as in MoCo).

    Paper: Zhao et al. 2023, Algorithms 1 and 2, https://arxiv.org/abs/2303.01092.

    >>> cp.ArCL(cp.HCL(prior=0.1), views=4)
    arcl(hcl:t=0.5,denominator=with_positive,prior=0.1,beta=1):views=4
    """

    use = "representations fail under shift: pulls the worst pair of views together"
    tune_first = "views (4 and more), then t"
    cost = "more views"
    pairing = "arcl"

    denominator: Choice[Literal["paper", "worst"]] = Choice(
        "paper", "worst", default="paper", doc="See above; always ``worst`` for scores that you pass yourself."
    )
    views: Real[int | None, int | None] = Real(
        low=2, whole=True, optional=True, default=None, doc="Views that every call must have; None: any number."
    )

    def align(self, scores: Scores) -> Tensor:
        """Reduce the positives of each anchor to one similarity, ``(anchors, 1)``."""
        return scores.positives_min(scores.pos)

    def aligned(self, scores: Scores) -> Scores:
        """Return the scores for the inner objective: one positive, and its replacement in the denominator."""
        known = scores.view_count is not None and scores.pairing in ("arcl", "queue")
        if self.views is not None and known and scores.view_count != self.views:
            raise ValueError(f"{self.name}: views={self.views} were expected, got {scores.view_count}.")
        if self.views is None and known and scores.pos.shape[1] == 1 and not checks.compiling():
            why = "two views have one pair, so that this is the inner objective with first views as anchors"
            hint = "Pass more than two views, or views=2 if you mean this."
            warnings.warn(f"{self.name}: {why}. {hint}", stacklevel=2)
        paper = self.denominator == "paper"
        kept, alone = scores.denominator_pos if paper else None, paper and scores.pairing == "queue"
        return replace(scores, pos=self.align(scores), pos_mask=None, denominator_pos=kept, negatives_only=alone)

    def losses(self, scores: Scores) -> Tensor:
        return self.objective.losses(self.aligned(scores))

    def diagnostics(self, scores: Scores) -> dict[str, Tensor]:
        return self.objective.diagnostics(self.aligned(scores))


class AAL(ArCL, name="aal"):
    """Average alignment: :class:`ArCL` with the mean over all pairs of views instead of the worst pair.

    ``L(s, negatives),  s = mean_{j != k} cos(z_j, z_k)``: ArCL's ablation (E.2), several views without the minimum.

    >>> cp.AAL("infonce", views=3)(torch.eye(4), torch.eye(4), torch.eye(4))
    tensor(0.5944)
    """

    use = "to see what more views gain by themselves, compared with arcl"
    tune_first = "views, then t"
    cost = "more views"

    def align(self, scores: Scores) -> Tensor:
        return scores.positives_mean(scores.pos)


def worst_alignment(views: Tensor) -> Tensor:
    """Compute ArCL's alignment loss (Eq. 7), ``mean_i max_{j,k} ||z_ij - z_ik||^2``, and normalize ``(B, views, d)``.

    >>> cp.worst_alignment(torch.stack([torch.eye(4), -torch.eye(4)], 1))
    tensor(4.)
    """
    if checks.require_float(views, "worst_alignment").dim() != 3:
        raise ValueError(f"worst_alignment: expected (batch, views, width), got shape {checks.shape(views)}.")
    z = unit(widen(checks.require_finite(views, "worst_alignment")))
    gram = (z @ z.mT).flatten(1)
    return (2 - 2 * gram.gather(1, gram.argmin(1, keepdim=True))).mean()


class DebiasedPositives(Objective, name="debpos"):
    """Positive-debiased loss: correct for positives from a finite, biased set of augmentations.

    ``-log R / (R + N prior P-),  R = P - (1 - prior) P-,  P = (sum E(u) + E(v) + e^{1/t}) / (N + 2)`` with
    ``P- = mean E(u)`` over the negatives ``u``.

    Several positives are combined by ``aggregation``: ``combination`` averages the losses over all pairs of views,
    each with those two views' negatives (Eq. 16); ``group_mean`` replaces ``E(v)`` by ``mean_j E(v_j)`` (the authors'
    grouping code); ``group_sum`` replaces it by ``sum_j E(v_j)``, and ``N + 2`` by ``N + M + 1``.

    ``R`` can be negative if ``prior < 1 / (N + 2)``. ``floor=True`` clamps it to the paper's lower bound
    ``prior e^{-1/t}``, where its gradient is zero; ``floor=False`` is the bare formula, NaN or meaningless there.

    Paper: Troeshestova and Isachenko, mitigating distributional biases in contrastive learning (preprint), Eq. (12) to
    (14) and (16).

    >>> cp.DebiasedPositives(0.5)(torch.eye(4), torch.eye(4))
    tensor(0.3027)
    """

    use = "positives are sometimes wrong (strong augmentation, noisy pairs), with several views"
    tune_first = "t, then prior"
    cost = "more views"
    on_cosines = True

    temperature: Real = Real("t", above=0, default=0.5, always=True, doc="``t`` > 0.")
    prior: Real = Real(
        above=0, below=1, default=0.1, doc="``tau+``, the share of false negatives; or one per sample in the call."
    )
    aggregation: Choice[Literal["combination", "group_mean", "group_sum"]] = Choice(
        "combination", "group_mean", "group_sum", default="combination", doc="See the details."
    )
    floor: Flag = Flag(default=True, doc="See the details.")

    @property
    def pairing(self) -> str:  # type: ignore[override]
        return "pairs" if self.aggregation == "combination" else "first_two"

    def losses(self, scores: Scores) -> Tensor:
        log_ratio, positive, log_floor = self._log_ratio(scores)
        if self.floor:
            return softplus(-torch.where(positive & (log_ratio > log_floor), log_ratio, log_floor))
        return torch.where(positive, softplus(-log_ratio), log1mexp(-log_ratio))  # NaN unless R < -N prior P-

    def _log_ratio(self, scores: Scores) -> tuple[Tensor, Tensor, Tensor]:
        """Compute ``log |R / (N prior P-)|``, where ``R > 0``, and the logarithm for the floor in place of ``R``."""
        t, neg = self.temperature, scores.neg
        prior = self.prior if scores.prior is None else checks.require_prior(scores.prior, zero=False)
        n, m = neg.count, scores.positives_count()
        # 1. similarities relative to one: e^{1/t} overflows
        log_sum = neg.logsumexp(lambda s: (s - 1) / t)
        pull = (scores.pos - 1) / t
        if self.aggregation != "combination":
            pull = scores.positives_logsumexp(pull) - (log(m) if self.aggregation == "group_mean" else 0.0)
        # 2. R = own + negatives; P - (1 - prior) P- has one term of the sum over negatives, so that it does not cancel
        divisor = n + (m + 1 if self.aggregation == "group_sum" else 2)
        share = torch.as_tensor(1 / divisor - (1 - prior) / n, dtype=pull.dtype, device=pull.device)
        log_own = softplus(pull) - log(divisor) - log_sum - log(prior)
        log_share = share.abs().clamp(min=torch.finfo(share.dtype).tiny).log() - log(prior)
        # 3. their sum or difference; where that is zero, a placeholder keeps the unused gradient finite
        gap = log_share - log_own
        positive = (share >= 0) | (gap < 0)
        apart = torch.where((share < 0) & (gap != 0), -gap.abs(), -1.0)
        difference = torch.maximum(log_own, log_share) + log1mexp(apart)
        log_ratio = torch.where(share < 0, difference, torch.logaddexp(log_own, log_share))
        return log_ratio, positive, -2 / t - log_sum

    def diagnostics(self, scores: Scores) -> dict[str, Tensor]:
        log_ratio, positive, log_floor = self._log_ratio(scores)
        return {"clamp_rate": 1 - (positive & (log_ratio > log_floor)).to(log_ratio.dtype).mean()}


class SoftTargets(Objective, name="soft"):
    """Cross entropy with graded targets: each key counts as a positive as much as a guide finds it similar.

    ``-sum_j w_j log(E(s_j) / sum_k E(s_k)),  w = softmax(g / tau) or (1 + g) / 2`` over all keys, positives included,
    with ``E(s) = e^{s/t}`` and the guide's similarities ``g``. With ``weight="softmax"`` (X-CLR), as ``tau`` approaches
    0, only the key that the guide finds most similar is a positive. With ``weight="linear"`` (CWCL), ``w`` is
    proportional to ``(1 + g) / 2``. The guide is another model, ``loss_fn(z1, z2, guide=(g1, g2))``. Without one, ``g``
    are the similarities of the model itself. Either way they are constants.

    Papers:
    Sobal et al. 2024 (X-CLR), https://arxiv.org/abs/2407.18134;
    Srinivasa et al. 2023 (CWCL), https://arxiv.org/abs/2309.14580.

    >>> cp.SoftTargets(0.5, tau=0.1)(torch.eye(4), torch.eye(4), guide=(torch.eye(4), torch.eye(4)))
    tensor(0.5950)
    """

    paper = "Sobal et al. 2024, X-CLR, https://arxiv.org/abs/2407.18134"
    use = "samples are more or less alike, and another model can tell how much"
    tune_first = "t, then tau (.02 to .2)"
    cost = "the guide's embeddings, and two sums more"
    uses_guide = True
    in_chunks = True  # several sums of two similarities each

    temperature: Real = Real("t", above=0, default=0.1, always=True, doc="``t`` > 0.")
    tau: Real = Real(above=0, default=0.1, doc="Temperature of the targets, > 0; not used by ``weight=linear``.")
    weight: Choice[Literal["softmax", "linear"]] = Choice(
        "softmax", "linear", default="softmax", kw_only=True, doc="See above."
    )

    def losses(self, scores: Scores) -> Tensor:
        t, neg = self.temperature, scores.neg
        pos = scores.pos if scores.v is None else scores.v  # with targets=, which are the guide
        guide_pos = pos.detach() if scores.guide_pos is None else scores.guide_pos
        log_sum = torch.logaddexp(neg.logsumexp(lambda s: s / t), scores.positives_logsumexp(pos / t))

        def surprise(s: Tensor, log_sum: Tensor) -> Tensor:
            return log_sum - s / t

        # its mean by the targets: over the negatives, then over all keys
        log_w = self._log_target(guide_pos)
        log_negatives, mean = neg.expectation(self._log_target, surprise, log_sum, guided=True)
        log_total = torch.logaddexp(log_negatives, scores.positives_logsumexp(log_w))
        share = (log_w - log_total).clamp(max=0).exp()  # entries that are not positives could exceed one
        own = scores.positives_mean(share * surprise(pos, log_sum)) * scores.positives_count()
        return own + (log_negatives - log_total).exp() * mean

    def _log_target(self, g: Tensor, *_: Tensor) -> Tensor:
        if self.weight == "softmax":
            return g / self.tau
        return ((1 + g) / 2).clamp(min=torch.finfo(g.dtype).tiny).log()
