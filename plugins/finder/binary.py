"""Judge binary logits, where each pair of embeddings is classified by itself: SigLIP's loss."""

from __future__ import annotations

import torch
from torch import Tensor

from counterpoint.objective import objective

from .functions import Finding, function_of, gradients, nearest, tolerance_of
from .measure import measure, measure_bias
from .recognise import layout
from .watch import Sink, Watch


def judge_binary(watch: Watch, sink: Sink, root: Tensor, finding: Finding) -> Finding | None:
    """Complete the finding of binary logits; None if the loss does not depend on them."""
    if gradients(root, [sink.x])[0] is None:
        return None
    finding |= {"form": "binary", "ours": False}
    products = [p for p in sink.walk.products if not watch.is_head(p)]
    if len(products) != 1 or products[0].kind != "matrix":
        return finding
    (product,) = products
    (total,), (slope,) = gradients(root, [product.edge]), gradients(sink.x.sum(), [product.edge])
    if total is None or slope is None or total.shape != sink.x.shape or not bool((slope != 0).all()):
        return finding
    # labels of 1 and -1 are factors of the logits
    logits = sink.x * torch.sign(slope)
    turned = Sink(sink.kind, sink.place, logits, sink.output, sink.walk, frames=sink.frames)
    turned.scale_names, turned.names = sink.scale_names, sink.names
    measured: Finding = {"doubts": []}
    raw = measure(watch, turned, products, measured)
    if raw is None or not raw > 0:
        return finding
    measure_bias(turned, product, raw, logits, measured)
    positives = total.detach() < 0
    if measured["doubts"] or measured["bias"] is None or not bool(positives.any(1).all()):
        return finding
    finding |= measured
    spec = f"siglip:b={measured['bias']:.6g}"
    _compare(watch, finding, logits, total.detach().double() / raw, positives)
    if not finding["ours"]:
        return finding
    finding |= {"form": "siglip", "positives": layout(positives) or "the entries of a mask"}
    if finding["positives"] == "the diagonal" and sink.place.call.partition("(")[0].endswith("logsigmoid"):
        finding["columns"] = "diagonal"
    finding["replace"] = replace = function_of(watch, sink, root, finding, [spec])
    if replace is not None:
        replace["form"] = "siglip"
        replace["bias"] = _argument(sink, replace, float(measured["bias"])) if measured["bias_learned"] else None
    return finding


def _compare(watch: Watch, finding: Finding, logits: Tensor, gradient: Tensor, positives: Tensor) -> None:
    """Compare value and gradient, with respect to the logits, with ours."""
    scale, bias = float(finding["scale"]), float(finding["bias"])
    x = logits.detach().double().requires_grad_()
    with torch.enable_grad():
        value = objective("siglip:t=host,b=host").from_logits(x, positives, scale=scale, bias=bias)
        (expected,) = torch.autograd.grad(value, x)
    weight = float((gradient * expected).sum() / (expected * expected).sum().clamp(min=1e-60))
    finding["gradient_difference"] = float((gradient - weight * expected).abs().max() / gradient.abs().max())
    values = map(float, watch.scalars)
    finding["value_difference"] = nearest(float(value.detach()), values, len(x))
    tolerance = tolerance_of(logits)
    finding["ours"] = finding["gradient_difference"] < tolerance and finding["value_difference"] < tolerance


def _argument(sink: Sink, replace: Finding, value: float) -> str | None:
    """The argument of the function that is the number ``value``."""
    for frame, passed in sink.frames:
        if frame.f_code.co_filename != replace["file"]:
            continue
        for name, x in passed.items():
            if x.numel() == 1 and abs(float(x.detach()) - value) < 1e-4 * abs(value):
                return name
    return None
