"""Bad input: the exception's type, and a message that names the argument, what came and what was expected."""

from __future__ import annotations

import math
import pickle
import re
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

import counterpoint as cp
from counterpoint.batch.options import OPTIONS

Z1, Z2 = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
POS, NEG = torch.linspace(-0.5, 0.9, 5).unsqueeze(1), torch.linspace(-0.9, 0.9, 35).view(5, 7)
QUEUE = torch.ones(20, 4)
IDS = torch.arange(6)
LOSS = cp.InfoNCE()


def spoiled(x: torch.Tensor, *at: int, value: float = math.nan) -> torch.Tensor:
    x = x.clone()
    x[at] = value
    return x


def without_row(row: int) -> torch.Tensor:
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[row] = False
    return mask


def test_arguments_that_a_term_has_no_use_for_are_the_documented_ones():
    """One loop can call any objective with these; every other argument changes the loss, or is refused."""
    own, other = LOSS(Z1, Z2), torch.roll(Z1, 1, 0)
    values = {"index": IDS, "prior": torch.full((6,), 0.3), "adversarial": Z1, "mixed": Z1}
    for name, value in {**values, "positive_factor": torch.full((6,), 2.0)}.items():
        assert torch.equal(cp.SigLIP()(Z1, Z2, **{name: value}), cp.SigLIP()(Z1, Z2))
    documented = cp.Objective.forward.__doc__.partition("are ignored")[0]
    assert {*values, "positive_factor"} == {*re.findall(r"``(\w+)``", documented)}
    used = {"ids": IDS % 3, "labels": IDS % 3, "queue": QUEUE, "negatives": other, "log_q": -IDS.float()}
    used |= {"directions": ("query_to_doc",), "hardness": ("in_batch_negatives", 1.0), "pairing": "one_way"}
    used |= {"false_negatives": cp.margin(-0.5), "guide": (Z1, Z2), "empty": "keep", "in_batch": False}
    used |= {"normalize": False, "engine": "tile", "gather": object(), "reduction": "none"}
    assert {*used, *values, "positive_factor"} == {*OPTIONS}
    for name, value in used.items():
        try:
            said = name * (not torch.equal(LOSS(Z1, Z2, **{name: value}), own))
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            said = str(error)
        assert name in said or name == "gather", name


EMBEDDINGS = {
    "nothing": (lambda: LOSS(), ValueError, r"no embeddings: call with .*loss_fn\(z1, z2\)"),
    "no tensor": (lambda: LOSS(Z1, "z2"), TypeError, r"view 2: expected a tensor, got str"),
    "integers": (lambda: LOSS(Z1.long(), Z2), TypeError, r"view 1: expected floating-point values, got torch.int64"),
    "complex numbers": (lambda: LOSS(Z1 + 0j, Z2), TypeError, r"view 1: expected floating-point .*complex64\.$"),
    "labels by position": (
        lambda: LOSS(Z1 @ Z2.T, IDS),
        TypeError,
        r"view 2: expected floating-point values, got torch.int64\. .*labels=.*call from_logits\(logits, labels\)",
    ),
    "one view": (
        lambda: LOSS(Z1),
        ValueError,
        r"needs at least 2 views, got 1\. If .* both .*: loss_fn\(\*z\.chunk\(2",
    ),
    "a list after the views": (
        lambda: LOSS(Z1, Z2, [0, 1]),
        TypeError,
        r"view 3: .* got list: .* by name, such as labels=",
    ),
    "feature maps": (lambda: LOSS(*torch.ones(2, 6, 4, 3, 3)), ValueError, r"got \(6, 4, 3, 3\)\. .*z\.flatten\(1\)"),
    "ids by a treatment's name": (lambda: LOSS(Z1, Z2, duplicates=IDS), TypeError, r"Did you mean 'ids'\?"),
    "ids of three views": (lambda: LOSS(Z1, Z2, Z2, ids=torch.arange(18)), ValueError, r"per sample, not one per view"),
    "logits": (lambda: LOSS(Z1 @ Z2.T), ValueError, r"got 1\. For logits, call from_logits\(logits, labels\)"),
    "stacked in an unknown way": (
        lambda: LOSS(torch.stack([Z1, Z2])),
        ValueError,
        r"view 1: expected shape \(batch, width\), got \(2, 6, 4\)\. For \(views, batch, width\), call "
        r"loss_fn\(\*z\); for \(batch, views, width\), loss_fn\(\*z\.unbind\(1\)\)",
    ),
    "vector": (lambda: LOSS(Z1[0], Z2[0]), ValueError, r"view 1: expected shape \(batch, width\), got \(4\)"),
    "four dimensions": (lambda: LOSS(Z1[None, None]), ValueError, r"view 1: expected shape .*got \(1, 1, 6, 4\)"),
    "two stacks": (lambda: LOSS(Z1[None], Z2[None]), ValueError, r"view 1: expected shape .*got \(1, 6, 4\)"),
    "another batch size": (lambda: LOSS(Z1, Z2[:5]), ValueError, r"view 2: expected shape \(6, 4\) .*got \(5, 4\)"),
    "another width": (lambda: LOSS(Z1, Z2, Z2[:, :3]), ValueError, r"view 3: expected shape \(6, 4\) .*got \(6, 3\)"),
    "a list of views": (
        lambda: LOSS([Z1, Z2]),
        TypeError,
        r"view 1: expected a tensor, got list: call loss_fn\(\*views",
    ),
    "one sample to polarise": (
        lambda: (LOSS + 0.1 * cp.DistancePolarization())(Z1[:1], Z2[:1], negatives=Z1[:1]),
        ValueError,
        r"batch of one sample has no negatives",
    ),
    "queue with a pairing": (
        lambda: LOSS(Z1, Z2, queue=Z1, pairing="symmetric"),
        ValueError,
        r"queue= is a pairing of its own.*'symmetric': give one",
    ),
    **{
        f"{name} on another device": (
            lambda name=name, x=x: LOSS(Z1, Z2, **{name: x.to("meta")}),
            ValueError,
            rf"{name}: on meta, but view 1 is on cpu",
        )
        for name, x in {"ids": IDS, "labels": IDS, "queue": Z1, "negatives": Z1, "prior": Z1[:, 0]}.items()
    },
    "another device": (lambda: LOSS(Z1, Z2.to("meta")), ValueError, r"view 2: on meta, but view 1 is on cpu"),
    "no samples": (lambda: LOSS(Z1[:0], Z2[:0]), ValueError, r"view 1: empty, shape \(0, 4\)"),
    "no width": (lambda: LOSS(Z1[:, :0], Z2[:, :0]), ValueError, r"view 1: empty, shape \(6, 0\)"),
    "one sample": (lambda: LOSS(Z1[:1], Z2[:1]), ValueError, r"batch of one sample has no negatives.*drop_last"),
    "NaN": (lambda: LOSS(Z1, spoiled(Z2, 2, 3)), ValueError, r"view 2: 1 of 24 values .*NaN.*first at \(2, 3\)"),
    "infinity": (
        lambda: LOSS(spoiled(Z1, 4, value=-math.inf), Z2),
        ValueError,
        r"view 1: 4 of 24 values .*infinite.*first at \(4, 0\)",
    ),
    "hard negatives alone": (lambda: LOSS(Z1, negatives=Z2), ValueError, r"one_way needs at least 2 views, got 1"),
    "pairing without positives": (lambda: LOSS(Z1, Z2, pairing="single"), ValueError, r"single has no positives"),
    "pairing": (lambda: LOSS(Z1, Z2, pairing="oneway"), ValueError, r"unknown pairing 'oneway'.*mean 'one_way'.*views"),
    "pairing queue": (lambda: LOSS(Z1, Z2, pairing="queue"), ValueError, r"pairing queue needs queue="),
    "symmetric views": (
        lambda: LOSS(Z1, Z2, Z1, pairing="symmetric"),
        ValueError,
        r"symmetric needs exactly 2 views, got 3",
    ),
    "reduction": (lambda: LOSS(Z1, Z2, reduction="avg"), ValueError, r"unknown reduction 'avg'.*mean, none"),
    "reduction None": (lambda: LOSS(Z1, Z2, reduction=None), ValueError, r"unknown reduction None.*mean 'none'"),
    "reduction of a sum": (
        lambda: (LOSS + cp.DistancePolarization())(Z1, Z2, reduction="none"),
        ValueError,
        r"reduction='none' needs the same anchors in every term.*pairing=",
    ),
    "argument": (lambda: LOSS(Z1, Z2, parings="views"), TypeError, r"parings"),
    "prior number": (lambda: LOSS(Z1, Z2, prior=0.1), TypeError, r"prior: expected a tensor, got float"),
    "prior shape": (lambda: LOSS(Z1, Z2, prior=torch.rand(5)), ValueError, r"prior: .*shape \(6,\), got \(5\)"),
    "prior range": (lambda: LOSS(Z1, Z2, prior=torch.ones(6)), ValueError, r"prior: expected .*\[0, 1\)"),
    "prior NaN": (lambda: LOSS(Z1, Z2, prior=torch.rand(6) * math.nan), ValueError, r"prior: expected .*\[0, 1\)"),
    "adversarial shape": (
        lambda: cp.Robust()(Z1, Z2, adversarial=Z1[:3]),
        ValueError,
        r"adversarial: expected shape \(6, 4\).*got \(3, 4\)",
    ),
    "adversarial NaN": (
        lambda: cp.Robust()(Z1, Z2, adversarial=spoiled(Z1, 0, 0)),
        ValueError,
        r"adversarial: 1 of 24 values",
    ),
    "adversarial missing": (lambda: cp.Robust()(Z1, Z2), ValueError, r"robust.*adversarial=.*views\.attack"),
    "adversarial missing in a sum": (lambda: cp.IntNaCl()(Z1, Z2), ValueError, r"adversarial=.*views\.attack"),
    "adversarial with a queue": (
        lambda: cp.IntCL()(Z1, Z2, queue=QUEUE, adversarial=Z1),
        ValueError,
        r"adversarial.*pairings",
    ),
    "mixed shape": (lambda: cp.MixNCA()(Z1, Z2, mixed=Z1[:, :3]), ValueError, r"mixed: expected shape \(6, 4\).*got"),
    "mixed with a queue": (lambda: cp.MixNCA()(Z1, Z2, queue=QUEUE, mixed=Z1), ValueError, r"mixed=.*queue"),
    "mixed with hard negatives": (
        lambda: cp.MixNCA()(Z1, Z2, negatives=Z2, mixed=Z1),
        ValueError,
        r"mixed=.*negatives",
    ),
}

KEYS = {
    "queue transposed": (
        lambda: LOSS(Z1, Z2, queue=QUEUE.T),
        ValueError,
        r"queue: expected .*\(keys, 4\), got \(4, 20\).*queue\.T",
    ),
    "queue width": (
        lambda: LOSS(Z1, Z2, queue=QUEUE[:, :3]),
        ValueError,
        r"queue: expected .*\(keys, 4\), got \(20, 3\)",
    ),
    "queue vector": (lambda: LOSS(Z1, Z2, queue=QUEUE[0]), ValueError, r"queue: expected \(keys, 4\), got shape \(4\)"),
    "queue empty": (
        lambda: LOSS(Z1, Z2, queue=QUEUE[:0]),
        ValueError,
        r"queue: expected .* with at least one key, got \(0, 4\)",
    ),
    "queue integers": (lambda: LOSS(Z1, Z2, queue=QUEUE.long()), TypeError, r"queue: expected floating-point.*int64"),
    "queue NaN": (lambda: LOSS(Z1, Z2, queue=spoiled(QUEUE, 7, 1)), ValueError, r"queue: 1 of 80 values .*\(7, 1\)"),
    "queue and three views": (lambda: LOSS(Z1, Z2, Z1, queue=QUEUE), ValueError, r"queue= .*query and key, got 3"),
    "queue and negatives": (
        lambda: LOSS(Z1, Z2, queue=QUEUE, negatives=Z1),
        ValueError,
        r"expected queue or negatives=, got both",
    ),
    "negatives shape": (
        lambda: LOSS(Z1, Z2, negatives=Z1[:5]),
        ValueError,
        r"negatives: expected shape \(6, 4\) or \(6, n, 4\), got \(5, 4\)\. Keys that all samples share are a queue=",
    ),
    "negatives empty": (
        lambda: LOSS(Z1, Z2, negatives=torch.ones(6, 0, 4)),
        ValueError,
        r"negatives: .*got \(6, 0, 4\)",
    ),
    "negatives NaN": (lambda: LOSS(Z1, Z2, negatives=spoiled(Z1, 1, 1)), ValueError, r"negatives: 1 of 24 values"),
    "negatives and a pairing": (
        lambda: LOSS(Z1, Z2, negatives=Z1, pairing="views"),
        ValueError,
        r"negatives= goes with the pairings one_way and joint, not views",
    ),
    "own_log_weight word": (
        lambda: LOSS(Z1, Z2, negatives=cp.Keys(Z1, own_log_weight="x")),
        (TypeError, ValueError),
        r"own_log_weight.*number.*'x'",
    ),
    "own_log_weight too heavy": (
        lambda: LOSS(Z1, Z2, negatives=cp.Keys(Z1, own_log_weight=90)),
        ValueError,
        r"own_log_weight: expected a number of at most 80, got 90",
    ),
    "ids all equal": (
        lambda: LOSS(Z1, Z2, ids=torch.zeros(6, dtype=torch.long)),
        ValueError,
        r"12 of 12 anchors have no negatives \(rows 0, 1, 2, .*\.\.\.\): ids",
    ),
    "labels all equal": (
        lambda: LOSS(Z1, Z2, pairing="one_way", labels=torch.zeros(6, dtype=torch.long)),
        ValueError,
        r"6 of 6 anchors have no negatives \(rows 0, .*labels",
    ),
    "ids length": (lambda: LOSS(Z1, Z2, ids=IDS[:5]), ValueError, r"ids: expected 6 integers, got shape \(5\)"),
    "ids per view": (lambda: LOSS(Z1, Z2, ids=IDS.repeat(2)), ValueError, r"6 integers, got .*one per sample, not"),
    "ids floats": (lambda: LOSS(Z1, Z2, ids=torch.rand(6)), ValueError, r"ids: expected 6 integers, got .*float32"),
    "ids matrix": (
        lambda: LOSS(Z1, Z2, ids=IDS.view(6, 1)),
        ValueError,
        r"ids: expected 6 integers, got shape \(6, 1\)",
    ),
    "ids complex": (
        lambda: LOSS(Z1, Z2, ids=IDS.to(torch.complex64)),
        ValueError,
        r"ids: expected 6 integers, got .*complex64",
    ),
    "ids list": (lambda: LOSS(Z1, Z2, ids=[0] * 6), TypeError, r"ids: expected a tensor, got list"),
    "labels list": (lambda: LOSS(Z1, Z2, labels=[0] * 6), TypeError, r"labels: expected a tensor, got list"),
    "ids and labels": (lambda: LOSS(Z1, Z2, ids=IDS, labels=IDS), ValueError, r"ids .*or labels .*not both"),
    "labels and a pairing": (
        lambda: LOSS(Z1, Z2, labels=IDS, pairing="arcl"),
        ValueError,
        r"labels= goes with the pairings views, one_way, symmetric and queue, not arcl",
    ),
    "labels all different": (
        lambda: LOSS(Z1, labels=IDS),
        ValueError,
        r"labels: expected a label that at least 2 samples share, got 6 different ones\.$",
    ),
    "labels of logits": (
        lambda: cp.SupCon()(Z1 @ Z2.T, labels=IDS),
        ValueError,
        r"got 6 different ones\. For logits, call from_logits\(logits, labels\)",
    ),
    "ids of a queue without ids": (
        lambda: LOSS(Z1, Z2, queue=cp.Keys(QUEUE, ids=IDS)),
        ValueError,
        r"queue: ids: needs ids= or labels=",
    ),
    "ids of a queue length": (
        lambda: LOSS(Z1, Z2, queue=cp.Keys(QUEUE, ids=IDS), ids=IDS),
        ValueError,
        r"queue: ids: expected one integer per key, 20 in all, got shape \(6\)",
    ),
    "ids of a queue list": (
        lambda: LOSS(Z1, Z2, queue=cp.Keys(QUEUE, ids=[0] * 20), ids=IDS),
        TypeError,
        r"queue: ids: expected a tensor, got list",
    ),
    "ids of a queue floats": (
        lambda: LOSS(Z1, Z2, queue=cp.Keys(QUEUE, ids=torch.rand(20)), ids=IDS),
        (TypeError, ValueError),
        r"queue: ids: expected .*float32",
    ),
    "queue of duplicates": (
        lambda: LOSS(Z1, Z2, queue=cp.Keys(QUEUE, ids=torch.full((20,), 2)), ids=IDS),
        ValueError,
        r"1 of 6 anchors have no negatives \(rows 2\)",
    ),
    "ids of negatives length": (
        lambda: LOSS(Z1, Z2, negatives=cp.Keys(Z1, ids=IDS[:5]), ids=IDS),
        ValueError,
        r"negatives: ids: expected one integer per key, 6 in all, got shape \(5\)",
    ),
}

SCORES = {
    "pos list": (lambda: LOSS.from_scores([0.5], NEG), TypeError, r"pos: expected a tensor, got list"),
    "pos integers": (lambda: LOSS.from_scores(POS.long(), NEG), TypeError, r"pos: expected floating-point.*int64"),
    "pos empty": (lambda: LOSS.from_scores(POS[:, :0], NEG), ValueError, r"pos: expected .*n >= 1, got \(5, 0\)"),
    "pos dimensions": (lambda: LOSS.from_scores(POS[None], NEG), ValueError, r"pos: expected .*got \(1, 5, 1\)"),
    "pos NaN": (lambda: LOSS.from_scores(spoiled(POS, 3, 0), NEG), ValueError, r"pos: 1 of 5 values .*\(3, 0\)"),
    "neg list": (lambda: LOSS.from_scores(POS, [0.5]), TypeError, r"neg: expected a tensor, got list"),
    "neg vector": (lambda: LOSS.from_scores(POS, NEG[0]), ValueError, r"neg: expected \(5, N\), got shape \(7\)"),
    "neg empty": (lambda: LOSS.from_scores(POS, NEG[:, :0]), ValueError, r"neg: expected .*N >= 1, got \(5, 0\)"),
    "neg rows": (lambda: LOSS.from_scores(POS, NEG[:4]), ValueError, r"neg: expected shape \(5, N\).*got \(4, 7\)"),
    "neg infinite": (
        lambda: LOSS.from_scores(POS, spoiled(NEG, 0, 6, value=math.inf)),
        ValueError,
        r"neg: 1 of 35 values .*\(0, 6\)",
    ),
    "mask list": (lambda: LOSS.from_scores(POS, NEG, [[True] * 7] * 5), TypeError, r"mask: expected .*got list"),
    "mask numbers": (
        lambda: LOSS.from_scores(POS, NEG, torch.ones(5, 7)),
        ValueError,
        r"mask: expected booleans of shape \(5, 7\), got \(5, 7\) of torch.float32",
    ),
    "mask shape": (
        lambda: LOSS.from_scores(POS, NEG, without_row(0)[:, :6]),
        ValueError,
        r"mask: .*\(5, 7\), got \(5, 6\)",
    ),
    "mask row": (
        lambda: LOSS.from_scores(POS, NEG, without_row(2)),
        ValueError,
        r"1 of 5 anchors have no negatives \(rows 2\)",
    ),
    "NaN that counts": (
        lambda: LOSS.from_scores(POS, spoiled(NEG, 1, 1), torch.ones(5, 7, dtype=torch.bool)),
        ValueError,
        r"neg: 1 of 35 values .*\(1, 1\)",
    ),
    "pos_mask list": (lambda: LOSS.from_scores(POS, NEG, pos_mask=[True]), TypeError, r"pos_mask: expected .*got list"),
    "pos_mask shape": (
        lambda: LOSS.from_scores(POS, NEG, pos_mask=without_row(0)),
        ValueError,
        r"pos_mask: expected booleans of shape \(5, 1\), got \(5, 7\)",
    ),
    "pos_mask empty": (
        lambda: LOSS.from_scores(POS, NEG, pos_mask=POS > 1),
        ValueError,
        r"pos_mask: expected a positive of at least one anchor, got False everywhere",
    ),
    "adversarial missing": (lambda: cp.Robust().from_scores(POS, NEG), ValueError, r"adversarial="),
    "reduction": (lambda: LOSS.from_scores(POS, NEG, reduction="sum"), ValueError, r"unknown reduction 'sum'"),
}

LOGITS = {
    "logits vector": (
        lambda: LOSS.from_logits(NEG[0]),
        ValueError,
        r"logits: expected \(\.\.\., anchors, keys\), got shape \(7\)",
    ),
    "logits integers": (lambda: LOSS.from_logits(NEG.long()), TypeError, r"logits: expected floating-point.*int64"),
    "logits NaN": (lambda: LOSS.from_logits(spoiled(NEG, 4, 0)), ValueError, r"logits: 1 of 35 values .*\(4, 0\)"),
    "labels on another device": (
        lambda: LOSS.from_logits(NEG, IDS[:5].to("meta")),
        ValueError,
        r"labels: on meta, but",
    ),
    "a masked positive": (
        lambda: LOSS.from_logits(spoiled(NEG, 3, 3, value=-math.inf)),
        ValueError,
        r"logits: those of the positives of rows \[3\] are masked, -1e4 or less",
    ),
    "nothing but masks": (
        lambda: LOSS.from_logits(spoiled(NEG, 2, slice(3, 7), value=-1e9)[:, 2:], torch.zeros(5, dtype=torch.long)),
        ValueError,
        r"1 of 5 anchors have no negatives \(rows 2\)",
    ),
    "one key": (lambda: LOSS.from_logits(NEG[:, :1]), ValueError, r"logits: expected at least 2 keys.*\(5, 1\)"),
    "no diagonal": (lambda: LOSS.from_logits(NEG[:, :3]), ValueError, r"labels: needed.*\(5, 3\).*diagonal"),
    "labels out of range": (
        lambda: LOSS.from_logits(NEG, torch.tensor([0, 7, 6, -100, -1])),
        ValueError,
        r"labels: expected columns from 0 to 6 or -100, got \[7, -1\]",
    ),
    "labels list": (lambda: LOSS.from_logits(NEG, [0] * 5), TypeError, r"labels: expected a tensor, got list"),
    "labels floats": (lambda: LOSS.from_logits(NEG, torch.rand(5)), ValueError, r"labels: expected 5 columns.*float32"),
    "labels one-hot": (
        lambda: LOSS.from_logits(NEG, torch.ones(5, 7, dtype=torch.long)),
        ValueError,
        r"labels: expected 5 columns, got shape \(5, 7\)",
    ),
    "labels length": (lambda: LOSS.from_logits(NEG, IDS), ValueError, r"labels: expected 5 columns, got shape \(6\)"),
    "boolean shape": (
        lambda: LOSS.from_logits(NEG, without_row(0)[:, :6]),
        ValueError,
        r"labels: expected booleans of shape \(5, 7\), got \(5, 6\)",
    ),
    "no negatives": (
        lambda: LOSS.from_logits(NEG, ~without_row(3)),
        ValueError,
        r"1 of 5 anchors have no negatives \(rows 3\)",
    ),
    "no positives": (
        lambda: LOSS.from_logits(NEG, NEG > 1),
        ValueError,
        r"labels: expected a positive in at least one row, got none",
    ),
    "scale zero": (lambda: LOSS.from_logits(NEG, scale=0), ValueError, r"scale: expected a positive number.*, got 0"),
    "scale NaN": (lambda: LOSS.from_logits(NEG, scale=math.nan), ValueError, r"scale: expected .*got nan"),
    "scale tensor": (lambda: LOSS.from_logits(NEG, scale=torch.ones(2)), ValueError, r"scale: expected .*got tensor"),
    "scale negative": (
        lambda: LOSS.from_logits(NEG, scale=-torch.ones(())),
        ValueError,
        r"scale: expected a positive number, or a tensor with one, got tensor\(-1",
    ),
    "empty": (
        lambda: LOSS.from_logits(NEG, empty="skip"),
        ValueError,
        r"empty: unknown value 'skip'.*error, warn, zero",
    ),
    "soft targets": (
        lambda: LOSS.from_logits(NEG, NEG.softmax(1)),
        ValueError,
        r"labels: expected zero, or one number for all positives of a row .*label smoothing",
    ),
    "temperature of embeddings": (
        lambda: cp.InfoNCE("host")(Z1, Z2),
        ValueError,
        r'temperature "host" is one over the scale of logits',
    ),
}

T_RANGE = r"temperature must be a finite number with 0 < temperature or \"host\", got "
VALUES = {
    **{
        f"temperature {v!r}": (lambda v=v: cp.InfoNCE(v), kind, T_RANGE + re.escape(repr(v)))
        for v, kind in (
            (0, ValueError),
            (-1, ValueError),
            (math.nan, ValueError),
            (math.inf, ValueError),
            ("x", ValueError),
            (True, ValueError),
            (None, TypeError),
            ([0.5], TypeError),
        )
    },
    "temperature tensor": (lambda: cp.InfoNCE(torch.tensor(0.5)), TypeError, T_RANGE + r"tensor\(0\.5"),
    "mu": (lambda: cp.ADNCE(mu="foo"), ValueError, r'ADNCE: mu must be a finite number or "auto", got \'foo\''),
    "mu of a density": (lambda: cp.ADNCE(mu=-1, weight="gamma"), ValueError, r"ADNCE: mu must be positive.*gamma.*-1"),
    "moving mu of a density": (
        lambda: cp.ADNCE(mu=cp.Schedule(-1, 1, 3), weight="gamma"),
        ValueError,
        r"ADNCE: mu must be positive.*gamma.*schedule\(-1,1,3\)",
    ),
    "sigma": (lambda: cp.ADNCE(sigma=0), ValueError, r"ADNCE: sigma must be .*0 < sigma .*got 0"),
    "auto without gaussian": (lambda: cp.ADNCE(mu="auto", weight="chi2"), ValueError, r"'auto' .*gaussian.*got .*chi2"),
    "quantile": (lambda: cp.ADNCE(quantile=1), ValueError, r"0 < quantile < 1, got 1"),
    "prior": (lambda: cp.DCL(prior=1), ValueError, r"DCL: prior must be .*0 <= prior < 1, got 1"),
    "prior zero": (lambda: cp.DebiasedPositives(prior=0), ValueError, r"0 < prior < 1, got 0"),
    "learned prior": (
        lambda: cp.DCL(prior=cp.Learned(0.5)),
        ValueError,
        r"0 <= prior < 1, got learned\(0\.5,0\.001,1000\)",
    ),
    "scheduled temperature": (
        lambda: cp.InfoNCE(cp.Schedule(0.5, 0, 3)),
        ValueError,
        T_RANGE + r"schedule\(0\.5,0,3\)",
    ),
    "scheduled NaN": (
        lambda: cp.InfoNCE(cp.Schedule(math.nan, 1, 3)),
        ValueError,
        r"(?i)schedule.*nan|temperature.*nan",
    ),
    "fixed radius": (
        lambda: cp.InfoNCE(radius=cp.Schedule(1, 2, 3)),
        TypeError,
        r"InfoNCE: radius must be .*or None, got",
    ),
    "denominator": (
        lambda: cp.InfoNCE(denominator="sum"),
        ValueError,
        r"unknown denominator 'sum'.*with_positive, negatives, mean",
    ),
    "denominator near": (lambda: cp.InfoNCE(denominator="with_positives"), ValueError, r"mean 'with_positive'"),
    "denominator number": (lambda: cp.InfoNCE(denominator=3), ValueError, r"denominator must be one of .*got 3"),
    "flag": (lambda: cp.AlphaCL(normalize=1), ValueError, r"normalize must be True or False, got 1"),
    "flag word": (lambda: cp.AlphaCL(normalize="yes"), ValueError, r"normalize must be True or False, got 'yes'"),
    "margin": (lambda: cp.DistancePolarization(0.6, 0.5), ValueError, r"expected low < high, got low=0.6, high=0.5"),
    "moving margin": (
        lambda: cp.DistancePolarization(cp.Schedule(0.1, 0.7, 3), 0.5),
        ValueError,
        r"expected low < high, got low=schedule\(0\.1,0\.7,3\), high=0.5",
    ),
    "chi2 alpha": (lambda: cp.CLDRO(divergence="chi2", alpha=0.1), ValueError, r"alpha and shared belong to .*kl"),
    "arcl views": (
        lambda: cp.ArCL(views=1),
        ValueError,
        r"views must be a whole number with 2 <= views or None, got 1",
    ),
    "arcl half a view": (lambda: cp.ArCL(views=2.5), ValueError, r"views must be a whole number .*got 2\.5"),
    "arcl NaN views": (lambda: cp.ArCL(views=math.nan), ValueError, r"views must be a whole number .*got nan"),
    "arcl infinite views": (lambda: cp.ArCL(views=math.inf), ValueError, r"views must be a whole number .*got inf"),
    "arcl of a number": (lambda: cp.ArCL(3), TypeError, r"expected an objective or a spec .*, got 3 \(int\)"),
    "arcl of a class": (lambda: cp.ArCL(cp.InfoNCE), TypeError, r"expected an objective or a spec such as"),
    "arcl of a bad spec": (lambda: cp.ArCL("infonc"), cp.SpecError, r"unknown objective 'infonc'"),
    "unknown parameter": (lambda: cp.InfoNCE(temprature=1), TypeError, r"InfoNCE.*'temprature'.*mean 'temperature'"),
    "unknown parameter of hcl": (lambda: cp.HCL(temprature=1), TypeError, r"HCL.*'temprature'"),
    "replace": (lambda: LOSS.replace(temp=1), TypeError, r"InfoNCE.*unknown parameter 'temp'.*mean 'temperature'"),
    "replace value": (lambda: LOSS.replace(temperature=0), ValueError, T_RANGE + "0"),
    "replace in a sum": (lambda: (LOSS + LOSS).replace(temperature=1), TypeError, r"a sum has no parameters"),
    "schedule start": (lambda: cp.Schedule("a", 1, 3), (TypeError, ValueError), r"Schedule: .*start.*'a'"),
    "schedule end": (lambda: cp.Schedule(1, None, 3), (TypeError, ValueError), r"Schedule: .*end.*None"),
    "schedule no steps": (lambda: cp.Schedule(1, 2, 0), ValueError, r"Schedule: steps .* at least 1, got 0"),
    "schedule half a step": (lambda: cp.Schedule(1, 2, 1.5), ValueError, r"Schedule: steps must be .*got 1\.5"),
    "schedule NaN steps": (lambda: cp.Schedule(1, 2, math.nan), ValueError, r"Schedule: steps must be .*got nan"),
    "schedule steps word": (lambda: cp.Schedule(1, 2, "x"), (TypeError, ValueError), r"Schedule: steps must be .*'x'"),
    "schedule shape": (
        lambda: cp.Schedule(1, 2, 3, "cos"),
        ValueError,
        r"Schedule: unknown shape 'cos'.*mean 'cosine'",
    ),
    "schedule shape number": (
        lambda: cp.Schedule(1, 2, 3, 4),
        (TypeError, ValueError),
        r"Schedule: .*shape.*4.*linear",
    ),
    "learned zero": (
        lambda: cp.Learned(0),
        ValueError,
        r"Learned: expected low <= init <= high, got init=0.*may be negative needs low=",
    ),
    "learned outside": (lambda: cp.Learned(0.5, 0.6), ValueError, r"got init=0\.5, low=0\.6, high=1000"),
    "learned infinite": (lambda: cp.Learned(0.5, high=math.inf), ValueError, r"Learned: expected .*high=inf"),
    "learned NaN": (lambda: cp.Learned(math.nan), ValueError, r"Learned: expected .*init=nan"),
    "learned word": (lambda: cp.Learned("a"), (TypeError, ValueError), r"Learned: expected .*init='a'"),
    "checks": (lambda: cp.set_checks("sometimes"), ValueError, r"unknown mode 'sometimes'.*auto, always, never"),
    "divergence": (lambda: cp.mutual_information(POS, NEG, "js"), ValueError, r"unknown divergence 'js'.*kl, chi2"),
    "mix count": (lambda: cp.views.mix(Z1, 0.5, 6), ValueError, r"mix: expected 1 <= count <= .*5, got 6"),
    "mix lam": (lambda: cp.views.mix(Z1, 1.5), ValueError, r"lam must be in \[0, 1\], got 1\.5"),
    "fgsm epsilon": (lambda: cp.views.fgsm(torch.sum, Z1, 0.0), ValueError, r"epsilon > 0.*epsilon=0\.0"),
    "pgd steps": (lambda: cp.views.pgd(torch.sum, Z1, 0.1, steps=0), ValueError, r"steps >= 1.*steps=0"),
    "fgsm integers": (lambda: cp.views.fgsm(torch.sum, Z1.long(), 0.1), TypeError, r"x: expected floating-point"),
}

CALLS = {
    "frozen": (
        lambda: setattr(LOSS, "temperature", 1),
        AttributeError,
        r"InfoNCE.temperature is frozen.*\.replace\(temp.*Schedule",
    ),
    "frozen by its short name": (lambda: setattr(LOSS, "t", 1), AttributeError, r"InfoNCE.temperature is frozen"),
    "frozen wrapper": (lambda: setattr(cp.ArCL(), "views", 3), AttributeError, r"ArCL.views is frozen"),
    "views at the call": (lambda: cp.ArCL(views=4)(Z1, Z2), ValueError, r"views=4.* got 2"),
    "views in a sum": (lambda: (LOSS + cp.AAL(views=3))(Z1, Z2, Z1, Z2), ValueError, r"views=3.* got 4"),
    "views of a queue": (
        lambda: cp.ArCL(views=4)(torch.stack([Z1, Z2], 1), torch.stack([Z2, Z1], 1), queue=QUEUE),
        ValueError,
        r"views=4.* got 2",
    ),
    "add a number": (lambda: LOSS + 1, TypeError, r"'InfoNCE' and 'int'"),
    "add a spec": (lambda: LOSS + "dp", TypeError, r"'InfoNCE' and 'str'"),
    "weight word": (lambda: LOSS * "x", TypeError, r"InfoNCE"),
    "product": (lambda: LOSS * LOSS, TypeError, r"'InfoNCE' and 'InfoNCE'"),
    "weight NaN": (lambda: math.nan * LOSS, ValueError, r"weight must be a finite number, got nan"),
    "weight True": (lambda: True * LOSS, ValueError, r"weight must be a finite number, got True"),
    "weight infinite in a sum": (
        lambda: math.inf * (LOSS + LOSS),
        ValueError,
        r"weight must be a finite number, got inf",
    ),
    "spec number": (lambda: cp.objective(3), TypeError, r"objective: expected a spec string, got 3 \(int\)"),
    "dict number": (lambda: cp.from_dict(3), ValueError, r'from_dict: expected a dict with "name", got 3'),
    "dict empty": (lambda: cp.from_dict({}), ValueError, r'from_dict: expected a dict with "name", got {}'),
    "dict name": (lambda: cp.from_dict({"name": "infonc"}), ValueError, r"unknown objective 'infonc'.*mean 'infonce'"),
    "dict name list": (lambda: cp.from_dict({"name": ["a"]}), (TypeError, ValueError), r"from_dict: .*\['a'\]"),
    "dict name None": (
        lambda: cp.from_dict({"name": None}),
        ValueError,
        r'from_dict: expected a dict with "name", got .*None',
    ),
    "dict parameter": (lambda: cp.from_dict({"name": "infonce", "mu": 1}), TypeError, r"unknown parameter 'mu'"),
    "dict value": (lambda: cp.from_dict({"name": "infonce", "temperature": "x"}), ValueError, T_RANGE + "'x'"),
    "dict value list": (lambda: cp.from_dict({"name": "infonce", "temperature": [1]}), TypeError, T_RANGE),
    "dict of a wrapper": (lambda: cp.from_dict({"name": "arcl"}), (TypeError, ValueError), r"arcl.*objective"),
    "dict inside": (
        lambda: cp.from_dict({"name": "arcl", "objective": 3}),
        ValueError,
        r"from_dict: expected a dict.*got 3",
    ),
    "dict without terms": (lambda: cp.from_dict({"name": "sum"}), ValueError, r"from_dict: .*terms"),
    "dict empty terms": (lambda: cp.from_dict({"name": "sum", "terms": []}), ValueError, r"terms?"),
    "dict junk terms": (
        lambda: cp.from_dict({"name": "sum", "terms": 3}),
        (TypeError, ValueError),
        r"from_dict: .*terms",
    ),
    "dict short term": (lambda: cp.from_dict({"name": "sum", "terms": [[1.0]]}), ValueError, r"from_dict: .*term"),
}


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        pytest.param(*case, id=f"{group}: {name}")
        for group, cases in {
            "embeddings": EMBEDDINGS,
            "keys": KEYS,
            "scores": SCORES,
            "logits": LOGITS,
            "values": VALUES,
            "calls": CALLS,
        }.items()
        for name, case in cases.items()
    ],
)
def test_message(call, kind, message):
    with pytest.raises(kind, match=f"(?s){message}") as caught:
        call()
    assert type(caught.value) in (kind if isinstance(kind, tuple) else (kind,))


# ---- specs: ^ stands where the caret must point ---------------------------------------------------

SPECS = [
    ("^", r"expected an objective's name, found the end"),
    ("  ^", r"expected an objective's name, found the end"),
    ("^NTXent", r"unknown objective 'NTXent'. Did you mean 'infonce'\?"),
    ("^ADNCE", r"unknown objective 'ADNCE'. Did you mean 'adnce'\?"),
    ("^DistancePolarization", r"unknown objective 'DistancePolarization'. Did you mean 'dp'\?"),
    ("^nce", r"unknown objective 'nce'. Did you mean 'infonce'\?"),
    ("^nt-xent", r"unknown objective 'nt'. Did you mean 'infonce'\?"),
    ("^infonc", r"unknown objective 'infonc'. Did you mean 'infonce'\? Known: .*adnce"),
    ("^sum", r"unknown objective 'sum'"),
    ("^host; duplicates", r"'host' is the loss of a script .*as it is; here, name it"),
    ("^Infonce", r"unknown objective 'Infonce'"),
    ("infonce:^", r"expected a parameter's name, found the end"),
    ("infonce:t^", r"expected '=', found the end"),
    ("infonce:t ^0.5", r"expected '=', found '0'"),
    ("infonce:t=^", r"expected a number, found the end"),
    ("infonce:t=^%", r"expected a number, found '%'"),
    ("infonce:t=^x", T_RANGE + "'x'"),
    ("infonce:t= ^0", T_RANGE + "0"),
    ("infonce:t=^-1", T_RANGE + "-1"),
    ("infonce:t=^nan", T_RANGE + "'nan'"),
    ("infonce:t=^1e999", T_RANGE + "inf"),
    ("infonce:t=^true", T_RANGE + "True"),
    ("infonce:t=0.5^.5", r"unexpected '\.'"),
    ("infonce:t=0.5,^", r"expected a parameter's name, found the end"),
    ("infonce:t=0.5,^t=0.4", r"infonce: 't' is given twice"),
    ("infonce:t=0.5,^temperature=0.4", r"infonce: 'temperature' is given twice"),
    ("infonce:^mu=1", r"infonce: unknown parameter 'mu'. Known: t, "),
    ("infonce:^temprature=1", r"unknown parameter 'temprature'. Did you mean 'temperature'\?"),
    ("infonce:denominator=^means", r"unknown denominator 'means'. Did you mean 'mean'\?"),
    ("adnce:mu=^foo", r'mu must be a finite number or "auto", got \'foo\''),
    ("adnce:t=0.2,sigma=^0", r"0 < sigma"),
    ("adnce:weight=^gauss", r"unknown weight 'gauss'. Did you mean 'gaussian'\?"),
    ("adnce:weight=^3", r"weight must be one of gaussian"),
    ("^adnce:mu=auto,weight=chi2", r"'auto' .*gaussian"),
    ("^dp:low=0.6,high=0.5", r"expected low < high, got low=0.6, high=0.5"),
    ("infonce + 0.3 * ^dp:low=0.6,high=0.5", r"expected low < high"),
    ("^dro:divergence=chi2,alpha=0.1", r"alpha and shared belong to"),
    ("infonce +^", r"expected an objective's name, found the end"),
    ("infonce + ^+ dcl", r"expected an objective's name, found '\+'"),
    ("infonce ^dcl", r"unexpected 'd"),
    ("infonce ^- dcl", r"unexpected '-'"),
    ("infonce^)", r"unexpected '\)'"),
    ("infonce^*2", r"unexpected '\*'"),
    ("infonce^, hcl", r"unexpected ',': separate several objectives by spaces"),
    ("hcl:t=0^,1", r"unexpected ',': numbers have a decimal point, 0\.1"),
    ("arcl(hcl:t=0^,05):views=4; ids=y", "decimal point"),
    ("infonce + 0^,1*dp", "decimal point"),
    ("matryoshka(infonce):dims=64^,128", r"0\.1, lists \[1,2\]"),
    ("host^,hcl", r"unexpected ',': separate several objectives by spaces"),
    ("0.1 ^infonce", r"expected '\*', found 'i"),
    ("0.1*^", r"expected an objective's name, found the end"),
    ("2*^3*infonce", r"expected an objective's name, found '3'"),
    ("infonce + ^1e999*dp", r"weight must be a finite number, got inf"),
    ("schedule(1,2,3)^", r"expected '\*', found the end"),
    ("^a*infonce", r"unknown objective 'a'"),
    ("arcl^", r"'arcl' wraps an objective: arcl\(infonce\)"),
    ("arcl^:views=4", r"'arcl' wraps an objective: arcl\(infonce\)"),
    ("arcl(^)", r"expected an objective's name, found '\)'"),
    ("arcl(infonce^", r"expected '\)', found the end"),
    ("arcl(infonce):views=^1", r"views must be a whole number with 2 <= views"),
    ("arcl(hcl + ^arc(infonce))", r"unknown objective 'arc'. Did you mean 'arcl'\?"),
    ("infonce^(dcl)", r"'infonce' takes no objective in parentheses; parameters follow a colon"),
    ("(infonce^", r"expected '\)', found the end"),
    ("infonce:t=^sched(1,2,3)", r"unknown value 'sched'. Did you mean 'schedule'\?"),
    ("infonce:t=^schedule(0.5)", r"(?i)schedule.*end.*steps"),
    ("infonce:t=^schedule(0.5,0.1,0)", r"Schedule: steps must be a whole number, at least 1, got 0"),
    ("infonce:t=^schedule(0.5,foo,3)", r"Schedule: .*end.*'foo'"),
    ("infonce:t=schedule(1,2,3^", r"expected '\)', found the end"),
    ("infonce:t=^schedule(0.5,0,3)", T_RANGE + r"schedule\(0\.5,0,3\)"),
    ("infonce:t=^learned(2,3,4)", r"Learned: expected low <= init <= high, got init=2"),
    ("infonce:t=^learned(foo)", r"Learned: expected .*init='foo'"),
    ("infonce +\n  dcl:^mu=1", r"dcl: unknown parameter 'mu'"),
    ("infonce +\tdcl:^mu=1", r"dcl: unknown parameter 'mu'"),
]


@pytest.mark.parametrize(("marked", "message"), SPECS, ids=[repr(s) for s, _ in SPECS])
def test_spec(marked, message):
    position, text = marked.index("^"), marked.replace("^", "")
    with pytest.raises(cp.SpecError, match=message) as caught:
        cp.objective(text)
    assert caught.value.position == position
    *_, shown, caret = str(caught.value).split("\n")
    assert caret.strip(" ") == "^"
    column = len(caret) - 1
    assert shown[column : column + 1] == text[position : position + 1]
    assert shown[:column].split()[-1:] == text[:position].split()[-1:]


@pytest.mark.parametrize("sign", ["\x1b[31m", "\u202e", "\0", "\r"])
def test_a_spec_cannot_write_to_a_terminal(sign):
    with pytest.raises(cp.SpecError) as caught:
        cp.objective(f"infonce{sign}red")
    assert all(line.isprintable() for line in str(caught.value).split("\n"))


VALID = [
    "arcl(adnce:mu=0.7,t=0.2 + hcl):views=4 + 0.1*dp:low=0.1,reduction=batch_sum",
    "2*(infonce:t=schedule(0.5,1e-1,10,cosine),radius=none) + learned(1,.1,2)*dro:divergence=chi2,nonneg=true",
]
TYPO = st.tuples(
    st.integers(0, 110), st.integers(0, 4), st.text("adnce:=,.+*()-0123456789 e_\t\n\u00e9\u221e\u0663%", max_size=3)
)


def read(text: str) -> cp.Objective | cp.SpecError:
    try:
        return cp.objective(text)
    except cp.SpecError as error:
        return error


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(text=st.sampled_from(VALID), typos=st.lists(TYPO, min_size=1, max_size=3))
def test_whatever_is_written_is_read_or_refused_with_a_place(text, typos):
    for at, removed, inserted in typos:
        text = text[:at] + inserted + text[at + removed :]
    found = read(text)
    if isinstance(found, cp.SpecError):
        assert 0 <= found.position <= len(text)
    else:
        assert cp.objective(str(found)) == found


def test_known_names_are_listed_once():
    with pytest.raises(cp.SpecError) as caught:
        cp.objective("infonce:q=1")
    known = re.search(r"Known: (.*)\.", str(caught.value)).group(1).split(", ")
    assert len(known) == len(set(known))
    assert {"t", "temperature", "denominator", "radius"} <= set(known)


def test_spec_errors_cross_processes():
    with pytest.raises(cp.SpecError) as caught:
        cp.objective("infonc")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.position) == (str(caught.value), 0)


# ---- when values are looked at ------------------------------------------------------------------


@pytest.fixture
def restored():
    yield
    cp.set_checks("auto")


@pytest.mark.usefixtures("restored")
def test_checks_can_be_switched_off_for_values_but_not_for_shapes():
    cp.set_checks("never")
    assert LOSS(spoiled(Z1, 0, 0), Z2).isnan()
    assert LOSS.from_scores(spoiled(POS, 0), NEG).isnan()
    assert LOSS(Z1, labels=IDS).isnan()
    assert LOSS.from_scores(POS, NEG, pos_mask=POS > 1).isnan()
    assert LOSS.from_logits(NEG, NEG > 1).isnan()
    with pytest.raises(ValueError, match="view 2"):
        LOSS(Z1, Z2[:5])
    cp.set_checks("always")
    with pytest.raises(ValueError, match="view 1: 1 of 24"):
        LOSS(spoiled(Z1, 0, 0), Z2)


@pytest.mark.parametrize(
    "loss_fn",
    [
        cp.InfoNCE(20),
        cp.SigLIP(cp.Learned(20)),
        cp.InfoNCE(cp.Schedule(20, 0.1, 100)),
        0.1 * LOSS + cp.ArCL(cp.HCL(20), views=2),
    ],
    ids=str,
)
def test_a_scale_in_place_of_a_temperature_is_warned_of_where_the_objective_is_called(loss_fn):
    with pytest.warns(UserWarning, match=r"at most 5 for cosines, got 20\. .*temperature is 1/20") as caught:
        loss_fn(Z1, Z2)
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss_fn(Z1, Z2, normalize=False)
        loss_fn.from_scores(POS, 20 * NEG)
        loss_fn.from_logits(NEG)
        cp.InfoNCE(5)(Z1, Z2)
        cp.SigLIP(cp.Learned(0.1))(Z1, Z2)


@pytest.mark.parametrize(
    "call", [lambda o: o(Z1), lambda o: o(Z1, Z2, reduction="avg"), lambda o: o(Z1, Z2, queue=QUEUE.T)]
)
def test_a_refused_call_changes_no_state(call):
    loss_fn = cp.ADNCE(cp.Schedule(0.5, 0.1, 3), mu="auto", radius=0.1)
    with pytest.raises(ValueError, match=r"view|reduction|queue"):
        call(loss_fn)
    assert loss_fn._hyper["temperature"].step == 0
    assert loss_fn.tracked_temperature.value.isnan()
    assert loss_fn.tracked_mu.value.isnan()


# ---- new objectives -----------------------------------------------------------------------------


@pytest.fixture
def registered():
    before = dict(cp.registry)
    yield cp.registry
    cp.registry.clear()
    cp.registry.update(before)


@pytest.mark.parametrize(
    "name", ["infonce", "arcl", "Upper", "with-dash", "1st", "with space", "sum", "schedule", "learned"]
)
def test_names_that_cannot_be_registered(registered, name):
    before = dict(registered)
    with pytest.raises(ValueError, match=f"Mine: .*{name}"):

        class Mine(cp.Objective, name=name):
            pass

    assert registered == before


def test_a_taken_name_says_by_whom(registered):
    with pytest.raises(ValueError, match=r"the name 'hcl' is taken by counterpoint\.objectives\.infonce\.HCL"):

        class Mine(cp.InfoNCE, name="hcl"):
            pass

    assert registered["hcl"] is cp.HCL


def test_a_class_may_be_defined_again(registered):
    """As happens when a notebook cell runs twice."""
    for _ in range(2):

        class Mine(cp.InfoNCE, name="mine"):
            pass

    assert registered["mine"] is Mine
    assert str(cp.objective("2*mine")) == "2*mine:t=0.5,denominator=with_positive"


def test_an_objective_without_a_formula():
    class Empty(cp.Objective):
        pass

    with pytest.raises(NotImplementedError, match="Empty defines neither per_anchor nor losses"):
        Empty()(Z1, Z2)
    assert Empty not in cp.registry.values()


def test_a_parameter_that_was_not_declared():
    class Undeclared(cp.Objective):
        def __init__(self, mu=0.5):
            super().__init__(mu=mu)

    with pytest.raises(TypeError, match="Undeclared: unknown parameter 'mu'"):
        Undeclared()


def test_a_replaced_copy_keeps_a_schedule_of_its_own():
    loss_fn = cp.InfoNCE(cp.Schedule(0.5, 0.1, 3))
    loss_fn.replace(denominator="mean")(Z1, Z2.requires_grad_())
    assert loss_fn.temperature == 0.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LOSS(Z1, Z2, queue=QUEUE, labels=IDS), r"needs those of the keys, cp\.Keys"),
        (lambda: LOSS(Z1, Z2, queue=QUEUE, ids=IDS), r"needs those of the keys, cp\.Keys"),
        (lambda: cp.kl_alpha(NEG, -0.1), r"radius: expected a positive number, got -0.1"),
        (lambda: cp.tau_from_radius(NEG, 0), r"radius: expected a positive number, got 0"),
        (lambda: cp.chi2_ratio(NEG, 0.1, 0), r"scale: expected a positive number, got 0"),
        (lambda: cp.worst_case_weights(NEG, -0.5), r"temperature: expected a positive number, got -0\.5"),
        (lambda: cp.mutual_information(POS, NEG, temperature=0), r"temperature: expected a positive number, got 0"),
        (lambda: cp.mutual_information(spoiled(POS, 0), NEG), r"pos: 1 of 5 values"),
        (lambda: cp.kl_alpha(NEG[0], 0.1), r"neg: expected \(anchors, N\), got shape \(7\)"),
        (lambda: cp.kl_alpha(NEG[:, :0], 0.1), r"neg: expected shape \(anchors, N\) with N >= 1, got \(5, 0\)"),
        (lambda: cp.ADNCE().weights(spoiled(NEG, 1, 1)), r"neg: 1 of 35 values .*\(1, 1\)"),
        (lambda: cp.worst_alignment(Z1), r"worst_alignment: expected \(batch, views, width\), got shape \(6, 4\)"),
        (lambda: cp.pairs_in_margin(spoiled(Z1, 0, 0)), r"pairs_in_margin: 1 of 24 values"),
        (lambda: cp.pairs_in_margin(Z1, 0.5, 0.1), r"expected low < high, got low=0\.5, high=0\.1"),
        (lambda: cp.distances(), r"distances: call with the views"),
        (lambda: LOSS.from_scores(POS, cp.MatrixNegatives(NEG), NEG > 0), r"mask: goes with a matrix.*MatrixNegatives"),
        (lambda: cp.DebiasedPositives()(Z1, Z2, prior=torch.zeros(6)), r"prior: expected probabilities in \(0, 1\)"),
        (lambda: cp.objective("(" * 3000 + "infonce" + ")" * 3000), r"more than 50 objectives inside each other"),
    ],
)
def test_what_could_only_mislead_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("spec", ["infonce", "hcl", "adnce", "dro", "debpos", "arcl(dcl) + 0.1*dp"])
def test_tensors_without_values_give_a_loss_without_a_value(spec):
    """Meta and fake tensors: shapes are checked, values are not read."""
    loss_fn = cp.objective(spec)
    for batch in (6, 400) if spec != "dro" else (6,):  # whose steps are many
        meta = [torch.zeros(batch, 8, device="meta") for _ in range(3)]
        assert loss_fn(*meta).is_meta
        with FakeTensorMode():
            assert loss_fn(*(torch.zeros(batch, 8) for _ in range(3))).shape == ()


def test_the_shortest_half_vectors_have_finite_gradients():
    z = torch.full((6, 4), 6e-8, dtype=torch.float16).requires_grad_()
    LOSS(z, Z2.detach().half()).backward()
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("value", [10**400, -(10**400)])
def test_whole_numbers_larger_than_every_float_are_refused_by_name(value):
    """Found by fuzzing: they ended in an OverflowError."""
    for build in (cp.InfoNCE, lambda t: cp.from_dict({"name": "infonce", "temperature": t}), cp.Learned):
        with pytest.raises(ValueError, match=r"temperature|Learned"):
            build(value)
