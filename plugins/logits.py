"""The seam that most hosts share: contrastive logits, whose gradient is replaced.

**Where the loss sits.** In calls of ``nn.CrossEntropyLoss`` or ``F.cross_entropy``, or of ``nll_loss`` of a
``log_softmax``, which the user names; with ``--positives``, also of ``logsumexp``, ``log_softmax``, ``softmax``,
``exp`` and ``logsigmoid``; with ``--product``, in whatever the script computes from a product of embeddings, or from
two: ``--product FILE:LINE,LINE`` names that of all keys, and that of the positives.

**How to put an objective there.** ``--site FILE:LINE`` names a call, ``--site FILE:ClipLoss.forward`` all calls of a
function; all others are left alone. The script computes, and logs, its own loss; the gradient that its backward pass
brings to the logits becomes that of the objective, see :mod:`counterpoint.plugins.gradient`. The scale of the
similarities is measured, see :mod:`counterpoint.plugins.scales`. With one edited line of the host::

    criterion = counterpoint.plugins.logits.ContrastiveLoss("adnce:mu=0.4,t=0.07", scale=1 / 0.07)

**Soft targets.** Those of cross entropy are taken in each call, and so is label smoothing; those that a script
multiplies a ``log_softmax`` by are named, ``--positives sim_i2t_targets``, one for each ``--site`` behind commas.

**What is not possible.** Whatever needs embeddings. Class weights have no counterpart.
"""

import sys
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from counterpoint.base import Objective, as_objective
from counterpoint.batch.ready_made import columns_of
from counterpoint.names import check_known

from .call import checked_options
from .calls import HOW, Calls, replace_losses
from .finder.recognise import targets_of
from .function import for_modules, one_for_each
from .host import Host, Seam, SeamError, UnreachedError, loss_of
from .similarities import replace_products
from .sites import Site

REDUCTIONS = ("mean", "sum", "none")


class ContrastiveLoss(nn.Module):
    """An objective with the interface of ``nn.CrossEntropyLoss``, for contrastive logits.

    ``criterion(logits, labels)`` with logits ``(anchors, keys)``, the positive at column ``labels``. Labels ``(anchors,
    keys)`` are several positives per row, which are not each other's negatives, if they are booleans or, in each row,
    equal numbers; other numbers are soft targets. With ``infonce:t=host`` it is cross entropy, of several positives
    with ``supcon:t=host``.

    If the scale is trained, as CLIP's is, pass it with each call, and let the objective use it::

        criterion = ContrastiveLoss("adnce:t=host")
        loss = criterion(logit_scale.exp() * image @ text.T, labels, scale=logit_scale.exp())

    Args:
        objective: an objective or a spec.
        scale: what the host multiplied the similarities by, usually one over its temperature. The objective owns the
            temperature (``t=host`` is one over the scale), and most objectives need the similarities themselves.
        ignore_index: ignore rows with this label.
        reduction: ``mean`` or ``sum`` over the rows that are not ignored, or ``none`` for the loss of each row.
        label_smoothing: as in cross entropy.
        weight: an argument of cross entropy without a counterpart; anything but None is an error.
    """

    @checked_options
    def __init__(
        self,
        objective: Objective | str,
        scale: float | Tensor = 1.0,
        ignore_index: int = -100,
        *,
        reduction: str = "mean",
        weight: Tensor | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        if weight is not None:
            raise ValueError("ContrastiveLoss: weight= weights classes, but columns are samples; expected None.")
        check_known("ContrastiveLoss: unknown reduction", reduction, REDUCTIONS)
        self.objective: Objective = as_objective(objective)
        self.scale = scale
        self.ignore_index = ignore_index
        self.reduction: str = reduction
        self.label_smoothing: float = label_smoothing

    def forward(self, logits: Tensor, labels: Tensor, scale: float | Tensor | None = None) -> Tensor:
        scale = self.scale if scale is None else scale
        if logits.dim() > 2:  # cross entropy has classes at dimension 1, (B, keys, positions) with labels of the rest
            labels = labels.movedim(1, -1) if labels.shape == logits.shape else labels
            logits = logits.movedim(1, -1)
        targets = targets_of(labels, logits, self.label_smoothing, self.ignore_index)
        labels = labels if targets is None else columns_of(targets, self.ignore_index)
        options = {"scale": scale, "ignore_index": self.ignore_index, "empty": "warn", "targets": targets}
        reduction = "mean" if self.reduction == "mean" else "none"
        loss = loss_of(self.objective, logits, labels, call="from_logits", reduction=reduction, **options)
        return loss.sum() if self.reduction == "sum" else loss


def before(seam: Seam, sites: Mapping[str, str | None] | None = None, scale: str = "") -> None:
    """Replace the gradient of logits at the sites; every other call stays as it is.

    ``sites`` come with the positives of those whose calls have no labels; by default they are those of the command. For
    ``scale`` see :class:`Scales`.
    """
    options = seam.options
    texts, products = sites or _with_positives(options, "site"), _with_positives(options, "product")
    pairs = dict(_pair(text) for text in products if "," in text)
    if pairs and (len(pairs) < len(products) or options.get("positives") or options.get("way")):
        raise SeamError(
            "logits: --product FILE:LINE,LINE says where the positives are: expected no --positives, no --way, and "
            "such a pair of lines in every --product"
        )
    if not texts and not products:
        raise SeamError(
            "logits: which call of cross entropy? --site FILE:LINE, or FILE:FUNCTION for all calls in a function; "
            "several are named one by one. `counterpoint inject auto -- train.py ...` finds them."
        )
    named = products or texts
    sites_ = dict(zip(pairs or map(Site.parse, named), named.values(), strict=True))
    calls = Calls(seam, sites_)
    calls.scales.otherwise = scale
    for site in () if sites else (*sites_, *pairs.values()):
        for_modules(seam, site.check)
    if products:
        calls.scales.stop()  # --own says it
        replace_products(calls, pairs)
    else:
        replace_losses(calls, known=sites is not None)

    def end() -> None:
        for where, name in () if seam.calls else calls.unlabeled.items():
            seam.say(f"{where} calls {name}, which has no labels: which columns are the positives? {HOW}")
        if not (seam.calls or seam.seen or seam.replaced) and sys.exc_info()[0] in (None, UnreachedError):
            seam.say(
                "no cross entropy was called anywhere: if the script has computed its loss, then without one; "
                "`inject auto` finds other losses, and their lines"
            )

    seam.at_end.append(end)
    seam.say("replacing the gradient at " + ("the host's losses" if sites else ", ".join(products or texts)))


def _with_positives(options: Mapping[str, Any], name: str) -> dict[str, str | None]:
    """Return the sites of an option with their positives, one for all or one for each."""
    sites, text = options.get(name) or (), options.get("positives")
    each = [None] if text is None else text.split(",")
    return dict(zip(sites, one_for_each("--positives", each, [*sites], f"--{name}") if sites else (), strict=True))


def _pair(text: str) -> tuple[Site, Site]:
    """Return the line of a product and that of its positives."""
    first, _, second = text.partition(",")
    site = Site.parse(first, "--product")
    return site, Site.parse(second if ":" in second else f"{site.file}:{second}", "--product")


HOST = Host(
    name="logits",
    title="any script that passes contrastive logits to cross entropy",
    seam="the calls of cross entropy at --site FILE:LINE or FILE:FUNCTION",
    tensors="logits (anchors, keys), similarities times --scale; the label is the positive's column, which is in the "
    "denominator; gathered if the script gathers",
    spec="infonce:t=host",
    tested="torch 2.15; November 2026",
    max_views=1,
    views="logits do not say which columns are views of one sample",
    inputs="there are only logits",
    options=("scale", "bias", "site", "product", "positives", "own", "way", "weighted", "allow_drift"),
    hint="`counterpoint inject auto` finds the site. Without --scale and --bias, these are measured.",
    before=before,
)
