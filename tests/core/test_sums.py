"""Sums of objectives: linear, each term with its own pairing, weights that change."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from identities import SEED, cosines, embeddings, prop, same

import counterpoint as cp


@prop(seed=SEED, a=st.floats(-2, 2), b=st.floats(-2, 2), c=st.floats(0.1, 2))
def test_sums_are_linear(seed, a, b, c):
    z = embeddings(seed)
    x, y, w = cp.InfoNCE(0.4), cp.HCL(0.4), cp.DistancePolarization()
    vx, vy, vw = (o(*z) for o in (x, y, w))
    same((a * x + y * b)(*z), a * vx + b * vy, z)
    same((c * (a * x + y) + w)(*z), c * (a * vx + vy) + vw, z)
    same(((x + y) + (w + x))(*z), 2 * vx + vy + vw, z)
    pos, neg = cosines(seed)
    same((a * x + b * w).from_scores(pos, neg), a * x.from_scores(pos, neg) + b * w.from_scores(pos, neg), pos, neg)
    same(cp.ArCL(x + a * y)(*z), cp.ArCL(x)(*z) + a * cp.ArCL(y)(*z), z)


def test_each_term_pairs_in_its_own_way():
    z = embeddings(0, 3)
    total = cp.InfoNCE(0.4) + cp.ArCL() + cp.DebiasedPositives() + 0.3 * cp.DistancePolarization()
    same(total(*z), sum(w * part(*z) for w, part in total.terms()), z)
    same(total(*z, pairing="first_two"), sum(w * part(*z, pairing="first_two") for w, part in total.terms()), z)


def test_weights_that_move():
    z = embeddings(0)
    total = cp.InfoNCE(0.4) + cp.Schedule(0.0, 1.0, 4) * cp.DistancePolarization() + cp.Learned(0.5) * cp.HCL(0.4)
    for step in range(6):
        parts = cp.InfoNCE(0.4)(*z), cp.DistancePolarization()(*z), cp.HCL(0.4)(*z)
        same(total(*z), parts[0] + min(step / 4, 1.0) * parts[1] + 0.5 * parts[2], z, rtol=1e-6)
    learned = next(p for p in total.parameters())
    (gradient,) = torch.autograd.grad(total(*z), learned)
    torch.testing.assert_close(gradient.double(), 0.5 * cp.HCL(0.4)(*z), rtol=1e-6, atol=0)
