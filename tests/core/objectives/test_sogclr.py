"""SogCLR and iSogCLR: the algorithms of their papers over many steps, and a state that survives what training meets."""

from __future__ import annotations

import copy
import io
import math

import pytest
import torch
from gathered import sogclr_steps
from processes import run
from torch import distributed as dist

import counterpoint as cp

SIZE, BATCH, WIDTH = 24, 6, 8
RHO, ETA, BETA, LOW, HIGH = 0.3, 0.01, 0.9, 0.05, 0.7


def batches(steps: int, seed: int = 0):
    """Samples of each step, and both views of all samples: every epoch a new order."""
    g = torch.Generator().manual_seed(seed)
    views = torch.randn(2, SIZE, 12, generator=g, dtype=torch.float64)
    orders = [torch.randperm(SIZE, generator=g).split(BATCH) for _ in range(math.ceil(steps * BATCH / SIZE))]
    return views, [part for order in orders for part in order][:steps]


class Written:
    """The update rules of the papers with plain exponentials, for one modality (``sample``) or two (``view``).

    The gradient is written out: each negative's weight is ``E / (N u)``, as a constant.
    """

    def __init__(self, average: str, t: float, gamma: float, learned: bool) -> None:
        rows = 1 if average == "sample" else 2
        self.average, self.gamma, self.learned = average, gamma, learned
        self.u = torch.zeros(rows, SIZE, dtype=torch.float64)
        self.t = torch.full((rows, SIZE), t, dtype=torch.float64)
        self.v = torch.zeros(rows, SIZE, dtype=torch.float64)

    def __call__(self, a: torch.Tensor, b: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """A number whose gradient is the estimate of the loss's."""
        others = ~torch.eye(BATCH, dtype=torch.bool)
        total, u, v = 0.0, [], []
        for k, (x, y) in enumerate(((a, b), (b, a))):
            row = 0 if self.average == "sample" else k
            t, pos = self.t[row, index].unsqueeze(1), (x * y).sum(1, keepdim=True)
            if self.average == "sample":
                h = torch.cat([(x @ y.T)[others].view(BATCH, -1), (x @ x.T)[others].view(BATCH, -1)], 1)
            else:
                h = (x @ y.T)[others].view(BATCH, -1) - pos
            e, old = (h.detach() / t).exp(), self.u[row, index]
            g = e.mean(1)
            new = torch.where(old == 0, g, (1 - self.gamma) * old + self.gamma * g)
            weights = e / (e.shape[1] * new.unsqueeze(1))
            total = total + ((weights * h).sum(1) - (pos.squeeze(1) if self.average == "sample" else 0)).mean() / 2
            u.append(new)
            slope = new.log() + RHO - (weights * h.detach() / t).sum(1)
            v.append((1 - BETA) * self.v[row, index] + BETA * slope)
        if self.average == "sample":
            u, v = [sum(u) / 2], [sum(v) / 2]
        for row, (new, slope) in enumerate(zip(u, v, strict=True)):
            self.u[row, index] = new
            if self.learned:
                self.v[row, index] = slope
                self.t[row, index] = (self.t[row, index] - ETA * slope).clamp(LOW, HIGH)
        return total


def train(loss, steps: int, weight: torch.Tensor, order: list[torch.Tensor], views: torch.Tensor):
    """Gradient descent of a linear encoder; return the gradients."""
    weight, found = weight.clone().requires_grad_(), []
    for index in order[:steps]:
        a, b = (torch.nn.functional.normalize(view[index] @ weight, dim=1) for view in views)
        (slope,) = torch.autograd.grad(loss(a, b, index), weight)
        found.append(slope)
        with torch.no_grad():
            weight -= 0.5 * slope
    return found


# Norms of the gradients of steps 1 and 50 by LibAUC's GCLoss at commit 812f98f: by mode, and whether temperatures move.
# Bimodal losses are divided by the number of negatives, unimodal ones by two.
LIBAUC = {
    ("view", False): (0.924179471495, 0.336378036703),
    ("view", True): (0.924179471495, 0.269314811874),
    ("sample", False): (0.850851004400, 0.559719742773),
    ("sample", True): (0.850851004400, 0.544003381020),
}


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("average", ["view", "sample"])
def test_fifty_steps_of_the_written_algorithm(average, learned):
    views, order = batches(50)
    start = torch.randn(12, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64) / 4
    kind = cp.ISogCLR if learned else cp.SogCLR
    ours, theirs = kind(0.1, size=SIZE, average=average).double(), Written(average, 0.1, 0.9, learned)
    if learned:
        ours.temperatures.fill_(0.1)
    pairing = "symmetric" if average == "view" else "views"
    found = train(lambda a, b, index: ours(a, b, index=index, pairing=pairing), 50, start, order, views)
    wanted = train(theirs, 50, start, order, views)
    for step in (0, 49):
        torch.testing.assert_close(found[step], wanted[step], rtol=1e-9, atol=1e-12)
    assert [float(found[step].norm()) for step in (0, 49)] == pytest.approx(LIBAUC[average, learned], rel=1e-9)
    torch.testing.assert_close(ours.log_mean, theirs.u.log().flatten(), rtol=1e-9, atol=1e-12)
    if learned:
        torch.testing.assert_close(ours.temperatures, theirs.t.flatten(), rtol=1e-9, atol=0)
        assert ours.temperatures.std() > 0.01


@pytest.mark.parametrize("kind", [cp.SogCLR, cp.ISogCLR])
@pytest.mark.parametrize("average", ["view", "sample"])
def test_a_duplicate_at_a_small_temperature_is_finite(kind, average):
    """``e^{1 / 0.011}`` overflows in single precision."""
    z = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))
    z[:, 1] = z[:, 0]
    z[1, :2] = z[0, :2]
    loss_fn, z = kind(0.011, size=6, average=average), z.requires_grad_()
    for _ in range(3):
        loss = loss_fn(*z, index=torch.arange(6))
    assert loss.isfinite()
    assert torch.autograd.grad(loss, z)[0].isfinite().all()
    assert all(x.isfinite().all() for x in loss_fn.state_dict().values())
    exact = kind(0.011, size=6, average=average).double()
    for _ in range(3):
        wanted = exact(*z.detach().double(), index=torch.arange(6))
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("spec", ["sogclr:t=0.1,size=24", "isogclr:t=0.1,size=24,average=sample"])
def test_a_resumed_training_continues_with_the_same_numbers(spec):
    views, order = batches(12)
    whole, first, second = (cp.objective(spec).double() for _ in range(3))

    def losses(loss_fn, some):
        return [loss_fn(*views[:, index], index=index).item() for index in some]

    wanted = losses(whole, order)
    before, file = losses(first, order[:5]), io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert before + losses(second, order[5:]) == wanted


def test_the_state_may_be_more_precise_than_the_embeddings():
    loss_fn, z = cp.ISogCLR(0.5, size=4).double(), torch.randn(2, 4, 8).half()
    options = {"log_q": torch.zeros(4), "index": torch.arange(4), "pairing": "joint"}
    losses = [loss_fn(*z, engine=engine, **options) for engine in ("matrix", "tiles", "matrix", "tiles")]
    single = cp.ISogCLR(0.5, size=4)
    torch.testing.assert_close(torch.stack(losses), torch.stack([single(*z, **options) for _ in losses]))
    assert loss_fn.temperatures.dtype == torch.float64


def test_evaluation_reads_the_state_and_does_not_change_it():
    views, order = batches(2)
    loss_fn = cp.ISogCLR(0.1, size=SIZE)
    loss_fn(*views[:, order[0]], index=order[0])
    before = copy.deepcopy(loss_fn.state_dict())
    report = loss_fn.report(*views[:, order[0]], index=order[0])
    assert math.isclose(report["temperature"], float(loss_fn.temperatures[order[0]].mean()), rel_tol=0.1)
    with torch.no_grad():
        loss_fn(*views[:, order[1]], index=order[1])
    loss_fn.eval()(*views[:, order[0]], index=order[0])
    for name, value in loss_fn.state_dict().items():
        assert torch.equal(value, before[name])


def test_samples_that_a_batch_has_twice_keep_the_mean():
    z = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    loss_fn, apart = (cp.SogCLR(0.5, size=4).double() for _ in range(2))
    index = torch.tensor([2, 0, 2, 1])
    loss_fn(*z, index=index)
    apart(*z, index=torch.arange(4))
    means = apart.log_mean.view(2, 4).exp()
    expected = torch.stack([means[:, 1], means[:, 3], (means[:, 0] + means[:, 2]) / 2, 0 * means[:, 0]], 1)
    torch.testing.assert_close(loss_fn.log_mean.view(2, 4).exp(), expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f, z: f(*z), "pass index=, the samples' positions"),
        (lambda f, z: f.from_logits(z[0] @ z[1].T), "pass index=, the samples' positions"),
        (lambda f, z: f(*z, index=torch.arange(4) + 5), "from 0 to size - 1 = 7 of at most two .*, got 5 to 8 of 2"),
        (lambda f, z: f(*z, index=torch.arange(4) - 1), "got -1 to 2 of 2"),
        (lambda f, z: f(*z, z[0], index=torch.arange(4)), "of more: average=sample.*got 0 to 3 of 3"),
        (lambda f, z: f(*z, index=torch.arange(3)), "index: expected 4 integers"),
    ],
)
def test_wrong_positions(call, message):
    with pytest.raises(ValueError, match=message):
        call(cp.SogCLR(size=8), torch.randn(2, 4, 8))


@pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
@pytest.mark.parametrize("sizes", [pytest.param([3, 3], marks=pytest.mark.slow), [1, 2, 2, 1]])
def test_processes_are_one_with_all_samples(tmp_path, sizes):
    """Ten steps, in which samples change processes; each has all averages afterwards."""
    (wanted,) = run(sogclr_steps, tmp_path, 1, [sum(sizes)])
    for found in run(sogclr_steps, tmp_path, len(sizes), sizes):
        for name, value in found.items():
            torch.testing.assert_close(value, wanted[name], rtol=1e-9, atol=1e-12)
