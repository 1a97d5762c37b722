"""Losses that are not cross entropy of logits and labels: nll_loss, log-sum-exps, and binary logits.

A script computes ``logsumexp(x) - x[positive]``, minus the positive's ``log_softmax``, or minus the sum of
``logsigmoid(labels * x)``. Each call at a site is replaced such that the script ends with our loss. Where the call has
no labels, ``--positives`` names their columns.
"""

from __future__ import annotations

import functools
import weakref
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor, distributed, nn

from .host import Seam, SeamError
from .replaced import Replaced, labeled, put
from .sites import Site, caller, is_file, named, place

_LOG_SOFTMAXES: tuple[tuple[Any, str], ...] = (
    (torch, "log_softmax"),
    (Tensor, "log_softmax"),
    (nn.functional, "log_softmax"),
)
_LOG_SUMS: tuple[tuple[Any, str], ...] = ((torch, "logsumexp"), (Tensor, "logsumexp"), *_LOG_SOFTMAXES)
_HOW = "--positives diagonal, a column's number, or the name of a tensor of columns at the site"


def replace(seam: Seam, replaced: Replaced) -> None:
    """Replace what has positives that the user names."""
    for owner, name in _LOG_SUMS:
        put(seam, owner, name, _log_sum(replaced, getattr(owner, name)))
    put(seam, nn.functional, "logsigmoid", _log_sigmoid(replaced, nn.functional.logsigmoid))


def _positives(replaced: Replaced, site: Any, where: str) -> str:
    positives = replaced.sites[site]
    if positives is None:
        raise SeamError(f"logits: {where} is not a call of cross entropy: which columns are the positives? {_HOW}")
    return str(positives)


def _log_sum(replaced: Replaced, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return ``logsumexp`` or ``log_softmax`` with another sum, so that what is left of a positive is our loss.

    With ``loss + x[positive]`` in the place of the logarithm of the sum, ``logsumexp(x) - x[positive]`` and minus the
    positive's ``log_softmax`` are ``loss``.
    """

    @functools.wraps(original)
    def log_sum(input: Tensor, dim: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        frame = caller()
        site, where = replaced.site(frame, input)
        if site is None:
            return original(input, dim, *args, **kwargs)
        positives = _positives(replaced, site, where)
        dim = dim[0] if isinstance(dim, (tuple, list)) and len(dim) == 1 else dim
        if input.dim() != 2 or dim not in (-2, -1, 0, 1):
            raise SeamError(
                f"logits: {where}: expected a matrix and one dimension, got {tuple(input.shape)} and {dim}. With more "
                "dimensions, write it as F.cross_entropy, or replace the whole function: counterpoint inject function"
            )
        logits = input if dim in (-1, 1) else input.T
        labels = _columns(positives, frame, logits)
        rows = torch.arange(len(logits), device=logits.device)
        positive = logits[rows, labels]

        def host_loss() -> Tensor:
            sums = original(logits, 1)
            return -sums[rows, labels] if sums.dim() == 2 else sums - positive

        loss = replaced.loss(site, frame, where, logits, labels, host_loss, "none").to(input.dtype)
        sums = (loss + positive).unsqueeze(1 if dim in (-1, 1) else 0)
        if original.__name__ == "log_softmax":
            return input - sums
        return sums if kwargs.get("keepdim", args[:1] == (True,)) else sums.flatten()

    return log_sum


def _log_sigmoid(replaced: Replaced, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return ``logsigmoid`` whose rows add up to minus our loss, as SigLIP's do."""

    @functools.wraps(original)
    def log_sigmoid(input: Tensor) -> Tensor:
        frame = caller()
        site, where = replaced.site(frame, input)
        if site is None:
            return original(input)
        positives = _positives(replaced, site, where)
        if input.dim() != 2:
            raise SeamError(f"logits: {where}: expected a matrix, got {tuple(input.shape)}")
        if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
            raise SeamError(
                f"logits: {where}: with several processes, binary logits come in parts. Name the function of the "
                "embeddings instead: counterpoint inject function --replace 'FILE:FUNCTION(a, b, scale=c, bias=d)' "
                "--as gather=true"
            )
        labels = _columns(positives, frame, input)
        is_positive = torch.zeros_like(input, dtype=torch.bool).scatter(1, labels.unsqueeze(1), True)
        logits = torch.where(is_positive, input, -input)

        def host_loss() -> Tensor:
            return -original(torch.where(is_positive, logits, -logits)).sum(1)

        loss = replaced.loss(site, frame, where, logits, labels, host_loss, "none", biased=True).to(input.dtype)
        return torch.where(is_positive, -loss.unsqueeze(1), torch.zeros_like(input))

    return log_sigmoid


def _columns(positives: str, frame: FrameType, logits: Tensor) -> Tensor:
    """Return the column of each row's positive."""
    if positives.lstrip("-").isdigit():
        labels = torch.full((len(logits),), int(positives), device=logits.device)
    elif positives == "diagonal":
        labels = torch.arange(len(logits), device=logits.device)
    else:
        labels = named(positives, frame)
    where = f"--positives {positives} at {place(frame)}"
    if not isinstance(labels, Tensor) or labels.shape != logits.shape[:1] or labels.is_floating_point():
        got = tuple(labels.shape) if isinstance(labels, Tensor) else type(labels).__name__
        raise SeamError(f"{where}: expected a column for each of {len(logits)} rows, got {got}. {_HOW}")
    if bool(((labels < 0) | (labels >= logits.shape[1])).any()):
        raise SeamError(f"{where}: expected columns from 0 to {logits.shape[1] - 1}")
    return labels


# ---- log_softmax, and later nll_loss ---------------------------------------------------------------


def replace_nll_loss(seam: Seam, replaced: Replaced) -> None:
    """Replace ``nll_loss`` at the sites by the objective of the logits that its ``log_softmax`` has taken.

    Other functions at a site, which have no labels, are left alone; if nothing was replaced, they are named.
    """
    recent: deque[tuple[weakref.ref[Tensor], Tensor]] = deque(maxlen=4)  # what log_softmax has returned, and taken
    files = {site.file for site in replaced.sites}

    def remember(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @functools.wraps(original)
        def log_softmax(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            out, here = original(input, *args, **kwargs), caller().f_code.co_filename
            if isinstance(out, Tensor) and any(is_file(here, file) for file in files):
                recent.append((weakref.ref(out), input))
                note(caller(), "log_softmax")
            return out

        return log_softmax

    def noted(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Tensor:
            note(caller(), original.__name__)
            return original(*args, **kwargs)

        return call

    def note(frame: FrameType, name: str) -> None:
        if any(site.covers(frame.f_code.co_filename, frame.f_lineno) for site in replaced.sites):
            others[place(frame)] = name.replace("log_sigmoid", "logsigmoid")

    def end() -> None:
        for where, name in others.items() if not seam.calls else ():
            seam.say(f"{where} calls {name}, which has no labels: which columns are the positives? {_HOW}")

    others: dict[str, str] = {}
    seam.at_end.append(end)
    for owner, name in _LOG_SOFTMAXES:
        put(seam, owner, name, remember(getattr(owner, name)))
    for owner, name in ((torch, "logsumexp"), (Tensor, "logsumexp"), (nn.functional, "logsigmoid")):
        put(seam, owner, name, noted(getattr(owner, name)))

    def logits_of(log_p: Tensor, _: Site, where: str) -> Tensor:
        logits = next((taken for out, taken in recent if out() is log_p), None)
        recent.clear()
        if logits is None:
            raise SeamError(
                f"logits: {where} gets probabilities whose log_softmax is not in the same file, or which were changed "
                "in between: write it as F.cross_entropy of the logits, then --site replaces it"
            )
        return logits

    put(seam, nn.functional, "nll_loss", labeled(replaced, nn.functional.nll_loss, logits_of))
