"""Judge exponentials, log-sum-exps and softmaxes by the gradient that reaches the products they are made of."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import FrameType

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..paths import at_path
from .frames import function_name
from .functions import fitted, function_of, gradients, nearest
from .measure import measure
from .products import Product, as_rows
from .recognise import SEVERAL, SINGLE, Form, explaining, layout, of_scores, recognise
from .records import Finding
from .watch import Sink, Watch

SUMS = ("logsumexp", "log_softmax", "exponentials", "logarithm of a softmax")
RULES = {
    "the diagonal": "diagonal",
    "column 0": "0",
    "the row half a batch further": "half",
    "the neighbour in the batch": "neighbor",
}
"""``--positives`` of ``counterpoint inject logits``, by the words for them."""
OTHER_VIEW = "the other view of a sample"  # where a function tells it, wherever that is
Begin = Callable[[Sink, Sequence[Product]], Finding]


@dataclass(eq=False)
class _Unit:
    """Similarities as a matrix, with the gradient of the script's loss and the scale of its logits."""

    product: Product
    s: Tensor
    g: Tensor
    scale: float
    sink: Sink
    single: bool = False
    logits: bool = False  # those of the sink, rather than a product

    @classmethod
    def of_product(cls, product: Product, gradient: Tensor, scale: float, sink: Sink) -> _Unit:
        s, g = product.values() / product.factor, gradient.detach().double() * product.factor
        single = product.kind == "rows"
        s, g = (x.reshape(-1, 1) if single else _matrix(x) for x in (s, g))
        return cls(product, s, g, scale, sink, single)

    @classmethod
    def of_logits(cls, sink: Sink, product: Product, gradient: Tensor, scale: float) -> _Unit:
        s, g = _matrix(sink.x.detach().double()) / scale, _matrix(gradient.double()) * scale
        return cls(product, s, g, scale, sink, logits=True)


def _matrix(x: Tensor) -> Tensor:
    if x.dim() == 3 and 1 in x.shape:
        return x.squeeze(x.shape.index(1))
    return x.reshape(-1, x.shape[-1])


def judge_exponentials(watch: Watch, sinks: list[Sink], root: Tensor, begin: Begin) -> Iterator[Finding]:
    """Return the findings of sinks without labels; ``begin`` returns the beginning of one, of a sink and its products.

    Logits that are a loss by themselves come first, whatever they are computed from; then what several products make.
    """
    scalars = [*map(float, watch.scalars)]
    units: dict[int, _Unit] = {}
    done: set[int] = set()
    rest: list[tuple[Sink, list[Product]]] = []
    for sink in sinks:
        products = [product for product in sink.walk.products if not watch.is_head(product)]
        # of log-sum-exp whatever its logits are used for, else by way of the call
        by = [sink.x] if sink.kind == "logsumexp" or sink.edge is None else [sink.edge]
        (gradient,) = outer = gradients(root, by)
        if gradient is not None and by[0] is sink.edge:
            (gradient,) = gradients(by, [sink.x], outer)
        if gradient is None or not bool((gradient != 0).any()):
            continue  # of a metric, which may have been changed in place since
        beginning = begin(sink, products)
        if sink.keys != -1:
            x, gradient = (each.movedim(sink.keys, -1) for each in (sink.x, gradient))
            sink = replace(sink, x=x, walk=watch.walk(x, {"Tanh"}), alike={})
        finding: Finding = {"doubts": []}
        raw = measure(watch, sink, products, finding)
        if raw is None:
            continue
        if finding["learned"] and sink.kind == "exponentials":  # whatever its logits are used for, as they have it
            gradient = gradients(root, [sink.x])[0]
            assert gradient is not None
        if finding["scores"] or not finding["doubts"]:
            unit = _Unit.of_logits(sink, products[0], gradient, raw)
            form = _recognise([unit], scalars) if sink.kind in SUMS and "exp_(" not in sink.place.call else None
            found = explaining(sink.x.detach().double(), gradient.double(), sink.alike, sink.tolerance)
            name, (targets, error) = next(iter(found.items()), ("", (torch.zeros(()), 0.0)))
            are_soft = bool(((targets != 0) & (targets != 1)).any())
            if form is not None or found:
                done |= {id(product) for product in products}
                if found and (form is None or are_soft):  # targets that ramp in are almost ones and zeros
                    form = _of_targets(sink, targets, error)
                finding = _judged(watch, [unit], form, root, beginning) | {"targets": [*found]}
                yield finding | ({"columns": name, "positives": f"soft targets {name}"} if are_soft else {})
                continue
        rest.append((sink, products))
    for sink, products in rest:
        for product in products:
            if id(product) in done:  # the products of a whole loss have another term
                yield begin(sink, products) | {"form": None, "ours": False}
                break
            (g,) = gradients(root, [product.edge])
            finding = {"doubts": []}
            scale = None if id(product) in units else measure(watch, sink, [product], finding)
            if g is not None and scale is not None and not finding["scores"] and bool((g != 0).any()):
                units[id(product)] = _Unit.of_product(product, g, scale * product.factor, sink)
    todo, covered = list(units.values()), list[FrameType]()
    singles = [*watch.pairs()] if todo else []
    alone = [(p, g) for p in singles for g in gradients(root, [p.edge]) if g is not None and bool((g != 0).any())]
    for group in [*_groups(todo), *([u] for u in todo)]:
        if not all(unit in todo for unit in group):
            continue
        group, form = _completed(group, alone, scalars)
        if form is None and len(group) > 1:
            continue
        todo = [unit for unit in todo if unit not in group]
        finding = _judged(watch, group, form, root, begin(group[0].sink, [unit.product for unit in group]))
        if replaced := finding["replace"]:  # the function's other products are the same loss
            name = replaced["function"]
            frames = [f for s in watch.sinks for f, _ in s.frames if function_name(f.f_code) == name]
            covered += frames
            todo = [u for u in todo if form is not None or not any(f in frames for f, _ in u.sink.frames)]
        yield finding
    seen = done | units.keys()
    for sink, products in rest:  # of scores, in no form
        if not any(id(p) in seen for p in products) and not any(f in covered for f, _ in sink.frames):
            yield begin(sink, products) | {"form": None, "ours": False}


def _of_targets(sink: Sink, targets: Tensor, error: float) -> Form:
    """Return the form of cross entropy with soft targets, the largest of which are the positives."""
    x, soft = _matrix(sink.x.detach().double()), _matrix(targets)
    positives = torch.zeros_like(soft, dtype=torch.bool).scatter(1, soft.argmax(1, keepdim=True), True)
    value = float(-(x.log_softmax(1) * soft).sum(1).mean())
    return Form("infonce", "rows", positives, torch.ones_like(positives), value, error, [])


def _completed(
    group: list[_Unit], alone: Sequence[tuple[Product, Tensor]], scalars: Sequence[float]
) -> tuple[list[_Unit], Form | None]:
    """Return a group and its form, with the similarities ``alone`` of the same anchors if it has a form with these."""
    first = group[0]
    for product, g in alone:
        cosine = product.cosine or first.product.cosine
        if any(len(x) == len(first.s) and _same(x, first.product.a, cosine) for x in (product.a, product.b)):
            whole = [*group, _Unit.of_product(product, g, first.scale, first.sink)]
            if (form := _recognise(whole, scalars)) is not None:
                return whole, form
    return group, _recognise(group, scalars)


def _groups(units: list[_Unit]) -> Iterator[list[_Unit]]:
    """Products with the same anchors, those of most products first; positives may be taken for several views."""
    groups: list[list[_Unit]] = []
    for unit in sorted(units, key=lambda unit: unit.single):
        for group in groups:
            n, first = len(unit.s), group[0].product.a.detach()
            fits = n == len(first) or (unit.single and first.dim() == 2 and len(first) % n == 0)
            sides = (unit.product.a, unit.product.b)[: 1 + unit.single]  # pairs have no first side
            if fits and any(_same(x, first[:n], unit.product.cosine or group[0].product.cosine) for x in sides):
                group.append(unit)
                break
        else:
            groups.append([unit])
    parts: dict[int, list[_Unit]] = {}  # two losses may have the same anchors
    for group in groups:
        for unit in group:
            frame = next((id(f) for f, _ in unit.sink.frames if "<" not in f.f_code.co_name), 0)
            parts.setdefault(frame, []).append(unit)
    return iter(sorted((g for g in (*groups, *parts.values()) if len(g) > 1), key=len, reverse=True))


def _same(a: Tensor, b: Tensor, cosine: bool = False) -> bool:
    a, b = (normalize(x.detach(), dim=-1) if cosine else x.detach() for x in (a, b))
    return a.numel() == b.numel() and torch.allclose(a.flatten().double(), b.flatten().double(), rtol=1e-4, atol=1e-6)


def _recognise(group: list[_Unit], scalars: Sequence[float]) -> Form | None:
    if max(u.scale for u in group) - min(u.scale for u in group) > 1e-3 * abs(group[0].scale):
        return None
    matrices, singles = [u for u in group if not u.single], [u for u in group if u.single]
    parts = [(u.s, u.g) for u in matrices]
    apart = [(u.s, u.g) for u in singles]
    for i, matrix in enumerate(matrices):
        for unit in [each for each in singles if len(each.s) == len(matrix.s)]:
            gaps, columns_ = (matrix.s - unit.s).abs().min(1, keepdim=True)
            if bool((gaps <= 1e-4 * matrix.s.abs().max()).all()):  # the positive is in the matrix, too
                parts[i] = parts[i][0], parts[i][1].scatter_add(1, columns_, unit.g)
                singles.remove(unit)
    joined = [*((u.s, u.g) for u in singles), *parts]
    for each in (joined, [*apart, *((u.s, u.g) for u in matrices)])[: 1 + (len(singles) < len(apart))]:
        if len({len(s) for s, _ in each}) == 1:
            s, g = (torch.cat(columns_, 1) for columns_ in zip(*each, strict=True))
            if form := recognise(s, g, group[0].scale, group[0].sink.tolerance, scalars):
                return form
    if len(matrices) == len(apart) == 1 and len(matrices[0].s) % len(apart[0][0]) == 0:
        (pos, _), (s, g) = apart[0], (matrices[0].s, matrices[0].g)
        again = (s - pos.repeat(len(s) // len(pos), 1)).abs() <= 1e-4 * s.abs().max()
        are_keys = (again & (g != 0)).any(1)[(g != 0).any(1)].all()  # each positive is a key, too
        specs = [*SINGLE, *fitted(group[0].sink.frames[0][0])]
        form = of_scores(specs, apart[0], (s, g), group[0].scale, group[0].sink.tolerance)
        # with positives among the keys, InfoNCE has another form, which the script's function tells
        return None if form is None or (are_keys and form.name in SINGLE) else form
    return None


def _judged(watch: Watch, group: list[_Unit], form: Form | None, root: Tensor, finding: Finding) -> Finding:
    """Complete the finding of a group."""
    sink, products = group[0].sink, [unit.product for unit in group]
    finding |= {"form": None, "ours": False}
    rivals: list[str] = []
    fits = form.fits if form is not None else ()
    every = [product for product in sink.walk.products if not watch.is_head(product)]
    raw = measure(watch, sink, every if group[0].logits else products[:1], finding)
    if form is not None:
        entries = "one key of each row" if bool((form.positives.sum(1) == 1).all()) else "the entries of a mask"
        finding |= {
            "ours": True,
            "form": form.name,
            "way": form.way,
            "in_denominator": "denominator=negatives" not in form.name,
            "positives": layout(form.positives)
            or (entries if bool(form.positives.any()) else "those of another product"),
            "masked": float((~form.used).double().mean()),
            "self_similarity": len(products) == 1 and _same(products[0].a, products[0].b),
            "gradient_difference": form.error,
            "weighted": form.weighted,
        }
        # positives of a batched product are on each of its diagonals
        shape = sink.x.shape if group[0].logits else products[0].a.shape
        groups = math.prod(shape[:-2]) if group[0].logits or products[0].kind == "matrix" else 1
        batched = {"column 0": "0", f"the diagonal of each of {groups} parts": "diagonal"}
        rule = (batched if groups > 1 else RULES).get(str(finding["positives"]))
        width = sum(unit.s.shape[1] for unit in group if not unit.single)
        apart = not bool((form.positives.sum(1) > 1).any())  # no positive beside that of a product of its own
        if apart and any(unit.single for unit in group) and form.positives.shape[1] > width > 0:
            finding["positives"] = "the product at " + next(unit.product.place.short for unit in group if unit.single)
        if not rule or (form.way != "both" and finding["processes"] > 1):  # the diagonal is that of the first process
            rule = "gradient"
        if rule and form.error <= sink.tolerance and len(group) == 1 and not group[0].single:
            finding["_positives"] = form.positives
            if group[0].logits:
                finding["columns"] = rule
            if not group[0].logits or (finding["shifted"] and products[0].values().shape == sink.x.shape):
                finding |= by_product(watch, finding, products, raw or 1.0, rule)
        if apart and form.way == "rows" and not (finding["learned"] or form.weighted):
            finding |= _lines(group, finding["scale"] / (raw or 1.0))
        values = [float(x) / k for x in watch.scalars for k in (1, 2)[: 1 + (form.way == "both")]]  # sums of both ways
        near = {f.name: nearest(f.value, values, len(f.used)) for f in (form, *form.rivals)}
        closest = min(near, key=near.__getitem__)  # equal gradients, but another value: a sum instead of a mean
        if near[closest] < 0.1 * sink.tolerance:
            rivals = [f.name for f in (form, *form.rivals) if f.name != closest and near[f.name] <= 10 * near[closest]]
            finding |= {"form": closest, "value_difference": near[closest]}
            finding["in_denominator"] = "denominator=negatives" not in closest
        else:
            rivals = [rival.name for rival in form.rivals]
    specs = [finding["form"] or "", *rivals] if form else [*SINGLE, *SEVERAL]
    finding["replace"] = replace = function_of(watch, sink, root, finding, specs)
    if replace is not None:
        if form is None or rivals or len(form.used) == 1:  # a call of the function has more anchors
            finding["form"], rivals, fits = replace["form"], [], ()
            finding["gradient_difference"] = replace["gradient_difference"]
            finding["positives"] = OTHER_VIEW
        if "labels" in replace["as"]:
            finding["positives"] = f"the rows of the same {replace['as']['labels']}"
        finding |= {"ours": True, "in_denominator": "negatives" not in replace["form"]}
    if form is not None and form.error > sink.tolerance and not (replace and "epsilon" in replace["as"]):
        finding["doubts"].append("anchors do not weigh the same, as in log(p + epsilon)")
    return finding | {"rivals": rivals, "fits": [*fits, *rivals]}


def _is_known(finding: Finding, product: Product) -> bool:
    """Whether the variable of a learned scale has its name where the product is computed, too."""
    frame = product.frames[0]
    with suppress(ValueError):
        at_path(finding["scale_variable"] or "", ChainMap(frame.f_locals, frame.f_globals))
        return bool(finding["scale_variable"])
    return False


def by_product(watch: Watch, finding: Finding, products: Sequence[Product], raw: float, rule: str) -> Finding:
    """Return how the gradient of a product is replaced, where its scale is known before the logits are computed."""
    first = products[0]
    if first.distance is not None or first.kind != "matrix" or (finding["learned"] and not _is_known(finding, first)):
        return {}
    if any(p.place.short == first.place.short for side in (first.a, first.b) for p in watch.walk(side).products):
        return {}  # the line multiplies twice
    return {"product": first.place.short, "product_scales": [finding["scale"] / raw], "columns": rule}


def _lines(group: Sequence[_Unit], scale: float) -> Finding:
    """Return the line of a product and that of its positives, with their scales, if the group consists of these."""
    matrix, single = sorted(group, key=lambda unit: unit.single) if len(group) == 2 else (group[0], group[0])
    product, other = matrix.product, single.product
    apart = not matrix.single and single.single and as_rows(product.values()).dim() == 2
    if not apart or {product.distance, other.distance} != {None}:
        return {}
    line = other.place.line if other.place.file == product.place.file else other.place.short
    gaps, columns = (matrix.s - single.s.repeat(len(matrix.s) // len(single.s), 1)).abs().min(1)
    are_keys = bool((gaps <= 1e-4 * matrix.s.abs().max()).all())
    found: Finding = {"product": f"{product.place.short},{line}", "product_scales": [scale, scale * other.factor]}
    return found | {"_positives": columns if are_keys else None}
