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
from collections.abc import Callable, Iterator
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
]
INNER = st.one_of(*PLAIN[:9])
WRAPPED = parameters(
    "arcl", objective=INNER, denominator=st.sampled_from(["paper", "worst"]), views=st.none()
) | parameters("aal", objective=INNER, denominator=st.sampled_from(["paper", "worst"]), views=st.none())
ANY = st.one_of(*PLAIN, WRAPPED)
OBJECTIVES = ANY | parameters(
    "sum", terms=st.lists(st.tuples(st.sampled_from([1.0, 0.1, -2.0]), ANY).map(list), min_size=2, max_size=3)
)

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
        "known": st.sampled_from(["", "", "ids", "labels", "negatives", "weighted negatives", "queue", "queues"]),
        "prior": st.booleans(),
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

    if known in ("queue", "queues"):
        views = [leaf(draw(count).transpose(0, 1).contiguous() if known == "queues" else draw(1)[0])]
        views.append(draw(count).transpose(0, 1).contiguous() if known == "queues" else draw(1)[0])
        options["queue"] = draw(1, size + 2)[0]
        pairing = None
    else:
        views = [leaf(x) for x in draw(count)]
    if known in ("negatives", "weighted negatives"):
        options["negatives"] = leaf(draw(1 + case["seed"] % 2).transpose(0, 1).contiguous())
        if known == "weighted negatives":
            options["negative_weight"] = 0.7
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
    batch = reference.Batch(views, normalize, **options)
    return batch, {**options, "pairing": pairing, "normalize": normalize}, leaves


def gradients(loss: torch.Tensor, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    if not loss.requires_grad:
        return [torch.zeros_like(x) for x in leaves]
    found = torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]


def value_and_gradients(loss: torch.Tensor, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    return [x.detach().double() for x in (loss, *gradients(loss, leaves))]


def check_objective(case: dict[str, Any]) -> None:
    """Value and gradient are the reference's, up to what rounding similarities in this precision does to them."""
    words, built = json.dumps(case["objective"]), build(case)
    if built is None:
        return
    batch, options, leaves = built
    loss_fn = cp.from_dict(case["objective"])
    tile = {"matrix": 0, "tiles": case["tile"]}.get(case["engine"])
    with engine(case["engine"]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as of ArCL with two views
        found = value_and_gradients(loss_fn(*batch.views, tile=tile, **options), leaves)
    eps = torch.finfo(torch.float64 if case["dtype"] == "float64" else torch.float32).eps
    if case["engine"] == "kernels" and case["dtype"] == "bfloat16" and batch.normalize:
        eps = torch.finfo(torch.bfloat16).eps
    matrices: list[torch.Tensor] = []
    random = torch.Generator().manual_seed(case["seed"])

    def noise(s: torch.Tensor) -> torch.Tensor:
        matrices.append(s)
        return s

    def disturbed(s: torch.Tensor) -> torch.Tensor:
        # distances, 1 - s, are rounded like numbers of size one
        size = max(float(s.detach().abs().max()), 1.0)
        return s + 2 * eps * size * (2 * torch.rand(s.shape, generator=random, dtype=s.dtype) - 1)

    loss = reference.batch_loss(case["objective"], batch, options["pairing"], noise)
    exact = value_and_gradients(loss, leaves)
    draws = [
        value_and_gradients(reference.batch_loss(case["objective"], batch, options["pairing"], disturbed), leaves)
        for _ in range(3)
    ]
    counts[f"engine {case['engine']}"] += 1
    counts[f"dtype {case['dtype']}"] += 1
    counts[f"shape {case['shape']}"] += 1
    counts[f"objective {case['objective']['name']}"] += 1
    counts[f"pairing {options['pairing'] or 'own'}"] += 1
    pull = sum(float(g.abs().sum(1).max() + g.abs().sum(0).max()) for g in gradients(loss, matrices))
    if '"paper"' in words:  # ArCL's positive is in the denominator too: their gradients cancel
        pull += 1 / min(map(float, re.findall(r'"temperature": ([0-9.e-]+)', words)), default=1.0)
    reach = max(float(v.detach().double().abs().max()) for v in batch.views)
    half = torch.finfo(DTYPES[case["dtype"]]).eps
    for at, (ours, right) in enumerate(zip(found, exact, strict=True)):
        scale = float(right.abs().max())
        near = [one[at] for one in draws if one[at].isfinite().all()]  # others have left the formula's domain
        spread = max((float((one - right).abs().max()) for one in near), default=0.0)
        allowed = 24 * spread + 200 * eps * (scale + (at == 0))
        if at:
            norms = leaves[at - 1].detach().double().norm(dim=-1)
            size = 1 / float(norms.min()) if batch.normalize else reach
            allowed += 64 * eps * pull * size + 2 * half * scale + 2 * torch.finfo(DTYPES[case["dtype"]]).tiny
        error = float((ours - right).abs().max())
        what = "value" if not at else f"gradient of leaf {at}"
        assert error <= allowed, f"{loss_fn}, {what}: off by {error:.3g}, allowed {allowed:.3g}; {ours} != {right}"


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
            share = (0.7 if name == "objectives" else 0.1) * 60 * minutes
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
