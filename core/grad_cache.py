"""Large batches through an encoder whose activations would not fit: a gradient cache."""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain, repeat
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from . import checks


def gradcache(
    encoder: Callable[..., Any], inputs: Any, chunk: int, output: Callable[[Any], Tensor] | None = None
) -> Tensor:
    """Compute ``encoder(inputs)`` with the activations of only ``chunk`` samples in memory at a time.

    Chunks store only their embeddings; the backward pass encodes one after another again. The rest of the training
    step is unchanged, whatever the objective, the number of views and encoders, Accelerate or Lightning::

        z1, z2 = (cp.gradcache(encoder, x, chunk=64) for x in (x1, x2))
        loss = loss_fn(z1, z2, gather=True)
        loss.backward()

    Loss and gradients match those of a single pass: re-encoding restores the random state (dropout) and the autocast
    mode. Batch normalization is the exception: it sees a chunk instead of the batch, and updates its running statistics
    twice. The *cost* is one more forward pass of the encoder, about a third more time, the *memory* that of the
    activations of one chunk and of the embeddings; that of the similarities depends on the objective's ``engine``.

    *DistributedDataParallel*: pass the wrapped module itself, not a function around it. Gradients are averaged once,
    after the last chunk, and processes may have different numbers of chunks.

    Args:
        encoder: a module or function with an output row for each input row. Its own activation checkpointing must be
            the non-reentrant kind.
        inputs: its arguments: a tensor, a list or tuple (its arguments by position), or a mapping such as a tokenizer's
            ``BatchEncoding`` (its arguments by name). Tensors have a row per sample; anything else is passed with
            every chunk.
        chunk: number of samples that are encoded at a time, at least 1; as many as fit are fastest.
        output: selects the embeddings from what the encoder returns, such as
            ``lambda out: out.last_hidden_state[:, 0]``.

    Paper: Gao et al. 2021, https://arxiv.org/abs/2101.06983.

    >>> encoder, x = torch.nn.Linear(8, 4), torch.randn(6, 8)
    >>> torch.allclose(cp.gradcache(encoder, x, chunk=2), encoder(x))
    True
    """
    if not isinstance(chunk, int) or isinstance(chunk, bool) or chunk < 1:
        raise ValueError(f"gradcache: chunk must be a whole number of at least 1, got {chunk!r}.")
    if isinstance(encoder, DistributedDataParallel) and encoder.static_graph:
        raise ValueError("gradcache: DistributedDataParallel(static_graph=True) cannot average over chunks.")
    named = dict(inputs) if isinstance(inputs, Mapping) else {}
    values = list(named.values()) if named else list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    rows = _rows(named or {f"input {i}": x for i, x in enumerate(values, 1)})
    # the first chunk calls the wrapper, which prepares its averaging in each call; the others, the module inside
    bare = encoder.module if isinstance(encoder, DistributedDataParallel) else encoder
    calls: Iterator[Callable[..., Any]] = chain([encoder], repeat(bare))

    def encode(*part: Any) -> Tensor:
        call = next(calls)
        z = call(**dict(zip(named, part, strict=True))) if named else call(*part)
        z = z if output is None else output(z)
        if not isinstance(z, Tensor):
            got = f"got {type(z).__name__}: give output=, a function that selects them."
            raise TypeError(f"gradcache: expected a tensor of embeddings from the encoder, {got}")
        size = next(len(x) for x in part if _has_rows(x))
        if z.dim() < 2 or len(z) != size:
            raise ValueError(f"gradcache: expected a row for each of {size} inputs, got shape {checks.shape(z)}.")
        return z

    z = torch.cat([
        checkpoint(encode, *(x[i : i + chunk] if _has_rows(x) else x for x in values), use_reentrant=False)
        for i in range(0, rows, chunk)
    ])  # fmt: skip
    return _Unchanged.apply(z, *(x for x in values if isinstance(x, Tensor)), *checks.leaves_of(z))  # type: ignore[no-any-return]


def _has_rows(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dim() > 0


def _rows(inputs: Mapping[str, Any]) -> int:
    """Return the number of rows that all tensors have."""
    rows = {name: len(x) for name, x in inputs.items() if _has_rows(x)}
    if not rows:
        kinds = ", ".join(type(x).__name__ for x in inputs.values()) or "nothing"
        raise TypeError(f"gradcache: expected tensors with a row per sample, got {kinds}.")
    if len(set(rows.values())) > 1 or 0 in rows.values():
        listed = ", ".join(f"{n} in {name}" for name, n in rows.items())
        raise ValueError(f"gradcache: expected the same number of rows in all tensors, at least 1, got {listed}.")
    return next(iter(rows.values()))


class _Unchanged(torch.autograd.Function):
    """Return embeddings; in the backward pass, autograd raises if their source was changed in place."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, *sources: Tensor) -> Tensor:
        ctx.save_for_backward(*sources)
        return z.view_as(z)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad, *(None for _ in ctx.saved_tensors)
