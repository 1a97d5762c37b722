"""Measure the factor of a script's similarities: how logits move with the product of embeddings, by autograd."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import Node

from counterpoint.batch.ready_made import MASKED

from .functions import gradients, relative
from .products import Product, name_of, number_of, tolerance_of
from .recognise import HALF, UNDERFLOW
from .records import Finding
from .watch import Sink, Watch, same_grad


def scale_of(watch: Watch, logits: Tensor, biased: bool = False) -> Finding | None:
    """Measure the scale of logits at a loss of the script; None if they are not a product of embeddings.

    With ``biased``, measure what was added to them, too.
    """
    with torch._C.DisableTorchFunction(), same_grad(watch.retained):
        walk = watch.walk(logits)
        products = [p for p in walk.products if not watch.is_head(p)]
        finding: Finding = {"doubts": []}
        sink = watch.sink("logits", logits, logits.detach(), walk)
        raw = measure(watch, sink, products, finding)
        if raw is not None and biased:
            measure_bias(sink, products[0], raw, logits, finding)
        return finding if raw is not None else None


def measure_bias(sink: Sink, product: Product, raw: float, logits: Tensor, finding: Finding) -> None:
    """Measure the bias that ``logits`` add to a product times ``raw``; None if it is not the same everywhere."""
    s, x = product.values(), logits.detach().double()
    finding |= {"bias": None, "bias_learned": [], "bias_variable": None, "shifted": False, "offset": None}
    rests = [x - raw * matrix for matrix in ((s, s.mT) if s.dim() > 1 else ()) if matrix.shape == x.shape]
    if not rests:
        finding["doubts"].append("entries were selected from the product")
        return
    rest = min(rests, key=lambda each: float(each.std()))
    bias = float(rest.median())
    if float((rest - bias).abs().max()) > 10 * sink.tolerance * max(1.0, float(x.abs().max())):
        finding["doubts"].append("what is added to the similarities is not one number")
        return
    finding["bias"] = 0.0 if abs(bias) < sink.tolerance * float(x.abs().max()) else bias
    _name_bias(sink, bias, logits, finding)


def _name_bias(sink: Sink, bias: float, logits: Tensor, finding: Finding) -> None:
    """Note whether what is added to logits is learned, and its name."""
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
    """Measure the scale of the logits in ``sink``, and say where it comes from; return it for the raw products.

    Logits that are made of several similarities each are ``scores``, which have no scale but one.
    """
    raw, total, kinds = list[float](), list[float](), set[str]()
    norms: list[float | None] = []
    factors = [x for x in sink.walk.scalars if gradients(sink.x.sum(), [x])[0] is not None and not _shifts(sink.x, x)]
    inner = [x for product in products for side in (product.a, product.b) for x in watch.walk(side).scalars]
    learned = {id(x): x for x in (*factors, *inner)}
    finding |= {"scores": False, "shifted": False, "uneven": False, "offset": None}
    finding |= {"learned": [], "scale_variable": None, "_tolerance": sink.tolerance}
    similarities: dict[tuple[int, int], float] = {}
    for product in products:
        factor, moved = _factor_of(sink.x, product, similarities)
        if factor is None:
            continue
        finding["shifted"] |= moved
        factor = _exact(factor, sink, product)
        finding["scores"] |= factor <= 0
        sides = [1.0, 1.0] if product.cosine else [_norm(watch, x) for x in (product.a, product.b)]
        kinds.add(product.distance or "")
        norms += [None] if product.distance else sides
        raw.append(factor / product.factor)
        total.append(factor)
        for side, x in () if product.distance else zip(sides, (product.a, product.b), strict=True):
            total[-1] *= side or _factor(x)
    if not total:
        return None
    shift = math.nan if finding["shifted"] else _added(sink.x, similarities, 3 * sink.tolerance)
    finding["uneven"] = math.isinf(shift)
    shift = 0.0 if finding["uneven"] else shift
    finding["shifted"] = shift != 0
    if shift == shift and shift:  # by one number
        _name_bias(sink, shift, sink.x, finding)
        low, top = (float(each) for each in sink.x.detach().amax(-1).aminmax())
        is_largest = abs(top) <= sink.tolerance * abs(shift)  # which the scale moves, and that of a batch, embeddings
        moves = finding["bias_learned"] or (is_largest and (learned or abs(low) > sink.tolerance * abs(shift)))
        finding["shifted"] = bool(moves) and finding["bias_variable"] is None
        finding["offset"] = None if finding["shifted"] else shift
    if finding["scores"]:
        finding |= {"normalized": False, "one_sided": False, "scale": 1.0}
        return 1.0
    finding |= {"normalized": all(norms), "scale": total[0], "one_sided": any(norms) and not all(norms)}
    finding["distance"] = " and ".join(sorted(kinds))
    if max(total) - min(total) > 1e-3 * abs(total[0]) or len(kinds) > 1:
        finding["doubts"].append(f"parts of the logits have different scales: {', '.join(f'{x:g}' for x in total)}")
    finding["learned"] = [sink.names.get(key) or "a learned number" for key in learned]
    candidates = sink.scale_names | {f"{name}.reciprocal": 1 / x for name, x in sink.scale_names.items()}
    for key, x in learned.items():
        if name := sink.names.get(key):
            value = x.detach()
            candidates |= {name: value, f"{name}.exp": value.exp()}
            candidates |= {f"{name}.reciprocal": 1 / value, f"{name}.exp.reciprocal": (-value).exp()}
    differ = {name: relative(float(x), total[0]) for name, x in candidates.items() if learned}
    name = min(differ, key=differ.__getitem__, default="")
    finding["scale_variable"] = name if differ.get(name, 1.0) < (HALF if sink.tolerance > HALF else 1e-4) else None
    return raw[0]


def _added(x: Tensor, similarities: Mapping[tuple[int, int], float], tolerance: float) -> float:
    """What logits are more than the scaled ``similarities`` at these rows and columns: NaN if it differs by row.

    Infinity if it differs within a row, as margins and log-probabilities do.
    """
    flat, rests = x.detach().double().reshape(-1, x.shape[-1]), dict[int, list[float]]()
    for (row, column), similarity in similarities.items():
        rests.setdefault(row, []).append(float(flat[row, column]) - similarity)
    near = tolerance * max([1.0, *map(abs, similarities.values())])
    rests = {row: [rest for rest in each if rest > max(each) - UNDERFLOW] for row, each in rests.items()}  # but masks
    added = [each[0] for each in rests.values()]
    if any(max(each) - min(each) > near for each in rests.values()):
        return math.inf
    if all(abs(each) <= near for each in added):
        return 0.0
    return math.nan if max(added) - min(added) > near else sum(added) / len(added)


def _factor_of(x: Tensor, product: Product, parts: dict[tuple[int, int], float]) -> tuple[float | None, bool]:
    """The factor of similarities in logits, and whether a logit of each row is taken from the others.

    Adds what the product has in some logits to ``parts``, by rows and columns. The factor is None if they do not depend
    on the similarities, zero if it is not one number. All logits together tell whether it is the same everywhere, some
    by themselves what it is: a product may be taken twice, and a logit subtracted from its row changes no softmax.
    """
    (g,) = torch.autograd.grad(x.sum(), product.edge, retain_graph=True, allow_unused=True)
    if g is None:
        return None, False
    g, tolerance = g.double() * product.factor, 10 * tolerance_of(x)
    entries, values, probed, shifted = g[g != 0], product.values(), list[float](), False
    for one in _some(x):
        (part,) = torch.autograd.grad(x, product.edge, one, retain_graph=True, allow_unused=True)
        at = divmod(int(one.argmax()), one.shape[-1])
        similarity = float((part.double() * values.reshape(part.shape)).sum())
        part = (part.double() * product.factor)[part != 0]
        up, down = part[part > 0], part[part < 0]
        if len(up) > 1 or (not len(up) and len(down) > 1):
            return 0.0, False
        shifted |= bool(len(up) and len(down))
        if len(part) and bool(part.isfinite().all()):
            probed.append(float(up[0]) if len(up) else float(down[0]))
            parts[at] = parts.get(at, 0.0) + similarity
    if not probed:
        return float(entries.median()) if len(entries) else None, False
    factor = max(probed, key=abs)
    counts = entries / factor  # how often each entry is taken
    moves = any(float(g.sum(i).abs().max()) < 1e-3 * abs(factor) * g.shape[i] for i in range(max(-2, -g.dim()), 0))
    if factor < 0 and not bool(((counts - 1).abs() <= tolerance).all()):  # it is subtracted from the others
        factor, probed = -factor, [abs(each) for each in probed]
    same = max(abs(each - factor) for each in probed) <= tolerance * abs(factor)
    often = (counts - counts.round()).abs() <= tolerance * counts.abs().clamp(min=1.0)
    return (factor if same and (moves or bool(often.all())) else 0.0), shifted


def _exact(factor: float, sink: Sink, product: Product) -> float:
    """Return a factor without the rounding of half precision: as the numbers say by which the script multiplies."""
    found = _numbers(sink.x.grad_fn, product.edge.node, set(sink.walk.nodes)) if sink.tolerance > HALF else None
    found = abs((found or 0.0) * product.factor)
    return math.copysign(found, factor) if relative(found, abs(factor)) < HALF else factor


def _numbers(node: Node | None, end: Node, unseen: set[Node]) -> float | None:
    """Multiply the numbers of the nodes from ``node`` to ``end``, along a path of ``unseen`` ones; None without one."""
    if node is None or node is end:
        return None if node is None else 1.0
    if node not in unseen:
        return None
    unseen.remove(node)
    ways = [way for each, _ in node.next_functions if (way := _numbers(each, end, unseen)) is not None]
    return ways[0] * (number_of(node) or 1.0) if ways else None


def _some(x: Tensor) -> Iterator[Tensor]:
    """Yield one-hot tensors of some logits that are not masked."""
    shape, count = x.shape, 16 if x.numel() < 1 << 16 else 3
    columns = torch.linspace(0, shape[-1] - 1, count).long().unique().tolist()
    rows = {0, x[..., 0].numel() // 2, x[..., 0].numel() - 1}
    flat = x.detach().reshape(-1, shape[-1])
    for row, column in itertools.product(rows, columns):
        if flat[row, column] > MASKED:  # in the precision of the logits
            one = torch.zeros_like(flat)
            one[row, column] = 1.0
            yield one.reshape(shape)


def _norm(watch: Watch, x: Tensor) -> float | None:
    """The norm of all rows if they were normalized, else None."""
    norms = x.detach().double().norm(dim=-1).flatten()
    norms = norms[norms > 0]
    if not norms.numel():
        return None
    walk, mean = watch.walk(x), float(norms.mean())
    tolerance = max(tolerance_of(x, walk.nodes), 1e-4)
    even = float(norms.max() - norms.min()) <= tolerance * mean
    # of unit length when what they were multiplied by is taken out
    unit = min((by for by in (1.0, abs(_factor(x))) if by), key=lambda by: abs(mean / by - 1))
    if even and abs(mean / unit - 1) <= tolerance:
        return unit
    return mean if even and walk.scalars else None


def _factor(x: Tensor) -> float:
    """The last factor of embeddings: queries are sometimes divided by the temperature."""
    node, factor = x.grad_fn, 1.0
    while node is not None:
        if number := number_of(node):
            factor *= number
        elif name_of(node) not in ("Permute", "Transpose", "T", "View", "Alias", "Unsqueeze", "Expand", "ToCopy"):
            break
        node = node.next_functions[0][0]
    return factor
