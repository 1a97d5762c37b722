"""Random objectives, batches, texts and damaged files, and what must hold for each.

``python tests/support/fuzz.py MINUTES`` runs every check with Hypothesis, 10,000 examples a round, until the time is
over, and prints how many examples of which kind it has run. ``tests/test_fuzz.py`` runs a few examples of each.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import re
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads this when it is imported

import reference
import torch
import toy_grid
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st

import counterpoint as cp
from counterpoint.engine import streamed
from counterpoint.integrations import report, store

ROUND = 10_000
counts: Counter[str] = Counter()

# ---- objectives against the reference --------------------------------------------------------------

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
WEIGHT = {"weight": st.sampled_from(["clean", "one"]), "detach_weight": st.booleans()}
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
]
INNER = st.one_of(*PLAIN[:10])
WRAPPED = parameters(
    "arcl", objective=INNER, denominator=st.sampled_from(["paper", "worst"]), views=st.none()
) | parameters("aal", objective=INNER, denominator=st.sampled_from(["paper", "worst"]), views=st.none())
ANY = st.one_of(*PLAIN, WRAPPED)


def sums(terms: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    weighted = st.tuples(st.sampled_from([1.0, 0.1, -2.0]), terms).map(list)
    return parameters("sum", terms=st.lists(weighted, min_size=2, max_size=3))


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
    if not isinstance(q, dict) or how == "number":
        return q
    t = q.get("temperature")
    texts = {"learned": f"learned({t},{t and t / 2},{t and 2 * t})", "schedule": f"schedule({t},1,9)", "host": "host"}
    return {k: texts[how] if k == "temperature" else moving(part, how) for k, part in q.items()}


def at_temperature(q: Any, change: Callable[[float], Any]) -> Any:
    """The objective ``q`` with other temperatures."""
    if isinstance(q, list):
        return [at_temperature(part, change) for part in q]
    if not isinstance(q, dict):
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


def at_now(q: Any, how: str, host: float = 1.0) -> Any:
    """The objective ``q`` with the temperatures that :func:`moving` gives it, which are rounded to float32."""
    kinds = {"learned": lambda t: cp.Learned(t, t / 2, 2 * t).double(), "schedule": lambda t: cp.Schedule(t, 1, 9)}
    if how in kinds:
        return at_temperature(q, lambda t: float(kinds[how](t)().detach()))
    return at_temperature(q, lambda t: host) if how == "host" else q


DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ENGINES = ["matrix", "matrix", "tiles", "tiles", "automatic", "kernels"]

CASES = st.fixed_dictionaries(
    {
        "objective": OBJECTIVES,
        "pairing": st.none() | st.sampled_from(PAIRINGS),
        "views": st.integers(2, 4),
        "size": st.integers(2, 6),
        "width": st.integers(1, 6),
        "shape": st.sampled_from(SHAPES),
        "scale": st.sampled_from([1e-2, 1.0, 1.0, 30.0]),
        "normalize": st.sampled_from([True, True, True, False]),
        "dtype": st.sampled_from([*DTYPES]),
        "engine": st.sampled_from(ENGINES),
        "tile": st.integers(1, 7),
        "known": st.sampled_from(
            [
                "",
                "",
                "ids",
                "labels",
                "negatives",
                "weighted negatives",
                "negatives with ids",
                "queue",
                "queues",
                "queue with ids",
            ]
        ),
        "prior": st.booleans(),
        "weights": st.sampled_from(["", "", "sample", "view"]),
        "temperature": st.sampled_from(TEMPERATURES),
        "reduction": st.sampled_from(["mean", "none"]),
        "seed": st.integers(0, 2**31),
    }
)


@contextmanager
def engine(name: str) -> Iterator[None]:
    """Let the kernels, in Triton's interpreter, compute whatever they can."""
    before = streamed.KERNEL_DEVICES, streamed.STREAMED_CPU
    if name == "kernels":
        streamed.KERNEL_DEVICES, streamed.STREAMED_CPU = {"cpu"}, 0
    try:
        yield
    finally:
        streamed.KERNEL_DEVICES, streamed.STREAMED_CPU = before


def build(case: dict[str, Any]) -> tuple[reference.Batch, dict[str, Any], list[torch.Tensor]] | None:
    """The batch of a case, the arguments of the call, and its leaves; None for what the library refuses by contract."""
    q, known, size, width = case["objective"], case["known"], case["size"], case["width"]
    words, count, pairing = json.dumps(q), case["views"], case["pairing"]
    attacked = any(f'"name": "{name}"' in words for name in ("robust", "intcl", "intnacl"))
    if attacked or '"name": "mixnca"' in words:
        known = "ids" if known == "ids" else ""
        if attacked and pairing not in (None, "one_way", "first_two"):
            pairing = "first_two"
        if attacked and q["name"] in ("sum", "arcl", "aal"):
            pairing = "first_two"
    if pairing == "symmetric":
        count = 2
    if pairing == "single" and q["name"] != "dp":
        pairing = None
    normalize = case["normalize"] or any(word in words for word in ('"debpos"', '"gamma"', '"rayleigh"', '"chi2"'))
    scale = case["scale"] if normalize else min(case["scale"], 1.0)
    if re.search('"gamma"|"rayleigh"|"weight": "chi2"', words) and (case["shape"] == "line" or width == 1):
        return None  # cosines of -1, where these densities vanish or are infinite
    g = torch.Generator().manual_seed(case["seed"])
    dtype = DTYPES[case["dtype"]]

    def draw(n: int, rows: int = size) -> torch.Tensor:
        return embeddings(case["shape"], n, rows, width, scale, g).to(dtype)

    options: dict[str, Any] = {}
    leaves: list[torch.Tensor] = []

    def leaf(x: torch.Tensor) -> torch.Tensor:
        leaves.append(x.clone().requires_grad_())
        return leaves[-1]

    if known.startswith("queue"):
        views = [leaf(draw(count).transpose(0, 1).contiguous() if known == "queues" else draw(1)[0])]
        views.append(draw(count).transpose(0, 1).contiguous() if known == "queues" else draw(1)[0])
        options["queue"] = draw(1, size + 2)[0]
        pairing = None
        if known == "queue with ids":
            options["ids"] = torch.arange(size) % max(2, size - 1)
            options["queue_ids"] = torch.randint(0, size + 2, (size + 2,), generator=g)
            options["queue_ids"][0] = -1
    else:
        views = [leaf(x) for x in draw(count)]
    if "negatives" in known:
        options["negatives"] = leaf(draw(1 + case["seed"] % 2).transpose(0, 1).contiguous())
        if known == "weighted negatives":
            options["negative_weight"] = 0.7
        if known == "negatives with ids":
            options["ids"] = torch.arange(size) % max(2, size - 1)
            options["negative_ids"] = torch.randint(0, size + 2, options["negatives"].shape[:2], generator=g)
        pairing = "one_way"
    if known in ("ids", "labels"):
        options[known] = torch.arange(size) % max(2, size - 1)
        if known == "labels" and pairing not in ("views", "one_way"):
            pairing = "views"
    if attacked:
        options["adversarial"] = leaf(draw(1)[0])
    if '"mixnca"' in words or '"both"' in words:
        options["mixed"] = leaf(draw(2).transpose(0, 1).contiguous())
    if case["prior"] and '"debpos"' not in words:
        options["prior"] = torch.rand(size, generator=g, dtype=torch.float64) * 0.5
    if case["weights"]:
        every = pairing == "views" or (pairing in ("first_two", "symmetric") and count == 2)  # view is an anchor
        shape = (count, size) if case["weights"] == "view" and every else (size,)
        options["positive_weight"] = torch.rand(shape, generator=g, dtype=torch.float64) * 3 - 1
    batch = reference.Batch(views, normalize, **options)
    return batch, {**options, "pairing": pairing, "normalize": normalize}, leaves


def gradients(loss: torch.Tensor, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    if not loss.requires_grad:
        return [torch.zeros_like(x) for x in leaves]
    found = torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]


def value_and_gradients(loss: torch.Tensor, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    return [x.detach().double() for x in (loss, *gradients(loss, leaves))]


Noise = Callable[[torch.Tensor], torch.Tensor]
# of an objective's data, the leaves in float64, and what disturbs the similarities
Reference = Callable[[Any, list[torch.Tensor], Noise], torch.Tensor]


def compare(
    name: str,
    q: Any,
    loss: torch.Tensor,
    exact_loss: Reference,
    leaves: list[torch.Tensor],
    eps: float,
    sizes: list[float],
    how: str,
    moved: Sequence[torch.Tensor],
) -> None:
    """Assert that value and gradients are the reference's, up to what rounding similarities to ``eps`` does to them.

    Several times, every similarity of the reference is disturbed by at most two roundings. The largest change that this
    makes is the condition of the problem; a sum of a few hundred terms may be 24 times as far off. To that come the
    roundings of the result itself, and those on the way from the similarities to the leaf, whose gradients may cancel.

    Args:
        name: the objective, for messages.
        q: the objective's data, as the reference takes it.
        loss: ours.
        exact_loss: the reference's.
        leaves: what gradients are compared of.
        eps: the precision of the similarities.
        sizes: how much an error of all similarities' gradients can grow on its way to each leaf.
        how: what the temperatures are, see :func:`moving`.
        moved: what is trained and moves all temperatures: their logarithms, or the scale of the logits.
    """
    sign, at_first = -1 if how == "host" else 1, q
    log_t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    q = at_temperature(q, lambda t: t * (sign * log_t).exp()) if moved else q
    values = value_and_gradients(loss, [*leaves, *moved])
    found = values[: 1 + len(leaves)]
    if moved:
        found.append(sum(g * x.detach() if sign < 0 else g for g, x in zip(values[len(found) :], moved, strict=True)))
    doubles = [x.detach().double().requires_grad_() for x in leaves]
    exact_leaves = [*doubles, *[log_t] * bool(moved)]
    random = torch.Generator().manual_seed(0)
    pull = total = 0.0  # the largest that similarities pull at one embedding, and at the temperature

    def uniform(shape: Sequence[int] = ()) -> torch.Tensor:
        return 2 * torch.rand(shape, generator=random, dtype=torch.float64) - 1

    def reference_values(roundings: int) -> list[torch.Tensor]:
        nonlocal pull, total
        matrices = []

        def disturb(s: torch.Tensor) -> torch.Tensor:
            size = max(float(s.detach().abs().max()), 1.0)  # distances, 1 - s, are rounded like numbers of size one
            matrices.append(s + roundings * eps * size * uniform(s.shape))
            return matrices[-1]

        # the value of a schedule is a float32
        scalar = roundings * torch.finfo(torch.float32).eps if how == "schedule" else 0.0
        exact = exact_loss(at_temperature(q, lambda t: t * (1 + scalar * float(uniform()))), doubles, disturb)
        pulls = [g.abs() for g in gradients(exact, matrices)]
        pull = max(pull, sum(float(g.sum(1).max() + g.sum(0).max()) for g in pulls))
        total = max(total, sum(float((g * s.detach().abs()).sum()) for g, s in zip(pulls, matrices, strict=True)))
        return value_and_gradients(exact, exact_leaves)

    def wrong(exact: list[torch.Tensor], draws: list[list[torch.Tensor]]) -> str | None:
        """What is further off than rounding explains, if anything is."""
        for at, (ours, right) in enumerate(zip(found, exact, strict=True)):
            scale = float(right.abs().max())
            near = [one[at] for one in draws if one[at].isfinite().all()]  # others have left the formula's domain
            spread = max((float((one - right).abs().max()) for one in near), default=0.0)
            tiny = torch.finfo(torch.float64 if eps < 1e-9 else torch.float32).tiny
            allowed, what = 24 * spread + 200 * eps * (scale + (at == 0)) + 2 * tiny, "value"
            if 0 < at <= len(leaves):
                kind, what = torch.finfo(leaves[at - 1].dtype), f"gradient of leaf {at}"
                allowed += 64 * eps * (pull + cancelling) * sizes[at - 1] + 2 * kind.eps * scale + 2 * kind.tiny
            elif at:
                kind, what = torch.finfo(moved[0].dtype), "gradient of the temperature"
                allowed += 128 * eps * (total + cancelling) + 2 * kind.eps * scale
            # both may be infinite, the gradient of a float16 leaf already where the reference's is not
            beyond = right.to(leaves[at - 1].dtype) if 0 < at <= len(leaves) else right
            equal = (ours == right) | (ours.isinf() & (ours == beyond))
            error = float(torch.where(equal, 0.0, ours - right).abs().max())
            if not error <= allowed:
                return f"{name}, {what}: off by {error:.3g}, allowed {allowed:.3g}; {ours} != {right}"
        return None

    # ArCL's positive, and all of SupCon's, are in the denominator too: their gradients cancel
    lowest = 1e-3 if '"radius": 0' in json.dumps(q, default=str) else min(map(float, temperatures(at_first)), default=1)
    cancelling = 1 / lowest if wraps_paper(q) or '"supcon"' in json.dumps(q, default=str) else 0.0
    exact, *draws = [reference_values(roundings) for roundings in (0, 2, 2, 2)]
    if wrong(exact, draws):  # at a floor, three draws may all fall to one side
        draws += [reference_values(2) for _ in range(30)]
    message = wrong(exact, draws)
    assert message is None, message


def trained(case: dict[str, Any], loss_fn: cp.Objective) -> list[torch.Tensor]:
    """The temperatures whose gradients are compared."""
    # both uses of alpha-CL's weights have gradients that cancel, whatever those of the similarities are
    return [] if "alphacl" in str(loss_fn) and case["dtype"] != "float64" else [*loss_fn.parameters()]


def check_objective(case: dict[str, Any]) -> None:
    """The loss of embeddings is the reference's."""
    built = build(case)
    if built is None:
        return
    (batch, options, leaves), how = built, case["temperature"]
    loss_fn = cp.from_dict(moving(case["objective"], how)).double()
    tile = {"matrix": 0, "tiles": case["tile"]}.get(case["engine"])
    with engine(case["engine"]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as of ArCL with two views
        uniform = "labels" not in options and case["objective"]["name"] != "sum"
        reduction = case["reduction"] if uniform else "mean"
        loss = loss_fn(*batch.views, tile=tile, reduction=reduction, **options).mean()
        moved = trained(case, loss_fn)
        eps = torch.finfo(torch.float64 if case["dtype"] == "float64" else torch.float32).eps
        if case["engine"] == "kernels" and case["dtype"] == "bfloat16" and batch.normalize:
            eps = torch.finfo(torch.bfloat16).eps
        reach = max(float(v.detach().double().abs().max()) for v in batch.views)
        sizes = [1 / float(x.detach().double().norm(dim=-1).min()) if batch.normalize else reach for x in leaves]

        def exact_loss(q: Any, doubles: list[torch.Tensor], noise: Noise) -> torch.Tensor:
            wide = {id(x): double for x, double in zip(leaves, doubles, strict=True)}
            parts = {name: wide.get(id(x), x) for name, x in vars(batch).items()}
            parts["views"] = [wide.get(id(x), x) for x in batch.views]
            return reference.batch_loss(q, reference.Batch(**parts), options["pairing"], noise)

        for what in ("engine", "dtype", "shape", "temperature"):
            counts[f"{what} {case[what]}"] += 1
        for what in options:
            counts[f"with {what}"] += 1
        counts[f"objective {case['objective']['name']}"] += 1
        counts[f"pairing {options['pairing'] or 'own'}"] += 1
        compare(str(loss_fn), at_now(case["objective"], how), loss, exact_loss, leaves, eps, sizes, how, moved)


# ---- logits and scores against the reference -------------------------------------------------------

ENTRIES = ["columns", "diagonal", "booleans", "one-hot", "scores"]
MATRIX_OBJECTIVES = st.one_of(*PLAIN[:10], WRAPPED)
MATRICES = st.fixed_dictionaries(
    {
        "objective": MATRIX_OBJECTIVES | sums(MATRIX_OBJECTIVES),
        "entry": st.sampled_from(ENTRIES),
        "anchors": st.integers(1, 5),
        "keys": st.integers(2, 8),
        "shape": st.sampled_from(["normal", "normal", "ties", "equal", "close"]),
        "masked": st.sampled_from([0.0, 0.3, 0.8]),
        "mask": st.sampled_from([-math.inf, -1e4]),
        "ignored": st.sampled_from([0.0, 0.4]),
        "scale": st.sampled_from([1.0, 3.7, 20.0]),
        "scale is": st.sampled_from(["number", "tensor", "trained"]),
        "temperature": st.sampled_from([*TEMPERATURES, "host"]),
        "dtype": st.sampled_from([*DTYPES]),
        "reduction": st.sampled_from(["mean", "none"]),
        "seed": st.integers(0, 2**31),
    }
)


def check_matrix(case: dict[str, Any]) -> None:
    """The loss of logits, or of scores and masks, is the reference's; what is masked or ignored may be anything."""
    entry, anchors, keys, how = (case[name] for name in ("entry", "anchors", "keys", "temperature"))
    g = torch.Generator().manual_seed(case["seed"])
    how = "number" if entry == "scores" and how == "host" else how
    keys = max(keys, anchors) if entry == "diagonal" else keys

    def chosen(share: float) -> torch.Tensor:
        return torch.rand(anchors, keys, generator=g) < share

    cosine = 1.9 * torch.rand(anchors, keys, generator=g, dtype=torch.float64) - 0.95
    if case["shape"] == "ties":
        cosine = (cosine * 2).round() * 0.45
    elif case["shape"] != "normal":
        cosine = 0.5 + (1e-3 * cosine if case["shape"] == "close" else 0 * cosine)
    masked, ignored = chosen(case["masked"]), chosen(case["ignored"])[:, 0]
    column = torch.arange(anchors) if entry == "diagonal" else torch.randint(0, keys, (anchors,), generator=g)
    positive = torch.zeros(anchors, keys, dtype=torch.bool).scatter_(1, column.unsqueeze(1), True)
    if entry in ("booleans", "one-hot", "scores"):
        positive |= chosen(0.2)
    masked &= ~positive
    if entry == "scores":  # which must have negatives, and have no rows that do not count
        masked[torch.arange(anchors), (column + 1) % keys] = False
        positive[torch.arange(anchors), (column + 1) % keys] = False
        ignored &= False
    elif entry == "diagonal":
        ignored &= False
    scale = 1.0 if entry == "scores" else case["scale"]
    logits = (cosine * scale).to(DTYPES[case["dtype"]])
    q, options = at_now(case["objective"], how, 1 / scale), {}
    loss_fn = cp.from_dict(moving(case["objective"], how)).double()
    moved = trained(case, loss_fn)
    if entry == "scores":
        junk = torch.where(masked, torch.nan, logits)
        leaf = junk.requires_grad_()
        loss = loss_fn.from_scores(leaf, leaf, ~masked & ~positive, pos_mask=positive, reduction=case["reduction"])
    else:
        logits = torch.where(masked, torch.tensor(case["mask"], dtype=logits.dtype), logits)
        junk = torch.where(ignored.unsqueeze(1), torch.nan, logits)
        leaf = junk.requires_grad_()
        if case["scale is"] != "number":
            options["scale"] = torch.tensor(scale, dtype=torch.float64, requires_grad=case["scale is"] == "trained")
        labels: torch.Tensor | None = torch.where(ignored, -100, column)
        if entry in ("booleans", "one-hot"):
            labels = positive & ~ignored.unsqueeze(1)
            labels = labels / labels.sum(1, keepdim=True).clamp(min=1) if entry == "one-hot" else labels
        elif entry == "diagonal":
            labels = None
        if how == "host" and case["scale is"] == "trained" and temperatures(q):
            moved = [options["scale"]]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a trained scale beside a temperature of the objective's own
            options = {"scale": scale, **options, "empty": "zero", "reduction": case["reduction"]}
            loss = loss_fn.from_logits(leaf, labels, **options)
    counted = ~ignored
    kept = counted & (~masked & ~positive).any(1)
    if case["reduction"] == "none":
        assert loss.shape == (anchors,)
        assert not loss[~kept].any()
        loss = loss.sum() / counted.sum().clamp(min=1)
    for what in ("entry", "dtype", "temperature"):
        counts[f"matrix, {what} {case[what]}"] += 1
    if not kept.any():
        assert float(loss.detach()) == 0
        assert not gradients(loss, [leaf])[0].any()
        return

    def exact_loss(q: Any, doubles: list[torch.Tensor], noise: Noise) -> torch.Tensor:
        factor = temperatures(q)[0] if how == "host" and temperatures(q) else 1 / scale
        s = noise(torch.where(kept.unsqueeze(1) & ~masked, doubles[0], 0.0) * factor)
        zeros = torch.zeros(keys, dtype=torch.float64)
        every = [(s[i, positive[i]], s[i, ~masked[i] & ~positive[i]]) for i in kept.nonzero().flatten().tolist()]
        some = [reference.Row(pos, neg, zeros[: len(neg)]) for pos, neg in every]
        losses = torch.stack(reference.anchor_losses(q, some, "scores"))
        return losses.sum() / (counted.sum() if entry != "scores" else anchors)

    eps = torch.finfo(torch.float64 if case["dtype"] == "float64" else torch.float32).eps
    compare(str(loss_fn), q, loss, exact_loss, [leaf], eps, [1 / scale], how, moved)


# ---- texts and data --------------------------------------------------------------------------------

NAMES = [*cp.registry, *"t temperature prior beta mu sigma weight denominator radius shared power high".split()]  # noqa: SIM905
SIGNS = [*":,=+*() \n\t.-0123456789", "0.5", "1e-3", "1e400", "nan", "auto", "none", "true", "false"]
WORDS = [*NAMES, *SIGNS, "learned(", "schedule(", "with_positive", "\u00e9", "\u0663", "\ud800", "\0"]
SPECS = OBJECTIVES.map(lambda q: str(cp.from_dict(q)))
TYPOS = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 9), st.sampled_from(["", *WORDS])), max_size=2)


def mistyped(text: str, typos: list[tuple[int, int, str]]) -> str:
    for at, removed, inserted in typos:
        text = text[:at] + inserted + text[at + removed :]
    return text


TEXTS = st.builds(mistyped, SPECS, TYPOS) | st.text(max_size=60) | st.lists(st.sampled_from(WORDS)).map("".join)


def check_text(text: str) -> None:
    """A spec is read, and then written and read again as the same objective, or refused with a place in it."""
    try:
        loss_fn = cp.objective(text)
    except cp.SpecError as error:
        refused = error
    else:
        assert cp.objective(str(loss_fn)) == loss_fn == cp.from_dict(json.loads(json.dumps(loss_fn.to_dict())))
        counts["specs read"] += 1
        return
    assert 0 <= refused.position <= len(text)
    assert str(refused)
    counts["specs refused"] += 1


NUMBERS = st.floats() | st.integers() | st.sampled_from([0, 1, 0.5, -1, 10**400])
LEAF = st.none() | st.booleans() | NUMBERS | st.sampled_from(WORDS) | st.text(max_size=8)
KEYS = st.sampled_from(["name", "objective", "terms", *NAMES]) | st.text(max_size=5)
TREES = st.recursive(
    LEAF | OBJECTIVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.builds(lambda q, more: {**q, **more}, OBJECTIVES, st.dictionaries(KEYS, inner, max_size=2))
        | st.builds(lambda q: {"name": "arcl", "objective": q}, inner)
        | st.builds(
            lambda *terms: {"name": "sum", "terms": [*terms]}, st.tuples(NUMBERS, inner), st.tuples(LEAF, inner)
        )
    ),
    max_leaves=12,
)


def check_data(data: Any) -> None:
    """Data is an objective, and then gives the same data again, or is refused as a wrong value or type."""
    try:
        loss_fn = cp.from_dict(data)
    except (TypeError, ValueError):
        counts["data refused"] += 1
        return
    assert cp.from_dict(json.loads(json.dumps(loss_fn.to_dict()))) == loss_fn
    counts["data read"] += 1


# ---- damaged files ---------------------------------------------------------------------------------

DAMAGE = st.fixed_dictionaries(
    {
        "file": st.sampled_from(["run.json", "metrics.jsonl", "checkpoint.pt", "embeddings.pt"]),
        "flips": st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), max_size=3),
        "cut": st.none() | st.floats(0, 1),
    }
)
FILES = ("run.json", "metrics.jsonl", "checkpoint.pt", "checkpoint.previous.pt", "embeddings.pt")


@cache
def finished() -> tuple[Path, dict[str, bytes], list[Any]]:
    """A root of two runs, the files of the first, and the states of its two checkpoints."""
    root = Path(tempfile.mkdtemp(prefix="fuzz"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    runs = []
    for spec in ("infonce:t=0.2", "hcl:t=0.2"):
        run = store.Run(root, {"domain": "toy", "dataset": "points", "objective": spec, "seed": 0})
        with run.lock():
            run.begin()
            for step in range(1, 4):
                run.log(step, loss=1 / step, uniformity=-0.5 * step)
                run.save({"net": {"weight": torch.linspace(0, step, 20)}, "rng": store.rng_state()}, step)
            run.keep(torch.randn(8, 3), torch.arange(8) % 2, ["a", "b"])
            spare = run.checkpoints[1].read_bytes()
            run.finish({"accuracy": 70.0 + len(spec), "other": 1.0}, folds=[1.0, 2.0])
            run.checkpoints[1].write_bytes(spare)
        runs.append(run)
    path = runs[0].path
    content = {name: (path / name).read_bytes() for name in FILES}
    states = []
    for name in ("checkpoint.pt", "checkpoint.previous.pt"):
        states.append(toy_grid.plain(torch.load(path / name, weights_only=True)["state"]))
    return path, content, states


def check_damage(case: dict[str, Any]) -> None:
    """A damaged file is refused by name, or nothing that is read from it can be anything but what was written.

    ``run.json`` and ``metrics.jsonl`` have no checksum: they may be read with another digit, but nothing may crash.
    """
    path, content, (last, previous) = finished()
    name = case["file"]
    damaged = bytearray(content[name])
    for where, bit in case["flips"]:
        damaged[int(where * len(damaged))] ^= 1 << bit
    if case["cut"] is not None:
        del damaged[int(case["cut"] * len(damaged)) :]
    for each in FILES:
        (path / each).write_bytes(damaged if each == name else content[each])
    (path / "checkpoint.damaged.pt").unlink(missing_ok=True)
    outcome, said = "read", str(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            run = store.Run.read(path)
            run.metrics()
            if (kept := run.embeddings()) is not None and name == "embeddings.pt":
                assert (tuple(kept.z.shape), kept.names, kept.about) == ((8, 3), ["a", "b"], "class")
            summary = report.summarise(store.find_runs(path.parents[3]))
            for form in ("terminal", "markdown", "csv", "json"):
                report.RENDER[form](summary)
        except ValueError as error:
            outcome, said = "refused", str(error)
        assert str(path) in said, said
        if name == "checkpoint.pt":
            with run.lock():
                state = toy_grid.plain(run.load())
            assert state in (last, previous), state
            outcome = "the last" if state == last else "the one before"
    counts[f"damaged {name}: {outcome}"] += 1


# ---- all of them -----------------------------------------------------------------------------------

CHECKS: dict[str, tuple[Callable[[Any], None], st.SearchStrategy[Any], int]] = {
    "objectives": (check_objective, CASES, 60),  # the check, its examples, and how many `make test` runs
    "matrices": (check_matrix, MATRICES, 60),
    "texts": (check_text, TEXTS, 300),
    "data": (check_data, TREES, 200),
    "damage": (check_damage, DAMAGE, 100),
}


def run(name: str, examples: int, seed: int, until: float = math.inf) -> None:
    """Run a check on random examples; raise for the first one that fails."""
    check, strategy, _ = CHECKS[name]

    @with_seed(seed)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # the examples are small enough to be read as they are
        suppress_health_check=[*HealthCheck],
    )
    @given(strategy)
    def one(example: Any) -> None:
        if time.monotonic() > until:
            raise KeyboardInterrupt  # the only error that Hypothesis passes on at once
        counts[f"check {name}"] += 1
        check(example)

    one()


def main(minutes: float, seed: int) -> int:
    """Run all checks in turn, a part of the time each; return the number of findings."""
    end, findings = time.monotonic() + 60 * minutes, 0
    while time.monotonic() < end:
        for name in CHECKS:
            share = {"objectives": 0.5, "matrices": 0.2}.get(name, 0.1) * 60 * minutes
            try:
                run(name, ROUND, seed, min(end, time.monotonic() + share))
            except KeyboardInterrupt:
                pass
            except Exception:
                findings += 1
                traceback.print_exc()
        seed += 1
    for what, count in sorted(counts.items()):
        print(f"{count:9,d}  {what}")
    print(f"{findings} findings in {minutes:g} minutes; the next seed is {seed}")
    return findings


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0) > 0)
