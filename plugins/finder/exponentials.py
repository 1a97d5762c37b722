"""Judge exponentials, log-sum-exps and softmaxes by the gradient that reaches the products they are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from counterpoint.batch.ready_made import MASKED

from .frames import function_name
from .functions import Finding, function_of, gradients, nearest, tolerance_of
from .measure import measure
from .products import Product
from .recognise import SEVERAL, SINGLE, Form, layout, recognise
from .watch import Sink, Watch

SUMS = ("logsumexp", "log_softmax", "exponentials")
RULES = {
    "the diagonal": "diagonal",
    "column 0": "0",
    "the row half a batch further": "half",
    "the neighbour in the batch": "neighbor",
}
"""``--positives`` of ``counterpoint inject logits``, by the words for them."""
Begin = Callable[[Sink, Sequence[Product]], Finding]


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


def judge_exponentials(watch: Watch, sinks: list[Sink], root: Tensor, begin: Begin) -> Iterator[Finding]:
    """Return the findings of sinks without labels.

    Args:
        watch, sinks, root: of the step.
        begin: returns the beginning of a finding, of a sink and its products.
    """
    units: dict[int, _Unit] = {}
    for sink in sinks:
        for product in sink.walk.products:
            if id(product) in units or watch.is_head(product):
                continue
            (g,) = gradients(root, [product.edge])
            try:
                scale = measure(watch, sink, [product], {"doubts": []})
            except RuntimeError as error:
                watch.errors.append(f"{sink.kind} at {sink.place.short}: {error}")
                continue
            if g is not None and scale is not None and bool((g != 0).any()):
                units[id(product)] = _Unit(product, g, scale, sink)
    todo = list(units.values())
    alone = list(_alone(watch, root)) if todo else []
    for group in [*_groups(todo), *([u] for u in todo)]:
        if not all(unit in todo for unit in group):
            continue
        group, form = _completed(group, alone)
        if form is None and len(group) > 1:
            continue
        todo = [unit for unit in todo if unit not in group]
        finding = _judged(watch, group, form, root, begin(group[0].sink, [unit.product for unit in group]))
        if form is None and finding["ours"]:  # the function's other products are the same loss
            frames = [
                f
                for s in watch.sinks
                for f, *_ in s.frames
                if function_name(f.f_code) == finding["replace"]["function"]
            ]
            todo = [u for u in todo if not any(f in frames for f, *_ in u.sink.frames)]
        yield finding


def _alone(watch: Watch, root: Tensor) -> Iterator[tuple[Product, Tensor]]:
    """Similarities of pairs that the loss takes without an exponential, with its gradient."""
    for product in watch.pairs():
        (g,) = gradients(root, [product.edge])
        if g is not None and bool((g != 0).any()):
            yield product, g


def _completed(group: list[_Unit], alone: Sequence[tuple[Product, Tensor]]) -> tuple[list[_Unit], Form | None]:
    """Return a group and its form, with the similarities ``alone`` of the same anchors if it has a form with these."""
    first = group[0]
    for product, g in alone:
        if any(len(x) == len(first.s) and _same(x.detach(), first.anchors) for x in (product.a, product.b)):
            whole = [*group, _Unit(product, g, first.scale, first.sink)]
            if (form := _recognise(whole)) is not None:
                return whole, form
    return group, _recognise(group)


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
    matrices = [u for u in group if not u.single]
    parts = [(u.s, u.g) for u in matrices]
    for unit in (u for u in group if u.single):
        for i, matrix in enumerate(matrices):
            columns_ = _columns_of(unit, matrix)
            if columns_ is not None:  # the positive was computed twice: once alone, once in the matrix
                s, g = parts[i]
                parts[i] = s, g.scatter_add(1, columns_, unit.g)
                break
        else:
            parts.insert(0, (unit.s, unit.g))
    if len({len(s) for s, _ in parts}) != 1:
        return None
    s, g = (torch.cat(columns_, 1) for columns_ in zip(*parts, strict=True))
    return recognise(s, g, group[0].scale, tolerance_of(group[0].sink.x))


def _columns_of(unit: _Unit, matrix: _Unit) -> Tensor | None:
    """Return the columns ``(anchors, 1)`` of a matrix that hold the similarities of a unit's pairs, or None."""
    if len(unit.s) != len(matrix.s):
        return None
    diagonal = torch.arange(len(unit.s), device=unit.s.device).unsqueeze(1)
    if matrix.s.shape[0] == matrix.s.shape[1] and _same(matrix.s.diagonal(), unit.s):
        return diagonal
    keys, pairs = matrix.product.b.detach(), (unit.product.a.detach(), unit.product.b.detach())
    if keys.dim() != 2 or len(keys) != matrix.s.shape[1] or pairs[0].shape != (len(unit.s), keys.shape[1]):
        return None
    other = pairs[0] if _same(pairs[1], matrix.anchors) else pairs[1]
    unit_keys, unit_other = (nn.functional.normalize(x.double(), dim=1) for x in (keys, other))
    nearest_ = torch.cdist(unit_other, unit_keys).argmin(1, keepdim=True)
    same = _same(unit_other, unit_keys[nearest_[:, 0]]) and _same(matrix.s.gather(1, nearest_), unit.s)
    return nearest_ if same else None


def _judged(watch: Watch, group: list[_Unit], form: Form | None, root: Tensor, finding: Finding) -> Finding:
    """Complete the finding of a group."""
    sink, products = group[0].sink, [unit.product for unit in group]
    finding |= {"form": None, "ours": False}
    rivals: list[str] = []
    raw = measure(watch, sink, products[:1], finding)
    if form is not None:
        self_similarity = len(products) == 1 and _same(products[0].a.detach(), products[0].b.detach())
        finding |= {
            "ours": True,
            "form": form.name,
            "way": form.way,
            "in_denominator": "denominator=negatives" not in form.name,
            "positives": layout(form.positives) or _entries(form.positives),
            "positives_per_anchor": [int(form.positives.sum(1).min()), int(form.positives.sum(1).max())],
            "masked": float((~form.used).double().mean()),
            "self_similarity": self_similarity,
            "gradient_difference": form.error,
            "weight": form.weight,
        }
        rule = _rule(str(finding["positives"]), products[0])
        if rule and form.error <= tolerance_of(sink.x) and len(group) == 1 and not group[0].single:
            if _are_logits(sink, group):
                finding["columns"] = rule
            elif products[0].lengths is None and products[0].kind == "matrix" and not finding["learned"]:
                finding["product"] = products[0].place.short
                finding["product_scale"], finding["columns"] = finding["scale"] / (raw or 1.0), rule
        finding["pairs"], finding["similarities"] = _similarities(group)
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
            about = "something like log(p + epsilon)" if not form.epsilon else f"log(p + {form.epsilon:.1g})"
            finding["doubts"].append(f"anchors do not weigh the same: {about}")
            finding["epsilon"] = form.epsilon
    specs = [finding["form"], *rivals] if form else [*SINGLE, *SEVERAL]
    finding["replace"] = replace = function_of(watch, sink, root, finding, specs, form)
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


def _rule(positives: str, product: Product) -> str | None:
    """Return the ``--positives`` that these words say; those of a batched product are on each of its diagonals."""
    groups = math.prod(product.a.shape[:-2]) if product.kind == "matrix" else 1
    if groups > 1 and positives == f"the diagonal of each of {groups} parts":
        return "diagonal"
    return RULES.get(positives)


def _entries(positives: Tensor) -> str:
    return "one key of each row" if bool((positives.sum(1) == 1).all()) else "the entries of a mask"


def _similarities(group: Sequence[_Unit]) -> tuple[list[str], list[str]]:
    """The calls that compute the similarities of a group, of pairs and of matrices, each similarity once."""
    matrices = [unit for unit in group if not unit.single]
    pairs = [u for u in group if u.single and not any(_columns_of(u, m) is not None for m in matrices)]
    calls = ([unit.product.place.call for unit in units] for units in (pairs, matrices))
    first, others = (list(dict.fromkeys(each)) for each in calls)
    return first, others


def _are_logits(sink: Sink, group: Sequence[_Unit]) -> bool:
    """Whether exponentials, not in place, or their sum are of a single product, scaled and masked."""
    x, s = sink.x.detach().double(), group[0].s * group[0].scale
    x = x.flatten(0, -2) if x.dim() > 2 else x
    if sink.kind not in SUMS or x.shape != s.shape or "exp_(" in sink.place.call:
        return False
    kept = x > MASKED
    return torch.allclose(x[kept], s[kept], rtol=tolerance_of(sink.x), atol=tolerance_of(sink.x))
