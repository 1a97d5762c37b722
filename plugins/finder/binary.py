"""Judge binary logits, where each pair of embeddings is classified by itself: SigLIP's loss."""

import dataclasses

import torch
from torch import Tensor

from counterpoint.objective import objective

from .functions import function_of, gradients, nearest, tolerance_of
from .measure import measure, measure_bias
from .recognise import differentiate, fit, layout
from .records import Finding
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
    turned = dataclasses.replace(sink, x=logits)
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
    scale, bias, siglip = finding["scale"], finding["bias"] or 0.0, objective("siglip:t=host,b=host")
    x = logits.detach().double()
    value, expected = differentiate(lambda y: siglip.from_logits(y, positives, scale=scale, bias=bias), x)
    finding["gradient_difference"], _ = fit(total.detach().double() / raw, expected)
    finding["value_difference"] = nearest(value, map(float, watch.scalars), len(logits))
    tolerance = tolerance_of(logits)
    finding["ours"] = finding["gradient_difference"] < tolerance and finding["value_difference"] < tolerance
    if not finding["ours"]:
        return finding
    finding |= {"form": "siglip", "positives": layout(positives) or "the entries of a mask"}
    if finding["positives"] == "the diagonal" and sink.place.call.partition("(")[0].endswith("logsigmoid"):
        finding["columns"] = "diagonal"
    finding["replace"] = replace = function_of(watch, sink, root, finding, [spec])
    if replace is not None:
        replace["form"] = "siglip"
    return finding
