"""The seam that most hosts share: logits and labels, handed to cross entropy.

**Where the loss sits.** In one call of ``nn.CrossEntropyLoss`` or ``F.cross_entropy``, which the user names.

**Which tensors are there.** Logits ``(anchors, keys)``, cosines multiplied by ``--scale`` (one over the host's
temperature), and the column of each anchor's positive, which is in the denominator.

**How an objective gets there.** ``--site FILE:LINE`` says which call is replaced, all others are left alone; without
it, the script runs for a few calls, and those that were seen are listed. With one edited line of the host::

    criterion = counterpoint.plugins.logits.CrossEntropyLoss("adnce:mu=0.4,t=0.07", scale=1 / 0.07)

**What cannot be had.** What only embeddings give: more than two views, mixed or adversarial ones. Class
weights and label smoothing have no counterpart; at a ``--site``, ``reduction="none"`` has none either.
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
from counterpoint.objective import Objective, as_objective, objective
from counterpoint.objectives.adnce import ADNCE
from counterpoint.objectives.polarization import DistancePolarization
from counterpoint.objectives.positives import ArCL

from .host import HOST as OWN_LOSS
from .host import Host, Seam, SeamError, loss_of, refuse

SURVEY = 20  # calls of cross entropy that are looked at if no site was named
LARGEST = 1.5  # no cosine, however it was rounded
REDUCTIONS = ("mean", "sum", "none")
NO_VIEWS = "logits do not say which columns are views of one sample"


class CrossEntropyLoss(nn.Module):
    """A twin of ``nn.CrossEntropyLoss`` for contrastive logits.

    ``criterion(logits, labels)`` with logits ``(anchors, keys)``, the positive at column ``labels`` (or, as booleans
    ``(anchors, keys)``, several positives per row). With ``infonce`` it is cross entropy.

    Args:
        objective: an objective or a spec.
        scale: what the host has multiplied the similarities by, usually one over its temperature. The objective owns
            the temperature, and most need similarities as such.
        ignore_index: rows with this label do not count.
        contrastive: for a criterion that the host also uses for something else: ``contrastive(logits, labels)`` says
            which calls are contrastive; the others are plain cross entropy.
        reduction: ``mean`` or ``sum`` over the rows that count, or ``none`` for the loss of each row.
        weight, label_smoothing: refused, as they have no counterpart; here for what they are in cross entropy.
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
            raise ValueError("CrossEntropyLoss: weight= is of classes, but columns are samples; expected None.")
        if label_smoothing:
            raise ValueError(
                "CrossEntropyLoss: label_smoothing= makes every negative a positive of a small weight, which an "
                f"objective of positives and negatives cannot say; expected 0, got {label_smoothing!r}."
            )
        if reduction not in REDUCTIONS:
            raise ValueError(f"CrossEntropyLoss: unknown reduction {reduction!r}.{nearest(str(reduction), REDUCTIONS)}")
        self.objective = as_objective(objective)
        self.scale, self.ignore_index, self.contrastive = float(scale), ignore_index, contrastive
        self.reduction = reduction
        self._looked = False

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.contrastive is not None and not self.contrastive(logits, labels):
            return nn.functional.cross_entropy(logits, labels, ignore_index=self.ignore_index, reduction=self.reduction)
        if not self._looked:  # once, as it makes the host wait for an accelerator
            self._looked = True
            warn_of_scale(self.objective, logits, self.scale)
        how: dict[str, Any] = {"call": "from_logits", "scale": self.scale, "ignore_index": self.ignore_index}
        how["reduction"] = "mean" if self.reduction == "mean" else "none"
        loss = loss_of(self.objective, logits, labels, **how)
        return loss.sum() if self.reduction == "sum" else loss

    def extra_repr(self) -> str:
        return f"{self.objective}, scale={self.scale:g}"


def warn_of_scale(loss_fn: Objective, logits: Tensor, scale: float) -> None:
    """Warns where parameters are cosines, but similarities can be none: the scale has most likely been forgotten.

    Only the largest is looked at: a very small one may be a host's mask.
    """
    on_cosines = any(isinstance(part, (ADNCE, DistancePolarization)) for part in loss_fn.modules())
    if not on_cosines or checks.compiling() or not isinstance(logits, Tensor) or not logits.numel():
        return
    largest = float(logits.detach().max()) / scale
    if largest > LARGEST:
        warnings.warn(
            f"{loss_fn}: its parameters are cosines, but similarities reach {largest:.3g} at scale={scale:g}; scale is "
            "what the logits were multiplied by, usually one over the temperature, 20 for 0.05.",
            stacklevel=2,
        )


def before(seam: Seam) -> None:
    """Replaces cross entropy for all, which hands on every call but those from the site."""
    named, scale = seam.options.get("site"), seam.options.get("scale") or 0.0
    site = None if named is None else _place(named)
    if site is not None and not scale > 0:
        raise SeamError("logits: --scale is needed: what similarities were multiplied by, 20 for a temperature of 0.05")
    if seam.spec != OWN_LOSS:
        wanted = refuse(objective(seam.spec), "logits", inputs="there are only logits")
        if any(isinstance(part, ArCL) for part in wanted.modules()):
            raise SeamError(f"logits: {wanted} compares several views, but {NO_VIEWS}")
    original = nn.functional.cross_entropy
    seen: dict[tuple[str, int], str] = {}

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
        def theirs(reduction: str = reduction) -> Tensor:
            return original(input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing)

        file, line = caller = _caller()
        if site is None or line != site[1] or not _same(file, site[0]):
            text = f"{_short(file)}:{line} with logits {tuple(input.shape)}"
            place = seen.setdefault(caller, text)
            seam.seen[place] = seam.seen.get(place, 0) + 1
            if site is None and sum(seam.seen.values()) == SURVEY:
                places = "".join(f"\n  {place}, {times} times" for place, times in seam.seen.items())
                raise SeamError(f"logits: name one call, --site FILE:LINE, and its --scale. Seen so far:{places}")
            return theirs()
        if weight is not None or label_smoothing or size_average is not None or reduce is not None:
            raise SeamError(f"logits: class weights and label smoothing at {named} have no counterpart in an objective")
        if reduction not in ("mean", "sum"):
            raise SeamError(f"logits: reduction={reduction!r} at {named} has no counterpart in an objective")
        loss_fn = seam.objective(f"infonce:t={1 / scale!r}")
        if seam.calls == seam.verify:  # the first one with the objective itself
            warn_of_scale(loss_fn, input, scale)
        how: dict[str, Any] = {"call": "from_logits", "scale": scale, "ignore_index": ignore_index}
        loss = seam.loss(loss_fn, lambda: theirs("mean"), input, target, **how)
        return loss * (target != ignore_index).sum() if reduction == "sum" else loss

    # compiled code would take it for torch's own, and call it from no file of the script
    nn.functional.cross_entropy = torch.compiler.disable(cross_entropy)
    seam.say(f"replaced cross entropy at {named}" if named else f"looking at {SURVEY} calls of cross entropy")


def _place(named: str) -> tuple[str, int]:
    file, _, line = named.rpartition(":")
    if not file or not line.isdigit():
        raise SeamError(f"logits: --site {named!r} is no FILE:LINE")
    return file, int(line)


def _caller() -> tuple[str, int]:
    """The place outside torch from which this module's function was called."""
    frame = sys._getframe(2)
    inside = str(Path(torch.__file__).parent)
    while frame.f_code.co_filename.startswith(inside) and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


@functools.lru_cache
def _same(file: str, named: str) -> bool:
    tail = Path(named).parts
    return Path(file).parts[-len(tail) :] == tail or Path(file).resolve() == Path(named).resolve()


def _short(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


HOST = Host(
    name="logits",
    title="any script that hands contrastive logits to cross entropy",
    seam="the call of cross entropy at --site FILE:LINE",
    tensors="logits (anchors, keys), similarities times --scale; the label is the positive's column, which is in the "
    "denominator; gathered if the script gathers",
    spec="infonce:t=1/scale",
    tested="torch 2.15",
    views=f"none: {NO_VIEWS}",
    options=("scale", "site"),
    hint=f"without --site the script stops after {SURVEY} calls of cross entropy, and those seen are listed by "
    "FILE:LINE; --scale is one over the script's temperature",
    before=before,
)
