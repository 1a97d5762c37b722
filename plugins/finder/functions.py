"""Find a function of the script whose arguments are the embeddings, and how an objective is called with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations
from typing import Any

import torch
from torch import Tensor

from counterpoint.objective import Objective
from counterpoint.objectives.infonce import InfoNCE

from .frames import function_name
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

    A call of the function is compared as a whole, with all products that were made in it.
    """
    if not finding["scale"] > 0:
        return None
    for frame, arguments, variables in sink.frames:
        name = function_name(frame.f_code)
        inside = [s for s in watch.sinks if any(f is frame for f, *_ in s.frames)]
        edges = [*{id(p): p.edge for s in inside for p in s.walk.products}.values()]
        outputs = [(e, g) for e, g in zip(edges, gradients(root, edges), strict=True) if g is not None]
        # a function can only be replaced from its arguments; with other variables, the user edits a line
        for tensors in (arguments if name != "<module>" else {}, variables):
            tried = []
            for spec in specs if tensors else ():
                loss_fn = InfoNCE(1 / finding["scale"], denominator=spec.partition("=")[2] or "with_positive")
                fitting = _arguments(loss_fn, tensors, outputs, bool(finding["normalized"]), tolerance_of(sink.x))
                tried += [{**fitting, "form": spec}] if fitting else []
            if tried:
                best = min(tried, key=lambda each: float(each["gradient_difference"]))
                results = [float(v) for v, where in watch.scalars if where is frame]
                near = nearest(best["value"], results, best["count"])
                if near < 0.1 * tolerance_of(sink.x):
                    best["value_difference"] = near
                elif tensors is variables:
                    continue
                # the last number is what the function returns
                times = results[-1] / best["value"] if results else 0.0
                if abs(times - best["count"]) < 1e-3 * best["count"]:
                    best["as"]["reduction"] = "sum"
                whole = tensors is arguments and {"split", "keys", "transposed"}.isdisjoint(best["as"])
                whole &= "reduction" in best["as"] or abs(times - 1) < 0.1 * tolerance_of(sink.x)
                whole &= "<" not in str(getattr(frame.f_code, "co_qualname", name))
                names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
                numbers = {n: x for n in names if isinstance(x := frame.f_locals.get(n), Tensor) and x.numel() == 1}
                near_scale = [n for n, x in numbers.items() if relative(float(x.detach()), finding["scale"]) < 1e-4]
                best["scale"] = near_scale[0] if near_scale and finding["learned"] else None
                return {"file": frame.f_code.co_filename, "function": name, "whole": whole, "times": times, **best}
    return None


def _arguments(
    loss_fn: Objective, arguments: dict[str, Tensor], outputs: Iterable[Any], normalized: bool, tolerance: float
) -> Finding | None:
    edges, inner = zip(*outputs, strict=True)
    host: dict[str, Tensor] = {}
    for name in arguments:
        if arguments[name].requires_grad:
            (g,) = torch.autograd.grad(edges, arguments[name], inner, retain_graph=True, allow_unused=True)
            if g is not None and bool((g != 0).any()):
                host[name] = g.detach().double()
    if not host:
        return None
    for count in (1, 2, 3):
        for chosen in permutations(arguments, count) if len(arguments) <= 8 else ():
            gets = [name for name in host if name in chosen]
            if not gets:
                continue
            for options, call in _calls(loss_fn, chosen, normalized):
                leaves = {name: arguments[name].detach().double().requires_grad_() for name in chosen}
                try:
                    with torch.enable_grad():
                        value = call(*leaves.values())
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
                    anchors = len(leaves[chosen[0]]) * (2 if options.get("pairing") in ("symmetric", "views") else 1)
                    return {
                        "arguments": list(chosen),
                        "as": options,
                        "weight": weight,
                        "gradient_difference": error,
                        "value": float(value.detach()),
                        "count": anchors,
                    }
    return None


def _calls(loss_fn: Objective, chosen: Sequence[str], normalized: bool) -> Iterator[tuple[dict[str, Any], Any]]:
    """Ways of calling our objective with these arguments: ``--as`` options, and the call."""
    for normalize in [True, False] if normalized else [False]:
        base: dict[str, Any] = {} if normalize else {"normalize": False}
        if len(chosen) == 1:
            yield {**base, "pairing": "views"}, lambda z, n=normalize: loss_fn(z, pairing="views", normalize=n)
            for split in ("halves", "interleaved"):
                yield (
                    {**base, "pairing": "views", **({"cat": 2} if split == "halves" else {"split": split})},
                    lambda z, n=normalize, s=split: loss_fn(*_split(z, s), pairing="views", normalize=n),
                )
        elif len(chosen) == 2:
            for pairing in ("one_way", "symmetric", "views"):
                yield (
                    {**base, "pairing": pairing},
                    lambda a, b, n=normalize, p=pairing: loss_fn(a, b, pairing=p, normalize=n),
                )
            yield {**base, "pairing": "one_way", "keys": "groups"}, lambda a, b, n=normalize: _grouped(loss_fn, a, b, n)
        else:
            for flip in (False, True):
                yield (
                    {**base, "queue": chosen[2], **({"transposed": True} if flip else {})},
                    lambda a, b, c, n=normalize, f=flip: loss_fn(a, b, queue=c.mT if f else c, normalize=n),
                )


def _split(z: Tensor, how: str) -> tuple[Tensor, Tensor]:
    if z.dim() != 2 or len(z) % 2:
        raise ValueError("no two halves")
    return (z[: len(z) // 2], z[len(z) // 2 :]) if how == "halves" else (z[0::2], z[1::2])


def _grouped(loss_fn: Objective, a: Tensor, b: Tensor, normalize: bool) -> Tensor:
    if a.dim() != 2 or b.dim() != 2 or len(b) % len(a) or len(a) == len(b):
        raise ValueError("no groups")
    groups = b.view(len(a), -1, b.shape[-1])
    return loss_fn(a, groups[:, 0], negatives=groups[:, 1:], pairing="one_way", normalize=normalize)
