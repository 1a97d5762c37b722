"""Measure what a script multiplies its similarities by: how logits move with the product of embeddings, by autograd."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .functions import Finding, relative, tolerance_of
from .products import Product
from .watch import Sink, Watch


def scale_of(watch: Watch, logits: Tensor, biased: bool = False) -> Finding | None:
    """Measure the scale of logits at a loss of the script; None if they are not a product of embeddings.

    With ``biased``, measure what was added to them, too.
    """
    with torch._C.DisableTorchFunction():
        walk = watch.walk(logits)
        products = [p for p in walk.products if not watch.is_head(p)]
        finding: Finding = {"doubts": []}
        sink = watch.sink("logits", logits, logits.detach(), walk)
        raw = measure(watch, sink, products, finding)
        if raw is not None and biased:
            measure_bias(sink, products[0], raw, logits, finding)
        return finding if raw is not None else None


def measure_bias(sink: Sink, product: Product, raw: float, logits: Tensor, finding: Finding) -> None:
    """Measure what is added to a product times ``raw`` in ``logits``; None if it is not the same everywhere."""
    s, x = product.values(), logits.detach().double()
    finding |= {"bias": None, "bias_learned": [], "bias_variable": None}
    rests = [x - raw * matrix for matrix in ((s, s.mT) if s.dim() == 2 else ()) if matrix.shape == x.shape]
    if not rests:
        finding["doubts"].append("entries were selected from the product")
        return
    rest = min(rests, key=lambda each: float(each.std()))
    bias = float(rest.median())
    if float((rest - bias).abs().max()) > 10 * tolerance_of(logits) * max(1.0, float(x.abs().max())):
        finding["doubts"].append("what is added to the similarities is not one number")
        return
    finding["bias"] = 0.0 if abs(bias) < tolerance_of(logits) * float(x.abs().max()) else bias
    shifts = {id(v): v for v in sink.walk.scalars if _shifts(logits, v)}
    finding["bias_learned"] = [sink.names.get(key) or "a learned number" for key in shifts]
    candidates = dict(sink.scale_names) | {sink.names[k]: v.detach() for k, v in shifts.items() if sink.names.get(k)}
    near = [name for name, v in candidates.items() if shifts and abs(float(v) - bias) < 1e-4 * max(1.0, abs(bias))]
    finding["bias_variable"] = near[0] if near else None


def _shifts(logits: Tensor, scalar: Tensor) -> bool:
    """Whether a learned number is added to all logits."""
    (g,) = torch.autograd.grad(logits.sum(), scalar, retain_graph=True, allow_unused=True)
    return g is not None and abs(float(g) - logits.numel()) <= 1e-3 * logits.numel()


def measure(watch: Watch, sink: Sink, products: Sequence[Product], finding: Finding) -> float | None:
    """Measure the scale of the logits in ``sink``, and say where it comes from; return it for the raw products."""
    raw: list[float] = []
    total: list[float] = []
    norms: list[float | None] = []
    learned = {id(x): x for x in _learned(watch, sink, products)}
    for product in products:
        (g,) = torch.autograd.grad(sink.x.sum(), product.edge, retain_graph=True, allow_unused=True)
        if g is None or not bool((g != 0).any()):
            continue
        entries = g.detach().double()[g != 0]
        lengths = _lengths(product, g)
        if lengths is not None:
            entries = (g.detach().double() * lengths)[g != 0]
        factor = float(entries.median())
        # subtracting each row's maximum changes no softmax: its gradients add up to zero
        shifted = any(float(g.sum(i).abs().max()) < 1e-3 * abs(factor) * g.shape[i] for i in (-1, 0))
        if not shifted and float((entries - factor).abs().max()) > 10 * tolerance_of(sink.x) * abs(factor):
            finding["doubts"].append(
                f"logits are not similarities times one number ({float(entries.min()):g} to {float(entries.max()):g})"
            )
        sides = [1.0, 1.0] if product.cosine else [_norm(watch, x) for x in (product.a, product.b)]
        norms += sides
        raw.append(factor)
        total.append(factor)
        for side, x in zip(sides, (product.a, product.b), strict=True):
            total[-1] *= side or _factor(x)
    if not total:
        return None
    finding["normalized"] = all(norms)
    finding["scale"] = total[0]
    finding["one_sided"] = any(norms) and not all(norms)
    if max(total) - min(total) > 1e-3 * abs(total[0]):
        finding["doubts"].append(f"parts of the logits have different scales: {', '.join(f'{x:g}' for x in total)}")
    finding["learned"] = [sink.names.get(key) or "a learned number" for key in learned]
    candidates = sink.scale_names | {f"{name}.reciprocal": 1 / x for name, x in sink.scale_names.items()}
    for key, x in learned.items():
        if name := sink.names.get(key):
            value = x.detach()
            candidates |= {name: value, f"{name}.exp": value.exp(), f"{name}.reciprocal": value.reciprocal()}
    near = [name for name, x in candidates.items() if learned and relative(float(x), total[0]) < 1e-4]
    finding["scale_variable"] = near[0] if near else None
    return raw[0]


def _lengths(product: Product, g: Tensor) -> Tensor | None:
    """The lengths of both sides, if inner products were divided by these afterwards, ``(a @ b.T) / (|a| |b|.T)``."""
    if product.cosine or product.kind != "matrix" or g.dim() != 2 or product.a.dim() != 2 or product.b.dim() != 2:
        return product.lengths
    a, b = (torch.linalg.vector_norm(x.detach().double(), dim=-1) for x in (product.a, product.b))
    lengths = torch.outer(a, b)
    if lengths.shape != g.shape or float(lengths.max() - lengths.min()) < 1e-2 * float(lengths.max()):
        return None
    entries = (g.detach().double() * lengths)[g != 0]
    if float(entries.max() - entries.min()) > 10 * max(tolerance_of(g), 1e-4) * abs(float(entries.median())):
        return None
    product.lengths, product.cosine = lengths, True
    return lengths


def _learned(watch: Watch, sink: Sink, products: Sequence[Product]) -> Iterator[Tensor]:
    """The learned numbers that scale the logits; one that only shifts them is left out."""
    for x in sink.walk.scalars:
        (g,) = torch.autograd.grad(sink.x.sum(), x, retain_graph=True, allow_unused=True)
        if g is not None and not _shifts(sink.x, x):
            yield x
    for product in products:
        for operand in (product.a, product.b):
            yield from watch.walk(operand).scalars


def _norm(watch: Watch, x: Tensor) -> float | None:
    """The norm of all rows if they were normalized, else None."""
    norms = x.detach().double().norm(dim=-1).flatten()
    norms = norms[norms > 0]
    if not norms.numel():
        return None
    mean, tolerance = float(norms.mean()), max(tolerance_of(x), 1e-4)
    if float(norms.max() - norms.min()) > tolerance * mean:
        return None
    # of unit length when what they were multiplied by is taken out, or normalized in view
    unit = min(abs(mean / by - 1) for by in (1.0, abs(_factor(x))) if by) <= tolerance
    return mean if unit or watch.walk(x).normalized else None


def _factor(x: Tensor) -> float:
    """What embeddings were multiplied by at last: queries are sometimes divided by the temperature."""
    node, factor = x.grad_fn, 1.0
    while node is not None:
        name = node.name().partition("Backward")[0]
        # autograd keeps the other operand, unless it needs none
        saved = (
            [getattr(node, each, None) for each in ("_saved_other", "_saved_self")] if name in ("Div", "Mul") else []
        )
        numbers = [float(s.detach()) for s in saved if isinstance(s, Tensor) and s.numel() == 1]
        if numbers:
            factor *= 1 / numbers[0] if name == "Div" else numbers[0]
        elif name not in ("Permute", "Transpose", "T", "View", "Alias", "Unsqueeze", "Expand", "ToCopy"):
            break
        node = node.next_functions[0][0]
    return factor
