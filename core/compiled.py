"""Large batches in compiled code break the graph: a compiler can trace a matrix, but neither tiles nor GPU kernels.

Imported only where code is being compiled, since :func:`torch.compiler.disable` imports the compiler.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor  # pyright: ignore[reportMissingModuleSource]

from .batch.options import Keys, View
from .batch.scores import fastest_engine

_exporting = getattr(torch.compiler, "is_exporting", lambda: False)  # not in torch 2.2


def breaks_graph(views: Sequence[View], options: Mapping[str, Any]) -> bool:
    """Return whether the loss of these views, in code that is being compiled, is to be computed uncompiled."""
    tensors = [Keys.of(x).embeddings for x in (*views, options.get("queue"), options.get("negatives")) if x is not None]
    if _exporting() or not all(isinstance(x, Tensor) for x in tensors) or any(map(is_batchedtensor, tensors)):
        return False  # torch.func.vmap, or bad input
    if options["gather"]:
        return True
    if (engine := options.get("engine", "auto")) != "auto":
        return bool(engine != "matrix")
    rows = [x[..., 0].numel() for x in tensors]
    anchors = sum(rows[: sum(isinstance(x, Tensor) for x in views)])
    return fastest_engine(tensors[0].device, anchors * sum(rows)) != "matrix"


@torch.compiler.disable  # type: ignore[untyped-decorator]
def uncompiled(objective: Any, views: Sequence[View], options: Mapping[str, Any]) -> Tensor:
    """Compute the loss of a batch as without a compiler."""
    return objective.forward(*views, **options)  # type: ignore[no-any-return]
