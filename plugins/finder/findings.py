"""Judge a watched step: which contrastive losses its ``backward`` starts from, as plain data.

Nothing is concluded from names: scales are measured by autograd (how logits move with similarities), positives are the
labels or the gradient's, and every conclusion is computed with our objective and compared with the script's own value
and gradient on the same tensors.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations

import torch
from torch import Tensor, nn

from counterpoint.base import objective
from counterpoint.batch.ready_made import MASKED, columns_of

from ..host import world_size
from .exponentials import RULES, by_product, judge_exponentials
from .functions import cut, function_of, gradients, nearest, relative
from .measure import measure, measure_bias
from .products import Product
from .recognise import FEWEST, UNDERFLOW, at_scale, columns, differentiate, digits, fit, layout, targets_of
from .records import TRAINED, Finding
from .told import tell
from .watch import Sink, Watch, are_labeled

_BY_CALL = ("cross entropy", "nll_loss", "log_softmax")  # judged by the gradient that they bring to their logits
_DEFAULTS = {"ignore_index": -100, "reduction": "mean", "label_smoothing": 0.0}


def judge(watch: Watch, root: Tensor) -> list[Finding]:
    """Return the contrastive losses that ``root`` is computed from."""
    labeled = [sink for sink in watch.sinks if sink.labels is not None]
    # a sink with the logits of a judged cross entropy, or on the way to them, is the same loss
    judged, nodes = {id(sink.x) for sink in labeled}, {node for sink in labeled for node in sink.walk.nodes}
    others = [s for s in watch.sinks if s.labels is None and id(s.x) not in judged]
    others = [s for s in others if s.edge is None or s.edge.node not in nodes]
    rest = [sink for sink in others if sink.kind != "binary logits"]
    every: list[Finding | None] = []
    for sink in [*labeled, *others]:
        with _noting(watch, sink):
            if sink.labels is not None:
                every.append(_cross_entropy(watch, sink, root))
            elif sink.kind == "binary logits":
                every.append(_binary(watch, sink, root, _base(sink, sink.walk.products)))
            elif sink is rest[0]:
                every += judge_exponentials(watch, rest, root, _base)
    found = [finding for finding in every if finding is not None]
    _pair_directions(found)
    with cut(sink.edge for sink in (*labeled, *others) if sink.edge is not None):
        places = [[finding["_sink"].x, *(product.edge for product in finding["_products"])] for finding in found]
        rests = [gradients(root, each) for each in places]
    for finding, (left, *before) in zip([*found], rests, strict=True):  # other terms would stay as they are
        if finding["kind"] in _BY_CALL and any(g is not None and bool(g.any()) for g in before):
            finding["beside"] = True
        if finding["ours"] and finding["kind"] in _BY_CALL and left is not None and bool(left.nan_to_num().any()):
            term: Finding = {"kind": f"another term, beside the {finding['kind']}", "form": None, "ours": False}
            found.append(_base(finding["_sink"], finding["_products"]) | term)
    for finding in found:
        sink = finding["_sink"]
        with _noting(watch, sink):
            tell(sink, finding)
            soft = [edge for name, edge in sink.soft_edges.items() if name in finding.get("targets", ["labels"])]
            if soft and any(g is not None and bool(g.any()) for g in gradients(root, soft)):
                finding["doubts"].append(TRAINED)
    return [{k: v for k, v in finding.items() if k[0] != "_"} for finding in found]  # type: ignore[misc]


@contextmanager
def _noting(watch: Watch, sink: Sink) -> Iterator[None]:
    """Note an error of one sink, which hides no other."""
    try:
        yield
    except Exception as error:
        watch.errors.append(f"{sink.kind} at {sink.place.short}: {type(error).__name__}: {str(error).splitlines()[0]}")


def _base(sink: Sink, products: Sequence[Product]) -> Finding:
    return vars(sink.place) | {  # type: ignore[return-value]
        "kind": sink.kind,
        "site": sink.place.short,
        "logits": list(sink.x.shape),
        "products": [
            {"site": p.place.short, "call": p.place.call, "a": list(p.a.shape), "b": list(p.b.shape)}
            for p in {p.place: p for p in products}.values()
        ],
        "processes": world_size(),
        "told": {},
        "doubts": [],
        "_sink": sink,
        "_products": products,
    }


def _binary(watch: Watch, sink: Sink, root: Tensor, finding: Finding) -> Finding | None:
    """Complete the finding of binary logits, SigLIP's loss; None if the loss does not depend on them."""
    if gradients(root, [sink.x])[0] is None:
        return None
    finding |= {"form": "binary", "ours": False, "pairs": all(p.kind == "rows" for p in sink.walk.products)}
    finding["pairs"] &= not are_labeled(sink.x, sink.walk.products)
    products = [p for p in sink.walk.products if not watch.is_head(p)]
    if len(products) != 1 or products[0].kind != "matrix" or products[0].distance:
        return finding
    (product,) = products
    (total,), (slope,) = gradients(root, [product.edge]), gradients(sink.x.sum(), [product.edge])
    if total is None or slope is None or total.shape != sink.x.shape or not bool((slope != 0).all()):
        return finding
    # labels of 1 and -1 are factors of the logits
    logits = sink.x * torch.sign(slope)
    turned = replace(sink, x=logits)
    measured: Finding = {"doubts": []}
    raw = measure(watch, turned, products, measured)
    if raw is None or not raw > 0:
        return finding
    measure_bias(turned, product, raw, logits, measured)
    x, gradient = (y.detach().double().flatten(0, -2) for y in (logits, total))  # products may be a batch of one
    positives = gradient < 0
    if measured["doubts"] or measured["bias"] is None or x.shape[1] < 2 or not bool(positives.any(1).all()):
        return finding
    finding |= measured
    scale, bias, siglip = finding["scale"], finding["bias"] or 0.0, objective("siglip:t=host,b=host")
    value, expected = differentiate(lambda y: siglip.from_logits(y, positives, scale=scale, bias=bias), x)
    finding["gradient_difference"], _ = fit(gradient / raw, expected)
    finding["value_difference"] = nearest(value, map(float, watch.scalars), len(x))
    tolerance = sink.tolerance
    finding["ours"] = finding["gradient_difference"] < tolerance and finding["value_difference"] < tolerance
    if not finding["ours"]:
        return finding
    finding |= {"form": "siglip", "positives": layout(positives) or "the entries of a mask", "_positives": positives}
    if finding["positives"] == "the diagonal" and sink.place.call.partition("(")[0].endswith("logsigmoid"):
        finding["columns"] = "diagonal"
    finding["replace"] = call = function_of(watch, sink, root, finding, [f"siglip:b={measured['bias']:.6g}"])
    if call is not None:
        call["form"] = "siglip"
    return finding


def _cross_entropy(watch: Watch, sink: Sink, root: Tensor) -> Finding | None:
    products = [p for p in sink.walk.products if not watch.is_head(p)]
    (g,) = gradients(root, [sink.x])
    if g is None or not bool((g != 0).any()):
        return None  # a metric, or a loss that is not trained with
    finding = _base(sink, products)
    raw = measure(watch, sink, products, finding)
    if raw is None or sink.labels is None:
        return None
    options = {k: v for k, v in sink.options.items() if v is not None and v != _DEFAULTS.get(k)}
    x, labels = sink.x.detach().double(), sink.labels.detach()
    if x.dim() > 2:
        x = x.movedim(1, -1).flatten(0, -2)
        labels = labels.movedim(1, -1).flatten(0, -2) if labels.is_floating_point() else labels.flatten()
    finding |= {"ours": False, "form": "infonce", "in_denominator": True, "reduction": options.get("reduction", "mean")}
    finding |= {"site_has_labels": True, "masked": float((x <= MASKED).double().mean()), "_logits": x}
    ignore = int(options.get("ignore_index", -100))
    targets = targets_of(labels, x, options.pop("label_smoothing", 0.0), ignore)
    if labels.is_floating_point():
        labels = labels > 0 if targets is None else columns_of(targets, ignore)
    finding["_positives"] = labels if labels.dtype == torch.bool else labels.masked_fill(labels == ignore, -100)
    if labels.dtype == torch.bool:
        finding |= {"form": "supcon", "positives": "the entries with a target, which is the same in a row"}
    else:
        rows = labels != ignore
        rule = columns(labels, rows, x.shape[1])
        x, labels, targets = x[rows], labels[rows], None if targets is None else targets[rows].double()
        finding["ignored"] = len(rows) - len(x)
        finding["positives"] = rule or "the columns that the labels name"
        if not rule and len(labels) > 1:
            finding["doubts"].append("labels follow no rule: columns may be classes rather than samples")
    if "weight" in options:
        finding["doubts"].append("weight= counts anchors by their column, which no objective does: leave it out")
        return {**finding, "form": "cross entropy with class weights"}
    if targets is not None and bool((targets.amax(1) < targets.sum(1)).any()):
        finding["positives"] = f"soft targets, the largest at {finding['positives']}"
    _compare_cross_entropy(finding, sink, x, labels, targets)
    _find_margin(finding, sink)
    way = RULES.get(str(finding["positives"])) if finding["shifted"] else None
    if way and products[0].values().shape == sink.x.shape:
        finding |= by_product(watch, finding, products, raw, way)
    finding["replace"] = function_of(watch, sink, root, finding, [finding["form"] or ""])
    return finding


def _compare_cross_entropy(finding: Finding, sink: Sink, x: Tensor, labels: Tensor, soft: Tensor | None) -> None:
    """Compare value and gradient with ours; labels are columns, or booleans where a row has several positives."""
    scale = float(finding["scale"])
    targets = labels / labels.sum(1, keepdim=True) if labels.dtype == torch.bool else labels if soft is None else soft
    targets = targets.to(x.dtype if targets.is_floating_point() else torch.long)
    reduction = finding["reduction"]
    _, wanted = differentiate(lambda y: nn.functional.cross_entropy(y, targets, reduction=reduction).sum(), x)
    loss_fn = at_scale(finding["form"] or "", scale)
    try:
        value, got = differentiate(lambda y: loss_fn.from_logits(y, labels, scale=scale, targets=soft, empty="zero"), x)
    except ValueError as error:
        finding["doubts"].append(f"our objective refuses these logits: {error}")
        return
    times = 1 if finding["reduction"] == "mean" else len(x)
    finding["value_difference"] = relative(value * times, float(sink.output.detach().double().sum()))
    finding["gradient_difference"] = float((got * times - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30))
    share = max(digits(value), FEWEST)
    near = share * finding["value_difference"] < sink.tolerance
    finding["ours"] = near and share * finding["gradient_difference"] < 1e-3


def _find_margin(finding: Finding, sink: Sink) -> None:
    """Doubt logits that are more than products which were scaled, moved, masked and shifted by row.

    Such logits are linear in the products: what the products' part of the logits leaves is the same in a row.
    """
    x = sink.x.detach()
    linear = None if finding["scores"] else _linear_part(sink, finding["_products"])
    if linear is None:
        return
    masked = x <= (x.amax(-1 if x.dim() < 3 else 1, keepdim=True) - UNDERFLOW).clamp(min=MASKED)
    rest = (x - linear).double().masked_fill(masked | (linear == 0), torch.nan)  # zero: of embeddings without gradient
    rest = rest.movedim(1, -1) if rest.dim() > 2 else rest
    most = float((rest - rest.nanmedian(-1, keepdim=True).values).nan_to_num().abs().max())
    if most > 3 * sink.tolerance * max(1.0, float(x[x > MASKED].abs().max())):
        finding["doubts"].append("something other than a mask was added to single logits: a margin, or a weight")


def _linear_part(sink: Sink, products: Sequence[Product]) -> Tensor | None:
    """The derivative of the logits in the direction of the products; None if it has none in the graph."""
    u = torch.zeros_like(sink.x, requires_grad=True)
    edges = [product.edge for product in products]
    try:
        with torch.enable_grad():  # twice backward is once forward
            back = torch.autograd.grad(sink.x, edges, u, create_graph=True, allow_unused=True)
            both = zip(back, products, strict=True)
            pairs = [(g, p.again(p.a.detach(), p.b.detach())) for g, p in both if g is not None]
            found = torch.autograd.grad([g for g, _ in pairs], u, [s.to(g.dtype) for g, s in pairs], allow_unused=True)
    except RuntimeError:
        return None
    return found[0]


def _pair_directions(found: list[Finding]) -> None:
    """Say of which loss another one is the other direction: the transposed logits."""
    for one, other in combinations(found, 2):
        x, y = one.get("_logits"), other.get("_logits")
        if x is not None and y is not None and x.shape == y.mT.shape and torch.allclose(x, y.mT, rtol=1e-3, atol=1e-4):
            one["other_direction"], other["other_direction"] = other["site"], one["site"]
