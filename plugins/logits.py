"""The seam that most hosts share: contrastive logits and labels, passed to cross entropy.

**Where the loss sits.** In one call of ``nn.CrossEntropyLoss`` or ``F.cross_entropy``, which the user names.

**How to put an objective there.** ``--site FILE:LINE`` names the call to replace, all others are left alone; without
it, the script runs for a few calls, and their locations are listed. With one edited line of the host::

    criterion = counterpoint.plugins.logits.ContrastiveLoss("adnce:mu=0.4,t=0.07", scale=1 / 0.07)

**What is not possible.** Whatever needs embeddings. Class weights and label smoothing have no counterpart; at a
``--site``, ``reduction="none"`` has none either.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from counterpoint import checks
from counterpoint.hyper import nearest
from counterpoint.objective import Objective, as_objective
from counterpoint.objectives.adnce import ADNCE
from counterpoint.objectives.polarization import DistancePolarization

from .host import Host, Seam, SeamError, loss_of

SURVEY = 20  # number of calls of cross entropy to list if no site is named
LARGEST = 1.5  # larger than any cosine, however rounded
REDUCTIONS = ("mean", "sum", "none")


class ContrastiveLoss(nn.Module):
    """An objective with the interface of ``nn.CrossEntropyLoss``, for contrastive logits.

    ``criterion(logits, labels)`` with logits ``(anchors, keys)``, the positive at column ``labels`` (or, as booleans
    ``(anchors, keys)``, several positives per row). With ``infonce`` it is cross entropy.

    Args:
        objective: an objective or a spec.
        scale: what the host multiplied the similarities by, usually one over its temperature. The objective owns the
            temperature, and most objectives need the similarities themselves.
        ignore_index: ignore rows with this label.
        contrastive: for a criterion that the host also uses for something else: ``contrastive(logits, labels)`` returns
            whether a call is contrastive; other calls are plain cross entropy.
        reduction: ``mean`` or ``sum`` over the rows that are not ignored, or ``none`` for the loss of each row.
        weight, label_smoothing: arguments of cross entropy without a counterpart; anything but the default is an error.
    """

    def __init__(
        self,
        objective: Objective | str,
        scale: float = 1.0,
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
        self.scale, self.ignore_index, self.contrastive = float(scale), ignore_index, contrastive
        self.reduction = reduction
        self._checked_scale = False

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.contrastive is not None and not self.contrastive(logits, labels):
            return nn.functional.cross_entropy(logits, labels, ignore_index=self.ignore_index, reduction=self.reduction)
        if not self._checked_scale:  # once, since it synchronizes with the accelerator
            self._checked_scale = True
            _warn_of_scale(self.objective, logits, self.scale)
        options = {"scale": self.scale, "ignore_index": self.ignore_index}
        reduction = "mean" if self.reduction == "mean" else "none"
        loss = loss_of(self.objective, logits, labels, call="from_logits", reduction=reduction, **options)
        return loss.sum() if self.reduction == "sum" else loss

    def extra_repr(self) -> str:
        return f"{self.objective}, scale={self.scale:g}"


def _warn_of_scale(loss_fn: Objective, logits: Tensor, scale: float) -> None:
    """Warn if parameters are cosines, but similarities cannot be: the scale is most likely missing.

    Only the largest similarity is checked, since a very small one may be a mask.
    """
    on_cosines = any(isinstance(part, (ADNCE, DistancePolarization)) for part in loss_fn.modules())
    if not on_cosines or checks.compiling() or not isinstance(logits, Tensor) or not logits.numel():
        return
    largest = float(logits.detach().max()) / scale
    if largest > LARGEST:
        warnings.warn(
            f"{loss_fn}: its parameters are cosines, but similarities reach {largest:.3g} at scale={scale:g}; scale is "
            "what the similarities were multiplied by, usually one over the temperature, 20 for 0.05.",
            stacklevel=2,
        )


def before(seam: Seam) -> None:
    """Replace cross entropy everywhere; the replacement passes on every call but those from the site."""
    site_option, scale = seam.options.get("site"), seam.options.get("scale") or 0.0
    site = None if site_option is None else _parse_site(site_option)
    if site is not None and not scale > 0:
        raise SeamError("logits: --scale is needed: what similarities were multiplied by, 20 for a temperature of 0.05")
    original = nn.functional.cross_entropy
    places: dict[tuple[str, int], str] = {}

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

        file, line = caller = _caller()
        if site is None or line != site[1] or not _is_file(file, site[0]):
            place = places.setdefault(caller, f"{_short(file)}:{line} with logits {tuple(input.shape)}")
            seam.seen[place] = seam.seen.get(place, 0) + 1
            if site is None and sum(seam.seen.values()) == SURVEY:
                calls = "".join(f"\n  {place}, {times} times" for place, times in seam.seen.items())
                raise SeamError(f"logits: name one call, --site FILE:LINE, and its --scale. Seen so far:{calls}")
            return host_loss()
        if weight is not None or label_smoothing or size_average is not None or reduce is not None:
            raise SeamError(
                f"logits: class weights and label smoothing at {site_option} have no counterpart in an objective"
            )
        if reduction not in ("mean", "sum"):
            raise SeamError(f"logits: reduction={reduction!r} at {site_option} has no counterpart in an objective")
        loss_fn = seam.objective(f"infonce:t={1 / scale!r}")
        if seam.calls == seam.verify:  # the first call with the objective itself
            _warn_of_scale(loss_fn, input, scale)
        options: dict[str, Any] = {"call": "from_logits", "scale": scale, "ignore_index": ignore_index}
        loss = seam.loss(loss_fn, lambda: host_loss("mean"), input, target, **options)
        return loss * (target != ignore_index).sum() if reduction == "sum" else loss

    # compiled code would mistake it for torch's own, and not call it from a file of the script
    nn.functional.cross_entropy = torch.compiler.disable(cross_entropy)
    seam.say(f"replaced cross entropy at {site_option}" if site_option else f"listing {SURVEY} calls of cross entropy")


def _parse_site(option: str) -> tuple[str, int]:
    file, _, line = option.rpartition(":")
    if not file or not line.isdigit():
        raise SeamError(f"logits: --site {option!r}: expected FILE:LINE")
    return file, int(line)


def _caller() -> tuple[str, int]:
    """The file and line outside torch that called cross entropy."""
    frame = sys._getframe(2)
    torch_folder = str(Path(torch.__file__).parent)
    while frame.f_code.co_filename.startswith(torch_folder) and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


@functools.lru_cache
def _is_file(file: str, name: str) -> bool:
    tail = Path(name).parts
    return Path(file).parts[-len(tail) :] == tail or Path(file).resolve() == Path(name).resolve()


def _short(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


HOST = Host(
    name="logits",
    title="any script that passes contrastive logits to cross entropy",
    seam="the call of cross entropy at --site FILE:LINE",
    tensors="logits (anchors, keys), similarities times --scale; the label is the positive's column, which is in the "
    "denominator; gathered if the script gathers",
    spec="infonce:t=1/scale",
    tested="torch 2.15",
    max_views=1,
    views="logits do not say which columns are views of one sample",
    inputs="there are only logits",
    options=("scale", "site"),
    hint=f"Without --site the script stops after {SURVEY} calls of cross entropy, and lists them by FILE:LINE; --scale "
    "is one over the script's temperature.",
    before=before,
)
