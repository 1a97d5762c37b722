"""CLIP and its relatives: open_clip, SLIP, and the models of transformers with ``return_loss=True``.

**Where the loss sits.** Two calls of cross entropy, images against texts and texts against images.

**Which tensors are there.** Logits of unit embeddings times a learned scale; with several processes, of the gathered
embeddings, as the script gathers them.

**How to put an objective there.** As at the host ``logits``, at sites that are known. The scale is read at each call
and keeps its gradient; the temperature ``t=host`` is one over it. By hand, in place of ``ClipLoss`` or ``SigLipLoss``::

    loss_fn = counterpoint.plugins.clip.ContrastiveLoss("adnce:t=host", gather=world_size > 1)
    loss = loss_fn(image_features, text_features, logit_scale)
"""

from __future__ import annotations

from functools import partial

from . import logits
from .features import ContrastiveLoss as ContrastiveLoss
from .host import Host

SITES = {
    "open_clip/loss.py:ClipLoss.forward": None,
    "losses.py:CLIPLoss.forward": None,
    "modeling_*.py:contrastive_loss": None,
}

HOST = Host(
    name="clip",
    title="open_clip (mlfoundations/open_clip), SLIP (facebookresearch/SLIP), transformers' CLIP and its relatives",
    seam="both calls of cross entropy in ClipLoss.forward (open_clip), CLIPLoss.forward (SLIP) and contrastive_loss "
    "(transformers)",
    tensors="logits (B, B), cosines times a learned scale; of all processes' embeddings if the script gathers them; "
    "the positive is on the diagonal and in the denominator",
    spec="infonce:t=host",
    tested="open_clip and SLIP of November 2026, transformers 5.23, torch 2.15",
    evidence="the clones' losses and transformers' CLIPModel, unmodified, on toy encoders; --verify: value and "
    "gradient within 1e-5; two processes",
    max_views=1,
    views="logits do not say which columns are views of one sample",
    inputs="there are only logits",
    options=("scale",),
    hint="t=host is the script's learned temperature. SigLIP and CoCa's caption loss are left alone.",
    sites=SITES,
    before=partial(logits.before, sites=SITES),
)
