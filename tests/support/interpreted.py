"""GPU kernels in Triton's interpreter, wherever they can reduce a batch; tiles do the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from counterpoint.batch import scores
from counterpoint.engine import tiles
from counterpoint.experimental import fused


class Mixed(fused.FusedNegatives):
    """What kernels cannot reduce goes to tiles, where ``engine="fused"`` raises."""

    def logsumexp(self, f: Callable[..., Any], *per_anchor: torch.Tensor, guided: bool = False) -> Any:
        return self._either("logsumexp", f, *per_anchor, guided=guided)

    def mean(self, f: Callable[..., Any], *per_anchor: torch.Tensor, guided: bool = False) -> Any:
        return self._either("mean", f, *per_anchor, guided=guided)

    def _either(self, name: str, *given: Any, guided: bool) -> Any:
        try:
            return getattr(super(), name)(*given, guided=guided)
        except ValueError as error:
            if not str(error).startswith("engine='fused'"):
                raise
            return getattr(tiles.TileNegatives, name)(self, *given, guided=guided)

    reduce = tiles.TileNegatives.reduce


@contextmanager
def kernels_everywhere(device: str = "cpu") -> Iterator[None]:
    """Let batches of any size be reduced by :class:`Mixed`."""
    with (
        patch.object(fused, "DEVICES", {device}),
        patch.object(fused, "FusedNegatives", Mixed),
        patch.object(scores, "fastest_engine", lambda *_: "fused"),
        patch.object(scores, "PAIRS_CPU", 0),
        patch.object(scores, "PAIRS", 0),
    ):
        yield
