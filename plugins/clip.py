"""CLIP and its relatives: open_clip, SLIP, and the models of transformers with ``return_loss=True``.

**How to put an objective there.** As at the host ``logits``, at sites that are known. The scale is read at each call
and keeps its gradient; the temperature ``t=host`` is one over it. By hand, in place of ``ClipLoss`` or ``SigLipLoss``::

    loss_fn = counterpoint.plugins.clip.ContrastiveLoss("adnce:t=host", gather=world_size > 1)
    loss = loss_fn(image_features, text_features, logit_scale)
"""

from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from counterpoint.base import Objective, as_objective
from counterpoint.engine.distributed import Gather
from counterpoint.values import at_scale

from . import logits
from .call import checked_options

SITES = {
    "open_clip/loss.py:ClipLoss.forward": None,
    "losses.py:CLIPLoss.forward": None,
    "modeling_*.py:contrastive_loss": None,
}


class ContrastiveLoss(nn.Module):
    """Any objective, in place of open_clip's ``ClipLoss`` or ``SigLipLoss``.

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

    @checked_options
    def __init__(
        self, objective: Objective | str = "infonce:t=host", *, gather: Gather = False, symmetric: bool = True
    ):
        super().__init__()
        self.objective: Objective = as_objective(objective)
        self.gather = gather
        self.symmetric = symmetric

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


HOST = replace(  # what such logits cannot do is the same
    logits.HOST,
    name="clip",
    title="open_clip (mlfoundations/open_clip), SLIP (facebookresearch/SLIP), transformers' CLIP and its relatives",
    seam="both calls of cross entropy in ClipLoss.forward (open_clip), CLIPLoss.forward (SLIP) and contrastive_loss "
    "(transformers)",
    tensors="logits (B, B), cosines times a learned scale; of all processes' embeddings if the script gathers them; "
    "the positive is on the diagonal and in the denominator",
    tested="open_clip and SLIP of November 2026, transformers 5.23, torch 2.15",
    options=("scale",),
    hint="t=host is the script's learned temperature. SigLIP and CoCa's caption loss are left alone.",
    sites=SITES,
    before=partial(logits.before, sites=SITES),
)
