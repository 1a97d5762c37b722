"""alpha-CL, against its formula written out."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from identities import SEED, T, cosines, prop, same

import counterpoint as cp


@pytest.mark.parametrize("normalize", [True, False])
@prop(seed=SEED, t=T, power=st.floats(0.5, 4))
def test_alpha_cl_is_linear_in_the_similarities_with_constant_weights(normalize, seed, t, power):
    pos, neg = cosines(seed)
    weights = (-((1 - neg.detach()) ** power) / t).exp()
    losses = (weights * (neg - pos)).sum(1)
    expected = losses / weights.sum(1) if normalize else losses
    actual = cp.AlphaCL(t, power=power, normalize=normalize).from_scores(pos, neg)
    same(actual, expected.mean(), pos, neg)
