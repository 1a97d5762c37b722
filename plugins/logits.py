"""The seam that most hosts share: contrastive logits and labels, passed to cross entropy.

**Where the loss sits.** In one call of ``nn.CrossEntropyLoss`` or ``F.cross_entropy``, which the user names.

**How to put an objective there.** ``--site FILE:LINE`` names a call to replace, ``--site FILE:ClipLoss.forward`` all
calls of a function; all others are left alone. With one edited line of the host::

    criterion = counterpoint.plugins.logits.ContrastiveLoss("adnce:mu=0.4,t=0.07", scale=1 / 0.07)

**What is not possible.** Whatever needs embeddings. Class weights and label smoothing have no counterpart.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from counterpoint import checks
from counterpoint.hyper import nearest
from counterpoint.objective import Objective, as_objective

from .host import Host, Seam, SeamError, loss_of, on_cosines
from .sites import Site, caller, named, place

LARGEST = 1.5  # larger than any cosine, however rounded
REDUCTIONS = ("mean", "sum", "none")


class ContrastiveLoss(nn.Module):
    """An objective with the interface of ``nn.CrossEntropyLoss``, for contrastive logits.

    ``criterion(logits, labels)`` with logits ``(anchors, keys)``, the positive at column ``labels``; several positives
    per row are booleans or one-hot numbers ``(anchors, keys)``. With ``infonce:t=host`` it is cross entropy.

    If the scale is trained, as CLIP's is, pass it with each call, and let the objective use it::

        criterion = ContrastiveLoss("adnce:t=host")
        loss = criterion(logit_scale.exp() * image @ text.T, labels, scale=logit_scale.exp())

    Args:
        objective: an objective or a spec.
        scale: what the host multiplied the similarities by, usually one over its temperature. The objective owns the
            temperature (``t=host`` is one over the scale), and most objectives need the similarities themselves.
        ignore_index: ignore rows with this label.
        contrastive: for a criterion that the host also uses for something else: ``contrastive(logits, labels)`` returns
            whether a call is contrastive; other calls are plain cross entropy.
        reduction: ``mean`` or ``sum`` over the rows that are not ignored, or ``none`` for the loss of each row.
        weight, label_smoothing: arguments of cross entropy without a counterpart; anything but the default is an error.
    """

    def __init__(
        self,
        objective: Objective | str,
        scale: float | Tensor = 1.0,
        ignore_index: int = -100,
        contrastive: Callable[[Tensor, Tensor], bool] | None = None,
        *,
        reduction: str = "mean",
        weight: Tensor | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        if weight is not None:
            raise ValueError("ContrastiveLoss: weight= weights classes, but columns are samples; expected None.")
        if label_smoothing:
            raise ValueError(
                "ContrastiveLoss: label_smoothing= turns every negative into a positive of small weight, which an "
                f"objective of positives and negatives cannot express; expected 0, got {label_smoothing!r}."
            )
        if reduction not in REDUCTIONS:
            raise ValueError(f"ContrastiveLoss: unknown reduction {reduction!r}.{nearest(str(reduction), REDUCTIONS)}")
        self.objective = as_objective(objective)
        self.scale, self.ignore_index, self.contrastive = scale, ignore_index, contrastive
        self.reduction = reduction
        self._checked_scale = False

    def forward(self, logits: Tensor, labels: Tensor, scale: float | Tensor | None = None) -> Tensor:
        if self.contrastive is not None and not self.contrastive(logits, labels):
            return nn.functional.cross_entropy(logits, labels, ignore_index=self.ignore_index, reduction=self.reduction)
        scale = self.scale if scale is None else scale
        logits, labels = rows_of(logits, labels)
        if not self._checked_scale:  # once, since it synchronizes with the accelerator
            self._checked_scale = True
            _warn_of_scale(self.objective, logits, scale)
        options = {"scale": scale, "ignore_index": self.ignore_index, "empty": "warn"}
        reduction = "mean" if self.reduction == "mean" else "none"
        loss = loss_of(self.objective, logits, labels, call="from_logits", reduction=reduction, **options)
        return loss.sum() if self.reduction == "sum" else loss

    def extra_repr(self) -> str:
        return f"{self.objective}, scale={number_of(self.scale):g}"


def number_of(scale: float | Tensor) -> float:
    return float(scale.detach() if isinstance(scale, Tensor) else scale)


def rows_of(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Put the keys last: cross entropy has classes at dimension 1, ``(B, keys, positions)`` with labels of the rest."""
    if logits.dim() > 2:
        same = labels.shape == logits.shape
        return logits.movedim(1, -1), labels.movedim(1, -1) if same else labels
    return logits, labels


def _warn_of_scale(loss_fn: Objective, logits: Tensor, scale: float | Tensor) -> None:
    """Warn if parameters are cosines, but similarities cannot be: the scale is most likely missing.

    Only the largest similarity is checked, since a very small one may be a mask.
    """
    if not on_cosines(loss_fn) or checks.compiling() or not isinstance(logits, Tensor) or not logits.numel():
        return
    scale = number_of(scale)
    largest = float(logits.detach().max()) / scale
    if largest > LARGEST:
        warnings.warn(
            f"{loss_fn}: its parameters are cosines, but similarities reach {largest:.3g} at scale={scale:g}; scale is "
            "what the similarities were multiplied by, usually one over the temperature, 20 for 0.05.",
            stacklevel=2,
        )


def before(seam: Seam) -> None:
    """Replace cross entropy everywhere; the replacement passes on every call but those from the sites."""
    sites = [Site.parse(text) for text in seam.options.get("site") or ()]
    if not sites:
        raise SeamError(
            "logits: which call of cross entropy? --site FILE:LINE, or FILE:FUNCTION for all calls in a function; "
            "several are named one by one. `counterpoint inject auto -- train.py ...` finds them."
        )
    scale_of = _scale_of(seam.options.get("scale"))
    original = nn.functional.cross_entropy
    reached: set[Site] = set()

    @functools.wraps(original)
    def cross_entropy(
        input: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Tensor:
        def host_loss(reduction: str = reduction) -> Tensor:
            return original(input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing)

        frame = caller()
        here = [site for site in sites if site.covers(frame.f_code.co_filename, frame.f_lineno)]
        seam.saw(place(frame), f"logits {tuple(input.shape)}", replaced=bool(here))
        if not here:
            return host_loss()
        if weight is not None or label_smoothing or size_average is not None or reduce is not None:
            raise SeamError(
                f"logits: class weights and label smoothing at {place(frame)} have no counterpart in an objective"
            )
        scale = scale_of(frame)
        loss_fn = seam.objective("infonce:t=host", criterion=here[0])
        if here[0] not in reached:
            reached.add(here[0])
            if on_cosines(loss_fn) or isinstance(scale, Tensor):
                _refuse_scale(input, scale, place(frame))
        logits, labels = rows_of(input, target)
        options: dict[str, Any] = {"scale": scale, "ignore_index": ignore_index, "empty": "warn"}
        options |= {"reduction": "none"} if reduction == "none" else {}
        total = reduction == "sum"
        return seam.loss(loss_fn, host_loss, logits, labels, call="from_logits", total=total, **options)

    # compiled code would mistake it for torch's own, and not call it from a file of the script
    nn.functional.cross_entropy = torch.compiler.disable(cross_entropy)
    seam.say("replaced cross entropy at " + ", ".join(site.text for site in sites))


def _scale_of(option: str | None) -> Callable[[FrameType], float | Tensor]:
    """Return what reads the scale at a call: a number, or a name there."""
    if option is None:
        raise SeamError(
            "logits: --scale is needed: what similarities were multiplied by, 20 for a temperature of 0.05, or the "
            "name that it has where cross entropy is called, as in --scale self.logit_scale.exp"
        )
    try:
        number = float(option)
    except ValueError:
        return lambda frame: named(option, frame)
    if not 0 < number < float("inf"):
        raise SeamError(f"logits: --scale {option}: expected a positive number or a name")
    return lambda frame: number


def _refuse_scale(logits: Tensor, scale: float | Tensor, where: str) -> None:
    """Raise an error if no cosine, multiplied by ``scale``, can be as large as a logit."""
    largest, scale = float(logits.detach().max()), number_of(scale)
    if largest > LARGEST * scale:
        raise SeamError(
            f"logits: --scale {scale:g} is too small for cosines at {where}: a logit of {largest:.3g} would be "
            f"a similarity of {largest / scale:.3g}. The scale is what similarities were multiplied by, usually "
            "one over the temperature, 20 for 0.05."
        )


HOST = Host(
    name="logits",
    title="any script that passes contrastive logits to cross entropy",
    seam="the calls of cross entropy at --site FILE:LINE or FILE:FUNCTION",
    tensors="logits (anchors, keys), similarities times --scale; the label is the positive's column, which is in the "
    "denominator; gathered if the script gathers",
    spec="infonce:t=host",
    tested="torch 2.15",
    max_views=1,
    views="logits do not say which columns are views of one sample",
    inputs="there are only logits",
    options=("scale", "site"),
    hint="`counterpoint inject auto` finds the site and the scale, which is one over the script's temperature.",
    untested="the scale, which does not change cross entropy",
    before=before,
)
