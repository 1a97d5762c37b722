"""Find a function of the script whose arguments are the embeddings, and how an objective is called with them."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import permutations, product
from types import FrameType, ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from counterpoint.base import Objective

from ..call import call_of
from .frames import function_name, labels
from .recognise import HALF, SINGLE, at_scale, fit
from .records import Finding, Replaced
from .watch import Sink, Watch


def gradients(root: Any, inputs: Sequence[Any], outer: Any = None) -> tuple[Tensor | None, ...]:
    return torch.autograd.grad(root, inputs, outer, retain_graph=True, allow_unused=True)


@contextmanager
def cut(edges: Iterable[GradientEdge]) -> Iterator[None]:
    """Let no gradient flow on through these tensors."""
    hooks = [e.node.register_prehook(lambda g, i=e.output_nr: (*g[:i], _zeros(g[i]), *g[i + 1 :])) for e in edges]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _zeros(g: Tensor | None) -> Tensor | None:
    return None if g is None else torch.zeros_like(g)  # hooks of the script may be called with it


def relative(ours: float, theirs: float) -> float:
    return abs(ours - theirs) / max(abs(theirs), 1e-12)


def nearest(value: float, values: Iterable[float], anchors: int) -> float:
    """How near our mean, or the sum over anchors, is to a number that the script has computed."""
    return min((relative(value * k, other) for other in values for k in (1.0, anchors)), default=1.0)


def function_of(watch: Watch, sink: Sink, root: Tensor, finding: Finding, specs: Sequence[str]) -> Replaced | None:
    """Find a function whose arguments are the embeddings, and how one of our objectives gets its gradient from them.

    A call of the function is compared as a whole, with all terms that were computed in it. Of several, functions that
    can be replaced come first, then those that need no ``anchors=first``, which computes what it drops.
    """
    found = list(_functions(watch, sink, root, finding, specs)) if finding["scale"] > 0 else []
    return min(found, key=lambda each: (not each["whole"], "anchors" in each["as"]), default=None)


def _functions(watch: Watch, sink: Sink, root: Tensor, finding: Finding, specs: Sequence[str]) -> Iterator[Replaced]:
    for i, (frame, passed) in enumerate(sink.frames):
        name = function_name(frame.f_code)
        tensors = _embeddings(passed)
        if "<" in name or not tensors or any(f.f_code is frame.f_code for f, _ in sink.frames[i + 1 :]):
            continue  # a call of itself is a part of the outermost one
        host = _gradients(root, tensors, *watch.made[frame])
        tried, normalized = list[Replaced](), bool(finding["normalized"])
        further = [(spec, epsilon) for epsilon in _epsilons(frame) for spec in SINGLE]
        further += [(spec, 0.0) for spec in fitted(frame)] if len(specs) > 2 else []
        for spec, epsilon in (*((spec, 0.0) for spec in specs), *further):
            if not host or (tried and not epsilon and spec not in specs):
                break
            loss_fn, known = at_scale(spec, finding["scale"]), {"epsilon": epsilon} if epsilon else {}
            if fitting := _fitting(loss_fn, host, passed, normalized, known, sink.tolerance):
                fitting["form"] = spec
                tried.append(fitting)
        if not tried:
            continue
        least = min(float(each["gradient_difference"]) for each in tried)
        best = next(each for each in tried if each["gradient_difference"] <= 30 * least)
        whole = "<locals>" not in str(getattr(frame.f_code, "co_qualname", ""))  # not defined inside another one
        given = [x for x in passed.values() for chosen in best["arguments"] if x is passed[chosen]]
        whole &= len(given) == len(best["arguments"])  # no other argument is the same tensor
        numbers = {n: float(x.detach()) for n, x in passed.items() if x.numel() == 1}
        best["scale"] = _named(numbers, finding["scale"], finding["learned"])
        if best["scale"] and not _only_scales(watch, sink, root, passed[best["scale"]]):
            finding["doubts"].append(f"{best['scale']} has another use than to multiply similarities, as in {name}")
        best["bias"] = _named(numbers, finding.get("bias"), finding.get("bias_learned", []))
        best["file"], best["function"], best["whole"] = frame.f_code.co_filename, name, whole
        best["outer"] = [f"{f.f_code.co_filename}:{function_name(f.f_code)}" for f, _ in sink.frames[i + 1 :]]
        yield best
        if whole and "anchors" not in best["as"]:
            return


def _only_scales(watch: Watch, sink: Sink, root: Tensor, scale: Tensor) -> bool:
    """Whether a learned scale has the gradient of a factor of the similarities, in all calls that get it."""
    alike = [s for s in watch.sinks if s.names.keys() & sink.names.keys()]
    calls = [f for s in alike for f, passed in s.frames if any(x is scale for x in passed.values())]
    every = [p for s in alike if any(f in calls for f, _ in s.frames) for p in s.walk.products]
    every += [p for p in watch.pairs() if any(f in calls for f in p.frames)]
    products = {id(p): p for p in every}.values()
    found = zip(products, gradients(root, [p.edge for p in products]), strict=True)
    parts = [float((g.double() * p.values()).sum()) for p, g in found if g is not None]
    (total,) = gradients(root, [scale])
    expected, size = sum(parts) / float(scale.detach()), sum(map(abs, parts)) / abs(float(scale.detach()))
    return total is None or abs(float(total) - expected) <= 10 * sink.tolerance * size


def _named(numbers: dict[str, float], value: float | None, learned: Sequence[str]) -> str | None:
    """The argument that has a learned value."""
    near = (name for name, x in numbers.items() if learned and value is not None and relative(x, value) < 1e-4)
    return next(near, None)


def _epsilons(frame: FrameType) -> list[float]:
    """Numbers of a function that it may add to a probability, before it takes the logarithm."""
    code, names = frame.f_code, frame.f_globals
    values = [*code.co_consts, *frame.f_locals.values(), *(names.get(name) for name in code.co_names)]
    numbers = dict.fromkeys(x for x in values if type(x) is float and 1e-20 < x <= 1e-3)
    return [*numbers][:3] if "log" in code.co_names else []


def fitted(frame: FrameType) -> Iterator[str]:
    """Yield objectives with the numbers that a function has, as arguments or in its object, as their parameters."""
    owners = (x for x in frame.f_locals.values() if hasattr(x, "__dict__") and not isinstance(x, ModuleType))
    values = [*frame.f_locals.values(), *(value for x in owners for value in vars(x).values())]
    numbers = [float(x) for x in values if type(x) in (int, float) and 1e-3 <= x <= 10]  # smaller ones are epsilons
    numbers = [*dict.fromkeys([1.0, *numbers])][:8]
    priors = [x for x in numbers if x < 0.9]
    yield from (f"dcl:prior={prior:g}" for prior in priors)
    yield from (f"hcl:beta={beta:g},prior={prior:g}" for beta in numbers for prior in (*priors, 0.0))
    yield from (f"adnce:mu={mu:g},sigma={sigma:g}" for mu in numbers if mu <= 1 for sigma in numbers)


def _embeddings(passed: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: x for n, x in passed.items() if x.is_floating_point() and x.dim() in (2, 3)}


def _gradients(root: Tensor, arguments: dict[str, Tensor], first: int, last: int) -> dict[str, Tensor]:
    """Return the gradients that a call brings to its arguments, by autograd's nodes with the numbers of that call."""
    edges = {name: get_gradient_edge(x) for name, x in arguments.items() if x.requires_grad}
    host, hooks, seen, todo = dict[str, Tensor](), [], set[Node](), [root.grad_fn] if edges else []

    def add(found: Sequence[Tensor | None], above: Sequence[tuple[Node | None, int]]) -> None:
        for (name, e), (g, edge) in product(edges.items(), zip(found, above, strict=True)):
            if g is not None and edge == (e.node, e.output_nr):
                host[name] = host.get(name, 0) + g.detach().double()

    while todo:
        node = todo.pop()
        if node is not None and node not in seen and (number := node._sequence_nr()) >= first:
            seen.add(node)
            todo += [above for above, _ in node.next_functions]
            if number < last:
                hooks.append(node.register_hook(lambda found, _, above=node.next_functions: add(found, above)))
    if hooks:
        gradients(root, [arguments[name] for name in edges])
    for hook in hooks:
        hook.remove()
    return {name: g for name, g in host.items() if bool((g != 0).any())}


def _fitting(
    loss_fn: Objective, host: dict[str, Tensor], passed: dict[str, Tensor], normalized: bool, known: Any, most: float
) -> Replaced | None:
    """Return how our objective gets the ``host``'s gradient from some of the arguments, but for ``most`` of it."""
    arguments, classes = _embeddings(passed), labels(passed)
    off = most * max(float(g.abs().max()) for g in host.values())  # in entries; gradients of cosines are perpendicular
    pairs = [(g, arguments[name].detach().double()) for name, g in host.items()]
    normalized &= all(bool(((g * x).sum(-1).abs() <= off * x.abs().sum(-1)).all()) for g, x in pairs)
    kinds: list[dict[str, Any]] = [{}] * normalized + [{"normalize": False}] * (not normalized or most > HALF)
    every = (chosen for count in (1, 2, 3) for chosen in permutations(arguments, count) if host.keys() <= {*chosen})
    for chosen in every if len(arguments) <= 8 else ():
        in_order = [*chosen] == [name for name in arguments if name in chosen]
        for way in _ways(chosen, classes, kinds):
            if not in_order and way.get("pairing") in ("symmetric", "views") and "anchors" not in way:
                continue  # the same loss in any order
            leaves = {name: arguments[name].detach().double().requires_grad_() for name in chosen}
            # one that the function detaches has no gradient, where ours may have one
            of_host = {n: host.get(n, torch.zeros_like(leaves[n])) for n in chosen if arguments[n].requires_grad}
            values = leaves | {name: label.flatten().long() for name, label in classes.items()}
            options = known | {k: values[name] if k in ("queue", "labels") else name for k, name in way.items()}
            try:
                call = call_of([leaves[name] for name in chosen[:2]], options)
                with torch.enable_grad():
                    loss = call.loss(loss_fn, own=True)
                wanted = [leaves[name] for name in of_host]
                grads = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
            except (ValueError, RuntimeError, TypeError):
                continue
            theirs, ours = (torch.cat([g.flatten() for g in each]) for each in (of_host.values(), grads))
            error, _ = fit(theirs.unsqueeze(0), ours.unsqueeze(0))
            if error <= most:
                return {"arguments": list(chosen), "as": {**way, **known}, "gradient_difference": error}
    return None


_FIRST = {"pairing": "views", "anchors": "first"}
_WAYS: dict[int, tuple[dict[str, Any], ...]] = {
    1: ({"pairing": "views"}, _FIRST, {"pairing": "views", "cat": 2}),
    2: ({"pairing": "one_way"}, {"pairing": "symmetric"}, {"pairing": "views"}, _FIRST),
    3: ({},),
}
"""Options of ``--as`` by the number of arguments that are embeddings; the third one is a queue."""


def _ways(chosen: Sequence[str], classes: Iterable[str], kinds: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield options of ``--as`` for these arguments, and the names of those that are the queue or the labels."""
    queue = {"queue": chosen[2]} if len(chosen) == 3 else {}
    for label in ({}, *({"labels": name} for name in classes if not queue)):
        for kind, way in product(kinds, _WAYS[len(chosen)]):
            if not label or way.keys() == {"pairing"}:
                yield {**label, **kind, **way, **queue}
