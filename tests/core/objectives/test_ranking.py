"""PSL and DrRL: their papers' formulas, and fifty steps of training as with the code of their authors."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

import counterpoint as cp

USERS, ITEMS, WIDTH, BATCH, NEGATIVES = 6, 20, 5, 4, 7
ENGINES = ["matrix", "tiles:3"]


def data() -> tuple[list[torch.Tensor], list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]]:
    """Embeddings of users and items, and of each step the users, a positive item of each, and sampled negatives."""
    draw = torch.Generator().manual_seed(0)
    start = [torch.randn(n, WIDTH, generator=draw, dtype=torch.float64) for n in (USERS, ITEMS)]

    def rows(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, shape, generator=draw)

    return start, [(rows(USERS, BATCH), rows(ITEMS, BATCH), rows(ITEMS, BATCH, NEGATIVES)) for _ in range(50)]


def train(loss_fn, engine: str, users: int = USERS, lr: float = 0.0) -> list[float]:
    """Loss and norm of the gradient, in steps 1 and 50 of matrix factorization; ``lr`` is the objective's."""
    start, steps = data()
    tables, found = [x.requires_grad_() for x in start], []
    for step, (user, item, others) in enumerate(steps):
        user_table, item_table = (normalize(x, dim=1) for x in tables)
        negatives = cp.Keys(item_table[others], shared=False)
        how = {"pairing": "one_way", "negatives": negatives, "in_batch": False, "engine": engine}
        loss = loss_fn(user_table[user % users], item_table[item], **how)
        moving = dict.fromkeys(tables, 0.5) | dict.fromkeys(loss_fn.parameters(), lr)
        slopes = torch.autograd.grad(loss, [*moving])
        with torch.no_grad():
            for x, slope in zip(moving, slopes, strict=True):
                x -= moving[x] * slope
        if step in (0, 49):
            found += [loss.item(), torch.cat(slopes[:2]).norm().item()]
    return found


# By the loss of PSLOptimizer of Tiny-Snow/IR-Benchmark at 1dd8de9, with tau=2, tau_star=.1 and method 1, less log(7):
# it sums where ours is a mean.
PSL = {
    "tanh": (0.538219074782, 1.325660064082, -0.526066273172, 1.258688572660),
    "relu": (0.558673230984, 1.381744402735, -0.458878507306, 1.287493556405),
    "atan": (0.538512518834, 1.326967395646, -0.524062791821, 1.259750451731),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("surrogate", PSL)
def test_fifty_steps_of_psl(surrogate, engine):
    assert train(cp.PSL(0.1, surrogate), engine) == pytest.approx(PSL[surrogate], rel=1e-9)


# By the loss of DrRLOptimizer of cynthia-shengjia/AAAI-2025-DrRL at 8198e61, in double precision: omega, weight, and
# the step size of its margins. It has one for each user; with one user, both have one, whose gradient there is a sum.
DRRL = {
    (2.0, 1.0, 0.0): (1.228687488701, 0.314449090709, 1.063447025466, 0.321585079381),
    (1.25, 50.0, 0.0): (18.597721728237, 6.561214457763, 1.370512477668, 0.223620156961),
    (2.0, 1.0, 0.02): (1.205535356564, 0.375901853127, 1.165164498621, 0.220422225300),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", DRRL)
def test_fifty_steps_of_drrl(case, engine):
    omega, weight, lr = case
    margin = cp.Learned(0.2, -1, 1) if lr else 0.2
    loss_fn = cp.DrRL(margin, omega, weight).double()
    found = train(loss_fn, engine, users=1 if lr else USERS, lr=lr * BATCH)
    assert found == pytest.approx(DRRL[case], rel=1e-9 if not lr else 1e-6)
    if lr:
        assert float(loss_fn.margin.detach()) == pytest.approx(-0.3750221466160661, rel=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_opposite_negatives_have_no_share_in_psl(engine):
    """A surrogate of zero is a negative that does not count: rounding it is felt only where all of them are zero."""
    line = torch.tensor([[1.0], [1.0], [-1.0], [-1.0]])  # cosines of 1 and -1
    loss_fn = cp.PSL(0.1, "relu")
    z = line.requires_grad_()
    loss = loss_fn(z, line.detach(), pairing="one_way", engine=engine)
    (slope,) = torch.autograd.grad(loss, z)
    assert loss.item() == pytest.approx(torch.tensor(1 / 3).log().item(), rel=1e-6)  # one of three negatives is at 1
    assert slope.isfinite().all()
    far = loss_fn(line[:1].detach(), line[:1].detach(), negatives=line[2:3].detach(), in_batch=False, engine=engine)
    assert far.item() < -600  # the formula's value is the logarithm of zero
