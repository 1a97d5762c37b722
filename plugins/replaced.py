"""The calls of a script's losses that the seam of logits replaces, and how."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from .host import Seam, SeamError
from .scales import Scales
from .sites import Site, caller, is_own, place


class Replaced:
    """The calls from the sites.

    Attributes:
        sites: with their positives, for calls that have no labels.
        places: of each line that a call has come from, whether it is this library's own, its site and its name.
        classifies: of each line that was left alone, whether its logits are those of a layer.
    """

    def __init__(self, seam: Seam, sites: dict[Site, str | None]) -> None:
        self.seam, self.sites = seam, sites
        self.places: dict[tuple[str, int], tuple[bool, Site | None, str]] = {}
        self.classifies: dict[tuple[str, int], bool] = {}
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
        shape = _shape_in_words(logits.shape)
        if site is None:
            if key not in self.classifies and logits.requires_grad:
                self.classifies[key] = self.scales.are_of_a_layer(logits)
            shape += " of a layer" * self.classifies.get(key, False)
        self.seam.saw(where, shape, replaced=site is not None)
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
        several = labels.shape == logits.shape  # numbers or booleans for every column
        own = "siglip:t=host,b=host" if biased else "supcon:t=host" if several else "infonce:t=host"
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


def rows_of(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Put the keys last: cross entropy has classes at dimension 1, ``(B, keys, positions)`` with labels of the rest."""
    if logits.dim() > 2:
        same = labels.shape == logits.shape
        return logits.movedim(1, -1), labels.movedim(1, -1) if same else labels
    return logits, labels


def put(seam: Seam, owner: Any, name: str, function: Callable[..., Tensor]) -> None:
    """Put ``function`` in the place of ``owner.name`` until the seam ends.

    Compiled code would mistake it for torch's own, and not call it from a file of the script.
    """
    seam.at_end.append(functools.partial(setattr, owner, name, getattr(owner, name)))
    setattr(owner, name, torch.compiler.disable(function))


def labeled(
    replaced: Replaced, original: Callable[..., Tensor], logits_of: Callable[[Tensor, Site, str], Tensor]
) -> Callable[..., Tensor]:
    """Return ``cross_entropy`` or ``nll_loss`` with our loss at the sites.

    Args:
        replaced: the calls from the sites.
        original: the function.
        logits_of: gets what a call at a site and at a line has got, and returns the logits.
    """

    @functools.wraps(original)
    def loss(
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
            smoothing = (label_smoothing,) if label_smoothing else ()  # nll_loss has none
            return original(input, target, weight, size_average, ignore_index, reduce, reduction, *smoothing)

        frame = caller()
        site, where = replaced.site(frame, input)
        if site is None:
            return host_loss()
        if weight is not None or label_smoothing or size_average is not None or reduce is not None:
            raise SeamError(f"logits: class weights and label smoothing at {where} have no counterpart in an objective")
        logits = logits_of(input, site, where)
        return replaced.loss(site, frame, where, logits, target, host_loss, reduction, ignore_index=ignore_index)

    return loss
