"""Random objectives, with temperatures that may move, and random embeddings."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st

import counterpoint as cp

counts: Counter[str] = Counter()
"""How many examples of which kind were checked."""

T = st.floats(0.02, 2).map(lambda x: float(f"{x:.4g}"))
PRIOR = st.sampled_from([0.0, 0.01, 0.1, 0.3, 0.5])
ESTIMATORS = st.sampled_from(["g0", "g1", "g2"])
DENOMINATORS = ["with_positive", "negatives", "mean"]
BETA = st.sampled_from([0.0, 0.5, 1.0, 4.0])
PAIRINGS = ["views", "one_way", "symmetric", "first_two", "pairs", "arcl", "single"]


def parameters(name: str, **values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"name": st.just(name), **values})


def infonce(name: str, denominators: list[str] = DENOMINATORS, **more: Any) -> st.SearchStrategy[dict[str, Any]]:
    radius = st.sampled_from([None, None, None, 0.05, 0.5])
    return parameters(name, temperature=T, denominator=st.sampled_from(denominators), radius=radius, **more)


NACL = {"temperature": T, "estimator": ESTIMATORS, "prior": PRIOR, "beta": BETA}
WEIGHT = {"weight": st.sampled_from(["clean", "one"]), "detach_weights": st.booleans()}
ROBUST = {**WEIGHT, "alpha": st.sampled_from([0.0, 0.5, 1.0]), "robust_estimator": ESTIMATORS}
PLAIN = [
    infonce("infonce"),
    infonce("dcl", prior=PRIOR),
    infonce("hcl", prior=PRIOR, beta=BETA, detach_weights=st.booleans()),
    infonce("supcon", ["positives", "with_positive", "negatives"], average=st.sampled_from(["outside", "inside"])),
    infonce(
        "adnce",
        [*DENOMINATORS, "all"],
        mu=st.floats(0.1, 2),
        sigma=st.floats(0.05, 3),
        weight=st.sampled_from(["gaussian", "gaussian", "gamma", "rayleigh", "chi2"]),
    ),
    parameters("alphacl", temperature=T, power=st.sampled_from([1.0, 2.5, 4.0]), normalize=st.booleans()),
    parameters("mv", temperature=T, curvature=st.floats(0.2, 3)),
    parameters(
        "dro",
        radius=st.floats(0.005, 2),
        divergence=st.just("kl"),
        alpha=st.none() | st.floats(0.05, 1),
        shared=st.booleans(),
        scale=st.just(0.25),
        nonneg=st.just(True),
    ),
    parameters(
        "dro",
        radius=st.floats(0.005, 2),
        divergence=st.just("chi2"),
        alpha=st.none(),
        shared=st.just(False),
        scale=st.floats(0.1, 1),
        nonneg=st.booleans(),
    ),
    parameters(
        "debpos",
        temperature=T,
        prior=st.sampled_from([0.02, 0.1, 0.4]),
        aggregation=st.sampled_from(["combination", "group_mean", "group_sum"]),
        floor=st.just(True),
    ),
    parameters("nca", **NACL, count_positives=st.booleans()),
    parameters("mixnca", **NACL, lam=st.floats(0, 1)),
    parameters("robust", **NACL, **WEIGHT),
    parameters("intcl", **NACL, **ROBUST),
    parameters("intnacl", **NACL, **ROBUST, base=st.sampled_from(["nca", "mixnca", "both"]), lam=st.floats(0, 1)),
    parameters(
        "dp",
        low=st.sampled_from([0.0, 0.1, 0.2]),
        high=st.sampled_from([0.5, 0.9, 1.0]),
        reduction=st.sampled_from(["sum", "mean", "mean_full", "batch_sum"]),
    ),
    parameters("siglip", temperature=T, bias=st.floats(-12, 3)),
    infonce("rince", q=st.sampled_from([0.1, 0.5, 1.0]), lam=st.sampled_from([0.01, 0.5, 1.0])),
    parameters("arctanh"),
    # a tau of t would make the gradient zero, up to rounding, since the model is its own guide
    parameters(
        "soft", temperature=T, tau=st.sampled_from([0.0191, 3.0, 7.0]), weight=st.sampled_from(["softmax", "linear"])
    ),
    parameters("psl", temperature=T, surrogate=st.sampled_from(["tanh", "tanh", "relu", "atan"])),
    parameters(
        "drrl",
        margin=st.floats(-0.5, 0.9),
        omega=st.sampled_from([1.25, 2.0, 5.0]),
        weight=st.sampled_from([1.0, 50.0]),
        epsilon=st.sampled_from([0.1, 1e-3]),
    ),
    parameters("gor", mean=st.booleans()),
    *[
        parameters(
            name,
            temperature=T,
            gamma=st.sampled_from([0.2, 0.9, 1.0]),
            rho=st.sampled_from([0.0, 0.3]),
            size=st.just(8),
            average=st.sampled_from(["view", "sample"]),
        )
        for name in ("sogclr", "isogclr")
    ],
]
INNER = st.one_of(*PLAIN[:10])
WRAPPED = parameters(
    "arcl", objective=INNER, denominator=st.sampled_from(["paper", "worst"]), views=st.none()
) | parameters("aal", objective=INNER, denominator=st.sampled_from(["paper", "worst"]), views=st.none())
TRUNCATED = [
    parameters("matryoshka", objective=INNER, dims=st.just(dims), weights=st.just(weights))
    for dims, weights in (("[1]", None), ("[2,1]", "[0.5,2]"))
]
ANY = st.one_of(*PLAIN, WRAPPED, *TRUNCATED)


def sums(terms: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    weighted = st.tuples(st.sampled_from([1.0, 0.1, -2.0]), terms).map(list)
    # of terms that cancel, the gradient is rounding
    lists = st.lists(weighted, min_size=2, max_size=3).filter(lambda some: sum(weight for weight, _ in some) != 0)
    return parameters("sum", terms=lists)


OBJECTIVES = ANY | sums(ANY)

SHAPES = ("normal", "normal", "clusters", "duplicates", "collapsed", "nearly collapsed", "orthogonal", "line")


def embeddings(shape: str, count: int, size: int, width: int, scale: float, g: torch.Generator) -> torch.Tensor:
    """``(count, size, width)`` embeddings of a shape that is hard for some formula."""
    z = torch.randn(count, size, width, generator=g, dtype=torch.float64)
    if shape == "clusters":
        centres = torch.randn(2, width, generator=g, dtype=torch.float64)
        z = centres[torch.arange(size) % 2] + 0.05 * z
    elif shape == "duplicates":
        z = z[:, torch.arange(size) // 2]
    elif shape == "collapsed":
        z = z[:1, :1].expand(count, size, width)
    elif shape == "nearly collapsed":
        z = z[:1, :1] + 1e-3 * z
    elif shape == "orthogonal":
        z = torch.eye(width, dtype=torch.float64)[torch.arange(size) % width].expand(count, size, width)
    elif shape == "line":
        z = z.sign() * torch.tensor([1.0, *[0.0] * (width - 1)], dtype=torch.float64)
    return z * scale


TEMPERATURES = ["number", "number", "learned", "schedule"]


def moving(q: Any, how: str) -> Any:
    """The objective ``q`` with temperatures that move during training and are at its own now."""
    if isinstance(q, list):
        return [moving(part, how) for part in q]
    if not isinstance(q, dict) or how == "number" or q.get("name") == "isogclr":  # which learns its own
        return q
    t = q.get("temperature")
    texts = {"learned": f"learned({t},{t and t / 2},{t and 2 * t})", "schedule": f"schedule({t},1,9)", "host": "host"}
    return {k: texts[how] if k == "temperature" else moving(part, how) for k, part in q.items()}


def at_temperature(q: Any, change: Callable[[float], Any]) -> Any:
    """The objective ``q`` with other temperatures."""
    if isinstance(q, list):
        return [at_temperature(part, change) for part in q]
    if not isinstance(q, dict) or q.get("name") == "isogclr":
        return q
    return {k: change(part) if k == "temperature" else at_temperature(part, change) for k, part in q.items()}


def temperatures(q: Any) -> list[Any]:
    if not isinstance(q, (dict, list)):
        return []
    own = [q["temperature"]] if "temperature" in q else []
    return own + [t for part in (q.values() if isinstance(q, dict) else q) for t in temperatures(part)]


def wraps_paper(q: Any) -> bool:
    parts = q.values() if isinstance(q, dict) else q if isinstance(q, list) else ()
    return (isinstance(q, dict) and q.get("denominator") == "paper") or any(map(wraps_paper, parts))


def meets_a_pole(case: dict[str, Any]) -> bool:
    """Whether cosines are -1, where some of ADNCE's densities, and PSL's surrogate, vanish or are infinite."""
    if (
        case.get("shape") == "nearly collapsed"
        and case["dtype"] != "float64"
        and '"chi2"' in json.dumps(case["objective"])
    ):
        return True  # the slope of a standard deviation of similarities that differ by their rounding alone
    if case["shape"] == "orthogonal" and '"matryoshka"' in json.dumps(case["objective"]):
        return True  # truncated to zero
    poles = re.search('"gamma"|"rayleigh"|"weight": "chi2"|"surrogate": "relu"', json.dumps(case["objective"]))
    return poles is not None and (
        case["shape"] == "line" or case["width"] == 1 or '"matryoshka"' in json.dumps(case["objective"])
    )


def at_now(q: Any, how: str, host: float = 1.0) -> Any:
    """The objective ``q`` with the temperatures that :func:`moving` gives it, which are rounded to float32."""
    kinds = {"learned": lambda t: cp.Learned(t, t / 2, 2 * t).double(), "schedule": lambda t: cp.Schedule(t, 1, 9)}
    if how in kinds:
        return at_temperature(q, lambda t: float(kinds[how](t)().detach()))
    return at_temperature(q, lambda t: host) if how == "host" else q


DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ENGINES = ["matrix", "matrix", "tiles", "tiles", "automatic", "kernels"]
