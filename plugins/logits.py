"""The seam that most hosts share: contrastive logits and labels, passed to cross entropy.

**Where the loss sits.** In calls of ``nn.CrossEntropyLoss`` or ``F.cross_entropy``, or of ``nll_loss`` of a
``log_softmax``, which the user names; with ``--positives``, also of ``logsumexp``, ``log_softmax`` and ``logsigmoid``.

**How to put an objective there.** ``--site FILE:LINE`` names a call to replace, ``--site FILE:ClipLoss.forward`` all
calls of a function; all others are left alone. The scale of the similarities is measured, see
:mod:`counterpoint.plugins.scales`. With one edited line of the host::

    criterion = counterpoint.plugins.logits.ContrastiveLoss("adnce:mu=0.4,t=0.07", scale=1 / 0.07)

**What is not possible.** Whatever needs embeddings. Class weights and label smoothing have no counterpart.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from counterpoint import checks
from counterpoint.names import check_known
from counterpoint.objective import Objective, as_objective

from . import unlabeled
from .host import Host, Seam, SeamError, loss_of, on_cosines
from .scales import LARGEST, Scales, number_of
from .sites import Site, caller, is_own, place

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
        check_known("ContrastiveLoss: unknown reduction", reduction, REDUCTIONS)
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


def before(seam: Seam, sites: Mapping[str, str | None] | None = None) -> None:
    """Replace cross entropy everywhere; the replacement passes on every call but those from the sites.

    Args:
        seam: of this run.
        sites: sites, and the positives of those that call ``logsumexp`` or ``log_softmax``; by default those of the
            command.
    """
    texts = sites or dict.fromkeys(seam.options.get("site") or (), seam.options.get("positives"))
    if not texts:
        raise SeamError(
            "logits: which call of cross entropy? --site FILE:LINE, or FILE:FUNCTION for all calls in a function; "
            "several are named one by one. `counterpoint inject auto -- train.py ...` finds them."
        )
    replaced = Replaced(seam, {Site.parse(text): positives for text, positives in texts.items()})
    original = nn.functional.cross_entropy

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
        def host_loss() -> Tensor:
            return original(input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing)

        frame = caller()
        site, where = replaced.site(frame, input)
        if site is None:
            return host_loss()
        if weight is not None or label_smoothing or size_average is not None or reduce is not None:
            raise SeamError(f"logits: class weights and label smoothing at {where} have no counterpart in an objective")
        if replaced.sites[site] is not None and sites is None:
            raise SeamError(f"logits: --positives: cross entropy at {where} has labels of its own")
        return replaced.loss(site, frame, where, input, target, host_loss, reduction, ignore_index=ignore_index)

    # compiled code would mistake it for torch's own, and not call it from a file of the script
    nn.functional.cross_entropy = torch.compiler.disable(cross_entropy)
    what = "cross entropy"
    if any(positives is not None for positives in texts.values()):
        what = "the losses"
        unlabeled.replace(seam, replaced)
    else:
        unlabeled.replace_nll_loss(seam, replaced)
    seam.say(f"replaced {what} at " + ", ".join(texts))


class Replaced:
    """The calls from the sites.

    Attributes:
        sites: with their positives, for calls that have no labels.
        places: of each line that a call has come from, whether it is this library's own, its site and its name.
    """

    def __init__(self, seam: Seam, sites: dict[Site, str | None]) -> None:
        self.seam, self.sites = seam, sites
        self.places: dict[tuple[str, int], tuple[bool, Site | None, str]] = {}
        self.scales = Scales(seam, seam.options.get("scale"))

    def site(self, frame: FrameType, logits: Tensor) -> tuple[Site | None, str]:
        """Return the site that a call comes from, and its line in words; count the call."""
        key = frame.f_code.co_filename, frame.f_lineno
        if key not in self.places:
            here = [site for site in self.sites if site.covers(*key)]
            self.places[key] = is_own(frame), here[0] if here else None, place(frame)
        own, site, where = self.places[key]
        if own:
            return None, where
        self.seam.saw(where, _shape_in_words(logits.shape), replaced=site is not None)
        return site, where

    def loss(
        self,
        site: Site,
        frame: FrameType,
        where: str,
        logits: Tensor,
        labels: Tensor,
        host_loss: Callable[[], Tensor],
        reduction: str,
        biased: bool = False,
        **options: Any,
    ) -> Tensor:
        """Compute the loss of a call from a site; ``biased`` for binary logits, which are shifted, too."""
        scale = self.scales.at(frame, where, logits, biased)
        if scale is None:
            self.seam.notes[f"{where}, at first"] = "its own loss, as its scale was not measured yet; give --scale"
            return host_loss()
        own = "siglip:t=host,b=host" if biased else "infonce:t=host"
        loss_fn = self.seam.objective(own, criterion=site)
        options |= {"scale": scale, "empty": "warn", **({"reduction": "none"} if reduction == "none" else {})}
        if biased:
            options["bias"] = self.scales.bias(frame, where)
        total = reduction == "sum"
        rows, inputs = rows_of(logits, labels), (logits, scale, options.get("bias"))
        return self.seam.loss(loss_fn, host_loss, *rows, call="from_logits", total=total, inputs=inputs, **options)


@functools.lru_cache
def _shape_in_words(shape: torch.Size) -> str:
    return f"logits {tuple(shape)}"


HOST = Host(
    name="logits",
    title="any script that passes contrastive logits to cross entropy",
    seam="the calls of cross entropy at --site FILE:LINE or FILE:FUNCTION",
    tensors="logits (anchors, keys), similarities times --scale; the label is the positive's column, which is in the "
    "denominator; gathered if the script gathers",
    spec="infonce:t=host",
    tested="torch 2.15; November 2026",
    evidence="scripts of the test bed, unmodified: examples/existing_repos/README.md has the table",
    max_views=1,
    views="logits do not say which columns are views of one sample",
    inputs="there are only logits",
    options=("scale", "bias", "site", "positives"),
    hint="`counterpoint inject auto` finds the site. Without --scale and --bias, these are measured.",
    before=before,
)
