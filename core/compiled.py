"""Large batches in compiled code: the call of an objective as one operator, which a compiler keeps whole.

A compiler can trace neither tiles nor GPU kernels, only a matrix of all similarities. So in compiled code, a batch that
is streamed elsewhere goes to the operator ``counterpoint::loss``. Whenever the compiled code runs, it calls the
objective as usual and differentiates the loss at once; the backward pass only scales the gradients. Its memory is that
of the embeddings and their gradients, and it takes batches of any size without being compiled again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor  # pyright: ignore[reportMissingModuleSource]

from .batch.keys import Keys
from .batch.rules import Rule
from .engine.embeddings import overwritten_by_gradients
from .engine.tiles import pays_to_tile
from .host import FromHost, given_by_host, host_values, with_host_values
from .hyper import learned_values
from .registry import instances

AVAILABLE = hasattr(torch.library, "register_fake") and hasattr(torch.compiler, "is_exporting")
EMBEDDINGS = ("views", "queue", "negatives", "adversarial", "mixed")

Setting = tuple[str, str, Any]
"""Whether an argument is ``tensor``, ``tensors``, ``keys``, ``mapping`` or ``value``; its name; how many, or which."""

_settings: list[tuple[Setting, ...]] = []


def takes(objective: Any, views: Sequence[Tensor], options: Mapping[str, Any]) -> bool:
    """Return whether the loss of these views, in code that is being compiled, is to be computed by the operator."""
    if not AVAILABLE or torch.compiler.is_exporting() or objective._number < 0:
        return False
    if given_by_host(objective) or any(isinstance(part, FromHost) for part in objective.modules()):
        return False  # tensors that only the compiled code around the call has
    if not all(map(_is_plain, options.values())):
        return False  # bad input, whose error names it
    further = [options.get(name) for name in ("queue", "negatives")]
    tensors = [*views, *(Keys.of(x).embeddings for x in further if x is not None)]
    if not all(isinstance(x, Tensor) for x in tensors) or any(map(is_batchedtensor, tensors)):
        return False  # bad input, or torch.func.vmap
    if options["gather"]:
        return options["gather"] is True
    if (engine := options.get("engine", "auto")) != "auto":
        return bool(engine != "matrix")
    rows = [x[..., 0].numel() for x in tensors]
    return pays_to_tile(sum(rows[: len(views)]) * sum(rows), views[0].device)


def loss_of(objective: Any, views: Sequence[Tensor], options: Mapping[str, Any]) -> Tensor:
    """Compute the mean loss of a batch."""
    tensors = [*views]
    settings: list[Setting] = [("tensors", "views", len(views))]
    for name, value in options.items():
        if isinstance(value, Tensor):
            tensors.append(value)
            settings.append(("tensor", name, 1))
        elif isinstance(value, Keys):
            tensors += [x for x in value if isinstance(x, Tensor)]
            settings.append(("keys", name, tuple(None if isinstance(x, Tensor) else (x,) for x in value)))
        elif isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor):
            tensors += value
            settings.append(("tensors", name, len(value)))
        elif isinstance(value, Mapping):
            settings.append(("mapping", name, tuple(value.items())))
        elif isinstance(value, (list, tuple)):
            settings.append(("value", name, tuple(map(_plain, value))))
        else:
            settings.append(("value", name, _plain(value)))
    learned, others = learned_values(objective)
    buffers = dict(objective.named_buffers())
    tensors += [*learned.values(), *others, *buffers.values()]
    # a compiler takes no tensor twice, such as the labels of samples and of a queue of the same samples
    tensors = [x.view_as(x) if any(x is y for y in tensors[:i]) else x for i, x in enumerate(tensors)]
    loss, *state = _Loss.apply(objective._number, _number_of_settings(*settings), torch.is_grad_enabled(), *tensors)
    for name, value in zip(buffers, state, strict=True):
        *path, last = name.split(".")
        owner = objective
        for part in path:
            owner = getattr(owner, part)
        setattr(owner, last, value)
    return loss  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    """Return a rule as text, from which :func:`counterpoint.batch.rules.parse` reads all its fields."""
    return str(value) if isinstance(value, Rule) else value


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (Tensor, Rule, str, bool, int, float))


def _number_of_settings(*settings: Setting) -> int:
    if settings not in _settings:
        _settings.append(settings)
    return _settings.index(settings)


# as torch.compiler.assume_constant_result does, which imports the compiler
_number_of_settings._dynamo_marked_constant = True  # type: ignore[attr-defined]


class _Loss(torch.autograd.Function):
    """The operator, and its gradient."""

    @staticmethod
    def forward(ctx: Any, objective: int, settings: int, grad: bool, *tensors: Tensor) -> Any:
        differentiated = [i for i, needed in enumerate(ctx.needs_input_grad[3:]) if needed and grad]
        results = torch.ops.counterpoint.loss(tensors, objective, settings, differentiated, grad)
        loss, gradients, state = results[0], results[1 : 1 + len(differentiated)], results[1 + len(differentiated) :]
        ctx.save_for_backward(*gradients)
        ctx.differentiated, ctx.number = differentiated, len(tensors)
        ctx.mark_non_differentiable(*state)
        return (loss, *state)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> Any:
        found: list[Tensor | None] = [None] * ctx.number
        for i, saved in zip(ctx.differentiated, ctx.saved_tensors, strict=True):
            found[i] = saved * gradient.to(saved.dtype)
        return None, None, None, *found


def _run(
    tensors: Sequence[Tensor], objective: int, settings: int, differentiated: Sequence[int], grad: bool
) -> list[Tensor]:
    module = instances[objective]
    with _autograd():
        leaves = [x.detach().requires_grad_(i in differentiated) for i, x in enumerate(tensors)]
    rest = iter(leaves)
    options: dict[str, Any] = {}
    for kind, name, value in _settings[settings]:
        if kind == "tensors":
            options[name] = [next(rest) for _ in range(value)]
        elif kind == "tensor":
            options[name] = next(rest)
        elif kind == "keys":
            given: Any = (next(rest) if x is None else x[0] for x in value)
            options[name] = Keys(*given)
        else:
            options[name] = dict(value) if kind == "mapping" else value
    with _autograd(), _with_state(module, rest), torch.set_grad_enabled(grad), overwritten_by_gradients():
        loss = module.forward(*options.pop("views"), **options)
        state = [x.clone() for x in module.buffers()]
        wanted = [leaves[i] for i in differentiated]
        used = torch.autograd.grad(loss, wanted, allow_unused=True) if wanted and loss.requires_grad else ()
        found = used or [None] * len(wanted)
    gradients = [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found, strict=True)]
    return [loss.detach().to(_dtype(tensors, settings)), *_separate(gradients), *state]


def _separate(gradients: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield contiguous tensors that share no memory, as those of views that were stacked do."""
    seen = set()
    for g in gradients:
        memory = g.untyped_storage().data_ptr()
        copied = not g.is_contiguous() or memory in seen
        seen.add(memory)
        yield g.clone(memory_format=torch.contiguous_format) if copied else g


def _fake(
    tensors: Sequence[Tensor], objective: int, settings: int, differentiated: Sequence[int], grad: bool
) -> list[Tensor]:
    state = tensors[len(tensors) - len([*instances[objective].buffers()]) :]
    gradients = [torch.empty_like(tensors[i], memory_format=torch.contiguous_format) for i in differentiated]
    loss = tensors[0].new_empty((), dtype=_dtype(tensors, settings))
    return [loss, *gradients, *map(torch.empty_like, state)]


def _dtype(tensors: Sequence[Tensor], settings: int) -> torch.dtype:
    """Return the type in which a batch is computed; see :class:`counterpoint.batch.batch.Batch`."""
    rest = iter(tensors)
    wide = False
    for kind, name, value in _settings[settings]:
        number = {"tensor": 1, "tensors": value, "keys": kind == "keys" and value.count(None)}.get(kind, 0)
        own = [next(rest) for _ in range(number)][: 1 if kind == "keys" else None]  # embeddings come first
        wide |= name in EMBEDDINGS and any(x.dtype == torch.float64 for x in own)
    return torch.float64 if wide else torch.float32


@contextmanager
def _autograd() -> Iterator[None]:
    """Let autograd see what happens: an operator is called below it."""
    keys = torch._C.DispatchKey
    with (
        torch._C._SetExcludeDispatchKeyGuard(keys.AutogradFunctionality, False),
        torch._C._SetExcludeDispatchKeyGuard(keys.ADInplaceOrView, False),
    ):
        yield


@contextmanager
def _with_state(module: nn.Module, tensors: Iterator[Tensor]) -> Iterator[None]:
    """Let the learned values, the other parameters and the buffers of a module be these for a while."""
    before: list[tuple[dict[str, Any], str, Tensor]] = [
        (place, name, value)
        for part in module.modules()
        for place in (part._parameters, part._buffers)
        for name, value in place.items()
        if value is not None
    ]
    learned, others = learned_values(module)
    held = {key: next(tensors) for key in learned}
    new = dict(zip(map(id, [*others, *module.buffers()]), tensors, strict=True))
    try:
        for place, name, value in before:
            place[name] = new.get(id(value), value)
        with with_host_values({**host_values(), **held}):
            yield
    finally:
        for place, name, value in before:
            place[name] = value


if AVAILABLE:
    _library = torch.library.Library("counterpoint", "FRAGMENT")
    _library.define("loss(Tensor[] tensors, int objective, int settings, int[] differentiated, bool grad) -> Tensor[]")
    _library.impl("loss", _run, "CompositeExplicitAutograd")
    torch.library.register_fake("counterpoint::loss", _fake, lib=_library)
