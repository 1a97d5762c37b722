"""Find a function of the script whose arguments are the embeddings, and how an objective is called with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import permutations
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from counterpoint.objective import Objective

from .frames import embeddings, function_name, labels
from .recognise import SINGLE, Form, at_scale
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


def function_of(
    watch: Watch, sink: Sink, root: Tensor, finding: Finding, specs: Sequence[str], form: Form | None = None
) -> Finding | None:
    """Find a function whose arguments are the embeddings, and how our objective gets its gradient from them.

    A call of the function is compared as a whole, with all products that were made in it. Of several, functions that
    can be replaced come first, then those that need no ``anchors=first``, which computes what it drops.

    Args:
        watch, sink, root, finding: of the step.
        specs: the objectives that it may be.
        form: where it is only nearly an objective, how nearly.
    """
    error, factor = (form.error, form.factor) if form is not None else (0.0, 1.0)
    tolerance = max(tolerance_of(sink.x), 3 * error)
    found = list(_functions(watch, sink, root, finding, specs, tolerance, factor)) if finding["scale"] > 0 else []
    return min(found, key=lambda each: (not each["whole"], "anchors" in each["as"]), default=None)


def _functions(
    watch: Watch, sink: Sink, root: Tensor, finding: Finding, specs: Sequence[str], tolerance: float, factor: float
) -> Iterator[Finding]:
    for frame, passed, others in sink.frames:
        name = function_name(frame.f_code)
        inside = [s for s in watch.sinks if any(f is frame for f, *_ in s.frames)]
        apart = [p for p in watch.pairs() if frame in p.frames]
        products = {id(p): p for p in [*(p for s in inside for p in s.walk.products), *apart]}.values()
        edges, divided = [p.edge for p in products], any(p.lengths is not None for p in products)
        outputs = [(e, g) for e, g in zip(edges, gradients(root, edges), strict=True) if g is not None]
        # a function can only be replaced from its arguments; with other variables, the user edits a line
        arguments, variables = embeddings(passed), embeddings(others)
        results = [float(v) / factor for v, where in watch.scalars if where is frame]
        known = labels(passed), labels(passed | others)
        for tensors, classes in zip((arguments if name != "<module>" else {}, variables), known, strict=True):
            tried = []
            for spec in specs if tensors else ():
                fitting = _arguments(
                    at_scale(spec, finding["scale"]),
                    tensors,
                    classes,
                    outputs,
                    bool(finding["normalized"]),
                    tolerance,
                    divided,
                )
                tried += [{**fitting, "form": spec}] if fitting else []
            if tried:
                best = _best(tried, results, tolerance)
                near = nearest(best["value"], results, best["count"])
                if near < 0.1 * tolerance:
                    best["value_difference"] = near
                elif tensors is variables:
                    continue
                # the last number is what the function returns, or else the last numbers, one for each anchor
                times = results[-1] / best["value"] if results else 0.0
                if not results and _per_anchor(watch, frame, best, tolerance):
                    best["as"]["reduction"] = "none"
                elif abs(times - best["count"]) < 1e-3 * best["count"]:
                    best["as"]["reduction"] = "sum"
                elif abs(times - 1) > 0.1 * tolerance and relative(times, best["weight"]) < 0.1 * tolerance:
                    # backward() starts from this number, so the gradient has the same factor
                    best["as"]["times"] = _rounded(times)
                    best["value_difference"] = relative(best["weight"], times)
                exact = not {"reduction", "times"}.isdisjoint(best["as"]) or abs(times - 1) < 0.1 * tolerance
                whole = exact and tensors is arguments and {"split", "keys", "transposed"}.isdisjoint(best["as"])
                whole &= "<" not in str(getattr(frame.f_code, "co_qualname", name))
                numbers = {n: float(x.detach()) for n, x in passed.items() if x.numel() == 1}
                near_scale = [n for n, x in numbers.items() if relative(x, finding["scale"]) < 1e-4]
                best["scale"] = near_scale[0] if near_scale and finding["learned"] else None
                yield {"file": frame.f_code.co_filename, "function": name, "whole": whole, "exact": exact, **best}
                if whole and "anchors" not in best["as"]:
                    return
                break


def _per_anchor(watch: Watch, frame: FrameType, best: Finding, tolerance: float) -> bool:
    """Whether the last vector that a function has computed is the loss of each anchor."""
    vectors = [x for x, where in watch.vectors if where is frame]
    if not vectors or len(vectors[-1]) != best["count"]:
        return False
    best["value_difference"] = relative(best["value"], float(vectors[-1].double().mean()))
    return float(best["value_difference"]) < 0.1 * tolerance


def _rounded(factor: float) -> float:
    """Return a simple fraction where that is the factor, up to single precision."""
    simple = float(Fraction(factor).limit_denominator(100))
    return float(f"{simple if relative(simple, factor) < 1e-6 else factor:.8g}")


def _best(tried: Sequence[Finding], results: Sequence[float], tolerance: float) -> Finding:
    """Return the form with the best gradient; of those that are as good, the one with the script's value."""
    least = min(float(each["gradient_difference"]) for each in tried)

    def preference(each: Finding) -> tuple[bool, bool, float]:
        other_value = nearest(each["value"], results, each["count"]) > 0.1 * tolerance
        simple = each["form"] in SINGLE and "labels" not in each["as"]
        return other_value, not simple, float(each["gradient_difference"])

    return min((each for each in tried if each["gradient_difference"] <= 30 * least), key=preference)


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
                        "weight": weight,
                        "gradient_difference": error,
                        "value": float(value.detach()),
                        "count": _anchors(leaves[chosen[0]], len(chosen), options),
                    }
    return None


def _anchors(first: Tensor, arguments: int, options: dict[str, Any]) -> int:
    """Count the anchors of a call."""
    if options.get("anchors") == "first":
        return len(first)
    if arguments == 1:
        return first[..., 0].numel()
    return len(first) * (2 if options.get("pairing") in ("symmetric", "views") else 1)


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
            yield {**base, "pairing": "one_way", "keys": "groups"}, lambda a, b, n=normalize: _grouped(loss_fn, a, b, n)
        else:
            for flip in (False, True):
                yield (
                    {**base, "queue": chosen[2], **({"transposed": True} if flip else {})},
                    lambda a, b, c, n=normalize, f=flip: loss_fn(a, b, queue=c.mT if f else c, normalize=n),
                )


_FIRST = {"pairing": "views", "anchors": "first"}


def _of_first(loss_fn: Objective, *views: Tensor, normalize: bool) -> Tensor:
    if len(views) == 1:
        raise ValueError("no views")
    return loss_fn(*views, pairing="views", normalize=normalize, reduction="none")[: len(views[0])].mean()


def _split(how: str, z: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
    if others or z.dim() != 2 or len(z) % 2:
        raise ValueError("no two halves")
    return (z[: len(z) // 2], z[len(z) // 2 :]) if how == "halves" else (z[0::2], z[1::2])


def _grouped(loss_fn: Objective, a: Tensor, b: Tensor, normalize: bool) -> Tensor:
    if a.dim() != 2 or b.dim() != 2 or len(b) % len(a) or len(a) == len(b):
        raise ValueError("no groups")
    groups = b.view(len(a), -1, b.shape[-1])
    return loss_fn(a, groups[:, 0], negatives=groups[:, 1:], pairing="one_way", normalize=normalize)
