"""Shims for MoCo on today's torch and on its authors' package."""

import functools
import importlib.util
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..host import Shim

_links: list[tempfile.TemporaryDirectory[str]] = []  # deleted when the process ends


class _Viewable(torch.Tensor):
    """A tensor whose ``view`` copies where it has to, as ``reshape`` does."""

    def view(self, *shape: Any) -> Tensor:
        return self.reshape(*shape)


def lenient(accuracy: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
    """Wrap ``accuracy`` so that it can take a view of anything it computes from its logits."""

    @functools.wraps(accuracy)
    def wrapped(output: Tensor, *args: Any, **options: Any) -> list[Tensor]:
        results = accuracy(output.detach().as_subclass(_Viewable), *args, **options)
        return [x.as_subclass(torch.Tensor) for x in results]

    return wrapped


def _comparisons_keep_order() -> bool:
    """Whether comparisons keep the memory order of their operands, as they do in today's torch."""
    transposed = torch.zeros(2, 3, dtype=torch.long).T
    return not transposed.eq(transposed).is_contiguous()


def _internal_name() -> bool:
    """Create a package ``deeplearning.cross_image_ssl`` with the clone's ``moco``, on disk for spawned processes."""
    script = Path(sys.argv[0])
    parent = "deeplearning.cross_image_ssl"
    if not script.is_file() or f"import {parent}" not in script.read_text():
        return False
    if importlib.util.find_spec("deeplearning") is not None:
        return False
    _links.append(tempfile.TemporaryDirectory())
    package = Path(_links[-1].name, *parent.split("."))
    package.mkdir(parents=True)
    (package / "moco").symlink_to(script.resolve().parent / "moco", target_is_directory=True)
    sys.path.insert(1, _links[-1].name)
    return True


SHIMS = (
    Shim(
        "accuracy",
        "accuracy() takes a view where today's torch needs a copy",
        _comparisons_keep_order,
        lambda script: vars(script).update(accuracy=lenient(script.accuracy)),
    ),
    Shim("internal_name", "commits since 2024-12 import the package by its authors' internal name", _internal_name),
)
