"""Compute a loss and its gradients a chunk of anchors at a time, in the forward pass.

Where each anchor's loss is its own, its derivative is known as soon as the anchor's negatives are reduced: that takes
three products, where tiles that are recomputed take four. Memory is ``O(chunk x keys)`` beside the gradients.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..values import Value
from .mask import Workspace
from .passes import Functions
from .quadratic import rows_of
from .tiles import Block, TileNegatives

# Similarities of a chunk: 16 MB of float32 on a CPU, elsewhere 256 MB, or as many as its keys have numbers.
CHUNK, LARGE_CHUNK = 2**22, 2**26

# Rows and keys of the tiles of narrow embeddings on a CPU, whose steps run in the cache. Other chunks are one tile.
HEIGHT, EDGE, NARROW = 1024, 256, 256


def rows_of_chunk(device: str, anchors: int, keys: int, width: int) -> int:
    rows = min(anchors, max(1, max(CHUNK if device == "cpu" else LARGE_CHUNK, keys * width) // keys))
    # whole tiles, so that the last chunk is not a small one
    return rows if rows == anchors else rows // HEIGHT * HEIGHT or rows


class Chunk(TileNegatives):
    """The negatives of some anchors of a block, ``rows`` among all, in tiles that are stored for their gradient.

    Chunks reuse ``workspaces``, one for each reduction, and add the gradient of the keys to ``d_right``.
    """

    def __init__(
        self, whole: TileNegatives, block: Block, rows: slice, workspaces: list[Workspace], d_right: Tensor | None
    ) -> None:
        first = block.rows.start
        local, limits = slice(rows.start - first, rows.stop - first), block.mask.limits
        left = block.left.detach()[local].requires_grad_(block.left.requires_grad)
        right = block.right.detach().requires_grad_(block.right.requires_grad)
        mask = replace(block.mask.for_rows(local), limits=limits and replace(limits, most=limits.most[rows]))
        super().__init__([(left, right)], False, mask, whole.tile, whole.bound())
        self.left, self.right, self.local, self.whole, self.workspaces = left, right, local, whole, workspaces
        self.cacheable = self._reduced = True  # a matrix is faster for autograd, and that of a chunk is small
        self.valid = rows_of(whole.valid, rows)
        if block.guide is not None:
            self.guide = TileNegatives([(block.guide[0][local], block.guide[1])])
        self.calls, self.d_right = 0, d_right

    def shape(self, functions: Functions) -> tuple[int, int]:
        if self.tile is not None:
            return self.tile, self.tile
        if self.left.device.type != "cpu" or self.left.shape[1] > NARROW:
            return len(self.left), len(self.right)
        return HEIGHT, EDGE

    def buffers(self) -> tuple[Workspace | None, Tensor | None]:
        if not torch.is_grad_enabled():
            return None, None
        if self.calls == len(self.workspaces):
            self.workspaces.append(Workspace(self.left))
        self.calls += 1
        return self.workspaces[self.calls - 1], self.d_right

    def check_limits(self, left: Value) -> None:
        if isinstance(left, Tensor) and checks.wanted(left) and bool((left <= 0).any()):
            super().check_limits(self.whole.count)  # the message names rows of the batch


def loss_in_chunks(
    neg: TileNegatives,
    loss: Callable[[slice, Chunk, Sequence[Tensor]], Tensor],
    tensors: Sequence[Tensor],
    parameters: Sequence[Tensor],
) -> Tensor | None:
    """Compute the sum of all chunks' losses, with its gradients, which its backward pass only scales.

    ``loss`` gets a chunk's rows, its negatives and its rows of ``tensors``, ``(anchors, ...)``. Returns None if it
    depends on more than these and the ``parameters``.
    """
    trained = [x for x in parameters if x.requires_grad]
    sums: dict[int, tuple[Tensor, Tensor]] = {}  # each tensor with its gradient
    total: Tensor | None = None
    workspaces: list[Workspace] = []

    def gradient_of(x: Tensor) -> Tensor | None:
        if x.requires_grad and id(x) not in sums:
            sums[id(x)] = x, torch.zeros_like(x)
        return sums[id(x)][1] if x.requires_grad else None

    for block in neg.blocks():
        size = rows_of_chunk(block.left.device.type, len(block.left), *block.right.shape)
        for first in range(block.rows.start, block.rows.stop, size):
            rows = slice(first, min(first + size, block.rows.stop))
            chunk = Chunk(neg, block, rows, workspaces, gradient_of(block.right))
            # 1. the loss, as a function of the chunk's own copies
            leaves = [x.detach()[rows].requires_grad_(x.requires_grad) for x in tensors]
            with torch.enable_grad():
                part = loss(rows, chunk, leaves)
            copies: list[Any] = [(chunk.left, block.left, chunk.local), (chunk.right, block.right, ...)]
            copies += [(leaf, x, rows) for leaf, x in zip(leaves, tensors, strict=True)]
            copies += [(x, x, ...) for x in trained]
            copies = [copy for copy in copies if copy[0].requires_grad]
            wanted = [leaf for leaf, _, _ in copies]
            if total is None:
                ends = [leaf.grad_fn for leaf in wanted if leaf.grad_fn is not None]
                if not {*map(id, checks.leaves_of(part, ends))} <= {*map(id, wanted)}:
                    return None
            total = part.detach() if total is None else total + part.detach()
            # 2. its gradients, added to those of the whole batch
            found: Sequence[Tensor | None] = ()
            if part.requires_grad:
                found = torch.autograd.grad(part, wanted, allow_unused=True, retain_graph=True)
            for (_, x, place), g in zip(copies, found, strict=False):
                if g is not None and (sum_of := gradient_of(x)) is not None:
                    sum_of[place] += g
    assert total is not None
    return _Differentiated.apply(total, [g for _, g in sums.values()], *(x for x, _ in sums.values()))  # type: ignore[no-any-return]


class _Differentiated(checks.Once):
    """A number whose gradients are known."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: Sequence[Tensor], *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*gradients)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        checks.refuse_second_derivative()
        is_one = checks.wanted(gradient) and float(gradient) == 1  # then no copies are made
        return None, None, *(x if is_one else x * gradient for x in ctx.saved_tensors)
