"""Find a function of the script whose arguments are the embeddings, and how an objective is called with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations
from types import FrameType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from counterpoint.objective import Objective

from .frames import embeddings, function_name, is_nested, labels
from .recognise import at_scale
from .watch import Sink, Watch

Finding = dict[str, Any]


def tolerance_of(x: Tensor) -> float:
    """The largest relative difference that rounding explains in the script's precision."""
    return {torch.float64: 1e-6, torch.float32: 1e-3}.get(x.dtype, 5e-2)


def gradients(root: Tensor, inputs: Sequence[Any]) -> tuple[Tensor | None, ...]:
    return torch.autograd.grad(root, inputs, retain_graph=True, allow_unused=True)


def relative(ours: float, theirs: float) -> float:
    return abs(ours - theirs) / max(abs(theirs), 1e-12)


def nearest(value: float, values: Iterable[float], anchors: int) -> float:
    """How near our mean, or the sum over anchors, is to a number that the script has computed."""
    return min((relative(value * k, other) for other in values for k in (1.0, anchors)), default=1.0)


def function_of(watch: Watch, sink: Sink, root: Tensor, finding: Finding, specs: Sequence[str]) -> Finding | None:
    """Find a function whose arguments are the embeddings, and how our objective gets its gradient from them.

    A call of the function is compared as a whole, with all products that were made in it. Of several, functions that
    can be replaced come first, then those that need no ``anchors=first``, which computes what it drops.

    Args:
        watch, sink, root, finding: of the step.
        specs: the objectives that it may be.
    """
    found = list(_functions(watch, sink, root, finding, specs)) if finding["scale"] > 0 else []
    return min(found, key=lambda each: (not each["whole"], "anchors" in each["as"]), default=None)


def _functions(watch: Watch, sink: Sink, root: Tensor, finding: Finding, specs: Sequence[str]) -> Iterator[Finding]:
    for frame, passed in sink.frames:
        name, tensors = function_name(frame.f_code), embeddings(passed)
        if "<" in name or not tensors:
            continue
        inside = [s for s in watch.sinks if any(f is frame for f, _ in s.frames)]
        apart = [p for p in watch.pairs() if frame in p.frames]
        products = {id(p): p for p in [*(p for s in inside for p in s.walk.products), *apart]}.values()
        edges, divided = [p.edge for p in products], any(p.lengths is not None for p in products)
        outputs = [(e, g) for e, g in zip(edges, gradients(root, edges), strict=True) if g is not None]
        tried: list[Finding] = []
        for spec in (*specs, *(_fitted(frame) if len(specs) > 2 else ())):
            if tried and spec not in specs:
                break
            fitting = _arguments(
                at_scale(spec, finding["scale"]),
                tensors,
                labels(passed),
                outputs,
                bool(finding["normalized"]),
                tolerance_of(sink.x),
                divided,
            )
            tried += [{**fitting, "form": spec}] if fitting else []
        if not tried:
            continue
        least = min(float(each["gradient_difference"]) for each in tried)
        best = next(each for each in tried if each["gradient_difference"] <= 30 * least)
        whole = {"split", "groups", "transposed"}.isdisjoint(best["as"]) and not is_nested(frame.f_code)
        given = [x for x in passed.values() for chosen in best["arguments"] if x is passed[chosen]]
        whole &= len(given) == len(best["arguments"])  # no other argument is the same tensor
        numbers = {n: float(x.detach()) for n, x in passed.items() if x.numel() == 1}
        near_scale = [n for n, x in numbers.items() if relative(x, finding["scale"]) < 1e-4]
        best["scale"] = near_scale[0] if near_scale and finding["learned"] else None
        yield {"file": frame.f_code.co_filename, "function": name, "whole": whole, **best}
        if whole and "anchors" not in best["as"]:
            return


def _fitted(frame: FrameType) -> Iterator[str]:
    """Yield objectives with the numbers that a function has, as arguments or in its object, as their parameters."""
    owners = (x for x in frame.f_locals.values() if hasattr(x, "__dict__") and not isinstance(x, ModuleType))
    values = [*frame.f_locals.values(), *(value for x in owners for value in vars(x).values())]
    numbers = [*dict.fromkeys(float(x) for x in values if type(x) in (int, float) and 0 < x <= 10)][:8]
    priors = [x for x in numbers if x < 0.9]
    yield from (f"dcl:prior={prior:g}" for prior in priors)
    yield from (f"hcl:beta={beta:g},prior={prior:g}" for beta in numbers for prior in (*priors, 0.0))
    yield from (f"adnce:mu={mu:g},sigma={sigma:g}" for mu in numbers if mu <= 1 for sigma in numbers)


def _arguments(
    loss_fn: Objective,
    arguments: dict[str, Tensor],
    classes: dict[str, Tensor],
    outputs: Iterable[Any],
    normalized: bool,
    tolerance: float,
    divided: bool,
) -> Finding | None:
    """Return how our objective gets the script's gradient from some of the arguments.

    If products are ``divided`` by lengths later, the gradient that reaches the arguments through the products lacks
    that of the lengths, which is along the rows.
    """
    edges, inner = zip(*outputs, strict=True)
    host: dict[str, Tensor] = {}
    for name in arguments:
        if arguments[name].requires_grad:
            (g,) = torch.autograd.grad(edges, arguments[name], inner, retain_graph=True, allow_unused=True)
            if g is not None and bool((g != 0).any()):
                g, x = g.detach().double(), arguments[name].detach().double()
                along = (g * x).sum(-1, keepdim=True) / (x * x).sum(-1, keepdim=True).clamp(min=1e-60)
                host[name] = g - along * x if divided else g
    if not host:
        return None
    for count in (1, 2, 3):
        for chosen in permutations(arguments, count) if len(arguments) <= 8 else ():
            gets = [name for name in host if name in chosen]
            if not gets:
                continue
            for options, call in _calls(loss_fn, chosen, classes, normalized):
                leaves = {name: arguments[name].detach().double().requires_grad_() for name in chosen}
                views = [*leaves.values()]
                stacked = count == 1 and views[0].dim() == 3  # (B, views, d)
                views = [*views[0].unbind(1)] if stacked else views
                try:
                    with torch.enable_grad():
                        value = call(*views)
                        grads = torch.autograd.grad(value, [leaves[name] for name in gets], allow_unused=True)
                except (ValueError, RuntimeError, TypeError):
                    continue
                if any(g is None for g in grads):
                    continue
                theirs = torch.cat([host[name].flatten() for name in gets])
                ours = torch.cat([g.flatten() for g in grads])
                weight = float((theirs * ours).sum() / (ours * ours).sum().clamp(min=1e-60))
                error = float((theirs - weight * ours).abs().max() / theirs.abs().max())
                if error <= tolerance:
                    return {
                        "arguments": list(chosen),
                        "as": {**options, **({"stacked": True} if stacked else {})},
                        "gradient_difference": error,
                    }
    return None


def _calls(
    loss_fn: Objective, chosen: Sequence[str], classes: dict[str, Tensor], normalized: bool
) -> Iterator[tuple[dict[str, Any], Any]]:
    """Ways of calling our objective with these arguments: ``--as`` options, and the call."""
    yield from _plain_calls(loss_fn, chosen, normalized)
    for name, label in classes.items() if len(chosen) < 3 else ():
        for normalize in [True, False] if normalized else [False]:
            base: dict[str, Any] = {"labels": name, **({} if normalize else {"normalize": False})}
            for pairing in ("views", "one_way", "symmetric")[: 1 if len(chosen) == 1 else 3]:
                how = {"pairing": pairing, "labels": label.flatten().long(), "normalize": normalize}
                yield {**base, "pairing": pairing}, lambda *z, how=how: loss_fn(*z, **how)


def _plain_calls(loss_fn: Objective, chosen: Sequence[str], normalized: bool) -> Iterator[tuple[dict[str, Any], Any]]:
    """Ways of calling our objective without labels."""
    for normalize in [True, False] if normalized else [False]:
        base: dict[str, Any] = {} if normalize else {"normalize": False}
        if len(chosen) == 1:
            yield {**base, "pairing": "views"}, lambda *z, n=normalize: loss_fn(*z, pairing="views", normalize=n)
            yield {**base, **_FIRST}, lambda *z, n=normalize: _of_first(loss_fn, *z, normalize=n)
            for split in ("halves", "interleaved"):
                yield (
                    {**base, "pairing": "views", **({"cat": 2} if split == "halves" else {"split": split})},
                    lambda *z, n=normalize, s=split: loss_fn(*_split(s, *z), pairing="views", normalize=n),
                )
        elif len(chosen) == 2:
            for pairing in ("one_way", "symmetric", "views"):
                yield (
                    {**base, "pairing": pairing},
                    lambda a, b, n=normalize, p=pairing: loss_fn(a, b, pairing=p, normalize=n),  # pyright: ignore
                )
            yield {**base, **_FIRST}, lambda a, b, n=normalize: _of_first(loss_fn, a, b, normalize=n)
            yield {**base, "pairing": "one_way", "groups": True}, lambda a, b, n=normalize: _grouped(loss_fn, a, b, n)
        else:
            for flip in (False, True):
                yield (
                    {**base, "queue": chosen[2], **({"transposed": True} if flip else {})},
                    lambda a, b, c, n=normalize, f=flip: loss_fn(a, b, queue=c.mT if f else c, normalize=n),
                )
            yield {**base, "keys": "shared"}, lambda *z, n=normalize: shared_keys(loss_fn, *z, normalize=n)


_FIRST = {"pairing": "views", "anchors": "first"}


def _of_first(loss_fn: Objective, *views: Tensor, normalize: bool) -> Tensor:
    if len(views) == 1:
        raise ValueError("no views")
    return loss_fn(*views, pairing="views", normalize=normalize, reduction="none")[: len(views[0])].mean()


def _split(how: str, z: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
    if others or z.dim() != 2 or len(z) % 2:
        raise ValueError("no two halves")
    return (z[: len(z) // 2], z[len(z) // 2 :]) if how == "halves" else (z[0::2], z[1::2])


def shared_keys(loss_fn: Objective, a: Tensor, b: Tensor, keys: Tensor, *, normalize: bool, **options: Any) -> Tensor:
    """Compute the loss of anchors ``a``, their positives ``b``, and ``keys`` that are negatives of all of them."""
    return loss_fn.from_scores(*shared_scores(a, b, keys, normalize=normalize), **options)


def shared_scores(a: Tensor, b: Tensor, keys: Tensor, *, normalize: bool) -> tuple[Tensor, Tensor]:
    """Return the similarities of anchors with their positives, and with keys that are negatives of all of them."""
    if keys.dim() != 2 or a.shape != b.shape:
        raise ValueError(f"expected keys (K, d) and positives {tuple(a.shape)}, got {keys.shape} and {b.shape}.")
    a, b, keys = (nn.functional.normalize(x, dim=-1) if normalize else x for x in (a, b, keys))
    return (a * b).sum(-1), a @ keys.mT


def copies(pos: Tensor, neg: Tensor, b: Tensor, keys: Tensor) -> Tensor:
    """Return which scores of :func:`shared_scores` with keys are of an anchor's own positive."""
    rows, columns_ = ((neg - pos.unsqueeze(1)).abs() <= 1e-2).nonzero().unbind(1)  # few, which are compared exactly
    same = (b[rows] == keys[columns_]).all(1)
    return torch.zeros_like(neg, dtype=torch.bool).index_put((rows[same], columns_[same]), same[same])


def _grouped(loss_fn: Objective, a: Tensor, b: Tensor, normalize: bool) -> Tensor:
    if a.dim() != 2 or b.dim() != 2 or len(b) % len(a) or len(a) == len(b):
        raise ValueError("no groups")
    groups = b.view(len(a), -1, b.shape[-1])
    return loss_fn(a, groups[:, 0], negatives=groups[:, 1:], pairing="one_way", normalize=normalize)
