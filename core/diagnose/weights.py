"""Which negatives an objective trains on.

The *training weight* of a negative is ``dL/ds``, the derivative of the loss by its similarity; for InfoNCE it is
proportional to ``e^{s/t}``. Positive weights push a pair apart. Negative ones pull it together: ``dp`` does so with
pairs below the middle of its margin, and objectives that compare a negative with the mean (``hcl``, ``mv``, ``dro``
with ``nonneg=false``) with easy ones. If all weights are zero (a clamped estimate), there is nothing to learn.
"""

from copy import deepcopy

import torch
from torch import Tensor

from ..batch.report import derivative
from ..batch.scores import Scores
from ..engine.matrix import MatrixNegatives
from ..objective import Objective, as_objective


def weight_curve(
    objective: Objective | str,
    similarities: Tensor | None = None,
    positive: float = 0.8,
    negatives: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the training weight ``dL/ds`` of a negative over its similarity, after ADNCE's Figure 3.

    Args:
        objective: an objective or a spec. All terms of a sum see the same pairs, and adversarial views equal clean
            ones.
        similarities: ``(K,)`` where to look; by default 201 points from -1 to 1.
        positive: similarity of the anchor's positive.
        negatives: ``(N,)`` similarities of the anchor's negatives, of mean absolute weight 1; by default the same.

    Returns:
        The similarities and the weights, ``(K,)`` each, in float64.

    >>> import torch, counterpoint as cp
    >>> _, weights = cp.weight_curve("infonce:t=0.5", torch.tensor([0.0, 0.5, 1.0]))
    >>> weights
    tensor([0.2701, 0.7342, 1.9957], dtype=torch.float64)
    """
    grid = torch.linspace(-1, 1, 201, dtype=torch.float64) if similarities is None else similarities
    grid, own = (s.detach().cpu().double().flatten() for s in (grid, grid if negatives is None else negatives))
    with torch.inference_mode(False), torch.enable_grad():
        # points of the curve that are not negatives weigh too little to change any statistic of the negatives
        points = grid[:0] if negatives is None else grid
        row = torch.cat([own, points]).unsqueeze(0).requires_grad_()
        mass = torch.cat([torch.ones_like(own), torch.full_like(points, 1e-12)])
        neg, pos = MatrixNegatives(row, log_weight=mass.log().unsqueeze(0)), row.new_full((1, 1), positive)
        scores = Scores(pos, neg, adversarial=Scores(pos, neg), index=torch.zeros(1, 2, dtype=torch.long))
        loss = deepcopy(as_objective(objective)).eval().cpu().from_pairings(lambda _: scores, row.device)
        weight = derivative(loss, row)[0] / mass
    scale = weight[: len(own)].abs().mean()
    return grid, weight[-len(grid) :] / torch.where(scale > 0, scale, 1.0)
