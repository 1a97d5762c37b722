"""A loss for the trainers of CLIP and its relatives: two features, the host's learned scale, and its bias."""

from __future__ import annotations

from torch import Tensor, nn

from counterpoint.engine.distributed import Gather
from counterpoint.objective import Objective, as_objective
from counterpoint.values import at_scale


class ContrastiveLoss(nn.Module):
    """Any objective, in place of open_clip's ``ClipLoss`` or ``SigLipLoss``; see :mod:`counterpoint.plugins.clip`.

    ``infonce:t=host`` is ``ClipLoss``, ``siglip:t=host`` is ``SigLipLoss``; ``t=host`` is one over the host's
    ``logit_scale``, which stays learned. A ``logit_bias`` replaces the bias of ``siglip``; in a softmax it cancels.

    Args:
        objective: an objective or a spec.
        gather: compare with the features of all processes, see :mod:`counterpoint.engine.distributed`. The loss is that
            of one process with the whole batch, and so is its gradient, averaged over processes as DDP does: that of
            open_clip with ``gather_with_grad=True``.
        symmetric: whether texts are anchors too.

    >>> loss_fn = ContrastiveLoss("infonce:t=host")
    >>> image, text = torch.eye(4), torch.eye(4).roll(1, 0)
    >>> round(loss_fn(image, text, logit_scale=torch.tensor(10.0)).item(), 4)
    10.0001
    """

    def __init__(
        self, objective: Objective | str = "infonce:t=host", *, gather: Gather = False, symmetric: bool = True
    ):
        super().__init__()
        self.objective, self.gather, self.symmetric = as_objective(objective), gather, symmetric

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor | float,
        logit_bias: Tensor | None = None,
        output_dict: bool = False,
    ) -> Tensor | dict[str, Tensor]:
        """Compute the loss of unit features ``(B, d)`` each."""
        with at_scale(logit_scale, logit_bias, every_bias=True):
            loss = self.objective(
                image_features, text_features, pairing="symmetric" if self.symmetric else "one_way", normalize=False,
                gather=self.gather,
            )  # fmt: skip
        if logit_bias is not None:  # every parameter needs a gradient in DDP
            loss = loss + 0.0 * logit_bias.sum()
        return {"contrastive_loss": loss} if output_dict else loss
