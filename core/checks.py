"""Check arguments: ``require_`` functions raise. Shapes are always checked; values where reading them is free."""

import math
import numbers
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeGuard

import torch
from torch import Tensor, _utils
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

from .names import check_known

# torch 2.2 has it under another name
compiling: Callable[[], bool] = getattr(torch.compiler, "is_compiling", getattr(_utils, "is_compiling", bool))
_any_autocast: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)  # not in torch 2.2
_mode = "auto"
MAPS = " Give the encoder's embeddings; of feature maps, z.flatten(1), or their mean z.mean((2, 3))."
GROUPS = " If each group is a batch of its own: torch.vmap(loss_fn)(z1, z2)."


def set_checks(mode: str) -> None:
    """Choose when values (NaN, infinity, anchors without negatives) are checked.

    ``auto``: on the CPU. On an accelerator, reading a value would synchronize in every step, so there a NaN shows as
    a NaN loss. ``always``: everywhere but in compiled code, to find the batch that contains it. ``never``.

    >>> cp.set_checks("always")
    >>> cp.set_checks("auto")
    """
    global _mode
    check_known("set_checks: unknown mode", mode, ("auto", "always", "never"))
    _mode = mode


def traced() -> bool:
    """Whether torch transforms this code: compiled, ``torch.func``, forward-mode derivatives, fake tensors."""
    if compiling():  # first: a compiler cannot trace the rest
        return True
    modes = torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack() > 0
    return modes or forward_ad._current_level >= 0


def wanted(tensor: Tensor) -> bool:
    """Whether to read the values of ``tensor`` now: never while compiling or under ``torch.func``."""
    if _mode == "never" or compiling() or torch._C._are_functorch_transforms_active() or is_abstract(tensor):
        return False
    return _mode == "always" or tensor.device.type == "cpu"


def is_abstract(tensor: Tensor) -> bool:
    """Whether a tensor has a shape but no values (meta and fake tensors)."""
    return tensor.is_meta or isinstance(tensor, FakeTensor)


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether ``value`` is a finite real number; booleans do not count as numbers."""
    try:
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer larger than every float
        return False


def shape(tensor: Tensor) -> str:
    return "(" + ", ".join(map(str, tensor.shape)) + ")"


def require_tensor(value: object, what: str) -> Tensor:
    if not isinstance(value, Tensor):
        texts = (several := isinstance(value, (list, tuple))) and any(isinstance(item, str) for item in value)
        hint = ": number its texts, those of the whole data set, {text: i for i, text in enumerate(texts)}" * texts
        given = what if what.isidentifier() else "..."
        hint = hint or (f": torch.tensor({given})" if several else f"; for all, HCL(prior={value})" * (what == "prior"))
        hint = ": torch.from_numpy(...)" if type(value).__module__ == "numpy" else hint
        raise TypeError(f"{what}: expected a tensor, got {type(value).__name__}{hint}.")
    if (split := hasattr(value, "device_mesh")) or value.is_nested or value.layout is not torch.strided:
        fix = "DTensor: call to_local(), or full_tensor()" if split else "sparse or nested one: give dense numbers"
        raise TypeError(f"{what}: expected a plain tensor, got a {fix}.")
    return value


def require_float(tensor: Tensor, what: str) -> Tensor:
    if not require_tensor(tensor, what).is_floating_point():
        raise TypeError(f"{what}: expected floating-point values, got {tensor.dtype}.")
    return tensor


def require_matrix(tensor: Tensor, what: str, expected: str) -> Tensor:
    if require_float(tensor, what).dim() != 2:
        raise ValueError(f"{what}: expected {expected}, got shape {shape(tensor)}.")
    return tensor


def require_finite(tensor: Tensor, what: str) -> Tensor:
    """Raise if ``tensor`` contains NaN or infinity, naming how many and where the first one is."""
    # a sum keeps NaN and infinity; it may also overflow without them
    if not wanted(tensor) or math.isfinite(tensor.detach().sum()):
        return tensor
    bad = ~torch.isfinite(tensor)
    if not bool(bad.any()):
        return tensor
    first = tuple(bad.nonzero()[0].tolist())
    raise ValueError(f"{what}: {int(bad.sum())} of {bad.numel()} values are NaN or infinite, the first at {first}.")


def is_whole(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex()


def require_views(views: Sequence[Any], queued: bool) -> list[Tensor]:
    """Return the views of a batch, ``(B, d)`` each; with a queue also ``(B, m, d)``."""
    for i, view in enumerate(views, 1):
        if isinstance(view, (list, tuple)):
            call = "loss_fn(*views)" if i == 1 else "loss_fn(z1, z2), and pass the rest by name, such as labels="
            raise TypeError(f"view {i}: expected a tensor, got {type(view).__name__}: call {call}.")
        if not require_tensor(view, f"view {i}").is_floating_point():
            hint = " Pass labels by name, labels=...; for logits, call from_logits(logits, labels)." * is_whole(view)
            raise TypeError(f"view {i}: expected floating-point values, got {view.dtype}.{hint}")
    if not views:
        raise ValueError("no embeddings: call with the views of a batch, loss_fn(z1, z2).")
    if len(views) == 1 and views[0].dim() == 3:
        calls = "For (views, batch, width), call loss_fn(*z); for (batch, views, width), loss_fn(*z.unbind(1))."
        raise ValueError(f"view 1: expected shape (batch, width), got {shape(views[0])}. {calls}{GROUPS}")
    dims = 3 if queued and views[0].dim() == 3 else 2
    for i, view in enumerate(views, 1):
        if view.dim() != dims or view.shape != views[0].shape:
            hint = (GROUPS if view.dim() == 3 else MAPS) * (view.dim() > dims)
            expected = shape(views[0]) if views[0].dim() == dims else "(batch, width)"
            expected += " as view 1" * (i > 1)
            hint = hint or " Beside a queue, both hold the same views, (batch, views, width)." * (dims == 3)
            raise ValueError(f"view {i}: expected shape {expected}, got {shape(view)}.{hint}")
        if 0 in view.shape:
            raise ValueError(f"view {i}: empty, shape {shape(view)}.")
        if view.device != views[0].device:
            raise ValueError(f"view {i}: on {view.device}, but view 1 is on {views[0].device}.")
    return list(views)


def require_ids(tensor: Tensor, what: str, length: int) -> Tensor:
    if require_tensor(tensor, what).dim() != 1 or len(tensor) != length or not is_whole(tensor):
        once = " Give one per sample, not one per view." * (tuple(tensor.shape) in {(2 * length,), (3 * length,)})
        raise ValueError(f"{what}: expected {length} integers, got shape {shape(tensor)} of {tensor.dtype}.{once}")
    return tensor.long()


def hint_of_logits(view: Tensor) -> str:
    """Return a hint for a single view that may be logits: a square matrix."""
    square = view.dim() == 2 and view.shape[0] == view.shape[1]
    return " For logits, call from_logits(logits, labels)." if square else ""


def require_prior(prior: Tensor, zero: bool = True) -> Tensor:
    if wanted(prior) and not bool(((prior >= 0 if zero else prior > 0) & (prior < 1)).all()):
        raise ValueError(f"prior: expected probabilities in {'[' if zero else '('}0, 1).")
    return prior


SAME = "ids, labels or mask rule out every key: have several classes or sources in each batch"


def require_negatives(count: Tensor | float, why: str = SAME) -> Tensor | float:
    """Raise if an anchor has none; return a factor of losses: 1, or NaN for these where values are not read."""
    if not isinstance(count, Tensor):
        return 1.0
    if not wanted(count):
        factor = torch.ones_like(count, dtype=count.dtype if count.is_floating_point() else torch.float32)
        return factor.masked_fill(count <= 0, torch.nan)
    if bool((count <= 0).any()):
        rows = (count.reshape(-1) <= 0).nonzero().reshape(-1).tolist()
        named = ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
        raise ValueError(f"{len(rows)} of {count.numel()} anchors have no negatives (rows {named}): {why}.")
    return 1.0


def require_elementwise(results: Any, s: Tensor) -> None:
    """Raise if a function of ``s`` returns another shape: then it depends on more than ``s``."""
    for x in results if isinstance(results, tuple) else (results,):
        if x.shape != s.shape:
            may = "it may close over numbers and tensors without dimensions only"
            other = "what differs from anchor to anchor is passed beside it, neg.mean(f, per_anchor)"
            got = f"the function that is reduced made {shape(x)} of {shape(s)} similarities"
            raise TypeError(f"{got}: {may}; {other}.")


NO_DERIVATIVE = "tiles and chunks have no {}: call the objective with engine='matrix', which keeps all similarities."


class Once(torch.autograd.Function):
    """A function that can be differentiated once, in the backward pass."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise NotImplementedError(NO_DERIVATIVE.format("forward-mode derivative"))


def refuse_second_derivative() -> None:
    """Raise in the backward pass of a custom function that is to be differentiated again."""
    if torch.is_grad_enabled():
        raise RuntimeError(NO_DERIVATIVE.format("second derivative (create_graph=True)"))


def leaves_of(x: Tensor, ends: Collection[Any] = ()) -> list[Tensor]:
    """Return the leaves that ``x`` was computed from, but for those behind the nodes ``ends`` of its graph."""
    if x.grad_fn is None:
        return [x] if x.requires_grad else []
    seen = {x.grad_fn, *ends}
    pending = [x.grad_fn] if x.grad_fn not in ends else []
    for node in pending:
        unseen = {following for following, _ in node.next_functions if following is not None} - seen
        seen |= unseen
        pending += unseen
    return [variable for variable in (getattr(node, "variable", None) for node in pending) if variable is not None]


def exact(device: torch.device) -> AbstractContextManager[Any]:
    """Disable autocast, where it is enabled: entering its context takes longer than small operations."""
    return torch.autocast(device.type, enabled=False) if compiling() or _any_autocast() else nullcontext()
