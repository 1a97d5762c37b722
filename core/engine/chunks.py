"""Compute a loss and its gradients a chunk of anchors at a time, in the forward pass.

Where the loss is a mean over anchors of what each anchor's own similarities say, its derivative is known as soon as an
anchor's negatives are reduced. So the similarities of a chunk of anchors to all keys are computed once, reduced, turned
into the weights of the gradient in place, and multiplied with the keys and with the anchors: three products, where
tiles that are recomputed take four. The backward pass only scales. Memory is ``O(chunk x keys)`` beside the gradients.

The objective is the one definition of the loss: it sees the chunk as it sees a batch, and autograd differentiates it
with respect to the reductions, the positives and the parameters.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..hyper import Value
from .accumulators import NEGLIGIBLE, Accumulator
from .negatives import DenseNegatives
from .passes import Functions, TilePass, upstream_gradients
from .quadratic import rows_of
from .streamed import StreamedNegatives
from .tiled import TiledNegatives
from .tiles import Mask, Workspace

# Similarities of a chunk: 16 MB of float32 on a CPU, elsewhere 256 MB, or as many as the embeddings have numbers.
CHUNK, LARGE_CHUNK = 2**22, 2**26

# On a CPU, rows and keys of the tiles of a chunk, whose elementwise steps run in the cache; fewer keys for narrow
# embeddings. Elsewhere a chunk is one tile: few large operations.
HEIGHT, EDGES, NARROW = 1024, (256, 512), 256

# Gradients of at least this size are accumulated as they are; smaller ones in units of the largest.
SMALL = 2.0**-14


def rows_of_chunk(device: str, anchors: int, keys: int, width: int) -> int:
    """Return how many anchors a chunk has on this type of device."""
    pairs = CHUNK if device == "cpu" else max(LARGE_CHUNK, (anchors + keys) * width)
    rows = min(anchors, max(1, pairs // keys))
    if rows < anchors:  # whole tiles, so that the last chunk is not a small one
        rows = rows // HEIGHT * HEIGHT or rows
    return rows


class ChunkedNegatives(StreamedNegatives):
    """Negatives that are reduced and differentiated a chunk of anchors at a time, where the objective allows it.

    All else is as in :class:`StreamedNegatives`: reductions of all anchors at once are tile passes.

    Args:
        forced: raise where the objective does not allow it; the other arguments are those of `StreamedNegatives`.
    """

    engine = "chunks"

    def __init__(self, *args: Any, forced: bool = False, **options: Any) -> None:
        super().__init__(*args, **options)
        self.forced = forced

    def chunks(self, gradients: Gradients) -> Iterator[tuple[slice, Chunk]]:
        """Yield all anchors, a chunk of one block after the other, with their negatives."""
        start = 0
        for (left, right), guide in zip(self.blocks, self.guides(), strict=True):
            directions = [
                (left, right, self.mask, guide),
                (right, left, self.mask.transposed(), guide and (guide[1], guide[0])),
            ]
            for anchors, keys, mask, compared in directions[: 1 + self.both]:
                size = rows_of_chunk(anchors.device.type, len(anchors), len(keys), anchors.shape[1])
                for first in range(0, len(anchors), size):
                    local = slice(first, min(first + size, len(anchors)))
                    rows = slice(start + local.start, start + local.stop)
                    chunk = Chunk(self, anchors, keys, local, rows, mask, gradients)
                    chunk.guided = compared and (compared[0][local], compared[1])
                    yield rows, chunk
                start += len(anchors)


class Gradients:
    """The gradients of embeddings, summed over chunks in units of ``unit``, and the buffers that chunks reuse."""

    def __init__(self, blocks: Sequence[tuple[Tensor, Tensor]]) -> None:
        self.embeddings = list({id(x): x for block in blocks for x in block if x.requires_grad}.values())
        self.sums = {id(x): torch.zeros_like(x) for x in self.embeddings}
        self.spaces: list[Workspace] = []
        self.unit: float | None = None

    def of(self, embeddings: Tensor) -> Tensor | None:
        """Return the sum for these embeddings, None if they need no gradient."""
        return self.sums.get(id(embeddings))

    def workspace(self, number: int, like: Tensor) -> Workspace:
        """Return the buffers of a chunk's reduction of this number."""
        while len(self.spaces) <= number:
            self.spaces.append(Workspace(like))
        return self.spaces[number]

    def relative(self, gradients: Sequence[Tensor | None]) -> Tensor:
        """Stack ``(anchors, 1)`` gradients as ``(functions, anchors)``, in units; negligible ones are zero.

        Products with tiny numbers are denormals, which are slow on a CPU: there, the unit follows the largest gradient
        where that is small.
        """
        like = next(g for g in gradients if g is not None)
        stacked = torch.stack([torch.zeros_like(like) if g is None else g for g in gradients]).squeeze(2)
        if stacked.device.type != "cpu":  # where reading a number synchronizes
            self.unit = 1.0
            return stacked
        largest = max(float(stacked.abs().amax()), torch.finfo(stacked.dtype).tiny)
        unit = 1.0 if largest >= SMALL or not math.isfinite(largest) else 2.0 ** math.floor(math.log2(largest))
        if self.unit is None:
            self.unit = unit
        elif unit * SMALL > self.unit:  # the chunks so far hardly count
            for x in self.sums.values():
                x *= self.unit / unit
            self.unit = unit
        stacked = stacked if self.unit == 1.0 else stacked / self.unit
        return torch.nn.functional.hardshrink(stacked, NEGLIGIBLE * largest / self.unit)

    def results(self) -> list[Tensor]:
        """Return the gradients of the embeddings."""
        if self.unit not in (None, 1.0):
            for x in self.sums.values():
                x *= self.unit
        return [self.sums[id(x)] for x in self.embeddings]


class Chunk(TiledNegatives):
    """The negatives of some of the anchors, whose gradients are added to :class:`Gradients`.

    Args:
        whole: the negatives of all anchors.
        left, right: the anchors' block ``(n, d)`` and its keys ``(N, d)``.
        local: the rows of ``left``.
        rows: these among all anchors.
        mask: that of the block.
    """

    def __init__(
        self,
        whole: ChunkedNegatives,
        left: Tensor,
        right: Tensor,
        local: slice,
        rows: slice,
        mask: Mask,
        gradients: Gradients,
    ) -> None:
        super().__init__(left, rows.stop - rows.start, mask.for_rows(local), whole.tile, whole.bound(), True)
        self._reduced = True  # what autograd differentiates is faster as a matrix, and a chunk of one is small
        self.structural, self.optional = rows_of(whole.structural, rows), whole.optional
        self.valid = rows_of(whole.valid, rows)
        self.whole, self.rows = whole, rows
        self.guided: tuple[Tensor, Tensor] | None = None
        """The guide's embeddings of the anchors and of the keys."""
        self.left, self.right, self.local, self.gradients = left.detach()[local], right.detach(), local, gradients
        total, self.d_right = gradients.of(left), gradients.of(right)
        self.d_left = None if total is None else total[local]
        self.token = left.new_zeros((), requires_grad=bool(gradients.embeddings))
        """Stands for the embeddings in the graph of the chunk's loss."""
        self.calls = 0

    def edges(self) -> tuple[int, int]:
        """Return the numbers of anchors and keys of a tile."""
        if self.tile is not None:
            return self.tile, self.tile
        if self.left.device.type != "cpu":
            return len(self.left), len(self.right)
        return HEIGHT, EDGES[self.left.shape[1] > NARROW]

    def reduce(self, accumulator: type[Accumulator], functions: Functions, uniform: bool) -> tuple[Tensor, ...]:
        count = self.count if accumulator.averages else 1.0
        mask = self.mask
        if mask.limits is not None:
            limits = mask.limits.for_block(self.rows, self.guided, functions.scale, functions.offset)
            mask = replace(mask, limits=limits)
        height, edge = self.edges()
        tile_pass = TilePass(functions, accumulator, mask, count, False, False, edge, height)
        return ReduceChunk.apply(tile_pass, self, self.token, *functions.tensors)  # type: ignore[no-any-return]

    def check_left(self, left: Value) -> None:
        if isinstance(left, Tensor) and checks.wanted(left) and bool((left <= 0).any()):
            super().check_left(self.whole.count)  # the message names rows of the batch

    def dense(self) -> DenseNegatives:
        matrix = ChunkMatrix.apply(self, self.token)
        dense, limits = DenseNegatives(matrix, *self.mask.dense(matrix)), self.mask.limits
        if limits is None:
            return dense
        guide = None if self.guided is None else DenseNegatives(self.guided[0] @ self.guided[1].T)
        return dense.excluding(limits.most[self.rows], guide, limits.exempting(matrix.shape[1]))


class ReduceChunk(checks.Once):
    """A :class:`TilePass` over a chunk, whose tiles are stored until its backward pass."""

    @staticmethod
    def forward(ctx: Any, tile_pass: TilePass, chunk: Chunk, token: Tensor, *tensors: Tensor) -> Any:
        tensors = tuple(x.detach() for x in tensors)
        tile_pass = tile_pass.with_tensors(tensors)
        differentiated = any(ctx.needs_input_grad)
        workspace = chunk.gradients.workspace(chunk.calls if differentiated else 0, chunk.left)
        if differentiated:
            chunk.calls += 1
        else:
            workspace = Workspace(chunk.left)
        state = tile_pass.accumulator.start(tile_pass.functions.number, len(chunk.left), chunk.left)
        accumulator = tile_pass.accumulator(tile_pass.mask, tile_pass.count, state)
        capacity = sys.maxsize if differentiated else 0
        ctx.stored = tile_pass.accumulate(chunk.left, chunk.right, accumulator, workspace, capacity)
        ctx.tile_pass, ctx.chunk, ctx.tensors = tile_pass, chunk, tensors
        ctx.accumulator, ctx.workspace = accumulator, workspace
        ctx.set_materialize_grads(False)
        return tuple(row.unsqueeze(1) for row in accumulator.result().unbind())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        checks.refuse_second_derivative()
        chunk, tile_pass, accumulator = ctx.chunk, ctx.tile_pass, ctx.accumulator
        relative = chunk.gradients.relative(gradients)
        d_tensors = [torch.zeros_like(x) for x in ctx.tensors]
        tile_pass.backpropagate(
            chunk.left, chunk.right, accumulator, upstream_gradients(tile_pass.functions, accumulator, relative),
            chunk.d_left, chunk.d_right, d_tensors, ctx.workspace, ctx.stored, True,
        )  # fmt: skip
        return None, None, None, *(x.mul_(chunk.gradients.unit) for x in d_tensors)


class ChunkMatrix(checks.Once):
    """The similarities of a chunk as a matrix ``(anchors, keys)``."""

    @staticmethod
    def forward(ctx: Any, chunk: Chunk, token: Tensor) -> Tensor:
        ctx.chunk = chunk
        return chunk.left @ chunk.right.T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        checks.refuse_second_derivative()
        chunk: Chunk = ctx.chunk
        chunk.gradients.unit = unit = chunk.gradients.unit or 1.0
        with checks.exact(gradient.device):
            if chunk.d_left is not None:
                chunk.d_left.addmm_(gradient, chunk.right, alpha=1 / unit)
            if chunk.d_right is not None:
                chunk.d_right.addmm_(gradient.t(), chunk.left, alpha=1 / unit)
        return None, None


def loss_in_chunks(
    neg: ChunkedNegatives,
    loss: Callable[[slice, Chunk, Sequence[Tensor]], Tensor],
    tensors: Sequence[Tensor],
    parameters: Sequence[Tensor],
) -> Tensor | None:
    """Compute the sum of all chunks' losses, with its gradients, which its backward pass only scales.

    Args:
        neg: the negatives of all anchors.
        loss: from a chunk's rows, negatives and ``tensors`` to what it adds to the loss.
        tensors: ``(anchors, ...)``, what else is known of each anchor.
        parameters: what the loss depends on besides.

    Returns:
        The loss, or None if it depends on tensors that are not among these.
    """
    gradients = Gradients(neg.blocks)
    trained = [x for x in parameters if x.requires_grad]
    d_trained: dict[int, Tensor] = {}
    d_tensors: list[list[Tensor]] = [[] for _ in tensors]
    total: Tensor | None = None
    for rows, chunk in neg.chunks(gradients):
        # 1. the loss, as a function of the chunk's own copies
        leaves = [x.detach()[rows].requires_grad_(x.requires_grad) for x in tensors]
        with torch.enable_grad():
            part = loss(rows, chunk, leaves)
        wanted = [x for x in (chunk.token, *leaves, *trained) if x.requires_grad]
        if total is None and not _depends_on_these_alone(part, wanted):
            return None
        total = part.detach() if total is None else total + part.detach()
        # 2. its gradients; those of the embeddings are added to their sums
        found = torch.autograd.grad(part, wanted, allow_unused=True, retain_graph=True) if part.requires_grad else ()
        by_id = {id(x): g for x, g in zip(wanted, found, strict=False)}
        for parts, leaf in zip(d_tensors, leaves, strict=True):
            if leaf.requires_grad:
                g = by_id.get(id(leaf))
                parts.append(torch.zeros_like(leaf) if g is None else g)
        for x in trained:
            if (g := by_id.get(id(x))) is not None:
                d_trained[id(x)] = g if id(x) not in d_trained else d_trained[id(x)] + g
    assert total is not None
    # 3. back to the whole batch
    pairs = [*zip(gradients.embeddings, gradients.results(), strict=True)]
    pairs += [(x, torch.cat(parts)) for x, parts in zip(tensors, d_tensors, strict=True) if parts]
    pairs += [(x, d_trained[id(x)]) for x in trained if id(x) in d_trained]
    return _Differentiated.apply(total, [g for _, g in pairs], *(x for x, _ in pairs))  # type: ignore[no-any-return]


class _Differentiated(checks.Once):
    """A number whose gradients are known."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: Sequence[Tensor], *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*gradients)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        checks.refuse_second_derivative()
        gradients = ctx.saved_tensors
        if gradient.device.type == "cpu" and float(gradient) == 1.0:
            return None, None, *gradients
        return None, None, *(x * gradient for x in gradients)


def _depends_on_these_alone(x: Tensor, known: Sequence[Tensor]) -> bool:
    """Return whether the gradient of ``x`` reaches no leaf but through these tensors, which may have a history."""
    leaves, ends = set(map(id, known)), {tensor.grad_fn for tensor in known if tensor.grad_fn is not None}
    if x.grad_fn is None:
        return not x.requires_grad or id(x) in leaves
    seen = set(ends)
    nodes: list[Any] = [x.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) not in leaves:
            return False
        nodes += [following for following, _ in node.next_functions]
    return True
