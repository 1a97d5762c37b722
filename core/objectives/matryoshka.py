"""Matryoshka representations: an objective of the first numbers of each embedding, in several widths at once."""

from collections.abc import Callable
from copy import copy, deepcopy
from functools import partial
from typing import Any

from torch import Tensor, nn

from ..base import Objective, Wrapper
from ..batch.batch import Batch
from ..batch.options import Reduction
from ..batch.pairings import scores_of
from ..batch.scores import Scores
from ..hyper import Numbers
from ..values import Learned, Schedule


class Matryoshka(Wrapper, name="matryoshka"):
    """Embeddings that can be truncated: the sum of ``objective`` of their first ``m`` numbers, for several ``m``.

    ``sum_m w_m L(z[:m])``. Truncated embeddings are normalized again; scores and logits, which cannot be truncated, are
    refused. Statistics that an objective tracks are kept for each width, and learned values are shared.

    Paper: Kusupati et al. 2022, https://arxiv.org/abs/2205.13147.

    >>> z1, z2 = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(0))
    >>> whole, half = cp.InfoNCE(0.5)(z1, z2), cp.InfoNCE(0.5)(z1[:, :8], z2[:, :8])
    >>> torch.allclose(cp.objective("matryoshka(infonce:t=0.5):dims=[16,8]")(z1, z2), whole + half)
    True
    """

    use = "embeddings are truncated later, to save memory and time"
    tune_first = "dims, then those of the objective"
    cost = "a loss for each width"

    dims: Numbers = Numbers(default=None, doc="The widths ``m``; None: all, half and a quarter of the numbers.")
    weights: Numbers = Numbers(default=None, doc="The factor of each width; None is 1.")

    def __post_init__(self) -> None:
        dims, weights = self.dims or (), self.weights
        if any(m != int(m) for m in dims) or (weights and len(weights) != len(dims)):
            raise ValueError(f"{self.name}: expected whole dims, and a weight for each, got {dims} and {weights}.")
        parts = [part for part in self.objective.modules() if not isinstance(part, Schedule)]
        if any(part._buffers for part in parts):
            if not dims:
                raise ValueError(f"{self.name}: {self.objective} tracks statistics of each width: give dims=.")
            shared = {id(part): part for part in parts if isinstance(part, Learned)}
            self.others: nn.ModuleList = nn.ModuleList(deepcopy(self.objective, {**shared}) for _ in dims[1:])

    @property
    def pairing(self) -> str:  # type: ignore[override]
        return self.objective.terms()[0][1].pairing

    def losses(self, scores: Scores) -> Tensor:
        raise TypeError(f"{self}: needs embeddings, which scores, logits and other wrappers do not have.")

    def _loss(self, scores_for: Callable[[str], Scores], reduction: Reduction) -> Tensor:
        batch: Any = scores_for
        while isinstance(batch, partial):  # of scores_of
            batch = batch.args[0]
        if not isinstance(batch, Batch):
            return self.losses(scores_for(self.pairing))
        width = batch.width
        dims = [*map(int, self.dims or {width, width // 2 or 1, width // 4 or 1})]
        if max(dims) > width:
            raise ValueError(f"{self}: dims: expected at most {width}, the width of the embeddings.")
        objectives: list[Objective] = [self.objective, *getattr(self, "others", [self.objective] * len(dims))]
        values = []
        for m, weight, objective in zip(dims, self.weights or [1.0] * len(dims), objectives, strict=False):
            scores = scores_for if m == width else partial(scores_of, truncated(batch, m))
            values.append(weight * objective._loss(scores, reduction))
        return sum(values[1:], values[0])


def truncated(batch: Batch, width: int) -> Batch:
    """Return the batch with the first numbers of all embeddings but the guide's."""
    part = copy(batch)
    part.raw, part.width, part.paired = [view[..., :width] for view in batch.raw], width, {}
    part._normalized, part._stack, part._gathered = None, None, {}
    for name in ("queue", "negatives", "adversarial", "mixed"):
        if (z := getattr(batch, name)) is not None:
            of = part._prepared((z if isinstance(z, Tensor) else z.embeddings)[..., :width])
            setattr(part, name, of if isinstance(z, Tensor) else z._replace(embeddings=of))
    return part
