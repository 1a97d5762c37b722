"""Large batches through an encoder whose activations would not fit: a gradient cache.

A contrastive loss needs the embeddings of the whole batch at once, but not the activations behind them. So the encoder
encodes the batch in chunks and stores only their embeddings. Once the loss has produced the gradients of the
embeddings, each chunk is re-encoded to backpropagate them to the parameters.

Paper: Gao et al. 2021, scaling deep contrastive learning batch size under memory limited setup,
https://arxiv.org/abs/2101.06983.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import get_device_states, set_device_states

from . import checks


def gradcache(
    encoder: Callable[..., Any], inputs: Any, chunk: int, output: Callable[[Any], Tensor] | None = None
) -> Tensor:
    """Compute ``encoder(inputs)`` with the activations of only ``chunk`` samples in memory at a time.

    The rest of the training step is unchanged, whatever the objective, the number of views and of encoders,
    gradient scaler, Accelerate or Lightning::

        z1, z2 = (cp.gradcache(encoder, x, chunk=64) for x in (x1, x2))
        loss = loss_fn(z1, z2, gather=True)
        loss.backward()

    Loss and gradients match those of a single pass: re-encoding restores the random state (dropout) and the autocast
    mode. Batch normalization is the exception: it sees a chunk instead of the batch, and updates its running statistics
    twice.

    *Cost*: one more forward pass of the encoder, about a third more time. *Memory*: the activations of one chunk, and
    the embeddings; that of the similarities depends on the objective's ``tile``.

    *DistributedDataParallel*: pass the wrapped module itself, not a function around it. Gradients are averaged once,
    after the last chunk, and processes may have different numbers of chunks.

    Gradients cannot be differentiated again. An encoder's own activation checkpointing must be the non-reentrant kind.

    Args:
        encoder: a module or function with an output row for each input row.
        inputs: its arguments: a tensor, a list or tuple (its arguments by position), or a mapping such as a tokenizer's
            ``BatchEncoding`` (its arguments by name). Tensors have a row per sample; anything else is passed with
            every chunk.
        chunk: number of samples that are encoded at a time, at least 1; as many as fit are fastest.
        output: selects the embeddings from what the encoder returns, such as
            ``lambda out: out.last_hidden_state[:, 0]``.

    Returns:
        The embeddings, ``(samples, ...)``.

    >>> import torch, counterpoint as cp
    >>> encoder, x = torch.nn.Linear(8, 4), torch.randn(6, 8)
    >>> torch.allclose(cp.gradcache(encoder, x, chunk=2), encoder(x))
    True
    """
    if not isinstance(chunk, int) or isinstance(chunk, bool) or chunk < 1:
        raise ValueError(f"gradcache: chunk must be a whole number of at least 1, got {chunk!r}.")
    ddp = encoder if isinstance(encoder, DistributedDataParallel) else None
    if ddp is not None and ddp.static_graph:
        raise ValueError("gradcache: DistributedDataParallel(static_graph=True) cannot average over chunks.")
    bare = encoder if ddp is None else ddp.module
    arguments = _Inputs(inputs)
    if not torch.is_grad_enabled():
        return torch.cat([_embed(bare, part, output) for part in arguments.chunks(chunk)])
    trained: dict[int, Tensor] = {}
    passes, rows = [], []
    # the wrapper prepares its averaging in each call, so it is called once
    call: Callable[..., Any] = encoder
    for part in arguments.chunks(chunk):
        states = _States(arguments.devices(bare))
        z = _embed(call, part, output)
        trained.update({id(x): x for x in leaves([z]) if not any(x is leaf for leaf in part.trained)})
        passes.append((part, states))
        rows.append(z.detach())
        call = bare
    passed = [x for _, x in arguments.items() if isinstance(x, Tensor)]
    return _Cached.apply(  # type: ignore[no-any-return]
        bare, output, passes, len(passed), torch.cat(rows), *passed, *trained.values()
    )


class _Inputs:
    """Positional and keyword arguments whose tensors have a row per sample."""

    def __init__(self, inputs: Any) -> None:
        self.named = dict(inputs) if isinstance(inputs, Mapping) else {}
        self.args = [] if self.named else list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        tensors = {k: x for k, x in self.items() if isinstance(x, Tensor) and x.dim()}
        if not tensors:
            kinds = ", ".join(type(x).__name__ for _, x in self.items()) or "nothing"
            raise TypeError(f"gradcache: expected tensors with a row per sample, got {kinds}.")
        rows = {k: len(x) for k, x in tensors.items()}
        if len(set(rows.values())) > 1 or 0 in rows.values():
            listed = ", ".join(f"{n} in {k}" for k, n in rows.items())
            raise ValueError(f"gradcache: expected the same number of rows in all tensors, at least 1, got {listed}.")
        self.rows = next(iter(rows.values()))
        self.tensors = list(tensors.values())
        self.trained = [x for x in self.tensors if x.requires_grad]

    def items(self) -> Iterator[tuple[str, Any]]:
        yield from ((f"input {i}", x) for i, x in enumerate(self.args, 1))
        yield from self.named.items()

    def devices(self, encoder: Any) -> set[torch.device]:
        """Devices on which random numbers may be drawn."""
        devices = {x.device for x in self.tensors}
        if isinstance(encoder, nn.Module):
            devices |= {p.device for p in encoder.parameters()}
        return devices

    def chunks(self, size: int) -> Iterator[_Inputs]:
        for start in range(0, self.rows, size):

            def cut(x: Any, rows: slice = slice(start, start + size)) -> Any:
                if not isinstance(x, Tensor) or not x.dim():
                    return x
                return x[rows].detach().requires_grad_(x.requires_grad)

            yield _Inputs({k: cut(x) for k, x in self.named.items()} if self.named else [cut(x) for x in self.args])


def _embed(encoder: Callable[..., Any], part: _Inputs, output: Callable[[Any], Tensor] | None) -> Tensor:
    z = encoder(*part.args, **part.named)
    z = z if output is None else output(z)
    if not isinstance(z, Tensor):
        raise TypeError(
            f"gradcache: expected a tensor of embeddings from the encoder, got {type(z).__name__}: "
            "give output=, a function that selects them."
        )
    if z.dim() < 2 or len(z) != part.rows:
        raise ValueError(f"gradcache: expected a row for each of {part.rows} inputs, got shape {checks.shape(z)}.")
    return z


class _States:
    """The current state of random number generators and autocast."""

    def __init__(self, devices: set[torch.device]) -> None:
        self.cpu = torch.get_rng_state()
        kinds = {device.type for device in devices} - {"cpu"}
        self.kind = min(kinds, default="cuda")
        self.devices, self.states = get_device_states(*(torch.empty(0, device=device) for device in devices))
        self.modes = [_mode(kind) for kind in (*kinds, "cpu")]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore the recorded states within the block, and the current ones after it."""
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(self.devices, device_type=self.kind))
            torch.set_rng_state(self.cpu)
            if self.devices:
                set_device_states(self.devices, self.states)
            for mode in self.modes:
                stack.enter_context(torch.autocast(**mode))
            yield


def _mode(kind: str) -> dict[str, Any]:
    if hasattr(torch, "get_autocast_dtype"):
        enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    elif kind == "cpu":
        enabled, dtype = torch.is_autocast_cpu_enabled(), torch.get_autocast_cpu_dtype()
    else:
        enabled, dtype = torch.is_autocast_enabled(), torch.get_autocast_gpu_dtype()
    return {"device_type": kind, "enabled": enabled, "dtype": dtype, "cache_enabled": torch.is_autocast_cache_enabled()}


class _Cached(torch.autograd.Function):
    """Forward: return the computed embeddings. Backward: re-encode and backpropagate chunk by chunk.

    The parameters are arguments, so that each gets its gradient once, in ``.grad``, in hooks and from
    ``torch.autograd.grad``. All inputs are saved, so that autograd raises if one is changed in place before the
    backward pass.
    """

    @staticmethod
    def forward(ctx: Any, encoder: Any, output: Any, passes: Any, inputs: int, z: Tensor, *tensors: Tensor) -> Tensor:
        ctx.encoder, ctx.output, ctx.passes, ctx.inputs = encoder, output, passes, inputs
        ctx.save_for_backward(*tensors)
        return z.view_as(z)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, params = ctx.saved_tensors[: ctx.inputs], ctx.saved_tensors[ctx.inputs :]
        differentiated = [x.requires_grad and x.dim() > 0 for x in inputs]
        d_inputs: list[list[Tensor]] = [[] for _ in range(sum(differentiated))]
        totals: list[Tensor | None] = [None] * len(params)
        for (part, states), dz in zip(ctx.passes, grad.split([p.rows for p, _ in ctx.passes]), strict=True):
            with states.restored(), torch.enable_grad():
                z = _embed(ctx.encoder, part, ctx.output)
            gradients = torch.autograd.grad(z, [*part.trained, *params], dz, allow_unused=True)
            for collected, x, g in zip(d_inputs, part.trained, gradients, strict=False):
                collected.append(torch.zeros_like(x) if g is None else g)
            for i, g in enumerate(gradients[len(d_inputs) :]):
                if g is not None:  # not in place: parameters may share one gradient
                    total = totals[i]
                    totals[i] = g if total is None else total + g
        whole = map(torch.cat, d_inputs)
        return *[None] * 5, *(next(whole) if needed else None for needed in differentiated), *totals


def leaves(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The parameters that tensors were computed from."""
    parameters: dict[int, Tensor] = {}
    pending = [x.grad_fn for x in tensors if x.grad_fn is not None]
    seen = set(pending)
    while pending:
        node = pending.pop()
        variable = getattr(node, "variable", None)
        if variable is not None:
            parameters[id(variable)] = variable
        unseen = {n for n, _ in node.next_functions if n is not None} - seen
        seen |= unseen
        pending += unseen
    return list(parameters.values())
