"""Global contrastive losses: each sample remembers the mass of its negatives, so that small batches suffice."""

import math
from typing import Literal

import torch
from torch import Tensor

from .. import checks
from ..base import Objective
from ..batch.scores import Scores
from ..hyper import Choice, Real
from ..values import Value, kept, log


class SogCLR(Objective, name="sogclr"):
    """Global contrastive loss: the mass of a sample's negatives is an average over the batches that it was in.

    ``t log u,  u <- (1 - gamma) u + gamma mean_j E(s_j - p),  E(s) = e^{s/t}``. The gradient is that of ``t g / u``
    with constant ``u``, where ``g`` is the batch's mean. A sample's first batch sets ``u``: there the loss is ``t``
    times InfoNCE with ``denominator="mean"``. ``average="sample"`` is the paper's Algorithm 1: the loss is
    ``t log u - p``, and all views of a sample share an average of ``mean_j E(s_j)``.

    Each call needs ``index=``, the samples' positions in the data set. The buffer ``log_mean`` holds ``log u``, and
    ``state_dict`` keeps it; training calls update it. With ``gather=``, all processes hold the same averages.

    For images and texts, add ``pairing="symmetric"``. FastCLIP then decreases ``gamma`` and learns one temperature:
    ``sogclr:gamma=schedule(1,0.2,steps,cosine),t=learned(0.07,0.01,1),rho=8`` (https://arxiv.org/abs/2407.01445).

    Paper: Yuan et al. 2022, https://arxiv.org/abs/2202.12387.

    >>> loss_fn = cp.SogCLR(0.5, size=50_000).eval()
    >>> round(loss_fn(torch.eye(4), torch.eye(4), index=torch.tensor([7, 3, 49_999, 0])).item(), 4)
    -1.0
    """

    use = "batches are small, and the loader knows each sample's position in the data set"
    tune_first = "t, then gamma (.2 to .9)"
    cost = "negligible, and a number for each sample and view"
    needs: frozenset[str] = frozenset({"indexed"})  # pyright: ignore[reportAssignmentType]

    temperature: Real = Real("t", above=0, default=0.1, always=True, doc="``t`` > 0.")
    gamma: Real = Real(above=0, high=1, default=0.9, doc="Weight of the batch in ``u``, in ``(0, 1]``.")
    rho: Real = Real(low=0, default=0.0, doc="Radius of CL-DRO: adds ``t rho``, so that ``t`` can be learned.")
    size: Real[int, int] = Real(low=1, whole=True, default=100_000, doc="Number of samples in the data set, or more.")
    average: Choice[Literal["view", "sample"]] = Choice("view", "sample", default="view", doc="What has a ``u``.")

    def __post_init__(self) -> None:
        self.log_mean: Tensor
        self.register_buffer("log_mean", self._filled(-math.inf))

    @property
    def couples_anchors(self) -> bool:
        return self.average == "sample"

    def losses(self, scores: Scores) -> Tensor:
        slots = self._slots(scores)
        # 1. the batch's mass of negatives, relative to the positive or not
        t, log_mass = self.tempered(scores, slots)
        pull = scores.positives_mean(scores.pos) / t if self.average == "view" else 0.0
        log_g = log_mass - scores.neg.log_count - pull
        # 2. its moving average
        training = self.training and torch.is_grad_enabled()
        with torch.no_grad():
            before = self.log_mean[slots, None].to(log_g.dtype)
            blend = torch.logaddexp(before + log(1 - self.gamma), log_g + log(self.gamma))
            log_u = torch.where(before.isinf(), log_g, blend)
            ratio = (log_g - log_u).exp()  # at most 1 / gamma
            if training:
                self.update(scores, slots, t, pull, log_u, ratio)
        # 3. the value is log u, the gradient that of g / u
        losses = t * (log_u + ratio * (log_g - log_g.detach()) + self.rho)
        return losses if self.average == "view" else losses - scores.pos

    def tempered(self, scores: Scores, slots: Tensor) -> tuple[Value, Tensor]:
        """Return the temperature, and the log-sum-exp of the negatives at it."""
        t = self.temperature
        return t, scores.neg.logsumexp(lambda s: s / t)

    def update(self, scores: Scores, slots: Tensor, t: Value, pull: Value, log_u: Tensor, ratio: Tensor) -> None:
        """Store the averages; a sample that the batch has several times gets their mean."""
        slots, log_u = self._of_all(scores, slots, log_u, self.log_mean)
        top = self.log_mean.scatter_reduce(0, slots, log_u, "amax", include_self=False)
        share = (log_u - top[slots]).exp()
        share = torch.zeros_like(top).scatter_reduce(0, slots, share, "mean", include_self=False)
        # not in place: a compiled backward pass may recompute values from the averages of its forward pass
        self.log_mean = kept(torch.where(share > 0, top + share.log(), self.log_mean), self.log_mean)

    def _filled(self, value: float) -> Tensor:
        """Return a number for each sample or, after one another, for both views of each."""
        return torch.full((self.size * (2 if self.average == "view" else 1),), value)

    def _slots(self, scores: Scores) -> Tensor:
        """Return the places of the anchors in a buffer."""
        if scores.index is None:
            raise ValueError(f"{self}: pass index=, the samples' positions in the data set, beside embeddings.")
        index, view = scores.index.unbind(1)
        view = view if self.average == "view" else torch.zeros_like(view)
        if checks.wanted(index) and not bool(((index >= 0) & (index < self.size) & (view < 2)).all()):
            known = f"from 0 to size - 1 = {self.size - 1} of at most two views (of more: average=sample)"
            got = f"{int(index.min())} to {int(index.max())} of {int(view.max()) + 1}"
            raise ValueError(f"{self}: index: expected positions {known}, got {got}.")
        return view * self.size + index

    def _of_all(self, scores: Scores, slots: Tensor, values: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the places and new values of all processes' anchors; those that do not count keep theirs."""
        if scores.anchor_factor is not None:
            values = values.where(scores.anchor_factor.unsqueeze(1) > 0, state[slots, None].to(values.dtype))
        values = values.squeeze(1).to(state.dtype)
        group = scores.neg.group
        return (slots, values) if group is None else (group.gather(slots), group.gather(values))


class ISogCLR(SogCLR, name="isogclr"):
    """SogCLR with a temperature for each sample, that of CL-DRO's worst case within the radius ``rho``.

    ``t (log u + rho),  t <- t - eta v,  v <- (1 - beta) v + beta dL/dt``. Training calls move ``t`` and ``v``, which
    are the buffers ``temperatures`` and ``slopes``. The rest is as in :class:`SogCLR`.

    Paper: Qiu et al. 2023, https://arxiv.org/abs/2305.11965.

    >>> loss_fn, z = cp.ISogCLR(0.5, size=3), torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> losses = [loss_fn(z, z, index=torch.arange(3)) for _ in range(20)]
    >>> [round(t, 2) for t in loss_fn.temperatures.tolist()]
    [0.49, 0.44, 0.47, 0.49, 0.44, 0.47]
    """

    use = "as sogclr, where some samples have many similar negatives and others few"
    tune_first = "rho (.1 to .5; 6 and more in large data sets), then eta"
    cost = "another pass over the negatives, and three numbers for each sample and view"

    temperature: Real = Real("t", above=0, default=0.1, always=True, fixed=True, doc="First ``t``, > 0.")
    rho: Real = Real(low=0, default=0.3, doc="Radius of CL-DRO.")
    eta: Real[float, float] = Real(low=0, default=0.01, fixed=True, doc="Step size of ``t``.")
    beta: Real[float, float] = Real(above=0, high=1, default=0.9, fixed=True, doc="Weight of the batch in ``v``.")
    low: Real[float, float] = Real(above=0, default=0.05, fixed=True, doc="Smallest ``t``, > 0.")
    high: Real[float, float] = Real(above=0, default=0.7, fixed=True, doc="Largest ``t``.")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.temperatures: Tensor
        self.slopes: Tensor
        self.register_buffer("temperatures", self._filled(float(self.temperature)))
        self.register_buffer("slopes", self._filled(0.0))

    def diagnostics(self, scores: Scores) -> dict[str, Tensor]:
        return {"temperature": self.temperatures[self._slots(scores), None]}

    def tempered(self, scores: Scores, slots: Tensor) -> tuple[Value, Tensor]:
        t = self.temperatures[slots, None].to(scores.pos.dtype)
        return t, scores.neg.logsumexp(lambda s, t: s / t, t)

    def update(self, scores: Scores, slots: Tensor, t: Value, pull: Value, log_u: Tensor, ratio: Tensor) -> None:
        super().update(scores, slots, t, pull, log_u, ratio)
        exponent = scores.neg.expectation(lambda s, t: s / t, lambda s, t: s, t)[1] / t - pull  # type: ignore[arg-type]
        slope = log_u + self.rho - ratio * exponent
        v = (1 - self.beta) * self.slopes[slots, None] + self.beta * slope
        slots, v = self._of_all(scores, slots, v, self.slopes)
        self.slopes = self.slopes.scatter_reduce(0, slots, v, "mean", include_self=False)
        t = (self.temperatures[slots] - self.eta * self.slopes[slots]).clamp(self.low, self.high)
        self.temperatures = self.temperatures.scatter(0, slots, t)
