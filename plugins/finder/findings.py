"""Judge a watched step: which contrastive losses its ``backward`` starts from, as plain data.

Nothing is concluded from names: scales are measured by autograd (how logits move with similarities), positives are the
labels or the gradient's, and every conclusion is computed with our objective and compared with the script's own value
and gradient on the same tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, distributed, nn

from counterpoint.batch.ready_made import MASKED
from counterpoint.objectives.infonce import InfoNCE

from .binary import judge_binary
from .frames import function_name
from .functions import Finding, function_of, gradients, nearest, relative, tolerance_of
from .measure import measure
from .products import Product
from .recognise import SEVERAL, SINGLE, Form, columns, layout, recognise
from .watch import Sink, Watch

LOG_SUMS = ("logsumexp", "log_softmax")
_DEFAULTS = {"ignore_index": -100, "reduction": "mean", "label_smoothing": 0.0}


def judge(watch: Watch, root: Tensor) -> list[Finding]:
    """Return the contrastive losses that ``root`` is computed from."""
    # what takes its logits from a cross entropy that was judged is the same loss
    labeled = [sink for sink in watch.sinks if sink.labels is not None]
    others = [s for s in watch.sinks if s.labels is None and not any(s.x is other.x for other in labeled)]
    found = [f for sink in labeled if (f := _cross_entropy(watch, sink, root))]
    binary = [sink for sink in others if sink.kind == "binary logits"]
    found += [f for sink in binary if (f := judge_binary(watch, sink, root, _base(sink, sink.walk.products)))]
    found += list(_exponentials(watch, [sink for sink in others if sink.kind != "binary logits"], root))
    _pair_directions(found)
    for finding in found:
        for name in ("_sink", "_logits", "_products"):
            finding.pop(name, None)
    return found


def _base(sink: Sink, products: Sequence[Product]) -> Finding:
    first = sink.place
    return {
        "kind": sink.kind,
        "site": first.short,
        "file": first.file,
        "line": first.line,
        "function": first.function,
        "call": first.call,
        "logits": list(sink.x.shape),
        "products": [
            {"site": p.place.short, "call": p.place.call, "a": list(p.a.shape), "b": list(p.b.shape)} for p in products
        ],
        "processes": distributed.get_world_size() if _distributed() else 1,
        "doubts": [],
        "_sink": sink,
        "_products": products,
    }


def _distributed() -> bool:
    return distributed.is_available() and distributed.is_initialized()


# ---- cross entropy ---------------------------------------------------------------------------------


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
        x, labels = x.movedim(1, -1).flatten(0, -2), labels.flatten()
    finding |= {"ours": False, "form": "infonce", "in_denominator": True, "reduction": options.get("reduction", "mean")}
    finding["site_has_labels"] = sink.replaceable and finding["reduction"] != "none"
    finding["options"] = {k: v for k, v in options.items() if isinstance(v, (str, int, float))}
    finding["masked"] = float((x <= MASKED).double().mean())
    finding["_logits"] = x
    if labels.is_floating_point():
        if not bool(((labels == 0) | (labels == 1)).all() and (labels.sum(1) == 1).all()):
            return {**finding, "form": "soft targets", "positives": "soft targets"}
        labels = labels.argmax(1)
    ignore = int(options.get("ignore_index", -100))
    counted = labels[labels != ignore]
    finding["ignored"] = len(labels) - len(counted)
    finding["positives"] = columns(counted) or "the columns that the labels name"
    if not columns(counted):
        finding["doubts"].append(
            f"labels follow no rule ({len(counted.unique())} different ones in {len(counted)} rows): columns may be "
            "classes rather than samples"
        )
    if any(product.kind == "distance" for product in products):
        return {**finding, "form": "cross entropy of distances", "normalized": False}
    if "weight" in options or "label_smoothing" in options:
        return {
            **finding,
            "form": "cross entropy with " + ("class weights" if "weight" in options else "label smoothing"),
        }
    _compare_cross_entropy(finding, sink, x, labels, ignore, raw)
    finding["replace"] = function_of(watch, sink, root, finding, ["infonce"])
    return finding


def _compare_cross_entropy(finding: Finding, sink: Sink, x: Tensor, labels: Tensor, ignore: int, raw: float) -> None:
    """Compare value and gradient with ours, and say what the logits hold beside similarities."""
    scale = float(finding["scale"])
    x, labels = x[labels != ignore], labels[labels != ignore]
    y = x.clone().requires_grad_()
    with torch.enable_grad():
        theirs = nn.functional.cross_entropy(y, labels, ignore_index=ignore, reduction=finding["reduction"])
        (wanted,) = torch.autograd.grad(theirs.sum(), y)
    try:
        z = x.clone().requires_grad_()
        with torch.enable_grad():
            ours = InfoNCE(1 / scale).from_logits(z, labels, scale=scale, ignore_index=ignore)
            (got,) = torch.autograd.grad(ours, z)
    except ValueError as error:
        finding["doubts"].append(f"our objective refuses these logits: {error}")
        return
    times = 1 if finding["reduction"] == "mean" else len(labels)
    if sink.kind == "cross entropy":
        value = sink.output.detach().double().sum()
        finding["value_difference"] = relative(float(ours.detach()) * times, float(value))
    finding["gradient_difference"] = float((got * times - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30))
    finding["ours"] = finding["gradient_difference"] < 1e-3 and finding.get("value_difference", 0) < tolerance_of(
        sink.x
    )
    _find_margin(finding, sink, x, raw)


def _find_margin(finding: Finding, sink: Sink, x: Tensor, raw: float) -> None:
    """Doubt logits that are a single product, but neither masked nor scaled nor shifted by row only."""
    (product, *more) = finding["_products"]
    if more or sink.x.dim() != 2:
        return
    s = product.values()
    rests = []
    for matrix in (s, s.mT) if s.dim() == 2 else ():
        if matrix.shape == x.shape:
            rest = (x - matrix * raw).masked_fill(x <= MASKED, torch.nan)
            rests.append(float((rest - rest.nanmedian(1, keepdim=True).values).nan_to_num().abs().max()))
    if rests and min(rests) > 30 * tolerance_of(sink.x) * max(1.0, float(x[x > MASKED].abs().max())):
        finding["doubts"].append("something other than a mask was added to single logits: a margin, or a weight")


def _pair_directions(found: list[Finding]) -> None:
    """Say of which loss another one is the other direction: the transposed logits."""
    for i, one in enumerate(found):
        for other in found[:i]:
            x, y = one.get("_logits"), other.get("_logits")
            if (
                x is not None
                and y is not None
                and x.shape == y.mT.shape
                and torch.allclose(x, y.mT, rtol=1e-3, atol=1e-4)
            ):
                one["other_direction"], other["other_direction"] = other["site"], one["site"]


# ---- exponentials, log_softmax, logsumexp ----------------------------------------------------------


class _Unit:
    """A product as a matrix, with the gradient of the script's loss and the scale of its logits."""

    def __init__(self, product: Product, gradient: Tensor, scale: float, sink: Sink) -> None:
        self.product, self.scale, self.sink = product, scale, sink
        s, g = product.values(), gradient.detach().double()
        self.single = product.kind == "rows"
        g = g if product.lengths is None else g * product.lengths
        self.s, self.g = (x.reshape(-1, 1) if self.single else _matrix(x) for x in (s, g))

    @property
    def anchors(self) -> Tensor:
        return self.product.a.detach()


def _matrix(x: Tensor) -> Tensor:
    if x.dim() == 3 and 1 in x.shape:
        return x.squeeze(x.shape.index(1))
    return x.reshape(-1, x.shape[-1])


def _exponentials(watch: Watch, sinks: list[Sink], root: Tensor) -> Iterator[Finding]:
    units: dict[int, _Unit] = {}
    for sink in sinks:
        for product in sink.walk.products:
            if id(product) in units or watch.is_head(product):
                continue
            (g,) = gradients(root, [product.edge])
            scale = measure(watch, sink, [product], {"doubts": []})
            if g is not None and scale is not None and bool((g != 0).any()):
                units[id(product)] = _Unit(product, g, scale, sink)
    todo = list(units.values())
    for group in [*_groups(todo), *([u] for u in todo)]:
        if not all(unit in todo for unit in group):
            continue
        form = _recognise(group)
        if form is None and len(group) > 1:
            continue
        todo = [unit for unit in todo if unit not in group]
        finding = _exponential(watch, group, form, root)
        if form is None and finding["ours"]:  # the function's other products are the same loss
            frames = [
                f
                for s in watch.sinks
                for f, *_ in s.frames
                if function_name(f.f_code) == finding["replace"]["function"]
            ]
            todo = [u for u in todo if not any(f in frames for f, *_ in u.sink.frames)]
        yield finding


def _groups(units: list[_Unit]) -> Iterator[list[_Unit]]:
    """Products with the same anchors, those of most products first."""
    groups: list[list[_Unit]] = []
    for unit in units:
        for group in groups:
            if len(unit.s) == len(group[0].s) and _same(unit.anchors, group[0].anchors):
                group.append(unit)
                break
        else:
            groups.append([unit])
    return iter(sorted((g for g in groups if len(g) > 1), key=len, reverse=True))


def _same(a: Tensor, b: Tensor) -> bool:
    return a.numel() == b.numel() and torch.allclose(a.flatten().double(), b.flatten().double(), rtol=1e-4, atol=1e-6)


def _recognise(group: list[_Unit]) -> Form | None:
    if max(u.scale for u in group) - min(u.scale for u in group) > 1e-3 * abs(group[0].scale):
        return None
    parts = [(u.s, u.g) for u in group if not u.single]
    for unit in (u for u in group if u.single):
        on = [i for i, (s, _) in enumerate(parts) if s.shape[0] == s.shape[1] and _same(s.diagonal(), unit.s)]
        if on:  # the positive was computed twice: once alone, once in the matrix
            s, g = parts[on[0]]
            parts[on[0]] = s, g + torch.diag(unit.g[:, 0])
        else:
            parts.insert(0, (unit.s, unit.g))
    if len({len(s) for s, _ in parts}) != 1:
        return None
    s, g = (torch.cat(columns_, 1) for columns_ in zip(*parts, strict=True))
    return recognise(s, g, group[0].scale, tolerance_of(group[0].sink.x))


def _exponential(watch: Watch, group: list[_Unit], form: Form | None, root: Tensor) -> Finding:
    sink, products = group[0].sink, [unit.product for unit in group]
    finding = {**_base(sink, products), "form": None, "ours": False}
    rivals: list[str] = []
    measure(watch, sink, products[:1], finding)
    if form is not None:
        self_similarity = len(products) == 1 and _same(products[0].a.detach(), products[0].b.detach())
        finding |= {
            "ours": True,
            "form": form.name,
            "way": form.way,
            "in_denominator": "denominator=negatives" not in form.name,
            "positives": layout(form.positives) or "the entries of a mask",
            "positives_per_anchor": [int(form.positives.sum(1).min()), int(form.positives.sum(1).max())],
            "masked": float((~form.used).double().mean()),
            "self_similarity": self_similarity,
            "gradient_difference": form.error,
            "weight": form.weight,
        }
        if form.name == "infonce" and form.way == "rows" and _are_logits(sink, group):
            finding["columns"] = {"the diagonal": "diagonal", "column 0": "0"}.get(str(finding["positives"]))
        values = [float(v) for v, _ in watch.scalars]
        near = {f.name: nearest(f.value, values, len(f.used)) for f in (form, *form.rivals)}
        closest = min(near, key=near.__getitem__)  # equal gradients, but another value: a sum instead of a mean
        if near[closest] < 0.1 * tolerance_of(sink.x):
            rivals = [f.name for f in (form, *form.rivals) if f.name != closest and near[f.name] <= 10 * near[closest]]
            finding |= {"form": closest, "value_difference": near[closest]}
            finding["in_denominator"] = "denominator=negatives" not in closest
        else:
            rivals = [rival.name for rival in form.rivals]
        if form.error > tolerance_of(sink.x):
            finding["doubts"].append("anchors do not weigh the same: something like log(p + epsilon)")
    specs = [finding["form"], *rivals] if form else [*SINGLE, *SEVERAL]
    finding["replace"] = replace = function_of(watch, sink, root, finding, specs)
    if replace is not None:
        if form is None or rivals or len(form.used) == 1:  # a call of the function has more anchors
            finding["form"], rivals = replace["form"], []
            finding["gradient_difference"] = replace["gradient_difference"]
            finding["positives"] = "the other view of a sample"
        if "labels" in replace["as"]:
            finding["positives"] = f"the rows of the same {replace['as']['labels']}"
        finding |= {"ours": True, "in_denominator": "negatives" not in replace["form"]}
        if "value_difference" in replace:
            finding["value_difference"] = replace["value_difference"]
    if rivals:
        finding["doubts"].append(f"batch and precision do not tell it from {' or '.join(rivals)}")
    return finding


def _are_logits(sink: Sink, group: Sequence[_Unit]) -> bool:
    """Whether a log-sum-exp, or a log-softmax, takes a single product, scaled and masked."""
    x, s = sink.x.detach().double(), group[0].s * group[0].scale
    if sink.kind not in LOG_SUMS or len(group) > 1 or x.shape != s.shape:
        return False
    kept = x > MASKED
    return torch.allclose(x[kept], s[kept], rtol=tolerance_of(sink.x), atol=tolerance_of(sink.x))
