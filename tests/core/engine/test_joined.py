"""Negatives beside one another reduce as one matrix of all of them; weights by similarity as log-weights."""

from __future__ import annotations

import pytest
import torch

from counterpoint.engine.joined import JoinedNegatives, joined
from counterpoint.engine.mask import Mask
from counterpoint.engine.matrix import MatrixNegatives
from counterpoint.engine.tiles import TileNegatives

DRAW = torch.Generator().manual_seed(5)
LEFT, RIGHT, OTHER = (torch.randn(7, 4, generator=DRAW, dtype=torch.float64) / 3 for _ in range(3))
MASK = Mask(7)
REDUCTIONS = {
    "logsumexp": lambda neg: neg.logsumexp(lambda s: 3 * s),
    "of a function of its own": lambda neg: neg.logsumexp(lambda s: s.abs().sqrt()),
    "two": lambda neg: torch.cat(neg.logsumexp(lambda s: (s, 2 * s)), 1),
    "mean": lambda neg: neg.mean(lambda s: s),
    "means": lambda neg: torch.cat(neg.mean(lambda s: (s.exp(), s**2)), 1),
    "per anchor": lambda neg: neg.mean(lambda s, m: (s - m) ** 2, LEFT[:, :1]),
    "max": lambda neg: neg.max(),
    "min": lambda neg: neg.min(),
    "count": lambda neg: torch.as_tensor(neg.count, dtype=torch.float64).expand(7, 1),
    "variance": lambda neg: neg.variance(),
}
PAIRS = ((LEFT, RIGHT), (OTHER, OTHER))


def in_tiles(left, right):
    return TileNegatives([(left, right)], mask=MASK, tile=3)


def whole(strength: float = 0.0) -> MatrixNegatives:
    """All similarities in one matrix; the first part has weights."""
    first, second = (a @ b.T for a, b in PAIRS)
    drop = torch.eye(7, dtype=torch.bool).repeat(1, 2)
    weight = torch.cat([strength * first, torch.zeros_like(second)], 1) if strength else None
    return MatrixNegatives(torch.cat([first, second], 1), drop=drop, log_weight=weight)


@pytest.mark.parametrize("strength", [0.0, 2.0])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_one_matrix(name, strength):
    parts = [in_tiles(*pair) for pair in PAIRS]
    if strength:
        parts[0] = parts[0].tilted(strength)
    neg = joined(parts, [0, 0])
    assert isinstance(neg, JoinedNegatives)
    torch.testing.assert_close(REDUCTIONS[name](neg), REDUCTIONS[name](whole(strength)))
    assert isinstance(neg.materialized(), (MatrixNegatives, JoinedNegatives))


def test_matrices_become_a_matrix_with_hard_negatives_last():
    parts = [MatrixNegatives(x @ y.T, drop=torch.zeros(7, 7, dtype=torch.bool)) for x, y in PAIRS]
    neg = joined(parts, [2, 1])
    assert isinstance(neg, MatrixNegatives)
    torch.testing.assert_close(neg.matrix[:, -3:], torch.cat([parts[0].matrix[:, -2:], parts[1].matrix[:, -1:]], 1))
    kept = neg.excluding(torch.full((7, 1), -9.0), exempt=3)
    assert kept.count.unique().tolist() == [3.0]
    assert joined(parts[:1], [2]) is parts[0]


def test_a_part_may_be_empty_but_not_all():
    parts = [in_tiles(*pair) for pair in PAIRS]
    for part in parts:
        part.optional = True
    limit = torch.full((7, 1), 0.05, dtype=torch.float64)
    kept = joined(parts, [0, 0]).excluding(limit)
    torch.testing.assert_close(kept.count, whole().excluding(limit).count)
    torch.testing.assert_close(kept.mean(lambda s: s), whole().excluding(limit).mean(lambda s: s))
    with pytest.raises(ValueError, match="excludes every key"):
        joined(parts, [0, 0]).excluding(limit - 9).logsumexp(lambda s: s)
    with pytest.raises(ValueError, match="excludes every key"):
        joined(parts, [0, 0]).excluding(limit - 9).mean(lambda s: s)


def test_an_empty_part_that_becomes_a_matrix_counts_as_nothing():
    """A second reduction materializes small tiles; a mean over none of their keys would be NaN."""
    parts = [TileNegatives([pair], mask=MASK) for pair in PAIRS]
    for part in parts:
        part.optional = True
    limit = whole().min() + 1e-6  # one negative is left, in one of the parts
    kept, right = joined(parts, [0, 0]).excluding(limit), whole().excluding(limit)
    assert [bool((part.count == 0).any()) for part in kept.parts] == [True, True]
    for name in ("mean", "of a function of its own", "variance", "mean"):
        torch.testing.assert_close(REDUCTIONS[name](kept), REDUCTIONS[name](right), msg=name)
    with pytest.raises(ValueError, match="excludes every key"):
        joined(parts, [0, 0]).excluding(limit - 9).materialized()
