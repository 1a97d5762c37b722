"""Golden cases of the objectives in ``FUNCTIONS``, computed with 50 digits from the papers' formulas.

    python tests/support/golden_digits.py       # writes them into golden.json, in place of those that are there
    python tests/support/golden.py              # then updates the cases that the package brings along

Nothing is imported from the package. Gradients are central differences of numbers with 90 digits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from mpmath import atan, exp, log, mp, mpf, sqrt, tanh

FILE = Path(__file__).with_name("golden.json")
FIRST = 500  # number of the first case
STEP = "1e-30"
Matrix = list[list[Any]]

MATRICES = ("s2x1x4x2-1011", "s4x2x4x2-1033", "s7x4x2x1-1055", "s7x1x4x4-1044")
EMBEDDINGS = {"e4x4x4-1081": [0, 1, 0, 1], "e7x4x2-1092": [0, 1, 2, 0, 1, 0, 2], "e4x2x1-1103": [0, 1, 2, 3]}


def anchor(pos: list[Any], neg: list[Any], t: Any, average: str, denominator: str) -> Any:
    """Khosla et al. 2020, Eq. (2) (``outside``) and (3) (``inside``), of one anchor."""
    own, others = [exp(p / t) for p in pos], sum(exp(s / t) for s in neg)
    total = {"positives": lambda j: sum(own), "with_positive": lambda j: own[j], "negatives": lambda j: 0}[denominator]
    shares = [own[j] / (total(j) + others) for j in range(len(pos))]
    if average == "outside":
        return -sum(log(share) for share in shares) / len(shares)
    return -log(sum(shares) / len(shares))


def siglip(pos: Matrix, neg: Matrix, t: Any, b: Any) -> Any:
    """Zhai et al. 2023, section 3.2: minus the log of the sigmoid of every pair, averaged over anchors."""
    total = mpf(0)
    for p, n in zip(pos, neg, strict=True):
        total += sum(log(1 + exp(-(x / t + b))) for x in p) / len(p) + sum(log(1 + exp(x / t + b)) for x in n)
    return total / len(pos)


def averaged(loss: Callable[..., Any]) -> Callable[..., Any]:
    """The mean over anchors and their positives of a loss of one positive and its negatives."""

    def mean(pos: Matrix, neg: Matrix, **how: Any) -> Any:
        return sum(sum(loss(x, n, **how) for x in p) / len(p) for p, n in zip(pos, neg, strict=True)) / len(pos)

    return mean


def rince(p: Any, neg: list[Any], t: Any, q: Any, lam: Any) -> Any:
    """Chuang et al. 2022, Eq. (4)."""
    return (-(exp(p / t) ** q) + (lam * (exp(p / t) + sum(exp(s / t) for s in neg))) ** q) / q


def arctanh(p: Any, neg: list[Any], t: Any) -> Any:
    """Kim and Kim 2025: the odds of a cosine in place of the exponential."""
    return -log((1 + p) / (1 - p) / ((1 + p) / (1 - p) + sum((1 + s) / (1 - s) for s in neg)))


def psl(p: Any, neg: list[Any], t: Any, surrogate: str) -> Any:
    """Yang et al. 2024, Eq. (8), of halved cosines."""
    sigma = {"tanh": lambda d: tanh(d) + 1, "relu": lambda d: max(d + 1, 0), "atan": lambda d: atan(d) + 1}[surrogate]
    return log(sum(sigma((s - p) / 2) ** (1 / t) for s in neg) / len(neg))


def drrl(p: Any, neg: list[Any], t: Any, m: Any, omega: Any, weight: Any, epsilon: Any) -> Any:
    """Zhang et al. 2025, with the dual order."""
    dual = omega / (omega - 1)
    return 1 - p + m + (sum((epsilon + weight * max(s - m, 0)) ** dual for s in neg) / len(neg)) ** (1 / dual)


def gor(phi: Matrix, mean: bool, t: Any) -> Any:
    """Zhang et al. 2017: the first two moments of the similarities of all pairs."""
    z = [[x / sqrt(sum(y * y for y in row)) for x in row] for row in phi]
    s = [sum(a * b for a, b in zip(x, y, strict=True)) for i, x in enumerate(z) for j, y in enumerate(z) if i != j]
    second = sum(x * x for x in s) / len(s) - mpf(1) / len(z[0])
    return max(second, 0) + (sum(s) / len(s)) ** 2 * mean


def unit(z: Matrix) -> Matrix:
    return [[x / sqrt(sum(y * y for y in row)) for x in row] for row in z]


def dot(a: list[Any], b: list[Any]) -> Any:
    return sum(x * y for x, y in zip(a, b, strict=True))


def sogclr(z1: Matrix, z2: Matrix, t: Any, gamma: Any, rho: Any, average: str, eta: Any = 0, beta: Any = 0) -> Any:
    """Yuan et al. 2022, Algorithm 1, and Qiu et al. 2023 (with ``eta``): a second step, of views in reversed order.

    Without ``average="sample"`` the exponentials are relative to the positive, and each view has an average.
    """
    size, shared = len(z1), average == "sample"

    def masses(views: tuple[Matrix, Matrix], ts: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Of each anchor: ``g``, the mean of ``s / t`` weighted by its exponentials, and the positive."""
        z = unit([*views[0], *views[1]])
        g, mean, pos = [], [], []
        for i, row in enumerate(z):
            p = dot(row, z[(i + size) % (2 * size)])
            h = [(dot(row, z[j]) - (0 if shared else p)) / ts[i] for j in range(2 * size) if j % size != i % size]
            g.append(sum(exp(x) for x in h) / len(h))
            mean.append(sum(exp(x) * x for x in h) / len(h))
            pos.append(p)
        return g, mean, pos

    def of_state(x: list[Any]) -> list[Any]:
        """Samples have one number for both views."""
        return [(x[i % size] + x[i % size + size]) / 2 for i in range(2 * size)] if shared else x

    first, second = CONSTANT[0][:2] if CONSTANT else (z1, z2), (z2, z1)
    ts = [t] * (2 * size)
    g, mean, _ = masses(first, ts)
    slopes = of_state([beta * (log(u) + rho - m / u) for u, m in zip(g, mean, strict=True)])
    ts = [min(max(t - eta * v, mpf("0.05")), mpf("0.7")) for v in slopes] if eta else ts
    fixed, _, _ = masses((first[1], first[0]), ts)  # constants for the gradient, whose steps change z1 and z2
    u = [(1 - gamma) * old + gamma * new for old, new in zip(of_state(g), fixed, strict=True)]
    g, _, pos = masses(second, ts)
    total = mpf(0)
    for i, own in enumerate(ts):
        total += own * (log(u[i]) + (g[i] - fixed[i]) / u[i] + rho) - (pos[i] if shared else 0)
    return total / (2 * size)


def matryoshka(z1: Matrix, z2: Matrix, t: Any, dims: list[int], weights: list[Any]) -> Any:
    """Kusupati et al. 2022: the weighted sum of NT-Xent of the first numbers."""
    total, labels = mpf(0), [*range(len(z1))]
    for dim, weight in zip(dims, weights, strict=True):
        cut = [[row[:dim] for row in z] for z in (z1, z2)]
        total += weight * of_views(*cut, labels=labels, t=t, average="outside", denominator="positives")
    return total


def joint(q: Matrix, d: Matrix, directions: str, mode: str, strength: Any, t: Any, h: Matrix | None = None) -> Any:
    """Li et al. 2023 (GTE), Eq. (2): all pairs of a direction, one sum below the positive; its own negatives last.

    ``h`` has one hard negative per sample. Lan et al. 2025, Eq. (5): ``strength`` times the cosine is added to the
    exponents of some negatives of ``query_to_doc``, as a constant.
    """

    # constants for the gradient, whose steps change q, d and h
    fixed, moving = (CONSTANT[0], (q, d, h)) if CONSTANT else ((q, d, h), (q, d, h))
    (cq, cd, ch), (zq, zd, zh) = (tuple(None if z is None else unit(z) for z in three) for three in (fixed, moving))

    total = mpf(0)
    for i in range(len(q)):
        terms = [exp(dot(zq[i], zd[i]) / t)]
        for j in range(len(q)):
            harder = {"in_batch_negatives": i != j, "hard_negatives": False, "all_negatives": i != j}.get(mode, False)
            if j != i:
                terms.append(exp(dot(zq[i], zd[j]) / t + (strength * dot(cq[i], cd[j]) if harder else 0)))
            if h is not None:
                harder = {"in_batch_negatives": i != j, "hard_negatives": i == j, "all_negatives": True}.get(
                    mode, False
                )
                terms.append(exp(dot(zq[i], zh[j]) / t + (strength * dot(cq[i], ch[j]) if harder else 0)))
            if "query_to_query" in directions and j != i:
                terms.append(exp(dot(zq[i], zq[j]) / t))
            if "doc_to_query" in directions:
                terms.append(exp(dot(zd[i], zq[j]) / t))
            if "doc_to_doc" in directions and j != i:
                terms.append(exp(dot(zd[i], zd[j]) / t))
                terms += [] if h is None else [exp(dot(zd[i], zh[j]) / t)]
        total += log(sum(terms)) - dot(zq[i], zd[i]) / t
    return total / len(q)


CONSTANT: list[Any] = []


def of_scores(pos: Matrix, neg: Matrix, **how: Any) -> Any:
    return sum(anchor(p, n, **how) for p, n in zip(pos, neg, strict=True)) / len(pos)


def of_views(z1: Matrix, z2: Matrix, labels: list[int], **how: Any) -> Any:
    """All views of all samples are anchors; those of its class are positives, except itself."""
    z = [[x / sqrt(sum(y * y for y in row)) for x in row] for row in (*z1, *z2)]
    label = [*labels, *labels]
    total = mpf(0)
    for i in range(len(z)):
        s = {j: sum(a * b for a, b in zip(z[i], z[j], strict=True)) for j in range(len(z)) if j != i}
        pos, neg = ([s[j] for j in s if (label[j] == label[i]) == same] for same in (True, False))
        total += anchor(pos, neg, **how)
    return total / len(z)


def gradient(value: Callable[[dict[str, Matrix]], Any], args: dict[str, Matrix]) -> dict[str, Matrix]:
    h, found = mpf(STEP), {name: [[0.0] * len(row) for row in x] for name, x in args.items()}
    for name, x in args.items():
        for row, slopes in zip(x, found[name], strict=True):
            for k, here in enumerate(row):
                ends = []
                for side in (here + h, here - h):
                    row[k] = side
                    ends.append(value(args))
                row[k] = here
                slopes[k] = float((ends[0] - ends[1]) / (2 * h))
    return found


def cases(inputs: dict[str, Any]) -> Iterator[dict[str, Any]]:
    plan: list[tuple[str, str, dict[str, Any]]] = []
    for average in ("outside", "inside"):
        for denominator in ("positives", "with_positive", "negatives"):
            how = {"average": average, "denominator": denominator}
            plan += [("supcon", key, {"t": t, **how}) for t, key in zip((0.5, 0.07, 0.2, 1.0), MATRICES, strict=True)]
    for average in ("outside", "inside"):
        how = {"average": average, "denominator": "positives"}
        plan += [
            ("supcon_views", key, {"t": t, **how, "labels": labels})
            for t, (key, labels) in zip((0.5, 0.1, 0.2), EMBEDDINGS.items(), strict=True)
        ]
    biases = (-10.0, -1.5, 0.0, 2.0)
    plan += [
        ("siglip", key, {"t": t, "b": b}) for t, b, key in zip((0.1, 0.5, 0.07, 1.0), biases, MATRICES, strict=True)
    ]
    scores = MATRICES[1:]
    plan += [("arctanh", key, {"t": 1.0}) for key in scores]
    for t, key, q, surrogate in zip((0.5, 0.1, 0.2), scores, (0.1, 0.5, 1.0), ("tanh", "relu", "atan"), strict=True):
        plan += [("rince", key, {"t": t, "q": q, "lam": 0.025}), ("psl", key, {"t": t, "surrogate": surrogate})]
        plan.append(("drrl", key, {"t": t, "m": t - 0.2, "omega": 1 + 2 * t, "weight": 5.0, "epsilon": 0.1}))
    plan += [("gor", key, {"t": 1.0, "mean": key != "e4x2x1-1103"}) for key in EMBEDDINGS]
    gte = "query_to_doc query_to_query doc_to_query doc_to_doc"
    hardness = (("", 0.0), ("in_batch_negatives", 9.0), ("hard_negatives", 5.0), ("all_negatives", 2.0))
    for number, (key, (mode, strength)) in enumerate((k, h) for k in (*EMBEDDINGS,) for h in hardness):
        directions = (gte, "query_to_doc", "query_to_doc query_to_query", gte)[number % 4 if mode else 0]
        how = {"directions": directions, "mode": mode, "strength": strength, "hard": number % 2 == 0 or bool(mode)}
        plan.append(("joint", key, {"t": (0.1, 0.05, 0.5)[number % 3], **how}))
    for number, key in enumerate(EMBEDDINGS):
        how = {"t": (0.5, 0.1, 0.2)[number], "gamma": (0.9, 0.3, 0.5)[number], "rho": 0.3}
        for average in ("view", "sample"):
            plan.append(("sogclr", key, {**how, "average": average}))
            plan.append(("sogclr", key, {**how, "average": average, "eta": 0.05, "beta": 0.8}))
        if key != "e4x2x1-1103":
            dims = [4, 2, 3] if key == "e4x4x4-1081" else [2]
            plan.append(("matryoshka", key, {"t": how["t"], "dims": dims, "weights": [0.5, 2.0, 1.0][: len(dims)]}))
    for number, (fn, key, params) in enumerate(plan, FIRST):
        names = ("z1", "z2") if fn in ("supcon_views", "joint", "sogclr", "matryoshka") else ("pos", "neg")
        names = ("phi",) if fn == "gor" else (*names, "z3") if params.get("hard") else names
        source = {"phi": "z1"}
        args = {name: [[mpf(x) for x in row] for row in inputs[key][source.get(name, name)]] for name in names}
        how = {name: mpf(x) if isinstance(x, float) else x for name, x in params.items()}  # as the package gets them
        how.pop("hard", None)
        if fn in ("joint", "sogclr"):
            CONSTANT[:] = [tuple(deepcopy(args.get(name)) for name in ("z1", "z2", "z3"))]
        renamed = {"z1": "q", "z2": "d", "z3": "h"} if fn == "joint" else {}

        def value(
            args: dict[str, Matrix],
            function: Any = FUNCTIONS[fn],
            how: dict[str, Any] = how,
            renamed: dict[str, str] = renamed,
        ) -> Any:
            return function(**{renamed.get(name, name): x for name, x in args.items()}, **how)

        yield {
            "id": f"p-{fn}-{number}",
            "loss": fn,
            "fn": fn,
            "args": {name: f"{key}/{source.get(name, name)}" for name in names},
            "params": params,
            "tags": [],
            "value": float(value(args)),
            "grad": gradient(value, args),
            "grad_source": "mp",
        }


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "supcon": of_scores, "supcon_views": of_views, "siglip": siglip, "joint": joint, "gor": gor,
    "sogclr": sogclr, "matryoshka": matryoshka,
    **{f.__name__: averaged(f) for f in (rince, arctanh, psl, drrl)},
}  # fmt: skip


def written(data: dict[str, Any]) -> str:
    """``golden.json`` with a line per input and per case."""
    compact = {"separators": (",", ":")}
    inputs = ",\n".join(f"{json.dumps(key)}:{json.dumps(x, **compact)}" for key, x in data["inputs"].items())
    listed = ",\n".join(json.dumps(case, **compact) for case in data["cases"])
    head = f'{{"meta":{json.dumps(data["meta"])},\n"losses":{json.dumps(data["losses"])},\n'
    return f'{head}"inputs":{{\n{inputs}}},\n"cases":[\n{listed}]}}\n'


def main() -> None:
    mp.dps = 90
    data = json.loads(FILE.read_text())
    others = [case for case in data["cases"] if case["fn"] not in FUNCTIONS]
    data["cases"] = others + list(cases(data["inputs"]))
    data["losses"] = sorted({case["loss"] for case in data["cases"]})
    FILE.write_text(written(data))


if __name__ == "__main__":
    main()
