"""Queries and documents: Q queries, N documents, and any positives by index, against each query computed alone."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from processes import part, run
from torch.nn.functional import normalize

import counterpoint as cp

ENGINES = ["matrix", "tiles:3", "chunks:4", "auto"]
SPECS = ["infonce:t=0.3", "dcl:t=0.3", "hcl:t=0.3", "adnce:t=0.3", "supcon:t=0.3", "dro", "siglip", "psl", "soft:t=0.3"]
QUERIES, DOCUMENTS = 7, 11
INDEX = torch.tensor([[0, 4, 9], [3, -1, -1], [-1, -1, -1], [5, 5, 2], [10, 0, -1], [-1, 6, -1], [1, 2, 3]])
MASK = torch.zeros(QUERIES, DOCUMENTS + 1, dtype=torch.bool).scatter(1, INDEX % (DOCUMENTS + 1), True)[:, :DOCUMENTS]


def embeddings(seed: int = 0, width: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    some = torch.randn(QUERIES + DOCUMENTS, width, generator=draw, dtype=torch.float64)
    return some[:QUERIES].clone().requires_grad_(), some[QUERIES:].clone().requires_grad_()


def alone(spec, queries, documents, counts=None, log_q=None, most=None):
    """The mean of the losses of queries with a positive, each with its own matrix of one row."""
    s, losses = normalize(queries, dim=1) @ normalize(documents, dim=1).T, []
    counts = torch.ones_like(MASK) if counts is None else counts
    for i in range(QUERIES):
        if MASK[i].any():
            keep = ~MASK[i] & counts[i]
            if most is not None:
                keep = keep & (s[i] <= s[i][MASK[i]].min() - most)
            weight = None if log_q is None else -log_q[keep][None]
            neg = cp.MatrixNegatives(s[i][keep][None], log_weight=weight)
            losses.append(cp.objective(spec).double().from_scores(s[i][MASK[i]][None], neg))
    return torch.stack(losses).mean()


def check(found, expected, leaves):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(*(torch.autograd.grad(x, leaves) for x in (found, expected)), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("known", ["", "ids", "log_q", "rule"])
def test_each_query_is_what_it_is_alone(spec, engine, known):
    (queries, documents), loss_fn = embeddings(), cp.objective(spec).double()
    keys, options, more = cp.Keys(documents, positives=INDEX), {}, {}
    if known == "ids":
        ids, of_documents = torch.arange(QUERIES) % 3, torch.arange(DOCUMENTS) % 5
        options, keys = {"ids": ids}, keys._replace(ids=of_documents)
        more = {"counts": ids.unsqueeze(1) != of_documents}
    elif known == "log_q":
        log_q = torch.linspace(-3, 1, DOCUMENTS, dtype=torch.float64)
        log_q[8] = torch.inf  # never a negative
        keys, more = keys._replace(log_q=log_q), {"log_q": log_q, "counts": (log_q < torch.inf).expand(QUERIES, -1)}
    elif known == "rule":
        options, more = {"false_negatives": cp.margin(-0.9)}, {"most": -0.9}
    found = loss_fn(queries, keys, engine=engine, **options)
    check(found, alone(spec, queries, documents, **more), [queries, documents])
    by_mask = loss_fn(queries, keys._replace(positives=MASK), engine=engine, **options)
    torch.testing.assert_close(by_mask, found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("spec", ["arcl(infonce:t=0.02)", "dro:radius=9"])
def test_equal_documents_have_the_gradient_of_one(spec):
    """Rounding, and so the engine, decides which of them is the least similar positive, or the largest negative."""
    for seed in range(4):
        queries, documents = embeddings(seed)
        with torch.no_grad():
            documents[4] = documents[0]
            documents[8] = documents[7]
        losses = [cp.objective(spec).double()(queries, cp.Keys(documents, positives=INDEX), engine=e) for e in ENGINES]
        (loss, *slope), *others = ((x, *torch.autograd.grad(x, [queries, documents])) for x in losses)
        for other, *of_other in others:
            torch.testing.assert_close(other, loss, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(of_other[0], slope[0], rtol=1e-9, atol=1e-12)
            for i, j in ((0, 4), (7, 8)):
                torch.testing.assert_close(of_other[1][[i, j]].sum(0), slope[1][[i, j]].sum(0), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_one_positive_each_is_cross_entropy(engine):
    queries, documents = embeddings()
    column = torch.tensor([3, 3, 0, 10, 5, 1, 7])
    logits = normalize(queries, dim=1) @ normalize(documents, dim=1).T / 0.2
    found = cp.InfoNCE(0.2)(queries, cp.Keys(documents, positives=column), engine=engine)
    check(found, torch.nn.functional.cross_entropy(logits, column), [queries, documents])


@pytest.mark.parametrize("engine", ENGINES[:3])
def test_a_guide_that_has_seen_the_documents(engine):
    (queries, documents), (g, of_documents) = embeddings(), (x.detach() for x in embeddings(1, 4))
    index = torch.arange(QUERIES)
    keys = cp.Keys(documents, positives=index, guide=of_documents)
    found = cp.SoftTargets(0.3, tau=0.2)(queries, keys, guide=g, engine=engine)
    s, targets = (normalize(a, dim=1) @ normalize(b, dim=1).T for a, b in ((queries, documents), (g, of_documents)))
    check(found, torch.nn.functional.cross_entropy(s / 0.3, (targets / 0.2).softmax(1)), [queries, documents])
    judge, own = targets, targets.gather(1, index.unsqueeze(1))
    drop = (judge > own + 0.6) & ~torch.eye(QUERIES, DOCUMENTS, dtype=torch.bool)
    assert drop.any()
    s = normalize(queries, dim=1) @ normalize(documents, dim=1).T
    expected = torch.nn.functional.cross_entropy((s / 0.3).masked_fill(drop, -torch.inf), index)
    how = {"guide": g, "false_negatives": cp.margin(-0.6), "engine": engine}
    check(cp.InfoNCE(0.3)(queries, keys, **how), expected, [queries, documents])


@pytest.mark.parametrize("engine", ENGINES[:3])
@pytest.mark.parametrize("positives", ["repeated", "padded", "booleans"])
def test_a_guide_of_several_positives_each(engine, positives):
    """Soft targets are the same whichever keys are positives: each document keeps its guide, in any order of rows."""
    (queries, documents), (g, of_documents) = embeddings(), (x.detach() for x in embeddings(1, 4))
    index = torch.stack([torch.arange(QUERIES), torch.arange(QUERIES).roll(2), torch.arange(QUERIES) + 3], 1)
    if positives == "repeated":
        index[1], index[4, 2] = torch.tensor([1, 0, 1]), index[4, 0]
    elif positives == "padded":
        index[2, 0] = index[5, 1] = -1
    else:
        index = torch.zeros(QUERIES, DOCUMENTS, dtype=torch.bool).scatter(1, index, True)
    targets = (normalize(g, dim=1) @ normalize(of_documents, dim=1).T / 0.2).softmax(1)
    keys = cp.Keys(documents, positives=index, guide=of_documents)
    for rules in ({}, {"false_negatives": cp.threshold(1.0)}):
        found = cp.SoftTargets(0.3, tau=0.2)(queries, keys, guide=g, engine=engine, **rules)
        s = normalize(queries, dim=1) @ normalize(documents, dim=1).T
        check(found, torch.nn.functional.cross_entropy(s / 0.3, targets), [queries, documents])


@pytest.mark.parametrize(
    "positives",
    [
        pytest.param(INDEX, id="index", marks=pytest.mark.slow),
        pytest.param(INDEX[:, 1].clamp(min=0), id="column", marks=pytest.mark.slow),
        pytest.param(MASK, id="booleans"),
    ],
)
def test_compiled(positives):
    queries, documents = embeddings()

    def step(queries, documents):
        return cp.HCL(0.3)(queries, cp.Keys(documents, positives=positives))

    found = torch.compile(step, fullgraph=True, backend="aot_eager")(queries, documents)
    check(found, step(queries, documents), [queries, documents])


def test_compiled_breaks_the_graph_of_many_documents():
    draw = torch.Generator().manual_seed(0)
    queries, documents = torch.randn(300, 4, generator=draw), torch.randn(1000, 4, generator=draw)
    keys, loss_fn = cp.Keys(documents, positives=torch.arange(300)), cp.InfoNCE()
    torch.testing.assert_close(torch.compile(loss_fn, backend="eager")(queries, keys), loss_fn(queries, keys))


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # by torch 2.2, of an operation under vmap
def test_groups_are_batches_of_their_own():
    queries, documents = (torch.stack(some) for some in zip(embeddings(0), embeddings(1), strict=True))
    index = torch.stack([INDEX, INDEX.flip(0)])

    def loss(q, d, p):
        return cp.HCL(0.3)(q, cp.Keys(d, positives=p))

    one_by_one = torch.stack([loss(*group) for group in zip(queries, documents, index, strict=True)])
    torch.testing.assert_close(torch.vmap(loss)(queries, documents, index), one_by_one)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_frozen_documents(dtype):
    queries, documents = (x.detach().to(dtype).requires_grad_() for x in embeddings())
    wide = [x.detach().float().requires_grad_() for x in (queries, documents)]
    for engine in ENGINES[:3]:
        found = cp.HCL(0.3)(queries, cp.Keys(documents, positives=INDEX), engine=engine)
        exact = cp.HCL(0.3)(wide[0], cp.Keys(wide[1], positives=INDEX), engine="matrix")
        torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-4)
        slopes = [torch.autograd.grad(x, some) for x, some in ((found, [queries, documents]), (exact, wide))]
        torch.testing.assert_close([x.float() for x in slopes[0]], [*slopes[1]], rtol=2e-2, atol=1e-3)
        frozen = cp.HCL(0.3)(queries, cp.Keys(documents.detach(), positives=INDEX), engine=engine)
        torch.testing.assert_close(torch.autograd.grad(frozen, queries)[0], slopes[0][0], rtol=2e-2, atol=1e-3)


def test_a_report_counts_documents():
    queries, documents = embeddings()
    found = cp.HCL(0.3).report(queries, cp.Keys(documents, positives=INDEX))
    counted = MASK.any(1)
    assert found["negatives"] == pytest.approx(float((~MASK).sum(1)[counted].double().mean()))
    assert found["loss"] == pytest.approx(float(alone("hcl:t=0.3", queries, documents)))
    assert found["engine[matrix]"] == 1.0


def gathered(rank, world, case):
    """Loss and gradients of the queries and documents of one process; positives are rows of its own documents."""
    draw, found = torch.Generator().manual_seed(0), {}
    queries, documents, guides = (torch.randn(7, n, generator=draw, dtype=torch.float64) for n in (5, 5, 8))
    index = torch.tensor([[0, 1], [1, -1], [-1, -1], [3, 4], [4, -1], [6, 3], [5, -1]])
    if case == "a process without positives":
        index[:3] = -1
    rows = part([3, 4] if world > 1 else [7], rank)
    own = index[rows] - rows.start * (index[rows] >= 0)
    for spec in ("infonce:t=0.3", "adnce:t=0.3,mu=auto", "soft:t=0.3"):
        for options in ({"ids": torch.arange(7)[rows] % 4}, {"false_negatives": cp.margin(-0.8)}):
            leaves = [x[rows].clone().requires_grad_() for x in (queries, documents)]
            keys = cp.Keys(leaves[1], positives=own, log_q=torch.linspace(-1, 0, 7, dtype=torch.float64)[rows])
            keys = keys._replace(ids=torch.arange(7)[rows] % 3, guide=guides[rows, :4])
            keys = keys if "ids" in options else keys._replace(ids=None)
            guide = {"guide": guides[rows, 4:]} if "soft" in spec else {}
            keys = keys if guide else keys._replace(guide=None)
            loss = cp.objective(spec).double()(leaves[0], keys, gather=world > 1, **options, **guide)
            loss.backward()
            found[(spec, "".join(options))] = loss.detach(), *(x.grad for x in leaves)
    return found


@pytest.mark.parametrize("case", ["", "a process without positives"])
def test_two_processes_are_one(tmp_path, case):
    (one,) = run(gathered, tmp_path, 1, 1, case)
    two = run(gathered, tmp_path, 2, 2, case)
    for name, (loss, *slopes) in one.items():
        torch.testing.assert_close(two[0][name][0], loss, msg=str(name))
        for i, slope in enumerate(slopes, 1):
            torch.testing.assert_close(torch.cat([found[name][i] for found in two]) / 2, slope, msg=str(name))


DRAWN = [
    "infonce:t=0.3", "hcl:t=learned(0.3)", "adnce:t=0.3,mu=auto,sigma=auto", "supcon:t=0.2", "arcl(dcl:t=0.3)", "psl",
    "infonce:radius=0.1", "dro:shared=true", "soft:t=0.3", "siglip", "hcl:t=0.3 + 0.5*soft:t=learned(0.2) + 0.1*dp",
]  # fmt: skip


def drawn(seed):
    """A random call: objective, sizes of two processes, tensors of all queries and documents, and options."""
    draw = torch.Generator().manual_seed(seed)

    def number(low, high):
        return int(torch.randint(low, high + 1, (), generator=draw))

    spec, sizes = DRAWN[seed % len(DRAWN)], [(number(1, 4), number(3, 6)) for _ in range(2)]
    queries, documents = (sum(some) for some in zip(*sizes, strict=True))
    tensors = {
        "queries": torch.randn(queries, 4, generator=draw, dtype=torch.float64),
        "documents": torch.randn(documents, 4, generator=draw, dtype=torch.float64),
    }
    of_process = [torch.randint(-1, n, (m, number(1, 3)), generator=draw) for m, n in sizes]
    of_process[number(0, 1)][:1, 0] = 0  # one positive at least
    if number(0, 1):
        tensors |= {"log_q": 1 - 3 * torch.rand(documents, generator=draw, dtype=torch.float64)}
    if number(0, 2):
        tensors |= {"ids": torch.arange(queries) % 5, "document_ids": torch.arange(documents) % 7}
    rules = [None, "threshold(0.6)", "margin(-0.7)"][number(0, 1 if "dp" in spec else 2)]  # dp has no positives
    if (rules and number(0, 1)) or "soft" in spec:
        tensors["guide"] = torch.randn(queries, 3, generator=draw, dtype=torch.float64)
        tensors["document_guide"] = torch.randn(documents, 3, generator=draw, dtype=torch.float64)
    options = {"false_negatives": rules, "empty": ["keep", "zero"][number(0, 1)]} if rules else {}
    options |= {"engine": ["matrix", "tiles:2", "tiles:5", "auto"][number(0, 3)], "normalize": number(0, 3) > 0}
    frozen = ["", "", "queries", "documents"][number(0, 3)]
    if number(0, 2) == 0:
        tensors |= {name: x.bfloat16() for name, x in tensors.items() if name in ("queries", "documents")}
    return spec, sizes, tensors, of_process, options, frozen


def gathered_draws(rank, world, seeds):
    found = {}
    for seed in seeds:
        spec, sizes, tensors, of_process, options, frozen = drawn(seed)
        queries, documents = (part([*some] if world > 1 else [sum(some)], rank) for some in zip(*sizes, strict=True))
        if world > 1:
            positives = of_process[rank]
        else:  # the second process's rows come after the first one's
            most = max(p.shape[1] for p in of_process)
            moved = [p + i * sizes[0][1] * (p >= 0) for i, p in enumerate(of_process)]
            positives = torch.cat([torch.nn.functional.pad(p, (0, most - p.shape[1]), value=-1) for p in moved])
        own = {k: x[documents if k.startswith("document") else queries] for k, x in tensors.items() if k != "log_q"}
        leaves = {k: own[k].clone().requires_grad_() for k in ("queries", "documents") if k != frozen}
        q, d = (leaves.get(k, own[k]) for k in ("queries", "documents"))
        log_q = tensors["log_q"][documents] if "log_q" in tensors else None
        keys = cp.Keys(d, own.get("document_ids"), own.get("document_guide"), log_q, positives=positives)
        options |= {name: own[name] for name in ("ids", "guide") if name in own}
        loss_fn = cp.objective(spec).double()
        for _ in range(2):  # the second step has the state of the first
            loss = loss_fn(q, keys, gather=world > 1, **options)
        leaves |= dict(loss_fn.named_parameters())
        slopes = torch.autograd.grad(loss, [*leaves.values()], allow_unused=True)
        slopes = [torch.zeros(()) if x is None else x for x in slopes]
        found[seed] = {"loss": loss.detach(), **dict(zip(leaves, slopes, strict=True))}
    return found


def test_random_batches_of_two_processes(tmp_path):
    (one,), two = (run(gathered_draws, tmp_path, world, world, range(66)) for world in (1, 2))
    for seed, expected in one.items():
        for name, value in expected.items():
            parts = [found[seed][name] for found in two]
            together = torch.cat(parts) if name in ("queries", "documents") else sum(parts)
            half = value.dtype == torch.bfloat16
            within = {"rtol": 2e-2, "atol": 2e-2 * float(value.abs().max())} if half else {"rtol": 1e-8, "atol": 1e-10}
            if one[seed]["loss"].dtype == torch.float32:  # of similarities of bfloat16
                within = within if half else {"rtol": 1e-5, "atol": 1e-5}
            context = f"{drawn(seed)}, {name}"
            torch.testing.assert_close(together / 2, value, **within, msg=lambda m, c=context: f"{c}: {m}")


QUERY, KEYS = torch.eye(4), torch.eye(4)
OWN = torch.arange(4)
OF = partial(cp.Keys, KEYS)
WRONG = {
    "out of range": (lambda: OF(positives=OWN + 1), {}, "expected rows from 0 to 3, or -1 for none, got [4]"),
    "below": (lambda: OF(positives=OWN - 2), {}, "or -1 for none, got [-2]"),
    "floats": (lambda: OF(positives=OWN / 2), {}, "got (4) of torch.float32"),
    "rows": (lambda: OF(positives=OWN[:3]), {}, "expected integers (4, P) or (4,)"),
    "booleans": (lambda: OF(positives=torch.ones(4, 3) > 0), {}, "or booleans (4, 4), got (4, 3) of torch.bool"),
    "list": (lambda: OF(positives=[0, 1, 2, 3]), {}, "documents: positives: expected a tensor, got list"),
    "none": (lambda: OF(positives=OWN * 0 - 1), {}, "a positive of at least one query, got none"),
    "no negatives": (lambda: OF(positives=torch.ones(4, 4) > 0), {}, "4 of 4 anchors have no negatives"),
    "missing": (lambda: OF(), {}, "documents: expected positives= and no queue="),
    "queue": (lambda: OF(positives=OWN), {"queue": KEYS}, "documents: expected positives= and no queue="),
    "in a queue": (lambda: KEYS, {"queue": OF(positives=OWN)}, "queue: positives= is of documents"),
    "in negatives": (lambda: KEYS, {"negatives": OF(positives=OWN)}, "negatives: positives= is of documents"),
    "negatives": (lambda: OF(positives=OWN), {"negatives": KEYS}, "expected documents or negatives=, got both"),
    "labels": (lambda: OF(positives=OWN, ids=OWN), {"labels": OWN}, "labels= cannot be combined with documents"),
    "ids": (lambda: OF(positives=OWN), {"ids": OWN}, "with documents: needs those of the keys"),
    "pairing": (lambda: OF(positives=OWN), {"pairing": "views"}, "documents are a pairing, and so is 'views'"),
    "width": (lambda: cp.Keys(KEYS[:, :3], positives=OWN), {}, "documents: expected shape (keys, 4), got (4, 3)"),
    "NaN": (lambda: cp.Keys(KEYS * torch.nan, positives=OWN), {}, "documents: 16 of 16 values are NaN"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_documents_are_named(name):
    keys, options, message = WRONG[name]
    with pytest.raises((ValueError, TypeError)) as caught:
        cp.InfoNCE()(QUERY, keys(), **options)
    assert message in str(caught.value)
