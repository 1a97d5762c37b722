"""Who is compared with whom: every pairing against double loops."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch
import torch.nn.functional as F
from identities import SEED, WITHOUT_ATTACK, cosines, embeddings, prop, same

import counterpoint as cp


@pytest.mark.parametrize("spec", [s for s in WITHOUT_ATTACK if "dp" not in s])
@prop(4, seed=SEED)
def test_ids_remove_the_columns_of_duplicates(spec, seed):
    z, ids = embeddings(seed, 2, 6), torch.tensor([4, 9, 4, 1, 9, 4])
    a, b = F.normalize(z, dim=-1)
    known = ids.unsqueeze(1) != ids
    expected = cp.objective(spec).from_scores((a * b).sum(1), a @ b.T, known)
    actual = cp.objective(spec)(z[0], z[1], pairing="one_way", ids=ids)
    same(actual, expected, z, rtol=1e-7, atol=1e-9)


def definition(name: str, m: int, n: int, group: list[int], labelled: bool = False):
    """Each anchor's positive pairs, its key pairs, and the pair in its denominator, by definition.

    A view of a sample is ``(view, sample)``; samples of the same ``group`` are not each other's negatives.
    """
    first = {"one_way": [(0, range(1, m))], "symmetric": [(0, [1]), (1, [0])], "first_two": [(0, [0, 1]), (1, [0, 1])]}
    sides = {
        **first,
        "views": [(v, range(m)) for v in range(m)],
        "pairs": [(v, pair) for pair in combinations(range(m), 2) for v in pair],
        "arcl": [(0, [0, 1])],
    }[name]
    for view, key_views in sides:
        for i in range(n):
            anchor = (view, i)
            positives = [(anchor, (w, i)) for w in key_views if w != view]
            if labelled:
                positives = [
                    (anchor, (w, j)) for w in key_views for j in range(n) if group[j] == group[i] and (w, j) != anchor
                ]
            if name == "first_two":
                positives += [(anchor, (w, i)) for w in range(2, m)]
            if name == "arcl":
                positives = [((v, i), (w, i)) for v, w in combinations(range(m), 2)]
            negatives = [(anchor, (w, j)) for w in key_views for j in range(n) if group[j] != group[i]]
            yield positives, negatives, ((0, i), (1, i)) if name == "arcl" else None


def loss_by_loops(rows, score, t: float):
    """Compute InfoNCE of each row of ``definition``, term by term."""
    losses = []
    for positives, negatives, in_denominator in rows:
        mass = sum(torch.exp(score(*pair) / t) for pair in negatives)
        terms = []
        for pair in positives:
            p = score(*pair)
            inside = score(*in_denominator) if in_denominator else p
            terms.append(-p / t + torch.log(torch.exp(inside / t) + mass))
        losses.append(torch.stack(terms).mean())
    return torch.stack(losses)


PAIRINGS = [
    *[(name, m) for name in ("views", "one_way", "first_two", "pairs", "arcl") for m in (2, 3, 4)],
    ("symmetric", 2),
]


@pytest.mark.parametrize("group", [[0, 1, 2, 3], [5, 2, 5, 2]], ids=["distinct", "duplicates"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(("name", "m"), PAIRINGS)
def test_pairings(name, m, normalize, group):
    z = embeddings(m, m, 4)
    unit = F.normalize(z, dim=-1) if normalize else z
    expected = loss_by_loops(definition(name, m, 4, group), lambda a, b: unit[a] @ unit[b], 0.5)
    ids = None if len(set(group)) == 4 else torch.tensor(group)
    options = {"pairing": name, "ids": ids, "normalize": normalize}
    same(cp.InfoNCE(0.5)(*z, reduction="none", **options), expected, z)
    same(cp.InfoNCE(0.5)(*z, **options), expected.mean(), z)


@pytest.mark.parametrize(("name", "m"), [("views", 2), ("views", 3), ("one_way", 2), ("one_way", 3)])
def test_labels(name, m):
    """Average over the samples of the class, outside the logarithm; other classes are negatives."""
    labels = [1, 0, 1, 2, 1, 0]
    z = embeddings(m, m, 6)
    unit = F.normalize(z, dim=-1)
    expected = loss_by_loops(definition(name, m, 6, labels, labelled=True), lambda a, b: unit[a] @ unit[b], 0.5)
    actual = cp.InfoNCE(0.5)(*z, pairing=name, labels=torch.tensor(labels), reduction="none")
    same(actual, expected, z)


@pytest.mark.parametrize("name", ["views", "one_way"])
def test_labels_of_one_sample_each_are_ids(name):
    z, distinct = embeddings(0, 3), torch.arange(5)
    same(cp.HCL()(*z, pairing=name, labels=distinct), cp.HCL()(*z, pairing=name), z)


@pytest.mark.parametrize("views", [1, 2, 3])
@pytest.mark.parametrize("known", [False, True])
def test_queue(views, known):
    """With several views, all pairs of views are positives, and the first view is compared with the queue."""
    q, k = (embeddings(s, 4, views).requires_grad_() for s in (0, 1))
    queue = embeddings(2, 1, 7)[0].detach().requires_grad_()
    ids, queue_ids = torch.tensor([3, 1, 4, 1]), torch.tensor([3, 3, 1, 8, 9, 4, 0])
    nq, nk, nqueue = (F.normalize(x, dim=-1) for x in (q, k.detach(), queue.detach()))
    losses = []
    for i in range(4):
        mass = sum(torch.exp(nq[i, 0] @ nqueue[n] / 0.5) for n in range(7) if not known or ids[i] != queue_ids[n])
        pairs = [(0, 0)] if views == 1 else [(a, b) for a in range(views) for b in range(views) if a != b]
        terms = [torch.exp(nq[i, a] @ nk[i, b] / 0.5) for a, b in pairs]
        losses.append(torch.stack([-torch.log(e / (e + mass)) for e in terms]).mean())
    options = {"queue": cp.Keys(queue, ids=queue_ids), "ids": ids} if known else {"queue": queue}
    actual = cp.InfoNCE(0.5)(q, k, reduction="none", **options)
    same(actual, torch.stack(losses), q, k, queue)
    if views == 1:
        same(cp.InfoNCE(0.5)(q[:, 0], k[:, 0], reduction="none", **options), actual, q, k, queue)


@pytest.mark.parametrize("known", [None, "ids", "all"])
@pytest.mark.parametrize("weight", [0.0, -0.7, 1.3])
@pytest.mark.parametrize(("views", "each"), [(2, 1), (2, 3), (3, 2)])
def test_hard_negatives(views, each, weight, known):
    """Every sample sees all hard negatives; its own ones count ``e^weight`` times."""
    z, hard = embeddings(0, views, 4), embeddings(1, 4, each)
    nz, nhard = F.normalize(z, dim=-1), F.normalize(hard, dim=-1)
    ids = torch.tensor([3, 1, 3, 2]) if known else torch.arange(4)
    hard_ids = torch.arange(4 * each).view(4, each) % 5
    losses = []
    for i in range(4):
        keys = [(nz[v, j], 0.0) for v in range(1, views) for j in range(4) if ids[j] != ids[i]]
        keys += [
            (nhard[j, n], weight if i == j else 0.0)
            for j in range(4)
            for n in range(each)
            if known != "all" or hard_ids[j, n] != ids[i]
        ]
        mass = sum(torch.exp(nz[0, i] @ key / 0.5 + extra) for key, extra in keys)
        terms = [torch.exp(nz[0, i] @ nz[v, i] / 0.5) for v in range(1, views)]
        losses.append(torch.stack([-torch.log(e / (e + mass)) for e in terms]).mean())
    options = {"ids": ids} if known else {}
    keys = cp.Keys(hard, ids=hard_ids if known == "all" else None, own_log_weight=weight)
    actual = cp.InfoNCE(0.5)(*z, negatives=keys, reduction="none", **options)
    same(actual, torch.stack(losses), z, hard)
    if each == 1:
        flat_keys = keys._replace(embeddings=hard[:, 0], ids=None if keys.ids is None else keys.ids.view(-1))
        flat = cp.InfoNCE(0.5)(*z, negatives=flat_keys, reduction="none", **options)
        same(flat, actual, z, hard)


@pytest.mark.parametrize("spec", [s for s in WITHOUT_ATTACK if "dp" not in s])
def test_a_hard_negative_with_weight_log_2_counts_twice(spec):
    z, hard, own = embeddings(0), embeddings(1, 1)[0], torch.eye(5, dtype=torch.bool)
    (a, b), nhard = F.normalize(z, dim=-1), F.normalize(hard, dim=-1)
    mask = torch.cat([~own, torch.ones_like(own), own], 1)
    expected = cp.objective(spec).from_scores((a * b).sum(1), a @ torch.cat([b, nhard, nhard]).T, mask)
    actual = cp.objective(spec)(*z, negatives=cp.Keys(hard, own_log_weight=math.log(2)))
    same(actual, expected, z, hard, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("spec", ["dcl:t=0.4", "hcl:t=0.4", "nca:t=0.4,estimator=g1", "debpos:t=0.4", "mixnca:t=0.4"])
@pytest.mark.parametrize("pairing", ["views", "one_way", "first_two", "queue"])
def test_a_prior_per_sample_replaces_the_objectives(spec, pairing):
    z, prior = embeddings(0), torch.tensor([0.02, 0.3, 0.1, 0.05, 0.2], dtype=torch.float64)
    options = {"queue": embeddings(1, 1, 6)[0]} if pairing == "queue" else {"pairing": pairing}
    loss_fn = cp.objective(spec)
    actual = loss_fn(*z, prior=prior, reduction="none", **options)
    rows = [loss_fn.replace(prior=float(prior[i % 5]))(*z, reduction="none", **options)[i] for i in range(len(actual))]
    same(actual, torch.stack(rows), z)


WEIGHTED = [s for s in WITHOUT_ATTACK if s.startswith(("infonce", "dcl", "hcl", "a")) and "dp" not in s]


@pytest.mark.parametrize("spec", WEIGHTED)
@pytest.mark.parametrize(
    "options", [{}, {"pairing": "one_way"}, {"labels": torch.tensor([0, 0, 1, 1, 2])}, {"engine": "tiles:2"}], ids=str
)
def test_a_weight_of_the_positives_scales_p_over_t_in_the_numerator(spec, options):
    if "labels" in options and spec.startswith(("arcl", "aal")):
        return  # their positives are pairs of views
    z, weight = embeddings(0), torch.tensor([0.5, 2.0, 0.0, -1.0, 1.0], dtype=torch.float64)

    def losses(**more):
        return cp.objective(spec)(*z, reduction="none", **options, **more)

    plain = losses()
    same(losses(positive_factor=torch.ones(5)), plain, z)
    if not any(isinstance(part, cp.InfoNCE) for part in cp.objective(spec).modules()):
        same(losses(positive_factor=weight), plain, z)
        return
    none, both = (losses(positive_factor=torch.full((5,), x)) for x in (0.0, 2.0))
    rows = weight.repeat(len(plain) // 5)
    same(losses(positive_factor=weight), none + rows * (both - none) / 2, z)
    if spec.startswith("infonce:t=0.3") and "labels" not in options:
        positive = F.cosine_similarity(z[0], z[1]).repeat(len(plain) // 5)
        same(none - both, 2 * positive / 0.3, z)


def test_a_weight_per_view_is_that_of_its_anchors():
    z, weight = embeddings(0, 3), torch.rand(3, 5, dtype=torch.float64)
    loss_fn = cp.HCL(0.3)
    rows = [loss_fn(*z, positive_factor=w, reduction="none")[5 * v : 5 * v + 5] for v, w in enumerate(weight)]
    same(loss_fn(*z, positive_factor=weight, reduction="none"), torch.cat(rows), z)


@pytest.mark.parametrize(
    ("weight", "options", "said"),
    [
        (torch.ones(4), {}, r"positive_factor: expected a number per sample, shape \(5\), or .* \(2, 5\), got \(4\)"),
        (torch.ones(2, 5), {"pairing": "one_way"}, r"\(2, 5\) is a number per view, but the pairing has 5 anchors"),
        (torch.full((5,), math.nan), {}, "positive_factor: 5 of 5 values are NaN"),
    ],
)
def test_wrong_weights_of_positives_are_refused(weight, options, said):
    with pytest.raises(ValueError, match=said):
        cp.InfoNCE()(*embeddings(0), positive_factor=weight, **options)


def test_a_prior_per_anchor_of_ready_made_scores():
    pos, neg = cosines(0)
    prior = torch.tensor([0.0, 0.3, 0.1, 0.05, 0.2], dtype=torch.float64)
    scores = cp.Scores(pos, cp.MatrixNegatives(neg), prior=prior.unsqueeze(1))
    actual = cp.DCL(0.5).compute_loss(lambda _: scores, pos.device, reduction="none")
    rows = [cp.DCL(0.5, float(p)).from_scores(pos, neg, reduction="none")[i] for i, p in enumerate(prior)]
    same(actual, torch.stack(rows), pos, neg)
