"""Every objective a second time: dense, in float64, anchor by anchor, from the papers' formulas and not from our code.

``batch_loss`` computes all similarities of a batch as one matrix, picks each anchor's positives and negatives from it
by the rules of its pairing, and applies the formula. Nothing here is fast, and nothing is imported from the package.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

INFONCE_FAMILY = ("infonce", "dcl", "hcl", "adnce")
Parameters = dict[str, Any]


@dataclass
class Batch:
    """Embeddings and what is known of them; the names are those of a call. Views are ``(B, d)``, or ``(B, m, d)``."""

    views: list[Tensor]
    normalize: bool = True
    queue: Tensor | None = None
    negatives: Tensor | None = None  # (B, n, d)
    negative_weight: float = 0.0
    ids: Tensor | None = None
    index: Tensor | None = None  # positions in the data set: of no effect in the first batch
    labels: Tensor | None = None
    queue_ids: Tensor | None = None
    positives: Tensor | None = None  # (Q, P) rows of the queue, -1 for none: the queue is documents, with a gradient
    negative_ids: Tensor | None = None
    prior: Tensor | None = None
    positive_factor: Tensor | None = None  # (B,) or (views, B)
    adversarial: Tensor | None = None
    mixed: Tensor | None = None  # (B, n, d)
    rules: list[tuple[str, float]] = field(default_factory=list)  # kind and value; a key that breaks one is removed
    hard_rules: bool = True  # whether they hold for hard negatives
    guide: list[Tensor] | None = None
    queue_guide: Tensor | None = None
    negative_guide: Tensor | None = None  # (B, n, w)
    empty: str = "error"
    in_batch: bool = True
    shared_negatives: bool = True
    log_q: Tensor | None = None
    queue_log_q: Tensor | None = None
    negative_log_q: Tensor | None = None  # (B, n)
    directions: tuple[str, ...] = ()
    hardness: tuple[str | None, float] = (None, 0.0)


@dataclass
class Row:
    """What one anchor sees: positives, negatives and how often each negative counts, as a logarithm."""

    p: Tensor
    s: Tensor
    w: Tensor
    prior: float | None = None
    weight: float = 1.0  # of the attraction to the positives
    adversarial: tuple[Tensor, Tensor] | None = None
    mixed: Tensor | None = None
    first: Tensor | None = None  # stays in the denominator in place of the positive
    estimated: Tensor | None = None  # the key of the largest soft target, whose mean similarity is ``p``
    alone: bool = False  # no positive in the denominator
    counts: bool = True  # False: the loss is zero, since the rules remove every negative
    times: float = 1.0  # how often the positive is in the denominator
    width: int | None = None  # of the embeddings
    guide: Tensor | None = None  # its similarities of the positives, then of the negatives

    @property
    def n(self) -> Tensor:
        return self.w.exp().sum()

    def lse(self, x: Tensor) -> Tensor:
        return (x + self.w).logsumexp(0)

    def mean(self, x: Tensor) -> Tensor:
        return (x * self.w.exp()).sum() / self.n


# ---- pairings --------------------------------------------------------------------------------------


@dataclass
class _Items:
    """All vectors of a batch, one below the other, and where each kind begins."""

    parts: dict[str, list[tuple[int, Tensor]]] = field(default_factory=dict)
    size: int = 0

    def add(self, kind: str, vectors: Tensor) -> None:
        self.parts.setdefault(kind, []).append((self.size, vectors))
        self.size += len(vectors)

    def at(self, kind: str, which: int, i: int) -> int:
        return self.parts[kind][which][0] + i


def similarities(batch: Batch, noise: Callable[[Tensor], Tensor]) -> tuple[Tensor, _Items]:
    items = _Items()
    views = [v.double() for v in batch.views]
    if batch.queue is not None and batch.positives is not None:
        items.add("view", views[0])
        items.add("queue", batch.queue.double())
    elif batch.queue is not None:
        query, key = views[0], views[1].detach()
        for kind, x in (("view", query), ("key", key)):
            for one in x.unbind(1) if x.dim() == 3 else [x]:
                items.add(kind, one)
        items.add("queue", batch.queue.double().detach())
    else:
        for one in views:
            items.add("view", one)
    for kind, x in (("hard", batch.negatives), ("mixed", batch.mixed)):
        for one in () if x is None else x.double().unbind(1):
            items.add(kind, one)
    if batch.adversarial is not None:
        items.add("adversarial", batch.adversarial.double())
    begins = sorted(((begin, v) for part in items.parts.values() for begin, v in part), key=lambda x: x[0])
    z = torch.cat([v for _, v in begins])
    if batch.normalize:
        z = z / z.norm(dim=1, keepdim=True)
    return noise(z @ z.T), items


def rows(batch: Batch, pairing: str, noise: Callable[[Tensor], Tensor]) -> Iterator[Row | None]:
    """Yield what each anchor of a pairing sees; None for an anchor without positives."""
    s, items = similarities(batch, noise)
    judge = s.detach()
    if batch.guide is not None:
        seen = replace(
            batch,
            views=batch.guide,
            queue=batch.queue_guide,
            negatives=batch.negative_guide,
            mixed=None,
            normalize=True,
        )
        judge = similarities(seen, lambda x: x)[0]
    at, size = items.at, len(batch.views[0])
    log_weight = s.new_zeros(items.size)
    for kind, log_q in (("view", batch.log_q), ("queue", batch.queue_log_q)):
        for k in range(len(items.parts.get(kind, ())) if log_q is not None else 0):
            log_weight[at(kind, k, 0) : at(kind, k, 0) + len(log_q)] = -log_q  # type: ignore[arg-type]
    if batch.negative_log_q is not None:
        for k in range(batch.negative_log_q.shape[1]):
            log_weight[at("hard", k, 0) : at("hard", k, 0) + size] = -batch.negative_log_q[:, k]
    ids = batch.labels if batch.ids is None else batch.ids
    everyone = range(size)

    def others(i: int, views: list[int]) -> list[int]:
        free = [j for j in everyone if (j != i if ids is None else ids[j] != ids[i])]
        return [at("view", k, j) for k in views for j in free]

    def apart(
        anchor: int, pos: list[tuple[int, int]], keys: list[int], own: list[tuple[int, int]] | None
    ) -> tuple[list[int], bool]:
        """Remove what the rules say; all keys stay, without counting, where none would."""
        least = min((float(judge[a, b]) for a, b in own or pos), default=math.inf)
        hard = items.parts.get("hard", [(items.size, s)])[0][0]
        most = [
            {"absolute": least - x, "relative": least - x * abs(least), "percentage": x * least, "threshold": x}[kind]
            for kind, x in batch.rules
        ]
        left = [k for k in keys if (k >= hard and not batch.hard_rules) or all(judge[anchor, k] <= m for m in most)]
        assert left or batch.empty != "error"
        if not left and batch.empty == "keep":
            left = least_similar(judge[anchor], keys)
        return (left, True) if left else (keys, False)

    def row(
        i: int,
        anchor: int,
        pos: list[tuple[int, int]],
        keys: list[int],
        weights: dict[int, float] | None = None,
        own: list[tuple[int, int]] | None = None,
    ) -> Row:
        keys, counts = apart(anchor, pos, [k for k in keys if log_weight[k] > -math.inf], own)
        found = Row(torch.stack([s[a, b] for a, b in pos]), s[anchor, keys], log_weight[keys], counts=counts)
        found.width = batch.views[0].shape[-1]
        if batch.guide is None or batch.negatives is None or batch.negative_guide is not None:
            found.guide = torch.cat([torch.stack([judge[a, b] for a, b in pos]), judge[anchor, keys]])
        found.w = found.w + s.new_tensor([0.0 if weights is None else weights.get(key, 0.0) for key in keys])
        if batch.prior is not None:
            found.prior = float(batch.prior[i])
        if batch.positive_factor is not None:
            view = 0 if batch.positive_factor.dim() == 1 else next(v for v in range(m) if at("view", v, i) == anchor)
            found.weight = float(batch.positive_factor.reshape(-1, size)[view, i])
        if batch.mixed is not None:
            found.mixed = s[anchor, [at("mixed", k, i) for k in range(batch.mixed.shape[1])]]
        if batch.adversarial is not None:
            free = [j for j in everyone if (j != i if ids is None else ids[j] != ids[i])]
            clean = 1 if pairing in ("one_way", "symmetric") else 0
            wrong, attacked = [at("view", clean, j) for j in free], at("adversarial", 0, i)
            wrong, counts = apart(anchor, [(anchor, attacked)], wrong + [at("adversarial", 0, j) for j in free], None)
            found.adversarial, found.counts = (s[anchor, attacked], s[anchor, wrong]), found.counts and counts
        return found

    m = len(items.parts["view"])
    if pairing == "documents":
        for i, chosen in enumerate(batch.positives.reshape(size, -1).tolist()):  # type: ignore[union-attr]
            own = sorted({j for j in chosen if j >= 0})
            free = [j for j in range(len(batch.queue)) if j not in own]  # type: ignore[arg-type]
            free = [j for j in free if batch.queue_ids is None or batch.queue_ids[j] != ids[i]]  # type: ignore[index]
            pos = [(at("view", 0, i), at("queue", 0, j)) for j in own]
            yield row(i, at("view", 0, i), pos, [at("queue", 0, j) for j in free]) if pos else None
        return
    if pairing == "queue":
        keys = range(len(batch.queue))  # type: ignore[arg-type]
        for i in everyone:
            free = [j for j in keys if batch.queue_ids is None or batch.queue_ids[j] != ids[i]]  # type: ignore[index]
            which = [(j, k) for j in range(m) for k in range(m) if m == 1 or j != k]
            pos = [(at("view", j, i), at("key", k, i)) for j, k in which]
            if batch.labels is not None:
                pos += [(at("view", 0, i), at("queue", 0, j)) for j in keys if j not in free]
            yield row(i, at("view", 0, i), pos, [at("queue", 0, j) for j in free])
        return

    def hard(i: int) -> dict[int, float]:
        """The hard negatives that an anchor sees, and their log-weights."""
        seen = {}
        for h in range(0 if batch.negatives is None or pairing != "one_way" else batch.negatives.shape[1]):
            for j in everyone:
                known = batch.negative_ids
                if known is not None and ids is not None and known.reshape(size, -1)[j, h] == ids[i]:
                    continue
                if i == j or (batch.shared_negatives and batch.in_batch):
                    seen[at("hard", h, j)] = batch.negative_weight if i == j else 0.0
        return seen

    if batch.labels is not None and pairing in ("views", "one_way", "symmetric"):
        labeled = {"views": [(k, [*range(m)]) for k in range(m)], "one_way": [(0, [*range(1, m)])]}
        for k, seen in labeled.get(pairing, [(0, [1]), (1, [0])]):
            for i in everyone:
                alike = [at("view", v, j) for v in seen for j in everyone if batch.labels[j] == batch.labels[i]]
                anchor = at("view", k, i)
                pos = [(anchor, key) for key in alike if key != anchor]
                further = hard(i)
                yield row(i, anchor, pos, [*others(i, seen), *further], further) if pos else None
        return
    if pairing == "joint":
        yield from joint_rows(batch, s, judge, items, log_weight)
        return
    every = [*range(m)]
    if pairing == "views":
        plan = [(k, [v for v in every if v != k], every) for k in every]
    elif pairing == "one_way":
        plan = [(0, every[1:], every[1:])]
    elif pairing == "symmetric":
        plan = [(0, [1], [1]), (1, [0], [0])]
    elif pairing == "first_two":
        plan = [(0, every[1:], [0, 1]), (1, [0, *every[2:]], [0, 1])]
    elif pairing == "pairs":
        plan = [(x, [y], [*pair]) for pair in combinations(every, 2) for x, y in (pair, pair[::-1])]
    elif pairing == "arcl":
        plan = [(0, [], [0, 1])]
    else:
        assert pairing == "single"
        plan = [(0, [], [0])]
    for k, positives, negatives in plan:
        for i in everyone:
            anchor = at("view", k, i)
            pos = [(anchor, at("view", v, i)) for v in positives]
            if pairing == "arcl":
                pos = [(at("view", a, i), at("view", b, i)) for a, b in combinations(every, 2)]
            weights = hard(i)
            keys = [*(others(i, negatives) if batch.in_batch or pairing == "single" else []), *weights]
            own = None
            if pairing == "single":
                kind, rest = ("view", every[1:]) if batch.queue is None else ("key", [0])
                own = [] if batch.positives is not None else [(anchor, at(kind, v, i)) for v in rest]
            found = row(i, anchor, pos or [(anchor, anchor)], keys, weights, own)
            if pairing == "arcl":
                found.first = found.p[0]
            yield found


def joint_rows(batch: Batch, s: Tensor, judge: Tensor, items: _Items, log_weight: Tensor) -> Iterator[Row]:
    """What each query sees in all directions, pair by pair: pairs of vectors, and how often each counts."""
    at, size = items.at, len(batch.views[0])
    n = 0 if batch.negatives is None else batch.negatives.shape[1]
    hard_ids = None if batch.negative_ids is None else batch.negative_ids.reshape(size, n)
    for i in range(size):
        query, doc, pairs = at("view", 0, i), at("view", 1, i), []

        def known(j: int, h: int | None = None, i: int = i) -> bool:
            """Whether sample ``j``, or its hard negative ``h``, has the anchor's id."""
            if batch.ids is None or (h is not None and hard_ids is None):
                return h is None and i == j
            return bool((batch.ids[j] if h is None else hard_ids[j, h]) == batch.ids[i])  # type: ignore[index]

        for direction in batch.directions:
            a = query if direction.startswith("query") else doc
            view = 0 if direction.endswith("query") else 1
            for j in range(size):
                key = at("view", view, j)
                if not known(j):
                    harder = direction == "query_to_doc" and batch.hardness[0] in (
                        "in_batch_negatives",
                        "all_negatives",
                    )
                    pairs.append((a, key, log_weight[key] + harder * batch.hardness[1] * s[a, key].detach(), False))
                for h in range(n if direction in ("query_to_doc", "doc_to_doc") else 0):
                    key, own = at("hard", h, j), i == j
                    if known(j, h) or (own and direction == "doc_to_doc") or not (own or batch.shared_negatives):
                        continue
                    modes = ("hard_negatives" if own else "in_batch_negatives", "all_negatives")
                    harder = direction == "query_to_doc" and batch.hardness[0] in modes
                    weight = log_weight[key] + harder * batch.hardness[1] * s[a, key].detach()
                    pairs.append((a, key, weight + (batch.negative_weight if own else 0.0), True))
        least = float(judge[query, doc])
        most = [
            {"absolute": least - x, "relative": least - x * abs(least), "percentage": x * least, "threshold": x}[kind]
            for kind, x in batch.rules
        ]
        left = [p for p in pairs if (p[3] and not batch.hard_rules) or all(judge[p[0], p[1]] <= x for x in most)]
        assert left or batch.empty != "error"
        if not left and batch.empty == "keep":
            near = least_similar(torch.stack([judge[a, b] for a, b, *_ in pairs]), [*range(len(pairs))])
            left = [pairs[i] for i in near]
        used = left or pairs
        values, weights = torch.stack([s[a, b] for a, b, *_ in used]), torch.stack([w for _, _, w, _ in used])
        times = 2.0 if "doc_to_query" in batch.directions else 1.0
        known = [x if y is None else float(y[i]) for x, y in ((None, batch.prior), (1.0, batch.positive_factor))]
        guide = torch.stack([judge[query, doc], *(judge[a, b] for a, b, *_ in used)])
        yield Row(s[query, doc][None], values, weights, *known, counts=bool(left), times=times, guide=guide)


def least_similar(s: Tensor, keys: list[int]) -> list[int]:
    """The keys with the smallest similarity, up to rounding."""
    most = rounded_up(s[keys].min())
    return [k for k in keys if s[k] <= most]


def rounded_up(most: Tensor) -> Tensor:
    """The limit that similarities of this size are below, up to rounding."""
    return most + 32 * torch.finfo(most.dtype).eps * most.abs().clamp(min=1)


# ---- formulas --------------------------------------------------------------------------------------


def softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))


def log_mass(kind: str, row: Row, q: Parameters, s: Tensor | None = None) -> Tensor:
    """``log (N G)`` with the estimator g0, g1 or g2."""
    if s is not None:
        row = replace(row, s=s, w=torch.zeros_like(s))
    t, log_n = q["temperature"], row.n.log()
    u = row.lse(row.s / t) - log_n
    if kind == "g0":
        return u + log_n
    if kind == "g2":
        weights = q["beta"] * row.s / t
        weights = weights.detach() if q.get("detach_weights") and "estimator" not in q else weights  # of HCL
        u = row.lse(row.s / t + weights) - row.lse(weights)
    prior = q["prior"] if row.prior is None else row.prior
    positives = row.p if row.estimated is None else row.estimated
    v = (positives / t).logsumexp(0) - math.log(len(positives))
    share = v + (math.log(prior) if prior else -math.inf) - u
    floor = 0 * u - 1 / t
    if share >= 0:
        return floor + log_n
    value = u + torch.log(-torch.expm1(share)) - math.log1p(-prior)
    return torch.where(value > floor, value, floor) + log_n


def adnce_log_weight(s: Tensor, q: Parameters) -> Tensor:
    s, mu, sigma = s.detach(), q["mu"], q["sigma"]
    if q["weight"] == "gaussian":
        return -((s - mu) ** 2) / (2 * sigma**2)
    x = (s + 1).clamp(min=1e-300)  # rounding may leave the densities' support
    shape, rest = {
        "gamma": (mu - 1, -x / sigma),
        "rayleigh": (1.0, -(x**2) / (2 * mu**2)),
        "chi2": (mu / 2 - 1, -x / 2),
    }[q["weight"]]
    return shape * x.log() + rest


def infonce_family(name: str, row: Row, q: Parameters) -> Tensor:
    return contrast(name, row, q) + (1 - row.weight) * row.p / q["temperature"]


def contrast(name: str, row: Row, q: Parameters) -> Tensor:
    t, pos = q["temperature"], row.p / q["temperature"]
    log_n, kept = row.n.log(), row.p if row.first is None else row.first
    if name == "adnce":
        log_w = adnce_log_weight(row.s, q)
        log_sum, total = row.lse(log_w + row.s / t), row.lse(log_w)
        if q["denominator"] == "all":
            own = adnce_log_weight(kept, q)
            # relative to the positive, whose gradient would cancel where it is nearly all of the denominator
            rest = torch.nn.functional.softplus(log_sum - own - kept / t, threshold=40) + own
            rest = rest if row.first is None else rest + (kept - row.p) / t
            return rest - torch.logaddexp(total.expand_as(own), own) + (row.n + 1).log()
        mass = log_sum - total + log_n
    else:
        mass = log_mass({"infonce": "g0", "dcl": "g1", "hcl": "g2"}[name], row, q)
    if q["denominator"] == "mean":
        return mass - log_n - pos
    if q["denominator"] == "negatives" or row.alone:
        return mass - pos
    if row.first is None:
        return softplus(mass - pos - math.log(row.times)) + math.log(row.times)
    return softplus(mass - kept / t) + (kept - row.p) / t


def supcon(row: Row, q: Parameters) -> Tensor:
    pos, keys = row.p / q["temperature"], row.lse(row.s / q["temperature"])
    if q["denominator"] == "positives" and len(pos) > 1 and row.first is None and not row.alone:
        # what is left of the denominator beside each positive, so that nothing cancels
        others = [torch.cat([pos[:j], pos[j + 1 :], keys[None]]).logsumexp(0) for j in range(len(pos))]
        each = softplus(torch.stack(others) - pos) + (1 - row.weight) * pos
    else:
        each = infonce_family("infonce", row, q)
    return each if q["average"] == "outside" else math.log(len(each)) - (-each).logsumexp(0)


def siglip(row: Row, q: Parameters) -> Tensor:
    t, b = q["temperature"], q["bias"]
    return softplus(-(row.p / t + b)) + (row.w.exp() * softplus(row.s / t + b)).sum()


def rince(row: Row, q: Parameters) -> Tensor:
    share = contrast("infonce", row, q) + math.log(q["lam"])
    exponent = (q["q"] * row.p / q["temperature"]).clamp(-60, 60)
    return exponent.exp() * torch.expm1((q["q"] * share).clamp(max=60 - exponent.clamp(min=0))) / q["q"]


def arctanh(row: Row, q: Parameters) -> Tensor:
    pos, neg = (2 * torch.atanh(x.clamp(-(1 - 2**-20), 1 - 2**-20)) for x in (row.p, row.s))
    return softplus(row.lse(neg) - pos)


def soft(row: Row, q: Parameters) -> Tensor:
    own = row.p if row.estimated is None else row.estimated  # whose targets are the guide
    s, w = torch.cat([own, row.s]), torch.cat([torch.zeros_like(own), row.w])
    g = s.detach() if row.guide is None else row.guide
    target = g / q["tau"] if q["weight"] == "softmax" else ((1 + g) / 2).clamp(min=1e-38).log()
    share = (target + w).softmax(0)
    return (s / q["temperature"] + w).logsumexp(0) - (share * s).sum() / q["temperature"]


def psl(row: Row, q: Parameters) -> Tensor:
    def each(p: Tensor) -> Tensor:
        d = (row.s - p) / 2
        surrogate = {"tanh": 2 * torch.sigmoid(2 * d), "relu": (1 + d).relu(), "atan": 1 + d.atan()}
        return row.lse(surrogate[q["surrogate"]].clamp(min=1e-30).log() / q["temperature"]) - row.n.log()

    return torch.stack([each(p) for p in row.p])


def drrl(row: Row, q: Parameters) -> Tensor:
    dual = q["omega"] / (q["omega"] - 1)
    power = row.lse(dual * (q["epsilon"] + q["weight"] * (row.s - q["margin"]).relu()).log()) - row.n.log()
    return 1 - row.p + q["margin"] + (power / dual).exp()


def spread_out(some: list[Row], q: Parameters) -> list[Tensor]:
    """The same number for each anchor, apart from deviations whose mean is zero."""
    first, second = ([row.mean(row.s**k) for row in some] for k in (1, 2))
    shown = [float(row.counts) for row in some]
    m1, m2 = (sum(x * c for x, c in zip(xs, shown, strict=True)) / max(sum(shown), 1) for xs in (first, second))
    width = some[0].width or math.inf  # of scores, unknown
    excess = [(x - 1 / width) * (float(m2.detach()) > 1 / width) for x in second]
    return [e + (m1 * (2 * f - m1) if q["mean"] else 0) for e, f in zip(excess, first, strict=True)]


def sogclr(row: Row, q: Parameters) -> Tensor:
    """Of the first batch."""
    t = float(torch.tensor(q["temperature"])) if q["name"] == "isogclr" else q["temperature"]
    return t * (row.lse(row.s / t) - row.n.log() + q["rho"]) - row.p


def alphacl(row: Row, q: Parameters) -> Tensor:
    exponent = -((1 - row.s.detach()).clamp(min=0) ** q["power"]) / q["temperature"] + row.w
    if q["normalize"]:
        return (exponent.softmax(0) * row.s).sum() - row.p
    w = exponent.exp()
    return w.sum() * (1 - row.p) - (w * (1 - row.s)).sum()


def variance(row: Row) -> Tensor:
    return row.mean((row.s - row.mean(row.s)) ** 2)


def kl(row: Row, a: float) -> float:
    """``KL(Q_a || Q0)``."""
    s = row.s.detach() - row.s.detach().max()  # which keeps its digits over a small a
    q = torch.softmax(s / a + row.w, 0)
    log_ratio = s / a - (row.lse(s / a) - row.n.log())
    return float((q * log_ratio).sum())


def kl_bound(row: Row) -> float:
    s = row.s.detach()
    return float((row.n / row.w.exp()[s >= s.max()].sum()).log())


def kl_alpha(some: list[Row], radius: float) -> float:
    """The ``a`` at which the mean divergence of these anchors is the radius; 0 where it cannot be."""
    if radius >= sum(map(kl_bound, some)) / len(some):
        return 0.0
    low, high = -60.0, 60.0  # log a; the divergence falls with a
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if sum(kl(row, math.exp(middle)) for row in some) / len(some) > radius else (low, middle)
        )
    return math.exp((low + high) / 2)


def tied_max(row: Row) -> Tensor:
    """The largest negative; equal ones share its gradient."""
    top = (row.s.detach() >= row.s.detach().max()).double()
    return (row.s * top).sum() / top.sum()


def kl_worst_case(row: Row, a: float, radius: float) -> Tensor:
    if not a:
        return tied_max(row)
    top = row.s.detach().max()
    return a * radius + a * (row.lse((row.s - top) / a) - row.n.log()) + top


def chi2_worst_case(row: Row, q: Parameters) -> Tensor:
    need, s, w = q["radius"] / q["scale"], row.s.detach(), row.w.exp()
    if not q["nonneg"]:
        v = variance(row)
        return row.mean(row.s) + ((need * v).sqrt() if v > 0 else 0 * v)
    if need >= float(row.n / w[s >= s.max()].sum()) - 1:
        return tied_max(row)

    below = s.max() - s

    def ratio(log_depth: float) -> Tensor:
        raised = (math.exp(log_depth) - below).clamp(min=0)
        return raised / row.mean(raised)

    x, y = -60.0, 60.0  # log of the depth below the maximum; the divergence falls with it
    for _ in range(200):
        middle = (x + y) / 2
        found = ratio(middle)
        x, y = (middle, y) if float(row.mean((found - 1) ** 2)) > need else (x, middle)
    return row.mean(ratio((x + y) / 2) * row.s)


def debpos(row: Row, q: Parameters) -> Tensor:
    t = q["temperature"]
    prior, n = q["prior"] if row.prior is None else row.prior, row.n
    u = ((row.s - 1) / t + row.w).exp().sum()  # everything times e^{-1/t}
    v = ((row.p - 1) / t).exp()
    divisor = n + 2
    if q["aggregation"] == "group_mean":
        v = v.mean()[None]
    elif q["aggregation"] == "group_sum":
        v, divisor = v.sum()[None], n + len(row.p) + 1
    r = (u + v + 1) / divisor - (1 - prior) * u / n
    floor = prior * (0 * r - 2 / t).exp()
    r = torch.where(r > floor, r, floor)
    return torch.log1p(prior * u / r)


def nca(row: Row, q: Parameters) -> Tensor:
    mass = log_mass(q["estimator"], row, q)
    if q["count_positives"]:
        mass = mass + math.log(len(row.p))
    return softplus(mass - (row.p / q["temperature"]).logsumexp(0))


def clean(row: Row, q: Parameters) -> Tensor:
    return softplus(log_mass(q["estimator"], row, q) - row.p[0] / q["temperature"])


def mixnca(row: Row, q: Parameters) -> Tensor:
    loss = clean(row, q)
    if row.mixed is None:
        return loss
    gap = log_mass(q["estimator"], row, q) - row.mixed / q["temperature"]
    return loss + (q["lam"] * softplus(gap) + (1 - q["lam"]) * softplus(-gap)).mean()


def robust(row: Row, q: Parameters) -> Tensor:
    assert row.adversarial is not None
    a, keys = row.adversarial
    loss = softplus(log_mass(q["estimator"], row, q, keys) - a / q["temperature"])
    if q["weight"] == "one":
        return loss
    weight = clean(row, q)
    return (weight.detach() if q["detach_weights"] else weight) * loss


def integrated(name: str, row: Row, q: Parameters) -> Tensor:
    parts = [clean] if name == "intcl" else {"nca": [nca], "mixnca": [mixnca], "both": [nca, mixnca]}[q["base"]]
    loss = sum(part(row, {**q, "count_positives": False}) for part in parts)
    return loss + q["alpha"] * robust(row, {**q, "estimator": q["robust_estimator"]}) if q["alpha"] else loss


def polarization(row: Row, q: Parameters, anchors: int) -> Tensor:
    d = (1 - row.s) / 2
    total = (((d - q["low"]) * (q["high"] - d)).clamp(min=0) * row.w.exp()).sum()
    return total * {"sum": 1, "mean": 1 / row.n, "mean_full": 1 / (row.n + 1), "batch_sum": anchors}[q["reduction"]]


# ---- objectives ------------------------------------------------------------------------------------

PAIRING = {"arcl": "arcl", "aal": "arcl", "dp": "single", "gor": "single", "siglip": "one_way"} | dict.fromkeys(
    ("mixnca", "robust", "intcl", "intnacl"), "first_two"
)


EMBEDDED = ("queue", "negatives", "adversarial", "mixed")


def pairing_of(q: Parameters, chosen: str | None, batch: Batch) -> str:
    name = q["name"]
    if name in ("dp", "gor"):
        return "single"
    if batch.queue is not None:
        return "queue" if batch.positives is None else "documents"
    if chosen is not None:
        return chosen
    if batch.negatives is not None:
        return "one_way"
    if name == "debpos":
        return "pairs" if q["aggregation"] == "combination" else "first_two"
    return PAIRING.get(name, "views")


def anchor_losses(q: Parameters, some: list[Row], layout: str) -> list[Tensor]:
    """The loss of each anchor, averaged over its positives; ``q`` is the objective's ``to_dict``."""
    name = q["name"]
    if name in ("arcl", "aal"):
        inner, changed = q["objective"], []
        for row in some:
            worst = row.p[row.p.argmin()] if name == "arcl" else row.p.mean()  # the first of equal ones
            paper = q["denominator"] == "paper"
            first = row.first if paper else None
            changed.append(replace(row, p=worst[None], first=first, alone=paper and layout == "queue"))
        return anchor_losses(inner, changed, layout)
    if name == "sum":
        parts = [[w * x for x in anchor_losses(term, some, layout)] for w, term in q["terms"]]
        return [sum(column) for column in zip(*parts, strict=True)]  # type: ignore[misc]
    if name in (*INFONCE_FAMILY, "supcon", "rince") and q.get("radius") is not None:
        spread = sum(float(variance(row).detach()) for row in some) / len(some)
        q = {**q, "temperature": max(math.sqrt(spread / (2 * q["radius"])), 1e-3)}
    shared = kl_alpha(some, q["radius"]) if name == "dro" and q["shared"] and q["alpha"] is None else None

    def loss(row: Row) -> Tensor:
        if name in INFONCE_FAMILY:
            return infonce_family(name, row, q)
        if name == "mv":
            return row.mean(row.s) + variance(row) / (2 * q["temperature"] * q["curvature"]) - row.p
        if name == "dro":
            if q["divergence"] == "chi2":
                return chi2_worst_case(row, q) - row.p
            a = q["alpha"] or (kl_alpha([row], q["radius"]) if shared is None else shared)
            return kl_worst_case(row, a, q["radius"]) - row.p
        if name == "dp":
            return polarization(row, q, len(some))
        if name in ("intcl", "intnacl"):
            return integrated(name, row, q)
        formulas = {"alphacl": alphacl, "debpos": debpos, "nca": nca, "mixnca": mixnca, "robust": robust}
        formulas |= {"supcon": supcon, "siglip": siglip, "rince": rince, "arctanh": arctanh, "psl": psl, "drrl": drrl}
        formulas |= {"sogclr": sogclr, "isogclr": sogclr}
        formulas["soft"] = soft
        return formulas[name](row, q)

    if name == "gor":
        return spread_out(some, q)
    return [loss(row).mean() for row in some]


def batch_loss(
    q: Parameters, batch: Batch, pairing: str | None, noise: Callable[[Tensor], Tensor] = lambda s: s
) -> Tensor:
    """The loss of a batch; ``q`` is the objective's ``to_dict``, ``noise`` disturbs the matrix of similarities."""
    if q["name"] == "sum":
        return sum(w * batch_loss(term, batch, pairing, noise) for w, term in q["terms"])  # type: ignore[return-value]
    if q["name"] == "matryoshka":
        width = batch.views[0].shape[-1]
        dims = json.loads(q["dims"]) if q["dims"] else {width, max(width // 2, 1), max(width // 4, 1)}
        weights, total = json.loads(q["weights"]) if q["weights"] else [1] * len(dims), 0.0
        for m, weight in zip(dims, weights, strict=True):
            cut = {name: x[..., :m] for name, x in vars(batch).items() if name in EMBEDDED and x is not None}
            cut["views"] = [view[..., :m] for view in batch.views]
            total = total + weight * batch_loss(q["objective"], replace(batch, **cut), pairing, noise)
        return total  # type: ignore[return-value]
    layout = pairing_of(q, pairing, batch)
    some = [row for row in rows(batch, layout, noise) if row is not None]
    losses = [x if row.counts else 0 * x for x, row in zip(anchor_losses(q, some, layout), some, strict=True)]
    return torch.stack(losses).mean()
