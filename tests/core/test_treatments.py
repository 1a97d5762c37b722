"""Treatments: their text, what they look up, and which keys they exclude."""

from __future__ import annotations

import re

import pytest
import torch
from torch.nn.functional import normalize

import counterpoint as cp

G = torch.Generator().manual_seed(0)
Z1, Z2 = normalize(torch.randn(2, 6, 8, generator=G, dtype=torch.float64), dim=2)
Z2[3] = Z2[0]
IDS = torch.tensor([0, 1, 2, 0, 4, 5])
RIGHT = cp.InfoNCE(0.5)(Z1, Z2, ids=IDS, pairing="one_way")
LOGITS = Z1 @ Z2.T


@pytest.mark.parametrize(
    "text",
    [
        "infonce:t=0.5,denominator=with_positive; duplicates",
        "hcl:t=0.1,denominator=with_positive,prior=0.01; ids=batch['doc']; margin=-0.1",
        "infonce:t=0.1,denominator=with_positive + 0.1*dp; labels=self.y[0]",
        'infonce:t=0.1,denominator=with_positive; duplicates=batch["input_ids"]',
        "infonce:t=0.1,denominator=with_positive; guide=g; margin=0.95,percentage; threshold=0.9",
    ],
)
def test_prints_the_text_that_it_reads(text):
    t = cp.treatment(text)
    assert str(t) == text
    assert cp.treatment(str(t)) == t == cp.objective(text)
    assert cp.from_dict(t.to_dict()) == t
    assert cp.treatment("infonce; duplicates") != cp.treatment("infonce")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hcl; dupplicates", "Did you mean 'duplicates'"),
        ("hcl; ids", "expected a value, as in ids="),
        ("hcl; margin", "expected a value, as in margin=-0.1, got 'margin'"),
        ("hcl, duplicates", "behind a semicolon, hcl; duplicates"),
        ("hcl:t=0.1, ids=y", "behind a semicolon, hcl:t=0.1; ids=y"),
        ("hcl; ids=f(x)", "expected a path that is looked up"),
        ("hcl; ids=__class__", "expected a path that is looked up"),
        ("hcl; ids=y._secret", "expected a path that is looked up"),
        ("hcl; margin=a", r"^treatment: expected margin=0\.1, .*threshold=0\.9,hard=False, got 'margin=a'\.$"),
        ("hcl; margin=5%", r"^treatment: expected margin=0\.1, margin=0\.05,relative, .*, got 'margin=5%'\.$"),
        ("hcl; margin=2,relative", "^margin: a relative margin is a share from 0 to 1"),
        ("duplicates", r"'duplicates' is what an objective is told, behind a semicolon: 'host; duplicates' or 'hcl"),
        ("hcl; guide=g", "without a rule"),
        ("hcl; ids=a; ids=b", "given twice"),
        ("hcl; ids=a; labels=b", "labels are ids, too"),
        ("hlc; duplicates", "Did you mean 'hcl'"),
    ],
)
def test_refuses(text, message):
    with pytest.raises(ValueError, match=message):
        cp.treatment(text)


def test_has_the_temperature_and_the_denominator_of_the_loss_that_it_replaces():
    own = "infonce:t=0.2,denominator=negatives"
    assert cp.objective("adnce", like=own) == cp.ADNCE(0.2, denominator="negatives")
    assert cp.objective("adnce:t=0.1", like=own) == cp.ADNCE(0.1, denominator="negatives")
    assert cp.objective("supcon; labels=y", like="infonce:t=0.2") == cp.treatment("supcon:t=0.2; labels=y")
    assert cp.objective("hcl + 0.1*dp; duplicates", like=own) == cp.treatment(
        "hcl:t=0.2,denominator=negatives + 0.1*dp; duplicates"
    )
    assert cp.objective("host; duplicates", like=own) == cp.treatment(f"{own}; duplicates")


def test_ids_of_anchors_whose_logits_are_those_of_several_groups():
    """Column 0 is another key in each half."""
    told, columns = cp.treatment("infonce:t=1; ids=y"), torch.arange(3).repeat(2)
    with pytest.raises(ValueError, match="have several values: expected one per key, 3 in all"):
        told.from_logits(LOGITS[:, :3], columns, ids=torch.arange(6))
    same = told.from_logits(LOGITS[:, :3], columns, ids=columns // 2)
    torch.testing.assert_close(same, told.from_logits(LOGITS[:, :3], columns, ids=torch.tensor([0, 0, 1])))


@pytest.mark.parametrize("mask", [-torch.inf, -1e9])
def test_keys_that_all_anchors_leave_out_do_not_make_the_others_equal(mask):
    padded = torch.cat([LOGITS, torch.full((6, 2), mask, dtype=torch.float64)], 1)
    t = cp.treatment("infonce:t=0.5; duplicates")
    torch.testing.assert_close(t.from_logits(padded, torch.arange(6)), RIGHT)


@pytest.mark.parametrize("scale", [1.0, 20.0])
@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("duplicates", {}),
        ("duplicates=texts", {"duplicates": ["a", "b", "c", "a", "d", "e"]}),
        ("duplicates=texts", {"duplicates": torch.stack([IDS, IDS % 2], 1)}),
        ("ids=y", {"ids": IDS}),
    ],
)
def test_excludes_the_same_keys_from_embeddings_and_from_logits(text, known, scale):
    t = cp.treatment(f"infonce:t=0.5; {text}")
    torch.testing.assert_close(t(Z1, Z2, pairing="one_way", **known), RIGHT)
    torch.testing.assert_close(t.from_logits(LOGITS * scale, scale=scale, **known), RIGHT)
    assert t.counts == {"anchors": 12, "excluded": 4, "without_negatives": 0}  # of two calls
    both = torch.stack([LOGITS, LOGITS.mT])  # of which only rows have equal columns
    if known:
        assert t.from_logits(both, **known).isfinite()
    numbers = t.report(LOGITS * scale, call="from_logits", scale=scale, **known)
    assert numbers["negatives"] == pytest.approx(5 - 2 / 6)


def test_keys_that_are_drawn_often_count_less():
    t, log_q = cp.treatment("hcl:t=0.5; log_q=share"), torch.linspace(-3, 0, 6, dtype=torch.float64)
    right = cp.HCL(0.5)(Z1, Z2, pairing="one_way", log_q=log_q)
    torch.testing.assert_close(t(Z1, Z2, pairing="one_way", log_q=log_q), right)
    torch.testing.assert_close(t.from_logits(LOGITS, log_q=log_q), right)
    assert t.report(LOGITS, call="from_logits", log_q=log_q)["loss"] == pytest.approx(float(right))
    masked = LOGITS.clone()
    masked[0, 3:] = -torch.inf  # of the others, one row is ignored
    labels = torch.tensor([0, 1, -100, 3, 4, 5])
    one_by_one = [cp.HCL(0.5).from_logits(masked[i : i + 1], labels[i : i + 1], log_q=log_q) for i in (0, 1, 3, 4, 5)]
    torch.testing.assert_close(t.from_logits(masked, labels, log_q=log_q), torch.stack(one_by_one).mean())
    with pytest.raises(ValueError, match="log_q: expected a number per key, 6 in all, got shape"):
        t.from_logits(LOGITS, log_q=log_q[:3])
    with pytest.raises(TypeError, match="log_q=share: expected logits or embeddings, got scores"):
        t.from_scores(LOGITS.diagonal(), LOGITS, log_q=log_q)


def test_a_call_of_one_anchor_may_be_left_without_negatives():
    """As in loops over anchors, of which other calls of the step have some."""
    t = cp.treatment("infonce:t=0.5; threshold=-2")
    assert t.from_logits(torch.tensor([[0.9, -3.0, -3.1]]), torch.tensor([0])).isfinite()
    assert t.counts["without_negatives"] == 0
    assert t.from_logits(torch.tensor([[0.9, -1.0, 0.1]]), torch.tensor([0])).isfinite()
    assert t.counts["without_negatives"] == 1


def test_labels_are_positives():
    t = cp.treatment("supcon:t=0.5; labels=y")
    right = cp.SupCon(0.5)(Z1, Z2, labels=IDS, pairing="one_way")
    torch.testing.assert_close(t(Z1, Z2, labels=IDS, pairing="one_way"), right)
    torch.testing.assert_close(t.from_logits(LOGITS, classes=IDS), right)


def test_two_views_in_both_orders():
    right = cp.InfoNCE(0.5)(Z1, Z2, ids=IDS)
    t, at = cp.treatment("infonce:t=0.5; ids=y"), torch.arange(12)
    z = torch.cat([Z1, Z2])
    torch.testing.assert_close(t.from_logits((z @ z.T).fill_diagonal_(-torch.inf), (at + 6) % 12, ids=IDS), right)
    z = torch.stack([Z1, Z2], 1).flatten(0, 1)
    torch.testing.assert_close(t.from_logits((z @ z.T).fill_diagonal_(-torch.inf), at ^ 1, ids=IDS), right)
    with pytest.raises(ValueError, match=r"expected one value for each of 12 anchors or 12 keys, got 5"):
        t.from_logits((z @ z.T).fill_diagonal_(-torch.inf), at ^ 1, ids=IDS[:5])


def test_an_anchor_without_negatives_does_not_end_a_training_but_a_step_without_any_does():
    t = cp.treatment("infonce:t=0.5; threshold=-2")
    logits = torch.tensor([[0.9, -3.0, -3.0], [0.3, 0.9, 0.1], [0.1, 0.2, 0.9]])
    loss = t.from_logits(logits, reduction="none")
    left = logits.masked_fill(logits == torch.tensor([[1.0], [0.3], [0.2]]), -torch.inf)  # the least similar one stays
    torch.testing.assert_close(loss, cp.InfoNCE(0.5).from_logits(left, reduction="none"))
    assert t.counts["without_negatives"] == 2
    numbers = t.report(logits, call="from_logits")
    assert (numbers["without_negatives"], numbers["excluded"]) == (2, pytest.approx(2 / 3))
    with pytest.raises(ValueError, match=r"without negatives\. A lower margin=, or a higher threshold=, ex"):
        t.from_logits(logits[1:])


def test_ids_in_another_order_than_the_keys_say_so():
    """An anchor and its positive are one sample, so ids that shift from view to view make all samples one."""
    z = normalize(torch.randn(12, 4, generator=G, dtype=torch.float64), dim=1)
    logits = (z @ z.T * 5).masked_fill(torch.eye(12, dtype=torch.bool), -torch.inf)
    positives = (torch.arange(12) + 6) % 12
    t, n = cp.treatment("infonce; ids=x"), torch.arange(6)
    t.from_logits(logits, positives, scale=5.0, ids=torch.cat([n, n]))
    with pytest.raises(ValueError, match="are values in the order of the keys"):
        t.from_logits(logits, positives, scale=5.0, ids=torch.cat([n, (n + 1) % 6]))


@pytest.mark.parametrize(
    ("pairing", "engine"),
    [
        *((pairing, engine) for pairing in ("one_way", "views", "symmetric") for engine in ("tiles:3", "chunks:3")),
        ("joint", "matrix"),
        ("joint", "tiles:3"),
    ],
)
@pytest.mark.parametrize("guided", [False, True])
def test_the_least_similar_key_stays_in_every_engine(engine, pairing, guided):
    z = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    g = normalize(z.roll(1, 0) if guided else z, dim=2)
    rows = {"one_way": g[0], "views": g.flatten(0, 1), "symmetric": g.flatten(0, 1), "joint": g[0]}[pairing]
    keys = g.flatten(0, 1)
    s = (rows @ keys.T).masked_fill(torch.arange(len(rows))[:, None] % 6 == torch.arange(12) % 6, 9)
    if pairing in ("one_way", "symmetric"):
        s = s.masked_fill((torch.arange(len(rows))[:, None] < 6) == (torch.arange(12) < 6), 9)
    if pairing == "joint":  # of other anchors, too
        s = torch.cat([s, (g[1] @ keys.T).masked_fill(torch.arange(6)[:, None] == torch.arange(12) % 6, 9)], 1)
    value = float(s.amin(1).median())
    t = cp.treatment(f"infonce:t=0.5; threshold={value}" + "; guide=g" * guided)
    how = {"pairing": pairing, "engine": engine, **({"guide": [*g]} if guided else {})}
    t(*z, **how)
    counted, emptied = t.counts["without_negatives"], int((s.amin(1) > value + 1e-9).sum())
    assert counted == emptied > 0
    assert t.report(*z, **how)["without_negatives"] == emptied
    wanted = cp.InfoNCE(0.5)(*z, **{**how, "engine": "matrix"}, false_negatives=t.rules, empty="keep")
    torch.testing.assert_close(t(*z, **how), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_masked_logits_are_no_keys_in_any_precision(dtype):
    """Minus 1e4 is -9984 in bfloat16; the least similar key, which stays, is none of the masked ones."""
    logits = torch.tensor([[0.9, 0.75, 0.5, -1e4], [0.25, 0.9, 0.1, -1e4]], dtype=dtype)
    t = cp.treatment("infonce:t=0.5; threshold=0.2")
    left = torch.tensor([[0.9, -torch.inf, 0.5, -torch.inf], [-torch.inf, 0.9, 0.1, -torch.inf]], dtype=dtype)
    torch.testing.assert_close(t.from_logits(logits), cp.InfoNCE(0.5).from_logits(left))
    assert (t.counts["without_negatives"], t.counts["excluded"]) == (1, 2)


def test_a_guide_of_rows_that_are_all_ignored_is_not_read():
    t, labels = cp.treatment("soft:t=0.5,tau=3.0,weight=linear; threshold=0.2"), torch.tensor([-100, -100])
    assert float(t.from_logits(torch.full((2, 3), torch.nan), labels)) == 0


@pytest.mark.parametrize("text", ["ids=y", "duplicates=y", "ids=y; margin=-0.2"])
def test_rows_that_are_ignored_say_nothing_of_keys(text):
    """Without the others they are as good as absent, wherever they are."""
    z, ids, rows = torch.cat([Z1, Z2]), torch.cat([IDS, IDS]), torch.tensor([1, 2, 3, 4, 5, 7, 8, 9, 11])
    known, labels = {"ids": ids, "duplicates": ids[:, None]}, torch.full((12,), -100)
    labels[rows] = (rows + 6) % 12
    logits = (z @ z.T).fill_diagonal_(-torch.inf)
    t = cp.treatment(f"infonce:t=0.5; {text}")
    told = {name: known[name] for name in t.paths}
    every = t.from_logits(logits, (torch.arange(12) + 6) % 12, reduction="none", **told)
    some = t.from_logits(logits, labels, reduction="none", **told)
    torch.testing.assert_close(some[rows], every[rows])
    t = cp.treatment(f"infonce:t=0.5; {text}")
    wide = t.from_logits(LOGITS, torch.tensor([-100, 1, 2, 3, 4, 5]), **{name: x[:6] for name, x in told.items()})
    assert t.counts["anchors"] == 5
    assert wide.isfinite()


def test_says_which_logits_have_no_keys_in_common():
    queue = torch.randn(4, 9, generator=G)
    with pytest.raises(ValueError, match="do not say which keys anchors have in common"):
        cp.treatment("infonce; duplicates").from_logits(queue, torch.zeros(4, dtype=torch.long))


def test_a_guide_decides_what_a_rule_excludes():
    guide = normalize(torch.randn(6, 4, generator=G, dtype=torch.float64), dim=1)
    t = cp.treatment("infonce:t=0.5; guide=g; threshold=0.3")
    with pytest.raises(ValueError, match=r"keys, not the model of these; got Identity\.$"):
        t.from_logits(LOGITS, guide=torch.nn.Identity())
    right = cp.InfoNCE(0.5)(Z1, Z2, guide=[guide, guide], false_negatives=cp.threshold(0.3), pairing="one_way")
    torch.testing.assert_close(t.from_logits(LOGITS, guide=guide), right)
    torch.testing.assert_close(t.from_logits(LOGITS, guide=guide @ guide.T), right)
    torch.testing.assert_close(t(Z1, Z2, guide=[guide, guide], pairing="one_way"), right)


def test_needs_what_it_was_told_of():
    with pytest.raises(TypeError, match="pass ids="):
        cp.treatment("infonce; ids=y")(Z1, Z2)
    with pytest.raises(TypeError, match="pass labels="):
        cp.treatment("infonce; labels=y").from_logits(LOGITS)
    with pytest.raises(TypeError, match="before its first semicolon"):
        cp.treatment("infonce; duplicates") + cp.InfoNCE()


def test_duplicates_of_either_side_are_the_same_sample():
    """Of logits transposed, equal keys have become equal anchors."""
    t = cp.treatment("infonce:t=0.5; duplicates")
    right = cp.InfoNCE(0.5)(Z2, Z1, ids=IDS, pairing="one_way")
    torch.testing.assert_close(t.from_logits(LOGITS.mT), right)
    torch.testing.assert_close(t(Z2, Z1, pairing="one_way"), right)
    assert t.counts == {"anchors": 12, "excluded": 4, "without_negatives": 0}


@pytest.mark.parametrize("known", ["nothing", "their ids", "labels", "texts of the samples"])
def test_duplicates_among_hard_negatives_are_no_negatives(known):
    """Whatever else is known: ids of samples and of hard negatives are numbered together."""
    z1, z2, hard = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z2[4], hard[1], hard[3], hard[5] = z2[2], z2[0], z2[2], z1[5]
    number, of_hard = torch.tensor([0, 1, 2, 3, 2, 5]), torch.tensor([10, 0, 12, 2, 14, 5])
    options = {"negatives": cp.Keys(hard)}
    if known == "their ids":  # sample 3 is the same as the first hard negative
        options = {"ids": torch.tensor([7, 8, 9, 20, 11, 12]), "negatives": cp.Keys(hard, torch.arange(20, 26))}
        of_hard[0] = 3
    elif known == "labels":
        options["labels"] = torch.tensor([1, 2, 3, 4, 3, 6])
    elif known == "texts of the samples":  # hard negatives, of which they say nothing, have ids
        options |= {"duplicates": [*"abcdcf"], "ids": number, "negatives": cp.Keys(hard, of_hard)}
    found = cp.treatment("infonce:t=0.1; duplicates")(z1, z2, pairing="one_way", **options)
    kind = "labels" if known == "labels" else "ids"
    wanted = cp.InfoNCE(0.1)(z1, z2, pairing="one_way", **{kind: number}, negatives=cp.Keys(hard, of_hard))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_hard_negatives_of_other_lengths_are_compared_by_direction(dtype):
    z1, z2, hard = torch.randn(3, 6, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    z1, z2 = normalize(z1, dim=1), normalize(z2, dim=1)
    hard[1] = z2[0]
    found = cp.treatment("infonce:t=0.1; duplicates")(z1, z2, pairing="one_way", negatives=1000 * hard)
    same = cp.Keys(1000 * hard, ids=torch.tensor([9, 0, 10, 11, 12, 13]))
    wanted = cp.InfoNCE(0.1)(z1, z2, pairing="one_way", ids=torch.arange(6), negatives=same)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_duplicates_among_hard_negatives_of_less_precision(dtype):
    z1, z2, hard = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(0))
    hard[1] = z2[0]
    keys = cp.Keys(hard.to(dtype), torch.tensor([6, 0, 7, 8, 9, 10]))
    wanted = cp.InfoNCE(0.1)(z1, z2, ids=torch.arange(6), negatives=keys)
    torch.testing.assert_close(cp.treatment("infonce:t=0.1; duplicates")(z1, z2, negatives=keys.embeddings), wanted)


@pytest.mark.parametrize("hard", [torch.ones(4, 2, 9), torch.ones(4, 8, dtype=torch.int64), torch.ones(())])
def test_hard_negatives_that_do_not_fit_are_refused_as_without_duplicates(hard):
    z1, z2 = torch.randn(2, 4, 8)
    with pytest.raises((TypeError, ValueError)) as plain:
        cp.InfoNCE(0.1)(z1, z2, negatives=hard)
    with pytest.raises(type(plain.value), match=re.escape(str(plain.value))):
        cp.treatment("infonce:t=0.1; duplicates")(z1, z2, negatives=hard)


@pytest.mark.parametrize("known", [{}, {"duplicates": [*"abcd"]}])
def test_ids_of_hard_negatives_without_those_of_samples_are_refused(known):
    keys = cp.Keys(torch.randn(4, 8), torch.arange(4))
    with pytest.raises(ValueError, match="negatives: ids: needs ids= or labels= beside it"):
        cp.treatment("infonce:t=0.1; duplicates")(*torch.randn(2, 4, 8), negatives=keys, **known)


@pytest.mark.parametrize("pairing", ["one_way", "views", "symmetric"])
def test_counts_excluded_keys_and_empty_anchors_of_embeddings(pairing):
    t = cp.treatment("infonce:t=0.5; ids=y")
    t(Z1, Z2, ids=IDS, pairing=pairing)
    anchors, keys = (6, 1) if pairing == "one_way" else (12, 2 if pairing == "views" else 1)
    assert t.counts == {"anchors": anchors, "excluded": anchors // 3 * keys, "without_negatives": 0}
    assert t(Z1, Z2, ids=IDS, empty="zero").isfinite()  # nothing is empty
    tiled = cp.treatment("infonce:t=0.5; ids=y")
    tiled(Z1, Z2, ids=IDS, pairing=pairing, engine="tiles:3")
    assert tiled.counts["excluded"] == anchors // 3 * keys
    t = cp.treatment("infonce:t=0.5; margin=0")
    t(Z1, Z2, pairing=pairing, engine="tiles:3")  # which would need another pass to count them
    assert t.counts["excluded"].isnan()
    z, keys = torch.eye(3), torch.tensor([[1.0, 1, 1], [1, 1, 0], [1, 0, 1]])
    t = cp.treatment("infonce:t=0.5; threshold=0.5")
    loss = t(z, keys, pairing="one_way", reduction="none")
    assert t.counts["without_negatives"] == 1
    logits = z @ normalize(keys, dim=1).T
    torch.testing.assert_close(t.from_logits(logits, reduction="none"), loss)
    assert t.counts["anchors"] == 6
    with pytest.raises(ValueError, match="every anchor of this step"):
        cp.treatment("infonce; threshold=-1")(Z1, Z2)


def test_excludes_scores_by_pairs_of_ids_by_rules_and_by_a_guide():
    queue, others = normalize(torch.randn(9, 8, generator=G, dtype=torch.float64), dim=1), torch.arange(9) // 2
    pos, neg, ids = (Z1 * Z2).sum(1), Z1 @ queue.T, (IDS, others)
    guide = torch.rand(6, generator=G, dtype=torch.float64), torch.rand(6, 9, generator=G, dtype=torch.float64)
    bank = cp.Keys(queue, ids=others)
    t = cp.treatment("infonce:t=0.5; ids=y; margin=-0.1")
    right = cp.InfoNCE(0.5)(Z1, Z2, queue=bank, ids=IDS, false_negatives=cp.margin(-0.1), empty="keep")
    torch.testing.assert_close(t.from_scores(pos, neg, ids=ids), right)
    assert t.counts["anchors"] == 6
    assert t.report(pos, neg, call="from_scores", ids=ids)["excluded"] == t.counts["excluded"] / 6 > 0
    t = cp.treatment("infonce:t=0.5; duplicates=texts; guide=g; margin=0")
    texts = ["abcdef"[i] for i in IDS], ["abcdef"[i] for i in others]
    loss = t.from_scores(pos, neg, duplicates=texts, guide=guide)
    apart = IDS[:, None] != others
    least = guide[1].masked_fill(~apart, 2).amin(1)
    mask = apart & (guide[1] <= torch.maximum(guide[0], least)[:, None])
    torch.testing.assert_close(loss, cp.InfoNCE(0.5).from_scores(pos, neg, mask))


@pytest.mark.parametrize(
    ("text", "known", "message"),
    [
        ("ids=y", {"ids": IDS}, "ids=y: of scores, expected a pair, anchors' and keys', got Tensor"),
        ("ids=y", {"ids": (IDS, IDS[:2])}, "ids=y: expected 6 and 6 values, got 6 and 2"),
        ("duplicates", {}, "duplicates: of scores, expected a pair"),
        ("labels=y", {}, "labels=y: scores do not say which keys are positives, too; use ids="),
        ("margin=0; guide=g", {"guide": (LOGITS[0], LOGITS[1:])}, r"guide: expected scores \(6, 6\), got \(5, 6\)"),
    ],
)
def test_refuses_what_scores_do_not_say(text, known, message):
    with pytest.raises((TypeError, ValueError), match=message):
        cp.treatment(f"infonce; {text}").from_scores(LOGITS.diagonal(), LOGITS, **known)


@pytest.mark.parametrize("rule", ["", "; threshold=0.2"])
def test_soft_targets_see_the_guide_at_logits_and_scores(rule):
    draw = torch.Generator().manual_seed(0)
    z1, z2, g1, g2 = torch.nn.functional.normalize(torch.randn(4, 6, 4, generator=draw), dim=-1)
    s, g, loss_fn = z1 @ z2.T, g1 @ g2.T, cp.treatment(f"soft:t=0.1,tau=0.2; guide=g{rule}")
    expected = loss_fn(z1, z2, guide=(g1, g2), pairing="one_way")
    others = ~torch.eye(6, dtype=torch.bool)
    torch.testing.assert_close(loss_fn.from_logits(s / 0.3, guide=g, scale=1 / 0.3), expected)
    found = loss_fn.from_scores(s.diagonal(), s, others, guide=(g.diagonal().unsqueeze(1), g))
    torch.testing.assert_close(found, expected)
    report = loss_fn.report(s / 0.3, call="from_logits", guide=g, scale=1 / 0.3)
    assert report["loss"] == pytest.approx(float(expected), rel=1e-5)


def test_a_report_of_logits_knows_weights_and_targets_without_anything_told():
    logits, log_q = torch.randn(4, 6, generator=torch.Generator().manual_seed(1)), torch.arange(6.0).neg()
    targets = logits.softmax(1) + torch.eye(4, 6)
    for known in ({"log_q": log_q}, {"targets": targets}):
        loss = cp.Treatment("infonce:t=1").from_logits(logits, **known)
        assert cp.Treatment("infonce:t=1").report(logits, call="from_logits", **known)["loss"] == pytest.approx(
            loss.item()
        )
        assert loss == cp.InfoNCE(1.0).from_logits(logits, **known)


def test_logits_do_not_say_whose_they_are():
    told = cp.treatment("sogclr:size=8; index=rows")
    with pytest.raises(TypeError, match=r"index=rows: expected embeddings; .* inject function --replace passes"):
        told.from_logits(torch.eye(4), index=torch.arange(4))


@pytest.mark.parametrize("pairing", ["views", "one_way", "symmetric"])
@pytest.mark.parametrize("text", ["", "; duplicates", "; ids=y", "; labels=y", "; margin=0", "; guide=g; margin=0"])
def test_autocast_changes_nothing(text, pairing):
    """Of embeddings the excluded keys are counted, of the matrix that the loss is then computed from."""
    known = {name: IDS for name in ("ids", "labels") if name in text}
    known |= {"guide": [Z2.float(), Z1.float()]} if "guide" in text else {}
    found = []
    for autocast in (False, True):
        t, sides = cp.treatment(f"hcl:t=0.05{text}"), [x.float().requires_grad_() for x in (Z1, Z2)]
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = t(*sides, pairing=pairing, **known)
            gradients = torch.autograd.grad(loss, sides)
            numbers = t.report(*sides, pairing=pairing, **known)
        found.append((loss, *gradients, torch.tensor([*t.counts.values(), *numbers.values()])))
    for inside, outside in zip(*found, strict=True):
        torch.testing.assert_close(inside, outside, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("text", ["", "; duplicates=rows", "; ids=y", "; guide=g; margin=0"])
def test_autocast_changes_nothing_of_logits(text):
    known = {"classes": None} if not text else {"ids": IDS} if "ids" in text else {"duplicates": IDS.unsqueeze(1)}
    known = {"guide": Z2.float()} if "guide" in text else known
    t, logits = cp.treatment(f"hcl:t=0.05{text}"), LOGITS.float()
    outside = t.from_logits(logits, **known)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(t.from_logits(logits, **known), outside)


def test_values_of_unclear_order_are_refused():
    """One value per sample of two views, and a diagonal of positives, which both orders of the views fit."""
    logits, ids = torch.rand(12, 12), torch.arange(6)
    with pytest.raises(ValueError, match="ids=a: the 6 values fit either order of two views"):
        cp.treatment("infonce; ids=a").from_logits(logits, ids=ids)
    halves = torch.arange(12).roll(6)  # of which each is the other view of its row
    cp.treatment("infonce; ids=a").from_logits(logits.fill_diagonal_(-torch.inf), halves, ids=ids)
